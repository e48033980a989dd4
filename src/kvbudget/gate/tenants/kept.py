"""Decides how much of the pool stays free for others: what they will ask for while whoever is let in now still lives.

Where learned lengths tell how those who live go on (`pool.risk.Outlook`), that is a question of time: in a steady state
who comes makes up for who goes, so that by some moment ahead newcomers hold the part of the mean that those who live
now are expected to have given back by then. Who lives stands in the promise with all that it will hold, so a burst of
others counts beside what others will ask for anyway, and after a lull not all of it can come at once. How much it
varies follows from what each holds, where they come independently of one another. Where lengths are not learned, what
others held lately beyond what they hold now stays free at every moment.
"""

from collections.abc import Mapping
from math import sqrt
from typing import Final

from kvbudget.gate.tenants.accounts import Charge, Flow
from kvbudget.gate.tenants.settings import ClassLimits
from kvbudget.pool.risk import Outlook
from kvbudget.pool.share import GRID

SPREAD: Final = 2.0  # standard deviations to keep, where they do not enter a computed risk
# Standard deviations kept for those who will come. Measured with a flood of ten times on three tenants at 1.5
# requests/s, six seeds: p99 TTFT of the others, and goodput, at 1.5 and 2.5: 1.48 and 1.14 times what it is alone, and
# 3230 and 3123 tokens/s.
KEPT_SPREAD: Final = 2.5
KEPT_VARIANCE: Final = 0.5  # where nothing is known of the future: what is held varies, and all of it may vary together


class Kept:
    """What stays free: `blocks` at each moment of the grid ahead, with one `variance` that is not in them yet, and
    `slots`."""

    __slots__ = ("blocks", "slots", "variance")

    def __init__(self) -> None:
        self.blocks = [0.0] * len(GRID)
        self.variance = 0.0
        self.slots = 0.0

    def most(self, z: float) -> float:
        """Blocks that are enough at every moment, with `z` standard deviations."""
        return max(self.blocks) + z * sqrt(self.variance)

    def less(self, blocks: float) -> "Kept":
        """What is left of it if so many are free elsewhere."""
        rest = Kept()
        rest.blocks = [max(0.0, kept - blocks) for kept in self.blocks]
        rest.variance, rest.slots = self.variance, self.slots
        return rest

    def __add__(self, other: "Kept") -> "Kept":
        total = Kept()
        total.blocks = [a + b for a, b in zip(self.blocks, other.blocks, strict=True)]
        total.variance = self.variance + other.variance
        total.slots = self.slots + other.slots
        return total


Groups = dict[int, tuple[Kept, Kept]]  # by class: for all in it, and for those who do not borrow


def held_lately(
    flows: Mapping[tuple[int, str], Flow], lenders: Mapping[str, bool], scale: float, now_ns: int, *, independent: bool
) -> Groups:
    """Mean and variance of what was held, as blocks of the first moment; `scale`: held over expected to be held.
    `independent`: the variance is at least that of requests that come independently, else a part of what was seen."""
    found: Groups = {}
    for (priority, tenant), flow in flows.items():
        mean, variance = flow.blocks.measure(now_ns)
        variance = max(variance, flow.squares.measure(now_ns)[0]) if independent else KEPT_VARIANCE * variance
        slots, slots_variance = flow.sequences.measure(now_ns)
        for kept in _groups_of(found, priority, lenders.get(tenant, True)):
            kept.blocks[0] += mean * scale
            kept.variance += variance * scale**2
            kept.slots += slots + SPREAD * sqrt(slots_variance)
    return found


def kept_by_class(
    lately: Groups,
    charges: Mapping[str, Charge],
    lenders: Mapping[str, bool],
    classes: Mapping[int, ClassLimits],
    outlook: Outlook | None,
) -> Groups:
    """What stays free for each class. Changes `lately`, and returns it."""
    come = None if outlook is None else _come_by(outlook)
    for groups in lately.values():
        for kept in groups:
            mean, variance = kept.blocks[0], kept.variance
            if come is None:
                kept.blocks = [mean] * len(GRID)
            else:
                kept.blocks = [mean * part + KEPT_SPREAD * sqrt(variance * part) for part in come]
                kept.variance = 0.0
    reserved = {priority: [float(limits.reserved_blocks)] * len(GRID) for priority, limits in classes.items()}
    for priority, limits in classes.items():
        everybody, _ = lately.setdefault(priority, (Kept(), Kept()))
        everybody.slots = max(everybody.slots, float(limits.reserved_slots))
        if come is None:
            everybody.blocks = [max(pair) for pair in zip(everybody.blocks, reserved[priority], strict=True)]
    for request_id, charge in charges.items():
        share = None if outlook is None else outlook.shares.get(request_id)
        held = [charge.blocks] * len(GRID) if share is None else share.mean
        if come is not None and charge.priority in reserved:
            _take(reserved[charge.priority], held)
        for kept in _groups_of(lately, charge.priority, lenders.get(charge.account.name, True)):
            kept.slots -= charge.sequences
            if come is None:
                _take(kept.blocks, held)
    if come is not None:
        for priority, blocks in reserved.items():
            everybody = lately[priority][0]
            everybody.blocks = [max(pair) for pair in zip(everybody.blocks, blocks, strict=True)]
    for groups in lately.values():
        for kept in groups:  # nobody's surplus makes up for what others need
            kept.blocks = [max(0.0, blocks) for blocks in kept.blocks]
            kept.slots = max(0.0, kept.slots)
    return lately


def _groups_of(groups: Groups, priority: int, lends: bool) -> tuple[Kept, ...]:
    both = groups.setdefault(priority, (Kept(), Kept()))
    return both if lends else both[:1]


def _take(blocks: list[float], held: list[float]) -> None:
    for g, less in enumerate(held):
        blocks[g] = blocks[g] - less


def _come_by(outlook: Outlook) -> list[float]:
    """The part of what is held in a steady state that is of newcomers at each moment: what those who live lose."""
    held, passed = outlook.held_now(), outlook.now - outlook.epoch
    parts: list[float] = []
    left = 1.0 if held > 0.0 else 0.0
    for moment, mean in zip(GRID, outlook.mean, strict=True):
        if moment > passed and held > 0.0:
            left = max(0.0, min(left, mean / held))
        parts.append(1.0 - left)
    return parts
