"""Decides which part of the prompts' blocks the engine need not hold for each, by its own word of what it holds.

That is what its prefix cache saves where prompts bring no keys (`Arrived.prefix`), by which it would be known.
"""

from typing import Final

_CALM_NS: Final = 3 * 10**9
_ENOUGH_BLOCKS: Final = 64.0  # of prompts, below which sharing cannot be told
_MOST: Final = 0.9
_BELIEF_ERROR: Final = 0.97
_UP, _DOWN = 0.2, 0.5  # of the way, with each word of the engine


class Overlap:
    """`share` of prompts' blocks that others hold as well, so that the engine holds them once."""

    def __init__(self) -> None:
        self.share = 0.0
        self._calm_from_ns = 0

    @property
    def own(self) -> float:
        """The rest."""
        return 1.0 - self.share

    def overflowed(self, now_ns: int) -> None:
        """Requests were preempted: perhaps less is shared than was thought. For a while the engine's word says
        nothing, as the preempted hold nothing."""
        self.share *= 0.5
        self._calm_from_ns = now_ns + _CALM_NS

    def listens(self, now_ns: int) -> bool:
        """Whether the engine's word says anything now."""
        return now_ns >= self._calm_from_ns

    def engine_holds(self, blocks: int, believed: float, prompts: float) -> None:
        """It holds so many `blocks`, where `believed` would be held if nothing were shared, `prompts` of them by
        prompts."""
        if prompts < _ENOUGH_BLOCKS:
            return
        share = min(_MOST, max(0.0, (believed * _BELIEF_ERROR - blocks) / prompts))
        self.share += (_UP if share > self.share else _DOWN) * (share - self.share)
