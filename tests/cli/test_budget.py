"""From a plan's command line to a budget, and back."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from kvbudget.cli.budget import keep_plan, present_budget
from kvbudget.cli.main import main, parser_of
from kvbudget.edge.budget.file import read_budget, write_budget
from kvbudget.engines.flags import EngineFlags
from kvbudget.model.read import model_from_config
from kvbudget.planner.budget.drift import drift
from kvbudget.planner.budget.record import section
from kvbudget.planner.build import make_plan
from kvbudget.planner.request import Amount, PlanRequest
from kvbudget.units import GIB, Bytes

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096,
    "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 131072,
}  # fmt: skip


def write(path: Path, model: Path, length: int, **more: Any) -> None:
    """As `kvbudget plan MODEL --kv-cache-memory-bytes 24GiB --weights 16GiB --max-model-len N --write PATH` does."""
    flags = [
        "--kv-cache-memory-bytes",
        "24GiB",
        "--weights",
        "16GiB",
        "--max-model-len",
        str(length),
        "--no-async-scheduling",
    ]
    args: argparse.Namespace = parser_of("plan").parse_args([str(model), *flags])
    request = PlanRequest(
        model=model_from_config(CONFIG, "model"),
        engine="vllm@0.32",
        flags=EngineFlags(max_model_len=length, async_scheduling=False),
        kv_cache_memory=Bytes(24 * GIB),
        weights=Amount(Bytes(16 * GIB), "given", "--weights"),
    )
    keep_plan(str(path), args, make_plan(request), CONFIG, **more)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def test_only_what_was_given_becomes_an_input_and_the_plan_comes_out_the_same(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "kvbudget.toml"
    write(path, model, 8192)
    budget = read_budget(str(path))
    assert section(budget, "inputs")["flags"] == {
        "kv-cache-memory-bytes": "24GiB", "weights": "16GiB", "max-model-len": "8192", "async-scheduling": False,
    }  # fmt: skip
    assert drift(budget, present_budget(budget, str(path))) == []


def test_a_rewrite_keeps_targets_retreat_and_gate_of_people(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "kvbudget.toml"
    write(path, model, 8192, margin="5%")
    budget = read_budget(str(path))
    section(budget, "targets").update(concurrency=4, retreat=["ours"])
    section(budget, "gate")["queue_seconds"] = 3
    write_budget(str(path), budget)
    write(path, model, 16384)
    again = read_budget(str(path))
    assert section(again, "targets") == {"concurrency": 4, "retreat": ["ours"]}
    assert (section(again, "gate")["queue_seconds"], section(again, "gate")["margin"]) == (3, "5%")
    assert section(again, "gate")["max_context"] == 16384
    write(path, model, 16384, retreat=["theirs"])
    assert section(read_budget(str(path)), "targets")["retreat"] == ["theirs"]


def test_an_older_file_that_is_damaged_is_not_overwritten(model: Path, tmp_path: Path) -> None:
    from kvbudget.errors import InputError

    path = tmp_path / "kvbudget.toml"
    path.write_text("precious = ")
    with pytest.raises(InputError):
        write(path, model, 8192)
    assert path.read_text() == "precious = "


def test_a_budget_from_a_command_and_a_trace_is_made_again_from_the_files_beside_it(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "serve.sh").write_text("exec vllm serve ./model --max-model-len 8192\n")
    (tmp_path / "usage.jsonl").write_text('{"prompt_tokens": 500, "completion_tokens": 70}\n' * 9)
    monkeypatch.chdir(tmp_path)
    words = ["--command", "serve.sh", "--kv-cache-memory-bytes", "24GiB", "--trace", "usage.jsonl", "--margin", "5%"]
    assert main(["plan", *words, "--write", "kvbudget.toml", "--json"]) == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    path = str(tmp_path / "kvbudget.toml")
    budget = read_budget(path)
    assert section(budget, "inputs")["model"] == ""
    assert section(budget, "capacity")["margin_blocks"] == 615
    assert drift(budget, present_budget(budget, path)) == []
    (tmp_path / "usage.jsonl").write_text('{"prompt_tokens": 5000, "completion_tokens": 70}\n' * 9)
    assert {reason.code for reason in drift(budget, present_budget(budget, path))} == {"workload_moved"}


def test_a_budget_can_be_written_to_what_is_no_file(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    flags = [str(model), "--kv-cache-memory-bytes", "24GiB", "--max-model-len", "8k", "--json", "--write"]
    assert main(["plan", *flags, "/dev/null"]) == 0
    assert Path("/dev/null").is_char_device()
