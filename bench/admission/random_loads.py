"""Loads that nobody thought of: everything about them is drawn from a seed. Where is `learned` behind?

One to three kinds of requests (lengths, what is declared, class), one to three engines of some card, pool and places;
steady, bursts, a ramp, on and off, conversations whose prompts grow, 200 at once again and again; half to three times
what can be served; clients who come back or do not. Each beside no gate, four settings of vLLM's flags and the same
gate told every length. Whoever changes a rule of admission looks here first: the usual scenarios are few, and known.

    python bench/admission/random_loads.py [--first 0] [--loads 60] [--jobs 2] [--policies learned] [--out FILE.json]
"""

import argparse
import json
import math
import multiprocessing
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from kvbudget.pool.groups import uniform_layout
from kvbudget.simulate.cost import DEFAULT_COST, StepCost
from kvbudget.simulate.load import TraceRequest
from kvbudget.simulate.policies import contender
from kvbudget.simulate.run import simulate
from kvbudget.simulate.settings import ClientHabits, EngineSizes, Settings
from kvbudget.units import Tokens

REQUESTS = 1000
FLAGS = tuple(
    f"max-num-queued-{limit}+watermark=0.05" for limit in ("reqs=24", "reqs=64", "tokens=10000", "tokens=40000")
)
LONGEST_PROMPT, LONGEST_ANSWER = 5500, 2000
PREFIX_TOKENS = 512  # that one of a request's hash ids stands for
MOST_IDS = 10  # a conversation ends there


class Kind(NamedTuple):
    """Medians and spreads (of the logarithm) of prompts and answers; `declares`: exact, twice, fixed or nothing."""

    prompt: float
    prompt_spread: float
    answer: float
    answer_spread: float
    declares: str
    weight: float
    priority: int

    def prompt_tokens(self, chance: random.Random) -> int:
        """Of one request."""
        return int(min(LONGEST_PROMPT, max(4, self.prompt * chance.lognormvariate(0, self.prompt_spread))))

    def answer_tokens(self, chance: random.Random) -> int:
        """Of one request."""
        return int(min(LONGEST_ANSWER, max(2, self.answer * chance.lognormvariate(0, self.answer_spread))))


