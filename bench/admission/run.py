"""Admission policies beside one another: every scenario, several seeds, and a sweep over vLLM's own flags.

`make bench-admission`. Nothing is set by hand for any scenario: every gate runs with its defaults. Prints one Markdown
table and whether each line that is aimed at is held or missed.

    python bench/admission/run.py [--seeds 3] [--scenarios steady,drifting] [--others] [--policies learned,oracle]
"""

import argparse
import json
import multiprocessing
import os
import random
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from loads import OTHERS, load_of

from kvbudget.simulate.policies import contender
from kvbudget.simulate.run import simulate
from kvbudget.simulate.scenarios import SCENARIOS

POLICIES = ("none", "worst-case", "trajectory", "learned", "oracle")
SWEEP = (
    *(f"max-num-queued-reqs={n}{mark}" for n in (24, 40, 64, 96, 128) for mark in ("", "+watermark=0.05")),
    *(f"max-num-queued-tokens={n}+watermark=0.05" for n in (5_000, 10_000, 20_000, 40_000)),
    "watermark=0.01",
    "watermark=0.05",
)
OF_ORACLE, OF_NONE, OF_SWEEP = 0.95, 0.99, 1.0
NEEDED_NO_GATE = 0.99  # the share of good answers from which on no gate was needed
MOST_PREEMPTED_MEAN, MOST_PREEMPTED = 0.001, 0.01
AT_ONCE, TOLD_TO_HINDSIGHT = 0.80, 1.5


class Cell(NamedTuple):
    """One run."""

    load: str
    seed: int
    policy: str


class Mean(NamedTuple):
    """One policy in one scenario, over all seeds."""

    goodput: float  # tokens/s of good answers
    slo: float
    preempted: float  # of all requests
    refused: float
    ttft99_s: float
    pool_use: float


def run(cell: Cell) -> tuple[Cell, dict[str, Any]]:
    """The document of one run."""
    load = load_of(cell.load)
    requests = load.scenario.load(random.Random(cell.seed), load.scenario.requests)
    result = simulate(requests, load.settings(), contender(cell.policy), random.Random(cell.seed + 1))
    return cell, result.document()


def run_all(cells: list[Cell], jobs: int) -> dict[Cell, dict[str, Any]]:
    """All of them, in `jobs` processes."""
    found: dict[Cell, dict[str, Any]] = {}
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        for cell, document in pool.imap_unordered(run, cells, chunksize=4):
            found[cell] = document
            if sys.stderr.isatty():
                print(f"\r{len(found)}/{len(cells)} runs", end="", file=sys.stderr)
    if sys.stderr.isatty():
        print("\r" + " " * 30, end="\r", file=sys.stderr)
    return found


def mean_of(documents: list[dict[str, Any]]) -> Mean:
    """Means over seeds."""

    def mean(values: list[float]) -> float:
        return sum(values) / len(values)

    return Mean(
        mean([one["goodput_tokens_per_s"] for one in documents]),
        mean([one["slo_fraction"] for one in documents]),
        sum(one["preemptions"] for one in documents) / sum(one["requests"] for one in documents),
        mean([one["refused"] / one["requests"] for one in documents]),
        mean([one["ttft_s"]["p99"] or 0.0 for one in documents]),
        mean([one["pool_use_mean"] or 0.0 for one in documents]),
    )


class Row:
    """One scenario with all its contenders."""

    def __init__(self, load: str, documents: dict[str, list[dict[str, Any]]]) -> None:
        self.load = load
        self.means = {policy: mean_of(found) for policy, found in documents.items()}
        sweep = [policy for policy in self.means if policy in SWEEP]
        self.best_flag = max(sweep, key=lambda policy: self.means[policy].goodput) if sweep else None

    def ratio(self, other: str | None, policy: str = "learned") -> float | None:
        """Goodput of `policy` over that of the other; None where one was not run."""
        if policy not in self.means or other not in self.means:
            return None
        return self.means[policy].goodput / max(1e-9, self.means[other].goodput)

    @property
    def no_gate_needed(self) -> bool:
        """Whether the bare engine served practically everybody well."""
        return "none" in self.means and self.means["none"].slo >= NEEDED_NO_GATE

    def misses(self) -> list[str]:
        """Which acceptance lines this scenario misses."""
        missed = []
        for name, other, least in (("oracle", "oracle", OF_ORACLE), ("flags", self.best_flag, OF_SWEEP)):
            ratio = self.ratio(other)
            if ratio is not None and ratio < least:
                missed.append(f"{name} {ratio:.3f}")
        ratio = self.ratio("none")
        if self.no_gate_needed and ratio is not None and ratio < OF_NONE:
            missed.append(f"none {ratio:.3f}")
        if "learned" in self.means and self.means["learned"].preempted > MOST_PREEMPTED:
            missed.append(f"preempted {self.means['learned'].preempted:.2%}")
        return missed


