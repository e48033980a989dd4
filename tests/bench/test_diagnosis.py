"""The comparison of diagnosing tools: their words become verdicts fairly, and marks are counted right."""

import importlib.util
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from diagnosis_corpus import Snapshot, snapshots

FOLDER = Path(__file__).resolve().parents[2] / "bench" / "diagnosis"


@pytest.fixture(scope="module")
def bench() -> Iterator[ModuleType]:
    """`run.py`, which imports `peers` by its own name."""
    before = sys.modules.pop("peers", None)
    try:
        _load("peers")
        yield _load("run", "bench_diagnosis_run")
    finally:
        sys.modules.pop("bench_diagnosis_run", None)
        sys.modules.pop("peers", None)
        if before is not None:
            sys.modules["peers"] = before


def _load(file: str, name: str = "") -> ModuleType:
    spec = importlib.util.spec_from_file_location(name or file, FOLDER / f"{file}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name or file] = module
    spec.loader.exec_module(module)
    return module


def snapshot(verdict: str, *accept: str) -> Snapshot:
    return Snapshot("one", "vllm", "vllm", 3.0, "", None, "", (), verdict, accept, (), (), "")


def report(*findings: tuple[str, str]) -> dict[str, Any]:
    found = [{"id": name, "finding": {"severity": severity}} for name, severity in findings]
    return {"checks": [*found, {"id": "low_throughput", "finding": None}]}


def test_the_most_severe_finding_is_what_a_tool_puts_first(bench: ModuleType) -> None:
    said = bench.peers.doctor_said(report(("queue_pressure", "warning"), ("kv_cache_pressure", "critical")))
    assert said.first == ("pool_full",)
    assert bench.mark(snapshot("pool_full"), said) == "right"
    assert bench.mark(snapshot("seqs_full"), said) == "half"  # it sees the queue
    assert bench.mark(snapshot("healthy"), said) == "wrong"


def test_no_finding_is_the_word_for_healthy(bench: ModuleType) -> None:
    said = bench.peers.doctor_said(report())
    assert bench.mark(snapshot("healthy"), said) == "right"
    assert (
        bench.mark(snapshot("insufficient_data", "healthy"), said) == "right"
    )  # what the label accepts is right for all
    assert bench.mark(snapshot("stuck"), said) == "wrong"


def test_what_a_label_needs_is_needed_from_every_tool(bench: ModuleType) -> None:
    off = replace(snapshot("prefix_cache_off", "healthy"), needs=("prefix_cache_off",))
    assert bench.mark(off, bench.Said("", ("healthy",), ())) == "half"
    assert bench.mark(off, bench.Said("", ("healthy",), ("healthy", "prefix_cache_off"))) == "right"


def test_every_code_that_words_are_mapped_to_is_one_that_labels_use(bench: ModuleType) -> None:
    used = {code for one in snapshots() for code in (one.verdict, *one.accept)}
    tables = (bench.peers.DOCTOR_SAYS, bench.peers.DOCTOR_SEES, bench.peers.PILOT_SAYS, bench.peers.PILOT_SEES)
    assert {code for table in tables for codes in table.values() for code in codes} <= used


def test_sums_are_those_of_the_rows(bench: ModuleType) -> None:
    said = {tool: bench.Said("", ("healthy",), ()) for tool in bench.TOOLS}
    marks = dict.fromkeys(bench.TOOLS, "right") | {"inferpilot": "half"}
    rows = [bench.Row(snapshot("healthy"), said, marks), bench.Row(snapshot("stuck"), said, marks)]
    lines = bench.table(rows)
    assert "| all | 2 | 2 / 0 / 0 | 2 / 0 / 0 | 0 / 2 / 0 |" in lines
    assert lines[-1] == "| right | | 100% | 100% | 0% |"


def test_a_scrape_is_served_under_its_name_and_nothing_else_is(bench: ModuleType) -> None:
    with bench.peers.served({"one": "up 1\n"}) as url:
        with urllib.request.urlopen(f"{url}/one/metrics", timeout=10) as response:
            assert response.read() == b"up 1\n"
            assert response.headers["Content-Type"].startswith("text/plain")
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{url}/two/metrics", timeout=10)
        refused.value.close()
