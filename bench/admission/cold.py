"""The first minute: gates that know nothing yet, or nothing of what comes now, beside one another.

`make bench-admission-cold`. Every load has a moment at which what was learned so far says nothing (in most of them the
first one, in the others after a warm minute). Told are tokens a second of good answers to those who came within 30 s
and within 60 s of it, and what is preempted in the whole run; clients who come back when told are a run of their own.

    python bench/admission/cold.py [--seeds 6] [--loads crowd,overload] [--no-sweep]
"""

import argparse
import multiprocessing
import os
import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any, Final, NamedTuple

from loads import Load
from scenario_rows import SWEEP, Returned, returned_of

from kvbudget.simulate.chance import Chance
from kvbudget.simulate.clients import Client
from kvbudget.simulate.cost import StepCost
from kvbudget.simulate.load import TraceRequest
from kvbudget.simulate.policies import Contender, contender
from kvbudget.simulate.run import Simulation
from kvbudget.simulate.scenarios import Scenario
from kvbudget.simulate.settings import Settings
from kvbudget.units import Tokens

RETRIES: Final = 5
WINDOWS_S: Final = (30, 60)
WARM_S: Final = 60
POLICIES: Final = ("none", "trajectory", "learned", "oracle")
_SLOW: Final = StepCost(base_ns=16_000_000, prefill_ns=120_000, decode_ns=40_000, context_ns=100)
_NS: Final = 10**9


class Cold(NamedTuple):
    """A load. `begins_s`: when what was learned says nothing. `before`: another load after which the gate was begun
    anew, with the state that it had saved."""

    load: Load
    begins_s: int = 0
    before: Load | None = None


class Cell(NamedTuple):
    """One run."""

    load: str
    seed: int
    policy: str
    retries: int = 0


class Seen(NamedTuple):
    """Of one run. `goodputs`: tokens/s, for each of WINDOWS_S."""

    goodputs: tuple[float, ...]
    document: dict[str, Any]


class _Watched(Simulation):
    """A run of which is told how many tokens of a good answer whoever came when got."""

    def __init__(self, load: Iterator[TraceRequest], settings: Settings, policy: Contender, chance: Chance) -> None:
        super().__init__(load, settings, policy, chance)
        self.good: list[tuple[int, int]] = []  # (arrival, tokens)

    def finished(self, client: Client, output_tokens: int, now_ns: int) -> None:
        """An instance has answered a client."""
        before = self.result.all.good_tokens
        super().finished(client, output_tokens, now_ns)
        self.good.append((client.request.arrival_ns, self.result.all.good_tokens - before))


def run(cell: Cell) -> tuple[Cell, Seen]:
    """What came of it."""
    cold = LOADS[cell.load]
    settings = cold.load.settings()
    settings = replace(settings, clients=replace(settings.clients, retries=cell.retries))
    policy = contender(cell.policy)
    one = _Watched(_requests(cold.load, cell.seed), settings, policy, random.Random(cell.seed + 1))
    if cold.before is not None and policy.policy is not None:
        one.instances[0].gate.learned.resume(_state_after(cell.load, cell.seed, policy))
    document = one.run().document()
    begins_ns = cold.begins_s * _NS
    goodputs = [
        sum(tokens for at_ns, tokens in one.good if begins_ns <= at_ns < begins_ns + window_s * _NS) / window_s
        for window_s in WINDOWS_S
    ]
    return cell, Seen(tuple(goodputs), document)


def _requests(load: Load, seed: int) -> Iterator[TraceRequest]:
    return load.scenario.load(random.Random(seed), load.scenario.requests)


@cache
def _state_after(name: str, seed: int, policy: Contender) -> dict[str, Any]:
    """What a gate had learned of the load before."""
    before = LOADS[name].before
    assert before is not None
    one = Simulation(_requests(before, seed + 1000), before.settings(), policy, random.Random(seed))
    one.run()
    return one.instances[0].gate.learned.state()


# The loads: assistant chat as in the scenarios, on their engine


def _chat(chance: Chance, factor: float = 1.0) -> tuple[int, int]:
    prompt = min(6000, max(16, round(chance.lognormvariate(0.0, 0.9) * 600)))
    return prompt, min(2000, max(4, round(chance.lognormvariate(0.0, 0.8) * 300 * factor)))


def _request(at_s: float, lengths: tuple[int, int], declares: int = 2048, tenant: str = "default") -> TraceRequest:
    return TraceRequest(int(at_s * _NS), Tokens(lengths[0]), Tokens(declares), Tokens(lengths[1]), tenant)


def _times(chance: Chance, begin_s: float, end_s: float, per_s: float) -> Iterator[float]:
    at_s = begin_s + chance.expovariate(per_s)
    while at_s < end_s:
        yield at_s
        at_s += chance.expovariate(per_s)


def _crowd(chance: Chance, requests: int) -> Iterator[TraceRequest]:
    for _ in range(requests):
        yield _request(0.0, _chat(chance))
    for at_s in _times(chance, 0.0, 60.0, 4.0):
        yield _request(at_s, _chat(chance))


