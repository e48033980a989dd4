"""Very many bad worlds with several gates and their bank: which break a rule, and how many steps that was looked at.

`make bench-bank`. Exit 1 if a rule is broken; the line that is printed then names the seed that repeats it.

    python bench/bank/worlds.py [--seeds 1000] [--first-seed 0] [--jobs 2]
"""

import argparse
import multiprocessing
import os
import random
import sys
import time
from typing import NamedTuple

from kvbudget.simulate.bank_rules import RuleBrokenError
from kvbudget.simulate.bank_weather import weather_of
from kvbudget.simulate.bank_world import World


class Seen(NamedTuple):
    """One world."""

    seed: int
    steps: int
    calls: int
    served: int
    refused: int
    cut_off: int
    broken: str


def watch(seed: int) -> Seen:
    """One world, to its end or to the first broken rule."""
    chance = random.Random(seed)
    world = World(chance, weather_of(chance))
    broken = ""
    try:
        world.run()
    except RuleBrokenError as error:
        broken = str(error)
    return Seen(seed, world.steps, world.calls, world.finished, world.refused, world.cut_off, broken)


def main(arguments: list[str] | None = None) -> int:
    """One line each for what was seen, and for every world that breaks a rule."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args(arguments)
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    started = time.monotonic()
    with multiprocessing.get_context("fork").Pool(min(args.jobs, args.seeds)) as pool:
        seen = list(pool.imap_unordered(watch, seeds, chunksize=8))
    bad = sorted([one for one in seen if one.broken])
    for one in bad:
        print(f"python bench/bank/worlds.py --seeds 1 --first-seed {one.seed}: {one.broken}")
    print(
        f"{len(seen)} worlds, {sum(one.steps for one in seen):,} steps in {time.monotonic() - started:.0f} s: "
        f"{len(bad)} broke a rule; {sum(one.calls for one in seen):,} calls heard, "
        f"{sum(one.served for one in seen):,} requests served, {sum(one.refused for one in seen):,} refused, "
        f"{sum(one.cut_off for one in seen):,} cut off"
    )
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
