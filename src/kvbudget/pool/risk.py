"""How many blocks a batch will hold over time when it is only known how likely each sequence is to go on.

As in `pool.trajectory`, all decode in lockstep: t steps from now a sequence that still lives holds the blocks of t more
tokens. Whether it still lives is a chance S_i(t), given by `pool.survival` and conditional on what it has produced. For
a grid of moments ahead, the sums over the batch of

    mean      S b            what is held, expected
    spread    S (1 - S) b^2  variance of that, as sequences end independently of one another
    doubt     S b H e        what it would be off if the learned chances of ending were off by one standard error e,
                             which all share and which therefore does not average out; larger for the longest, as
                             few ends are known beyond where they stand

tell what is enough at each moment: mean + z * sqrt(spread + doubt^2), but never more than if nobody ended until then
(soon that is less: near moments are not normal); the largest of the moments is what to promise. That is not the sum of
each one's quantile: those who end make room before others are long, and errors cancel.

Why sums of moments and not scenarios of sampled lengths: against sampled courses of the same batches the promise holds
in at least 1 - epsilon of them (tests/pool/test_risk.py), and a few scenarios cost more per decision and leave noise in
the very quantile that is asked for. A union bound over all moments is not needed: they are so strongly correlated that
z of epsilon / 3 covers them.

The grid stands still for a while (`EPOCH_STEPS`), so that one who comes or goes costs one addition per moment, however
many live; and no moment is summed before a decision asks for it.
"""

from collections.abc import Sequence
from math import erfc, exp, sqrt
from typing import Final

from kvbudget.pool.groups import Group, Layout
from kvbudget.pool.survival import BIN_OF, MOST_IN_TABLE, Survival, bin_of
from kvbudget.units import Blocks, blocks_for

GRID: Final[tuple[int, ...]] = (
    8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384,
    24576, 32768, 65536, 131072,
)  # fmt: skip
EPOCH_STEPS: Final = 16
_CORRELATED_MOMENTS: Final = 3.0
# A pool whose worst moment is near is filled up to its limit again and again, and each time it may overflow. So the
# risk is one for so many steps: what is nearer may go wrong the less often. By how much hardly depends on the risk.
RISK_STEPS: Final = 128
_RISK: Final = 0.02


def z_of(epsilon: float) -> float:
    """Standard deviations that a normal variable exceeds with a chance of `epsilon` < 1/2."""
    low, high = 0.0, 8.0
    for _ in range(50):
        middle = (low + high) / 2
        if 0.5 * erfc(middle / sqrt(2.0)) > epsilon:
            low = middle
        else:
            high = middle
    return high


def z_over_time(epsilon: float) -> float:
    """The same for the largest of the grid's moments, correlated as they are in a batch."""
    return z_of(epsilon / _CORRELATED_MOMENTS)


def _near() -> list[float]:
    rest = z_over_time(_RISK)
    return [max(1.0, z_over_time(_RISK * moment / RISK_STEPS) / rest) for moment in GRID]


_NEAR: Final = _near()  # by which z is larger at each moment
_HARDLY: Final = 1e-3  # whoever lives with less of a chance is counted no further
_SURELY: Final = 1.0 + 1e-9  # what is said to be less is less, however it was rounded
_NO_TABLE: Final[list[float]] = []

Moment = tuple[float, float, float, float]  # sequences that are expected to live, mean, spread, doubt


