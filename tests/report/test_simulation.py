"""What is told of runs, and what is not passed over."""

import random
from typing import Any

import pytest

from kvbudget.report.simulated import notes_on, simulated_lines
from kvbudget.report.simulation import (
    html_simulation,
    legend_of,
    markdown_simulation,
    parts_sections,
    runs_section,
    without,
)
from kvbudget.simulate.outcome import Result
from kvbudget.simulate.settings import Slo

Document = dict[str, Any]


def run(policy: str, goodput: float, **fields: Any) -> Document:
    document = Result(policy, Slo()).document()
    return {**document, "requests": 10, "finished": 8, "refused": 1, "timed_out": 1, "slo_fraction": 0.75,
            "goodput_tokens_per_s": goodput, "oracle_ratio": 0.9, "scheduled_tokens": 1000, **fields}  # fmt: skip


def test_a_row_tells_what_became_of_requests_and_what_was_lost() -> None:
    section = runs_section([run("none", 1234.4, preemptions=3, recomputed_tokens=55, wasted_tokens=120)])
    cells = dict(zip(section.header, section.rows[0], strict=True))
    assert (cells["finished"], cells["refused"], cells["gave up"]) == ("8", "1", "1")
    assert (cells["goodput"], cells["in SLO"], cells["vs oracle"]) == ("1,234", "75.0%", "0.90")
    assert (cells["preempt"], cells["recomputed"], cells["wasted"]) == ("3", "5.5%", "12.0%")
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
    for part in ("## Runs", "## Refusals", "queue_full 3", "## Tenants", "blue", "## How to read it", "assumption"):
        assert part in text
    assert "does not help here" in text


def test_the_legend_explains_only_columns_that_are_there() -> None:
    section = runs_section([run("none", 1)])
    narrow = without(section, "gap")
    assert "gap: between" in legend_of(section.header)
    assert "gap: between" not in legend_of(narrow.header)
    assert len(narrow.rows[0]) == len(narrow.header) == len(section.header) - 1


def test_classes_are_told_by_urgency_and_one_class_is_not_told() -> None:
    part = {**run("x", 5), "ttft_s": {"p50": 0.1, "p99": 2.5}}
    (only,) = parts_sections([run("learned", 1, classes={"-10": part, "0": part}, tenants={"a": part})])
    assert (only.title, [row[1] for row in only.rows]) == ("Classes (priorities)", ["-10", "0"])


def told(policy: str, **fields: Any) -> Document:
    """A run that says what was simulated."""
    load = {"source": "steady", "requests": 10, "seconds": 2.0, "requests_per_s": 5.0, "rate_scale": 1.0,
            "max_tokens": None, "seed": 0}  # fmt: skip
    engine = {"usable_blocks": 99, "num_blocks": 100, "block_sizes": [16], "max_model_len": 1584, "max_num_seqs": 8,
              "max_num_batched_tokens": 512, "instances": 1, "step_cost_ns": {"base_ns": 5}}  # fmt: skip
    gate = {"queue_s": 30.0, "tenants": ["red", "*"], "classes": ["-10"]}
    base = run(policy, 1, load=load, engine=engine, gate=gate, slo={"ttft_s": 5.0, "gap_s": 1.0},
               clients={"patience_s": None, "retries": 2}, command="kvbudget simulate --scenario steady")  # fmt: skip
    return {**base, "tenants": {"red": {}}, "classes": {"-10": {}}, **fields}


def test_what_was_simulated_is_said_and_what_a_sweep_changed_as_first_and_last() -> None:
    first = told("none")
    other = told("none", load={**first["load"], "rate_scale": 2.0, "requests_per_s": 10.0})
    load, engine, slo, command = simulated_lines([first, other])
    assert load == "load: steady, 10 requests in 2.0 s, 5.0/s ... 10.0/s, rate-scale 1 ... rate-scale 2, seed 0"
    assert "99 blocks of 16 tokens (num-blocks 100 with the null block)" in engine
    assert slo == "SLO: first token within 5 s, gaps up to 1 s, clients never give up, up to 2 retries"
    assert command == "command: kvbudget simulate --scenario steady"
    assert simulated_lines([run("none", 1)]) == []


def test_a_queue_longer_than_the_slo_is_named_with_what_to_compare() -> None:
    waits = {"wait_s": {"p50": 3.0, "p99": 28.0}}
    (note,) = notes_on([told("worst-case", **waits), told("oracle", **waits), told("learned")])
    assert note.startswith("worst-case: ")
    assert note.endswith("compare with --queue-seconds 4 instead of 30")
    assert notes_on([told("worst-case", **waits, gate={"queue_s": 4.0, "tenants": [], "classes": []})]) == []


def test_settings_of_tenants_and_classes_that_the_load_has_not_are_named() -> None:
    assert notes_on([told("learned")]) == []
    assert notes_on([told("learned", tenants={"blue": {}}, classes={"0": {}})]) == [
        "--config: no request of the load is of [gate.tenants.red]",
        "--config: no request of the load is of [gate.classes.-10]",
    ]
    assert notes_on([told("learned", tenants={"(others)": {}})]) == []


def test_a_load_that_can_hardly_be_served_is_named() -> None:
    notes = notes_on([told("learned", requests=900, refused=879, refusals={"never_fits": 2, "queue_full": 877})])
    assert notes == [
        "learned: requests that can never be served with these limits (never_fits): 2",
        "learned: 879 of 900 requests were refused, most for queue_full; is the pool that of your engine, and the load "
        "yours?",
    ]


def test_the_page_is_one_file_with_a_chart_of_goodput_and_one_of_endings() -> None:
    pytest.importorskip("altair")
    chance = random.Random(1)
    runs = [run("none", chance.random(), sweep={"rate-scale": 1}), run("<b>", 5, sweep={"rate-scale": 1})]
    page = html_simulation(runs)
    assert page.count("<svg") == 2
    assert "&lt;b&gt;" in page
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_goodput_over_one_swept_number_is_a_line_for_each_policy() -> None:
    pytest.importorskip("altair")
    runs = [run(policy, 5, sweep={"rate-scale": at}) for at in (0.5, 2.0) for policy in ("none", "learned")]
    page = html_simulation(runs)
    assert "mark-line" in page
    assert "mark-line" not in html_simulation([run("none", 5), run("learned", 6)])
    two = [{**one, "sweep": {**one["sweep"], "seed": 1}} for one in runs]
    assert "mark-line" not in html_simulation(two)
