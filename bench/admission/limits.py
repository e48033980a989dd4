"""Shows where two aims of admission exclude one another: goodput beside a flood's victims, bulk beside what is urgent.

`make bench-admission-limits`. First table: the scenario `tenant-flood` under the default gate, under the same gate that
takes all for one tenant, and under every setting of vLLM's own flags: goodput, and what becomes of those who are
flooded. Second: an interactive class beside less and less bulk, down to where its first tokens come as if alone.

    python bench/admission/limits.py [--seeds 6] [--first-seed 6101] [--few]
"""

import argparse
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from flood import BULK, INTERACTIVE, SECONDS, Lengths, bulk, chat, documents
from loads import load_of
from scenario_rows import SWEEP

from kvbudget.simulate.histogram import Histogram
from kvbudget.simulate.load import TraceRequest
from kvbudget.simulate.outcome import Tally
from kvbudget.simulate.policies import contender
from kvbudget.simulate.run import simulate

FLOOD = "tenant-flood"
ONE_TENANT = "learned, all as one tenant"
FEW_FLAGS = ("max-num-queued-reqs=40", "max-num-queued-tokens=20000+watermark=0.05")
BULKS: tuple[tuple[str, Lengths, tuple[float, ...]], ...] = (
    ("documents of 2,500 to 6,000 tokens", documents, (4.0, 1.0, 0.5, 0.2, 0.1, 0.05)),
    ("chat of 30 to 300 tokens", chat, (30.0, 10.0, 5.0, 2.0)),
    ("one token, answered like chat", lambda chance: (1, chance.randint(30, 250)), (30.0, 10.0)),
)


def _simulated(load: Iterable[TraceRequest], seed: int, policy: str = "learned") -> tuple[float, dict[str, Tally]]:
    """(goodput, what became of each tenant and, by the number, of each class)"""
    result = simulate(load, load_of(FLOOD).settings(), contender(policy), random.Random(seed + 1))
    return result.goodput_tokens_per_s, result.tenants | result.classes


def _flooded(policy: str, seeds: range) -> tuple[float, Tally]:
    """(mean goodput, what became of all but the flood; of everybody where all are one tenant)"""
    goodputs, quiet = [], Tally()
    for seed in seeds:
        load: Iterator[TraceRequest] = load_of(FLOOD).scenario.load(random.Random(seed), 500)
        if policy == ONE_TENANT:
            load = (replace(request, tenant="all") for request in load)
        goodput, groups = _simulated(load, seed, "learned" if policy == ONE_TENANT else policy)
        goodputs.append(goodput)
        for tenant, tally in groups.items():
            if tenant.startswith("tenant-"):
                quiet.add(tally)
    return sum(goodputs) / len(goodputs), quiet


def _alone(
    load: Callable[[int], Iterable[TraceRequest]], is_quiet: Callable[[TraceRequest], bool], seeds: range
) -> int:
    """p99 of the first tokens of the quiet ones, in ns, if nobody else comes."""
    ttft = Histogram()
    for seed in seeds:
        for tally in _simulated(filter(is_quiet, load(seed)), seed)[1].values():
            ttft.add_all(tally.ttft)  # twice: in its tenant and in its class
    return ttft.percentile(0.99) or 1


def floods(seeds: range, flags: Iterable[str]) -> list[str]:
    """Markdown: goodput, and what becomes of who is flooded."""
    scenario = load_of(FLOOD).scenario
    alone_ns = _alone(
        lambda seed: scenario.load(random.Random(seed), 500), lambda request: request.tenant != "flood", seeds
    )
    lines = [
        f"| {FLOOD} | goodput, tokens/s | p99 TTFT of the others, s | over alone ({alone_ns / 1e9:.3f} s) | good |",
        "|---|---:|---:|---:|---:|",
    ]
    for policy in ("learned", ONE_TENANT, *flags):
        goodput, quiet = _flooded(policy, seeds)
        row = f"| {policy} | {goodput:,.0f} "
        p99_ns = quiet.ttft.percentile(0.99)
        if p99_ns is None:
            lines.append(row + "| | | |")
        else:
            lines.append(row + f"| {p99_ns / 1e9:.3f} | {p99_ns / alone_ns:.1f} | {quiet.good / quiet.requests:.3f} |")
    return lines


def bulks(seeds: range, *, few: bool = False) -> list[str]:
    """Markdown: chat at 3 requests a second beside so much bulk in a less urgent class."""
    lines = ["| bulk | a second | served a second | p99 TTFT of chat, s | over alone |", "|---|---:|---:|---:|---:|"]
    for name, lengths, rates in BULKS:
        alone_ns = _alone(bulk(lengths, rates[0]), lambda request: request.priority == INTERACTIVE, seeds)
        for per_s in rates[:1] if few else rates:
            ttft, served = Histogram(), 0
            for seed in seeds:
                groups = _simulated(bulk(lengths, per_s)(seed), seed)[1]
                ttft.add_all(groups[str(INTERACTIVE)].ttft)
                served += groups[str(BULK)].good if str(BULK) in groups else 0
            p99_ns = ttft.percentile(0.99) or 0
            of_bulk = 3 * served / SECONDS / len(seeds)  # it comes in a third of the time
            lines.append(f"| {name} | {per_s:g} | {of_bulk:.2f} | {p99_ns / 1e9:.3f} | {p99_ns / alone_ns:.2f} |")
    return lines


def main(arguments: list[str] | None = None) -> int:
    """Both tables on stdout."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--first-seed", type=int, default=6101)
    parser.add_argument("--few", action="store_true", help="the largest bulk and two settings of flags only")
    args = parser.parse_args(arguments)
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    print("\n".join([*floods(seeds, FEW_FLAGS if args.few else SWEEP), "", *bulks(seeds, few=args.few)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