def table(rows: list[Row]) -> list[str]:
    """Markdown."""
    lines = [
        "| scenario | none | worst-case | trajectory | **learned** | oracle | best flags | learned/oracle | "
        "learned/flags | learned/none | preempted | refused | TTFT p99 s | pool | misses |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        goodputs = [_number(row.means[name].goodput) if name in row.means else "" for name in POLICIES]
        flags = f"{row.means[row.best_flag].goodput:,.0f} ({_short(row.best_flag)})" if row.best_flag else ""
        ratios = [_ratio(row.ratio(other)) for other in ("oracle", row.best_flag, "none")]
        ours = row.means.get("learned")
        rest = ["", "", "", ""]
        if ours is not None:
            rest = [f"{ours.preempted:.2%}", f"{ours.refused:.0%}", f"{ours.ttft99_s:.2f}", f"{ours.pool_use:.0%}"]
        note = ", ".join(row.misses()) or "-"
        lines.append("| " + " | ".join([row.load, *goodputs, flags, *ratios, *rest, note]) + " |")
    return lines


def judged(rows: list[Row], told: dict[str, float | int | None]) -> list[str]:
    """Every line that is aimed at with what was measured, and whether it holds."""
    checks: list[tuple[str, float, bool]] = []

    def least(name: str, values: list[float | None], bound: float) -> None:
        known = [value for value in values if value is not None]
        if known:
            checks.append((f"{name} >= {bound}: the least", min(known), min(known) >= bound))

    least("learned / oracle", [row.ratio("oracle") for row in rows], OF_ORACLE)
    least("learned / best of vLLM's flags", [row.ratio(row.best_flag) for row in rows], OF_SWEEP)
    least(
        "learned / no gate, where none was needed", [row.ratio("none") for row in rows if row.no_gate_needed], OF_NONE
    )
    preempted = [row.means["learned"].preempted for row in rows if "learned" in row.means]
    if preempted:
        average = sum(preempted) / len(preempted)
        checks.append(("requests preempted <= 0.1 %: mean", average, average <= MOST_PREEMPTED_MEAN))
        checks.append(("requests preempted <= 1 %: most", max(preempted), max(preempted) <= MOST_PREEMPTED))
    if told["at_once"] is not None:
        checks.append(("who returns when told is let in at once >= 80 %", told["at_once"], told["at_once"] >= AT_ONCE))
    if told["ratio"] is not None:
        told_well = told["ratio"] <= TOLD_TO_HINDSIGHT
        checks.append(("told time / hindsight <= 1.5: median", told["ratio"], told_well))
    return [f"- {'holds ' if good else 'MISSED'}  {name} {value:.4f}" for name, value, good in checks]


def retry_times(documents: list[dict[str, Any]]) -> dict[str, float | int | None]:
    """Retry-After of `learned`, over all runs: share let in at once, and the median of told over hindsight."""
    told = [one["retry_after"] for one in documents]
    returned = sum(one["returned"] for one in told)
    ratios = sorted(one["told_to_hindsight"] for one in told if one["told_to_hindsight"] is not None)
    return {
        "at_once": sum(one["admitted_at_once"] for one in told) / returned if returned else None,
        "ratio": ratios[len(ratios) // 2] if ratios else None,
        "returned": returned,
    }


def main(arguments: list[str] | None = None) -> int:
    """Exit 1: an acceptance line is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--scenarios", default="", help="default: all")
    parser.add_argument("--others", action="store_true", help="also loads that nothing was ever tuned on")
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--no-sweep", action="store_true", help="leave out vLLM's flags")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--keep", type=Path, help="runs by policies other than learned and oracle are kept here")
    parser.add_argument("--out", type=Path, help="also write the table here")
    args = parser.parse_args(arguments)
    names = [*SCENARIOS, *(OTHERS if args.others else ())]
    if args.scenarios:
        names = args.scenarios.split(",")
    policies = [*args.policies.split(","), *(() if args.no_sweep else SWEEP)]
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    cells = [Cell(name, seed, policy) for name in names for seed in seeds for policy in policies]
    started = time.monotonic()
    found = _kept(args.keep)
    found |= run_all([cell for cell in cells if cell not in found], args.jobs)
    _keep(args.keep, found)
    rows = [
        Row(name, {policy: [found[Cell(name, seed, policy)] for seed in seeds] for policy in policies})
        for name in names
    ]
    learned = [found[cell] for cell in cells if cell.policy == "learned"]
    verdict = judged(rows, retry_times(learned)) if learned else []
    head = (
        f"{len(cells)} runs in {time.monotonic() - started:.0f} s; SLO goodput in tokens/s, means of {args.seeds} seeds"
    )
    text = "\n".join([head, "", *table(rows), "", *verdict])
    print(text)
    if args.out is not None:
        args.out.write_text(text + "\n", encoding="utf-8")
    return 0


def _kept(path: Path | None) -> dict[Cell, dict[str, Any]]:
    if path is None or not path.exists():
        return {}
    return {Cell(*key): document for key, document in json.loads(path.read_text(encoding="utf-8"))}


def _keep(path: Path | None, found: dict[Cell, dict[str, Any]]) -> None:
    if path is not None:
        fixed = [[list(cell), document] for cell, document in found.items() if cell.policy not in ("learned", "oracle")]
        path.write_text(json.dumps(fixed), encoding="utf-8")


def _number(value: float) -> str:
    return f"{value:,.0f}"


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _short(flags: str) -> str:
    return flags.replace("max-num-queued-", "").replace("watermark", "wm")


if __name__ == "__main__":
    sys.exit(main())
