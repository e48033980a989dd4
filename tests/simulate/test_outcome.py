"""What a run comes to."""

import pytest

from kvbudget.simulate.clients import Client, Ending
from kvbudget.simulate.outcome import Result, RetryTimes
from kvbudget.simulate.settings import Slo
from simulated import MS, SECOND, request, run, settings

CONTRACT = {
    "requests", "finished", "refused", "timed_out", "preemptions", "recomputed_tokens", "goodput_tokens_per_s",
    "slo_fraction", "ttft_s", "gap_s", "pool_use_mean", "oracle_ratio",
}  # fmt: skip


def ended(result: Result, first_ns: int | None, end_ns: int, ending: Ending = Ending.FINISHED, *, late: bool = False,
          tenant: str = "default") -> None:  # fmt: skip
    client = Client(result.requests, request(0, 100, 50, tenant=tenant))
    result.arrived(client)
    if first_ns is not None:
        client.first_token_ns = first_ns
        result.first_token(client, first_ns)
    client.late_gap = late
    result.ended(client, ending, end_ns, 50 if ending is Ending.FINISHED else 0)


def test_only_answers_within_the_slo_are_goodput() -> None:
    result = Result("none", Slo(2 * SECOND, SECOND))
    ended(result, SECOND, 4 * SECOND)
    ended(result, 3 * SECOND, 4 * SECOND)  # first token too late
    ended(result, SECOND, 5 * SECOND, late=True)  # stood still
    ended(result, None, 10 * SECOND, Ending.TIMED_OUT)
    document = result.document()
    assert (document["goodput_tokens_per_s"], document["slo_fraction"]) == (5, 0.25)
    assert document["output_tokens_per_s"] == 15
    assert (document["finished"], document["timed_out"], document["stalled_answers"]) == (3, 1, 1)


def test_the_document_has_the_contracts_fields_and_none_for_what_was_not_measured() -> None:
    document = Result("none", Slo()).document()
    assert set(document) >= CONTRACT
    assert (document["ttft_s"], document["gap_s"]) == ({"p50": None, "p99": None}, {"p99": None})
    assert document["pool_use_mean"] is None
    assert document["slo_fraction"] is None


def test_tenants_are_told_apart_up_to_a_hundred() -> None:
    result = Result("none", Slo())
    ended(result, SECOND, 2 * SECOND, tenant="a")
    assert list(result.document()["tenants"]) == ["a"]
    for number in range(150):
        ended(result, SECOND, 2 * SECOND, tenant=f"t{number}")
    tenants = result.document()["tenants"]
    assert len(tenants) == 101
    assert tenants["(others)"]["requests"] == 51
    assert sum(part["requests"] for part in tenants.values()) == result.document()["requests"] == 151


def came_by(number: int, tokens: int, tenant: str = "default", priority: int = 0) -> Client:
    return Client(number, request(0, tokens - 50, 50, tenant=tenant, priority=priority))


def test_times_told_are_held_against_the_time_at_which_as_much_was_let_in() -> None:
    times = RetryTimes()
    times.was_told(came_by(1, 500), 4 * SECOND, 0)
    times.was_told(came_by(2, 900), 8 * SECOND, 0)
    # The first could have come in then, of the second nothing is known.
    times.came(came_by(3, 600), 2 * SECOND, as_told=False, at_once=True)
    document = times.document()
    assert document["hindsight_s"]["p50"] == pytest.approx(2, rel=1e-3)
    assert document["told_to_hindsight"] == pytest.approx(2, rel=1e-3)
    assert (document["told"], document["hindsight_known"]) == (2, 1)


def test_one_that_is_let_in_stands_for_one_that_was_refused_the_first_of_its_tenant_and_class() -> None:
    times = RetryTimes()
    for number, told_s in enumerate((2, 6, 9)):
        times.was_told(came_by(number, 500), told_s * SECOND, 0)
    for other in (came_by(7, 600, tenant="b"), came_by(8, 600, priority=1)):
        times.came(other, SECOND, as_told=False, at_once=True)
    assert times.document()["hindsight_known"] == 0
    times.came(came_by(9, 600), 2 * SECOND, as_told=False, at_once=True)
    assert times.document()["hindsight_known"] == 1
    assert times.document()["told_to_hindsight"] == pytest.approx(1, rel=1e-3)
    times.came(came_by(10, 600), 2 * SECOND, as_told=False, at_once=False)
    assert times.document()["hindsight_known"] == 1


def test_who_comes_back_and_is_let_in_knows_its_own_time_and_nobody_elses() -> None:
    times = RetryTimes()
    one = came_by(1, 500)
    times.was_told(one, 4 * SECOND, 0)
    times.was_told(came_by(2, 500), 4 * SECOND, 0)
    times.came(one, 5 * SECOND, as_told=True, at_once=True)
    times.came(one, 9 * SECOND, as_told=True, at_once=False)
    document = times.document()
    assert (document["hindsight_known"], document["returned"], document["admitted_at_once"]) == (1, 2, 1)
    assert document["told_to_hindsight"] == pytest.approx(0.8, rel=1e-3)
    times.came(came_by(3, 500), 10 * SECOND, as_told=False, at_once=True)  # skips whose time is known
    assert times.document()["hindsight_known"] == 2


def test_no_time_below_a_second_could_have_been_told() -> None:
    times = RetryTimes()
    times.was_told(came_by(1, 500), SECOND, 0)
    times.came(came_by(2, 500), SECOND // 10, as_told=False, at_once=True)
    assert times.document()["told_to_hindsight"] == pytest.approx(1, rel=1e-3)


def test_tokens_are_counted_for_as_long_as_answers_held_them() -> None:
    result = Result("none", Slo())
    ended(result, SECOND, 3 * SECOND, tenant="a")  # 100 of the prompt, and half of 50
    ended(result, None, 3 * SECOND, Ending.TIMED_OUT, tenant="a")
    assert result.document()["tenants"]["a"]["held_token_s"] == 250


def test_recomputed_and_cached_tokens_of_a_run_add_up_with_what_was_scheduled() -> None:
    """Without losses: what finished answers needed, less what was cached, and what was done again."""
    for caching in (False, True):
        load = [request(k * 3 * MS, 120, 180, ids=[1, 2], most=180) for k in range(10)]
        seen = run(load, settings(60, prefix_caching=caching, prefix_id_tokens=16, max_model_len=400))
        document = seen.document
        assert document["preemptions"] > 0
        useful = 10 * (120 + 180 - 1)
        again = document["recomputed_tokens"]
        assert document["scheduled_tokens"] == useful + again - document["cached_tokens"]
