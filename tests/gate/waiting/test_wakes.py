"""Whoever could be let in is looked at soon, whatever happens in whichever order: no wake is lost."""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from random import Random

import pytest

import kvbudget.gate.gate as gate_module
from kvbudget.gate.commands import Command, Forward, Parked
from kvbudget.gate.events import (
    Arrived,
    BackendChanged,
    CapacityChanged,
    Ended,
    EngineBusy,
    Event,
    PaceLost,
    PoolHeld,
    Preempted,
    Progressed,
    RoomTaken,
    Tick,
)
from kvbudget.gate.gate import Gate, GateConfig
from kvbudget.gate.policies import Policy
from kvbudget.gate.promises import RECHECK_NS
from kvbudget.gate.refusing.refusals import Outcome
from kvbudget.gate.tenants.fairness import AGAIN_NS
from kvbudget.gate.tenants.settings import TenantLimits
from kvbudget.pool.groups import uniform_layout
from kvbudget.units import Blocks, Tokens

MS = 10**6
STEPS = 300


class World:
    """One gate, and who lives behind it, by one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.now_ns = 0
        self.names = 0
        self.runs: dict[str, int] = {}  # who was forwarded: tokens that it makes
        self.waits: dict[str, int] = {}
        self.blocks = random.choice([60, 200, 1000])
        self.tenants = random.choice([["a"], ["a", "b", "c"]])
        self.config = GateConfig(
            policy=Policy.LEARNED,
            max_num_seqs=random.choice([4, 16, 64]),
            enough_answers=random.choice([0.0, 2.0]),
            abort_tail_ns=random.choice([0, 50 * MS]),
            worthwhile_wait_ns=random.choice([400 * MS, 4000 * MS]),
            queue_tokens=random.choice([None, Tokens(10**6)]),
            fair=random.random() < 0.8,
            tenants={"c": TenantLimits(max_blocks=Blocks(20))} if random.random() < 0.5 else {},
        )
        self.gate = Gate(self.config, uniform_layout(16), Blocks(self.blocks))
        self.gate.lane.resume(random.choice([2_000.0, 50_000.0, 300_000.0]))

    def events(self) -> Iterator[Event]:
        """What happens, one after another; time passes between."""
        for _ in range(STEPS):
            yield from self._some()

    def _some(self) -> Iterator[Event]:
        random = self.random
        kind = random.random()
        self.now_ns += random.choice([0, 0, 1, 5 * MS, 21 * MS, 100 * MS])
        wake_ns = self.gate.next_wake_ns
        if wake_ns is not None and wake_ns <= self.now_ns:
            yield Tick()  # as every driver does
        running, waiting = sorted(self.runs), sorted(self.waits)
        if kind < 0.4:
            yield self._arrival()
        elif kind < 0.7 and running:
            for name in random.sample(running, min(len(running), random.choice([1, 4, 100]))):
                yield Progressed(name, random.choice([1, 1, 16]))
        elif kind < 0.85 and running:
            name = random.choice(running)
            yield Ended(name, Outcome.FINISHED, Tokens(self.runs.pop(name)))
        elif kind < 0.9 and running:
            name = random.choice(running)
            del self.runs[name]
            yield Ended(name, Outcome.CLIENT_GONE, engine_done=random.random() < 0.3)
        elif kind < 0.93 and waiting:
            name = random.choice(waiting)
            del self.waits[name]
            yield Ended(name, Outcome.WITHDRAWN)
        elif kind < 0.95 and running:
            yield PaceLost(random.choice(running))
        elif kind < 0.955:
            blocks = Blocks(random.choice([self.blocks, self.blocks // 2, 2 * self.blocks]))
            yield CapacityChanged(uniform_layout(16), blocks, None)
        elif kind < 0.965:
            self.config = replace(
                self.config,
                worthwhile_wait_ns=random.choice([400 * MS, 4000 * MS]),
                max_num_seqs=random.choice([4, 16, 64]),
                policy=random.choice([Policy.LEARNED, Policy.LEARNED, Policy.TRAJECTORY]),
            )
            self.gate.configure(self.config)
            yield CapacityChanged(uniform_layout(16), self.gate.ledger.usable_blocks, None)
        elif kind < 0.97:
            yield EngineBusy(self.now_ns + random.choice([0, 10 * MS, 300 * MS]))
        elif kind < 0.98:
            yield RoomTaken(Blocks(random.choice([0, 0, self.blocks // 4])))
        elif kind < 0.985:
            yield Preempted() if random.random() < 0.5 else PoolHeld(Blocks(self.blocks // 3))
        elif kind < 0.987:
            yield BackendChanged(False)
            yield BackendChanged(True)
        yield Tick()

    def _arrival(self) -> Arrived:
        random = self.random
        self.names += 1
        return Arrived(
            f"r{self.names}",
            (Tokens(random.choice([8, 100, 300, 700])),),
            random.choice([None, Tokens(16), Tokens(200)]),
            Tokens(100),
            random.choice([1, 1, 1, 3]),
            random.choice(self.tenants),
            random.choice([0, 0, 0, 1]),
            random.random() < 0.8,
            self.now_ns + 500 * MS if random.random() < 0.1 else None,
        )

    def push(self, event: Event) -> list[Command]:
        commands = self.gate.handle(event, self.now_ns)
        if isinstance(event, Arrived):
            self.waits[event.request_id] = self.random.randint(1, event.max_new_tokens or 100)
        for command in commands:
            if isinstance(command, Forward):
                self.runs[command.request_id] = self.waits.pop(command.request_id)
            elif not isinstance(command, Parked):
                del self.waits[command.request_id]
        return commands


def would_let_in(gate: Gate, now_ns: int) -> list[str]:
    """Who would go if everybody were looked at anew, in a gate of its own."""
    other = deepcopy(gate)
    other.last_look.forget()
    other.learned.forget_full()
    return [command.request_id for command in other.look(now_ns) if isinstance(command, Forward)]


@pytest.mark.skipif(
    not str(gate_module.__file__).endswith(".py"),
    reason="what is compiled cannot be copied: no gate of its own to look in",
)
@pytest.mark.parametrize("seed", range(16))
def test_who_could_go_is_looked_at_soon(seed: int) -> None:
    world = World(seed)
    for event in world.events():
        world.push(event)
        gate, now_ns = world.gate, world.now_ns
        wake_ns = gate.next_wake_ns
        if not gate.queue or (wake_ns is not None and wake_ns <= now_ns + max(RECHECK_NS, AGAIN_NS)):
            continue
        assert would_let_in(gate, now_ns) == [], f"seed {seed}: {event} at {now_ns}, next look at {wake_ns}"
