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
from math import erfc, sqrt
from typing import Final

from kvbudget.pool.share import GRID, MOMENTS, Share, Sums
from kvbudget.units import Blocks

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


class Outlook:
    """Sums over all living promises. `epoch` is the step at which the grid stands, `now` the step that has come.

    Each moment is summed when it is asked for: most decisions are clear from what is held, or from the moment that was
    the worst before. Whoever came or went since is taken in in that order, so the sums are those of one pass.
    """

    __slots__ = (
        "_held", "_log", "_per_step", "_reach", "_steepest", "_sums", "_worst", "epoch", "now", "shared", "shares",
        "version",
    )  # fmt: skip

    def __init__(self) -> None:
        self.epoch = 0
        self.now = 0
        self.shares: dict[str, Share] = {}
        self.version = 0  # rises with every change but that of time
        self.shared = 0  # blocks that the shares leave out, as others hold them too
        self._worst = 0  # the moment at which most was needed when that was last looked for
        self._log: list[Share] = []  # who came, and who went (`sign`)
        self._sums = [Sums(g) for g in range(len(GRID))]
        self._reach = 0.0  # steps from the epoch after which nobody is counted
        self._steepest = 0.0  # blocks a step by which nobody grows faster
        self._held = 0.0
        self._per_step = 0.0

    def begin(self, epoch: int) -> None:
        """The grid stands at `epoch`: everybody who lives is to be counted anew."""
        self.epoch = epoch
        self.now = epoch
        self.version += 1
        self.shared = 0
        self._log = []
        for sums in self._sums:
            sums.clear()
        self._reach = self._steepest = 0.0
        self._held = 0.0
        self._per_step = 0.0

    def add(self, name: str, share: Share) -> None:
        """One more lives."""
        self.shares[name] = share
        self.count(share)

    def count(self, share: Share) -> None:
        """One that was added before lives on, in the epoch that has begun."""
        self._reach = max(self._reach, share.offset + share.left)
        self._steepest = max(self._steepest, share.per_step)
        self._note(share)

    def discard(self, name: str) -> None:
        """It lives no more; nothing happens if it was not counted."""
        share = self.shares.get(name)
        if share is not None:
            del self.shares[name]
            self._note(share.taken_back())

    def held_now(self) -> float:
        """Blocks held by now, as far as is believed."""
        return self._held + self._per_step * (self.now - self.epoch)

    def at(self, g: int) -> Sums:
        """What is expected at one moment: sequences, blocks held, variance of that, and what it would be off by one
        standard error of what was learned."""
        sums = self._sums[g]
        if sums.taken != len(self._log):
            sums.take_in(self._log, self._reach)
        return sums

    def most_at(self, g: int, base: Sums) -> tuple[float, float]:
        """(mean, variance) that are not exceeded at a moment, by those of an earlier one: nobody comes to life again,
        and nobody grows faster than the fastest. Without a sum; what was rounded is not in it."""
        grown = (MOMENTS[g] - base.moment) * self._steepest
        more = grown * base.alive
        return base.mean + more, max(0.0, base.square + grown * (2.0 * base.mean + more))

    @property
    def mean(self) -> list[float]:
        """Blocks held, expected, at each moment."""
        return [self.at(g).mean for g in range(len(GRID))]

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
        moment, passed = MOMENTS[g], self.now - self.epoch
        if moment < passed:
            return 0.0
        most = self._held + self._per_step * moment
        if more is not None:
            most += more.held + more.per_step * (moment - passed)
        if kept is not None:
            most += kept[g] + z * sqrt(kept_variance)
        if most <= least:
            return most
        sums = self.at(g)
        mean, spread, doubt = sums.mean, sums.spread, sums.doubt
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
