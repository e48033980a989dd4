"""Decides what of the past a forecast looks at: level, trend, roughness, and what the same time of other days brought.

All of them are ratios, as logs: a series in other units, or ten times as large, gives the same. Those of `Situation`
hold for any limit; `beside` says how they stand to one.
"""

from math import exp, log
from statistics import median
from typing import Final, NamedTuple

from kvbudget.diagnose.forecast.history import DAY_MINUTES, WEEK_MINUTES, History

_DAYS: Final = range(1, 6)
_FAR: Final = 4.0  # 55 times: more does not tell more


class Situation(NamedTuple):
    """What is known at one minute. `values` are those of `PLAIN`; `level` is the log of the mean of five minutes."""

    level: float
    values: tuple[float, ...]


PLAIN: Final = (
    "change_3", "change_5", "change_10", "change_20", "change_30", "change_60", "change_180",
    "line_6", "line_10", "line_30", "line_90",
    "mean_30", "mean_60", "mean_180", "mean_day",
    "high_10", "high_30", "high_60", "high_180", "high_day", "high_week",
    "rough_1", "rough_1_day", "rough_10", "rough_10_day", "rough_30_day", "growth",
    "days_growth_1", "days_growth_middle", "days_growth_high",
    "days_high_1", "days_high_middle", "days_high_high", "days_high_week", "days_near_middle", "days_near_high",
    "age", "horizon",
)  # fmt: skip
_COMPARED: Final = tuple(
    PLAIN.index(name) for name in PLAIN if name.startswith(("line_", "high_", "days_")) or name == "growth"
)
_SCALES: Final = tuple(PLAIN.index(name) for name in ("rough_10", "rough_10_day", "rough_30_day"))
NAMES: Final = (
    *PLAIN,
    "distance",
    *[f"{PLAIN[at]}_beside" for at in _COMPARED],
    *[f"distance_by_{PLAIN[at]}" for at in _SCALES],
)


def situation_of(history: History) -> Situation:
    """Everything at the last minute of a history that is not empty."""
    level, horizon = history.level[-1], history.horizon
    base = exp(level)
    highs = [log(max(*history.tokens[-minutes:], history.floor())) - level for minutes in (10, 30, 60, 180)]
    values = [
        log(max(history.mean(3), history.floor()) / max(history.mean(3, back=3), history.floor())),
        *[history.change(minutes) for minutes in (5, 10, 20, 30)],
        log(max(history.mean(10), history.floor()) / max(history.mean(10, back=60), history.floor())),
        log(max(history.mean(30), history.floor()) / max(history.mean(30, back=180), history.floor())),
        *[history.slope(minutes) * horizon / base for minutes in (6, 10, 30, 90)],
        *[log(max(history.mean(minutes), history.floor())) - level for minutes in (30, 60, 180, DAY_MINUTES)],
        *highs,
        log(max(history.day_highest, history.floor())) - level,
        log(max(history.week_highest, history.floor())) - level,
        log(history.roughness(1, 30) + 1e-3),
        log(history.roughness(1, DAY_MINUTES) + 1e-3),
        log(history.roughness(10, 120) + 1e-3),
        log(history.roughness(10, DAY_MINUTES) + 1e-3),
        log(history.roughness(30, DAY_MINUTES) + 1e-3),
        history.growth,
        *_of_other_days(history, level),
        log(1.0 + history.count / 60),
        log(horizon / 30),
    ]
    return Situation(level, tuple([min(_FAR, max(-_FAR, value)) for value in values]))


def beside(situation: Situation, limit: float) -> list[float]:
    """All of `NAMES`. `limit`: log of the tokens that must not be reached."""
    values = situation.values
    distance = min(_FAR, max(-_FAR, limit - situation.level))
    return [
        *values,
        distance,
        *[values[at] - distance for at in _COMPARED],
        *[distance / (exp(values[at]) + 0.02) for at in _SCALES],
    ]


def _of_other_days(history: History, level: float) -> list[float]:
    """What followed at this time of the last days and a week ago: growth from the level then, and height beside now."""
    horizon = history.horizon
    growths: list[float] = []
    heights: list[float] = []
    near: list[float] = []
    for day in _DAYS:
        back = day * DAY_MINUTES
        if len(history.level) <= back:
            break
        then = log(history.highest[-1 - back + horizon])
        growths.append(then - history.level[-1 - back])
        heights.append(then - level)
        around = max(history.highest[-1 - back], history.highest[-1 - back + min(2 * horizon, back)])
        near.append(max(then, log(around)) - level)
    if not growths:
        unknown = history.mean(180)
        height = log(max(unknown, history.floor())) - level + history.growth
        return [history.growth] * 3 + [height] * 6
    week_ago = heights[0]
    if len(history.level) > WEEK_MINUTES:
        week_ago = log(history.highest[-1 - WEEK_MINUTES + horizon]) - level
    return [
        growths[0], median(growths), max(growths), heights[0], median(heights), max(heights), week_ago, median(near),
        max(near),
    ]  # fmt: skip
