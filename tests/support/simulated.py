"""Small simulations: builders with one line each, random loads, and everything that can be seen of a run."""

import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from kvbudget.gate.commands import Command, Reject
from kvbudget.gate.events import Event, Progressed, Tick
from kvbudget.pool.groups import uniform_layout
from kvbudget.simulate import run as run_module
from kvbudget.simulate.clients import Client
from kvbudget.simulate.cost import StepCost
from kvbudget.simulate.load import TraceRequest
from kvbudget.simulate.outcome import Result
from kvbudget.simulate.policies import contender
from kvbudget.simulate.run import Simulation
from kvbudget.simulate.settings import ClientHabits, EngineSizes, GateBounds, Settings, Slo
from kvbudget.units import Tokens

if not str(run_module.__file__).endswith(".py"):
    pytest.skip("runs are watched through methods that cannot be replaced once compiled", allow_module_level=True)

MS = 10**6
SECOND = 10**9
# A step takes 10 ms, whatever it does.
FLAT = StepCost(10 * MS, 0, 0, 0)


def request(
    at_ns: int = 0,
    prompt: int = 10,
    output: int = 5,
    *,
    most: int | None = None,
    tenant: str = "default",
    ids: Iterable[int] = (),
    declared: bool = True,
    priority: int = 0,
) -> TraceRequest:
    """A request of a load; `most` is what it declares."""
    new = Tokens(output if most is None else most)
    return TraceRequest(at_ns, Tokens(prompt), new, Tokens(output), tenant, tuple(ids), declared, priority)


def settings(blocks: int = 100, **changes: Any) -> Settings:
    """Usable blocks of 16 tokens, steps of 10 ms; fields of any part by their names."""
    parts: dict[str, Any] = {
        "engine": EngineSizes(uniform_layout(16), blocks + 1, cost=FLAT),
        "gate": GateBounds(),
        "clients": ClientHabits(),
        "slo": Slo(),
    }
    whole: dict[str, Any] = {}
    for name, value in changes.items():
        owner = next((part for part, fields in parts.items() if hasattr(fields, name)), None)
        if owner is None:
            whole[name] = value
        else:
            parts[owner] = replace(parts[owner], **{name: value})
    return Settings(**parts, **whole)


class Seen(NamedTuple):
    """Of a run: its document; (number, end, tokens, first token, late gap) of each answer; what the gates were told
    and said, reports and ticks without an answer left out."""

    document: dict[str, Any]
    answers: list[tuple[int, int, int, int | None, bool]]
    decisions: list[tuple[int, int, Event, tuple[Any, ...]]]
    result: Result

    @property
    def endings(self) -> tuple[int, int, int]:
        """(finished, refused, timed out)"""
        return self.document["finished"], self.document["refused"], self.document["timed_out"]


def run(
    load: Iterable[TraceRequest], given: Settings | None = None, policy: str = "none", *, every_step: bool = False
) -> Seen:
    """Simulate, and watch."""
    simulation = Simulation(load, given or settings(), contender(policy), random.Random(1), every_step=every_step)
    answers: list[tuple[int, int, int, int | None, bool]] = []
    decisions: list[tuple[int, int, Event, tuple[Any, ...]]] = []
    finished = simulation.finished

    def note(client: Client, output_tokens: int, now_ns: int) -> None:
        answers.append((client.number, now_ns, output_tokens, client.first_token_ns, client.late_gap))
        finished(client, output_tokens, now_ns)

    simulation.finished = note  # type: ignore[method-assign]
    for number, instance in enumerate(simulation.instances):
        watch(instance.gate, number, decisions)
    result = simulation.run()
    return Seen(result.document(), answers, decisions, result)


def watch(gate: Any, number: int, decisions: list[tuple[int, int, Event, tuple[Any, ...]]]) -> None:
    """Note what this gate is told and says."""
    handle = gate.handle

    def watched(event: Event, now_ns: int) -> list[Command]:
        commands: list[Command] = handle(event, now_ns)
        if commands or not isinstance(event, Progressed | Tick):
            decisions.append((number, now_ns, event, tuple(map(_said, commands))))
        return commands

    gate.handle = watched


def _said(command: Command) -> Any:
    """A refusal also tells how full the pool is, which may be told from a look that is up to 20 ms old."""
    if isinstance(command, Reject):
        return command.request_id, command.refusal, command.retry_after_ns, command.waited_ns
    return command


