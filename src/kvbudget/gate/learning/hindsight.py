"""Decides how wrong the outlook has been lately: what a batch was said to hold some steps ahead, beside what it held.

Overflows are rare, and each tells that it was too late. This tells every second or so whether all who live go on longer
than was learned, as they do while lengths drift, long before the pool is full. One forecast is out at a time: of those
who live now, for HORIZON_STEPS ahead; whoever comes later is not counted. `bias` is a fading mean of its error, in
standard deviations.
"""

from math import sqrt
from typing import Final

from kvbudget.pool.risk import Outlook
from kvbudget.pool.share import GRID

_MOMENT: Final = 5
HORIZON_STEPS: Final = GRID[_MOMENT]
_TO_NEXT: Final = GRID[_MOMENT + 1] - HORIZON_STEPS
_FEWEST: Final = 4  # shares: fewer tell nothing of a mean
_WEIGHT: Final = 0.2  # of the newest error
_MOST_ERROR: Final = 3.0


class Hindsight:
    """The forecast that is out, and how those before it came true."""

    __slots__ = ("_after", "_at", "_deviation", "_due_step", "bias", "newest")

    def __init__(self) -> None:
        self.bias = 0.0
        self.newest = 0  # number of the last one that the forecast counts
        self._due_step: int | None = None
        self._at = self._after = self._deviation = 0.0

    @property
    def excess(self) -> float:
        """Standard deviations by which more is held than was said; less is no reason to dare more."""
        return max(0.0, self.bias)

    def due(self, step: int) -> bool:
        """Whether it can be told by now how the forecast came true."""
        return self._due_step is not None and step >= self._due_step

    def judge(self, step: int, held: float) -> None:
        """Of those counted, `held` blocks are held in a step in which the forecast is due."""
        if self._due_step is None:
            return
        late = min(1.0, (step - self._due_step) / _TO_NEXT)
        said = self._at + (self._after - self._at) * late
        error = (held - said) / self._deviation
        self.bias += _WEIGHT * (max(-_MOST_ERROR, min(_MOST_ERROR, error)) - self.bias)
        self._due_step = None

    def foretell(self, step: int, outlook: Outlook, newest: int) -> None:
        """Take the outlook of a step at its word, unless a forecast is out. `newest`: number of the last one in it."""
        if self._due_step is not None or len(outlook.shares) < _FEWEST or outlook.at(_MOMENT).spread < 1.0:
            return
        self._due_step = step + HORIZON_STEPS
        self._at, self._after = outlook.at(_MOMENT).mean, outlook.at(_MOMENT + 1).mean
        self._deviation = sqrt(outlook.at(_MOMENT).spread)
        self.newest = newest

    def forget(self) -> None:
        """Blocks are counted otherwise from now on: the forecast that is out means nothing."""
        self._due_step = None
