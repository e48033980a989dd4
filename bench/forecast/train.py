"""Learns what `kvbudget.diagnose.forecast` knows beforehand, from made series only, and writes it into the package.

Needs numpy and scikit-learn (make train-forecast puts them into a venv of their own). The features are computed by the
package itself, so that what was learned from is what will be looked at. The same seeds give the same trees.
"""

import argparse
import pathlib
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
from generators import demand
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from kvbudget.diagnose.forecast.features import NAMES, PLAIN, Situation, beside, situation_of
from kvbudget.diagnose.forecast.history import History

PACKAGE = pathlib.Path(__file__).parents[2] / "src/kvbudget/diagnose/forecast/learned"
FIRST_SEED = 20_000
HORIZONS = (10, 15, 20, 45, 60, 90, 120)
LIMITS, SAMPLES = 4, 260  # of one series, and minutes of one limit
WIDTH = 116


def rows_of(seed: int) -> tuple[Any, ...]:
    """Situations beside limits that 0.3 % to 10 % of the minutes reach, with what came."""
    rng = np.random.default_rng(seed + 1_000_000)
    series = demand(seed, days=int(rng.choice([4, 8, 14])), ramps=bool(seed % 2))
    horizon = 30 if rng.random() < 0.65 else int(rng.choice(HORIZONS))
    count = len(series)
    windows = np.lib.stride_tricks.sliding_window_view(series[1:], horizon)
    ahead = windows.max(1)  # of the minutes after each
    chosen: list[tuple[float, Any]] = []
    wanted: set[int] = set()
    mean = np.convolve(series, np.ones(5) / 5)[:count]
    for _ in range(LIMITS):
        limit = float(np.quantile(series, 1 - np.exp(rng.uniform(np.log(0.003), np.log(0.1)))))
        open_minutes = np.flatnonzero((series < limit) & (mean > limit * 0.12))
        open_minutes = open_minutes[(open_minutes > 15) & (open_minutes < len(ahead))]
        minutes = rng.choice(open_minutes, min(len(open_minutes), SAMPLES), replace=False)
        chosen.append((limit, minutes))
        wanted.update(minutes.tolist())
    history = History(horizon)
    situations: dict[int, Situation] = {}
    for minute, tokens in enumerate(series.tolist()):
        history.push(tokens)
        if minute in wanted:
            situations[minute] = situation_of(history)
    looked, reached, first, growth, plain, task = [], [], [], [], [], []
    for number, (limit, minutes) in enumerate(chosen):
        for minute in minutes.tolist():
            situation = situations[minute]
            looked.append(beside(situation, float(np.log(limit))))
            reached.append(ahead[minute] >= limit)
            first.append((int(np.argmax(windows[minute] >= limit)) + 1) / horizon)
            plain.append(situation.values)
            growth.append(np.log(max(ahead[minute], 1.0)) - situation.level)
            task.append(seed * LIMITS + number)
    return (
        np.array(looked, np.float32), np.array(reached), np.array(first, np.float32), np.array(plain, np.float32),
        np.array(growth, np.float32), np.array(task),
    )  # fmt: skip


def written(*models: Any) -> str:
    """The mean of the models, preorder: `feature<threshold` goes left when it holds, `=value` is a leaf."""
    share = 1 / len(models)
    items = [f"{sum(float(np.ravel(model._baseline_prediction)[0]) for model in models) * share:.5g}"]

    def walk(nodes: Any, at: int) -> None:
        node = nodes[at]
        if node["is_leaf"]:
            items.append(f"={node['value'] * share:.4g}")
            return
        items.append(f"{node['feature_idx']}<{node['num_threshold']:.4g}")
        walk(nodes, node["left"])
        walk(nodes, node["right"])

    for model in models:
        for predictor in model._predictors:
            walk(predictor[0].nodes, 0)
    return " ".join(items)


def prior_of(chances: Any) -> list[str]:
    """How often which chance is given: (share of decisions, sum of chances a decision), by twentieths."""
    bins = np.minimum((chances * 20).astype(int), 19)
    counts, sums = np.bincount(bins, minlength=20), np.bincount(bins, weights=chances, minlength=20)
    rows = [
        f"    ({count / len(chances):.4g}, {total / len(chances):.4g}),"
        for count, total in zip(counts, sums, strict=True)
    ]
    return ["", "PRIOR: Final = (", *rows, ")"]


