"""Arrival rate x residence against the pool."""

from typing import Any

import pytest

from kvbudget.planner.workload.stability import Service, Stability, stability_of
from kvbudget.pool.groups import uniform_layout

LAYOUT = uniform_layout(16)
SERVICE = Service(seconds_per_token=0.02, prefill_tokens_per_s=1000, source="given")  # (1000, 500): 1 + 10 = 11 s


def stability(rate: float, requests: Any = ((1000, 600),), **more: Any) -> Stability:
    given = {"usable_blocks": 1300, "max_num_seqs": 64} | more
    return stability_of(LAYOUT, requests, SERVICE, arrivals_per_s=rate, arrivals_source="given", **given)


def test_rate_times_residence_is_what_runs_at_once() -> None:
    found = stability(0.5)
    assert found.mean_residence_s == pytest.approx(13)
    assert found.requests_at_once == pytest.approx(6.5)
    assert found.reserved_blocks == pytest.approx(6.5 * 100)
    assert found.held_blocks == pytest.approx(0.5 * (63 * 1 + (63 + 4 * 82 + 100) / 6 * 12))
    assert (found.verdict, found.limited_by) == ("stable", "pool")


def test_the_verdict_turns_at_the_largest_rates() -> None:
    found = stability(0.1)
    assert found.largest_rate == pytest.approx(1.0)  # 1,300 blocks / (100 blocks x 13 s)
    assert found.comfortable_rate < found.largest_rate < found.largest_rate_held
    assert stability(found.largest_rate * 0.99).verdict == "stable"
    assert stability(found.largest_rate * 1.01).verdict == "tight"
    assert stability(found.largest_rate_held * 1.01).verdict == "unstable"
    assert stability(0.99 * found.comfortable_rate).full < 0.05 < stability(1.1 * found.comfortable_rate).full


def test_few_places_bound_the_rate_where_the_pool_does_not() -> None:
    found = stability(0.1, max_num_seqs=2)
    assert found.limited_by == "max_num_seqs"
    assert found.largest_rate == pytest.approx(2 / 13)


def test_a_burst_in_the_record_is_seen_though_the_mean_is_calm() -> None:
    requests = [(1000, 600)] * 20
    calm = stability(0.2, requests, arrivals_s=[at * 100.0 for at in range(20)])
    assert calm.recorded == (1, 100, 0.0)
    burst = stability(0.2, requests, arrivals_s=[0.0] * 19 + [1900.0])
    assert burst.recorded is not None
    assert burst.recorded[:2] == (19, 1900)
    assert burst.recorded.share_above_pool == pytest.approx(13 / 1913)
    assert burst.verdict == "stable"
    assert "at most 19 at once" in " ".join(burst.lines())


def test_nothing_arrives_nothing_is_held() -> None:
    found = stability(0.0)
    assert (found.verdict, found.full, found.reserved_blocks) == ("stable", 0.0, 0.0)
