"""What was lately: fading sums of what happened, fading mean and variance of what was held."""

from math import exp
from typing import Final

FADE_NS: Final = 30 * 10**9  # what was seen so long ago counts 1/e
HAPPENED_FADE_NS: Final = 15 * 10**9  # of what happens, so that a flood is soon seen
BURST: Final = 1.5


class Fading:
    """A sum of what happens, of which the old counts less and less."""

    __slots__ = ("_sum", "_until_ns")

    def __init__(self, now_ns: int) -> None:
        self._sum = 0.0
        self._until_ns = now_ns

    def add(self, more: float, now_ns: int) -> None:
        """It happened."""
        self._sum = self.measure(now_ns) + more

    def measure(self, now_ns: int) -> float:
        """What counts by now."""
        self._sum *= exp((self._until_ns - now_ns) / HAPPENED_FADE_NS)
        self._until_ns = now_ns
        return self._sum


class Level:
    """A quantity; `now` is what it is at the moment."""

    __slots__ = ("_mean", "_square", "_until_ns", "_weight", "now")

    def __init__(self, now_ns: int) -> None:
        self.now = 0.0
        self._until_ns = now_ns  # up to here it is in the sums
        self._weight = 0.0  # of all that was seen; near 1 after a few times FADE_NS
        self._mean = 0.0
        self._square = 0.0

    def change(self, by: float, now_ns: int) -> None:
        """From `now_ns` on it is so much more."""
        self._take_in(now_ns)
        self.now += by

    def measure(self, now_ns: int) -> tuple[float, float]:
        """(mean, variance); before any time has passed, what it is now."""
        self._take_in(now_ns)
        if self._weight <= 0.0:
            return self.now, 0.0
        mean = self._mean / self._weight
        return mean, max(0.0, self._square / self._weight - mean * mean)

    def lasting(self, now_ns: int) -> float:
        """The mean, or two thirds of what it is now if that is more: a short peak is not yet a habit."""
        return max(self.now / BURST, self.measure(now_ns)[0])

    def _take_in(self, now_ns: int) -> None:
        passed_ns = now_ns - self._until_ns
        if passed_ns <= 0:
            return
        self._until_ns = now_ns
        kept = exp(-passed_ns / FADE_NS)
        new, value = 1.0 - kept, self.now
        self._weight = self._weight * kept + new
        self._mean = self._mean * kept + new * value
        self._square = self._square * kept + new * value * value
