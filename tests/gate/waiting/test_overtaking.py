"""Smaller ones before one that lacks room: dialogues, and a bound that holds however long answers get."""

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbudget.gate.commands import Command, Forward, Parked
from kvbudget.gate.events import Arrived, Ended, Event, Progressed, Tick
from kvbudget.gate.gate import Gate, GateConfig
from kvbudget.gate.policies import Policy
from kvbudget.gate.refusing.refusals import Outcome
from kvbudget.gate.waiting.overtaking import MOST_TRIES
from kvbudget.pool.groups import uniform_layout
from kvbudget.pool.prefix import Sharing
from kvbudget.pool.risk import EPOCH_STEPS
from kvbudget.units import Blocks, Tokens

SECOND = 10**9
STEP_NS = 10**7
MakeGate = Callable[..., Gate]
Arrive = Callable[..., Arrived]
by_limits = pytest.mark.parametrize("policy", [Policy.WORST_CASE, Policy.TRAJECTORY])


def told(commands: list[Command]) -> list[str]:
    return [f"{type(command).__name__} {command.request_id}" for command in commands]


def blocked(make_gate: MakeGate, arrive: Arrive, policy: Policy = Policy.WORST_CASE, **config: object) -> Gate:
    """Of 20 blocks one request holds 12 for 92 more steps, and one that needs 16 waits."""
    gate = make_gate(20, policy, **config)
    assert told(gate.handle(arrive("long", 100, 92), 0)) == ["Forward long"]
    assert told(gate.handle(arrive("huge", 200, 56), 0)) == ["Parked huge"]
    return gate


@by_limits
def test_who_ends_by_the_time_it_could_start_goes_before_it(
    make_gate: MakeGate, arrive: Arrive, policy: Policy
) -> None:
    gate = blocked(make_gate, arrive, policy)
    assert told(gate.handle(arrive("later", 10, 93), 1)) == ["Parked later"]
    assert told(gate.handle(arrive("by-then", 4, 92), 1)) == ["Forward by-then"]


@by_limits
def test_by_the_time_it_could_start_is_by_the_newest_token_that_was_seen(
    make_gate: MakeGate, arrive: Arrive, policy: Policy
) -> None:
    gate = make_gate(20, policy)
    gate.handle(arrive("long", 100, 92, paced=True), 0)
    gate.handle(arrive("huge", 200, 56, paced=True), 0)
    gate.handle(arrive("later", 10, 93, paced=True), 1)  # so that it was reckoned when huge could start: in 92 steps
    gate.handle(Progressed("long", 3), 2)
    assert told(gate.handle(arrive("three-late", 4, 92, paced=True), 3)) == ["Parked three-late"]
    gate.handle(Ended("three-late", Outcome.WITHDRAWN), 4)
    assert told(gate.handle(arrive("by-then", 4, 89, paced=True), 5)) == ["Forward by-then"]


@by_limits
def test_who_has_room_beside_it_goes_before_it(make_gate: MakeGate, arrive: Arrive, policy: Policy) -> None:
    gate = blocked(make_gate, arrive, policy)
    assert told(gate.handle(arrive("too-large", 10, 93), 1)) == ["Parked too-large"]  # 7 blocks; 4 are left beside 16
    gate = blocked(make_gate, arrive, policy, max_context=Tokens(400))
    assert told(gate.handle(arrive("beside", 1, 60), 1)) == ["Forward beside"]


