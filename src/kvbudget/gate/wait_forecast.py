"""Decides when whoever comes will be let in: the first moment from which on it fits, after those who wait before it."""

from math import sqrt
from typing import Final

from kvbudget.gate.kept import Kept
from kvbudget.gate.queue import Demand
from kvbudget.pool.risk import GRID, Outlook, Share

_MOST_BIAS = 1.25
_UNKNOWN = -1e300
_NOBODY: Final = [0.0] * len(GRID)


class WaitForecast:
    """Waits as they are foreseen, and how they turned out."""

    def __init__(self) -> None:
        self.bias = 1.0  # real waits over predicted ones

    def wait_ns(self, steps: float, ns_per_step: float) -> int:
        """How long so many steps will really be."""
        return int(max(1.0, steps) * ns_per_step * self.bias)

    def waited(self, predicted_ns: int, real_ns: int) -> None:
        """Somebody for whom a wait was predicted waited this long."""
        if predicted_ns > 0:
            ratio = min(4.0, max(0.25, real_ns / (predicted_ns / self.bias)))
            self.bias += 0.05 * (min(_MOST_BIAS, ratio) - self.bias)


def steps_until_room(
    outlook: Outlook, z: float, newcomer: Share, blocks: float, seats: int, ahead: Demand | None, kept: Kept | None
) -> float | None:
    """Steps until the living, those `ahead` and the newcomer fit, and go on fitting; None if that is beyond the grid.

    `blocks`: of the pool that they may have together. `seats`: sequences that may run beside the newcomer. `kept`: what
    stays free for others. Moments at which it cannot fit whatever is unknown are not summed.
    """
    passed = outlook.now - outlook.epoch
    room = blocks - newcomer.most
    others, running = (_NOBODY, _NOBODY) if ahead is None else (ahead.blocks, ahead.sequences)
    free, variance = _NOBODY, 0.0
    if kept is not None:
        free, variance = kept.blocks, kept.variance
        seats -= int(kept.slots)
    mean = spread = alive = _NOBODY
    last = len(GRID) - 1
    worst = 0  # where it was seen not to fit: likely the same moment stands against the next one
    before = 1.0
    vague = vague_for = -1  # the moment of which `before` is, and which one stood against it, if it is not known
    is_summed = False
    for g in range(last):
        if GRID[g] < passed:
            worst = g + 1
            continue
        worst = later = max(worst, g)
        if not is_summed:
            if outlook.mean_at(later) + others[later] + free[later] > room:
                vague, vague_for = g, later
                continue
            is_summed = True
            mean, spread, alive = outlook.sums_from(g)
        # By then it is known who has ended until then; what remains unknown is what comes after.
        known = spread[g]
        then = g
        while True:
            left = spread[later] - known + variance
            missing = mean[later] + others[later] + free[later] + (z * sqrt(left) if left > 0.0 else 0.0) - room
            if missing > 0.0:
                break
            if then == last:
                missing = (alive[g] + running[g] - seats) * room / max(1.0, float(seats))
                break
            later = then
            then += 1
        worst = later
        if missing <= 0.0:
            if vague >= 0:
                left = outlook.spread_at(vague_for) - outlook.spread_at(vague) + variance
                held = outlook.mean_at(vague_for) + others[vague_for] + free[vague_for]
                before = held + (z * sqrt(left) if left > 0.0 else 0.0) - room
            start = GRID[g - 1] if g else 0
            share = before / (before - min(missing, -1e-9)) if g else 0.5
            return start + (GRID[g] - start) * share - passed
        before, vague = missing, -1
    return None


def has_room_by(
    steps: float,
    outlook: Outlook,
    z: float,
    newcomer: Share,
    blocks: float,
    seats: int,
    ahead: Demand | None,
    more: Share,
) -> bool:
    """Whether `steps_until_room` with one `more` ahead is at most `steps`.

    Told without all of it: nothing is asked of moments after `steps`, and of one more only what is asked for. Until
    `steps` come, it is enough that there is no room.
    """
    passed = outlook.now - outlook.epoch
    room = blocks - newcomer.most
    others, running = (_NOBODY, _NOBODY) if ahead is None else (ahead.blocks, ahead.sequences)
    last = len(GRID) - 1
    held = [_UNKNOWN] * last
    worst = 0
    before = 1.0
    vague = vague_for = -1
    for g in range(last):
        if GRID[g] < passed:
            worst = g + 1
            continue
        begin = GRID[g - 1] if g else 0
        if begin - passed > steps:
            return False
        worst = later = max(worst, g)
        if held[later] == _UNKNOWN:
            held[later] = outlook.mean_at(later) + (others[later] + more.at(later)[1])
        is_before = GRID[g] - passed <= steps  # then nothing that begins here is too late
        if is_before and held[later] > room:
            vague, vague_for = g, later
            continue
        seated = (outlook.alive_at(g) + (running[g] + more.at(g)[0]) - seats) * room / max(1.0, float(seats))
        if not is_before and seated <= 0.0:  # even if it fits from here on
            if vague >= 0:
                left = outlook.spread_at(vague_for) - outlook.spread_at(vague)
                before = held[vague_for] + (z * sqrt(left) if left > 0.0 else 0.0) - room
            share = before / (before - min(seated, -1e-9)) if g else 0.5
            if begin + (GRID[g] - begin) * share - passed > steps:
                return False
        mean, spread, _ = outlook.sums_from(g)
        known = spread[g]
        then = g
        while True:
            if held[later] == _UNKNOWN:
                held[later] = mean[later] + (others[later] + more.at(later)[1])
            left = spread[later] - known
            missing = held[later] + (z * sqrt(left) if left > 0.0 else 0.0) - room
            if missing > 0.0:
                break
            if then == last:
                missing = seated
                break
            later = then
            then += 1
        worst = later
        if missing <= 0.0:
            return True
        before, vague = missing, -1
    return False
