"""What the flags mean together: a flag beats --command, and what a command says beside the plan is named."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from kvbudget.cli.main import main, parser_of
from kvbudget.cli.planning.inputs import Inputs, inputs_of
from kvbudget.errors import BadValueError, UnsupportedError

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096,
    "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 131072,
}  # fmt: skip
COMPOSE = """\
services:
  llm:
    image: vllm/vllm-openai:v0.32.0
    command: --model ./model --max-model-len 8192 --tensor-parallel-size 2
    deploy: {{resources: {{reservations: {{devices: [{{driver: nvidia, count: {count}, capabilities: [gpu]}}]}}}}}}
  small:
    image: vllm/vllm-openai:v0.32.0
    command: --model ./model --max-model-len 1024
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(LLAMA))
    return tmp_path / "model"


def inputs(*words: str) -> Inputs:
    args: argparse.Namespace = parser_of("plan").parse_args(list(words))
    return inputs_of(args)


def test_a_command_alone_says_model_engine_and_flags(model: Path) -> None:
    found = inputs("--command", "vllm serve ./model --max-model-len 4096 -tp 4 --kv-cache-dtype fp8 --port 80")
    request = found.request
    assert (request.model.name, request.engine) == ("model", "vllm")
    assert request.flags.max_model_len == 4096
    assert (request.flags.tensor_parallel_size, request.flags.kv_cache_dtype) == (4, "fp8")
    assert found.ignored == ("--port",)
    assert found.notes == ()


