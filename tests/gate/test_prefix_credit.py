"""A prompt's blocks that others hold are not reserved again; wrong guesses are charged at once and remembered."""

from collections.abc import Callable

import pytest

from kvbudget.gate.commands import Forward, Parked
from kvbudget.gate.events import Arrived, CacheChanged, CapacityChanged, Ended, Preempted, Progressed, Tick
from kvbudget.gate.gate import RECHECK_NS, Gate
from kvbudget.gate.policies import Policy
from kvbudget.gate.refusing.refusals import Outcome
from kvbudget.gate.trust import FIRST
from kvbudget.pool.groups import uniform_layout
from kvbudget.pool.prefix import Sharing
from kvbudget.units import Blocks, Tokens

PREFIX = (1, 2, 3, 4)  # four blocks of 16 tokens; each prompt has one token more
PROMPT = 65
NEW = 15  # so that each has one block of its own

MakeGate = Callable[..., Gate]
Arrive = Callable[..., Arrived]


def forwarded(gate: Gate, event: Arrived, now_ns: int = 0) -> Forward:
    (command,) = gate.handle(event, now_ns)
    assert isinstance(command, Forward)
    return command


@pytest.mark.parametrize("policy", [Policy.WORST_CASE, Policy.TRAJECTORY])
def test_what_others_hold_is_not_reserved_again(make_gate: MakeGate, arrive: Arrive, policy: Policy) -> None:
    gate = make_gate(7, policy, sharing=Sharing.SCHEDULED)
    reserved = [forwarded(gate, arrive(name, PROMPT, NEW, prefix=PREFIX)).reserved_blocks for name in "abc"]
    assert (reserved, gate.promised_blocks(), gate.free_blocks()) == ([5, 1, 1], 7, 0)
    assert isinstance(gate.handle(arrive("d", PROMPT, NEW, prefix=PREFIX), 0)[0], Parked)
    assert gate.ledger.peak_sum_blocks == 7  # who waits holds nothing
    (next_one,) = gate.handle(Ended("a", Outcome.FINISHED), 1)
    assert isinstance(next_one, Forward)
    for name in "bcd":
        gate.handle(Ended(name, Outcome.FINISHED), 2)
    assert gate.promised_blocks() == gate.ledger.peak_sum_blocks == 0


