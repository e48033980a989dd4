"""Decides which loads the scenarios are: made from a seed, with the engine that each is meant for.

Arrivals are a Poisson process unless the scenario says otherwise. Lengths follow published shapes (chat of the Azure
2023 conversation trace and of Llama-class assistants, code of the Azure 2023 code trace, prefixes of the Mooncake
conversation trace); no row of a trace is in them. All are for one 16-token-block engine with `StepCost`'s defaults, on
which the steady mix takes about 8 requests a second.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from kvbudget.errors import BadValueError
from kvbudget.simulate.chance import Chance
from kvbudget.simulate.load import DEFAULT_TENANT, TraceRequest
from kvbudget.units import Tokens

STEADY_PER_S = 8.0
# Requests of `steady` that its engine serves in a second when it never stands still (measured: 3,100 output tokens/s
# of 410 a request). Overload is counted from there.
_CAPACITY_PER_S = 7.6
BLOCK_SIZE = 16

_Lengths = Callable[[Chance, int], tuple[int, int]]


class Scenario(NamedTuple):
    """A load and the engine for it. `requests` arrive when no other count is asked for."""

    name: str
    summary: str
    load: Callable[[Chance, int], Iterator[TraceRequest]]
    requests: int = 500
    num_blocks: int = 4097  # the null block included
    max_model_len: int = 8192
    retries: int = 0


def scenario_named(name: str) -> Scenario:
    """Raises BadValueError for an unknown one."""
    try:
        return SCENARIOS[name]
    except KeyError:
        raise BadValueError(f"scenario: {name[:40]!r} is not known", fix=f"use one of {', '.join(SCENARIOS)}") from None


def _steady(chance: Chance, requests: int) -> Iterator[TraceRequest]:
    return _poisson(chance, requests, STEADY_PER_S, 2048, _assistant)


def _overload(factor: float) -> Callable[[Chance, int], Iterator[TraceRequest]]:
    return lambda chance, requests: _poisson(chance, requests, factor * _CAPACITY_PER_S, 2048, _assistant)


def _alternating(chance: Chance, requests: int) -> Iterator[TraceRequest]:
    """Every 100 requests chat and long documents take turns: a bound that is right for one is wrong for the other."""

    def lengths(chance: Chance, number: int) -> tuple[int, int]:
        if number // 100 % 2 == 0:
            return chance.randint(30, 300), chance.randint(30, 250)
        return chance.randint(2500, 6000), chance.randint(200, 700)

    return _poisson(chance, requests, STEADY_PER_S, 1024, lengths)


def _reasoning(chance: Chance, requests: int) -> Iterator[TraceRequest]:
    """Clients declare 6,000 and use 1,600 on average."""

    def lengths(chance: Chance, number: int) -> tuple[int, int]:
        return chance.randint(50, 400), _lognormal(chance, 1200, 0.76, 16, 6000)

    return _poisson(chance, requests, 3.0, 6000, lengths)


def _small_pool(chance: Chance, requests: int) -> Iterator[TraceRequest]:
    return _poisson(chance, requests, 6.0, 2048, _assistant)


def _drifting(chance: Chance, requests: int) -> Iterator[TraceRequest]:
    """Answers get six times as long while the load runs, and requests come the less often."""

    def median(number: int) -> float:
        return 100 * 6 ** (number / max(1, requests - 1))

    def lengths(chance: Chance, number: int) -> tuple[int, int]:
        return _lognormal(chance, 500, 0.9, 16, 6000), _lognormal(chance, median(number), 0.7, 4, 2000)

    def rate(number: int) -> float:
        return 6000 / (median(number) * 1.28 + 150)  # a little over what is served, at either end

    return _spaced(chance, requests, rate, 2048, lengths)


def _bursty_code(chance: Chance, requests: int) -> Iterator[TraceRequest]:
    """Long prompts, short answers, and bursts of tens of requests between pauses (inter-arrival CV about 4)."""
    at_ns, left = 0, 0
    for _ in range(requests):
        if left == 0:
            left = 1 + int(chance.expovariate(1 / 24))
            at_ns += int(chance.expovariate(1 / 8.0) * 1e9)
        else:
            at_ns += int(chance.expovariate(20.0) * 1e9)
        left -= 1
        prompt = _lognormal(chance, 1469, 0.95, 20, 7400)
        yield _request(at_ns, prompt, _lognormal(chance, 13, 1.15, 1, 700), 512)


def _prefixes(chance: Chance, requests: int) -> Iterator[TraceRequest]:
    """Conversations that grow turn by turn behind one system prompt; `hash_ids` name blocks of 512 prompt tokens."""
    conversations: list[list[int]] = []
    fresh = 1
    for at_ns in _times(chance, requests, lambda number: 6.0):
        if conversations and chance.random() < 0.6:
            blocks = conversations[chance.randint(0, len(conversations) - 1)]
        else:
            blocks = [0]
            conversations = [*conversations[-200:], blocks]
        for _ in range(chance.randint(1, 4)):
            if len(blocks) < 14:
                blocks.append(fresh)
                fresh += 1
        prompt = len(blocks) * 512 - chance.randint(0, 511)
        yield _request(at_ns, prompt, _lognormal(chance, 250, 0.7, 4, 900), 1024, hash_ids=tuple(blocks))


def _shared_prompt(chance: Chance, requests: int) -> Iterator[TraceRequest]:
    """Short questions behind one prompt of instructions and tools, six ids long: most of what each needs is there."""
    for at_ns in _times(chance, requests, lambda number: 16.0):
        prompt = 6 * 512 + chance.randint(50, 400)
        yield _request(at_ns, prompt, _lognormal(chance, 250, 0.7, 4, 900), 1024, hash_ids=(0, 1, 2, 3, 4, 5))


def _tenant_flood(chance: Chance, requests: int) -> Iterator[TraceRequest]:
    """Three tenants at 1.5 requests a second each; a fourth at ten times that in the middle third of the time."""
    per_tenant = 1.5
    quiet = _times(chance, requests, lambda number: 3 * per_tenant)
    at = list(quiet)
    begin, end = at[len(at) // 3], at[2 * len(at) // 3]
    flood, at_ns = [], begin
    while True:
        at_ns += int(chance.expovariate(10 * per_tenant) * 1e9)
        if at_ns >= end:
            break
        flood.append(at_ns)
    arrivals = [(ns, f"tenant-{chance.randint(1, 3)}") for ns in at] + [(ns, "flood") for ns in flood]
    for number, (ns, tenant) in enumerate(sorted(arrivals)):
        prompt, output = _assistant(chance, number)
        yield _request(ns, prompt, output, 2048, tenant)


def _assistant(chance: Chance, number: int) -> tuple[int, int]:
    return _lognormal(chance, 600, 0.9, 16, 6000), _lognormal(chance, 300, 0.8, 4, 2000)


def _poisson(
    chance: Chance, requests: int, rate_per_s: float, max_tokens: int, lengths: _Lengths
) -> Iterator[TraceRequest]:
    return _spaced(chance, requests, lambda number: rate_per_s, max_tokens, lengths)


def _spaced(
    chance: Chance, requests: int, rate_per_s: Callable[[int], float], max_tokens: int, lengths: _Lengths
) -> Iterator[TraceRequest]:
    for number, at_ns in enumerate(_times(chance, requests, rate_per_s)):
        prompt, output = lengths(chance, number)
        yield _request(at_ns, prompt, output, max_tokens)


def _times(chance: Chance, requests: int, rate_per_s: Callable[[int], float]) -> Iterator[int]:
    """Arrivals of a Poisson process, in nanoseconds; the first is not at 0."""
    at_ns = 0
    for number in range(requests):
        at_ns += int(chance.expovariate(rate_per_s(number)) * 1e9)
        yield at_ns


def _lognormal(chance: Chance, median: float, sigma: float, least: int, most: int) -> int:
    """What is out of bounds is drawn in to them."""
    return min(most, max(least, round(chance.lognormvariate(math.log(median), sigma))))


def _request(
    at_ns: int,
    prompt: int,
    output: int,
    max_tokens: int,
    tenant: str = DEFAULT_TENANT,
    hash_ids: tuple[int, ...] = (),
) -> TraceRequest:
    return TraceRequest(at_ns, Tokens(prompt), Tokens(max_tokens), Tokens(min(output, max_tokens)), tenant, hash_ids)


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("steady", "assistant chat at 8 requests a second: fits without a gate", _steady),
        Scenario("overload-1.3", "assistant chat at 1.3 times what the engine serves", _overload(1.3)),
        Scenario("overload-1.7", "assistant chat at 1.7 times what the engine serves", _overload(1.7)),
        Scenario("alternating", "100 short chats, then 100 long documents, in turns", _alternating, requests=400),
        Scenario("reasoning", "clients declare 6,000 tokens and use 1,600", _reasoning, requests=300),
        Scenario("small-pool", "assistant chat on a pool of 1,024 blocks", _small_pool, 300, num_blocks=1025),
        Scenario("drifting", "answers grow to six times their length", _drifting, requests=800),
        Scenario("bursty-code", "code completion in bursts: long prompts, short answers", _bursty_code),
        Scenario("prefixes", "conversations that grow behind one system prompt", _prefixes),
        Scenario("shared-prompt", "short questions behind one long prompt", _shared_prompt, num_blocks=2049),
        Scenario("tenant-flood", "a fourth tenant floods three quiet ones for a while", _tenant_flood),
        Scenario(
            "retrying",
            "assistant chat at 1.7 times what the engine serves, by clients who come back up to five times",
            _overload(1.7),
            retries=5,
        ),
    )
}