def save(name: str, sentence: str, models: dict[str, tuple[Any, ...]], more: list[str] | None = None) -> None:
    lines = [f'"""{sentence}', "", "Written by bench/forecast/train.py (make train-forecast); not by hand.", '"""', ""]
    lines += ["from typing import Final"]
    for constant, parts in models.items():
        lines += ["", f'{constant}: Final = """']
        line = ""
        for item in written(*parts).split():
            if len(line) + len(item) >= WIDTH:
                lines.append(line)
                line = item
            else:
                line = f"{line} {item}" if line else item
        lines += [f'{line}"""']
    lines += more or []
    PACKAGE.mkdir(exist_ok=True)
    (PACKAGE / f"{name}.py").write_text("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", type=int, default=2000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rows", help="keep the rows in this .npz, or take them from there")
    args = parser.parse_args()
    began = time.monotonic()
    if args.rows and pathlib.Path(args.rows).exists():
        with np.load(args.rows) as kept:
            columns = [kept[f"arr_{at}"] for at in range(6)]
    else:
        with ProcessPoolExecutor(args.processes) as pool:
            parts = list(pool.map(rows_of, range(FIRST_SEED, FIRST_SEED + args.series), chunksize=4))
        columns = [np.concatenate([part[at] for part in parts]) for at in range(6)]
        if args.rows:
            np.savez(args.rows, *columns)
    looked, reached, first, plain, growth, task = columns
    print(f"{len(looked)} rows, {reached.mean():.3f} reach the limit, {time.monotonic() - began:.0f} s")
    learn = (task // LIMITS) % 12 < 10  # the others choose the threshold of the alarm
    downward = [-1 if name.startswith("distance") else 1 if name.endswith("_beside") else 0 for name in NAMES]
    common: dict[str, Any] = {
        "min_samples_leaf": 200,
        "l2_regularization": 10,
        "early_stopping": False,
        "random_state": 0,
    }
    # Two, of series with and without ramps: each errs in its own way, and their mean less than either.
    kinds = [learn & ((task // LIMITS) % 2 == kind) for kind in (0, 1)]
    pair = [
        HistGradientBoostingClassifier(
            max_iter=90, learning_rate=0.15, max_leaf_nodes=16, monotonic_cst=downward, **common
        ).fit(looked[kind], reached[kind])
        for kind in kinds
    ]
    odds = np.mean([one.decision_function(looked[~learn]) for one in pair], axis=0)
    chances = 1 / (1 + np.exp(-odds))
    sentence = "What was learned of the chance that a limit is reached: log odds, by all features; and how often which."
    save("chance", sentence, {"CHANCE": tuple(pair)}, prior_of(chances))
    when = HistGradientBoostingRegressor(max_iter=25, learning_rate=0.2, max_leaf_nodes=8, **common)
    when.fit(looked[learn & reached], first[learn & reached])
    rng = np.random.default_rng(1)
    some = np.flatnonzero(learn)
    some = rng.choice(some, min(len(some), 400_000), replace=False)
    ranges = {
        constant: HistGradientBoostingRegressor(
            loss="quantile", quantile=share, max_iter=40, learning_rate=0.2, max_leaf_nodes=10, **common
        ).fit(plain[some], growth[some])
        for constant, share in (("LOW", 0.05), ("MIDDLE", 0.5), ("HIGH", 0.95))
    }
    save(
        "growth",
        "What was learned of how far demand goes (quantiles of its log growth, by plain features), and when.",
        {**{name: (one,) for name, one in ranges.items()}, "WHEN": (when,)},
    )
    truth, tasks = reached[~learn], task[~learn]
    for threshold in (0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5):
        found = []
        for one in np.unique(tasks):
            mine = tasks == one
            if truth[mine].sum() >= 5:
                alarm = chances[mine] > threshold
                found.append(2 * (alarm & truth[mine]).sum() / (alarm.sum() + truth[mine].sum()))
        print(f"alarm above {threshold}: F1 {np.mean(found):.3f} over {len(found)} series and limits not learned from")
    log_loss = -np.mean(np.where(truth, np.log(chances), np.log(1 - chances)))
    print(f"log loss {log_loss:.4f}; {len(PLAIN)} plain features of {len(NAMES)}; {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
