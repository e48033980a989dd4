"""Decides which acceptance lines hold: one row each, with what is aimed at, what was measured, and where.

Timed figures (simulated requests a second) and the real engine are other benchmarks': `make bench-simulation`,
`make bench-admission-engine`.
"""

from collections.abc import Mapping
from typing import NamedTuple

from flood import CROWDS, Seen, jain, moved
from scenario_rows import Row

OF_ORACLE, OF_NONE, OF_SWEEP = 0.95, 0.99, 1.0
MOST_PREEMPTED_MEAN, MOST_PREEMPTED = 0.001, 0.01
AT_ONCE, TOLD_TO_HINDSIGHT = 0.80, 1.5
ENOUGH = 10  # clients who returned, or whose right time is known; fewer are told and not judged
MOST_MOVED, LEAST_JAIN = 1.1, 0.95


class Line(NamedTuple):
    """One acceptance line. `measured`: at its worst, `where` that is."""

    name: str
    aimed: str
    measured: float
    where: str
    holds: bool


def lines_of(rows: list[Row], crowds: dict[str, list[Seen]]) -> list[Line]:
    """All that were measured."""
    found: list[Line | None] = [
        _least("goodput / the same gate told every length", OF_ORACLE, {row.load: row.ratio("oracle") for row in rows}),
        _least(
            "goodput / best of the sweep over vLLM's own flags",
            OF_SWEEP,
            {row.load: row.ratio(row.best_flag) for row in rows},
        ),
        _least(
            "goodput / no gate, where none was needed",
            OF_NONE,
            {row.load: row.ratio("none") for row in rows if row.no_gate_needed},
        ),
    ]
    preempted = {row.load: row.preempted for row in rows}
    known = [share for share in preempted.values() if share is not None]
    if known:
        mean = sum(known) / len(known)
        found.append(
            Line("requests preempted, mean", f"<= {MOST_PREEMPTED_MEAN}", mean, "", mean <= MOST_PREEMPTED_MEAN)
        )
    found += [
        _most("requests preempted, worst", MOST_PREEMPTED, preempted),
        _least(
            "let in at once, of who returns when told",
            AT_ONCE,
            {row.load: row.returns.at_once for row in rows if row.returns.returned >= ENOUGH},
        ),
    ]
    told = {row.load: row.returns.told_to_hindsight for row in rows if row.returns.known >= ENOUGH}
    ratios = sorted(ratio for ratio in told.values() if ratio is not None)
    if ratios:
        middle = ratios[len(ratios) // 2]
        name = "told time / what it took in hindsight, medians"
        found.append(
            Line(f"{name}: median scenario", f"<= {TOLD_TO_HINDSIGHT}", middle, "", middle <= TOLD_TO_HINDSIGHT)
        )
        found.append(_most(f"{name}: worst scenario", TOLD_TO_HINDSIGHT, told))
    for name, seen in crowds.items():
        summary = CROWDS[name].summary
        if CROWDS[name].is_quiet is None:
            indices = {f"seed {number}": jain(one.held) for number, one in enumerate(seen, 1)}
            found.append(_least(f"{summary}: Jain's index of blocks x seconds", LEAST_JAIN, indices))
        else:
            each = {f"seed {number}": ratio for number, ratio in enumerate(moved(seen), 1)}
            middle = sorted(each.values())[len(each) // 2]
            line = f"{summary}: p99 TTFT / alone"
            found.append(Line(f"{line}, median seed", f"<= {MOST_MOVED}", middle, "", middle <= MOST_MOVED))
            found.append(_most(f"{line}, worst seed", MOST_MOVED, each))
    return [line for line in found if line is not None]


def table(lines: list[Line]) -> list[str]:
    """Markdown."""
    rows = ["| acceptance line | aimed | measured | where it is worst | |", "|---|---|---|---|---|"]
    for line in lines:
        verdict = "held" if line.holds else "**missed**"
        rows.append(f"| {line.name} | {line.aimed} | {line.measured:.4g} | {line.where} | {verdict} |")
    return rows


def _least(name: str, bound: float, values: Mapping[str, float | None]) -> Line | None:
    known = {where: value for where, value in values.items() if value is not None}
    if not known:
        return None
    where = min(known, key=known.__getitem__)
    return Line(name, f">= {bound}", known[where], where, known[where] >= bound)


def _most(name: str, bound: float, values: Mapping[str, float | None]) -> Line | None:
    known = {where: value for where, value in values.items() if value is not None}
    if not known:
        return None
    where = max(known, key=known.__getitem__)
    return Line(name, f"<= {bound}", known[where], where, known[where] <= bound)
