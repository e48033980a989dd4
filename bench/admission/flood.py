"""Which loads show what one tenant or class does to others: a flood, bulk beside what is interactive, equal tenants.

All on the engine of the scenarios. The quiet ones are the same requests with and without the flood, so that what they
see alone is what they would have seen.
"""

import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

from loads import Load

from kvbudget.simulate.histogram import Histogram
from kvbudget.simulate.load import TraceRequest
from kvbudget.simulate.outcome import Result, Tally
from kvbudget.simulate.policies import contender
from kvbudget.simulate.run import simulate
from kvbudget.simulate.scenarios import SCENARIOS, Scenario
from kvbudget.units import Tokens

SECONDS = 100
INTERACTIVE, BULK = 0, 1  # priorities
Lengths = Callable[[random.Random], tuple[int, int]]


def chat(chance: random.Random) -> tuple[int, int]:
    return chance.randint(30, 300), chance.randint(30, 250)


def _assistant(chance: random.Random) -> tuple[int, int]:
    prompt, output = round(600 * chance.lognormvariate(0, 0.9)), round(300 * chance.lognormvariate(0, 0.8))
    return min(6000, max(16, prompt)), min(2000, max(4, output))


def documents(chance: random.Random) -> tuple[int, int]:
    return chance.randint(2500, 6000), chance.randint(200, 700)


def stream(
    seed: str, tenant: str, per_s: float, lengths: Lengths, begin_s: float, end_s: float, priority: int = INTERACTIVE
) -> Iterator[TraceRequest]:
    """A Poisson process of one tenant."""
    chance, at_ns = random.Random(seed), int(begin_s * 1e9)
    while True:
        at_ns += int(chance.expovariate(per_s) * 1e9)
        if at_ns >= end_s * 1e9:
            return
        prompt, output = lengths(chance)
        yield TraceRequest(at_ns, Tokens(prompt), Tokens(2048), Tokens(output), tenant, priority=priority)


def _in_order(*streams: Iterator[TraceRequest]) -> list[TraceRequest]:
    return sorted([request for one in streams for request in one], key=lambda request: request.arrival_ns)


def _flood(seed: int) -> list[TraceRequest]:
    """Three tenants at 1.5 requests a second each; a fourth at ten times that in the middle third."""
    scenario = SCENARIOS["tenant-flood"]
    return list(scenario.load(random.Random(seed), scenario.requests))


def bulk(lengths: Lengths, per_s: float) -> Callable[[int], list[TraceRequest]]:
    """Chat at 3 requests a second, and a less urgent class of the same tenant in the middle third."""
    return lambda seed: _in_order(
        stream(f"{seed} chat", "one", 3.0, chat, 0, SECONDS),
        stream(f"{seed} bulk", "one", per_s, lengths, SECONDS / 3, 2 * SECONDS / 3, BULK),
    )


def _equal(seed: int) -> list[TraceRequest]:
    """Four tenants of one weight who all want more than a fourth of the engine, one of them ten times as much."""
    rates = (3.0, 4.0, 6.0, 30.0)
    return _in_order(*[stream(f"{seed} {rate}", f"{rate:g}/s", rate, _assistant, 0, SECONDS / 2) for rate in rates])


class Crowd(NamedTuple):
    """A load in which some move others. `is_quiet` tells whose first token is judged; None: all are equals."""

    summary: str
    load: Callable[[int], list[TraceRequest]]
    is_quiet: Callable[[TraceRequest], bool] | None = None


CROWDS = {
    "flood": Crowd("others under one tenant at 10x", _flood, lambda request: request.tenant != "flood"),
    "bulk-chat": Crowd(
        "interactive class under bulk chat at 10x", bulk(chat, 30.0), lambda request: request.priority == INTERACTIVE
    ),
    "bulk-documents": Crowd(
        "interactive class under bulk documents",
        bulk(documents, 4.0),
        lambda request: request.priority == INTERACTIVE,
    ),
    "equal": Crowd("equal tenants, one asks for 10x", _equal),
}


class Seen(NamedTuple):
    """One crowd and seed: first tokens of the quiet ones (alone, then with the others), and how many of them came to no
    good answer; or what each equal tenant held."""

    alone: Histogram | None
    together: Histogram | None
    lost_alone: int
    lost: int
    held: dict[str, float]


def watch(name: str, seed: int) -> Seen:
    """Run one crowd under the default policy."""
    crowd = CROWDS[name]
    load = crowd.load(seed)
    if crowd.is_quiet is None:
        return Seen(
            None, None, 0, 0, {tenant: tally.token_ns / 1e9 for tenant, tally in _run(load, seed).tenants.items()}
        )
    quiet = [request for request in load if crowd.is_quiet(request)]
    names = {(request.tenant, str(request.priority)) for request in quiet}
    alone, together = _of(_run(quiet, seed), names), _of(_run(load, seed), names)
    return Seen(alone.ttft, together.ttft, alone.requests - alone.good, together.requests - together.good, {})


def _run(load: list[TraceRequest], seed: int) -> Result:
    return simulate(load, _ENGINE.settings(), contender("learned"), random.Random(seed + 1))


def _of(result: Result, names: set[tuple[str, str]]) -> Tally:
    """What became of the quiet ones: a class where there is one tenant, else tenants."""
    whole = Tally()
    tenants, classes = {tenant for tenant, _ in names}, {priority for _, priority in names}
    for tally in (
        [result.classes[one] for one in classes]
        if len(result.classes) > 1
        else [result.tenants[one] for one in tenants]
    ):
        whole.add(tally)
    return whole


_ENGINE = Load(Scenario("crowd", "", lambda chance, requests: iter(())))


def moved(seen: list[Seen]) -> list[float]:
    """p99 of the first token over what it is alone, of each seed."""
    return [_ratio(one.alone, one.together) for one in seen if one.alone is not None and one.together is not None]


def jain(held: dict[str, float]) -> float:
    """Jain's index: 1 when all have the same, 1/n when one has all."""
    values = list(held.values())
    return sum(values) ** 2 / (len(values) * sum(value**2 for value in values))


def _ratio(alone: Histogram, together: Histogram) -> float:
    return (together.percentile(0.99) or 0) / max(1, alone.percentile(0.99) or 0)
