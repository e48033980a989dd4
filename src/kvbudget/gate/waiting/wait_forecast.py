"""Decides when whoever comes will be let in: the first moment from which on it fits, after those who wait before it."""

from math import sqrt
from typing import Final

from kvbudget.gate.tenants.kept import Kept
from kvbudget.gate.waiting.queue import Demand
from kvbudget.pool.risk import Outlook
from kvbudget.pool.share import GRID, MOMENTS, Share

_MOST_BIAS: Final = 1.25
_UNKNOWN: Final = -1e300
_ROUNDED: Final = 1e-3  # blocks; sums are off by less
_NOBODY: Final = [0.0] * len(GRID)
_FOR_EVER: Final = 1e300


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


class Start:
    """When one fits: in `steps`, between two moments of the grid. At the first of them, `begin`, it lacks `short`
    blocks for a moment `against`; at the second, `width` steps later, `spare` more would fit. Until it was seen that
    those stand against it, every other moment that was looked at had room for `others` more."""

    __slots__ = ("against", "begin", "others", "short", "spare", "steps", "width")

    def __init__(
        self, steps: float, begin: float, width: float, short: float, against: int, spare: float, others: float
    ) -> None:
        self.steps = steps
        self.begin = begin
        self.width = width
        self.short = short
        self.against = against  # -1: no such moment
        self.spare = spare
        self.others = others

    def is_put_off_by(self, more: Share, passed: int) -> bool:
        """Whether it is clear that one `more` ahead makes it later: `has_room_by`, which would look at the same
        moments one after the other, gives False. It finds the same moment against it, at which more is short."""
        against = self.against
        if against < 0 or more.most > self.others - _ROUNDED:
            return False
        short = self.short + more.at(against)[1] - _ROUNDED
        later = self.steps + _ROUNDED
        return short > 0.0 and self.begin + self.width * (short / (short + self.spare)) - passed > later


def steps_until_room(
    outlook: Outlook, z: float, newcomer: Share, blocks: float, seats: int, ahead: Demand | None, kept: Kept | None
) -> float | None:
    """Steps until the living, those `ahead` and the newcomer fit, and go on fitting; None if that is beyond the grid.

    `blocks`, `seats`, `kept`: as of `start_of`."""
    start = start_of(outlook, z, newcomer, blocks, seats, ahead, kept)
    return None if start is None else start.steps


class _Room:
    """Of the moments of one forecast, what is held beside the room, with `others` ahead and `free` kept for others.
    `others_fit`: see `Start`, by what was looked at so far. `short`: of the moment that was found last."""

    __slots__ = ("free", "others", "others_fit", "outlook", "room", "short", "variance", "z")

    def __init__(
        self, outlook: Outlook, z: float, room: float, others: list[float], free: list[float], variance: float
    ) -> None:
        self.outlook = outlook
        self.z = z
        self.room = room
        self.others = others
        self.free = free
        self.variance = variance
        self.others_fit = _FOR_EVER
        self.short = 1.0

    def held(self, later: int) -> float:
        """Blocks that are expected to be held."""
        return self.outlook.at(later).mean + self.others[later] + self.free[later]

    def missing(self, later: int, known: float) -> float:
        """Blocks that are missing there, for one who starts when it is known who has ended until then: that is no more
        part of what varies."""
        sums = self.outlook.at(later)
        left = sums.spread - known + self.variance
        held = sums.mean + self.others[later] + self.free[later]
        return held + (self.z * sqrt(left) if left > 0.0 else 0.0) - self.room

    def against(self, g: int, later: int) -> int:
        """A moment from `g` on that stands against a start at it, `later` if that does; -1: none."""
        outlook, last = self.outlook, len(GRID) - 1
        base = outlook.at(g)
        known, least, then = base.spread, self.others_fit, g
        while True:
            missing = self.missing(later, known)
            if missing > 0.0:
                self.short = missing
                self.others_fit = least if missing >= _ROUNDED else _UNKNOWN
                return later
            least = min(least, -missing)
            if later == then - 1:
                base = outlook.at(later)
            while then < last:  # whatever is clear by what is summed already is not summed
                mean, square = outlook.most_at(then, base)
                most = mean + self.others[then] + self.free[then] + self.z * sqrt(square + self.variance) + _ROUNDED
                if most > self.room:
                    break
                least = min(least, self.room - most)
                then += 1
            if then == last:
                return -1
            later = then
            then += 1


