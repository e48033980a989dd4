"""Every verdict comes out of texts as engines write them, in several magnitudes, names and versions."""

from typing import Any

import pytest

from kvbudget.diagnose.finding import document
from kvbudget.diagnose.verdict import CODES, diagnose
from kvbudget.engines.metrics.observation import observation_of
from snapshots import vllm
from verdict_pairs import PAIRS, Pair

CONTRACT = (
    "pool_full", "seqs_full", "stuck", "compute_bound", "deferred", "runaway_output", "over_provisioned",
    "prefix_cache_below_block", "prefix_cache_too_small", "prefix_cache_no_sharing", "engine_rejecting", "healthy",
    "insufficient_data",
)  # fmt: skip


@pytest.mark.parametrize("pair", PAIRS, ids=[f"{pair.verdict}: {pair.name}" for pair in PAIRS])
@pytest.mark.parametrize("seconds", [None, 15.0, 60.0])
def test_two_scrapes_give_the_verdict(pair: Pair, seconds: float | None) -> None:
    found = diagnose(observation_of(*pair.texts(), seconds))
    assert found.verdict == pair.verdict, document(found)


def test_every_verdict_of_the_contract_that_vllm_can_show_has_five_variants() -> None:
    counts = {code: sum(pair.verdict == code for pair in PAIRS) for code in CONTRACT}
    assert {code: count for code, count in counts.items() if count < 5} == {}


@pytest.mark.parametrize("pair", PAIRS, ids=[f"{pair.verdict}: {pair.name}" for pair in PAIRS])
def test_what_is_found_is_told_whole(pair: Pair) -> None:
    for finding in diagnose(observation_of(*pair.texts(), 60.0)).findings:
        assert finding.code in CODES
        assert finding.message
        assert finding.sure.why
        assert finding.refuted_by
        assert finding.actions
        order = [("free", "quality", "money").index(action.cost) for action in finding.actions]
        assert order == sorted(order), finding.code
        assert any(isinstance(value, int | float) for value in finding.evidence.values()), finding.code


def test_two_engines_are_judged_by_the_worse_one_and_it_is_named() -> None:
    def both(one: dict[str, Any], other: dict[str, Any]) -> str:
        labels = ((("engine", "0"), ("model_name", "m")), (("engine", "1"), ("model_name", "m")))
        return vllm(one, labels=labels[0]) + vllm(other, labels=labels[1])

    before = both({"usage": 0.3}, {"usage": 0.99, "running": 40, "waiting": 25})
    after = both({"usage": 0.3}, {"usage": 0.99, "running": 40, "waiting": 25, "preemptions": 90})
    found = diagnose(observation_of(before, after, 30.0))
    assert found.verdict == "pool_full"
    assert [finding.code for finding in found.findings] == ["pool_full", "rank_imbalance"]
    assert found.first.where == ("engine=1",)


def test_two_engines_alike_are_one_finding_with_both_names() -> None:
    def both(changes: dict[str, Any]) -> str:
        return "".join(vllm(changes, labels=(("engine", str(rank)), ("model_name", "m"))) for rank in (0, 1))

    state: dict[str, Any] = {"usage": 0.35, "running": 256, "waiting": 60}
    found = diagnose(observation_of(both(state), both({**state, "waiting": 61}), 30.0))
    assert [(finding.code, finding.where) for finding in found.findings if finding.code == "seqs_full"] == [
        ("seqs_full", ("engine=0", "engine=1"))
    ]


@pytest.mark.parametrize(
    ("figures", "verdict"),
    [
        ({"usage": 0.99, "running": 40, "waiting": 25, "preemptions": 1290}, "pool_full"),
        ({"usage": 0.4, "running": 8, "waiting": 12, "deferred": 12}, "deferred"),
        ({"usage": 0.35, "running": 256, "waiting": 70}, "seqs_full"),
        ({"usage": 0.0, "running": 0, "waiting": 6}, "insufficient_data"),
        ({"usage": 0.3, "running": 37, "waiting": 70}, "insufficient_data"),
        ({"usage": 0.82, "running": 3, "preemptions": 7}, "insufficient_data"),
        ({"usage": 0.5, "running": 20}, "healthy"),
    ],
)
def test_one_scrape_says_what_is_so_now_and_leaves_open_what_takes_two(figures: dict[str, Any], verdict: str) -> None:
    found = diagnose(observation_of(None, vllm(figures)))
    assert found.verdict == verdict
    if verdict == "insufficient_data":
        assert any("second scrape" in what for what in found.first.collect)


def test_old_counters_raise_no_alarm() -> None:
    storm: dict[str, Any] = {
        "usage": 0.2,
        "running": 4,
        "preemptions": 90_000,
        "abort": 5_000,
        "rejected": {"max_num_queued_reqs": 7_000},
    }
    assert diagnose(observation_of(vllm(storm), vllm(storm), 60.0)).verdict == "healthy"
