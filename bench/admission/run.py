"""Admission policies beside one another, and every acceptance line of admission judged in one table.

`make bench-admission`. Nothing is set by hand for any scenario: every gate runs with its defaults. Three parts: every
scenario with every policy and a sweep over vLLM's own flags; every scenario again with clients who come back when they
are told to (up to RETRIES times); and crowds in which one tenant or class floods others. Exit 0, but with --strict 1
if a line is missed.

    python bench/admission/run.py [--quick] [--seeds 3] [--scenarios steady,drifting] [--others] [--strict]
"""

import argparse
import heapq
import json
import multiprocessing
import os
import random
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import judge
import scenario_rows
from flood import CROWDS, Seen, watch
from loads import OTHERS, load_of
from scenario_rows import POLICIES, SWEEP, Document, Row

from kvbudget.simulate.policies import contender
from kvbudget.simulate.run import simulate
from kvbudget.simulate.scenarios import SCENARIOS

RETRIES = 5
QUICK_SWEEP = ("max-num-queued-reqs=64+watermark=0.05", "max-num-queued-tokens=10000+watermark=0.05", "watermark=0.05")


class Cell(NamedTuple):
    """One run. `retries` None: as the scenario has them; `policy` "crowd": `load` is one of CROWDS. `instances`: each
    adds a load of its own."""

    load: str
    seed: int
    policy: str
    retries: int | None = None
    instances: int = 1


def run(cell: Cell) -> tuple[Cell, Any]:
    """What came of it: a document, or Seen of a crowd."""
    if cell.policy == "crowd":
        return cell, watch(cell.load, cell.seed)
    load = load_of(cell.load)
    settings = replace(load.settings(), instances=cell.instances)
    if cell.retries is not None:
        settings = replace(settings, clients=replace(settings.clients, retries=cell.retries))
    loads = [
        load.scenario.load(random.Random(cell.seed + 1_000_000 * number), load.scenario.requests)
        for number in range(cell.instances)
    ]
    requests = heapq.merge(*loads, key=lambda request: request.arrival_ns)
    return cell, simulate(requests, settings, contender(cell.policy), random.Random(cell.seed + 1)).document()


def run_all(cells: list[Cell], jobs: int) -> dict[Cell, Any]:
    """All of them, in `jobs` processes."""
    found: dict[Cell, Any] = {}
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        for cell, outcome in pool.imap_unordered(run, cells, chunksize=4):
            found[cell] = outcome
            if sys.stderr.isatty():
                print(f"\r{len(found)}/{len(cells)} runs", end="", file=sys.stderr)
    if sys.stderr.isatty():
        print("\r" + " " * 30, end="\r", file=sys.stderr)
    return found


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--scenarios", default="", help="default: all; none of the crowds then")
    parser.add_argument("--instances", type=int, default=1, help="so many engines, each with a load of its own")
    parser.add_argument("--others", action="store_true", help="also loads that nothing was ever tuned on")
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--no-sweep", action="store_true", help="leave out vLLM's flags")
    parser.add_argument("--quick", action="store_true", help="one seed, three settings of vLLM's flags")
    parser.add_argument("--strict", action="store_true", help="exit 1 if an acceptance line is missed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--keep", type=Path, help="runs by policies other than learned and oracle are kept here")
    parser.add_argument("--out", type=Path, help="also write the tables here")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """The tables on stdout."""
    args = parsed(arguments)
    names = args.scenarios.split(",") if args.scenarios else [*SCENARIOS, *(OTHERS if args.others else ())]
    crowds = [] if args.scenarios or args.instances > 1 else list(CROWDS)
    sweep = () if args.no_sweep else QUICK_SWEEP if args.quick else SWEEP
    policies = [*args.policies.split(","), *sweep]
    seeds = range(args.first_seed, args.first_seed + (1 if args.quick else args.seeds))
    several = args.instances
    cells = [Cell(name, seed, policy, None, several) for name in names for seed in seeds for policy in policies]
    returning = ["learned"] if "learned" in policies else []
    cells += [Cell(name, seed, policy, RETRIES, several) for name in names for seed in seeds for policy in returning]
    cells += [Cell(name, seed, "crowd") for name in crowds for seed in seeds]
    started = time.monotonic()
    found: dict[Cell, Any] = dict(_kept(args.keep))
    found |= run_all([cell for cell in cells if cell not in found], args.jobs)
    _keep(args.keep, found)
    rows = [
        Row(
            name,
            {policy: [found[Cell(name, seed, policy, None, several)] for seed in seeds] for policy in policies},
            [found[Cell(name, seed, policy, RETRIES, several)] for seed in seeds for policy in returning],
        )
        for name in names
    ]
    seen: dict[str, list[Seen]] = {name: [found[Cell(name, seed, "crowd")] for seed in seeds] for name in crowds}
    lines = judge.lines_of(rows, seen) if returning else []
    seconds = time.monotonic() - started
    text = "\n".join([
        f"{len(cells)} runs in {seconds:.0f} s by {args.jobs} processes; SLO goodput in tokens/s, means over "
        f"{len(seeds)} seeds from {args.first_seed} on; returns: of those who come when told how many are let in at "
        "once, and told time / hindsight of how many",
        "",
        *scenario_rows.table(rows),
        "",
        *judge.table(lines),
    ])  # fmt: skip
    print(text)
    if args.out is not None:
        args.out.write_text(text + "\n", encoding="utf-8")
    return int(args.strict and not all(line.holds for line in lines))


def _kept(path: Path | None) -> dict[Cell, Document]:
    if path is None or not path.exists():
        return {}
    return {Cell(*key): document for key, document in json.loads(path.read_text(encoding="utf-8"))}


def _keep(path: Path | None, found: dict[Cell, Any]) -> None:
    if path is not None:
        ours = ("learned", "oracle", "crowd")
        fixed = [[list(cell), document] for cell, document in found.items() if cell.policy not in ours]
        path.write_text(json.dumps(fixed), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
