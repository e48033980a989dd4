"""Decides which decode step the engine has come to, and how long steps take.

Sequences that are watched tell by their tokens how many steps have passed; where nobody is watched, the learned pace
does.
"""

from typing import Final

_START_NS_PER_STEP: Final = 20_000_000.0
_PACE_STEPS: Final = 64.0  # the pace is a mean over so many steps
# A clock that stands still while tokens are seen, or leaps, must leave a pace that can be divided by and saved.
LEAST_NS_PER_STEP: Final = 1.0
MOST_NS_PER_STEP: Final = 1e12


class Pace:
    """The pace of one engine."""

    def __init__(self) -> None:
        self.step = 0
        self.ns_per_step = _START_NS_PER_STEP
        self._stepped_ns = 0  # when the last step was seen

    def begin(self, now_ns: int) -> None:
        """Somebody comes where nobody was: no step was made until now."""
        self._stepped_ns = now_ns

    def advance(self, steps: int, now_ns: int) -> None:
        """So many more steps were seen."""
        self.step += steps
        took = (now_ns - self._stepped_ns) / steps
        self._stepped_ns = now_ns
        pace_ns = self.ns_per_step + min(1.0, steps / _PACE_STEPS) * (took - self.ns_per_step)
        self.ns_per_step = min(MOST_NS_PER_STEP, max(LEAST_NS_PER_STEP, pace_ns))

    def go_on(self, now_ns: int) -> None:
        """Nobody is watched: as many steps as the time allows."""
        passed = int((now_ns - self._stepped_ns) / self.ns_per_step)
        self.step += passed
        self._stepped_ns += int(passed * self.ns_per_step)
