"""Planning from Python: plain arguments, the same numbers as the command, clear errors, thousands of plans a second."""

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import pytest

import kvbudget
from kvbudget import LoadedModel, load, plan, plan_json, solve
from kvbudget.cli.main import main
from kvbudget.engines.flags import EngineFlags, Speculation
from kvbudget.errors import BadValueError, InputError, UnsupportedError

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096,
    "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 131072,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "Llama-3.1-8B"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(LLAMA))
    return path


def test_it_gives_the_document_of_the_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--gpu", "h100:2", "-tp", "2", "--max-model-len", "8k", "--kv-cache-dtype", "fp8", "--weights", "16GiB",
             "--prompt-lengths", "p50=800,p99=4k", "--output-lengths", "p50=100,p99=1k", "--margin", "5%"]  # fmt: skip
    main(["plan", str(folder), *words, "--json"])
    document = json.loads(capsys.readouterr().out)
    del document["workload"]
    found = plan(
        str(folder), gpu="h100:2", tensor_parallel_size=2, max_model_len="8k", kv_cache_dtype="fp8", weights="16GiB",
        prompt_lengths={"p50": 800, "p99": 4096}, output_lengths="p50=100,p99=1k", margin=0.05,
    )  # fmt: skip
    again = json.loads(json.dumps(plan_json(found)))
    again["memory"]["weights"]["note"] = "--weights"
    assert again == document


def test_a_model_is_read_once_and_planned_thousands_of_times_in_the_time_that_is_promised(folder: Path) -> None:
    model = load(str(folder))
    assert isinstance(model, LoadedModel)
    start = time.perf_counter()
    for length in range(1, 1001):
        plan(model, gpu="h100", max_model_len=length)
    assert time.perf_counter() - start < 5  # a second is promised; the machine may be busy


def test_a_parsed_config_needs_no_file_and_its_weights_are_counted() -> None:
    found = plan(LLAMA, kv_cache_memory_bytes=24 * 2**30, max_model_len=8192)
    assert (found.pool.num_blocks, found.fits) == (12288, True)
    assert found.memory.weights.source == "computed"


