"""Who did not fit beside what is held is not looked at again before that can have changed."""

from collections.abc import Callable

from kvbudget.gate.commands import Forward, Parked
from kvbudget.gate.events import Arrived, CacheChanged, Ended, PoolHeld, Progressed, Tick
from kvbudget.gate.gate import RECHECK_NS, Gate
from kvbudget.gate.policies import Policy
from kvbudget.gate.refusing.refusals import Outcome
from kvbudget.pool.footprint import Footprint
from kvbudget.pool.risk import EPOCH_STEPS
from kvbudget.units import Tokens

MakeGate = Callable[..., Gate]
Arrive = Callable[..., Arrived]
MS = 10**6


def full(make_gate: MakeGate, arrive: Arrive, abort_tail_ns: int = 0) -> tuple[Gate, Arrived]:
    """Two that hold 41 of 100 blocks each, and one who waits since as many more are not there."""
    gate = make_gate(
        100, Policy.LEARNED, enough_answers=1.0, worthwhile_wait_ns=10**12, abort_tail_ns=abort_tail_ns
    )  # fmt: skip
    for number in range(4):
        name = f"teacher-{number}"
        gate.handle(arrive(name, 16, 400, paced=True), number)
        gate.handle(Progressed(name, 1), number)
        gate.handle(Ended(name, Outcome.FINISHED, Tokens(8)), number)
    for name in "ab":
        assert isinstance(gate.handle(arrive(name, 640, 400, paced=True), MS)[0], Forward)
        gate.handle(Progressed(name, 1), MS)
    third = arrive("c", 640, 400, paced=True)
    assert isinstance(gate.handle(third, 2 * MS)[0], Parked)
    return gate, third


def still_full(gate: Gate, event: Arrived, now_ns: int) -> bool:
    return gate.promises.is_still_full(event, now_ns)


def test_it_stays_out_while_those_who_run_go_on_and_goes_in_when_one_ends(make_gate: MakeGate, arrive: Arrive) -> None:
    gate, third = full(make_gate, arrive)
    assert still_full(gate, third, 3 * MS)
    gate.handle(Progressed("a", 1), 4 * MS)
    assert still_full(gate, third, 4 * MS)
    assert gate.handle(Tick(), 4 * MS + RECHECK_NS) == []
    assert isinstance(gate.handle(Ended("a", Outcome.FINISHED, Tokens(2)), 5 * MS + RECHECK_NS)[0], Forward)


def test_it_is_known_of_no_one_else(make_gate: MakeGate, arrive: Arrive) -> None:
    gate, _ = full(make_gate, arrive)
    assert not still_full(gate, arrive("d", 16, 16, paced=True), 3 * MS)


def test_an_outlook_that_is_or_was_made_anew_is_looked_at_again(make_gate: MakeGate, arrive: Arrive) -> None:
    gate, third = full(make_gate, arrive)
    gate.handle(Progressed("a", EPOCH_STEPS + 1), 4 * MS)
    assert not still_full(gate, third, 4 * MS)
    gate.learned.refresh(gate.ledger, 4 * MS)
    assert not still_full(gate, third, 4 * MS)
    gate.handle(Tick(), 4 * MS + RECHECK_NS)
    assert still_full(gate, third, 4 * MS + RECHECK_NS)


def test_what_the_engine_tells_of_its_cache_or_of_what_it_holds_may_make_room(
    make_gate: MakeGate, arrive: Arrive
) -> None:
    gate, third = full(make_gate, arrive)
    gate.handle(CacheChanged(stored=(1, 2)), 3 * MS)
    assert not still_full(gate, third, 3 * MS)
    assert not still_full(gate, third, 3 * MS)
    gate, third = full(make_gate, arrive)
    gate.handle(PoolHeld(gate.ledger.capacity_blocks // 2), 3 * MS)  # type: ignore[arg-type]
    assert not still_full(gate, third, 3 * MS)


def test_room_that_is_only_kept_for_others_is_no_reason(make_gate: MakeGate, arrive: Arrive) -> None:
    gate, third = full(make_gate, arrive)
    small = arrive("d", 16, 16, paced=True)
    footprint = Footprint((Tokens(16),), Tokens(16))
    assert gate.learned.promise_with(gate.ledger, small, footprint, 60, 3 * MS) is None
    assert still_full(gate, third, 3 * MS)  # it is not forgotten either
    assert not still_full(gate, small, 3 * MS)


def test_it_waits_for_a_report_to_look_again_and_for_nothing_else(make_gate: MakeGate, arrive: Arrive) -> None:
    gate, _ = full(make_gate, arrive, abort_tail_ns=250 * MS)
    waits = [gate.waits_for_report]
    gate.handle(Progressed("a", 1), 3 * MS)
    waits.append(gate.waits_for_report)
    assert waits == [True, False]
    assert gate.next_wake_ns == 3 * MS + RECHECK_NS
    gate.handle(Ended("b", Outcome.CLIENT_GONE, engine_done=False), 4 * MS)  # the engine may take a while to notice
    assert gate.next_wake_ns == 3 * MS + RECHECK_NS
    gate.handle(Tick(), 3 * MS + RECHECK_NS)
    assert gate.next_wake_ns == 254 * MS


def test_several_prompts_of_one_request_hold_their_sum(make_gate: MakeGate, arrive: Arrive) -> None:
    gate, _ = full(make_gate, arrive)
    batch, one, two = gate.learned.batch, Footprint((Tokens(16),), Tokens(8)), Footprint((Tokens(40),), Tokens(8))
    both = Footprint((Tokens(16), Tokens(40)), Tokens(8), 2)
    assert batch.held(both, 3) == 2 * (batch.held(one, 3) + batch.held(two, 3))


def test_where_lengths_do_not_decide_nothing_is_known(make_gate: MakeGate, arrive: Arrive) -> None:
    assert not still_full(make_gate(100, Policy.TRAJECTORY), arrive("a", 16, 16), 0)
