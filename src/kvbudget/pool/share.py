"""What one promise comes to at moments ahead, when it is only known how likely its sequences are to go on.

Whatever is counted here is a float, also where it is whole: compiled code adds machine numbers, without a check of
their size.
"""

from math import exp
from typing import Final

from kvbudget.pool.survival import BIN_OF, MOST_IN_TABLE, Bin, Survival, bin_of

GRID: Final[tuple[int, ...]] = (
    8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384,
    24576, 32768, 65536, 131072,
)  # fmt: skip
MOMENTS: Final = [float(moment) for moment in GRID]
BEFORE: Final = [-1.0, *MOMENTS[:-1]]  # of each the one before; -1 of the first
_HARDLY: Final = 1e-3  # whoever lives with less of a chance is counted no further
_SURELY: Final = 1.0 + 1e-9  # what is said to be less is less, however it was rounded
_FOR_EVER: Final = 1e300
_NO_TABLE: Final[list[Bin]] = []
_NOTHING: Final[list[float]] = []

Moment = tuple[float, float, float, float]  # sequences that are expected to live, mean, spread, doubt


class Share:
    """One promise's part of the sums, from the grid's epoch on. `shared`: blocks that it holds and that are left out of
    it, as others hold them too. What it comes to at a moment is computed when it is asked for."""

    __slots__ = (
        "_alive", "_means", "_most", "base", "bins", "doubt", "held", "left", "made", "offset", "per_step",
        "sequences", "shared", "sign", "survival", "until",
    )  # fmt: skip

    def __init__(
        self, survival: Survival | None, made: float, left: float, held: float, per_step: float, sequences: float,
        offset: float,
    ) -> None:  # fmt: skip
        self.survival = survival  # None: it will make them all
        self.made = made
        self.left = left  # steps until its limit
        self.held = held  # blocks at the epoch
        self.per_step = per_step
        self.sequences = sequences
        self.offset = offset
        self.shared = 0
        self.sign = 1.0
        self.base = -1.0  # H(made), once it was needed, and with it how well what follows is known
        self.doubt = 0.0
        self.bins: list[Bin] = _NO_TABLE
        self.until = _FOR_EVER  # no later moment counts
        self._means: list[float] | None = None
        self._alive: list[float] = _NOTHING
        self._most = -1.0

    def again(self, survival: Survival | None, made: float, left: float, held: float, per_step: float) -> None:
        """Be the part of the same promise from another epoch on, at which it lives."""
        self.survival = survival
        self.made = made
        self.left = left
        self.held = held
        self.per_step = per_step
        self.offset = 0.0
        self.base = self._most = -1.0
        self.until = _FOR_EVER
        self._means = None

    def at(self, g: int) -> Moment:
        """What it comes to at a moment of the grid, times `sign`; all 0 from where it is counted no more."""
        return self.at_moment(g, MOMENTS[g], BEFORE[g])

    def at_moment(self, g: int, moment: float, before: float) -> Moment:
        """The same, of a moment and the one before it that are at hand."""
        if moment > self.until:
            return 0.0, 0.0, 0.0, 0.0
        step, left = moment - self.offset, self.left
        if step >= left:
            if before >= 0.0 and before - self.offset >= left:
                self.until = before
                return 0.0, 0.0, 0.0, 0.0
            step = left  # at its limit in between: it counts until the moment after
        sign, base = self.sign, self.base
        if base < 0.0:
            survival = self.survival
            if survival is None:
                return sign * self.sequences, sign * (self.held + step * self.per_step), 0.0, 0.0
            made = int(self.made)
            self.base = base = survival.hazard_to(made)
            self.doubt = survival.doubts[BIN_OF[made] if made < MOST_IN_TABLE else bin_of(made)]
            self.bins = survival.bins_to(made + int(self.left))
        step = max(step, 0.0)
        tokens = self.made + step
        place = int(tokens)
        at = self.bins[BIN_OF[place] if place < MOST_IN_TABLE else bin_of(place)]
        hazard = at.intercept + at.slope * tokens - base
        chance = exp(-hazard)
        if chance < _HARDLY:
            if g:
                self.at(g - 1)  # if that was so before, it is known now
                if moment > self.until:
                    return 0.0, 0.0, 0.0, 0.0
            self.until = moment
        blocks = self.held + step * self.per_step
        expected = chance * blocks
        return (
            sign * (chance * self.sequences),
            sign * expected,
            sign * (expected * (blocks - expected)),
            sign * (expected * hazard * self.doubt),
        )

    @property
    def mean(self) -> list[float]:
        """Blocks held, expected, at each moment that it counts at."""
        means = self._means
        if means is None:
            self._means = means = []
            self._alive = alive = []
            for g in range(len(MOMENTS)):
                living, mean, _, _ = self.at(g)
                if MOMENTS[g] > self.until:
                    break
                means.append(mean)
                alive.append(living)
        return means

    @property
    def most(self) -> float:
        """Blocks held, expected, at the moment at which that is most."""
        most = self._most
        if most < 0.0:
            most, largest = self.held, self.held + self.left * self.per_step
            for g in range(len(MOMENTS)):
                living, mean, _, _ = self.at(g)
                if MOMENTS[g] > self.until:
                    break
                most = mean if g == 0 else max(most, mean)
                if living * largest * _SURELY < most * self.sequences:
                    break  # even if it came to its limit with the chance that it has to live by then
            self._most = most
        return most

    @property
    def alive(self) -> list[float]:
        """Sequences that live, expected, at the same moments."""
        self.mean  # noqa: B018 - both are computed together
        return self._alive

    def taken_back(self) -> "Share":
        """What takes it out of the sums again."""
        share = Share(self.survival, self.made, self.left, self.held, self.per_step, self.sequences, self.offset)
        share.base, share.doubt, share.bins = self.base, self.doubt, self.bins
        share.until, share.shared, share.sign = self.until, self.shared, -1.0
        return share


