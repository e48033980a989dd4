"""The admission benchmark judges what it says, and its crowds are the same with and without those who flood."""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench" / "admission"


@pytest.fixture(scope="module")
def bench() -> dict[str, ModuleType]:
    """The files of bench/admission, which is no package."""
    sys.path.insert(0, str(BENCH))
    try:
        return {name: import_module(name) for name in ("cold", "flood", "judge", "limits", "scenario_rows")}
    finally:
        sys.path.remove(str(BENCH))


def document(goodput: float, *, preempted: int = 0, slo: float = 0.9, at_once: int = 0) -> dict[str, Any]:
    """Of 1,000 requests, 100 of which came back when told."""
    return {
        "goodput_tokens_per_s": goodput,
        "slo_fraction": slo,
        "preemptions": preempted,
        "requests": 1000,
        "refused": 0,
        "ttft_s": {"p99": 1.0},
        "pool_use_mean": 0.5,
        "retry_after": {
            "returned": 100,
            "admitted_at_once": at_once,
            "hindsight_known": 50,
            "told_to_hindsight": at_once / 50,
        },
    }


def verdicts(bench: dict[str, ModuleType], *rows: Any) -> dict[str, Any]:
    return {line.name: (line.measured, line.where, line.holds) for line in bench["judge"].lines_of(list(rows), {})}


def test_each_line_is_judged_where_it_is_worst(bench: dict[str, ModuleType]) -> None:
    row = bench["scenario_rows"].Row
    flag = bench["scenario_rows"].SWEEP[0]
    good = row(
        "good",
        {"learned": [document(100)], "oracle": [document(100)], flag: [document(90)], "none": [document(99, slo=1.0)]},
        [document(100, at_once=70)],
    )
    bad = row(
        "bad",
        {"learned": [document(100, preempted=20)], "oracle": [document(110)], flag: [document(101)],
         "none": [document(200)]},
        [document(100, at_once=90)],
    )  # fmt: skip
    found = verdicts(bench, good, bad)
    assert found["goodput / the same gate told every length"] == (pytest.approx(100 / 110), "bad", False)
    assert found["goodput / best of the sweep over vLLM's own flags"] == (pytest.approx(100 / 101), "bad", False)
    assert found["goodput / no gate, where none was needed"] == (pytest.approx(100 / 99), "good", True)
    assert found["requests preempted, mean"] == (0.01, "", False)
    assert found["requests preempted, worst"] == (0.02, "bad", False)
    assert found["let in at once, of who returns when told"] == (0.7, "good", False)
    told = "told time / what it took in hindsight, medians"
    assert found[f"{told}: worst scenario"] == (1.8, "bad", False)
    assert found[f"{told}: median scenario"] == (1.8, "", False)


def test_what_was_not_run_is_not_judged_and_few_returns_say_nothing(bench: dict[str, ModuleType]) -> None:
    few = document(100, at_once=0)
    few["retry_after"] |= {"returned": 3, "hindsight_known": 3}
    found = verdicts(bench, bench["scenario_rows"].Row("steady", {"learned": [document(100)]}, [few]))
    assert set(found) == {"requests preempted, mean", "requests preempted, worst"}
    assert all(holds for _, _, holds in found.values())
    assert len(bench["judge"].table(bench["judge"].lines_of([], {}))) == 2


def test_who_is_flooded_sends_the_same_requests_with_and_without_the_flood(bench: dict[str, ModuleType]) -> None:
    flood = bench["flood"]
    for name in ("bulk-chat", "bulk-documents"):
        load = flood.CROWDS[name].load(3)
        quiet = [request for request in load if flood.CROWDS[name].is_quiet(request)]
        alone = list(flood.stream("3 chat", "one", 3.0, flood.chat, 0, flood.SECONDS))
        assert quiet == alone
        assert len(load) > len(quiet) > 100
    load = flood.CROWDS["flood"].load(3)
    assert {request.tenant for request in load} == {"tenant-1", "tenant-2", "tenant-3", "flood"}
    assert [request.arrival_ns for request in load] == sorted(request.arrival_ns for request in load)


