"""Several gates before one engine beside one gate with all the traffic: goodput, preemptions, calls, what lies idle.

`make bench-bank`. Each request comes to one of four gates at random. Ways to share the pool: slices from a bank at a
round trip of 0.2, 1 and 5 ms; an exact reservation of every request at the ledger; an equal part each.

    python bench/bank/shared.py [--seeds 3] [--scenarios overload-1.7,drifting] [--policies learned] [--gates 4]
"""

import argparse
import json
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "admission"))

from loads import OTHERS, load_of

from kvbudget.simulate.policies import contender
from kvbudget.simulate.run import Simulation
from kvbudget.simulate.scenarios import SCENARIOS
from kvbudget.simulate.settings import Gates, PoolSharing
from kvbudget.simulate.shared_pool import SharedPool

ONE = "one gate"
_MS = 10**6


def ways(gates: int) -> dict[str, Gates | None]:
    """By name; the first is the mark."""
    return {
        ONE: None,
        "slices, 0.2 ms": Gates(gates, _MS // 5),
        "slices, 1 ms": Gates(gates, _MS),
        "slices, 5 ms": Gates(gates, 5 * _MS),
        "each, 1 ms": Gates(gates, _MS, PoolSharing.EACH),
        f"1/{gates} each": Gates(gates, 0, PoolSharing.STATIC),
    }


class Cell(NamedTuple):
    """One run."""

    load: str
    seed: int
    policy: str
    way: str
    gates: int
    factor: float


class Seen(NamedTuple):
    """What came of it. `idle`: blocks that somebody who waits could have had, as a mean part of the pool."""

    goodput: float
    slo: float
    preemptions: int
    wait99_s: float
    calls: float  # per try
    woken: float
    idle: float
    with_room: float


def run(cell: Cell) -> tuple[Cell, Seen]:
    """One simulation."""
    load = load_of(cell.load)
    settings = replace(load.settings(), shared=ways(cell.gates)[cell.way])
    requests: Any = load.scenario.load(random.Random(cell.seed), load.scenario.requests)
    if cell.factor != 1.0:
        requests = [replace(one, arrival_ns=int(one.arrival_ns / cell.factor)) for one in requests]
    simulation = Simulation(requests, settings, contender(cell.policy), random.Random(cell.seed + 1))
    document = simulation.run().document()
    calls = woken = idle = with_room = 0.0
    instance = simulation.instances[0]
    if isinstance(instance, SharedPool):
        calls, woken = instance.calls / document["tries"], instance.woken / document["tries"]
        looks = max(1, instance.idle.looks)
        idle = instance.idle.blocks / looks / instance.gate.ledger.pool_blocks
        with_room = instance.idle.with_room / looks
    return cell, Seen(
        document["goodput_tokens_per_s"],
        document["slo_fraction"],
        document["preemptions"],
        document["wait_s"]["p99"] or 0.0,
        calls,
        woken,
        idle,
        with_room,
    )


def tables(
    found: dict[Cell, Seen], names: list[str], policy: str, seeds: range, gates: int, factor: float
) -> list[str]:
    """Markdown, of one policy."""
    others = [way for way in ways(gates) if way != ONE]

    def of(name: str, way: str, value: Callable[[Seen], float]) -> float:
        cells = [found[Cell(name, seed, policy, way, gates, factor)] for seed in seeds]
        return sum(value(one) for one in cells) / len(cells)

    def goodput(one: Seen) -> float:
        return one.goodput

    lines = [
        f"{policy}: goodput of {gates} gates over that of one, {len(seeds)} seeds, arrivals x{factor:g}",
        "",
        f"| scenario | {ONE}, tokens/s | " + " | ".join(others) + " |",
        "|---|" + "---|" * (1 + len(others)),
    ]
    for name in names:
        mark = of(name, ONE, goodput)
        ratios = [of(name, way, goodput) / max(1e-9, mark) for way in others]
        lines.append(f"| {name} | {mark:,.0f} | " + " | ".join(f"{ratio:.3f}" for ratio in ratios) + " |")
    total = sum(of(name, ONE, goodput) for name in names)
    ratios = [sum(of(name, way, goodput) for name in names) / max(1e-9, total) for way in others]
    lines.append(f"| **all** | {total:,.0f} | " + " | ".join(f"**{ratio:.3f}**" for ratio in ratios) + " |")
    lines += [
        "",
        "| way | preemptions | calls per try | woken per try | idle, mean | idle, worst scenario | wait p99 s |",
        "|---|---|---|---|---|---|---|",
    ]
    for way in (ONE, *others):
        idle = [of(name, way, lambda one: one.idle) for name in names]
        lines.append(
            f"| {way} | {sum(of(name, way, lambda one: one.preemptions) for name in names) * len(seeds):.0f} "
            f"| {sum(of(name, way, lambda one: one.calls) for name in names) / len(names):.2f} "
            f"| {sum(of(name, way, lambda one: one.woken) for name in names) / len(names):.2f} "
            f"| {sum(idle) / len(idle):.2%} | {max(idle):.2%} "
            f"| {sum(of(name, way, lambda one: one.wait99_s) for name in names) / len(names):.1f} |"
        )
    return lines


def main(arguments: list[str] | None = None) -> int:
    """The tables on stdout."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--scenarios", default=",".join([*SCENARIOS, *OTHERS]))
    parser.add_argument("--policies", default="worst-case,learned")
    parser.add_argument("--gates", type=int, default=4)
    parser.add_argument("--factor", type=float, default=1.0, help="arrivals come so many times as fast")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--keep", type=Path, help="runs are kept here, and not done again")
    args = parser.parse_args(arguments)
    names, policies = args.scenarios.split(","), args.policies.split(",")
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    cells = [
        Cell(name, seed, policy, way, args.gates, args.factor)
        for name in names
        for seed in seeds
        for policy in policies
        for way in ways(args.gates)
    ]
    started = time.monotonic()
    found: dict[Cell, Seen] = {}
    if args.keep is not None and args.keep.exists():
        kept = [json.loads(line) for line in args.keep.read_text(encoding="utf-8").splitlines()]
        found = {Cell(*cell): Seen(*seen) for cell, seen in kept}
    with multiprocessing.get_context("fork").Pool(args.jobs) as pool:
        for cell, seen in pool.imap_unordered(run, [cell for cell in cells if cell not in found]):
            found[cell] = seen
            if args.keep is not None:
                with args.keep.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([cell, seen]) + "\n")
    for policy in policies:
        print("\n".join(tables(found, names, policy, seeds, args.gates, args.factor)), end="\n\n")
    print(f"{len(cells)} runs in {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