class Growth:
    """How one sequence's blocks grow: `constant` + tokens * `per_token`, on average over where in a block it stands."""

    __slots__ = ("_constant_groups", "_half_open", "layout", "per_token")

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.per_token = sum([1.0 / group.block_size for group in layout.growing])
        self._half_open = sum([0.5 * (group.block_size - 1) / group.block_size for group in layout.growing])
        self._constant_groups = [group for group in layout.groups if group not in layout.growing]

    def blocks(self, tokens: float, peak_tokens: int) -> float:
        """Expected blocks at `tokens`, none of them in flight; groups that keep only some tokens count as filled."""
        if not self._constant_groups:
            return self._half_open + tokens * self.per_token
        constant = sum([_decoding(group, peak_tokens) for group in self._constant_groups])
        return constant + self._half_open + tokens * self.per_token

    def reading(self, prompt_tokens: int) -> float:
        """Blocks that a prompt may hold beyond `blocks` while it is read: more than a window is in flight then."""
        if not self._constant_groups:
            return 0.0
        return sum(
            [
                max(0, group.blocks_for(prompt_tokens) - _decoding(group, prompt_tokens))
                for group in self._constant_groups
            ]
        )


def _decoding(group: Group, peak_tokens: int) -> int:
    """What a sequence of at most `peak_tokens` holds of this group while it decodes: a window that begins inside a
    block spans one more. Where the window is not told, what it may hold at most."""
    most = group.blocks_for(peak_tokens)
    if not group.window or group.fixed_blocks:
        return most
    return min(most, blocks_for(group.window, group.block_size) + 1 + group.extra_blocks)


class Share:
    """One promise's part of the sums, from the grid's epoch on. `shared`: blocks that it holds and that are left out of
    it, as others hold them too. What it comes to at a moment is computed when it is asked for."""

    __slots__ = (
        "_alive", "_means", "_most", "base", "doubt", "held", "intercept", "last", "left", "made", "offset", "per_step",
        "sequences", "shared", "sign", "slope", "survival",
    )  # fmt: skip

    def __init__(
        self, survival: Survival | None, made: int, left: int, held: float, per_step: float, sequences: int, offset: int
    ) -> None:
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
        self.intercept: list[float] = _NO_TABLE if survival is None else survival.intercept
        self.slope: list[float] = _NO_TABLE if survival is None else survival.slope
        self.last = len(GRID)  # no later moment of the grid counts
        self._means: list[float] | None = None
        self._alive: list[float] = _NO_TABLE
        self._most = -1.0

    def at(self, g: int) -> Moment:
        """What it comes to at a moment of the grid; all 0 from where it is counted no more."""
        _ALONE[0] = self
        return _summed(_ALONE, 0, g, 0.0, 0.0, 0.0, 0.0)

    @property
    def mean(self) -> list[float]:
        """Blocks held, expected, at each moment that it counts at."""
        means = self._means
        if means is None:
            self._means = means = []
            self._alive = alive = []
            for g in range(len(GRID)):
                living, mean, _, _ = self.at(g)
                if g > self.last:
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
            for g in range(len(GRID)):
                living, mean, _, _ = self.at(g)
                if g > self.last:
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
        share.base, share.doubt = self.base, self.doubt
        share.last, share.shared, share.sign = self.last, self.shared, -1.0
        return share


_ALONE: Final = [Share(None, 0, 0, 0.0, 0.0, 0, 0)]  # not a list for each question: they are many, and short


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


def _summed(shares: list[Share], first: int, g: int, alive: float, mean: float, spread: float, doubt: float) -> Moment:
    """The sums at a moment, with those of `shares` from the `first` on added to them."""
    moment = GRID[g]
    before = GRID[g - 1] if g else -1
    for number in range(first, len(shares)):
        share = shares[number]
        if g > share.last:
            continue
        offset, left = share.offset, share.left
        step = moment - offset
        if step >= left:
            if g and before - offset >= left:
                share.last = g - 1
                continue
            step = left  # at its limit in between: it counts until the moment after
        sign, survival = share.sign, share.survival
        if survival is None:
            alive += sign * share.sequences
            mean += sign * (share.held + step * share.per_step)
            continue
        step = max(step, 0)
        base = share.base
        if base < 0.0:
            share.base = base = survival.hazard_to(share.made)
            share.doubt = survival.doubts[bin_of(share.made)]
        tokens = share.made + step
        k = BIN_OF[tokens] if tokens < MOST_IN_TABLE else bin_of(tokens)
        hazard = share.intercept[k] + share.slope[k] * tokens - base
        chance = exp(-hazard)
        if chance < _HARDLY:
            if g:
                share.at(g - 1)  # if that was so before, it is known now
                if g > share.last:
                    continue
            share.last = g
        blocks = share.held + step * share.per_step
        expected = chance * blocks
        alive += sign * (chance * share.sequences)
        mean += sign * expected
        spread += sign * (expected * (blocks - expected))
        doubt += sign * (expected * hazard * share.doubt)
    return alive, mean, spread, doubt


