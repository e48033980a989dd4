"""When a gate that shares its pool calls the bank, and what it goes by meanwhile (`gate.bank.replica`)."""

from collections.abc import Callable

from kvbudget.gate.bank.bank import Bank
from kvbudget.gate.bank.branch import Branch
from kvbudget.gate.bank.replica import Replica
from kvbudget.gate.bank.terms import BLOCKS, Call
from kvbudget.gate.commands import Forward, Parked
from kvbudget.gate.events import Arrived, Ended
from kvbudget.gate.gate import Gate
from kvbudget.gate.policies import Policy
from kvbudget.gate.refusals import Outcome

SECOND = 10**9
MS = 10**6
LEASE_NS = 3 * SECOND


def replica_of(gate: Gate, name: str = "a", now_ns: int = 0) -> Replica:
    replica = Replica(gate, Branch(name, LEASE_NS), now_ns)
    gate.handle(replica.first, now_ns)
    return replica


def exchange(replica: Replica, bank: Bank, call: Call | None, now_ns: int) -> list[object]:
    """Call and answer at once."""
    assert call is not None
    answer, _ = bank.call(call, now_ns // MS)
    assert answer is not None
    event = replica.heard(answer, now_ns)
    assert event is not None
    return list(replica.gate.handle(event, now_ns))


def test_what_a_gate_no_longer_keeps_is_not_promised_while_the_call_is_under_way(
    make_gate: Callable[..., Gate], arrive: Callable[..., Arrived]
) -> None:
    gate, bank = make_gate(100), Bank()
    replica = replica_of(gate)
    exchange(replica, bank, replica.call_for([arrive("first", prompt=16 * 50)], 0) or replica.due(0), 0)
    (forward,) = gate.handle(arrive("first", prompt=16 * 50), 0)
    assert isinstance(forward, Forward)
    gate.handle(Ended("first", Outcome.FINISHED), 10 * MS)
    call = replica.called(20 * MS)  # another gate lacks something
    assert call is not None
    assert {line.account: line.keeps for line in call.lines}[BLOCKS] == 0
    assert gate.slice_at(20 * MS) == (0, 0)
    (parked,) = gate.handle(arrive("second"), 21 * MS)
    assert isinstance(parked, Parked)


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
