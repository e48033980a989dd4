"""A gate that may promise only a slice of its pool, and one that has lost it (`events.SliceChanged`)."""

from collections.abc import Callable
from typing import Any

import pytest

from kvbudget.gate.bank.whole_pool import has_to_leave, needed_of_pool
from kvbudget.gate.commands import Forward, Parked, Reject
from kvbudget.gate.events import Arrived, Ended, Progressed, SliceChanged, Tick
from kvbudget.gate.fleet.fleet import Fleet
from kvbudget.gate.fleet.member import Member
from kvbudget.gate.fleet.options import FleetConfig, MemberOptions
from kvbudget.gate.gate import Gate
from kvbudget.gate.policies import Policy
from kvbudget.gate.refusing.refusals import Outcome, Refusal
from kvbudget.gate.tenants.kept import Kept
from kvbudget.gate.tenants.settings import ClassLimits
from kvbudget.gate.waiting.queue import Waiting
from kvbudget.pool.footprint import Footprint
from kvbudget.pool.groups import uniform_layout
from kvbudget.pool.ledger import Ledger
from kvbudget.pool.prefix import Sharing
from kvbudget.pool.share import GRID
from kvbudget.units import Blocks, Tokens

SECOND = 10**9
UNTIL_NS = 10 * SECOND

Maker = Callable[..., Gate]
Arriver = Callable[..., Arrived]


def lend(
    gate: Gate, blocks: int, now_ns: int = 0, *, sequences: int = 99, elsewhere: int = 0, **more: Any
) -> list[object]:
    return list(gate.handle(SliceChanged(Blocks(blocks), sequences, UNTIL_NS, Blocks(elsewhere), **more), now_ns))


def test_what_may_be_promised_is_the_slice_but_never_more_than_the_pool() -> None:
    ledger = Ledger(uniform_layout(16), Blocks(100), 10)
    assert (ledger.capacity_blocks, ledger.pool_blocks) == (90, 90)
    changes = ledger.changes
    ledger.allow(Blocks(40))
    assert (ledger.capacity_blocks, ledger.pool_blocks) == (40, 90)
    assert (ledger.changes - changes, ledger.allowances) == (1, 1)
    ledger.allow(Blocks(95))
    assert ledger.capacity_blocks == 90
    ledger.resize(uniform_layout(16), Blocks(50))
    assert (ledger.capacity_blocks, ledger.pool_blocks) == (40, 40)


def test_who_fits_the_pool_but_not_the_slice_waits_until_it_grows(make_gate: Maker, arrive: Arriver) -> None:
    gate = make_gate(100)
    lend(gate, 10)
    assert gate.slice_at(0) == (10, 99)
    assert isinstance(gate.handle(arrive("first", prompt=16 * 20), 0)[0], Parked)
    assert gate.first_waiting() is gate.queue.head()
    assert lend(gate, 15, 1) == []
    (forward,) = lend(gate, 21, 2)
    assert isinstance(forward, Forward)
    assert gate.free_blocks() == 100 - 21


def test_places_are_of_the_slice_too(make_gate: Maker, arrive: Arriver) -> None:
    gate = make_gate(100, max_num_seqs=8)
    lend(gate, 50, sequences=1)
    gate.handle(arrive("first"), 0)
    assert isinstance(gate.handle(arrive("second"), 0)[0], Parked)
    (forward,) = lend(gate, 50, 1, sequences=2)
    assert isinstance(forward, Forward)


def test_what_is_promised_elsewhere_is_not_free(make_gate: Maker) -> None:
    gate = make_gate(100)
    lend(gate, 10, elsewhere=30, sequences_elsewhere=3)
    assert gate.free_blocks() == 70
    assert gate.promises.elsewhere_sequences == 3


def test_when_the_slice_is_over_whoever_waits_or_comes_is_refused_and_what_runs_goes_on(
    make_gate: Maker, arrive: Arriver
) -> None:
    gate = make_gate(100)
    lend(gate, 10)
    gate.handle(arrive("first", prompt=16 * 8), 0)
    gate.handle(arrive("second", prompt=16 * 8), 0)
    assert gate.next_wake_ns == UNTIL_NS
    (refused,) = gate.handle(Tick(), UNTIL_NS)
    assert isinstance(refused, Reject)
    assert (refused.request_id, refused.refusal) == ("second", Refusal.LEDGER_LOST)
    assert refused.retry_after_ns == 2 * SECOND
    assert gate.ledger_lost
    assert gate.slice_at(UNTIL_NS) == (0, 0)
    (refused,) = gate.handle(arrive("third"), UNTIL_NS + 1)
    assert isinstance(refused, Reject)
    assert refused.refusal is Refusal.LEDGER_LOST
    assert gate.promised_blocks() == 9
    assert gate.handle(Ended("first", Outcome.FINISHED), UNTIL_NS + 2) == []


