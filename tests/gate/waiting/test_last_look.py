"""A look that would let nobody in again is not made: dialogues, and that it is true whatever came in between."""

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbudget.gate.commands import Forward, Parked
from kvbudget.gate.config import GateConfig
from kvbudget.gate.events import Arrived, Ended, Event, Progressed, RoomTaken, Tick
from kvbudget.gate.gate import RECHECK_NS, Gate
from kvbudget.gate.policies import Policy
from kvbudget.gate.refusing.refusals import Outcome
from kvbudget.gate.waiting.look import first_that_fits
from kvbudget.pool.groups import uniform_layout
from kvbudget.pool.risk import EPOCH_STEPS
from kvbudget.units import Blocks, Tokens

MakeGate = Callable[..., Gate]
Arrive = Callable[..., Arrived]
MS = 10**6


def waiting_gate(make_gate: MakeGate, arrive: Arrive, **config: object) -> Gate:
    """Of 100 blocks two hold 41 each, one waits who needs as many, and nobody may go before it."""
    gate = make_gate(100, Policy.LEARNED, enough_answers=1.0, worthwhile_wait_ns=10**12, queue_ns=10**12, **config)
    for number in range(4):
        name = f"teacher-{number}"
        gate.handle(arrive(name, 16, 400, paced=True), number)
        gate.handle(Progressed(name, 1), number)
        gate.handle(Ended(name, Outcome.FINISHED, Tokens(8)), number)
    for name in "ab":
        assert isinstance(gate.handle(arrive(name, 640, 400, paced=True), MS)[0], Forward)
        gate.handle(Progressed(name, 1), MS)
    assert isinstance(gate.handle(arrive("c", 640, 400, paced=True), 2 * MS)[0], Parked)
    gate.look(3 * MS)
    return gate


