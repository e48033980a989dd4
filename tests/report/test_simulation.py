"""What is told of runs, and what is not passed over."""

import random
from typing import Any

import pytest

from kvbudget.report.simulation import html_simulation, markdown_simulation, notes_on, runs_section
from kvbudget.simulate.outcome import Result
from kvbudget.simulate.settings import Slo

Document = dict[str, Any]


def run(policy: str, goodput: float, **fields: Any) -> Document:
    document = Result(policy, Slo()).document()
    return {**document, "requests": 10, "finished": 8, "refused": 1, "timed_out": 1, "slo_fraction": 0.75,
            "goodput_tokens_per_s": goodput, "oracle_ratio": 0.9, "scheduled_tokens": 1000, **fields}  # fmt: skip


def test_a_row_tells_what_ended_how_and_what_was_lost() -> None:
    section = runs_section([run("none", 1234.4, preemptions=3, recomputed_tokens=55, wasted_tokens=120)])
    cells = dict(zip(section.header, section.rows[0], strict=True))
    assert cells["ended"] == "8/1/1"
    assert (cells["goodput"], cells["SLO"], cells["ratio"]) == ("1,234", "75.0%", "0.90")
    assert (cells["preempt"], cells["redone"], cells["lost"]) == ("3", "5.5%", "12.0%")
    assert (cells["TTFT"], cells["gap"], cells["pool"]) == ("-/-", "-", "-")


def test_a_gate_that_does_not_help_is_named_beside_the_best_without_one() -> None:
    runs = [run("none", 100), run("max-num-queued-reqs=64", 140), run("learned", 120), run("oracle", 150)]
    assert notes_on(runs) == ["learned does not help here: 0.86 of the goodput of max-num-queued-reqs=64"]
    assert notes_on([run("none", 100), run("learned", 99.5)]) == []
    assert notes_on([run("learned", 1)]) == []  # nothing to compare with


def test_each_point_of_a_sweep_is_compared_for_itself() -> None:
    runs = [
        run("none", 100, sweep={"rate-scale": 1}), run("learned", 90, sweep={"rate-scale": 1}),
        run("none", 50, sweep={"rate-scale": 2}), run("learned", 90, sweep={"rate-scale": 2}),
    ]  # fmt: skip
    assert notes_on(runs) == ["at rate-scale 1: learned does not help here: 0.90 of the goodput of none"]


def test_stalls_and_broken_promises_of_retry_after_are_said() -> None:
    retry = {**run("learned", 1)["retry_after"], "returned": 40, "share_at_once": 0.5}
    notes = notes_on([run("none", 1, stalled_answers=7), run("learned", 1, retry_after=retry)])
    assert notes == [
        "answers that stood still for longer than the SLO allows: none 7",
        "learned: of 40 clients that came back at the told time, 50% were let in at once",
    ]


def test_the_reports_hold_runs_refusals_tenants_and_how_to_read_them() -> None:
    tenants = {name: {**run("x", 5), "ttft_s": {"p50": 0.1, "p99": 2.5}} for name in ("blue", "<red>")}
    runs = [run("none", 100, scenario="steady"), run("learned", 90, refusals={"queue_full": 3}, tenants=tenants)]
    text = markdown_simulation(runs)
    assert text.startswith("# Simulated admission: steady\n")
    for part in ("## Runs", "## Endings", "queue_full 3", "## Tenants", "blue", "## How to read it", "assumption"):
        assert part in text
    assert "does not help here" in text


def test_the_page_is_one_file_with_a_chart_of_goodput_and_one_of_endings() -> None:
    pytest.importorskip("altair")
    chance = random.Random(1)
    runs = [run("none", chance.random(), sweep={"rate-scale": 1}), run("<b>", 5, sweep={"rate-scale": 1})]
    page = html_simulation(runs)
    assert page.count("<svg") == 2
    assert "&lt;b&gt;" in page
    assert "http://" not in page.replace("http://www.w3.org", "")