def test_a_new_slice_ends_the_loss(make_gate: Maker, arrive: Arriver) -> None:
    gate = make_gate(100)
    lend(gate, 10)
    gate.handle(Tick(), UNTIL_NS)
    lost = gate.ledger_lost
    gate.handle(SliceChanged(Blocks(10), 5, 2 * UNTIL_NS, Blocks(0)), UNTIL_NS + 1)
    assert (lost, gate.ledger_lost) == (True, False)
    assert isinstance(gate.handle(arrive("first"), UNTIL_NS + 2)[0], Forward)


def test_a_lowered_slice_lets_nobody_in_and_is_never_raised_by_that(make_gate: Maker, arrive: Arriver) -> None:
    gate = make_gate(100)
    lend(gate, 20)
    gate.lower_slice(Blocks(5), 2)
    assert gate.slice_at(0) == (5, 2)
    gate.lower_slice(Blocks(9), 7)
    assert gate.slice_at(0) == (5, 2)
    assert isinstance(gate.handle(arrive("first", prompt=16 * 6), 0)[0], Parked)


def test_a_gate_yields_to_one_elsewhere_but_for_more_urgent_classes(make_gate: Maker, arrive: Arriver) -> None:
    gate = make_gate(100, fair=False)
    lend(gate, 50, yields_to=1)
    assert isinstance(gate.handle(arrive("same", priority=1), 0)[0], Parked)
    assert isinstance(gate.handle(arrive("urgent", priority=0), 0)[0], Forward)
    assert lend(gate, 50, 1, yields_to=1) == []
    (forward,) = lend(gate, 50, 2)
    assert isinstance(forward, Forward)
    assert forward.request_id == "same"


@pytest.mark.parametrize(("before", "after", "goes"), [(1, 2, True), (1, None, True), (2, 1, False), (1, 1, False)])
def test_who_waited_goes_as_soon_as_the_gate_yields_to_a_less_urgent_class(
    make_gate: Maker, arrive: Arriver, before: int, after: int | None, goes: bool
) -> None:
    gate = make_gate(100, fair=False)
    lend(gate, 50, yields_to=before)
    gate.handle(arrive("waits", priority=before), 0)
    commands = lend(gate, 50, 1, yields_to=after)
    assert [type(command) for command in commands] == ([Forward] if goes else [])


def test_all_gates_together_have_the_queue_of_one(make_gate: Maker) -> None:
    gate = make_gate(100)
    lend(gate, 10)
    assert gate.parking._queue_tokens() == 2 * 100 * 16
    lend(gate, 10, gates=4)
    assert gate.parking._queue_tokens() == 2 * 25 * 16


def test_the_part_of_a_gate_is_what_it_has_of_all_that_is_promised(make_gate: Maker) -> None:
    gate = make_gate(100)
    assert gate.promises.part == 1.0
    lend(gate, 30, gates=4)
    assert gate.promises.part == 1.0
    lend(gate, 30, gates=4, elsewhere=30)
    assert gate.promises.part == 0.5
    lend(gate, 0, gates=4, elsewhere=30)
    assert gate.promises.part == 0.25


def test_what_is_needed_of_the_pool_is_told_even_where_the_slice_has_no_room(make_gate: Maker, arrive: Arriver) -> None:
    gate = make_gate(100)
    lend(gate, 10, elsewhere=60)

    def needed(prompt_blocks: int) -> int | None:
        event, footprint = arrive("x", prompt=16 * prompt_blocks), Footprint((Tokens(16 * prompt_blocks),), Tokens(16))
        return needed_of_pool(gate, event, footprint, footprint.peak_blocks(uniform_layout(16)), 0)

    assert needed(30) == 31
    assert needed(60) == 61  # if others end
    assert needed(100) is None
    assert gate.slice_at(0) == (10, 99)


def test_what_is_needed_of_the_pool_leaves_out_what_is_shared(make_gate: Maker, arrive: Arriver) -> None:
    gate = make_gate(100, sharing=Sharing.SCHEDULED)
    lend(gate, 40)
    keys = tuple(range(1, 11))
    gate.handle(arrive("first", prompt=16 * 10 + 1, prefix=keys), 0)
    event, footprint = arrive("x", prompt=16 * 10 + 1, prefix=keys), Footprint((Tokens(161),), Tokens(16))
    peak = footprint.peak_blocks(uniform_layout(16))
    assert needed_of_pool(gate, event, footprint, peak, 0) == gate.promised_blocks() + peak - 10


