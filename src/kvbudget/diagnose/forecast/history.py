"""Decides what is remembered of demand: a week of minutes, with the sums and maxima that a forecast asks for.

One value a minute. Everything that is asked for costs the same however long the history is.
"""

from array import array
from collections import deque
from math import log
from typing import Final

DAY_MINUTES: Final = 1440
WEEK_MINUTES: Final = 7 * DAY_MINUTES
_KEPT_MINUTES: Final = WEEK_MINUTES + 2 * DAY_MINUTES
_SMALLEST_SHARE: Final = 0.01  # of the last day's mean: below it demand counts as that, or one idle minute is all


class _Highest:
    """The maximum of the last so many values, in constant time each."""

    __slots__ = ("_falling", "_minutes")

    def __init__(self, minutes: int) -> None:
        self._minutes = minutes
        self._falling: deque[tuple[int, float]] = deque()  # what no later value exceeds

    def push(self, at: int, value: float) -> float:
        falling = self._falling
        while falling and falling[-1][1] <= value:
            falling.pop()
        falling.append((at, value))
        if falling[0][0] <= at - self._minutes:
            falling.popleft()
        return falling[0][1]


class History:
    """Demand of the last nine days at most, in tokens. `horizon` in minutes: over how many a maximum is forecast."""

    def __init__(self, horizon: int) -> None:
        self.horizon = horizon
        self.count = 0  # minutes since the beginning, those forgotten too
        self.tokens = array("d")
        self.level = array("d")  # log of the mean of five minutes
        self.highest = array("d")  # of the `horizon` minutes that end here
        self.day_highest = 0.0
        self.week_highest = 0.0
        self.growth = 0.3  # typical log(maximum of the horizon / level before it), the last hours counting most
        self._sums = array("d", [0.0])
        self._squares = {minutes: array("d", [0.0]) for minutes in (1, 10, 30)}  # of log changes over so many minutes
        self._of_horizon, self._of_day, self._of_week = _Highest(horizon), _Highest(DAY_MINUTES), _Highest(WEEK_MINUTES)
        self._last_log = 0.0

    def push(self, tokens: float) -> None:
        """One more minute. `tokens`: finite, not negative."""
        self.tokens.append(tokens)
        self._sums.append(self._sums[-1] + tokens)
        at, self.count = self.count, self.count + 1
        floor = self.floor()
        self.level.append(log(max(self.mean(5), floor)))
        self.highest.append(max(self._of_horizon.push(at, tokens), floor))
        self.day_highest = self._of_day.push(at, tokens)
        self.week_highest = self._of_week.push(at, tokens)
        now = log(max(tokens, floor))
        change = now - self._last_log if at else 0.0
        self._last_log = now
        self._add_square(1, change, 0.25)
        self._add_square(10, self.change(10), 4.0)
        self._add_square(30, self.change(30), 9.0)
        if len(self.level) > self.horizon:
            self.growth += (log(self.highest[-1]) - self.level[-1 - self.horizon] - self.growth) / 300
        if len(self.tokens) > _KEPT_MINUTES + DAY_MINUTES:
            self._forget(DAY_MINUTES)

    def floor(self) -> float:
        """What an idle minute counts as."""
        return _SMALLEST_SHARE * self.mean(DAY_MINUTES) + 1.0

    def mean(self, minutes: int, back: int = 0) -> float:
        """Mean of so many minutes that end `back` minutes ago, or of as many as there are."""
        end = len(self._sums) - 1 - back
        start = max(0, end - minutes)
        return (self._sums[end] - self._sums[start]) / (end - start) if end > start else self.tokens[0]

    def change(self, minutes: int) -> float:
        """How much the level changed within so many minutes, as a log ratio."""
        return self.level[-1] - self.level[-1 - minutes] if len(self.level) > minutes else 0.0

    def roughness(self, step: int, minutes: int) -> float:
        """Root mean square of the log changes over `step` minutes (1, 10, 30), over the last so many minutes."""
        sums = self._squares[step]
        end = len(sums) - 1
        start = max(0, end - minutes)
        return float((max(0.0, sums[end] - sums[start]) / max(1, end - start)) ** 0.5)

    def slope(self, minutes: int) -> float:
        """Of the least-squares line through so many minutes, in tokens a minute."""
        values = self.tokens[-minutes:]
        count = len(values)
        if count < 2:
            return 0.0
        middle = (count - 1) / 2
        return 12 * sum([(at - middle) * value for at, value in enumerate(values)]) / (count * (count * count - 1))

    def _add_square(self, step: int, change: float, most: float) -> None:
        sums = self._squares[step]
        sums.append(sums[-1] + min(change * change, most))

    def _forget(self, minutes: int) -> None:
        for values in (self.tokens, self.level, self.highest):
            del values[:minutes]
        for sums in (self._sums, *self._squares.values()):
            del sums[:minutes]
            first = sums[0]
            for at, value in enumerate(sums):  # or they lose digits over the years
                sums[at] = value - first
