"""`kvbudget receipt` end to end: a log beside a budget, and kept in it."""

import argparse
import json
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
