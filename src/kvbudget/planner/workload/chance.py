"""Decides how likely it is that several independent requests fit a number of blocks together.

The distribution of a sum is the convolution of the distributions of its parts. Here one is a big integer whose digits
are probabilities in fixed point: Python's multiplication of two such integers is their convolution, exact and quick,
and needs no generator of random numbers. Every rounding is downwards, so a fit is never promised too often.
"""

from collections.abc import Mapping

from kvbudget.units import Blocks

# Blocks are counted one by one up to so many; larger pools are cut into so many cells.
MOST_CELLS = 2048
_PROBABILITY_BITS = 32
_ONE = 1 << _PROBABILITY_BITS
# A product of two probabilities, and the carry of their sum, which is at most 1 x 1.
_DIGIT_BITS = 2 * _PROBABILITY_BITS + 8


class Sums:
    """Sums of independent draws of one distribution against a limit. `weights`: blocks -> how often (any unit)."""

    def __init__(self, weights: Mapping[int, int], limit: int, most: int) -> None:
        """`limit` in blocks; `most`: no more than so many draws are ever asked for."""
        self._most = most
        self._largest = max(weights)
        limit = min(max(0, limit), most * self._largest)
        self._limit = limit
        self.cell_blocks = Blocks(max(1, -(-(limit + 1) // MOST_CELLS)))
        self._digits = limit // self.cell_blocks + 1
        self._keep = (1 << self._digits * _DIGIT_BITS) - 1
        # After a shift the upper part of each digit holds bits of its neighbour: cleared by this mask.
        digit = (1 << _DIGIT_BITS - _PROBABILITY_BITS) - 1
        self._mask = int.from_bytes(digit.to_bytes(_DIGIT_BITS // 8, "little") * self._digits, "little")
        self._powers = [self._packed(weights)]

    def chance(self, count: int) -> float:
        """Probability that `count` draws sum to at most the limit."""
        if count * self._largest <= self._limit:
            return 1.0
        total = _ONE
        for bit in range(count.bit_length()):
            if count >> bit & 1:
                total = self._convolved(total, self._power(bit))
        return min(1.0, _mass(total) / _ONE)

    def largest_count(self, confidence: float) -> int:
        """Most draws, up to `most`, that sum to at most the limit with at least `confidence` (below 1)."""
        if self._most * self._largest <= self._limit:
            return self._most
        wanted = confidence * _ONE
        bit = 0
        while 1 << bit <= self._most and _mass(self._power(bit)) >= wanted:
            bit += 1
        total, count = _ONE, 0
        while bit:
            bit -= 1
            if count + (1 << bit) > self._most:
                continue
            longer = self._convolved(total, self._power(bit))
            if _mass(longer) >= wanted:
                total, count = longer, count + (1 << bit)
        return count

    def _packed(self, weights: Mapping[int, int]) -> int:
        """The distribution of one draw. Where a cell is several blocks wide, a draw between two cells is shared out
        between them, so that its mean stays what it is."""
        whole = sum(weights.values()) * self.cell_blocks
        cells = [0] * (self._digits + 1)
        for blocks, weight in weights.items():
            cell, rest = divmod(blocks, self.cell_blocks)
            if cell < self._digits:
                cells[cell] += weight * (self.cell_blocks - rest)
                cells[cell + 1] += weight * rest
        width = _DIGIT_BITS // 8
        return int.from_bytes(
            b"".join((mass * _ONE // whole).to_bytes(width, "little") for mass in cells[: self._digits]), "little"
        )

    def _power(self, bit: int) -> int:
        """The distribution of the sum of 2**bit draws."""
        while len(self._powers) <= bit:
            self._powers.append(self._convolved(self._powers[-1], self._powers[-1]))
        return self._powers[bit]

    def _convolved(self, left: int, right: int) -> int:
        return ((left * right & self._keep) >> _PROBABILITY_BITS) & self._mask


def _mass(packed: int) -> int:
    """The sum of all digits: what is left modulo one less than the base (as with nines in decimal)."""
    return packed % ((1 << _DIGIT_BITS) - 1)
