"""Decides by which keys a simulated gate knows prompts that begin alike: one for each of a request's ids.

An id stands for several blocks; the gate counts in ids (`GateConfig.key_blocks`), as an edge that hashes less may do.
The engine's own keys are in prefix_keys.py. Numbers are given in the order in which chains are first seen.
"""

from collections.abc import Sequence
from typing import Final

_PLAIN_BITS: Final = 40
_PLAIN_IDS: Final = 1 << _PLAIN_BITS  # ids below it make one number with the chain before them: half the time of a pair


class GatePrefixes:
    """Numbers for chains of ids."""

    __slots__ = ("_chains", "_last")

    def __init__(self) -> None:
        self._chains: dict[int | tuple[int, int], int] = {}  # (chain before, id) -> chain
        self._last: tuple[Sequence[int], tuple[int, ...]] = ((), ())  # gate and engine ask one after the other

    def of(self, prefix_ids: Sequence[int]) -> tuple[int, ...]:
        """Keys of all beginnings of `prefix_ids`; the gate takes as many as the prompt has whole."""
        if prefix_ids is self._last[0]:
            return self._last[1]
        known, chain = self._chains, 0
        keys: list[int] = []
        for one in prefix_ids:
            key = chain << _PLAIN_BITS | one if 0 <= one < _PLAIN_IDS else (chain, one)
            chain = known.setdefault(key, len(known) + 1)
            keys.append(chain)
        self._last = prefix_ids, tuple(keys)
        return self._last[1]