def test_what_is_kept_for_others_may_lie_outside_the_slice(make_gate: Maker, arrive: Arriver) -> None:
    urgent = ClassLimits(reserved_blocks=40, reserved_slots=3)
    gate = make_gate(100, classes={0: urgent}, max_num_seqs=8)
    lend(gate, 30, elsewhere=20, sequences=2, sequences_elsewhere=2)
    gate.handle(arrive("urgent", priority=0, paced=True), 0)
    gate.handle(Progressed("urgent", 1), 0)
    assert isinstance(gate.handle(arrive("first", prompt=16 * 20, priority=1, paced=True), 0)[0], Forward)
    gate.handle(Progressed("first", 1), 0)
    lend(gate, 30, 1, elsewhere=70, sequences=3, sequences_elsewhere=2)
    assert isinstance(gate.handle(arrive("second", prompt=16, priority=1), 2)[0], Parked)


def test_of_what_is_kept_less_is_left_if_some_is_free_elsewhere() -> None:
    kept = Kept()
    kept.blocks = [5.0, *kept.blocks[1:-1], 1.0]
    kept.variance, kept.slots = 4.0, 2.0
    less = kept.less(3)
    assert (less.blocks[0], less.blocks[-1], less.variance, less.slots) == (2.0, 0.0, 4.0, 2.0)


@pytest.mark.parametrize("elsewhere", [0, 60])
def test_under_learned_lengths_the_wait_is_that_for_room_in_the_pool(
    make_gate: Maker, arrive: Arriver, elsewhere: int
) -> None:
    gate = make_gate(100, Policy.LEARNED, worthwhile_wait_ns=60 * SECOND, classes={0: ClassLimits(reserved_blocks=10)})
    lend(gate, 40, elsewhere=elsewhere, gates=2)
    for name in ("a", "b", "c"):
        gate.handle(arrive(name, prompt=16 * 8, new=64, paced=True, priority=1), 0)
        gate.handle(Progressed(name, 1), 10)
    footprint = Footprint((Tokens(16 * 60),), Tokens(16))
    wait_ns = gate.parking.wait_for_room_ns(arrive("large", prompt=16 * 60, priority=1), footprint, 20)
    assert wait_ns is not None  # although it is larger than the slice
    command = gate.handle(arrive("large", prompt=16 * 60, priority=1), 20)[-1]
    assert isinstance(command, Parked)


def test_a_fleet_gives_nothing_to_a_member_whose_ledger_is_lost(make_gate: Maker, arrive: Arriver) -> None:
    config = FleetConfig()
    members = [Member(name, make_gate(100), MemberOptions(), config) for name in ("a", "b")]
    fleet = Fleet(members, config)
    for member in members:
        lend(member.gate, 50)
        assert member.in_service
    members[0].gate.handle(Tick(), UNTIL_NS)
    assert not members[0].in_service
    members[1].gate.handle(SliceChanged(Blocks(50), 9, 2 * UNTIL_NS, Blocks(10)), UNTIL_NS)
    assert isinstance(fleet.handle(arrive("first"), UNTIL_NS + 1)[-1], Forward)
    assert len(members[1].gate.ledger) == 1
    members[1].gate.handle(Tick(), 2 * UNTIL_NS)
    refused = fleet.handle(arrive("second"), 2 * UNTIL_NS + 1)[-1]
    assert isinstance(refused, Reject)
    assert (refused.refusal, refused.retry_after_ns) == (Refusal.LEDGER_LOST, 2 * SECOND)  # as of a gate alone


def test_gates_that_share_a_pool_keep_free_what_all_together_need(make_gate: Maker, arrive: Arriver) -> None:
    gate = make_gate(2000, Policy.LEARNED)
    for number in range(40):  # lengths that vary
        gate.handle(arrive(f"old-{number}", prompt=16, new=2000, paced=True), number)
        tokens = 20 + 40 * (number % 20)
        gate.handle(Progressed(f"old-{number}", tokens), number)
        gate.handle(Ended(f"old-{number}", Outcome.FINISHED, Tokens(tokens)), number)
    for number in range(30):
        gate.handle(arrive(f"new-{number}", prompt=16, new=2000, paced=True), 100)
        gate.handle(Progressed(f"new-{number}", 1), 100)
    alone = gate.promised_blocks()
    lend(gate, 2000, 200, elsewhere=6000, gates=4)
    assert gate.learned.part == 0.25
    assert gate.promised_blocks() < 0.95 * alone
    gate.lower_slice(gate.promised_blocks(), 30)
    assert gate.slice_at(100) == (gate.promised_blocks(), 30)
    event, footprint = arrive("more", prompt=160, new=2000, paced=True), Footprint((Tokens(160),), Tokens(2000))
    needed = needed_of_pool(gate, event, footprint, footprint.peak_blocks(uniform_layout(16)), 100)
    assert needed is not None
    assert gate.promised_blocks() < needed <= 2000  # although the others have promised more than there is


