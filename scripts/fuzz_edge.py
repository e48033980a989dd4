"""Throws bytes and broken networks at the edge of the gate; what is found is told with the line that repeats it.

    python scripts/fuzz_edge.py requests --count 1000000 --seed 1    # whole connections, beside h11 and aiohttp
    python scripts/fuzz_edge.py faults --seeds 20 --step 1           # every k-th operation of the network fails
    python scripts/fuzz_edge.py faults --seeds 20 --engines 2        # the same before two, while an operator switches
    python scripts/fuzz_edge.py faults --seed 3 --fault reset:412    # one run again, with its log

Exit 1 when something was found. A run of `faults` is a whole gate with seven clients on a virtual network and clock: all
blocks must be back, every client must have been answered or cut, and no wrong byte may have reached anybody.
"""

import argparse
import logging
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import aiohttp_twin
import h11_twin
from h11_twin import made_connection
from virtual_gate import run
from virtual_network import Fault

KINDS = ("reset", "end", "stall")
_EVERY_S = 30.0
_MOST_SHOWN = 20
_READERS = {"h11": h11_twin.difference, "aiohttp": aiohttp_twin.difference}


def main() -> int:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("requests", "faults"))
    parser.add_argument("--count", type=int, default=100_000, help="connections to compare (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="the first seed (%(default)s)")
    parser.add_argument("--seeds", type=int, default=1, help="so many seeds of faults (%(default)s)")
    parser.add_argument("--step", type=int, default=1, help="only every so many-th operation fails (%(default)s)")
    parser.add_argument(
        "--engines", type=int, default=1, help="engines behind the gate; of 2, an operator is at work too"
    )
    parser.add_argument("--fault", metavar="KIND:NUMBER", help="this one alone")
    args = parser.parse_args()
    if args.what == "requests":
        return _requests(args.count, args.seed)
    if args.fault is not None:
        kind, _, number = args.fault.partition(":")
        problem = _run(args.seed, Fault(int(number), kind), args.engines)
        print(problem or "nothing is wrong")
        return 1 if problem else 0
    logging.disable(logging.CRITICAL)
    return _faults(range(args.seed, args.seed + args.seeds), args.step, args.engines)


def _requests(count: int, seed: int) -> int:
    chance = random.Random(seed)
    found, began, told_at = 0, time.monotonic(), time.monotonic()
    for number in range(count):
        wire = made_connection(chance)
        cuts = sorted(chance.randrange(len(wire)) for _ in range(chance.choice((0, 1, 3))))
        for reader, difference in _READERS.items():
            try:
                told = difference(wire, cuts)
            except Exception as error:
                told = f"crash: {error!r}"
            if told:
                found += 1
                if found <= _MOST_SHOWN:
                    print(f"{reader}: {told}\n  seed {seed}, input {number}, cuts {cuts}: {wire!r}")
        if time.monotonic() - told_at > _EVERY_S:
            told_at = time.monotonic()
            print(f"{number + 1} of {count}, {found} found", file=sys.stderr)
    print(
        f"{count} connections beside {' and '.join(_READERS)}, {found} read differently, {time.monotonic() - began:.0f} s"
    )
    return 1 if found else 0


def _faults(seeds: range, step: int, engines: int) -> int:
    runs = found = 0
    for seed in seeds:
        operations = run(seed, engines=engines).operations
        for kind in KINDS:
            for number in range(seed % step, operations, step):
                runs += 1
                problem = _run(seed, Fault(number, kind), engines)
                if problem:
                    found += 1
                    print(f"--seed {seed} --engines {engines} --fault {kind}:{number}: {problem}")
    print(f"{runs} runs with one fault each, {found} left something behind")
    return 1 if found else 0


def _run(seed: int, fault: Fault, engines: int) -> str:
    try:
        told = run(seed, fault, engines=engines)
    except Exception as error:
        return repr(error)
    return "; ".join(told.failures + told.wrong)


if __name__ == "__main__":
    sys.exit(main())
