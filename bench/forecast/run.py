"""The forecast beside what people run today, on given series and on made ones that nothing was learned from.

    python bench/forecast/run.py demand.csv other.csv      # columns minute and kv_tokens, one row a minute
    KVBUDGET_DEMAND_SERIES=demand.csv:other.csv make bench-forecast

Without a series it says so and judges on the made ones alone. Of each series two capacities are tried, of which 95 % is
reached in 1 % and in 5 % of its minutes. Every minute below the limit after the first three days is a decision; it is
right to warn when the limit is reached within 30 minutes.
"""

import argparse
import json
import os
import pathlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from generators import demand

from kvbudget.diagnose.forecast.baselines import SATURATED, Rule, level_rule, line_rule
from kvbudget.diagnose.forecast.forecaster import Forecaster
from kvbudget.diagnose.forecast.history import DAY_MINUTES, History
from kvbudget.diagnose.forecast.score import Figures
from kvbudget.edge.demand_series import read_demand

FIRST_MADE_SEED = 90_000  # train.py begins at 20,000
TRAINED_DAYS = 3
HORIZON = 30
SHARES = {"1 %": 0.99, "5 %": 0.95}


def holt(level_weight: float, trend_weight: float) -> Rule:
    """Double exponential smoothing. Keeps state: one object a run, asked every minute."""
    state: dict[str, float] = {}

    def warns(history: History, capacity: float) -> bool:
        tokens = history.tokens[-1]
        level = level_weight * tokens + (1 - level_weight) * (state.get("level", tokens) + state.get("trend", 0.0))
        trend = trend_weight * (level - state.get("level", tokens)) + (1 - trend_weight) * state.get("trend", 0.0)
        state.update(level=level, trend=trend)
        return level + trend * history.horizon >= SATURATED * capacity

    return warns


def seasonal_ratio(history: History, capacity: float) -> bool:
    """Yesterday's maximum of the same half hour, times now over the same minute then."""
    if history.count <= DAY_MINUTES + HORIZON:
        return False
    then = max(history.tokens[-1 - DAY_MINUTES : -1 - DAY_MINUTES + HORIZON])
    ratio = history.mean(5) / max(1.0, history.mean(5, back=DAY_MINUTES))
    return then * ratio >= SATURATED * capacity


def seasonal_median(history: History, capacity: float) -> bool:
    """The median of the same half hour's maximum over the last three days."""
    if history.count <= 3 * DAY_MINUTES + HORIZON:
        return False
    days = [max(history.tokens[-1 - day * DAY_MINUTES :][:HORIZON]) for day in (1, 2, 3)]
    return float(np.median(days)) >= SATURATED * capacity


def rules() -> dict[str, Rule]:
    """New ones for each run."""
    return {
        "level > 0.75": level_rule(0.75), "level > 0.85": level_rule(0.85), "predict_linear[15m]": line_rule(15),
        "predict_linear[60m]": line_rule(60), "predict_linear[3h]": line_rule(180), "Holt .5 .1": holt(0.5, 0.1),
        "Holt .3 .05": holt(0.3, 0.05), "seasonal 24 h x ratio": seasonal_ratio, "seasonal median 3 d": seasonal_median,
    }  # fmt: skip


def judged(values: list[float], share: float) -> dict[str, Any]:
    """Figures of all rules, coverage, and microseconds of CPU a call of ours."""
    capacity = float(np.quantile(values, share)) / SATURATED
    forecaster = Forecaster(capacity, HORIZON, scored_after_minutes=TRAINED_DAYS * DAY_MINUTES, rules=rules())
    for minute, tokens in enumerate(values):
        forecaster.observe(minute, tokens)
    alone = Forecaster(capacity, HORIZON, rules={})
    began = time.process_time()
    for minute, tokens in enumerate(values):
        alone.observe(minute, tokens)
    spent_us = (time.process_time() - began) / len(values) * 1e6
    coverage, _ = forecaster.coverage
    return {"rules": forecaster.scores(), "coverage": coverage, "us": spent_us}