def test_a_flag_beats_the_command(model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text(json.dumps(LLAMA | {"num_hidden_layers": 16}))
    line = "vllm serve ./model --max-model-len 4096 -tp 4 --enforce-eager --no-enable-prefix-caching"
    request = inputs(
        "other", "--command", line, "--max-model-len", "8k", "-tp", "1", "--enable-prefix-caching", "--engine",
        "vllm@0.20",
    ).request  # fmt: skip
    assert (request.model.name, len(request.model.layers), request.engine) == ("other", 16, "vllm@0.20")
    assert (request.flags.max_model_len, request.flags.tensor_parallel_size) == (8192, 1)
    assert request.flags.enable_prefix_caching is True
    assert request.flags.enforce_eager is True  # said by the command alone


def test_what_of_a_command_is_not_in_the_plan_is_named(model: Path) -> None:
    line = "vllm serve ./model --frobnicate 3 --max-model-len $LENGTH --cpu-offload-gb 4 --quantization fp8"
    found = inputs("--command", line)
    said = [(note.code, note.severity) for note in found.notes]
    assert said.count(("command_flag_unknown", "error")) == 1
    assert ("command_unclear", "warning") in said
    unmodelled = [note.message for note in found.notes if note.code == "command_flag_unmodelled"]
    assert any("--cpu-offload-gb" in message for message in unmodelled)
    assert any("quantization fp8" in message for message in unmodelled)
    assert all(note.fix for note in found.notes)


def test_given_weights_need_no_warning_of_quantisation(model: Path) -> None:
    found = inputs("--command", "vllm serve ./model --quantization fp8", "--weights", "8GiB")
    assert found.notes == ()


def test_only_a_share_given_here_puts_the_pool_of_the_command_aside(model: Path) -> None:
    line = "vllm serve ./model --kv-cache-memory-bytes 8G"
    assert inputs("--command", line).request.kv_cache_memory == 8 * 2**30  # capital letters count 1024
    assert inputs("--command", line, "--gpu", "h100").request.kv_cache_memory == 8 * 2**30
    given_share = inputs("--command", line, "--gpu", "h100", "--gpu-memory-utilization", "0.8")
    assert given_share.request.kv_cache_memory is None
    given = inputs("--command", line, "--gpu", "h100", "--kv-cache-memory-bytes", "2GiB")
    assert given.request.kv_cache_memory == 2 * 2**30


@pytest.mark.parametrize(("count", "words", "cards"), [(2, [], 2), (4, ["--gpus", "8"], 8), (4, ["--gpu", "h100"], 4)])
def test_a_compose_file_says_how_many_cards_there_are(
    model: Path, tmp_path: Path, count: int, words: list[str], cards: int
) -> None:
    (tmp_path / "compose.yaml").write_text(COMPOSE.format(count=count))
    request = inputs("--command", "compose.yaml", "--command-name", "llm", *words).request
    assert (request.gpus, request.flags.tensor_parallel_size) == (cards, 2)


def test_of_several_commands_one_must_be_named(model: Path, tmp_path: Path) -> None:
    (tmp_path / "compose.yaml").write_text(COMPOSE.format(count=1))
    with pytest.raises(BadValueError, match="small"):
        inputs("--command", "compose.yaml")
    assert inputs("--command", "compose.yaml", "--command-name", "small").request.flags.max_model_len == 1024


def test_a_model_is_found_beside_the_file_that_names_it(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "serve.sh").write_text("exec vllm serve ./model\n")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert inputs("--command", str(tmp_path / "serve.sh")).request.model.name == "model"


def test_a_name_in_a_variable_that_nobody_set_is_said_with_the_missing_model(model: Path) -> None:
    with pytest.raises(BadValueError, match=r"MODEL is missing .*WHICH"):
        inputs("--command", 'vllm serve "$WHICH"')


def test_how_many_cards_is_said_once_or_beside_the_name(model: Path) -> None:
    assert inputs("model", "--gpu", "h100:8").request.gpus == 8
    assert inputs("model", "--gpu", "h100:8", "--gpus", "4").request.gpus == 4
    assert inputs("model", "--gpu", "h100").request.gpus is None


def test_a_trace_is_read_once_for_plan_and_answers(model: Path, tmp_path: Path) -> None:
    (tmp_path / "usage.jsonl").write_text('{"prompt_tokens": 5, "completion_tokens": 7}\n' * 3)
    found = inputs("model", "--trace", "usage.jsonl")
    assert found.workload is not None
    assert found.request.requests is found.workload.requests
    assert found.request.requests == ((5, 7),) * 3


def test_speculation_of_a_command_is_read_with_the_weights_of_its_draft(model: Path, tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    draft.mkdir()
    (draft / "config.json").write_text(json.dumps(LLAMA | {"num_hidden_layers": 1}))
    index = {"metadata": {"total_size": 10**9}, "weight_map": {"a": "model-1.safetensors"}}
    (draft / "model.safetensors.index.json").write_text(json.dumps(index))
    config = '{"method": "eagle3", "num_speculative_tokens": 3, "model": "draft"}'
    for words in (["--command", f"vllm serve ./model --speculative-config '{config}'"], ["model"]):
        more = [] if len(words) > 1 else ["--speculative-config", config]
        request = inputs(*words, *more).request
        assert request.flags.speculation is not None
        assert request.flags.speculation.num_speculative_tokens == 3
        assert request.draft_weights is not None
        assert (request.draft_weights.bytes, request.draft_weights.source) == (10**9, "measured")


@pytest.mark.parametrize(
    "words",
    [
        ["model", "--hf-overrides", '{"rope_scaling": {"rope_type": "linear", "factor": 2.0}}'],
        ["--command", "vllm serve ./model --hf-overrides '{\"max_position_embeddings\": 262144}'"],
        ["--command", "vllm serve ./model --hf-overrides.max_position_embeddings 262144"],
        ["--command", 'vllm serve ./model --rope-scaling \'{"type": "linear", "factor": 2.0}\' --rope-theta 5e6',
         "--engine", "vllm@0.10"],
        ["--command", "python -m sglang.launch_server --model-path ./model --json-model-override-args "
         "'{\"max_position_embeddings\": 262144}'"],
    ],
)  # fmt: skip
def test_what_is_set_in_config_json_is_planned_with(words: list[str], model: Path) -> None:
    found = inputs(*words)
    assert found.request.model.longest_given == 262144
    assert found.notes == ()


def test_overrides_that_are_no_object_are_refused(model: Path) -> None:
    with pytest.raises(BadValueError, match="--hf-overrides"):
        inputs("model", "--hf-overrides", "[1]")


def test_a_length_beyond_the_model_is_a_warning_where_the_variable_allows_it(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = "vllm serve ./model --max-model-len 200000"
    for words, code, severity in (
        (["--command", long], 1, "error"),
        (["--command", f"VLLM_ALLOW_LONG_MAX_MODEL_LEN=0 {long}"], 1, "error"),
        (["--command", f"VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 {long}"], 0, "warning"),
        (["model", "--max-model-len", "200000", "--allow-long-max-model-len"], 0, "warning"),
    ):
        assert main(["plan", *words, "--gpu", "h100", "--json"]) == code
        document = json.loads(capsys.readouterr().out)
        found = [f["severity"] for f in document["findings"] if f["code"] == "max_model_len_beyond_model"]
        assert found == [severity]
        assert document["concurrency"]["max_model_len"] == 200000


def test_the_partition_of_the_environment_is_planned_with(model: Path) -> None:
    flags = inputs("--command", "VLLM_PP_LAYER_PARTITION=20,12 vllm serve ./model -pp 2").request.flags
    assert flags.pp_layer_partition == (20, 12)


@pytest.mark.parametrize("flag", ["--markdown", "--html", "--png", "--write"])
def test_a_dash_is_no_file_to_write(flag: str, model: Path) -> None:
    with pytest.raises(BadValueError, match=f"{flag}: - is no file name"):
        inputs("model", "--gpu", "h100", flag, "-")


def test_a_picture_is_named_as_one(model: Path) -> None:
    with pytest.raises(BadValueError, match=r"does not end in \.png"):
        inputs("model", "--gpu", "h100", "--png", "report.jpg")
    assert inputs("model", "--gpu", "h100", "--png", "report.PNG")


MIG_POD = """\
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers:
    - name: c
      image: vllm/vllm-openai:v0.32.0
      args: [--model, ./model, --max-model-len, "8192"]
      resources: {limits: {nvidia.com/mig-3g.40gb: 1}}
"""


def test_a_slice_that_a_manifest_asks_for_is_planned_and_needs_no_warning(model: Path) -> None:
    manifest = model.parent / "pod.yaml"
    manifest.write_text(MIG_POD)
    for gpu in ("h100", "h100:3g.40gb"):
        found = inputs("--command", str(manifest), "--gpu", gpu)
        assert found.request.gpu is not None
        assert (found.request.gpu.name, found.request.gpus, found.notes) == ("H100 80GB MIG 3g.40gb", 1, ())
    other = inputs("--command", str(manifest), "--gpu", "h100:4g.40gb")  # a flag beats the command
    assert other.request.gpu is not None
    assert other.request.gpu.mig_profile == "4g.40gb"
    with pytest.raises(UnsupportedError, match="has no MIG slices"):
        inputs("--command", str(manifest), "--gpu", "l40s")
    assert inputs("--command", str(manifest), "--gpu-memory", "39GiB").request.gpu is None


def test_a_slice_of_no_card_is_asked_for(model: Path) -> None:
    manifest = model.parent / "pod.yaml"
    manifest.write_text(MIG_POD)
    with pytest.raises(BadValueError, match=r"MIG slice 3g\.40gb.*--gpu h100:3g\.40gb"):
        inputs("--command", str(manifest))
    selector = "  nodeSelector: {nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}\n"
    labelled = MIG_POD.replace("  containers:", f"{selector}  containers:")
    manifest.write_text(labelled)
    found = inputs("--command", str(manifest))
    assert found.request.gpu is not None
    assert found.request.gpu.name == "H100 80GB MIG 3g.40gb"
    manifest.write_text(labelled.replace("80GB-HBM3", "80GB-HBM3-MIG-1g.10gb").replace("mig-3g.40gb", "gpu"))
    single = inputs("--command", str(manifest))
    assert single.request.gpu is not None
    assert single.request.gpu.mig_profile == "1g.10gb"


def test_llama_cpp_shares_layers_out_over_all_cards_that_there_are(model: Path) -> None:
    def stages(*words: str) -> tuple[int, tuple[float, ...] | None]:
        flags = inputs(*words).request.flags
        return flags.pipeline_parallel_size, flags.tensor_split

    server = "llama-server -m ./model -c 8192 "
    assert stages("--command", server, "--gpu", "rtx-4090") == (1, None)
    assert stages("--command", server, "--gpu", "rtx-4090:3") == (3, None)
    assert stages("model", "--engine", "llamacpp", "--gpu", "rtx-4090", "--gpus", "2") == (2, None)
    assert stages("model", "--engine", "llamacpp", "--gpu", "rtx-4090:4", "--pipeline-parallel-size", "2") == (2, None)
    assert stages("--command", server + "-sm none", "--gpu", "rtx-4090:2") == (1, None)
    assert stages("--command", server + "-sm row", "--gpu", "rtx-4090:2") == (2, None)
    assert stages("--command", server + "-ts 3,1", "--gpu", "rtx-4090:2") == (2, (3.0, 1.0))
    assert stages("--command", server + "-ts 3,1", "--gpu", "rtx-4090:4") == (2, (3.0, 1.0))
    assert stages("--command", server + "-ts 3,1", "--gpu", "rtx-4090") == (2, (3.0, 1.0))
    assert stages("--command", server + "-ts 3,1", "--gpu", "rtx-4090:4", "--tensor-split", "1,2,3") == (
        3, (1.0, 2.0, 3.0),
    )  # fmt: skip
    assert stages("model", "--engine", "llamacpp", "--tensor-split", "1,2,3") == (3, (1.0, 2.0, 3.0))
    assert stages("--command", server, "--gpu", "a100:3g.40gb") == (1, None)
    assert stages("--command", "vllm serve ./model", "--gpu", "h100:2") == (1, None)


def test_a_draft_beside_the_file_of_the_command_is_found(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = '{"method": "draft_model", "model": "./model", "num_speculative_tokens": 2}'
    (tmp_path / "start.sh").write_text(f"vllm serve ./model --speculative-config '{spec}'\n")
    (tmp_path / "away").mkdir()
    monkeypatch.chdir(tmp_path / "away")
    speculation = inputs("--command", "../start.sh").request.flags.speculation
    assert speculation is not None
    assert speculation.draft is not None
