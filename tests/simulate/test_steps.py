"""Time around an engine (what it does in its steps: test_paged_engine_against_vllm.py)."""

import pytest

from kvbudget.errors import BadValueError
from kvbudget.pool.groups import uniform_layout
from kvbudget.simulate.cost import StepCost
from kvbudget.simulate.paged_engine import PagedEngine
from kvbudget.simulate.steps import Replay, TimedRequest, replay

COST = StepCost(base_ns=100, prefill_ns=10, decode_ns=5, context_ns=1)


def engine(*, asynchronous: bool = False) -> PagedEngine:
    return PagedEngine(uniform_layout(4), 9, 4, 16, 32, async_scheduling=asynchronous)


def test_a_step_costs_what_it_computes_and_the_next_one_begins_at_its_end() -> None:
    first, second = replay([TimedRequest("a", 50, 8, 2, 9)], engine(), COST)
    assert (first.step, first.now_ns, first.start_ns, first.end_ns) == (0, 50, 50, 50 + 100 + 8 * 10 + 8)
    assert first.scheduled == {"a": (0, 8)}
    assert (second.now_ns, second.end_ns - second.start_ns) == (first.end_ns, 100 + 5 + 9)
    assert second.scheduled == {"a": (8, 1)}
    assert (second.held, second.free_blocks, second.finished) == ({"a": (3,)}, 5, ("a",))


def test_who_comes_while_a_step_is_executed_waits_for_its_end() -> None:
    trace = [TimedRequest("a", 0, 8, 2, 9), TimedRequest("b", 1, 4, 1, 9)]
    running = Replay(trace, engine(), COST)
    steps = list(running)
    assert [step.running for step in steps] == [("a",), ("a", "b")]
    served = running.served["b"]
    assert served.first_token_ns == served.finish_ns == steps[1].end_ns
    assert (served.output_tokens, served.cached_tokens, served.finish_reason) == (1, 0, "stop")


def test_when_nothing_is_to_do_the_clock_jumps_to_the_next_arrival() -> None:
    steps = list(replay([TimedRequest("a", 10**9, 1, 1, 1), TimedRequest("b", 0, 1, 1, 1)], engine(), COST))
    assert [(step.now_ns, step.running) for step in steps] == [(0, ("b",)), (10**9, ("a",))]


def test_asynchronous_scheduling_prepares_the_next_step_while_one_is_executed() -> None:
    trace = [TimedRequest("a", 0, 4, 3, 3)]
    steps = list(replay(trace, engine(asynchronous=True), COST))
    assert [(step.now_ns, step.start_ns) for step in steps] == [
        (0, 0),
        (0, steps[0].end_ns),
        (steps[0].end_ns, steps[1].end_ns),
    ]


def test_asynchronous_scheduling_works_once_more_on_who_ends_by_itself() -> None:
    early, late = TimedRequest("a", 0, 4, 3, 9), TimedRequest("a", 0, 4, 3, 3)  # the second ends at max_tokens
    assert len(list(replay([early], engine(asynchronous=True), COST))) == 4
    assert len(list(replay([late], engine(asynchronous=True), COST))) == 3


def test_an_abort_takes_effect_at_the_end_of_the_step_or_while_it_waits() -> None:
    trace = [TimedRequest("a", 0, 4, 20, 20, abort_ns=120), TimedRequest("b", 0, 28, 1, 1, abort_ns=130)]
    running = Replay(trace, engine(), COST)
    steps = list(running)
    served = running.served["a"]
    assert (served.finish_reason, served.finish_ns, served.output_tokens) == ("abort", steps[0].end_ns, 0)
    assert running.served["b"].finish_reason == "abort"
    assert running.engine.free_blocks == 8


def test_an_abort_after_the_end_changes_nothing_and_one_before_the_arrival_takes_effect_with_it() -> None:
    trace = [TimedRequest("a", 1000, 4, 1, 1, abort_ns=10**9), TimedRequest("b", 1000, 4, 1, 1, abort_ns=10)]
    running = Replay(trace, engine(), COST)
    list(running)
    assert [served.finish_reason for served in running.served.values()] == ["stop", "abort"]
    assert running.served["b"].finish_ns == 1000


def test_preemptions_are_counted_and_recomputation_costs_time_again() -> None:
    trace = [TimedRequest(name, 0, 15, 9, 9) for name in "ab"]
    running = Replay(trace, engine(), StepCost(0, 1, 0, 0))
    steps = list(running)
    assert [served.preemptions for served in running.served.values()] == [0, 1]
    assert steps[-1].end_ns > 15 + 15 + 9


def test_requests_that_nothing_will_ever_let_run_are_an_error_that_names_one() -> None:
    paged = engine()
    paged.block_pool.take(8)
    with pytest.raises(BadValueError, match="1 requests can never run, the first is b; the pool has 8 blocks"):
        list(replay([TimedRequest("b", 0, 4, 1, 1)], paged, COST))


def test_an_abort_is_waited_for_when_nobody_can_run() -> None:
    paged = engine()
    held = paged.block_pool.take(8)
    running = Replay([TimedRequest("b", 0, 4, 1, 1, abort_ns=700)], paged, COST)
    assert list(running) == []
    assert running.served["b"].finish_ns == 700
    paged.block_pool.give_back(held)