class World(NamedTuple):
    """A load and what it meets."""

    kinds: tuple[Kind, ...]
    pattern: str
    times_over: float  # what can be served
    tenants: int
    fixed_limit: int
    by_priority: bool
    settings: Settings

    def requests(self, seed: int) -> list[TraceRequest]:
        """In order of arrival."""
        chance = random.Random(seed)
        if self.pattern == "sessions":
            return self._sessions(chance)
        requests, weights = [], [kind.weight for kind in self.kinds]
        for at_s in self._times(chance):
            number = chance.choices(range(len(self.kinds)), weights)[0]
            kind = self.kinds[number]
            requests.append(self._request(kind, at_s, kind.prompt_tokens(chance), f"t{number % self.tenants}", chance))
        return requests

    @property
    def per_s(self) -> float:
        """Requests, on average."""
        chance, sizes = random.Random(1), self.settings.engine
        cost, held, work = sizes.cost, 0.0, 0.0
        weights = [kind.weight for kind in self.kinds]
        for kind in chance.choices(self.kinds, weights, k=REQUESTS):
            prompt, answer = kind.prompt_tokens(chance), kind.answer_tokens(chance)
            context = min(sizes.num_blocks * 16 * 0.8, 40 * (prompt + answer))
            step_s = (cost.base_ns + 40 * cost.decode_ns + cost.context_ns * context) / 1e9
            held += (prompt + answer / 2) * answer * step_s / REQUESTS
            work += (prompt * cost.prefill_ns / 1e9 + answer * step_s / 40) / REQUESTS
        return self.times_over * self.settings.instances * min(sizes.usable_blocks * 16 * 0.85 / held, 1 / work)

    def _times(self, chance: random.Random) -> Iterator[float]:
        at_s, per_s = 0.0, self.per_s
        for number in range(REQUESTS):
            match self.pattern:
                case "crowds":
                    at_s += 0.0 if number % 200 else 200 / per_s
                case "burst":
                    at_s += 0.0 if chance.random() < 0.6 else chance.expovariate(0.4 * per_s)
                case "ramp":
                    at_s += chance.expovariate((0.4 + 1.2 * number / REQUESTS) * per_s)
                case "onoff":
                    at_s += chance.expovariate((3.0 if int(at_s) // 10 % 3 == 0 else 0.35) * per_s)
                case _:
                    at_s += chance.expovariate(per_s)
            yield at_s

    def _sessions(self, chance: random.Random) -> list[TraceRequest]:
        requests: list[TraceRequest] = []
        began_s, next_id, per_s = 0.0, 0, self.per_s
        while len(requests) < REQUESTS:
            began_s += chance.expovariate(per_s / 4)
            at_s, ids, tenant = began_s, [-1, -2], f"t{chance.randrange(self.tenants)}"  # a system prompt of all
            for _ in range(chance.randint(1, 8)):
                kind = chance.choice(self.kinds)
                more = 1 + min(3, kind.prompt_tokens(chance) // PREFIX_TOKENS)
                ids += range(next_id, next_id + more)
                next_id += more
                if len(ids) > MOST_IDS:
                    break
                tokens = len(ids) * PREFIX_TOKENS - chance.randint(0, 400)
                request = self._request(kind, at_s, tokens, tenant, chance, tuple(ids))
                requests.append(request)
                at_s += request.output_tokens * 0.03 + chance.expovariate(1 / 8)
        return sorted(requests, key=lambda request: request.arrival_ns)[:REQUESTS]

    def _request(
        self, kind: Kind, at_s: float, prompt: int, tenant: str, chance: random.Random, ids: tuple[int, ...] = ()
    ) -> TraceRequest:
        answer = kind.answer_tokens(chance)
        limits = {"exact": answer, "twice": min(2048, 2 * answer), "fixed": max(self.fixed_limit, answer)}
        return TraceRequest(
            int(at_s * 1e9),
            Tokens(prompt),
            Tokens(limits.get(kind.declares, answer)),
            Tokens(answer),
            tenant,
            ids,
            declared=kind.declares != "nothing",
            priority=kind.priority if self.by_priority else 0,
        )


def world(seed: int) -> World:
    """The one of that seed."""
    draw = random.Random(seed)

    def between(low: float, high: float) -> float:
        return math.exp(draw.uniform(math.log(low), math.log(high)))

    kinds = tuple(
        Kind(
            between(30, 4000), draw.uniform(0.2, 1.2), between(8, 900), draw.uniform(0.1, 1.3),
            draw.choice(["exact", "twice", "fixed", "fixed", "fixed", "nothing"]), draw.uniform(0.2, 1.0),
            draw.choice([0, 0, 0, 1, -1]),
        )
        for _ in range(draw.choice([1, 2, 2, 3]))
    )  # fmt: skip
    by_priority = draw.random() < 0.3
    engine = EngineSizes(
        uniform_layout(Tokens(16)),
        draw.choice([1025, 2049, 4097, 8193]),
        8192,
        max_num_seqs=draw.choice([32, 128, 256, 256]),
        max_num_batched_tokens=draw.choice([2048, 8192, 8192]),
        by_priority=by_priority,
        async_scheduling=draw.random() < 0.5,
        cost=StepCost(*(int(part * draw.choice([0.5, 1.0, 1.0, 3.0])) for part in DEFAULT_COST)),
    )
    patience_s = draw.choice([30, 30, 10, None])
    clients = ClientHabits(None if patience_s is None else patience_s * 10**9, draw.choice([0, 0, 3, 5]))
    return World(
        kinds,
        draw.choice(["steady", "burst", "ramp", "onoff", "sessions", "sessions", "crowds"]),
        draw.choice([0.5, 0.8, 1.0, 1.2, 1.5, 2.0, 3.0]),
        draw.choice([1, 1, 2, 4]),
        draw.choice([512, 1024, 2048]),
        by_priority,
        Settings(engine, clients=clients, instances=draw.choice([1, 1, 1, 2, 3])),
    )


def run(task: tuple[int, tuple[str, ...]]) -> tuple[int, dict[str, Any]]:
    """(seed, what came of each policy)."""
    seed, policies = task
    drawn = world(seed)
    requests = drawn.requests(seed)
    outcomes = {
        policy: simulate(iter(requests), drawn.settings, contender(policy), random.Random(seed + 1)).document()
        for policy in policies
    }
    return seed, outcomes


def described(drawn: World) -> str:
    """In a few words."""
    engine, clients = drawn.settings.engine, drawn.settings.clients
    kinds = ", ".join(f"{kind.prompt:.0f}/{kind.answer:.0f} {kind.declares}" for kind in drawn.kinds)
    return (
        f"{drawn.pattern} x{drawn.times_over:g}, {drawn.settings.instances} of {engine.num_blocks} blocks, "
        f"{engine.max_num_seqs} places, {drawn.tenants} tenants, {clients.retries} retries: {kinds}"
    )


def line(seed: int, outcomes: dict[str, Any]) -> str:
    """A row of the table."""
    goodput = {policy: document["goodput_tokens_per_s"] for policy, document in outcomes.items()}
    ours, returns = outcomes["learned"], outcomes["learned"]["retry_after"]
    flags = max((goodput[flag] for flag in FLAGS if flag in goodput), default=0.0)

    def over(other: float) -> str:
        return f"{goodput['learned'] / other:.3f}" if other else ""

    at_once = "" if returns["share_at_once"] is None else f"{returns['share_at_once']:.2f} of {returns['returned']}"
    cells = (
        str(seed), f"{goodput['learned']:,.0f}", over(goodput.get("none", 0.0)), over(goodput.get("oracle", 0.0)),
        over(flags), f"{ours['slo_fraction']:.2f}", str(ours["preempted_requests"]),
        str(ours["refusals"].get("deadline", 0)), at_once, described(world(seed)),
    )  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """The table on stdout, a row as it is found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--loads", type=int, default=60)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--policies", default=",".join(("none", "learned", "oracle", *FLAGS)), help="learned is one")
    parser.add_argument("--out", type=Path, help="goodput of each, to compare two states of the code by")
    args = parser.parse_args()
    policies = tuple(args.policies.split(","))
    print("| load | learned, tokens/s | / none | / oracle | / best flags | SLO | preempted | in vain | at once | |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    tasks = [(seed, policies) for seed in range(args.first, args.first + args.loads)]
    found = {}
    with multiprocessing.get_context("fork").Pool(args.jobs) as pool:
        for seed, outcomes in pool.imap(run, tasks):
            print(line(seed, outcomes), flush=True)
            found[seed] = {policy: document["goodput_tokens_per_s"] for policy, document in outcomes.items()}
    if args.out is not None:
        args.out.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
