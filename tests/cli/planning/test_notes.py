"""What is told of --command beside the plan."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvbudget.cli.main import main, parser_of
from kvbudget.cli.planning.inputs import inputs_of
from kvbudget.planner.request import Finding

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096,
    "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 131072,
}  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(LLAMA))
    return tmp_path


def notes(command: str, *words: str) -> dict[str, Finding]:
    return {note.code: note for note in inputs_of(parser_of("plan").parse_args(["--command", command, *words])).notes}


def image(tag: str) -> str:
    return f"docker run vllm/vllm-openai{tag} --model ./model --max-model-len 4096"


@pytest.mark.parametrize("tag", ["", ":latest", ":nightly", "@sha256:0123"])
def test_an_image_without_a_version_says_which_one_is_assumed(tag: str) -> None:
    note = notes(image(tag))["command_unclear"]
    assert "0.32 is assumed" in note.message
    assert note.severity == "warning"
    assert notes(image(tag), "--engine", "vllm@0.30") == {}


def test_a_pinned_image_and_a_plain_command_need_no_note() -> None:
    assert notes(image(":v0.32.0")) == {}
    assert notes("vllm serve ./model --max-model-len 4096") == {}


@pytest.mark.parametrize(
    ("command", "near"),
    [
        ("vllm serve ./model --max-model-length 4096", "--max-model-len"),
        ("vllm serve ./model --max-modle-len=4096", "--max-model-len"),
        ("python -m sglang.launch_server --model-path ./model --contxt-length 4096", "--context-length"),
        ("text-generation-launcher --model-id ./model --max-totl-tokens 4096", "--max-total-tokens"),
        ("llama-server -m ./model --ctx-sise 4096", "--ctx-size"),
        ("trtllm-serve ./model --max-sek-len 4096", "--max-seq-len"),
    ],
)
def test_a_flag_that_the_engine_would_refuse_is_an_error_with_the_near_one(command: str, near: str) -> None:
    note = notes(command)["command_flag_unknown"]
    assert note.severity == "error"
    assert f"did you mean {near}?" in note.fix.replace("_", "-")


def test_a_command_that_the_engine_refuses_exits_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--command", "vllm serve ./model --nonsense 1 --max-model-len 4096", "--gpu", "h100"]) == 1
    assert capsys.readouterr().out.startswith("WOULD NOT START")


@pytest.mark.parametrize(("version", "severity"), [("0.5.24", "warning"), ("0.5.23", "error"), ("0.5.1", "error")])
def test_a_newer_engine_may_have_the_flag(version: str, severity: str) -> None:
    command = f"docker run lmsysorg/sglang:v{version} python3 -m sglang.launch_server --model-path ./model --new-one 1"
    assert notes(command)["command_flag_unknown"].severity == severity


@pytest.mark.parametrize(
    "flag",
    [
        "--swap-space 4", "--max-seq-len-to-capture 8192", "--num-scheduler-steps 8", "--use-v2-block-manager",
        "--guided-decoding-backend xgrammar", """--rope-scaling '{"type": "linear", "factor": 2.0}'""",
        "--disable-log-requests",
    ],
)  # fmt: skip
def test_a_flag_that_is_gone_is_an_error_that_says_since_when(flag: str) -> None:
    line, name = f"vllm serve ./model {flag}", flag.partition(" ")[0]
    assumed = notes(line)
    note = assumed["command_flag_unknown"]
    assert note.severity == "error"
    assert f"{name} is gone since vllm 0.1" in note.message
    assert "0.32 refuses to start with it" in note.message
    assert "0.32 is assumed: if you run an older one, give --engine vllm@0.1" in note.fix or "vllm@0.9" in note.fix
    assert "command_flag_unmodelled" not in assumed  # said once
    assert "assumed" not in notes(line, "--engine", "vllm@0.32")["command_flag_unknown"].fix
    pinned = f"docker run vllm/vllm-openai:v0.30.0 --model ./model {flag}"
    assert "0.30 refuses" in notes(pinned)["command_flag_unknown"].message
    assert "command_flag_unknown" not in notes(line, "--engine", "vllm@0.9")
    assert "command_flag_unknown" not in notes(line.replace("vllm serve ./model", "vllm serve ./model") + " -tp 2",
                                               "--engine", "sglang")  # fmt: skip


def test_a_flag_that_came_later_is_an_error_of_an_older_version() -> None:
    note = notes("vllm serve ./model --max-num-queued-reqs 4", "--engine", "vllm@0.20")["command_flag_unknown"]
    assert note.severity == "error"
    assert "came with vllm 0.29: 0.20 refuses" in note.message
    assert notes("vllm serve ./model --max-num-queued-reqs 4") == {}


def test_a_beginning_of_a_flag_is_told_by_its_whole_name() -> None:
    assert notes("vllm serve ./model --max-num-b 4096 --max_model 4096") == {}
    assert "-dcp" in notes("vllm serve ./model -dcp 1", "--engine", "vllm@0.9")["command_flag_unknown"].message
    dotted = notes("vllm serve ./model --structured-outputs-config.backend xgrammar", "--engine", "vllm@0.9")
    assert "--structured-outputs-config" in dotted["command_flag_unknown"].message


def test_an_old_variable_is_no_warning_where_nothing_reads_it() -> None:
    line = "VLLM_USE_V1=1 vllm serve ./model"
    assert notes(line) == {}
    assert notes(line, "--engine", "vllm@0.9") == {}
    assert "VLLM_USE_V1" in notes("VLLM_USE_V1=0 vllm serve ./model", "--engine", "vllm@0.9")[
        "command_flag_unmodelled"
    ].message  # fmt: skip


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        ("vllm serve ./model --max-model-len $LEN", "give --max-model-len"),
        ("llama-server -m ./model --ctx-size $LEN", "give --max-model-len"),
        ("vllm serve ./model --kv-cache-memory-bytes $SIZE", "give --kv-cache-memory-bytes"),
        ("vllm serve ./model --max-model-len 16k", "write --max-model-len 16K"),
        ("docker run --gpus $N vllm/vllm-openai:v0.32.0 --model ./model", "--gpus N"),
        ("docker run --env-file x vllm/vllm-openai:v0.32.0 --model ./model", "--max-model-len"),
        ("docker run vllm/vllm-openai:$TAG --model ./model", "--engine vllm@VERSION"),
        ("CUDA_VISIBLE_DEVICES=MIG-1234 vllm serve ./model", "--gpu CARD:SLICE"),
        ("vllm serve ./model -O1", "--overhead"),
        ("vllm serve ./model --max-num-seqs", "give it one"),
        ('vllm serve ./model "$@"', "--max-model-len"),
    ],
)
def test_what_is_unclear_is_followed_by_the_flag_that_says_it(line: str, fix: str) -> None:
    note = notes(line)["command_unclear"]
    assert fix in note.fix
    assert "a flag of kvbudget plan" not in note.fix


def test_a_slice_without_its_size_is_said_once(folder: Path) -> None:
    line = "CUDA_VISIBLE_DEVICES=MIG-1234 vllm serve ./model"
    assert "command_unclear" in notes(line, "--gpu", "h100")
    assert notes(line, "--gpu", "h100:3g.40gb") == {}


@pytest.mark.parametrize("method", ["fp8", "bitsandbytes", "experts_int8"])
def test_a_method_at_load_counts_the_checkpoint_as_it_is(method: str) -> None:
    note = notes(f"vllm serve ./model --quantization {method}")["command_flag_unmodelled"]
    assert "is done while loading" in note.message


@pytest.mark.parametrize("method", ["awq", "gptq_marlin", "compressed-tensors"])
def test_a_method_of_the_files_asks_for_such_a_checkpoint(method: str) -> None:
    note = notes(f"vllm serve ./model --quantization {method}")["command_flag_unmodelled"]
    assert "needs a checkpoint" in note.message
    assert "while loading" not in note.message
    assert "--weights" in note.fix
    assert notes(f"vllm serve ./model --quantization {method}", "--weights", "6GiB") == {}
