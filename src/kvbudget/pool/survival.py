"""How likely a sequence is to go on: the chance of surviving from one length to another, as a table of fixed size.

The bins of output length are single tokens below 16 and eight to an octave above, so that 144 of them reach 2**20
tokens with a width of at most an eighth of the length. Within a bin the hazard (the chance of ending with the next
token) is constant; the cumulative hazard H is then piecewise linear, and

    P(longer than b | longer than a) = exp(H(a) - H(b))
"""

from math import exp, log
from typing import Final

from kvbudget.units import Tokens

BINS: Final = 144
MAX_TOKENS: Final = (1 << 20) - 1
_MOST_MEANS: Final = 64
_SURELY_OVER: Final = 0.999  # a bin that nobody survived still leaves a little hope: H stays finite


def bin_of(tokens: int) -> int:
    """The bin in which a sequence of so many output tokens stands."""
    if tokens < 16:
        return tokens
    if tokens > MAX_TOKENS:
        return BINS - 1
    octave = tokens.bit_length()
    return 8 * (octave - 5) + (tokens >> (octave - 4)) + 8


def _edges() -> list[int]:
    edges = list(range(16))
    for octave in range(4, 20):
        edges += [(8 + eighth) << (octave - 3) for eighth in range(8)]
    return [*edges, 1 << 20]


EDGES: Final = _edges()  # EDGES[k] is the first length of bin k
WIDTHS: Final = [EDGES[k + 1] - EDGES[k] for k in range(BINS)]
WIDTHS_FLOAT: Final = [float(width) for width in WIDTHS]
_EDGES_FLOAT: Final = [float(edge) for edge in EDGES[:BINS]]
MOST_IN_TABLE: Final = 1 << 17
BIN_OF: Final = b"".join(
    [bytes([k]) * WIDTHS[k] for k in range(BINS) if EDGES[k] < MOST_IN_TABLE]
)  # bin_of, but faster


class Bin:
    """The cumulative hazard within one bin: H(tokens) = `intercept` + `slope` * tokens."""

    __slots__ = ("intercept", "slope")

    def __init__(self, intercept: float, slope: float) -> None:
        self.intercept = intercept
        self.slope = slope


class Survival:
    """The chance to go on. `doubts[k]` is the relative standard error of what H grows by from bin k on."""

    __slots__ = ("_bins", "_chances", "_chances_at", "_means", "_shares", "_total", "doubts")

    def __init__(self, end_shares: list[float], doubt: float | list[float]) -> None:
        """`end_shares[k]`: of those that enter bin k, the share that ends in it. `doubt`: of all bins, or of each."""
        self.doubts = [doubt] * BINS if isinstance(doubt, float) else doubt
        self._means: dict[int, Tokens] = {}
        self._chances: list[float] = []
        self._chances_at: tuple[int, ...] | None = None
        self._shares = end_shares
        self._bins: list[Bin] = []  # those that were asked for
        self._total = 0.0  # H up to the end of the last of them

    def bins_to(self, tokens: int) -> list[Bin]:
        """At least all bins up to that of so many tokens."""
        most = BIN_OF[tokens] if tokens < MOST_IN_TABLE else bin_of(tokens)
        bins = self._bins
        if len(bins) > most:
            return bins
        shares, total = self._shares, self._total
        for k in range(len(bins), most + 1):
            hazard = -log(1.0 - min(shares[k], _SURELY_OVER))
            slope = hazard / WIDTHS_FLOAT[k]
            bins.append(Bin(total - slope * _EDGES_FLOAT[k], slope))
            total += hazard
        self._total = total
        return bins

    def hazard_to(self, tokens: int) -> float:
        """H(tokens), which also holds beyond MAX_TOKENS."""
        bins = self.bins_to(tokens)
        at = bins[BIN_OF[tokens] if tokens < MOST_IN_TABLE else bin_of(tokens)]
        return at.intercept + at.slope * tokens

    def chance(self, tokens: int, further: int) -> float:
        """P(the output is longer than `tokens` + `further` | it is longer than `tokens`)."""
        return exp(self.hazard_to(tokens) - self.hazard_to(tokens + further))

    def chances(self, moments: tuple[int, ...]) -> list[float]:
        """P(the output is longer than each of `moments`); remembered, as everybody who comes asks for the same."""
        if moments is not self._chances_at:
            self._chances_at = moments
            self._chances = [self.chance(0, moment) for moment in moments]
        return self._chances

    def mean_tokens(self, at_most: int) -> Tokens:
        """Expected tokens of an answer that may have `at_most`; remembered for the limits that are asked for."""
        known = self._means.get(at_most)
        if known is None:
            if len(self._means) >= _MOST_MEANS:
                self._means.clear()
            known = self._means[at_most] = self.mean_further(0, at_most)
        return known

    def mean_further(self, tokens: int, at_most: int) -> Tokens:
        """Expected tokens still to come after `tokens` of them, of a sequence that may make `at_most` more."""
        if at_most <= 0:
            return Tokens(0)
        base = self.hazard_to(tokens)
        end = tokens + at_most
        position, alive, mean = tokens, 1.0, 0.0
        bins, k = self.bins_to(end), bin_of(tokens)
        while position < end and alive > 1e-3:
            edge = min(end, EDGES[k + 1]) if k < BINS - 1 else end
            then = exp(base - bins[k].intercept - bins[k].slope * edge)
            mean += (edge - position) * (alive + then) / 2
            position, alive, k = edge, then, min(k + 1, BINS - 1)
        return Tokens(max(1, round(mean)))