def _overload(chance: Chance, requests: int) -> Iterator[TraceRequest]:
    for at_s in _times(chance, 0.0, 90.0, 13.0):
        yield _request(at_s, _chat(chance))


def _new_tenant(chance: Chance, requests: int) -> Iterator[TraceRequest]:
    """Short answers for a minute, then another tenant whose answers are four times as long comes on top."""
    known = [(at_s, "known") for at_s in _times(chance, 0.0, 150.0, 8.0)]
    unseen = [(at_s, "unseen") for at_s in _times(chance, WARM_S, 150.0, 5.0)]
    for at_s, tenant in sorted(known + unseen):
        yield _request(at_s, _chat(chance, 0.3 if tenant == "known" else 1.2), tenant=tenant)


def _tenfold(chance: Chance, requests: int) -> Iterator[TraceRequest]:
    """They declare ten times what answers take on average."""
    for at_s in _times(chance, 0.0, 90.0, 10.0):
        yield _request(at_s, _chat(chance), declares=4096)


def _drifting(chance: Chance, requests: int) -> Iterator[TraceRequest]:
    """A minute as ever, then a minute in which answers get four times as long, and stay so; requests come the less
    often."""
    at_s = 0.0
    while True:
        factor = 0.4 * 4 ** min(1.0, max(0.0, at_s / WARM_S - 1.0))
        at_s += chance.expovariate(4400 / (330 * factor + 180))
        if at_s > 150.0:
            return
        yield _request(at_s, _chat(chance, factor))


def _short(chance: Chance, requests: int) -> Iterator[TraceRequest]:
    for at_s in _times(chance, 0.0, 60.0, 20.0):
        yield _request(at_s, _chat(chance, 0.25))


def _long_and_slow(chance: Chance, requests: int) -> Iterator[TraceRequest]:
    for at_s in _times(chance, 0.0, 90.0, 4.5):
        yield _request(at_s, _chat(chance))


LOADS: Final = {
    cold.load.scenario.name: cold
    for cold in (
        Cold(Load(Scenario("crowd", "100 come at one moment, then 4 a second", _crowd, 100))),
        Cold(Load(Scenario("overload", "1.7 times what is served from the first second on", _overload))),
        Cold(Load(Scenario("new-tenant", "answers four times as long as all that are known", _new_tenant)), WARM_S),
        Cold(
            Load(Scenario("new-model", "longer answers in slower steps than were saved", _long_and_slow), _SLOW),
            before=Load(Scenario("before", "short answers", _short)),
        ),
        Cold(Load(Scenario("tenfold", "max_tokens ten times what answers take", _tenfold))),
        Cold(Load(Scenario("drifting", "answers get four times as long in a minute", _drifting)), WARM_S),
    )
}


# The table


def rows_of(found: dict[Cell, Seen], loads: list[str], seeds: range, policies: list[str]) -> list[str]:
    """Markdown."""
    told = [policy for policy in policies if policy not in SWEEP]
    heads = ["load", "s", *told, "best flags", "learned / oracle", "learned / flags", "preempted", "at once", "told"]
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---|" * (len(heads) - 1)]
    for load in loads:
        runs = [found[Cell(load, seed, "learned")].document for seed in seeds]
        preempted = [one["preemptions"] / one["requests"] for one in runs]
        back: Returned = returned_of([found[Cell(load, seed, "learned", RETRIES)].document for seed in seeds])
        for number, window_s in enumerate(WINDOWS_S):
            means = {
                policy: sum(found[Cell(load, seed, policy)].goodputs[number] for seed in seeds) / len(seeds)
                for policy in policies
            }
            flags = max((means[policy] for policy in policies if policy in SWEEP), default=None)
            cells = [load, str(window_s), *(f"{means[policy]:,.0f}" for policy in told)]
            cells.append("" if flags is None else f"{flags:,.0f}")
            others = (means.get("oracle"), flags)
            cells += ["" if other is None else f"{means['learned'] / max(1e-9, other):.3f}" for other in others]
            cells.append(f"{sum(preempted) / len(preempted):.2%}, {max(preempted):.2%}")
            cells.append("" if back.at_once is None else f"{back.at_once:.2f} of {back.returned}")
            cells.append("" if back.told_to_hindsight is None else f"{back.told_to_hindsight:.2f} ({back.known})")
            lines.append("| " + " | ".join(cells) + " |")
    return lines


def main(arguments: list[str] | None = None) -> int:
    """The table on stdout."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--loads", default=",".join(LOADS))
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--no-sweep", action="store_true", help="leave out vLLM's flags")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args(arguments)
    loads, seeds = args.loads.split(","), range(args.first_seed, args.first_seed + args.seeds)
    policies = [*args.policies.split(","), *(() if args.no_sweep else SWEEP)]
    cells = [Cell(load, seed, policy) for load in loads for seed in seeds for policy in policies]
    cells += [Cell(load, seed, "learned", RETRIES) for load in loads for seed in seeds]
    with multiprocessing.get_context("fork").Pool(args.jobs) as pool:
        found = dict(pool.imap_unordered(run, cells, chunksize=2))
    print("\n".join(rows_of(found, loads, seeds, policies)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