def random_case(seed: int) -> tuple[list[TraceRequest], Settings, str]:
    """A load, settings and a policy: small pools, tight steps, prefixes that branch, clients who leave and return."""
    chance = random.Random(seed)
    block = chance.choice([1, 4, 16, 16, 16])
    id_tokens = block * chance.choice([1, 2, 4, 32])
    window = chance.choice([128, 256, 512, 2000])
    tight = chance.random() < 0.6
    least = -(-window // block) + 1
    blocks = least + chance.randint(0, 3) if tight else max(least, chance.choice([160, 640, 6400]) // block + 1)
    seqs = chance.choice([2, 5, 16, 64])
    flat = chance.random() < 0.3  # every step takes 5 ms, and everything happens at ends of steps
    load = _random_load(chance, window, id_tokens, tight=tight)
    if flat:
        load = [replace(one, arrival_ns=one.arrival_ns // (5 * MS) * 5 * MS) for one in load]
    costs = [
        StepCost(), StepCost(10**6, 10**4, 1000, 7), StepCost(0, 0, 0, 1000),
        StepCost(100, 3, 5, 44),
    ]  # fmt: skip
    engine = EngineSizes(
        uniform_layout(block),
        blocks,
        window,
        seqs,
        max(seqs, chance.choice([seqs, 64, 300, 8192])),
        prefix_caching=chance.random() < 0.8,
        prefix_id_tokens=id_tokens,
        by_priority=chance.random() < 0.4,
        cost=StepCost(5 * MS, 0, 0, 0) if flat else chance.choice(costs),
    )
    given = Settings(
        engine,
        GateBounds(
            chance.choice([0, 0, 1]), chance.choice([1024, 5]), chance.choice([None, Tokens(300)]),
            chance.choice([SECOND // 10, SECOND, 30 * SECOND]), Tokens(chance.choice([16, 512])),
        ),
        ClientHabits(chance.choice([None, SECOND, 5 * SECOND]), chance.choice([0, 2]), chance.choice([None, SECOND])),
        Slo(chance.choice([None, SECOND]), chance.choice([None, 6 * MS, 30 * MS, SECOND])),
        instances=chance.choice([1, 1, 1, 3]),
    )  # fmt: skip
    policies = (
        "none", "worst-case", "trajectory", "learned", "oracle", "none+watermark=0.05", "max-num-queued-reqs=8",
        "max-num-queued-tokens=300", "trajectory+watermark=0.1",
    )  # fmt: skip
    return load, given, chance.choice(policies)


def _random_load(chance: random.Random, window: int, id_tokens: int, *, tight: bool) -> list[TraceRequest]:
    span_ns = chance.choice([1, 10, 60]) * SECOND // (20 if tight else 1)
    talks = [[0]]
    tenants, urgent = chance.choice([("a", [0]), ("a", [0]), ("ab", [0]), ("ab", [0, 0, 1, -1])])
    load = []
    for _ in range(chance.choice([10, 40, 100])):
        prompt = chance.randint(1, window - 2 if chance.random() < 0.3 else max(1, window // (8 if tight else 4)))
        ids: tuple[int, ...] = ()
        if chance.random() < 0.7:
            talk = chance.choice(talks)
            talk = talk[: chance.randint(1, len(talk))] + [chance.randint(1, 3) for _ in range(chance.randint(0, 3))]
            talks.append(talk)
            if chance.random() < 0.5:
                less = chance.choice([0, 0, chance.randint(0, id_tokens - 1)])
                prompt = min(window - 2, max(1, len(talk) * id_tokens - less))
            ids = tuple(talk)
        output = max(1, min(window - prompt, chance.choice([1, 2, chance.randint(1, 60), chance.randint(1, 200)])))
        at_ns = chance.randrange(span_ns) if chance.random() < 0.8 else span_ns // 2
        most = output + chance.choice([0, 0, chance.randint(0, 300)])
        load.append(
            request(
                at_ns, prompt, output, most=most, tenant=chance.choice(tenants), ids=ids,
                declared=chance.random() < 0.8, priority=chance.choice(urgent),
            )
        )  # fmt: skip
    return sorted(load, key=lambda one: one.arrival_ns)