def test_weight_files_beside_a_config_are_measured(folder: Path) -> None:
    index = {"metadata": {"total_size": 10**10}, "weight_map": {"a": "model-1.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    model = load(str(folder), name="ours")
    assert (model.model.name, model.weight_bytes) == ("ours", 10**10)
    assert plan(model, gpu="h100").memory.weights.source == "measured"


def test_real_requests_give_their_own_percentiles() -> None:
    found = plan(LLAMA, kv_cache_memory_bytes="24GiB", requests=[(90, 10)] * 99 + [(4000, 96)])
    assert found.ceilings.lengths == (100, 100, 100)
    assert found.tail_waste.slots == 12  # 112 - 100, and none of the long one


def test_speculation_is_what_vllm_takes(folder: Path) -> None:
    asked = {"method": "draft_model", "num_speculative_tokens": 2, "model": str(folder)}
    found = plan(LLAMA, gpu="h100", max_model_len=8192, speculation=asked)
    assert found.settings.speculation is not None
    assert found.stage.layout.bytes_per_token == 2 * 131072


def test_an_engine_that_would_not_start_is_a_plan_and_no_error() -> None:
    found = plan(LLAMA, gpu="rtx-3090")
    assert not found.fits
    assert found.findings[0].code == "max_model_len_too_large"


@pytest.mark.parametrize(
    "given",
    [
        {"no_such_flag": 1},
        {"tensor_parallel_size": "2"},
        {"tensor_parallel_size": True},
        {"tensor_parallel_size": 0},
        {"gpus": "two"},
        {"kv_cache_dtype": 8},
        {"kv_cache_dtype": "fp3"},
        {"enforce_eager": "yes"},
        {"async_scheduling": 1},
        {"gpu_memory_utilization": float("nan")},
        {"gpu_memory_utilization": "0.9"},
        {"pp_layer_partition": [16, 16]},
        {"gpu_memory": -1},
        {"gpu_memory": 10**30},
        {"gpu_memory": True},
        {"weights": "heavy"},
        {"max_model_len": "long"},
        {"max_model_len": -7},
        {"margin": 1.5},
        {"margin": "half"},
        {"prompt_lengths": {"p50": 3}},
        {"requests": [(1, 2, 3)]},
        {"requests": [(0, 5)]},
        {"requests": [("a", 5)]},
        {"speculation": {"method": "mtp"}},
        {"gpu": "voodoo"},
    ],
)
def test_what_cannot_be_planned_is_an_input_error_with_a_way_out(given: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        plan(LLAMA, **({"gpu": "h100"} | given))
    assert caught.value.fix


def test_an_unknown_architecture_is_never_guessed_in_silence() -> None:
    config = LLAMA | {"model_type": "mystery"}
    with pytest.raises(UnsupportedError):
        load(config)
    assert load(config, assume="full").model.kinds == {"full": 32}
    with pytest.raises(BadValueError):
        load(config, assume="sliding")


def test_the_package_names_what_it_has() -> None:
    assert all(getattr(kvbudget, name) is not None for name in kvbudget.__all__)
    with pytest.raises(AttributeError):
        kvbudget.nonsense  # noqa: B018


_WRONG: tuple[object, ...] = (
    5, 8.5, True, None, "", "x", "2", "16", 16, -1, 0, [], (), {}, {"a": 1}, object(), b"1", float("nan"), 10**30,
    [(1,)], [5], (("a", 1),), {"p50": "x"}, {"p50": None},
)  # fmt: skip
_ARGUMENTS = (
    "gpu", "gpus", "gpu_memory", "kv_cache_memory_bytes", "weights", "activation", "overhead", "engine",
    "max_model_len", "prompt_lengths", "output_lengths", "target_concurrency", "requests", "margin", "speculation",
    *(name for name in EngineFlags._fields if name not in ("speculation", "max_model_len")),
)  # fmt: skip


@pytest.mark.parametrize("name", _ARGUMENTS)
def test_whatever_an_argument_is_there_is_a_plan_or_an_input_error(name: str) -> None:
    given: dict[str, Any] = {"gpu": "h100", "max_model_len": 8192}
    for wrong in _WRONG:
        with contextlib.suppress(InputError):
            plan(LLAMA, **(given | {name: wrong}))


@pytest.mark.parametrize("model", [5, None, True, [], object(), LoadedModel(5, None)])  # type: ignore[arg-type]
def test_what_is_no_model_is_an_input_error(model: Any) -> None:
    with pytest.raises(BadValueError, match="model"):
        plan(model, gpu="h100")
    with pytest.raises(InputError):
        load({"model_type": "llama"}, name=5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("weights", 16), ("weights", "16"), ("gpu_memory", 24), ("gpu_memory", "24"), ("kv_cache_memory_bytes", 0),
        ("activation", 3), ("max_model_len", 8.5), ("max_model_len", True), ("gpu", 5), ("speculation", 5),
        ("gpus", "2"), ("tensor_parallel_size", None), ("tensor_parallel_size", "2"), ("requests", 5),
        ("requests", [5]), ("prompt_lengths", 5.5), ("engine", 5), ("pp_layer_partition", ("a",)),
        ("speculation", Speculation(5, "x")),  # type: ignore[arg-type]
        ("speculation", Speculation("custom_class", 3, model=5)),  # type: ignore[arg-type]
        ("speculation", Speculation("medusa", 3, heads=(1, 2))),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_an_unusable_value_is_refused_with_its_name(name: str, value: Any) -> None:
    with pytest.raises(BadValueError, match=name.replace("speculation", "speculati")):
        plan(LLAMA, **({"gpu": "h100"} | {name: value}))


def test_nothing_is_a_size_of_activation_and_overhead() -> None:
    assert plan(LLAMA, gpu="h100", max_model_len="8k", activation=0, overhead="0").memory.activation.bytes == 0


def test_solve_answers_from_a_plan_that_was_made() -> None:
    made = plan(LLAMA, kv_cache_memory_bytes="24GiB", max_model_len="8k", target_concurrency=20)
    assert solve(made, "concurrency").value == made.ceilings.ceiling
    longest = solve(made, "max-model-len")
    assert longest.value is not None
    assert plan(LLAMA, kv_cache_memory_bytes="24GiB", max_model_len=int(longest.value)).ceilings.ceiling >= 20
    assert solve(made, "concurrency", length=4096).value == 2 * made.ceilings.ceiling + 1
    for goal, more in (("gpu", {}), (5, {}), ("gpus", {"concurrency": 0}), ("gpus", {"length": "8k"})):
        with pytest.raises(BadValueError):
            solve(made, goal, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("tp", "tensor_parallel_size"),
        ("pp", "pipeline_parallel_size"),
        ("max_model_length", "max_model_len"),
        ("gpu_mem", "gpu_memory"),
        ("prompt_length", "prompt_lengths"),
        ("kv_cache_type", "kv_cache_dtype"),
    ],
)
def test_a_misspelt_argument_is_told_the_near_one_and_no_list(name: str, meant: str) -> None:
    misspelt: dict[str, Any] = {name: 2}
    with pytest.raises(BadValueError) as caught:
        plan(LLAMA, kv_cache_memory_bytes="8GiB", **misspelt)
    assert caught.value.fix == f"did you mean {meant}?"


def test_an_argument_that_is_like_none_is_told_all() -> None:
    with pytest.raises(BadValueError, match="known are gpu, gpus"):
        plan(LLAMA, kv_cache_memory_bytes="8GiB", xyzzy=2)


def test_a_number_is_the_length_of_all_requests() -> None:
    found = plan(LLAMA, kv_cache_memory_bytes="8GiB", max_model_len=8192, prompt_lengths=1000, output_lengths="24")
    assert found.ceilings.lengths == (1024, 1024, 1024)


def test_llama_cpp_uses_all_cards_as_on_the_command_line(folder: Path) -> None:
    def used(**given: object) -> tuple[int, bool]:
        found = plan(str(folder), engine="llamacpp", max_model_len="8k", weights="16GiB", **given)  # type: ignore[arg-type]
        return found.settings.pipeline_parallel_size, found.fits

    assert used(gpu="rtx-4090:2") == (2, True)
    assert used(gpu="rtx-4090:2", pipeline_parallel_size=1) == (1, True)
    assert used(gpu="rtx-4090:3", tensor_split=(3, 1)) == (2, True)
    with pytest.raises(BadValueError, match="tensor_split"):
        used(gpu="rtx-4090:3", tensor_split=(3, -1))
