"""The report: what counts as good, and what a generator must admit."""

from dataclasses import replace

import pytest

from kvbudget.edge.replay.outcome import Ending, Outcome
from kvbudget.edge.replay.report import EngineReadings, Slo, build_report, meets, percentile

NOTHING = EngineReadings()
GOOD = Outcome(
    Ending.FINISHED,
    stream=True,
    prompt_tokens=10,
    output_tokens=50,
    usage_prompt_tokens=10,
    status=200,
    ttft_s=0.5,
    gaps_s=(0.1, 0.2),
    total_s=0.8,
)


def test_goodput_counts_tokens_of_requests_within_the_slo_only() -> None:
    outcomes = [GOOD, replace(GOOD, ttft_s=2.0), replace(GOOD, gaps_s=(0.1, 3.0)), replace(GOOD, ending=Ending.REFUSED)]
    report = build_report(outcomes, slo=Slo(1.0, 1.0), elapsed_s=10.0, readings=NOTHING)
    assert report["goodput_tokens_per_s"] == pytest.approx(5.0)
    assert report["slo_fraction"] == pytest.approx(0.25)


def test_without_an_slo_all_finished_requests_are_good() -> None:
    outcomes = [GOOD, replace(GOOD, ttft_s=99.0), replace(GOOD, ending=Ending.TIMED_OUT)]
    report = build_report(outcomes, slo=Slo(), elapsed_s=10.0, readings=NOTHING)
    assert report["goodput_tokens_per_s"] == pytest.approx(10.0)
    assert report["slo_fraction"] == pytest.approx(2 / 3)


def test_every_name_of_the_contract_is_there_and_the_unknown_is_null() -> None:
    report = build_report([], slo=Slo(), elapsed_s=0.0, readings=NOTHING)
    for name in (
        "requests", "finished", "refused", "timed_out", "preemptions", "recomputed_tokens", "goodput_tokens_per_s",
        "slo_fraction", "ttft_s", "gap_s", "pool_use_mean", "oracle_ratio",
    ):  # fmt: skip
        assert name in report
    assert report["ttft_s"] == {"p50": None, "p99": None}
    assert report["gap_s"] == {"p99": None}
    assert report["preemptions"] is report["slo_fraction"] is None


def test_endings_add_up_to_the_requests() -> None:
    outcomes = [replace(GOOD, ending=ending, status=429) for ending in Ending]
    report = build_report(outcomes, slo=Slo(), elapsed_s=1.0, readings=EngineReadings(3, 0.5))
    assert sum(report[ending.value] for ending in Ending) == report["requests"] == len(Ending)  # type: ignore[misc]
    assert report["statuses"] == {"429": len(Ending)}
    assert (report["preemptions"], report["pool_use_mean"]) == (3, 0.5)


def test_a_plain_answer_is_held_to_the_time_that_a_stream_of_its_length_has() -> None:
    plain = replace(GOOD, stream=False, ttft_s=None, gaps_s=(), output_tokens=11, total_s=2.9)
    assert meets(plain, Slo(1.0, 0.2))
    assert not meets(replace(plain, total_s=3.1), Slo(1.0, 0.2))
    assert meets(replace(plain, total_s=99.0), Slo(1.0, None))


def test_a_generator_that_sends_late_says_so() -> None:
    on_time = build_report([GOOD], slo=Slo(), elapsed_s=1.0, readings=NOTHING)
    late = build_report([replace(GOOD, late_s=0.2)], slo=Slo(), elapsed_s=1.0, readings=NOTHING)
    assert on_time["generator"]["kept_up"] is True  # type: ignore[index]
    assert late["generator"]["kept_up"] is False  # type: ignore[index]
    assert "could not keep up" in str(late["notes"])


def test_prompt_lengths_that_the_endpoint_counts_otherwise_are_counted() -> None:
    outcomes = [GOOD, replace(GOOD, usage_prompt_tokens=11), replace(GOOD, usage_prompt_tokens=None)]
    report = build_report(outcomes, slo=Slo(), elapsed_s=1.0, readings=NOTHING)
    assert report["prompt_tokens"] == {"sent": 30, "compared": 2, "differing": 1}


def test_percentiles_are_nearest_ranks() -> None:
    assert percentile([], 0.5) is None
    assert percentile([7.0], 0.99) == 7.0
    assert percentile([float(value) for value in range(100)], 0.99) == 99.0
