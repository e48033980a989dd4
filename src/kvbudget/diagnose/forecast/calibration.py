"""Decides how far a chance that was learned elsewhere holds for this series, and from which one on to warn.

Every minute tells of any limit one can think of whether it was reached, not only of the one that matters, which may not
have been reached for weeks. So two imagined limits a minute, at changing distances above the level, are foretold and
judged later; from them the chance is shifted and stretched (Platt's scaling, by stochastic gradient).

With chances that hold, the threshold with the best F1 is half of that F1 (Lipton, Elkan and Narayanaswamy 2014), and
the F1 that any threshold would reach is known from the chances alone: nothing has to be reached for it. The one used
is somewhat lower: an early warning is worth more than a late one.
"""

from collections import deque
from math import exp
from typing import Final

from kvbudget.diagnose.forecast.features import Situation, beside
from kvbudget.diagnose.forecast.trees import Trees

_RATE: Final = 0.003
_STRETCH_RATE: Final = 0.1  # of the above: log odds are larger than 1
_BACK: Final = 2e-5  # of the way back to what was learned beforehand, a limit
_MOST_ODDS, _LEAST_ODDS = 4.0, -6.0  # beyond them a limit tells nothing of the middle
_BINS: Final = 20
_PRIOR_WEIGHT: Final = 2000  # decisions: a day and a half
_RARELY: Final = 30  # minutes between two looks at the threshold
# Half would be best for F1 alone, which is flat there (0.617 at 0.25, 0.615 at 0.3 over made series): rather early.
_SHARE_OF_F1: Final = 0.45
_LOWEST_THRESHOLD, _HIGHEST_THRESHOLD = 0.1, 0.45


class Calibration:
    """Of one series. `chance`: log odds by all features. `horizon` in minutes."""

    def __init__(self, chance: Trees, horizon: int) -> None:
        self._chance = chance
        self._horizon = horizon
        self._shift = 0.0
        self._stretch = 1.0
        self._imagined: deque[tuple[tuple[float, float], ...]] = deque()  # (limit, log odds) of each minute
        self._count = 0

    def probability(self, situation: Situation, limit: float) -> float:
        """That the log of demand reaches `limit` within the horizon."""
        return _logistic(self._shift + self._stretch * self._chance.value(beside(situation, limit)))

    def imagine(self, situation: Situation) -> None:
        """Foretell limits that nobody asked for; judged by `learn`, `horizon` minutes later."""
        at = self._count
        self._count += 1
        distances = (0.08 + 0.6 * (at * 7 % 30) / 30, 0.03 + 0.87 * (at * 11 % 29) / 29)
        self._imagined.append(
            tuple(
                (situation.level + distance, self._chance.value(beside(situation, situation.level + distance)))
                for distance in distances
            )
        )

    def skip(self) -> None:
        """A minute that is not looked at."""
        self._imagined.append(())

    def learn(self, highest: float, *, known: bool) -> None:
        """The log of the maximum of the horizon after the oldest minute imagined for. `known`: not filled in."""
        for limit, told in self._imagined.popleft():
            if not known:
                continue
            odds = min(_MOST_ODDS, max(_LEAST_ODDS, told))
            error = (highest >= limit) - _logistic(self._shift + self._stretch * odds)
            self._shift += _RATE * error - _BACK * self._shift
            self._stretch += _RATE * _STRETCH_RATE * error * odds - _BACK * (self._stretch - 1.0)

    def restart(self) -> None:
        """What was foretold will not be known; what was learned stays."""
        self._imagined.clear()


class Threshold:
    """From which chance on to warn. `prior`: (decisions, sum of chances) by twentieths, of all of 1."""

    def __init__(self, prior: tuple[tuple[float, float], ...]) -> None:
        self._bins = [[_PRIOR_WEIGHT * count, _PRIOR_WEIGHT * chance] for count, chance in prior]
        self._since = 0
        self.value = self._best()

    def decided(self, probability: float) -> None:
        """One more decision and the chance that it was given."""
        own = self._bins[min(_BINS - 1, int(probability * _BINS))]
        own[0] += 1
        own[1] += probability
        self._since += 1
        if self._since >= _RARELY:
            self._since = 0
            self.value = self._best()

    def _best(self) -> float:
        expected = sum([chance for _, chance in self._bins])
        warned = hits = best = 0.0
        for count, chance in reversed(self._bins):
            warned += count
            hits += chance
            best = max(best, 2 * hits / (warned + expected))
        return min(_HIGHEST_THRESHOLD, max(_LOWEST_THRESHOLD, _SHARE_OF_F1 * best))


def _logistic(odds: float) -> float:
    return 1 / (1 + exp(-odds)) if odds > -700 else 0.0
