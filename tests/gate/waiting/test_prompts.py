"""An engine is given no more prompts than it reads in a short while: the others wait here."""

from collections.abc import Callable

import pytest

from kvbudget.gate.commands import Command, Forward, Parked, Reject
from kvbudget.gate.events import Arrived, CapacityChanged, Ended, PaceLost, Progressed, Tick
from kvbudget.gate.gate import RECHECK_NS, Gate
from kvbudget.gate.policies import Policy
from kvbudget.gate.refusing.refusals import Outcome, QueueBound, Refusal
from kvbudget.gate.waiting.why import Why, who_waits
from kvbudget.units import Tokens

SECOND = 10**9
MakeGate = Callable[..., Gate]
Arrive = Callable[..., Arrived]


@pytest.fixture
def gate(make_gate: MakeGate) -> Gate:
    """A prompt of 1,000 tokens takes 0.2 s; so 2,500 tokens may be at the engine, and one more prompt."""
    gate = make_gate(10_000, Policy.LEARNED, worthwhile_wait_ns=4 * SECOND, queue_tokens=Tokens(10**6))
    gate.lane.resume(200_000.0)
    return gate


@pytest.fixture
def full(gate: Gate, arrive: Arrive) -> Gate:
    """The same while three prompts are read and two wait."""
    kinds = [type(gate.handle(arrive(name, 1000, 16, paced=True), 0)[0]) for name in "abcde"]
    assert kinds == [Forward] * 3 + [Parked] * 2
    return gate


def names(commands: list[Command]) -> list[str]:
    return [f"{type(command).__name__} {command.request_id}" for command in commands]