def test_what_is_beside_it_is_given_away_once(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(24)
    gate.handle(arrive("long", 100, 12), 0)  # 7 blocks
    gate.handle(arrive("huge", 200, 88), 0)  # 18 blocks, so 6 are left beside it
    assert told(gate.handle(arrive("one", 32, 32), 1)) == ["Forward one"]
    assert told(gate.handle(arrive("two", 16, 32), 1)) == ["Parked two"]
    assert told(gate.handle(arrive("three", 1, 31), 1)) == ["Forward three"]
    assert told(gate.handle(arrive("four", 1, 31), 1)) == ["Parked four"]


def test_a_seat_beside_it_is_needed_too(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = blocked(make_gate, arrive, max_num_seqs=3)
    assert told(gate.handle(arrive("by-then", 1, 31), 1)) == ["Forward by-then"]
    assert told(gate.handle(arrive("no-seat", 1, 15, sequences=2), 1)) == ["Parked no-seat"]
    gate = make_gate(100, max_num_seqs=2)
    gate.handle(arrive("long", 100, 92), 0)
    gate.handle(arrive("two", 10, 10, sequences=2), 0)
    assert told(gate.handle(arrive("past-then", 1, 93), 0)) == ["Parked past-then"]  # it lacks a seat, not blocks


def test_those_who_came_after_it_are_looked_at_when_room_comes(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(20)
    gate.handle(arrive("long", 100, 92), 0)
    gate.handle(arrive("short", 100, 12), 0)
    gate.handle(arrive("huge", 200, 56), 0)
    for name in ("small-1", "small-2", "small-3"):
        assert told(gate.handle(arrive(name, 40, 40), 1)) == [f"Parked {name}"]
    assert told(gate.handle(Ended("short", Outcome.FINISHED), 2)) == ["Forward small-1"]


def test_no_more_than_a_few_of_them_are_looked_at(make_gate: MakeGate, arrive: Arrive) -> None:
    def last_of(behind: int) -> list[str]:
        gate = make_gate(20, queue_tokens=Tokens(10**6))
        gate.handle(arrive("long", 100, 92), 0)
        gate.handle(arrive("short", 100, 12), 0)
        gate.handle(arrive("huge", 200, 56), 0)
        for number in range(behind):
            gate.handle(arrive(f"past-then-{number}", 1, 160), 1)
        gate.handle(arrive("small", 40, 40), 1)
        return told(gate.handle(Ended("short", Outcome.FINISHED), 2))

    assert last_of(MOST_TRIES - 1) == ["Forward small"]
    assert last_of(MOST_TRIES) == []


def test_the_first_of_another_tenant_goes_before_it_as_well(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(20)
    gate.handle(arrive("long", 100, 92, tenant="a"), 0)
    gate.handle(arrive("short", 100, 12, tenant="b"), 0)
    gate.handle(arrive("huge", 200, 56, tenant="c"), 0)
    assert told(gate.handle(arrive("small", 40, 40, tenant="b"), 1)) == ["Parked small"]
    assert told(gate.handle(Ended("short", Outcome.FINISHED), 2)) == ["Forward small"]


@by_limits
def test_once_it_would_have_room_but_for_those_who_went_before_nobody_else_does(
    make_gate: MakeGate, arrive: Arrive, policy: Policy
) -> None:
    gate = blocked(make_gate, arrive, policy)
    gate.handle(arrive("before", 30, 82), 1)  # 7 blocks, which would leave long's room to it
    assert told(gate.handle(Ended("long", Outcome.FINISHED, Tokens(5)), 2)) == []  # sooner than it had to
    assert told(gate.handle(arrive("small", 1, 1), SECOND)) == ["Parked small"]
    assert told(gate.handle(Ended("before", Outcome.FINISHED, Tokens(5)), SECOND)) == ["Forward huge", "Forward small"]


def test_nor_before_one_of_another_tenant_that_is_first_by_now(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(20)
    gate.handle(arrive("long", 100, 92, tenant="a"), 0)
    gate.handle(arrive("huge", 200, 56, tenant="b"), 0)
    assert told(gate.handle(arrive("before", 30, 82, tenant="b"), 1)) == ["Forward before"]
    gate.handle(Ended("long", Outcome.FINISHED, Tokens(5)), 2)
    gate.fairness.shares._account("a", SECOND).virtual += 20 * SECOND
    assert told(gate.handle(arrive("small", 1, 1, tenant="a"), SECOND)) == ["Parked small"]
    gate.handle(arrive("other-huge", 200, 50, tenant="c"), SECOND)
    gate.fairness.shares._account("b", SECOND).virtual += 10 * SECOND
    assert told(gate.handle(Ended("small", Outcome.WITHDRAWN), SECOND)) == []  # the other huge one is looked at first
    assert gate.overtaking.head is not None
    assert gate.overtaking.head.arrived.request_id == "other-huge"
    assert told(gate.handle(arrive("smallest", 1, 1, tenant="a"), SECOND)) == ["Parked smallest"]


def test_a_gate_that_is_told_of_more_seats_decides_by_them(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = blocked(make_gate, arrive, max_num_seqs=1)
    gate.configure(GateConfig(policy=Policy.WORST_CASE, max_num_seqs=8))
    assert told(gate.handle(Tick(), SECOND)) == []
    assert told(gate.handle(arrive("by-then", 1, 31), SECOND)) == ["Forward by-then"]


# By learned lengths


def learned(make_gate: MakeGate, arrive: Arrive) -> Gate:
    """As `blocked`, of requests whose lengths are known."""
    gate = make_gate(20, Policy.LEARNED, worthwhile_wait_ns=10**15, queue_ns=10**15)
    gate.handle(arrive("long", 100, 200, known_tokens=Tokens(90)), 0)
    assert told(gate.handle(arrive("huge", 200, 112, known_tokens=Tokens(50)), 0)) == ["Parked huge"]
    return gate


def test_by_what_is_known_who_ends_in_time_goes_before_it(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = learned(make_gate, arrive)
    assert told(gate.handle(arrive("later", 60, 200, known_tokens=Tokens(190)), 1)) == ["Parked later"]
    assert told(gate.handle(arrive("by-then", 60, 100, known_tokens=Tokens(20)), 1)) == ["Forward by-then"]


def test_by_what_is_known_it_is_not_put_off_once_it_would_have_room(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = learned(make_gate, arrive)
    gate.handle(arrive("before", 60, 199, known_tokens=Tokens(60)), 1)
    gate.handle(Ended("long", Outcome.FINISHED, Tokens(5)), 2)
    assert told(gate.handle(arrive("small", 1, 20, known_tokens=Tokens(1)), 3)) == ["Parked small"]
    assert told(gate.handle(Ended("before", Outcome.FINISHED, Tokens(5)), 4)) == ["Forward huge", "Forward small"]


def test_who_would_put_it_off_leaves_no_claim_on_the_prefix_that_it_shares(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(
        20,
        Policy.LEARNED,
        worthwhile_wait_ns=10**15,
        queue_ns=10**15,
        sharing=Sharing.SCHEDULED,
        max_context=Tokens(312),
    )
    gate.handle(arrive("long", 100, 200, known_tokens=Tokens(90), prefix=(1,)), 0)
    gate.handle(arrive("huge", 200, 112, known_tokens=Tokens(50)), 0)
    later = arrive("later", 17, 150, known_tokens=Tokens(94), prefix=(1,))
    assert told(gate.handle(later, 1)) == ["Parked later"]
    assert gate.ledger.offered_blocks == 0
    gate.handle(Ended("huge", Outcome.WITHDRAWN), 2)
    assert gate.ledger.get("later") is not None  # there was room for it


# The bound


class Engine:
    """Gives every sequence one token a step, behind a gate that is asked for a small one again and again."""

    def __init__(self, policy: Policy, blocks: int) -> None:
        config = GateConfig(
            policy=policy, queue_ns=10**15, worthwhile_wait_ns=10**15, lag_steps=0, abort_tail_ns=0, enough_answers=0.0,
            queue_requests=10**6, queue_tokens=Tokens(10**9),
        )  # fmt: skip
        self.gate = Gate(config, uniform_layout(16), Blocks(blocks))
        self.now = 0
        self.step = 0
        self.asked: dict[str, tuple[int, int]] = {}  # (limit, what it makes)
        self.running: dict[str, tuple[int, int]] = {}  # (since which step, how many tokens it will make)
        self.started: dict[str, int] = {}

    def push(self, event: Event) -> None:
        for command in self.gate.handle(event, self.now):
            if isinstance(command, Forward):
                self.started[command.request_id] = self.step
                self.running[command.request_id] = (self.step, self.asked[command.request_id][1])
            else:
                assert isinstance(command, Parked)

    def ask(self, name: str, prompt: int, limit: int, makes: int) -> None:
        self.asked[name] = (limit, makes)
        self.push(Arrived(name, (Tokens(prompt),), Tokens(limit), Tokens(20), paced=True))

    def decode(self) -> None:
        self.now += STEP_NS
        self.step += 1
        for name, (since, makes) in list(self.running.items()):
            self.push(Progressed(name, 1))
            if self.step - since == makes:
                del self.running[name]
                self.push(Ended(name, Outcome.FINISHED, Tokens(makes)))
        self.push(Tick())


@given(st.sampled_from(Policy), st.integers(0, 10**6), st.sampled_from([0.2, 1.0, 3.0]))
@settings(max_examples=25, deadline=None)
def test_a_stream_of_smaller_ones_never_starves_a_huge_one(policy: Policy, seed: int, per_step: float) -> None:
    """It starts, at the latest, when those who lived when it came and the longest who went before it are at their
    limits: then nobody is left who was let in before it would have had room."""
    chance = Random(seed)
    blocks = chance.randint(40, 120)
    engine = Engine(policy, blocks)
    number = 0

    def small() -> None:
        nonlocal number
        number += 1
        limit = chance.randint(1, 64)
        makes = limit if chance.random() < 0.3 else chance.randint(1, limit)
        engine.ask(f"s{number}", chance.randint(1, 64), limit, makes)

    for long in range(3):
        limit = chance.randint(20, 200)
        engine.ask(f"long{long}", chance.randint(16, 100), limit, chance.randint(1, limit))
    for _ in range(chance.randint(0, 20)):
        small()
        engine.decode()
    came = engine.step
    engine.ask("huge", blocks * 16 - 80, 64, 32)
    waits_for = [name for name in engine.asked if name not in engine.started and name != "huge"]
    bound = max((limit for limit, _ in (engine.asked[name] for name in engine.running)), default=0)
    bound += sum(engine.asked[name][0] for name in waits_for)  # one by one, at worst
    bound += EPOCH_STEPS if policy is Policy.LEARNED else 4  # so long it may be seen to stand where it stood
    while "huge" not in engine.started:
        assert engine.step - came <= bound + 64
        for _ in range(int(per_step) + (chance.random() < per_step % 1)):
            small()
        engine.decode()


@given(st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_where_limits_decide_it_starts_no_later_than_the_leases_end_that_it_waits_for(seed: int) -> None:
    chance = Random(seed)
    engine = Engine(Policy.WORST_CASE, 60)
    for long in range(chance.randint(1, 4)):
        engine.ask(f"long{long}", 100, chance.randint(40, 140), 40)
    latest = max(engine.asked[name][0] for name in engine.running)
    engine.asked = {name: (limit, limit) for name, (limit, _) in engine.asked.items()}
    engine.running = {name: (0, engine.asked[name][0]) for name in engine.running}  # all come to their limits
    engine.ask("huge", 800, 64, 32)
    while "huge" not in engine.started:
        assert engine.step <= latest
        limit = chance.randint(1, 200)
        engine.ask(f"s{engine.step}", chance.randint(1, 64), limit, limit)
        engine.decode()