def share_of(
    survival: Survival | None,
    *,
    made_tokens: int,
    limit_tokens: int,
    held: float,
    per_step: float,
    sequences: int,
    offset: int = 0,
) -> Share:
    """The part of one promise that has made `made_tokens` of at most `limit_tokens`, holds `held` blocks and grows by
    `per_step` blocks a step. `survival` None: it will make them all. `offset`: steps since the grid's epoch."""
    return Share(survival, made_tokens, limit_tokens - made_tokens, held, per_step, sequences, offset)


class Sums:
    """Those of several shares at one moment of the grid; `taken`: how many are in them. `square`: what is held,
    squared, of those that are expected to live; the variance is at most that."""

    __slots__ = ("_before", "_g", "alive", "doubt", "mean", "moment", "spread", "square", "taken")

    def __init__(self, g: int) -> None:
        self._g = g
        self.moment = MOMENTS[g]
        self._before = BEFORE[g]
        self.taken = 0
        self.alive = self.mean = self.spread = self.doubt = self.square = 0.0

    def clear(self) -> None:
        """Those of nobody."""
        self.taken = 0
        self.alive = self.mean = self.spread = self.doubt = self.square = 0.0

    def add(self, shares: list[Share]) -> None:
        """So many more, in their order."""
        g, moment, before = self._g, self.moment, self._before
        alive, mean, spread, doubt, square = self.alive, self.mean, self.spread, self.doubt, self.square
        for share in shares:
            living, held, varies, off = share.at_moment(g, moment, before)
            alive += living
            mean += held
            spread += varies
            doubt += off
            square += varies + share.sign * held * held
        self.taken += len(shares)
        self.square = square
        self.alive, self.mean, self.spread, self.doubt = alive, mean, spread, doubt

    def take_in(self, shares: list[Share], reach: float) -> None:
        """Those of `shares` that are not in them yet; nobody is counted after `reach`."""
        done = self.taken
        if self._before >= reach:
            self.taken = len(shares)
        else:
            self.add(shares[done:] if done else shares)


class Instead(Share):
    """One part in the place of others that are in the sums: `passed` steps from the epoch."""

    __slots__ = ("_parts",)

    def __init__(self, newcomer: Share, others: list[Share], passed: int) -> None:
        held = newcomer.held - sum([one.held + one.per_step * passed for one in others])
        per_step = newcomer.per_step - sum([one.per_step for one in others])
        super().__init__(None, 0, newcomer.left, held, per_step, newcomer.sequences, newcomer.offset)
        self._parts = [newcomer, *[one.taken_back() for one in others]]

    def at_moment(self, g: int, moment: float, before: float) -> Moment:
        """The newcomer's moment less those of the others."""
        sums = Sums(g)
        sums.add(self._parts)
        return sums.alive, sums.mean, sums.spread, sums.doubt
