"""Decides how much caution there is beyond what was computed: more after every overflow, less again without any.

`z` is how many standard deviations of what may be held are kept free. The risk asked for gives its rest value;
whatever the computation leaves out (drift, the shape of tails, sequences out of step) shows as preemptions. Those that
follow one another are one mistake: an engine that is short of blocks throws out as many as it takes. Each mistake adds
RISE, up to HIGHEST, and a share of 1/MEMORY of what was added goes with every request that ends.
"""

from typing import Final

from kvbudget.pool.risk import z_over_time

RISE: Final = 0.5
MEMORY: Final = 400.0  # requests
HIGHEST: Final = 2.0  # added, at most
EPISODE_NS: Final = 3_000_000_000  # longer than the engine's metrics are apart


class Margin:
    """`z` of the moment."""

    __slots__ = ("_until_ns", "added", "rest")

    def __init__(self, epsilon: float) -> None:
        self.rest = z_over_time(epsilon)
        self.added = 0.0
        self._until_ns = -1

    def take_risk(self, epsilon: float) -> None:
        """Another risk is asked for; what was added stays."""
        self.rest = z_over_time(epsilon)

    @property
    def z(self) -> float:
        """Standard deviations to keep free."""
        return self.rest + self.added

    def overflowed(self, now_ns: int) -> None:
        """Requests were preempted."""
        if now_ns >= self._until_ns:
            self.added = min(HIGHEST, self.added + RISE)
        self._until_ns = now_ns + EPISODE_NS

    def ended(self) -> None:
        """A request ended."""
        self.added -= self.added / MEMORY
