"""Decides by which keys a simulated gate knows prompts that begin alike: one for each of a request's ids.

An id stands for several blocks; the gate counts in ids (`GateConfig.key_blocks`), as an edge that hashes less may do.
The engine's own keys are in prefix_keys.py. Numbers are given in the order in which chains are first seen.

Ids that were new together are one stretch, whose numbers follow one another: a prompt is known by a comparison for each
stretch that it goes through, and what is new of it is one more, however long they are.
"""

from collections.abc import Sequence


class _Stretch:
    """Ids that were first seen behind one another in one prompt: `ids[begin + k]` made the chain `first + k`."""

    __slots__ = ("begin", "first", "ids", "length")

    def __init__(self, ids: tuple[int, ...], begin: int, first: int) -> None:
        self.ids = ids
        self.begin = begin
        self.length = len(ids) - begin
        self.first = first


class GatePrefixes:
    """Numbers for chains of ids."""

    __slots__ = ("_behind", "_last", "_numbers")

    def __init__(self) -> None:
        self._numbers = 0  # chains seen so far
        self._behind: dict[tuple[int, int], _Stretch] = {}  # by (chain before, its first id)
        self._last: tuple[Sequence[int], tuple[int, ...]] = ((), ())  # gate and engine ask one after the other

    def of(self, prefix_ids: Sequence[int]) -> tuple[int, ...]:
        """Keys of all beginnings of `prefix_ids`; the gate takes as many as the prompt has whole."""
        if prefix_ids is self._last[0]:
            return self._last[1]
        ids = tuple(prefix_ids)
        keys: tuple[int, ...] = ()
        chain = place = 0
        while place < len(ids):
            stretch = self._behind.get((chain, ids[place]))
            if stretch is None:
                first = self._numbers + 1
                self._behind[chain, ids[place]] = _Stretch(ids, place, first)
                self._numbers += len(ids) - place
                keys += tuple(range(first, self._numbers + 1))
                break
            alike = _alike(stretch, ids, place)
            keys += tuple(range(stretch.first, stretch.first + alike))
            place += alike
            chain = stretch.first + alike - 1
        self._last = prefix_ids, keys
        return keys


def _alike(stretch: _Stretch, ids: tuple[int, ...], place: int) -> int:
    """How many ids from `place` on are those of the stretch; the first is."""
    most = min(stretch.length, len(ids) - place)
    theirs, begin = stretch.ids, stretch.begin
    if theirs[begin : begin + most] == ids[place : place + most]:
        return most
    alike = 1
    while theirs[begin + alike] == ids[place + alike]:
        alike += 1
    return alike