def start_of(
    outlook: Outlook, z: float, newcomer: Share, blocks: float, seats: int, ahead: Demand | None, kept: Kept | None
) -> Start | None:
    """When the living, those `ahead` and the newcomer fit, and go on fitting; None if that is beyond the grid.

    `blocks`: of the pool that they may have together. `seats`: sequences that may run beside the newcomer. `kept`: what
    stays free for others. Moments at which it cannot fit whatever is unknown are not summed.
    """
    passed = float(outlook.now - outlook.epoch)
    others, running = (_NOBODY, _NOBODY) if ahead is None else (ahead.blocks, ahead.sequences)
    free, variance = _NOBODY, 0.0
    if kept is not None:
        free, variance = kept.blocks, kept.variance
        seats -= int(kept.slots)
    room = _Room(outlook, z, blocks - newcomer.most, others, free, variance)
    last = len(GRID) - 1
    worst = 0  # where it was seen not to fit: likely the same moment stands against the next one
    before = 1.0
    against = vague = -1  # the moment of which `before` is, if that is not known yet, and which one stood against it
    is_vague = True  # until a moment is met at which it might fit
    for g in range(last):
        if MOMENTS[g] < passed:
            worst = g + 1
            continue
        worst = max(worst, g)
        if is_vague:
            held = room.held(worst)
            if held > room.room:
                against, vague = worst, g
                room.others_fit = room.others_fit if held >= room.room + _ROUNDED else _UNKNOWN
                continue
            is_vague = False
        later = room.against(g, worst)
        if later >= 0:
            worst = against = later
            before, vague = room.short, -1
            continue
        missing = (outlook.at(g).alive + running[g] - seats) * room.room / max(1.0, float(seats))
        if missing > 0.0:
            worst = last - 1
            before, vague = missing, -1
            room.others_fit = _UNKNOWN
            continue
        if vague >= 0:
            before = room.missing(against, outlook.at(vague).spread)
        begin, spare = MOMENTS[g - 1] if g else 0.0, -min(missing, -1e-9)
        share = before / (before + spare) if g else 0.5
        steps = begin + (MOMENTS[g] - begin) * share - passed
        against = against if steps < MOMENTS[g] - passed else -1  # else it was rounded up to the moment
        return Start(steps, begin, MOMENTS[g] - begin, before, against, spare, room.others_fit)
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
    passed = float(outlook.now - outlook.epoch)
    room = blocks - newcomer.most
    others, running = (_NOBODY, _NOBODY) if ahead is None else (ahead.blocks, ahead.sequences)
    last = len(GRID) - 1
    held = [_UNKNOWN] * last
    worst = 0
    before = 1.0
    vague = vague_for = -1
    for g in range(last):
        if MOMENTS[g] < passed:
            worst = g + 1
            continue
        begin = MOMENTS[g - 1] if g else 0.0
        if begin - passed > steps:
            return False
        worst = later = max(worst, g)
        if held[later] == _UNKNOWN:
            held[later] = outlook.at(later).mean + (others[later] + more.at(later)[1])
        is_before = MOMENTS[g] - passed <= steps  # then nothing that begins here is too late
        if is_before and held[later] > room:
            vague, vague_for = g, later
            continue
        here = outlook.at(g)
        seated = (here.alive + (running[g] + more.at(g)[0]) - seats) * room / max(1.0, float(seats))
        if not is_before and seated <= 0.0:  # even if it fits from here on
            if vague >= 0:
                left = outlook.at(vague_for).spread - outlook.at(vague).spread
                before = held[vague_for] + (z * sqrt(left) if left > 0.0 else 0.0) - room
            share = before / (before - min(seated, -1e-9)) if g else 0.5
            if begin + (MOMENTS[g] - begin) * share - passed > steps:
                return False
        known = here.spread
        then = g
        while True:
            sums = outlook.at(later)
            if held[later] == _UNKNOWN:
                held[later] = sums.mean + (others[later] + more.at(later)[1])
            left = sums.spread - known
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