def test_each_prompt_that_is_read_makes_room_for_the_next_at_once(full: Gate) -> None:
    assert [one.why for one in who_waits(full, 2, 0)] == [Why.PROMPTS, Why.TURN]
    assert names(full.handle(Progressed("a", 1), SECOND // 5)) == ["Forward d"]
    assert names(full.handle(Progressed("a", 1), SECOND // 5)) == []  # its second token reads nothing
    assert names(full.handle(Progressed("b", 1), SECOND * 2 // 5)) == ["Forward e"]


def test_who_leaves_before_its_prompt_is_read_makes_room_as_well(full: Gate) -> None:
    ended = full.handle(Ended("c", Outcome.CLIENT_GONE, engine_done=False), SECOND // 10)
    assert names(ended) == ["Forward d"]


def test_a_first_token_that_will_not_be_seen_is_waited_for_by_time(full: Gate) -> None:
    for name in "abc":
        full.handle(PaceLost(name), 0)
    wake_ns = full.next_wake_ns
    assert wake_ns == SECOND // 10  # 0.6 s of prompts; at most 0.5 may be there
    assert names(full.handle(Tick(), wake_ns)) == ["Forward d"]


def test_whoever_is_not_watched_is_thought_to_be_read_like_the_others(gate: Gate, arrive: Arrive) -> None:
    assert names(gate.handle(arrive("a", 5000, 16), 0)) == ["Forward a"]
    assert names(gate.handle(arrive("b", 1000, 16), 0)) == ["Parked b"]
    assert names(gate.handle(Tick(), SECOND // 2)) == ["Forward b"]


def test_whose_turn_would_come_too_late_is_told_so_when_it_comes(full: Gate, arrive: Arrive) -> None:
    told = [full.handle(arrive(f"late{number}", 1000, 16, paced=True), 0)[0] for number in range(30)]
    refused = [command for command in told if isinstance(command, Reject)]
    assert 10 <= len(refused) <= 13  # 4 s are 20 prompts, of which 2 wait already
    assert {(command.refusal, command.bound) for command in refused} == {(Refusal.QUEUE_FULL, QueueBound.SECONDS)}
    assert refused[0].retry_after_ns >= 4 * SECOND


def test_a_prompt_that_takes_longer_than_that_goes_where_nothing_is_read(gate: Gate, arrive: Arrive) -> None:
    assert names(gate.handle(arrive("long", 20_000, 16, paced=True), 0)) == ["Forward long"]
    assert names(gate.handle(arrive("next", 10, 16, paced=True), 0)) == ["Parked next"]
    assert names(gate.handle(Progressed("long", 1), 4 * SECOND)) == ["Forward next"]


@pytest.mark.parametrize("policy", [Policy.WORST_CASE, Policy.TRAJECTORY])
def test_where_nothing_is_learned_nobody_waits_for_prompts(make_gate: MakeGate, arrive: Arrive, policy: Policy) -> None:
    gate = make_gate(10_000, policy, worthwhile_wait_ns=4 * SECOND)
    assert {type(gate.handle(arrive(f"r{number}", 1000, 16), 0)[0]) for number in range(100)} == {Forward}


def test_who_waits_is_looked_at_when_a_first_token_is_waited_for_no_more(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(10_000, Policy.LEARNED, worthwhile_wait_ns=4 * SECOND)  # how fast it reads is a mere guess
    assert names(gate.handle(arrive("long", 20_000, 16, paced=True), 0)) == ["Forward long"]
    assert names(gate.handle(arrive("next", 10, 16, paced=True), 0)) == ["Parked next"]
    assert names(gate.handle(PaceLost("long"), 1)) == ["Forward next"]


def test_how_long_prompts_are_waited_for_says_nothing_of_waits_for_room(gate: Gate, arrive: Arrive) -> None:
    for number in range(200):
        now_ns, first, second = number * SECOND, f"a{number}", f"b{number}"
        assert names(gate.handle(arrive(first, 4000, 16, paced=True), now_ns)) == [f"Forward {first}"]
        assert names(gate.handle(arrive(second, 1000, 16, paced=True), now_ns)) == [f"Parked {second}"]
        gate.lane.resume(200_000.0)
        gone = gate.handle(Ended(first, Outcome.CLIENT_GONE), now_ns + SECOND // 100)  # long before it is read
        assert names(gone) == [f"Forward {second}"]
        gate.handle(Ended(second, Outcome.FINISHED, Tokens(4)), now_ns + SECOND // 2)
    assert gate.learned.forecast.bias == 1.0


def test_once_prompts_are_read_who_waits_for_room_is_looked_at_as_progress_makes_some(
    make_gate: MakeGate, arrive: Arrive
) -> None:
    gate = make_gate(1300, Policy.LEARNED, worthwhile_wait_ns=4 * SECOND, queue_tokens=Tokens(10**6))
    gate.lane.resume(200_000.0)
    assert names(gate.handle(arrive("long", 20_000, 16, paced=True), 0)) == ["Forward long"]
    parked = gate.handle(arrive("next", 2000, 16, paced=True, deadline_ns=60 * SECOND), 0)
    assert names(parked) == ["Parked next"]
    assert names(gate.handle(Progressed("long", 1), SECOND)) == []  # its prompt is read, and there is no room
    assert names(gate.handle(Progressed("long", 1), SECOND)) == []
    assert gate.next_wake_ns == SECOND + RECHECK_NS


@pytest.mark.parametrize("told_again", [False, True])
def test_before_any_answer_has_ended_who_would_wait_too_long_for_prompts_is_told_so_when_it_comes(
    make_gate: MakeGate, arrive: Arrive, told_again: bool
) -> None:
    gate = make_gate(10_000, Policy.LEARNED, worthwhile_wait_ns=4 * SECOND, enough_answers=1.0)
    gate.lane.resume(200_000.0)
    for number in range(10):
        gate.handle(arrive(f"r{number}", 1000, 16, paced=True), 0)
    if told_again:  # the same pool: who waits is judged anew, and is ahead as before
        gate.handle(CapacityChanged(gate.ledger.layout, gate.ledger.usable_blocks, None), 0)
    told = [gate.handle(arrive(f"late{number}", 1000, 16, paced=True), 0)[0] for number in range(30)]
    waiting = [command for command in told if isinstance(command, Parked)]
    assert 12 <= len(waiting) <= 14  # 4 s are 20 prompts, of which 7 wait already
    refused = [command for command in told if isinstance(command, Reject)]
    assert {(command.refusal, command.bound) for command in refused} == {(Refusal.QUEUE_FULL, QueueBound.SECONDS)}


def test_by_a_mere_guess_of_the_pace_nobody_is_refused(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(100_000, Policy.LEARNED, worthwhile_wait_ns=4 * SECOND, enough_answers=1.0)
    told = [gate.handle(arrive(f"r{number}", 10_000, 16, paced=True), 0)[0] for number in range(30)]
    assert [type(command) for command in told] == [Forward] * 2 + [Parked] * 28
