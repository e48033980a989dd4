"""`kvbudget receipt` end to end: a log beside a budget, and kept in it."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvbudget.cli import receipt
from kvbudget.cli.main import parser_of
from kvbudget.edge.budget.file import read_budget, write_budget
from kvbudget.errors import InputError
from kvbudget.planner.budget.record import SCHEMA, Document, tables
from kvbudget.units import GIB

LOG = (
    "(EngineCore pid=7) INFO [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: model='m', "
    "max_seq_len=8192, tensor_parallel_size=1, pipeline_parallel_size=1, kv_cache_dtype=auto\n"
    "(Worker pid=9) INFO [gpu_worker.py:760] Available KV cache memory: %.2f GiB\n"
    "(EngineCore pid=7) INFO [kv_cache_utils.py:2327] GPU KV cache size: %s tokens, Maximum concurrency for 8,192 "
    "tokens per request: %.2fx\n"
)
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096,
    "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 131072,
}  # fmt: skip
BUDGET: Document = {
    "schema": SCHEMA,
    "tolerance": {"receipt": "3%"},
    "engine": {"name": "vllm", "version": "0.32", "block_size": 16, "tensor_parallel_size": 1},
    "memory": {"kv": {"bytes": 24 * GIB, "source": "computed"}},
    "kv": {"groups": [{"kind": "full", "layers": 32, "block_size": 16, "page_size_bytes": 65536}]},
    "pool": {"num_blocks": 12288, "usable_blocks": 12287, "tokens": 196608},
    "capacity": {"max_model_len": 8192, "at_max_model_len": 24.0},
}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "vllm.log"
    path.write_text(LOG % (24.0, "196,608", 24.0))
    return path


@pytest.fixture
def budget(tmp_path: Path) -> Path:
    path = tmp_path / "kvbudget.toml"
    write_budget(str(path), BUDGET)
    return path


def read(*arguments: object) -> int:
    parser: argparse.ArgumentParser = parser_of("receipt")
    return receipt.run(parser.parse_args([str(argument) for argument in arguments]))


def test_a_log_alone_is_shown(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert read(log) == 0
    told = capsys.readouterr().out
    assert "vllm 0.32.0 m" in told
    assert "24.00 GiB" in told


def test_as_planned_is_good_and_is_kept_when_asked(log: Path, budget: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert read(log, "--budget", budget) == 0
    assert not tables(read_budget(str(budget)), "receipts")
    assert read(log, "--budget", budget, "--write") == 0
    (kept,) = tables(read_budget(str(budget)), "receipts")
    assert (kept["engine"], kept["tokens"], kept["version"]) == ("vllm", 196608, "0.32.0")
    assert kept["source"] == str(log)
    assert "kept in" in capsys.readouterr().out
    assert read(log, "--budget", budget, "--write") == 0
    assert len(tables(read_budget(str(budget)), "receipts")) == 1


def test_further_apart_than_the_tolerance_is_a_finding(
    log: Path, budget: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log.write_text(LOG % (20.0, "163,840", 20.0))
    assert read(log, "--budget", budget, "--json") == 1
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "kvbudget.receipt/1"
    assert document["apart"] == ["kv", "tokens", "concurrency"]
    rows = {row["what"]: row for row in document["comparison"]["rows"]}
    assert rows["tokens"]["difference"] == pytest.approx(-1 / 6)
    assert read(log, "--budget", budget) == 1
    assert "-16.67%  <- beyond tolerance" in capsys.readouterr().out


def test_an_engine_that_refused_to_start_is_a_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "vllm.log"
    path.write_text("vLLM API server version 0.11.0\nValueError: No available memory for the cache blocks. Try\n")
    assert read(path) == 1
    assert "did not start: No available memory" in capsys.readouterr().out


def test_a_start_that_failed_is_shown_and_not_kept(
    tmp_path: Path, budget: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "vllm.log"
    path.write_text("vLLM API server version 0.32.0\nValueError: No available memory for the cache blocks. Try\n")
    before = budget.read_text()
    assert read(path, "--budget", budget, "--write") == 1
    assert "not kept: the engine did not start" in capsys.readouterr().out
    assert budget.read_text() == before


def test_what_tells_nothing_of_a_pool_is_an_error_of_use(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text("nothing\n")
    with pytest.raises(InputError, match="nothing of a KV cache pool"):
        read(tmp_path / "x.log")


def test_writing_needs_a_budget(log: Path) -> None:
    with pytest.raises(InputError, match="--budget"):
        read(log, "--write")


def test_a_saved_scrape_is_read_too(tmp_path: Path, budget: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "metrics.txt"
    path.write_text(
        'vllm:cache_config_info{block_size="16",num_gpu_blocks="12288",kv_cache_size_tokens="196608",'
        'kv_cache_max_concurrency="24.0"} 1.0\n'
    )
    assert read(path, "--budget", budget) == 0
    assert "12,288" in capsys.readouterr().out


@pytest.mark.parametrize(
    "line",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB",
        "RuntimeError: CUDA error: out of memory",
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB",
    ],
)
def test_an_engine_that_died_of_memory_is_said_to(
    line: str, log: Path, budget: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    started = log.read_text()
    log.write_text(f"{started}ERROR {line}\n")
    for words in ((log,), (log, "--budget", budget)):
        assert read(*words) == 1
        told = capsys.readouterr().out
        assert "the engine died of memory, line 4: " in told
        assert "next: lower --gpu-memory-utilization" in told
        assert "did not start" not in told.replace("refused_to_start: the engine did not start", "")
    assert read(log, "--json") == 1
    assert "died of memory" in json.loads(capsys.readouterr().out)["out_of_memory"]
    banner = "INFO [api_server.py:1] vLLM API server version 0.32.0"
    log.write_text(f"{started}ERROR {line}\n{banner}\n{started}")  # another start came after it
    assert read(log) == 0
    alone = tmp_path / "alone.log"
    alone.write_text(f"{line}\n")
    with pytest.raises(InputError, match="died of memory"):
        read(alone)


def test_figures_are_named_in_words(log: Path, budget: Path, capsys: pytest.CaptureFixture[str]) -> None:
    read(log)
    read(log, "--budget", budget)
    told = capsys.readouterr().out
    assert "KV cache " in told
    assert "tokens in the pool" in told
    assert not [word for word in ("kv_bytes", "num_blocks", "cuda_graphs") if word in told]


def test_receipts_that_are_added_at_once_are_all_kept(tmp_path: Path, budget: Path) -> None:
    commands = []
    for number in range(8):
        path = tmp_path / f"{number}.log"
        path.write_text(LOG % (24.0, f"{196_000 + number:,}", 24.0))
        commands.append([sys.executable, "-m", "kvbudget", "receipt", str(path), "--budget", str(budget), "--write"])
    running = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for command in commands]
    assert [process.wait(60) for process in running] == [0] * 8
    assert {kept["tokens"] for kept in tables(read_budget(str(budget)), "receipts")} == {*range(196_000, 196_008)}


def test_a_plan_that_is_written_meanwhile_keeps_the_receipts_and_they_the_plan(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    budget = tmp_path / "kvbudget.toml"
    plan = [sys.executable, "-m", "kvbudget", "plan", str(tmp_path), "--kv-cache-memory-bytes", "24GiB"]
    plan += ["--write", str(budget), "--max-model-len"]
    subprocess.run([*plan, "8k"], stdout=subprocess.DEVNULL, check=True, timeout=60)
    commands = [[*plan, "4k"], [*plan, "4k"]]
    for number in range(4):
        path = tmp_path / f"{number}.log"
        path.write_text(LOG % (24.0, f"{196_000 + number:,}", 24.0))
        commands.append([sys.executable, "-m", "kvbudget", "receipt", str(path), "--budget", str(budget), "--write"])
    running = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for command in commands]
    assert {process.wait(60) for process in running} <= {0, 1}
    document = read_budget(str(budget))
    assert {kept["tokens"] for kept in tables(document, "receipts")} == {*range(196_000, 196_004)}
    assert document["capacity"]["max_model_len"] == 4096  # type: ignore[index]


def test_what_a_log_and_a_budget_say_reaches_a_terminal_as_text(
    tmp_path: Path, budget: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "evil.log").write_text(
        (LOG % (24.0, "196,608", 24.0))
        .replace("model='m'", "model='\x1b]0;EVIL\x07'")
        .replace("v0.32.0", "v0.32.0\x9b")
    )
    document = read_budget(str(budget))
    document["engine"]["name"] = "\x1b[31mEVIL"  # type: ignore[index]
    write_budget(str(budget), document)
    for flags in ([], ["--budget", str(budget)], ["--budget", str(budget), "--write"]):
        read(tmp_path / "evil.log", *flags)
    told = capsys.readouterr().out
    assert "EVIL" in told
    assert told.replace("\n", "").isprintable()