def test_without_a_prefix_cache_nothing_is_credited(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(10, sharing=Sharing.OFF)
    assert [forwarded(gate, arrive(name, PROMPT, NEW, prefix=PREFIX)).reserved_blocks for name in "ab"] == [5, 5]


def test_unless_told_otherwise_only_what_is_computed_is_credited(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(20)
    assert [forwarded(gate, arrive(name, PROMPT, NEW, prefix=PREFIX)).reserved_blocks for name in "ab"] == [5, 5]
    gate.handle(CacheChanged(stored=(9, *PREFIX[:3])), 0)
    gate.handle(CacheChanged(removed=(9, 3)), 0)
    assert forwarded(gate, arrive("c", PROMPT, NEW, prefix=PREFIX)).reserved_blocks == 3 + 0  # two copies may be held
    gate.handle(CacheChanged(cleared=True), 0)
    assert len(gate.cached) == 0


def test_tenants_share_what_is_promised_without_counting_it_twice(make_gate: MakeGate, arrive: Arrive) -> None:
    for policy in (Policy.WORST_CASE, Policy.TRAJECTORY):
        gate = make_gate(100, policy, sharing=Sharing.SCHEDULED, fair=False)
        for tenant, name, new in (("x", "a", 15), ("y", "b", 31), ("y", "c", 15)):
            gate.handle(arrive(name, PROMPT, new, prefix=PREFIX, tenant=tenant, paced=name != "c"), 0)
        assert sum(gate.promised_by_tenant().values()) == gate.promised_blocks() == 4 + 1 + 2 + 1


@pytest.mark.parametrize("at_the_end", [False, True])
def test_less_reused_than_credited_is_charged_at_once(make_gate: MakeGate, arrive: Arrive, at_the_end: bool) -> None:
    gate = make_gate(7, Policy.TRAJECTORY, sharing=Sharing.SCHEDULED)
    for name in "ab":
        forwarded(gate, arrive(name, PROMPT, NEW, prefix=PREFIX, paced=True))
    forwarded(gate, arrive("c", 15, 1, paced=True))
    assert not gate.free_blocks()
    gate.handle(Progressed("a", 1), 1)
    if at_the_end:
        gate.handle(Ended("b", Outcome.FINISHED, cached_tokens=Tokens(16)), 1)
        assert gate.promised_blocks() == 6  # it is gone, and with it what it had to compute again
    else:
        gate.handle(Progressed("b", 1, Tokens(16)), 1)
        assert gate.promised_blocks() == 7 + 3  # more than there is
        assert isinstance(gate.handle(arrive("d", 16, 16, paced=True), 1)[0], Parked)
        gate.handle(Ended("c", Outcome.FINISHED), 2)
        assert isinstance(gate.handle(Ended("a", Outcome.FINISHED), 3)[0], Forward)
    assert not gate.trust.given


def test_after_a_wrong_guess_nobody_is_credited_until_enough_have_ended(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(100, sharing=Sharing.SCHEDULED)
    for name in "ab":
        forwarded(gate, arrive(name, PROMPT, NEW, prefix=PREFIX))
    gate.handle(Progressed("a", 1, Tokens(0)), 1)
    gate.handle(Progressed("b", 1, Tokens(0)), 1)
    other = (11, 12, 13, 14)
    assert [forwarded(gate, arrive(name, PROMPT, NEW, prefix=other)).reserved_blocks for name in "cd"] == [5, 5]
    for i in range(FIRST):
        forwarded(gate, arrive(f"r{i}"))
        gate.handle(Ended(f"r{i}", Outcome.FINISHED), 1)
    assert forwarded(gate, arrive("e", PROMPT, NEW, prefix=(21, 22, 23, 24))).reserved_blocks == 5
    assert forwarded(gate, arrive("f", PROMPT, NEW, prefix=(21, 22, 23, 24))).reserved_blocks == 1


def test_more_reused_than_credited_lets_the_next_in(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(10)
    for name in "ab":
        forwarded(gate, arrive(name, PROMPT, NEW, prefix=PREFIX))
    assert isinstance(gate.handle(arrive("c", 16, 16), 0)[0], Parked)
    gate.handle(Progressed("b", 1, Tokens(64)), 1)
    assert gate.promised_blocks() == 6
    assert gate.next_wake_ns == 1 + RECHECK_NS
    assert isinstance(gate.handle(Tick(), 1 + RECHECK_NS)[0], Forward)


def test_a_preemption_that_could_not_be_ends_every_credit(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(20, Policy.TRAJECTORY, sharing=Sharing.SCHEDULED)
    gate.handle(Preempted(None, 1), 0)
    assert gate.trust.given  # nothing was credited, so it is nobody's wrong guess
    for name in "ab":
        forwarded(gate, arrive(name, PROMPT, NEW, prefix=PREFIX))
    gate.handle(Preempted(None, 1), 0)
    assert (gate.promised_blocks(), gate.trust.given) == (10, False)
    for name in "ab":
        gate.handle(Ended(name, Outcome.FINISHED), 1)
    assert gate.promised_blocks() == 0


def test_one_that_was_a_risk_taken_does_not_until_no_caution_helps(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(20, Policy.LEARNED, sharing=Sharing.SCHEDULED)
    for name in "ab":
        forwarded(gate, arrive(name, PROMPT, NEW, prefix=PREFIX))
    gate.handle(Preempted(None, 1), 0)
    assert gate.trust.given
    for minute in range(1, 9):
        gate.handle(Preempted(None, 1), minute * 60 * 10**9)
    assert (gate.ledger.shared_prefix_blocks, gate.trust.given) == (0, False)


def test_who_loses_the_one_that_had_computed_it_is_charged_again(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(8, Policy.TRAJECTORY)
    forwarded(gate, arrive("a", PROMPT, NEW, prefix=PREFIX, paced=True))
    gate.handle(Progressed("a", 1), 0)
    for name in "bc":
        assert forwarded(gate, arrive(name, PROMPT, NEW, prefix=PREFIX, paced=True)).reserved_blocks == 1
    gate.handle(Ended("a", Outcome.FINISHED), 1)
    assert gate.promised_blocks() == 10  # both may have to compute all of it, at the same time


def test_blocks_of_another_size_end_every_credit(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(20, sharing=Sharing.SCHEDULED)
    for name in "ab":
        forwarded(gate, arrive(name, PROMPT, NEW, prefix=PREFIX))
    gate.handle(CapacityChanged(uniform_layout(32), Blocks(20), None), 0)
    assert gate.promised_blocks() == 6
