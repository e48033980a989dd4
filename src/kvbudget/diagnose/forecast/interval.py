"""Decides how wide an interval has to be for the share of truths that it promises, from how the last ones fared.

Two bounds are learned beforehand; how far each stands from the middle is stretched or shrunk with every truth so that
the share beyond it tends to what is promised, whatever the series does: quantile tracking, the online form of adaptive
conformal prediction (Gibbs and Candès 2021; Angelopoulos, Candès and Tibshirani 2023).
"""

from math import exp
from typing import Final, NamedTuple

NOMINAL: Final = 0.9
_BEYOND: Final = (1 - NOMINAL) / 2  # on each side
_STEP: Final = 0.04  # of a log stretch: one miss widens by 4 %, nineteen hits take it back
_START: Final = 1.25
_LEAST, _MOST = 1e-3, 1e3
_THINNEST: Final = 0.02  # of the level; a bound that touches the middle could not be stretched


class Interval(NamedTuple):
    """Bounds of the log of the maximum within the horizon."""

    low: float
    middle: float
    high: float


class Stretch:
    """What the two sides of an interval are multiplied by, and how many truths it held."""

    def __init__(self) -> None:
        self._below = _START
        self._above = _START
        self.truths = 0
        self.inside = 0

    def around(self, low: float, middle: float, high: float) -> Interval:
        """The interval, from bounds that were learned beforehand."""
        return Interval(
            middle - self._below * max(middle - low, _THINNEST),
            middle,
            middle + self._above * max(high - middle, _THINNEST),
        )

    def learn(self, told: Interval, truth: float, *, count: bool) -> None:
        """What really came. `count`: whether it belongs to the score."""
        self._below = _moved(self._below, beyond=truth < told.low)
        self._above = _moved(self._above, beyond=truth > told.high)
        if count:
            self.truths += 1
            self.inside += told.low <= truth <= told.high

    @property
    def coverage(self) -> float | None:
        """Share of the truths that were inside; None before the first."""
        return self.inside / self.truths if self.truths else None


def _moved(stretch: float, *, beyond: bool) -> float:
    return min(_MOST, max(_LEAST, stretch * exp(_STEP * (beyond - _BEYOND))))