def test_jains_index_is_one_for_equals_and_a_fourth_for_one_of_four(bench: dict[str, ModuleType]) -> None:
    jain = bench["flood"].jain
    assert jain({"a": 5.0, "b": 5.0}) == 1.0
    assert jain({"a": 5.0, "b": 0.0, "c": 0.0, "d": 0.0}) == 0.25


def test_a_crowd_is_judged_by_its_median_and_by_its_worst_seed(bench: dict[str, ModuleType]) -> None:
    flood = bench["flood"]

    def seen(alone_ns: int, together_ns: int) -> Any:
        histograms = (flood.Histogram(), flood.Histogram())
        for histogram, value in zip(histograms, (alone_ns, together_ns), strict=True):
            histogram.add(value, 100)
        return flood.Seen(*histograms, 0, 0, {})

    crowds = {
        "flood": [seen(1000, 1000), seen(500, 1500), seen(1000, 1050)],
        "equal": [flood.Seen(None, None, 0, 0, {"a": 1.0, "b": 0.0})],
    }
    lines = {line.name: line for line in bench["judge"].lines_of([], crowds)}
    name = f"{flood.CROWDS['flood'].summary}: p99 TTFT / alone"
    assert (lines[f"{name}, median seed"].measured, lines[f"{name}, median seed"].holds) == (1.05, True)
    assert lines[f"{name}, worst seed"][2:] == (3.0, "seed 2", False)
    assert [line.measured for name, line in lines.items() if "Jain" in name] == [0.5]


def test_where_aims_exclude_one_another_all_contenders_and_rates_are_told(
    bench: dict[str, ModuleType],
) -> None:
    limits = bench["limits"]
    flooded = limits.floods(range(3, 4), limits.FEW_FLAGS[:1])
    names = [line.split(" | ")[0].removeprefix("| ") for line in flooded[2:]]
    assert names == ["learned", limits.ONE_TENANT, limits.FEW_FLAGS[0]]
    learned, one, flags = [[cell.strip() for cell in line.split("|")[2:-1]] for line in flooded[2:]]
    assert float(learned[3]) > float(flags[3])  # the gate serves who is flooded, flags let the flood have their part
    assert one[1:] == ["", "", ""]  # of one tenant nobody is told apart
    beside = limits.bulks(range(3, 4), few=True)
    assert len(beside) == 2 + len(limits.BULKS)
    ratios = [float(line.split("|")[-2]) for line in beside[2:]]
    assert ratios[0] > 2 > ratios[1] > ratios[2] >= 1.0  # long prompts, short ones, hardly any


def test_of_the_first_minute_are_told_those_who_came_in_it(bench: dict[str, ModuleType]) -> None:
    cold = bench["cold"]
    found = dict(map(cold.run, [cold.Cell("crowd", 3, "learned"), cold.Cell("crowd", 3, "learned", cold.RETRIES)]))
    seen = found[cold.Cell("crowd", 3, "learned")]
    whole = seen.document["goodput_tokens_per_s"] * seen.document["elapsed_s"]
    first, minute = (goodput * window_s for goodput, window_s in zip(seen.goodputs, cold.WINDOWS_S, strict=True))
    assert 0 < first < minute
    assert minute == pytest.approx(whole)  # everybody came within it
    rows = cold.rows_of(found, ["crowd"], range(3, 4), ["learned"])
    assert [row.split(" | ")[:2] for row in rows[2:]] == [["| crowd", "30"], ["| crowd", "60"]]
    assert {row.count("|") for row in rows} == {rows[0].count("|")}


def test_a_gate_before_another_model_begins_with_what_was_saved(bench: dict[str, ModuleType]) -> None:
    cold = bench["cold"]
    _, known = cold.run(cold.Cell("new-model", 3, "learned"))
    fresh = cold.LOADS["new-model"]._replace(before=None)
    cold.LOADS["fresh"] = fresh
    try:
        _, unknown = cold.run(cold.Cell("fresh", 3, "learned"))
    finally:
        del cold.LOADS["fresh"]
    assert known.document["requests"] == unknown.document["requests"]
    assert known.document != unknown.document
