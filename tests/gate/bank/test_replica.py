"""When a gate that shares its pool calls the bank, and what it goes by meanwhile (`gate.bank.replica`)."""

from collections.abc import Callable

import pytest

from kvbudget.gate.bank.bank import Bank
from kvbudget.gate.bank.branch import Branch
from kvbudget.gate.bank.replica import ASK_AGAIN_NS, BACK_OFF_NS, BEAT_NS, GAP_NS, TIDY_NS, Replica
from kvbudget.gate.bank.terms import BLOCKS, SEQUENCES, TENANT, TOKENS, Call, Line
from kvbudget.gate.commands import Command, Forward, Parked, Reject
from kvbudget.gate.events import Arrived, Ended, Progressed, RoomTaken, SliceChanged, Tick
from kvbudget.gate.gate import Gate
from kvbudget.gate.policies import Policy
from kvbudget.gate.refusing.refusals import Outcome, Refusal
from kvbudget.gate.tenants.settings import TenantLimits
from kvbudget.units import Blocks, Tokens

SECOND = 10**9
MS = 10**6
LEASE_NS = 4 * SECOND
RETRY_NS = LEASE_NS // 8

Maker = Callable[..., Gate]
Arriver = Callable[..., Arrived]


def replica_of(gate: Gate, name: str = "a", now_ns: int = 0) -> Replica:
    replica = Replica(gate, Branch(name, LEASE_NS), now_ns)
    gate.handle(replica.first, now_ns)
    return replica


