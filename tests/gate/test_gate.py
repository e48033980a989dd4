"""Dialogues: event in, commands out."""

from collections.abc import Callable, Sequence

import pytest

from kvbudget.errors import AccountingError
from kvbudget.gate.commands import Forward, Parked, Reject
from kvbudget.gate.events import (
    Arrived,
    BackendChanged,
    CapacityChanged,
    DrainStarted,
    Ended,
    PaceLost,
    Progressed,
    Tick,
)
from kvbudget.gate.gate import RECHECK_NS, Gate, outcome_of
from kvbudget.gate.policies import Policy
from kvbudget.gate.refusing.refusals import Outcome, Refusal
from kvbudget.gate.tenants.settings import TenantLimits
from kvbudget.gate.waiting.why import Why
from kvbudget.pool.groups import uniform_layout
from kvbudget.units import Blocks, Tokens

SECOND = 10**9
MakeGate = Callable[..., Gate]
Arrive = Callable[..., Arrived]


def refusal(commands: Sequence[object]) -> Refusal:
    (command,) = commands
    assert isinstance(command, Reject)
    return command.refusal


# Room


def test_who_fits_is_forwarded_with_its_worst_case_promised(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate()
    assert gate.handle(arrive("a", 100, 20), 0) == [Forward("a", Blocks(8), Tokens(20), 0)]
    assert (gate.promised_blocks(), gate.free_blocks()) == (8, 2)


def test_who_does_not_fit_now_waits_and_goes_when_room_comes_back(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate()
    gate.handle(arrive("a", 100, 20), 0)
    assert gate.handle(arrive("b", 50, 14), 1) == [Parked("b", 1)]
    assert gate.handle(arrive("c", 50, 14), 2) == [Parked("c", 2)]
    assert gate.handle(Ended("a", Outcome.FINISHED, Tokens(20)), 5) == [
        Forward("b", Blocks(4), Tokens(14), 4),
        Forward("c", Blocks(4), Tokens(14), 3),
    ]


def test_a_smaller_one_does_not_go_before_whom_it_would_put_off(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate()
    gate.handle(arrive("a", 100, 20), 0)
    gate.handle(arrive("big", 100, 60), 1)
    assert gate.handle(arrive("small", 1, 21), 2) == [Parked("small", 2)]
    assert gate.handle(arrive("shorter", 1, 20), 2) == [Forward("shorter", Blocks(2), Tokens(20), 0)]


def test_a_more_urgent_priority_goes_before_but_not_before_its_own_kind(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate()
    gate.handle(arrive("a", 60, 100), 0)
    gate.handle(arrive("bulk", 16, 16, priority=5), 1)
    assert gate.handle(arrive("first", 16, 16, priority=-1), 2) == [Parked("first", 1)]
    assert gate.handle(arrive("second", 16, 16, priority=-1), 3) == [Parked("second", 2)]
    forwarded = gate.handle(Ended("a", Outcome.FINISHED), 4)
    assert [command.request_id for command in forwarded] == ["first", "second", "bulk"]


def test_a_place_at_the_engine_is_needed_too(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(blocks=100, max_num_seqs=2)
    gate.handle(arrive("a"), 0)
    gate.handle(arrive("b"), 0)
    assert gate.handle(arrive("c"), 0) == [Parked("c", 1)]
    assert [c.request_id for c in gate.handle(Ended("b", Outcome.FINISHED), 1)] == ["c"]


def test_n_multiplies_the_promise_and_the_places(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(blocks=10, max_num_seqs=4)
    assert gate.handle(arrive("a", 16, 16, sequences=3), 0) == [Forward("a", Blocks(6), Tokens(16), 0)]
    assert gate.handle(arrive("b", 16, 16, sequences=2), 0) == [Parked("b", 1)]
    assert refusal(gate.handle(arrive("c", 1, 1, sequences=5), 0)) is Refusal.TOO_MANY_SEQUENCES


def test_the_margin_is_never_promised(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(blocks=10, margin_blocks=4)
    assert gate.handle(arrive("a", 90, 6), 0) == [Forward("a", Blocks(6), Tokens(6), 0)]
    assert refusal(gate.handle(arrive("b", 90, 7), 0)) is Refusal.NEVER_FITS


# Never


def test_a_prompt_that_fills_the_context_is_refused_for_good(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(blocks=100, max_context=Tokens(1024))
    (reject,) = gate.handle(arrive("a", 1024, 1), 0)
    assert isinstance(reject, Reject)
    assert reject.refusal is Refusal.CONTEXT_EXCEEDED
    assert (reject.prompt_tokens, reject.max_context, reject.largest_new_tokens) == (1024, 1024, 0)
    assert reject.retry_after_ns == 0
    assert len(gate.ledger) == 0


def test_more_than_the_whole_pool_is_refused_with_what_would_fit(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(blocks=10, max_context=Tokens(4096))
    (reject,) = gate.handle(arrive("a", 100, 61), 0)
    assert isinstance(reject, Reject)
    assert reject.refusal is Refusal.NEVER_FITS
    assert (reject.needed_blocks, reject.capacity_blocks, reject.largest_new_tokens) == (11, 10, 60)
    assert gate.handle(arrive("b", 100, 60), 0) == [Forward("b", Blocks(10), Tokens(60), 0)]


def test_a_limit_over_the_context_is_clamped_as_the_engine_would(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(blocks=100, max_context=Tokens(128))
    assert gate.handle(arrive("a", 100, 5000), 0) == [Forward("a", Blocks(8), Tokens(28), 0)]


def test_a_missing_limit_is_the_default_shrunk_to_what_the_pool_can_hold(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(blocks=10)
    assert gate.handle(arrive("a", 10, None), 0) == [Forward("a", Blocks(5), Tokens(64), 0)]
    assert refusal(make_gate(blocks=10).handle(arrive("x", 10, 151), 0)) is Refusal.NEVER_FITS
    gate = make_gate(blocks=10)
    assert gate.handle(arrive("b", 150, None), 0) == [Forward("b", Blocks(10), Tokens(10), 0)]
    gate = make_gate(blocks=10, max_context=Tokens(4096))
    assert gate.handle(arrive("c", 150, None), 0) == [Forward("c", Blocks(10), Tokens(10), 0)]
    assert refusal(gate.handle(arrive("d", 160, None), 0)) is Refusal.NEVER_FITS


# Not now


def test_the_queue_is_bounded_by_requests(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(queue_requests=1)
    gate.handle(arrive("a", 100, 60), 0)
    gate.handle(arrive("b"), 0)
    (reject,) = gate.handle(arrive("c", 16, 16), 0)
    assert isinstance(reject, Reject)
    assert (reject.refusal, reject.position, reject.needed_blocks, reject.free_blocks) == (Refusal.QUEUE_FULL, 2, 2, 0)
    assert reject.retry_after_ns >= SECOND


def test_the_queue_is_bounded_by_tokens_but_a_lone_one_may_wait(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(queue_tokens=Tokens(50))
    gate.handle(arrive("a", 100, 60), 0)
    assert gate.handle(arrive("b", 60, 40), 0) == [Parked("b", 1)]
    assert refusal(gate.handle(arrive("c", 1, 1), 0)) is Refusal.QUEUE_FULL


def test_without_a_queue_the_pool_is_full_at_once(make_gate: MakeGate, arrive: Arrive) -> None:
    for off in ({"queue_requests": 0}, {"queue_ns": 0}, {"queue_tokens": Tokens(0)}):
        gate = make_gate(**off)
        gate.handle(arrive("a", 100, 60), 0)
        assert refusal(gate.handle(arrive("b"), 0)) is Refusal.POOL_FULL


def test_who_waited_for_its_tenant_s_limit_is_told_of_that(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(queue_ns=10 * SECOND, tenants={"t": TenantLimits(max_blocks=Blocks(4))})
    gate.handle(arrive("a", 32, 16, tenant="t"), 0)
    gate.handle(arrive("b", 32, 16, tenant="t", deadline_ns=3 * SECOND), 0)
    (reject,) = gate.handle(Tick(), 3 * SECOND)
    assert isinstance(reject, Reject)
    assert (reject.refusal, reject.why, reject.settling) == (Refusal.DEADLINE, Why.TENANT_BLOCKS, False)


def test_who_waits_until_the_deadline_is_refused_then_and_not_later(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(queue_ns=10 * SECOND)
    gate.handle(arrive("a", 100, 60), 0)
    gate.handle(arrive("b"), 0)
    gate.handle(arrive("c", deadline_ns=3 * SECOND), 0)
    assert gate.next_wake_ns == 3 * SECOND
    (reject,) = gate.handle(Tick(), 3 * SECOND)
    assert isinstance(reject, Reject)
    assert (reject.request_id, reject.refusal, reject.waited_ns) == ("c", Refusal.DEADLINE, 3 * SECOND)
    assert reject.why is Why.TURN
    assert gate.next_wake_ns == 10 * SECOND
    assert refusal(gate.handle(arrive("late", deadline_ns=SECOND), 4 * SECOND)) is Refusal.DEADLINE


def test_no_expired_request_stays_at_the_head(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate()
    gate.handle(arrive("a", 124, 4), 0)
    gate.handle(arrive("big", 100, 60, deadline_ns=SECOND), 0)
    gate.handle(arrive("small", 10, 6), 0)  # past the end of a, so big would wait for it
    commands = gate.handle(Tick(), 2 * SECOND)
    assert [type(c).__name__ + " " + c.request_id for c in commands] == ["Reject big", "Forward small"]


def test_the_told_time_is_when_the_running_ones_are_expected_to_end(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(queue_requests=0)
    gate.handle(arrive("teacher", 16, 100), 0)
    gate.handle(Ended("teacher", Outcome.FINISHED, Tokens(100)), 10 * SECOND)  # 0.1 s a token, all of its limit used
    gate.handle(arrive("a", 60, 100), 20 * SECOND)
    (reject,) = gate.handle(arrive("b", 60, 100), 25 * SECOND)
    assert isinstance(reject, Reject)
    assert reject.retry_after_ns == pytest.approx(5 * SECOND)


# Ending


def test_a_request_ends_exactly_once(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate()
    gate.handle(arrive("a"), 0)
    gate.handle(Ended("a", Outcome.FINISHED), 1)
    with pytest.raises(AccountingError, match="ended twice"):
        gate.handle(Ended("a", Outcome.FINISHED), 2)
    with pytest.raises(AccountingError, match="does not live"):
        gate.handle(Progressed("a", 1), 2)
    assert gate.promised_blocks() == 0


def test_an_id_that_lives_cannot_arrive_again(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate()
    gate.handle(arrive("a", 100, 60), 0)
    gate.handle(arrive("b"), 0)
    for name in ("a", "b"):
        with pytest.raises(AccountingError, match="already lives"):
            gate.handle(arrive(name), 1)


def test_who_leaves_the_queue_makes_way_for_the_next(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate()
    gate.handle(arrive("a", 124, 4), 0)
    gate.handle(arrive("big", 100, 60), 0)
    gate.handle(arrive("small", 16, 16), 0)
    assert [c.request_id for c in gate.handle(Ended("big", Outcome.WITHDRAWN), 1)] == ["small"]


def test_what_was_cut_off_is_kept_until_the_engine_has_noticed(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(abort_tail_ns=SECOND // 4)
    gate.handle(arrive("a", 100, 60, paced=True), 0)
    gate.handle(arrive("b"), 0)
    assert gate.handle(Ended("a", Outcome.CLIENT_GONE, engine_done=False), SECOND) == []
    assert gate.next_wake_ns == SECOND + SECOND // 4
    with pytest.raises(AccountingError):
        gate.handle(Ended("a", Outcome.CLIENT_GONE, engine_done=False), SECOND)
    assert [c.request_id for c in gate.handle(Tick(), SECOND + SECOND // 4)] == ["b"]


def test_what_was_cut_off_counts_at_its_peak_while_it_is_kept(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(blocks=12, policy=Policy.TRAJECTORY, abort_tail_ns=SECOND)
    gate.handle(arrive("short", 64, 16, paced=True), 0)  # 5 blocks at its end
    gate.handle(Progressed("short", 15), 1)
    gate.handle(Ended("short", Outcome.CLIENT_GONE, engine_done=False), 2)
    # Watched, short would be gone before long is large; cut off, nobody sees it end.
    assert gate.handle(arrive("long", 16, 112, paced=True), 3) == [Parked("long", 1)]


def test_the_told_time_counts_those_who_wait_before(make_gate: MakeGate, arrive: Arrive) -> None:
    told = []
    for ahead in (0, 1):
        gate = make_gate(queue_requests=ahead)
        gate.handle(arrive("teacher", 16, 100), 0)
        gate.handle(Ended("teacher", Outcome.FINISHED, Tokens(100)), 10 * SECOND)
        gate.handle(arrive("a", 60, 100), 20 * SECOND)
        for number in range(ahead):
            gate.handle(arrive(f"before{number}", 60, 100), 20 * SECOND)
        (reject,) = gate.handle(arrive("b", 60, 100), 25 * SECOND)
        assert isinstance(reject, Reject)
        told.append(reject.retry_after_ns // SECOND)
    assert told == [5, 20]


def test_a_bound_is_worth_at_most_what_the_context_leaves_and_is_never_paced(
    make_gate: MakeGate, arrive: Arrive
) -> None:
    gate = make_gate(blocks=20, max_context=Tokens(160))
    (forward,) = gate.handle(arrive("a", 5000, 60, exact=False, paced=True), 0)
    assert forward == Forward("a", Blocks(10), Tokens(60), 0)
    living = gate.ledger.get("a")
    assert living is not None
    assert (living.footprint.prompts, living.paced) == ((100,), False)
    (forward,) = gate.handle(arrive("b", 5000, 5000, exact=False), 0)
    assert forward == Forward("b", Blocks(10), Tokens(159), 0)
    assert refusal(make_gate(max_context=Tokens(160)).handle(arrive("c", 5000, 60), 0)) is Refusal.CONTEXT_EXCEEDED


def test_a_deadline_that_has_passed_already_is_kept_even_if_there_is_room(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate()
    assert refusal(gate.handle(arrive("a", deadline_ns=5), 5)) is Refusal.DEADLINE
    assert isinstance(gate.handle(arrive("b", deadline_ns=6), 5)[0], Forward)


# Trajectory


def test_trajectory_admits_what_worst_case_does_not(make_gate: MakeGate, arrive: Arrive) -> None:
    for policy, admitted in ((Policy.WORST_CASE, False), (Policy.TRAJECTORY, True)):
        gate = make_gate(blocks=10, policy=policy)
        gate.handle(arrive("short", 64, 16, paced=True), 0)
        gate.handle(Progressed("short", 15), 1)  # one token to go, then its 5 blocks come back
        gate.handle(arrive("long", 16, 80, paced=True), 2)  # 6 blocks at its end, 2 while short lives
        assert (gate.ledger.get("long") is not None) is admitted


def test_what_cannot_be_watched_counts_at_its_peak(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(blocks=10, policy=Policy.TRAJECTORY)
    gate.handle(arrive("plain", 64, 16), 0)
    assert gate.handle(arrive("long", 16, 80, paced=True), 2) == [Parked("long", 1)]
    assert gate.handle(arrive("wide", 1, 1, sequences=20), 2) != []


def test_an_unwatched_one_may_join_watched_ones_that_are_about_to_end(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(blocks=10, policy=Policy.TRAJECTORY)
    gate.handle(arrive("ends", 60, 20, paced=True), 0)  # 5 blocks at its end
    gate.handle(arrive("grows", 16, 80, paced=True), 0)  # 6, but only 3 while the other lives
    assert gate.handle(arrive("plain", 20, 12), 0) == [Forward("plain", Blocks(2), Tokens(12), 0)]
    assert gate.handle(arrive("last", 20, 12), 0) == [Parked("last", 1)]


def test_a_stalled_reader_takes_its_reservation_back_to_the_peak(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(blocks=10, policy=Policy.TRAJECTORY)
    gate.handle(arrive("short", 64, 16, paced=True), 0)
    gate.handle(Progressed("short", 15), 1)
    gate.handle(PaceLost("short"), 1)
    assert gate.handle(arrive("long", 16, 80, paced=True), 2) == [Parked("long", 1)]


def test_progress_alone_can_let_the_next_one_in(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(blocks=10, policy=Policy.TRAJECTORY)
    gate.handle(arrive("short", 64, 16, paced=True), 0)
    assert gate.handle(arrive("long", 70, 74, paced=True), 0) == [Parked("long", 1)]
    assert gate.handle(Progressed("short", 15), 1) == []
    assert gate.next_wake_ns == 1 + RECHECK_NS
    commands = gate.handle(Tick(), 1 + RECHECK_NS)
    assert [c.request_id for c in commands] == ["long"]
    assert gate.next_wake_ns is None


def test_a_refusal_tells_what_is_free_at_most_a_moment_old(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(blocks=10, policy=Policy.TRAJECTORY, queue_requests=0)
    gate.handle(arrive("a", 16, 112, paced=True), 0)
    told = []
    for now in (1, 2, 2 + RECHECK_NS):
        (reject,) = gate.handle(arrive(f"r{now}", 100, 44), now)
        assert isinstance(reject, Reject)
        told.append(reject.free_blocks)
        if now == 1:
            gate.handle(PaceLost("a"), 1)  # nothing changes at once: it is promised its peak already
    assert told == [2, 2, 2]
    gate.handle(Ended("a", Outcome.FINISHED), 3)
    assert isinstance(gate.handle(arrive("b", 100, 44), 4)[0], Forward)


def test_prefill_under_way_widens_the_skew(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(blocks=1000, policy=Policy.TRAJECTORY, prefill_tokens_per_step=100)
    assert gate.skew_steps == 0
    gate.handle(arrive("a", 250, 10, paced=True), 0)
    assert gate.skew_steps == 3
    gate.handle(Progressed("a", 1), 1)
    assert gate.skew_steps == 0


def test_tokens_merged_into_one_event_widen_the_skew_for_good(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(blocks=1000, policy=Policy.TRAJECTORY)
    gate.handle(arrive("a", 16, 100, paced=True), 0)
    gate.handle(Progressed("a", 40), 1)
    gate.handle(Ended("a", Outcome.FINISHED, Tokens(100)), 2)
    assert gate.skew_steps == 60


def test_promises_are_split_by_tenant_at_the_worst_moment(make_gate: MakeGate, arrive: Arrive) -> None:
    for policy in Policy:
        gate = make_gate(blocks=20, policy=policy)
        gate.handle(arrive("a", 64, 16, paced=True, tenant="x"), 0)
        gate.handle(arrive("b", 16, 80, paced=True, tenant="y"), 0)
        gate.handle(arrive("c", 16, 16, tenant="x"), 0)
        by_tenant = gate.promised_by_tenant()
        assert sum(by_tenant.values()) == gate.promised_blocks()
        assert set(by_tenant) == {"x", "y"}


# The world changes


def test_a_smaller_pool_throws_out_who_can_never_fit_and_clamps_who_named_no_limit(
    make_gate: MakeGate, arrive: Arrive
) -> None:
    gate = make_gate(blocks=20)
    gate.handle(arrive("a", 160, 160), 0)
    gate.handle(arrive("big", 100, 100), 0)
    gate.handle(arrive("open", 110, None), 0)
    (reject,) = gate.handle(CapacityChanged(uniform_layout(16), Blocks(9), Tokens(4096)), 1)
    assert isinstance(reject, Reject)
    assert (reject.request_id, reject.refusal) == ("big", Refusal.NEVER_FITS)
    assert gate.handle(Ended("a", Outcome.FINISHED), 2) == [Forward("open", Blocks(9), Tokens(34), 2)]


def test_a_larger_pool_lets_people_in(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(blocks=10)
    gate.handle(arrive("a", 100, 60), 0)
    gate.handle(arrive("b", 100, 60), 0)
    commands = gate.handle(CapacityChanged(uniform_layout(16), Blocks(20), None), 1)
    assert [c.request_id for c in commands] == ["b"]


def test_the_engines_own_cap_counts(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(blocks=100, max_context=Tokens(2048))
    gate.handle(CapacityChanged(uniform_layout(16), Blocks(100), Tokens(256)), 0)
    assert refusal(gate.handle(arrive("a", 256, 1), 0)) is Refusal.CONTEXT_EXCEEDED


def test_without_an_engine_nobody_waits_in_vain(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate()
    gate.handle(arrive("a", 100, 60), 0)
    gate.handle(arrive("b"), 0)
    assert refusal(gate.handle(BackendChanged(False), 1)) is Refusal.NO_BACKEND
    assert refusal(gate.handle(arrive("c"), 2)) is Refusal.NO_BACKEND
    gate.handle(Ended("a", Outcome.UPSTREAM_FAILED, engine_done=True), 3)
    assert gate.handle(BackendChanged(True), 4) == []
    assert isinstance(gate.handle(arrive("d"), 5)[0], Forward)


def test_draining_refuses_new_ones_and_serves_who_waits(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate()
    gate.handle(arrive("a", 100, 60), 0)
    gate.handle(arrive("b"), 0)
    gate.handle(DrainStarted(), 1)
    assert refusal(gate.handle(arrive("c"), 2)) is Refusal.DRAINING
    assert [c.request_id for c in gate.handle(Ended("a", Outcome.FINISHED), 3)] == ["b"]


def test_a_wait_until_the_deadline_is_counted_as_expired() -> None:
    assert outcome_of(Refusal.DEADLINE) is Outcome.EXPIRED
    assert outcome_of(Refusal.QUEUE_FULL) is Outcome.REFUSED
