"""Remembers which beginnings of prompts an instance has seen lately: its engine may still hold their blocks.

A guess for choosing among instances, never for what is charged (`pool.prefix` does that, from what is proved). As many
keys are kept as the pool has room for, those seen longest ago go first, as in the engine.
"""

from collections import OrderedDict
from collections.abc import Sequence


class Affinity:
    """The keys of one instance."""

    __slots__ = ("_keys",)

    def __init__(self) -> None:
        self._keys: OrderedDict[int, None] = OrderedDict()

    def saw(self, prefix: Sequence[int], most_keys: int) -> None:
        """It got a prompt with these keys. The last ones are the first to go, as they are of use to fewest."""
        keys = self._keys
        for key in reversed(prefix):
            keys[key] = None
            keys.move_to_end(key)
        while len(keys) > most_keys:
            keys.popitem(last=False)

    def longest(self, prefix: Sequence[int]) -> int:
        """How many of the first keys it has."""
        for count, key in enumerate(prefix):
            if key not in self._keys:
                return count
        return len(prefix)

    def clear(self) -> None:
        """The engine was restarted."""
        self._keys.clear()
