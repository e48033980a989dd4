"""Decides what boosted trees say: the sum of one leaf of each, found by comparing features with thresholds."""

from typing import Final

_LEAF: Final = -1


class Trees:
    """Trees as they are written in `forecast.learned`.

    First what all begin with, then every tree in preorder: `3<0.25` goes to the next node where feature 3 is at most
    0.25, else to the one behind that branch; `=-0.1` is a leaf.
    """

    __slots__ = ("_base", "_features", "_other", "_roots", "_thresholds")

    def __init__(self, text: str) -> None:
        items = text.split()
        self._base = float(items[0])
        self._features: list[int] = []
        self._thresholds: list[float] = []  # of a leaf: its value
        self._other: list[int] = []  # the node for values above the threshold
        self._roots: list[int] = []
        open_nodes: list[int] = []  # whose second branch is still to come
        root = True
        for at, item in enumerate(items[1:]):
            if root:
                self._roots.append(at)
            feature, inner, threshold = item.partition("<")
            self._features.append(int(feature) if inner else _LEAF)
            self._thresholds.append(float(threshold if inner else item[1:]))
            self._other.append(0)
            root = False
            if inner:
                open_nodes.append(at)
            elif open_nodes:
                self._other[open_nodes.pop()] = at + 1
            else:
                root = True

    def __len__(self) -> int:
        return len(self._roots)

    def value(self, looked_at: list[float]) -> float:
        """Their sum for these features."""
        features, thresholds, other = self._features, self._thresholds, self._other
        total = self._base
        for root in self._roots:
            at = root
            while (feature := features[at]) >= 0:
                at = at + 1 if looked_at[feature] <= thresholds[at] else other[at]
            total += thresholds[at]
        return total