class Instead(Share):
    """One part in the place of others that are in the sums: `passed` steps from the epoch."""

    __slots__ = ("_parts",)

    def __init__(self, newcomer: Share, others: Sequence[Share], passed: int) -> None:
        held = newcomer.held - sum([one.held + one.per_step * passed for one in others])
        per_step = newcomer.per_step - sum([one.per_step for one in others])
        super().__init__(None, 0, newcomer.left, held, per_step, newcomer.sequences, newcomer.offset)
        self._parts = [newcomer, *[one.taken_back() for one in others]]

    def at(self, g: int) -> Moment:
        """The newcomer's moment less those of the others."""
        return _summed(self._parts, 0, g, 0.0, 0.0, 0.0, 0.0)


class Outlook:
    """Sums over all living promises. `epoch` is the step at which the grid stands, `now` the step that has come.

    Each moment is summed when it is asked for: most decisions are clear from what is held, or from the moment that was
    the worst before. Whoever came or went since is taken in in that order, so the sums are those of one pass.
    """

    __slots__ = (
        "_alive", "_doubt", "_from", "_from_taken", "_held", "_log", "_mean", "_per_step", "_reach", "_spread",
        "_taken", "_worst", "epoch", "now", "shared", "shares", "version",
    )  # fmt: skip

    def __init__(self) -> None:
        self.epoch = 0
        self.now = 0
        self.shares: dict[str, Share] = {}
        self.version = 0  # rises with every change but that of time
        self._worst = 0  # the moment at which most was needed when that was last looked for
        self.begin(0)

    def begin(self, epoch: int) -> None:
        """Empty, with the grid at `epoch`."""
        self.epoch = epoch
        self.now = epoch
        self.version += 1
        self.shares.clear()
        self._log: list[Share] = []  # who came, and who went (`sign`)
        self._taken = [0] * len(GRID)  # so much of it is in the sums of each moment
        self._from, self._from_taken = len(GRID), 0  # and so much in those from one on
        self._mean = [0.0] * len(GRID)
        self._spread = [0.0] * len(GRID)
        self._doubt = [0.0] * len(GRID)
        self._alive = [0.0] * len(GRID)
        self._reach = 0  # steps from the epoch after which nobody is counted
        self.shared = 0
        self._held = 0.0
        self._per_step = 0.0

    def add(self, name: str, share: Share) -> None:
        """One more lives."""
        self.shares[name] = share
        self._reach = max(self._reach, share.offset + share.left)
        self._note(share)

    def discard(self, name: str) -> None:
        """It lives no more; nothing happens if it was not counted."""
        share = self.shares.pop(name, None)
        if share is not None:
            self._note(share.taken_back())

    def held_now(self) -> float:
        """Blocks held by now, as far as is believed."""
        return self._held + self._per_step * (self.now - self.epoch)

    @property
    def mean(self) -> list[float]:
        """Blocks held, expected, at each moment."""
        self._take_in_from(0)
        return self._mean

    @property
    def spread(self) -> list[float]:
        """Variance of that."""
        self._take_in_from(0)
        return self._spread

    @property
    def doubt(self) -> list[float]:
        """What it would be off by one standard error of what was learned."""
        self._take_in_from(0)
        return self._doubt

    @property
    def alive(self) -> list[float]:
        """Sequences, expected."""
        self._take_in_from(0)
        return self._alive

    def mean_at(self, g: int) -> float:
        """`mean[g]`, which takes less work than all of them."""
        self._take_in(g)
        return self._mean[g]

    def spread_at(self, g: int) -> float:
        """`spread[g]`."""
        self._take_in(g)
        return self._spread[g]

    def alive_at(self, g: int) -> float:
        """`alive[g]`."""
        self._take_in(g)
        return self._alive[g]

    def sums_from(self, first: int) -> tuple[list[float], list[float], list[float]]:
        """`mean`, `spread` and `alive`, of which only the moments from the `first` on are up to date."""
        self._take_in_from(first)
        return self._mean, self._spread, self._alive

    def enough(
        self, z: float, more: Share | None = None, kept: Sequence[float] | None = None, kept_variance: float = 0.0
    ) -> list[float]:
        """Blocks that suffice at each moment of the grid, 0 for those that have passed; with one `more`, and with what
        stays free then for others: `kept` on average."""
        return [self._enough_at(g, z, more, kept, kept_variance, 0.0) for g in range(len(GRID))]

    def promise_up_to(
        self,
        limit: int,
        held: float,
        z: float,
        more: Share | None = None,
        kept: Sequence[float] | None = None,
        kept_variance: float = 0.0,
    ) -> Blocks | None:
        """`promise(enough(...), held)`; None, which takes less work, if that is above `limit`."""
        worst = self._worst
        most = max(held, self._enough_at(worst, z, more, kept, kept_variance, held))
        if int(most) + 1 > limit:
            return None
        for g in range(len(GRID)):
            needed = self._enough_at(g, z, more, kept, kept_variance, most)
            if needed > most:
                most = needed
                self._worst = g
                if int(most) + 1 > limit:
                    return None
        return Blocks(int(most) + 1)

    def _enough_at(
        self, g: int, z: float, more: Share | None, kept: Sequence[float] | None, kept_variance: float, least: float
    ) -> float:
        """`enough` at one moment; something else that is at most `least` where it is easily seen to be at most that."""
        moment, passed = GRID[g], self.now - self.epoch
        if moment < passed:
            return 0.0
        most = self._held + self._per_step * moment
        if more is not None:
            most += more.held + more.per_step * (moment - passed)
        if kept is not None:
            most += kept[g] + z * sqrt(kept_variance)
        if most <= least:
            return most
        self._take_in(g)
        mean, spread, doubt = self._mean[g], self._spread[g], self._doubt[g]
        if more is not None:
            _, more_mean, more_spread, more_doubt = more.at(g)
            mean += more_mean
            spread += more_spread
            doubt += more_doubt
        near = _NEAR[g]
        if kept is not None:
            mean += kept[g]
            spread += kept_variance / near**2  # a wait for a moment is no overflow
        return min(mean + z * near * sqrt(max(0.0, spread) + doubt * doubt), most)

    def _take_in_from(self, first: int) -> None:
        """Bring the sums of that moment and all later ones up to date."""
        done = len(self._log)
        if self._from_taken == done and self._from <= first:
            return
        for g in range(first, len(GRID)):
            self._take_in(g)
        self._from_taken, self._from = done, first

    def _take_in(self, g: int) -> None:
        """Bring the sums of one moment up to date."""
        log, done = self._log, self._taken[g]
        if done == len(log):
            return
        self._taken[g] = len(log)
        if g and GRID[g - 1] >= self._reach:
            return
        self._alive[g], self._mean[g], self._spread[g], self._doubt[g] = _summed(
            log, done, g, self._alive[g], self._mean[g], self._spread[g], self._doubt[g]
        )

    def _note(self, share: Share) -> None:
        self.version += 1
        self._log.append(share)
        sign = share.sign
        self.shared += share.shared if sign > 0.0 else -share.shared
        self._held += sign * share.held
        self._per_step += sign * share.per_step


def promise(needs: Sequence[float], held: float) -> Blocks:
    """Blocks to promise: the most that is needed at any moment, and never less than is held."""
    return Blocks(int(max(held, *needs)) + 1)