def learned_gate(make_gate: Maker, arrive: Arriver, policy: Policy, **more: Any) -> Gate:
    gate = make_gate(100, policy, **more)
    for number in range(8 if policy is Policy.LEARNED else 0):
        gate.handle(arrive(f"old-{number}", new=64, paced=True), 0)
        gate.handle(Progressed(f"old-{number}", 10), 0)
        gate.handle(Ended(f"old-{number}", Outcome.FINISHED, Tokens(10)), 0)
    return gate


@pytest.mark.parametrize("policy", list(Policy))
def test_while_the_ledger_settles_who_comes_waits_for_that_and_is_let_in(
    make_gate: Maker, arrive: Arriver, policy: Policy
) -> None:
    """Longer than is worth waiting otherwise: no other gate of this pool lets anybody in either."""
    gate = learned_gate(make_gate, arrive, policy)
    assert gate.promises.by_lengths == (policy is Policy.LEARNED)
    lend(gate, 0, settling=True, opens_ns=5 * SECOND)
    for number in range(3):
        assert isinstance(gate.handle(arrive(f"new-{number}", prompt=160), number)[-1], Parked)
    assert gate.handle(Tick(), 5 * SECOND - 1) == []
    commands = lend(gate, 50, 5 * SECOND)
    assert [type(command) for command in commands] == [Forward] * 3


@pytest.mark.parametrize("policy", list(Policy))
def test_while_the_ledger_settles_who_may_not_wait_is_told_when_it_is_done(
    make_gate: Maker, arrive: Arriver, policy: Policy
) -> None:
    gate = learned_gate(make_gate, arrive, policy, queue_requests=0)
    lend(gate, 0, settling=True, opens_ns=5 * SECOND)
    for now_ns in (1, 2 * SECOND):
        (refused,) = gate.handle(arrive(f"at-{now_ns}", prompt=160), now_ns)
        assert isinstance(refused, Reject)
        assert 5 * SECOND - now_ns <= refused.retry_after_ns <= 6 * SECOND - now_ns
        assert refused.settling
    lend(gate, 50, 3 * SECOND)
    assert isinstance(gate.handle(arrive("at-3", prompt=160), 3 * SECOND)[-1], Forward)


def test_who_has_less_time_than_the_ledger_needs_to_settle_is_told_at_once(make_gate: Maker, arrive: Arriver) -> None:
    gate = learned_gate(make_gate, arrive, Policy.LEARNED)
    lend(gate, 0, settling=True, opens_ns=5 * SECOND)
    (refused,) = gate.handle(arrive("hurried", prompt=160, deadline_ns=2 * SECOND), 1)
    assert isinstance(refused, Reject)
    assert refused.retry_after_ns >= 4 * SECOND


@pytest.mark.parametrize("policy", list(Policy))
def test_who_has_to_leave_room_for_others_is_held_back_whatever_the_slice(
    make_gate: Maker, arrive: Arriver, policy: Policy
) -> None:
    gate = make_gate(100, policy, max_num_seqs=8)
    for name in ("a", "b", "lives"):
        gate.handle(arrive(name, prompt=16 * 9, new=16), 0)
        gate.handle(Progressed(name, 1), 0)
    for name in ("a", "b"):
        gate.handle(Ended(name, Outcome.FINISHED, Tokens(12)), SECOND)
    gate.handle(SliceChanged(Blocks(12), 1, 60 * SECOND, Blocks(20), 2), SECOND)
    event = arrive("waits", prompt=16 * 29, new=16)
    footprint = Footprint((Tokens(16 * 29),), Tokens(16))
    waiting = Waiting(event, footprint, footprint.peak_blocks(uniform_layout(16)), SECOND, 60 * SECOND, (0, 9))
    needed = needed_of_pool(gate, event, footprint, waiting.peak_blocks, SECOND)
    assert needed is not None
    assert needed <= 40

    def is_held(blocks: float, slots: float, needs: Blocks | None = needed) -> bool:
        kept = Kept()
        kept.blocks, kept.slots = [blocks] * len(GRID), slots
        return has_to_leave(gate, waiting, needs, lambda: kept if blocks or slots else None, SECOND)

    assert not is_held(0, 0)
    assert not is_held(39, 4)
    assert is_held(80, 0)
    assert is_held(0, 5)
    assert not is_held(80, 5, None)  # there is no room for it in all of the pool: it waits for that
    assert not is_held(80, 5, Blocks(81))
    gate.handle(Ended("lives", Outcome.FINISHED, Tokens(12)), SECOND)
    assert not is_held(80, 5)  # an empty pool keeps nobody waiting
    assert gate.slice_at(SECOND) == (12, 1)