def exchange(replica: Replica, bank: Bank, call: Call | None, now_ns: int) -> list[Command]:
    """Call and answer at once."""
    assert call is not None
    answer, _ = bank.call(call, now_ns // MS)
    assert answer is not None
    event = replica.heard(answer, now_ns)
    assert event is not None
    return replica.gate.handle(event, now_ns)


def comes(replica: Replica, bank: Bank, event: Arrived, now_ns: int) -> Command:
    """As its driver does it: the bank is asked before, where that is worth it."""
    call = replica.call_for([event], now_ns)
    if call is not None:
        exchange(replica, bank, call, now_ns)
    return replica.gate.handle(event, now_ns)[-1]


def misses(replica: Replica) -> bool:
    return replica.branch.missing


def line_of(call: Call | None, account: str = BLOCKS) -> Line:
    assert call is not None
    return next(line for line in call.lines if line.account == account)


def test_what_a_gate_no_longer_keeps_is_not_promised_while_the_call_is_under_way(
    make_gate: Maker, arrive: Arriver
) -> None:
    gate, bank = make_gate(100), Bank()
    replica = replica_of(gate)
    assert isinstance(comes(replica, bank, arrive("first", prompt=16 * 50), 0), Forward)
    gate.handle(Ended("first", Outcome.FINISHED), 10 * MS)
    call = replica.called(20 * MS)  # another gate lacks something
    assert line_of(call).keeps == 0
    assert gate.slice_at(20 * MS) == (0, 0)
    assert isinstance(gate.handle(arrive("second"), 21 * MS)[0], Parked)


def test_what_is_promised_when_a_slice_is_lowered_goes_on_being_enough(make_gate: Maker, arrive: Arriver) -> None:
    gate, bank = make_gate(100, Policy.TRAJECTORY, lag_steps=16), Bank()
    replica = replica_of(gate)
    for name in ("a", "b"):
        comes(replica, bank, arrive(name, prompt=16 * 10, new=16 * 10, paced=True), 0)
    gate.handle(Progressed("a", 1), 1 * MS)
    gate.handle(Progressed("b", 1), 1 * MS)
    for step in range(1, 10):
        gate.handle(Progressed("a", 16), step * 10 * MS)
    gate.handle(Progressed("b", 140), 100 * MS)  # both are nearly done
    kept = line_of(replica.called(100 * MS)).keeps
    assert gate.slice_at(100 * MS)[0] == kept == gate.promised_blocks()
    gate.handle(Ended("a", Outcome.FINISHED), 110 * MS)
    assert gate.promised_blocks() <= kept


def test_the_bank_is_asked_before_one_is_parked_who_only_lacks_a_slice(make_gate: Maker, arrive: Arriver) -> None:
    gate, bank = make_gate(100), Bank()
    replica = replica_of(gate)
    call = replica.call_for([arrive("first", prompt=16 * 40, new=16)], 0)
    assert (line_of(call).needs, line_of(call, SEQUENCES).needs) == (41, 1)
    under_way = replica.is_calling
    assert replica.call_for([arrive("second")], 0) is None  # one call at a time
    exchange(replica, bank, call, 0)
    assert (under_way, replica.is_calling) == (True, False)
    assert isinstance(gate.handle(arrive("first", prompt=16 * 40, new=16), 0)[0], Forward)
    assert not replica.lacks_slice(arrive("third", prompt=8, new=8), 0)  # it fits the reserve


def test_several_who_come_are_asked_for_together(make_gate: Maker, arrive: Arriver) -> None:
    replica = replica_of(make_gate(100))
    comers = [arrive("one", prompt=16), arrive("two", prompt=32), arrive("none", prompt=16 * 500)]
    call = replica.call_for(comers, 0)
    assert line_of(call).needs == 2 + 3
    assert line_of(call, SEQUENCES).needs == 2


def test_the_bank_is_not_asked_for_who_would_wait_or_be_refused_anyway(make_gate: Maker, arrive: Arriver) -> None:
    gate, bank = make_gate(10), Bank()
    replica = replica_of(gate)
    assert replica.call_for([arrive("never", prompt=16 * 50)], 0) is None
    comes(replica, bank, arrive("first", prompt=16 * 8, new=16), 0)
    assert replica.call_for([arrive("second", prompt=16 * 8)], 0) is None  # the pool has no room for it
    gate.handle(arrive("second", prompt=16 * 8), 0)
    assert replica.call_for([arrive("third", prompt=1, new=1)], 0) is None  # somebody waits


def test_while_nothing_is_short_a_change_is_told_soon_and_silence_is_broken_in_time(
    make_gate: Maker, arrive: Arriver
) -> None:
    gate, bank = make_gate(1000), Bank()
    replica = replica_of(gate)
    exchange(replica, bank, replica.due(0), 0)
    assert replica.due(1 * MS) is None
    assert replica.next_wake_ns == min(LEASE_NS // 3, BEAT_NS)
    gate.handle(arrive("first", prompt=16), 1 * MS)
    assert replica.due(2 * MS) is None
    assert replica.next_wake_ns == TIDY_NS
    exchange(replica, bank, replica.due(TIDY_NS), TIDY_NS)
    assert replica.due(TIDY_NS + 1) is None
    assert replica.next_wake_ns == TIDY_NS + min(LEASE_NS // 3, BEAT_NS)
    assert replica.due(TIDY_NS + LEASE_NS // 3) is not None


def test_when_somebody_waits_each_change_is_told_at_once(make_gate: Maker, arrive: Arriver) -> None:
    gate, bank = make_gate(10), Bank()
    replica = replica_of(gate)
    comes(replica, bank, arrive("first", prompt=16 * 8, new=16), 0)
    gate.handle(arrive("second", prompt=16 * 8, new=16, priority=3), 10 * MS)
    call = replica.due(10 * MS + GAP_NS)
    assert call is not None
    assert (line_of(call).keeps, line_of(call).needs, call.priority, call.waited_ms) == (9, 10, 3, 1)
    exchange(replica, bank, call, 12 * MS)
    assert replica.due(13 * MS) is None
    again_ns = 10 * MS + GAP_NS + ASK_AGAIN_NS
    assert replica.next_wake_ns == again_ns
    assert line_of(replica.due(again_ns)).needs == 10


def test_a_call_without_an_answer_is_made_again(make_gate: Maker) -> None:
    replica = replica_of(make_gate(10))
    first = replica.due(0)
    assert first is not None
    assert replica.next_wake_ns == RETRY_NS
    assert replica.due(RETRY_NS - 1) is None
    again = replica.due(RETRY_NS)
    assert again is not None
    assert again.number == first.number + 1
    answer, _ = Bank().call(first, 0)
    assert answer is not None
    assert replica.heard(answer, RETRY_NS + 1) is None  # it is too late


def test_after_a_call_that_failed_there_is_a_pause(make_gate: Maker, arrive: Arriver) -> None:
    replica = replica_of(make_gate(10))
    call = replica.due(0)
    assert call is not None
    replica.failed(call, 5 * MS)
    assert replica.next_wake_ns == 5 * MS + BACK_OFF_NS
    assert replica.due(6 * MS) is None
    assert replica.call_for([arrive("first")], 6 * MS) is None
    assert replica.called(6 * MS) is None
    assert replica.due(5 * MS + BACK_OFF_NS) is not None


def test_a_gate_that_is_called_while_it_calls_calls_again(make_gate: Maker, arrive: Arriver) -> None:
    gate, bank = make_gate(100), Bank()
    replica = replica_of(gate)
    call = replica.call_for([arrive("first", prompt=16 * 50)], 0)
    assert replica.called(0) is None
    exchange(replica, bank, call, 1 * MS)
    assert line_of(replica.due(1 * MS)).keeps == 0  # the other gate lacks what is idle here


def test_what_lies_idle_is_given_back_as_soon_as_it_is_known_that_another_lacks_something(
    make_gate: Maker, arrive: Arriver
) -> None:
    gate, bank = make_gate(100), Bank()
    ours, other = replica_of(gate), replica_of(make_gate(100), "b")
    comes(ours, bank, arrive("first", prompt=16 * 50), 0)
    gate.handle(Ended("first", Outcome.FINISHED), 1 * MS)
    call = other.call_for([arrive("second", prompt=16 * 80)], 2 * MS)
    assert call is not None
    bank.call(call, 2)  # and the bank's word to us is lost
    exchange(ours, bank, ours.due(TIDY_NS), TIDY_NS)
    soon_ns = TIDY_NS + GAP_NS
    assert line_of(ours.due(soon_ns)).keeps == 0


def test_who_is_granted_what_was_not_enough_asks_for_more(make_gate: Maker, arrive: Arriver) -> None:
    gate, bank = make_gate(200, Policy.TRAJECTORY), Bank()
    replica = replica_of(gate)
    gate.handle(arrive("first", prompt=16 * 32, new=16), 0)
    exchange(replica, bank, replica.due(0), 0)
    assert gate.promised_blocks() == 33
    gate.handle(RoomTaken(gate.ledger.usable_blocks), 0)  # of which the gate itself knows nothing when it shares
    gate.handle(arrive("second", prompt=16 * 160, new=16), 0)
    assert line_of(replica.due(1 * MS)).needs == 33 + 161
    replica.branch.slices[BLOCKS] = 199
    replica.branch.failed()
    assert line_of(replica.called(2 * MS)).needs == 33 + 161  # never more than all at their peaks


def test_who_got_what_it_asked_for_and_still_waits_asks_again_soon(make_gate: Maker, arrive: Arriver) -> None:
    gate, bank = make_gate(200, Policy.TRAJECTORY), Bank()
    replica = replica_of(gate)
    gate.handle(arrive("first", prompt=16 * 32, new=16), 0)
    exchange(replica, bank, replica.due(0), 0)
    gate.handle(arrive("second", prompt=16 * 160, new=16), 0)
    assert line_of(replica.due(1 * MS)).needs == 33 + 161
    replica.branch.failed()
    assert replica.due(60 * MS) is None
    replica.branch.slices[BLOCKS] = 33 + 161
    assert replica.due(40 * MS) is None
    assert replica.due(51 * MS) is not None


@pytest.mark.parametrize(
    ("policy", "prompt", "sequences", "limits"),
    [
        (Policy.WORST_CASE, 16 * 62, 1, {}),
        (Policy.WORST_CASE, 16 * 2, 2, {"max_num_seqs": 5}),
    ],
)
def test_nothing_is_asked_for_one_who_has_to_leave_room_for_others_until_that_has_faded(
    make_gate: Maker, arrive: Arriver, policy: Policy, prompt: int, sequences: int, limits: dict[str, int]
) -> None:
    """Otherwise it is lent what it makes no use of, again and again, and other gates lack it."""
    gate, bank = make_gate(100, policy, queue_ns=1000 * SECOND, worthwhile_wait_ns=1000 * SECOND, **limits), Bank()
    replica = replica_of(gate)
    comes(replica, bank, arrive("lives", prompt=16 * 9, new=100, priority=1), 0)
    gate.handle(Progressed("lives", 1), 0)
    now_ns = 0
    for number in range(80):  # of a more urgent class four at a time
        now_ns += 250 * MS
        assert isinstance(comes(replica, bank, arrive(f"urgent{number}", prompt=16 * 7, new=16), now_ns), Forward)
        for living in [one for one in gate.ledger if one.reservation_id != "lives"]:
            if living.seen_tokens < 3:
                gate.handle(Progressed(living.reservation_id, 1), now_ns)
            else:
                gate.handle(Ended(living.reservation_id, Outcome.FINISHED, Tokens(3)), now_ns)
        call = replica.due(now_ns)
        if call is not None:
            exchange(replica, bank, call, now_ns)
    for living in [one for one in gate.ledger if one.reservation_id != "lives"]:
        gate.handle(Ended(living.reservation_id, Outcome.FINISHED, Tokens(3)), now_ns)
    now_ns += 100 * MS  # what is kept for others is reckoned anew
    waits = arrive("waits", prompt=prompt, new=16, priority=1, sequences=sequences)
    assert isinstance(gate.handle(waits, now_ns)[-1], Parked)
    asked = []
    while gate.queue:
        now_ns += 125 * MS
        gate.handle(Tick(), now_ns)
        call = replica.due(now_ns)
        if call is not None:
            line = line_of(call)
            asked.append(line.needs > line.promised)
            exchange(replica, bank, call, now_ns)
            assert replica.next_wake_ns - now_ns <= ASK_AGAIN_NS
    assert sum(asked) <= 4 < len(asked) / 2
    assert gate.ledger.get("waits") is not None


def test_who_comes_when_it_was_told_has_waited_longer_than_those_who_wait_at_other_gates(
    make_gate: Maker, arrive: Arriver
) -> None:
    gates, bank = [make_gate(100, Policy.LEARNED) for _ in range(3)], Bank()
    replicas = [replica_of(gate, f"gate {number}") for number, gate in enumerate(gates)]
    assert isinstance(comes(replicas[0], bank, arrive("holds", prompt=16 * 90), 0), Forward)
    event = arrive("back", prompt=16 * 50, new=16)
    due_ns = gates[1].returns.tell(event, 4 * SECOND, 96 * SECOND, 50, 51, 7, 0)
    now_ns = due_ns - 3 * SECOND
    comes(replicas[2], bank, arrive("waits", prompt=16 * 50, new=16), now_ns)
    while now_ns < due_ns:  # leases are renewed
        now_ns += 500 * MS
        for replica in replicas:
            call = replica.due(now_ns)
            if call is not None:
                exchange(replica, bank, call, now_ns)
    assert isinstance(comes(replicas[1], bank, event, now_ns), Parked)
    call = replicas[1].due(now_ns + MS)
    assert call is not None
    assert call.waited_ms > 20_000
    exchange(replicas[1], bank, call, now_ns + MS)
    gates[0].handle(Ended("holds", Outcome.FINISHED), now_ns + 2 * MS)
    for number in (0, 2, 1):  # who has waited for 3 s asks first, and it is not its turn
        call = replicas[number].called(now_ns + (3 + number) * MS)
        exchange(replicas[number], bank, call, now_ns + (3 + number) * MS)
    assert gates[1].ledger.get("back") is not None
    assert gates[2].ledger.get("waits") is None


def test_only_a_lone_gate_overlooks_what_others_took_of_the_pool(make_gate: Maker, arrive: Arriver) -> None:
    gate, bank = make_gate(100), Bank()
    replica = replica_of(gate)
    gate.handle(RoomTaken(gate.ledger.usable_blocks), 0)
    assert isinstance(comes(replica, bank, arrive("first"), 0), Forward)
    assert line_of(replica.called(10 * MS)).limit == 0


def test_what_was_given_to_others_after_a_lease_is_overdrawn(make_gate: Maker, arrive: Arriver) -> None:
    gate, bank = make_gate(100), Bank()
    ours, other = replica_of(gate), replica_of(make_gate(100), "b")
    comes(ours, bank, arrive("first", prompt=16 * 59, new=16), 0)
    assert ours.overdrawn_blocks == 0
    exchange(other, bank, other.due(3 * SECOND), 3 * SECOND)
    exchange(other, bank, other.called(LEASE_NS), LEASE_NS)
    assert misses(other)
    ours.looked(Blocks(60), 1, LEASE_NS)  # nobody is missing by what it knows
    other.looked(Blocks(0), 0, LEASE_NS + MS)
    exchange(other, bank, other.due(LEASE_NS + 2 * MS), LEASE_NS + 2 * MS)
    assert not misses(other)
    exchange(
        other, bank, other.call_for([arrive("second", prompt=16 * 79, new=16)], LEASE_NS + 4 * MS), LEASE_NS + 4 * MS
    )
    late_ns = LEASE_NS + 5 * MS
    (refused,) = gate.handle(arrive("late"), late_ns)
    assert isinstance(refused, Reject)
    assert refused.refusal is Refusal.LEDGER_LOST
    exchange(ours, bank, ours.due(late_ns), late_ns)
    assert not gate.ledger_lost
    assert ours.overdrawn_blocks == 60 - 19  # and one that the other has in reserve
    assert ours.promised_elsewhere == 0
    assert ours.sequences_elsewhere == 0


def test_a_gate_that_leaves_promises_nothing_more(make_gate: Maker, arrive: Arriver) -> None:
    gate, bank = make_gate(100), Bank()
    replica = replica_of(gate)
    exchange(replica, bank, replica.due(0), 0)
    call = replica.leave(1 * MS)
    assert call.leaves
    assert gate.slice_at(1 * MS) == (0, 0)
    assert isinstance(gate.handle(arrive("first"), 2 * MS)[0], Parked)


def test_without_a_bank_a_gate_may_go_by_an_equal_part_of_the_pool(make_gate: Maker, arrive: Arriver) -> None:
    gate, bank = make_gate(100, max_num_seqs=9), Bank()
    replica, other = replica_of(gate), replica_of(make_gate(100), "b")
    exchange(other, bank, other.due(0), 0)
    exchange(replica, bank, replica.due(0), 0)
    lost_ns = LEASE_NS + 1
    gate.handle(replica.alone(lost_ns), lost_ns)
    assert gate.slice_at(lost_ns) == (50, 4)
    assert replica.due(lost_ns) is not None  # it goes on calling
    assert gate.slice_at(lost_ns) == (50, 4)
    assert isinstance(gate.handle(arrive("first", prompt=16 * 30), lost_ns)[0], Forward)


def test_blocks_of_tenants_with_a_limit_are_told_to_the_others_and_count_there(
    make_gate: Maker, arrive: Arriver
) -> None:
    tenants = {"named": TenantLimits(max_blocks=Blocks(30)), "*": TenantLimits(max_blocks=Blocks(40))}
    tenants["unlimited"] = TenantLimits()
    ours, other = (make_gate(100, tenants=tenants) for _ in range(2))
    bank = Bank()
    here, there = replica_of(ours), replica_of(other, "b")
    for replica in (here, there):
        exchange(replica, bank, replica.due(0), 0)
    comes(here, bank, arrive("first", prompt=16 * 19, new=16, tenant="named"), MS)
    call = here.due(TIDY_NS + 2 * MS)
    told = line_of(call, TENANT + "named")
    assert (told.limit, told.keeps, told.needs, told.promised) == (30, 20, 0, 20)
    exchange(here, bank, call, TIDY_NS + 2 * MS)
    exchange(there, bank, there.due(SECOND), SECOND)
    assert isinstance(comes(there, bank, arrive("third", prompt=16 * 9, new=16, tenant="named"), SECOND), Forward)
    assert isinstance(comes(there, bank, arrive("second", prompt=16 * 14, new=16, tenant="named"), SECOND), Parked)
    comes(there, bank, arrive("fourth", prompt=16 * 9, new=16, tenant="any"), SECOND)
    other.handle(arrive("free", prompt=16 * 9, new=16, tenant="unlimited"), SECOND)
    call = there.due(2 * SECOND)
    assert line_of(call, TENANT + "any").promised == 10
    assert line_of(call, TENANT + "named").promised == 10
    exchange(there, bank, call, 2 * SECOND)
    ours.handle(Ended("first", Outcome.FINISHED), 2 * SECOND)
    exchange(here, bank, here.due(3 * SECOND), 3 * SECOND)
    assert "second" in other.queue
    exchange(there, bank, there.due(3 * SECOND + MS), 3 * SECOND + MS)
    assert "second" not in other.queue


def test_tokens_of_a_minute_are_told_to_the_others_who_are_asked_before_more_than_a_part_is_taken(
    make_gate: Maker, arrive: Arriver
) -> None:
    tenants = {"named": TenantLimits(tokens_per_minute=Tokens(1000))}
    ours, other = (make_gate(10_000, tenants=tenants) for _ in range(2))
    bank = Bank()
    here, there = replica_of(ours), replica_of(other, "b")
    for replica in (here, there, here):
        exchange(replica, bank, replica.called(0), 0)
    assert isinstance(comes(here, bank, arrive("first", prompt=300, new=100, tenant="named"), MS), Forward)
    call = here.due(TIDY_NS + 2 * MS)
    told = line_of(call, TOKENS + "named")
    assert (told.limit, told.keeps, told.needs) == (0, told.promised, 0)
    assert 300 < told.promised <= 400
    exchange(here, bank, call, TIDY_NS + 2 * MS)
    exchange(there, bank, there.due(SECOND), SECOND)
    assert other.fairness.limits is not None
    per_minute, left = other.fairness.limits.tokens_left("named", SECOND) or (0, 0)
    assert per_minute == 1000
    assert 590 <= left <= 640
    assert isinstance(comes(there, bank, arrive("second", prompt=150, new=50, tenant="named"), SECOND), Forward)
    third = arrive("third", prompt=250, new=50, tenant="named")  # with the second, more than half of what is left
    assert there.lacks_slice(third, SECOND)
    call = there.call_for([third], SECOND + MS)
    exchange(there, bank, call, SECOND + MS)
    assert not there.lacks_slice(third, SECOND + MS)
    assert isinstance(comes(there, bank, third, SECOND + MS), Forward)
    fourth = arrive("fourth", prompt=250, new=50, tenant="named")  # there is nothing left, so asking is of no use
    assert not there.lacks_slice(fourth, SECOND + 2 * MS)
    assert isinstance(comes(there, bank, fourth, SECOND + 2 * MS), Reject)


def test_who_comes_for_what_another_just_took_of_the_last_word_waits_for_the_next_while_the_ledger_answers(
    make_gate: Maker, arrive: Arriver
) -> None:
    tenants = {"named": TenantLimits(tokens_per_minute=Tokens(1000))}
    gate, bank = make_gate(10_000, tenants=tenants), Bank()
    here, there = replica_of(gate), replica_of(make_gate(10_000, tenants=tenants), "b")
    for replica in (here, there, here):
        exchange(replica, bank, replica.called(0), 0)
    second = arrive("second", prompt=300, new=100, tenant="named")
    assert not here.lacks_word(second, MS)  # nothing was taken since the others were heard of
    assert isinstance(comes(here, bank, arrive("first", prompt=300, new=100, tenant="named"), MS), Forward)
    assert here.lacks_word(second, MS)
    assert not here.lacks_word(arrive("third", prompt=300, new=100, tenant="another"), MS)
    call = here.called(2 * MS)
    assert call is not None
    here.failed(call, 2 * MS)
    assert not here.lacks_word(second, 3 * MS)  # there is none to wait for during the pause


def test_one_of_several_engines_tells_of_the_tenants(make_gate: Maker) -> None:
    gate = make_gate(100, tenants={"named": TenantLimits(max_blocks=Blocks(30))})
    replica = Replica(gate, Branch("a", LEASE_NS), 0, tells_tenants=False)
    gate.handle(replica.first, 0)
    call = replica.due(0)
    assert call is not None
    assert [line.account for line in call.lines] == [BLOCKS, SEQUENCES]
    plain = Replica(make_gate(100), Branch("b", LEASE_NS), 0)
    assert len(plain.due(0).lines) == 2  # type: ignore[union-attr]


def told(call: Call | None) -> int:
    """Blocks that a call tells of as promised."""
    assert call is not None
    return {line.account: line.promised for line in call.lines}[BLOCKS]


def test_while_there_is_plenty_the_bank_is_told_the_sum_of_all_peaks_and_nobody_looks_at_lengths(
    make_gate: Callable[..., Gate], arrive: Callable[..., Arrived]
) -> None:
    gate, bank = make_gate(1000, policy=Policy.LEARNED), Bank()
    replica = replica_of(gate)
    for number in range(4):
        event = arrive(f"r{number}", prompt=16 * 10, new=16 * 30, paced=True)
        call = replica.call_for([event], 0)
        if call is not None:
            assert {line.account: line.needs for line in call.lines}[BLOCKS] == 40 * (number + 1)
            exchange(replica, bank, call, 0)
        (forward,) = gate.handle(event, 0)
        assert isinstance(forward, Forward)
    assert told(replica.due(SECOND)) == gate.ledger.peak_sum_blocks == 160
    assert gate.learned.batch._stale  # and so it costs nothing with the requests to come


def test_where_room_is_scarce_it_is_told_what_is_promised_by_learned_lengths(
    make_gate: Callable[..., Gate], arrive: Callable[..., Arrived]
) -> None:
    gate, bank = make_gate(100, policy=Policy.LEARNED), Bank()
    replica = replica_of(gate)
    for number in range(2):
        event = arrive(f"r{number}", prompt=16 * 10, new=16 * 30, paced=True)
        exchange(replica, bank, replica.call_for([event], 0), 0)
        gate.handle(event, 0)
    assert gate.ledger.peak_sum_blocks == 80
    assert told(replica.due(SECOND)) == gate.promised_blocks() < 80


def test_one_for_whom_the_slice_is_enough_is_not_asked_for(
    make_gate: Callable[..., Gate], arrive: Callable[..., Arrived]
) -> None:
    gate, bank = make_gate(100), Bank()
    replica = replica_of(gate)
    exchange(replica, bank, replica.call_for([arrive("first", prompt=16 * 20)], 0), 0)
    assert not replica.lacks_slice(arrive("first", prompt=16 * 20), MS)
    assert replica.call_for([arrive("first", prompt=16 * 20)], MS) is None
    assert replica.lacks_slice(arrive("larger", prompt=16 * 40), MS)


def test_one_who_fits_the_slice_by_learned_lengths_is_not_asked_for(make_gate: Maker, arrive: Arriver) -> None:
    gate = make_gate(100, policy=Policy.LEARNED)
    replica = replica_of(gate)
    gate.handle(SliceChanged(Blocks(60), 256, 1000 * SECOND, Blocks(0)), 0)
    for number in range(60):
        gate.handle(arrive(f"short{number}", prompt=16, new=16 * 30), number * MS)
        gate.handle(Ended(f"short{number}", Outcome.FINISHED, Tokens(2)), number * MS)
    gate.handle(arrive("first", prompt=16 * 2, new=16 * 30), SECOND)
    second = arrive("second", prompt=16 * 2, new=16 * 30)
    assert gate.ledger.peak_sum_blocks + 32 > gate.ledger.capacity_blocks
    assert not replica.lacks_slice(second, SECOND)
    (forward,) = gate.handle(second, SECOND)
    assert isinstance(forward, Forward)


def test_what_changes_between_two_calls_that_are_not_urgent_is_told_by_the_next(
    make_gate: Maker, arrive: Arriver
) -> None:
    gate, bank = make_gate(100), Bank()
    replica = replica_of(gate)
    assert isinstance(comes(replica, bank, arrive("first", prompt=16 * 20), 0), Forward)
    exchange(replica, bank, replica.due(TIDY_NS), TIDY_NS)
    gate.handle(Ended("first", Outcome.FINISHED), TIDY_NS + MS)
    for passed_ms in (2, 3, 4):
        assert replica.due(TIDY_NS + passed_ms * MS) is None
    assert replica.next_wake_ns == 2 * TIDY_NS
    assert line_of(replica.due(2 * TIDY_NS)).promised == 0
