"""Decides what simple rules would have said: a static level, and a straight line through the last minutes.

These are what people run today (docs/how-to/forecast.md): a forecast is worth something where it beats them.
"""

from collections.abc import Callable
from typing import Final

from kvbudget.diagnose.forecast.history import History

Rule = Callable[[History, float], bool]
"""Whether it warns now. Takes the capacity in tokens."""

SATURATED: Final = 0.95  # of capacity: from here on requests wait


def level_rule(share: float) -> Rule:
    """Warns above this share of capacity."""
    return lambda history, capacity: history.tokens[-1] > share * capacity


def line_rule(minutes: int) -> Rule:
    """Prometheus' `predict_linear(demand[minutes], horizon) >= 0.95 * capacity`."""

    def warns(history: History, capacity: float) -> bool:
        if history.count < minutes:
            return False
        ahead = history.horizon + (minutes - 1) / 2
        return history.mean(minutes) + history.slope(minutes) * ahead >= SATURATED * capacity

    return warns


BESIDE: Final[dict[str, Rule]] = {
    "level_0.75": level_rule(0.75),
    "level_0.85": level_rule(0.85),
    "predict_linear_15m": line_rule(15),
    "predict_linear_60m": line_rule(60),
}
