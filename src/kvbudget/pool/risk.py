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

The grid stands still for a while (`EPOCH_STEPS`) and everybody's share of the sums is kept, so that one who comes or
goes costs one addition per moment, however many live.
"""

from collections.abc import Sequence
from math import erfc, exp, sqrt

from kvbudget.pool.groups import Group, Layout
from kvbudget.pool.survival import BIN_OF, MOST_IN_TABLE, Survival, bin_of
from kvbudget.units import Blocks, blocks_for

GRID = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288,
        16384, 24576, 32768, 65536, 131072)  # fmt: skip
EPOCH_STEPS = 16
_CORRELATED_MOMENTS = 3.0
# A pool whose worst moment is near is filled up to its limit again and again, and each time it may overflow. So the
# risk is one for so many steps: what is nearer may go wrong the less often. By how much hardly depends on the risk.
RISK_STEPS = 128
_RISK = 0.02


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


_NEAR = _near()  # by which z is larger at each moment


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
        constant = sum([_decoding(group, peak_tokens) for group in self._constant_groups])
        return constant + self._half_open + tokens * self.per_token

    def reading(self, prompt_tokens: int) -> float:
        """Blocks that a prompt may hold beyond `blocks` while it is read: more than a window is in flight then."""
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
    it, as others hold them too."""

    __slots__ = ("alive", "doubt", "held", "mean", "per_step", "sequences", "shared", "spread")

    def __init__(self, held: float, per_step: float, sequences: int) -> None:
        self.held = held  # blocks at the epoch
        self.per_step = per_step
        self.sequences = sequences
        self.shared = 0
        self.alive: list[float] = []  # expected sequences
        self.mean: list[float] = []
        self.spread: list[float] = []
        self.doubt: list[float] = []


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
    share = Share(held, per_step, sequences)
    alives, mean, spread, doubts = share.alive, share.mean, share.spread, share.doubt
    left = limit_tokens - made_tokens
    if survival is None:
        for moment in GRID:
            step = min(moment - offset, left)
            alives.append(float(sequences))
            mean.append(held + step * per_step)
            spread.append(0.0)
            doubts.append(0.0)
            if step == left:
                break
        return share
    # This is done for everybody once an epoch, so it is written for speed: BIN_OF instead of bin_of, no min or max.
    intercept, slope = survival.intercept, survival.slope
    base = survival.hazard_to(made_tokens)
    doubt = survival.doubts[bin_of(made_tokens)]
    for moment in GRID:
        step = moment - offset
        if step > left:
            step = left  # at its limit in between: it counts until the moment after
        elif step < 0:
            step = 0
        tokens = made_tokens + step
        k = BIN_OF[tokens] if tokens < MOST_IN_TABLE else bin_of(tokens)
        hazard = intercept[k] + slope[k] * tokens - base
        alive = exp(-hazard)
        blocks = held + step * per_step
        expected = alive * blocks
        alives.append(alive * sequences)
        mean.append(expected)
        spread.append(expected * (blocks - expected))
        doubts.append(expected * hazard * doubt)
        if step == left or alive < 1e-3:
            break
    return share


class Outlook:
    """Sums over all living promises. `epoch` is the step at which the grid stands, `now` the step that has come."""

    __slots__ = ("_held", "_per_step", "alive", "doubt", "epoch", "mean", "now", "shared", "shares", "spread")

    def __init__(self) -> None:
        self.epoch = 0
        self.now = 0
        self.shares: dict[str, Share] = {}
        self.begin(0)

    def begin(self, epoch: int) -> None:
        """Empty, with the grid at `epoch`."""
        self.epoch = epoch
        self.now = epoch
        self.shares.clear()
        self.mean = [0.0] * len(GRID)
        self.spread = [0.0] * len(GRID)
        self.doubt = [0.0] * len(GRID)
        self.alive = [0.0] * len(GRID)
        self.shared = 0
        self._held = 0.0
        self._per_step = 0.0

    def add(self, name: str, share: Share) -> None:
        """One more lives."""
        self.shares[name] = share
        self._sum(share, 1)

    def discard(self, name: str) -> None:
        """It lives no more; nothing happens if it was not counted."""
        share = self.shares.pop(name, None)
        if share is not None:
            self._sum(share, -1)

    def held_now(self) -> float:
        """Blocks held by now, as far as is believed."""
        return self._held + self._per_step * (self.now - self.epoch)

    def enough(
        self, z: float, more: Share | None = None, kept: Sequence[float] | None = None, kept_variance: float = 0.0
    ) -> list[float]:
        """Blocks that suffice at each moment of the grid, 0 for those that have passed; with one `more`, and with what
        stays free then for others: `kept` on average."""
        passed = self.now - self.epoch
        count = 0 if more is None else len(more.mean)
        needs: list[float] = []
        for g, moment in enumerate(GRID):
            mean, spread, doubt = self.mean[g], self.spread[g], self.doubt[g]
            most = self._held + self._per_step * moment
            if more is not None:
                most += more.held + more.per_step * max(0, moment - passed)
            if more is not None and g < count:
                mean += more.mean[g]
                spread += more.spread[g]
                doubt += more.doubt[g]
            if kept is not None:
                mean += kept[g]
                most += kept[g] + z * sqrt(kept_variance)
                spread += kept_variance / _NEAR[g] ** 2  # a wait for a moment is no overflow
            enough = mean + z * _NEAR[g] * sqrt(max(0.0, spread) + doubt * doubt)
            needs.append(min(enough, most) if moment >= passed else 0.0)
        return needs

    def _sum(self, share: Share, sign: int) -> None:
        self.shared += sign * share.shared
        self._held += sign * share.held
        self._per_step += sign * share.per_step
        alive, mean, spread, doubt = self.alive, self.mean, self.spread, self.doubt
        for g, value in enumerate(share.mean):
            mean[g] += sign * value
            alive[g] += sign * share.alive[g]
            spread[g] += sign * share.spread[g]
            doubt[g] += sign * share.doubt[g]


def promise(needs: Sequence[float], held: float) -> Blocks:
    """Blocks to promise: the most that is needed at any moment, and never less than is held."""
    return Blocks(int(max(held, *needs)) + 1)