def test_it_stands_until_a_step_is_made(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = waiting_gate(make_gate, arrive)
    assert gate.last_look.stands(4 * MS)
    gate.handle(Progressed("a", 1), 4 * MS)
    assert not gate.last_look.stands(4 * MS)
    gate.look(5 * MS)
    assert gate.last_look.stands(5 * MS)
    gate.handle(Progressed("b", 1), 6 * MS)  # it comes to where the other is
    assert gate.last_look.stands(6 * MS)


def test_it_stands_no_longer_than_the_outlook(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = waiting_gate(make_gate, arrive)
    assert not gate.last_look.stands(300 * MS)
    gate.look(300 * MS)
    gate.handle(Progressed("a", EPOCH_STEPS), 301 * MS)
    assert not gate.last_look.stands(301 * MS)


@pytest.mark.parametrize(
    "event",
    [
        Ended("a", Outcome.FINISHED, Tokens(2)),
        RoomTaken(Blocks(1)),
        Arrived("d", (Tokens(640),), Tokens(400), Tokens(64), paced=True),
        Ended("c", Outcome.WITHDRAWN),
    ],
)
def test_it_does_not_stand_once_somebody_came_or_went_or_took_room(
    make_gate: MakeGate, arrive: Arrive, event: Event
) -> None:
    gate = waiting_gate(make_gate, arrive)
    basis = gate.last_look._basis
    gate.handle(event, 4 * MS)
    assert gate.last_look._basis != basis or not gate.last_look.stands(4 * MS)


def test_it_does_not_stand_under_other_rules(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = waiting_gate(make_gate, arrive)
    gate.configure(GateConfig(policy=Policy.LEARNED, max_num_seqs=64, enough_answers=1.0))
    assert not gate.last_look.stands(4 * MS)
    gate.look(4 * MS)
    assert gate.last_look.stands(4 * MS)


def test_it_does_not_stand_once_a_table_of_lengths_is_another(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = waiting_gate(make_gate, arrive)
    for habit in gate.learned.lengths.chain("default", "", 400, 640):
        habit.lived(0, 400)
        for _ in range(8):
            habit.ended(400)
    assert not gate.last_look.stands(4 * MS)


def test_it_does_not_stand_once_somebody_is_due_who_was_told_to_come(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = waiting_gate(make_gate, arrive, queue_requests=1)
    for number in range(3):
        gate.handle(arrive(f"d{number}", 640, 400, paced=True), (4 + number) * MS)
    gate.look(8 * MS)
    assert gate.last_look.stands(8 * MS)
    due_ns = gate.returns._coming[0][0]
    gate.learned.batch._fresh_until_ns = 2 * due_ns
    assert not gate.last_look.stands(due_ns)


def test_with_other_tenants_or_where_limits_decide_every_look_is_made(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = waiting_gate(make_gate, arrive)
    gate.handle(arrive("other", 640, 400, paced=True, tenant="t"), 4 * MS)
    gate.look(5 * MS)
    assert not gate.last_look.stands(5 * MS)
    gate = make_gate(100, Policy.TRAJECTORY)
    gate.handle(arrive("a", 1500, 90), 0)
    gate.handle(arrive("b", 1500, 90), 0)
    gate.look(1)
    assert not gate.last_look.stands(1)


def test_who_was_tried_since_is_forgotten_as_a_look_would(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = waiting_gate(make_gate, arrive)
    smallest = gate.overtaking._smaller_than
    gate.overtaking.stays(smallest - 1)
    assert gate.last_look.stands(4 * MS)
    assert gate.overtaking._smaller_than == smallest


class Load:
    """Requests of one tenant at a gate, a step at a time; the tokens of some are told late."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        config = GateConfig(
            policy=Policy.LEARNED, queue_ns=10**12, worthwhile_wait_ns=self.chance.choice([10**9, 10**12]),
            abort_tail_ns=0, enough_answers=2.0, queue_requests=self.chance.choice([3, 30]), lag_steps=0,
            max_num_seqs=self.chance.choice([5, 64]),
        )  # fmt: skip
        self.gate = Gate(config, uniform_layout(16), Blocks(self.chance.randint(40, 90)))
        self.now = self.names = self.stood = 0
        self.inside: dict[str, list[int]] = {}  # made, told, to make
        self.makes: dict[str, int] = {}

    def push(self, event: Event) -> None:
        for command in self.gate.handle(event, self.now):
            if isinstance(command, Forward):
                self.inside[command.request_id] = [0, 0, self.makes[command.request_id]]
        self.check()

    def check(self) -> None:
        gate = self.gate
        if gate.queue and gate.last_look.stands(self.now):
            self.stood += 1
            found = first_that_fits(gate.queue, gate.fairness, gate.promises, gate.overtaking, self.now)
            assert found is None

    def arrive(self) -> None:
        self.names += 1
        name, limit = f"r{self.names}", self.chance.choice([20, 100, 400])
        self.makes[name] = self.chance.randint(1, limit)
        prompt = self.chance.choice([16, 100, 300])
        self.push(Arrived(name, (Tokens(prompt),), Tokens(limit), Tokens(64), paced=True))

    def step(self) -> None:
        self.now += self.chance.choice([1, 5, 25, 60]) * MS
        for name, one in list(self.inside.items()):
            one[0] += 1
            ends = one[0] >= one[2]
            if ends or self.chance.random() < 0.5:
                self.push(Progressed(name, one[0] - one[1]))
                one[1] = one[0]
            if ends:
                del self.inside[name]
                self.push(Ended(name, Outcome.FINISHED, Tokens(one[0])))
        if self.chance.random() < 0.1:
            self.push(RoomTaken(Blocks(self.chance.choice([0, 0, 4]))))
        self.push(Tick())
        self.now += RECHECK_NS
        self.push(Tick())


@given(st.integers(0, 10**6))
@settings(max_examples=20)
def test_where_it_stands_a_look_lets_nobody_in(seed: int) -> None:
    load = Load(seed)
    for _ in range(150):
        while load.chance.random() < 0.4:
            load.arrive()
        load.step()
    assert load.stood > 0


class OvertakingLoad(Load):
    """The same, in which those who wait are asked whether they would put off the first."""

    def check(self) -> None:
        overtaking = self.gate.overtaking
        for one in list(self.gate.queue)[:4]:
            told = overtaking.clearly_puts_off(one.arrived, one.footprint, self.now)
            foreseen_by, overtaking._foreseen_by = overtaking._foreseen_by, (-1, 0.0, 0, 0)  # so that all is looked at
            assert overtaking.clearly_puts_off(one.arrived, one.footprint, self.now) == told
            overtaking._foreseen_by = foreseen_by
            self.stood += told


@given(st.integers(0, 10**6))
@settings(max_examples=5, deadline=None)
def test_what_is_told_at_once_of_who_would_put_off_the_first_is_what_all_moments_tell(seed: int) -> None:
    stood = 0
    for number in range(6):  # in a load by itself it may be that nobody would
        load = OvertakingLoad(seed + number)
        for _ in range(100):
            while load.chance.random() < 0.4:
                load.arrive()
            load.step()
        stood += load.stood
    assert stood > 0