def costs(values: list[float]) -> dict[str, float]:
    """Microseconds of CPU a call of the rules beside, on the last day of a series."""
    history, capacity, found = History(HORIZON), 1e12, {}
    for tokens in values:
        history.push(tokens)
    for name, rule in rules().items():
        began = time.process_time()
        for _ in range(2000):
            rule(history, capacity)
        found[name] = (time.process_time() - began) / 2000 * 1e6
    return found


def table(judgement: dict[str, Any], us: dict[str, float]) -> list[str]:
    """One line a rule."""
    lines = [
        "| rule | P | R | F1 | false episodes a day | onsets warned >= 25 min | us a call |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in judgement["rules"].items():
        cost = judgement["us"] if name == "forecast" else us[name]
        shown = f"**{name}**" if name == "forecast" else name
        figures = [_two(value) for value in (row.precision, row.recall, row.f1, row.false_episodes_per_day)]
        lines.append(f"| {shown} | {' | '.join(figures)} | {row.warned_onsets} of {row.onsets} | {cost:.0f} |")
    return [*lines, "", f"90 % interval: held {judgement['coverage']:.1%}."]


def _two(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def made_table(count: int) -> list[str]:
    """Means over made series."""
    sums: dict[str, list[list[float]]] = {}
    held = []
    for seed in range(FIRST_MADE_SEED, FIRST_MADE_SEED + count):
        values = demand(seed, days=10).tolist()
        for share in SHARES.values():
            judgement = judged(values, share)
            held.append(judgement["coverage"])
            if judgement["rules"]["forecast"].positives < 20:
                continue  # its few minutes lie in the first three days
            for name, row in judgement["rules"].items():
                sums.setdefault(name, []).append(_row(row))
    lines = ["| rule | F1 | false episodes a day | onsets warned >= 25 min |", "|---|---|---|---|"]
    for name, rows in sums.items():
        f1, false, warned = np.nanmean(np.array(rows), axis=0)
        lines.append(f"| {name} | {f1:.3f} | {false:.2f} | {warned:.0%} |")
    best = sum(max(range(len(one)), key=lambda at: one[at][0]) == 0 for one in zip(*sums.values(), strict=True))
    total = len(sums["forecast"])
    lines += ["", f"Best F1 of all rules in {best} of {total}. 90 % interval: held {min(held):.1%} to {max(held):.1%}."]
    return lines


def _row(row: Figures) -> list[float]:
    warned = row.warned_onsets / row.onsets if row.onsets else float("nan")
    return [row.f1 or 0.0, row.false_episodes_per_day or 0.0, warned]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("series", nargs="*", help="CSV files; or KVBUDGET_DEMAND_SERIES, separated by colons")
    parser.add_argument("--column", default="kv_tokens")
    parser.add_argument("--made", type=int, default=12, help="made series to judge on (default 12)")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    named = args.series or [name for name in os.environ.get("KVBUDGET_DEMAND_SERIES", "").split(":") if name]
    documents: dict[str, Any] = {}
    say: Callable[[str], None] = (lambda _: None) if args.json else print
    if not named:
        say("no series is given (arguments, or KVBUDGET_DEMAND_SERIES): judged on made ones alone\n")
    for name in named:
        values = [tokens for _, tokens in read_demand(name, args.column).rows if tokens is not None]
        us = costs(values)
        for label, share in SHARES.items():
            judgement = judged(values, share)
            ours = judgement["rules"]["forecast"]
            title = f"{pathlib.Path(name).stem}: {label} of minutes at the limit"
            say(f"### {title}; {ours.positives} of {ours.decisions} decisions right to warn at\n")
            say("\n".join(table(judgement, us)) + "\n")
            documents[f"{pathlib.Path(name).stem} {label}"] = {
                "coverage": judgement["coverage"],
                "us": judgement["us"],
                "rules": {rule: figures._asdict() for rule, figures in judgement["rules"].items()},
            }
    if args.made:
        lines = made_table(args.made)
        say(f"### {args.made} made series, two limits each\n")
        say("\n".join(lines))
        documents["made"] = lines
    if args.json:
        print(json.dumps(documents))


if __name__ == "__main__":
    main()
