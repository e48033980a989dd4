"""Decides who of those that wait goes next: the first, in fair order, whose tenant may go and who fits.

Behind the first that the pool has no room for, a few more are looked at who may go before it
(`gate.waiting.overtaking`): the next of the other tenants, and who came after it in its own.
"""

from collections.abc import Iterator

from kvbudget.gate.promises import Promises
from kvbudget.gate.tenants.fairness import Fairness
from kvbudget.gate.tenants.turns import Key
from kvbudget.gate.waiting.overtaking import Overtaking
from kvbudget.gate.waiting.queue import Queue, Waiting
from kvbudget.gate.waiting.why import Why
from kvbudget.units import Blocks

Fits = tuple[Waiting, Blocks]  # who, and what all promises need with it


def first_that_fits(
    queue: Queue, fairness: Fairness, promises: Promises, overtaking: Overtaking, now_ns: int
) -> Fits | None:
    """Who may go, and what all promises need then; None if nobody may. Why not is noted of each that was tried."""
    full = False
    queue.whys.clear()
    if fairness.is_alone:  # then a look ends with the first of those that wait
        head = queue.head()
        full = head is not None and promises.is_still_full(head.arrived, now_ns)
    fairness.begin_look()
    overtaking.begin_look()
    look = _Look(queue, fairness, promises, overtaking, now_ns, full)
    if fairness.turns.is_one_line:
        return look.along(queue.in_order)
    order = fairness.turns.order(now_ns)
    try:
        for key, priority in _with_those_behind(order, fairness, overtaking):
            found = look.at(queue.at(key), priority)
            if found is not None:
                return found
            if look.over:
                break
    finally:
        order.close()
    return None


class _Look:
    """One look, which is `over` when nobody more is to be tried."""

    __slots__ = ("_fairness", "_full", "_now_ns", "_overtaking", "_promises", "_queue", "over")

    def __init__(
        self, queue: Queue, fairness: Fairness, promises: Promises, overtaking: Overtaking, now_ns: int, full: bool
    ) -> None:
        self._queue = queue
        self._fairness = fairness
        self._promises = promises
        self._overtaking = overtaking
        self._now_ns = now_ns
        self._full = full  # there is no room for the first
        self.over = False

    def along(self, line: list[Waiting]) -> Fits | None:
        """Through all of one tenant and class, or of all where nobody is fair: the first, and behind it if it lacks
        room. Whose tenant is at its limit holds up nobody of another."""
        at_limit: set[str] = set()
        for waiting in line:
            tenant = waiting.arrived.tenant
            if tenant in at_limit:
                continue
            found = self.at(waiting, waiting.key[0])
            if found is not None:
                return found
            if self._queue.whys.get(waiting.key) is Why.TENANT_BLOCKS:
                at_limit.add(tenant)
            elif self.over or not self._overtaking.has_met_head:
                break
        return None

    def at(self, waiting: Waiting, priority: int) -> Fits | None:
        """One who waits, if it may go. `priority`: the class in which it counts."""
        overtaking, now_ns = self._overtaking, self._now_ns
        footprint, peak_blocks = waiting.footprint, waiting.peak_blocks
        behind = overtaking.has_met_head
        if behind:
            if not overtaking.another_try():
                self.over = True
                return None
            if not overtaking.worth_trying(footprint, peak_blocks, now_ns):
                return None
        fairness, promises, arrived, key = self._fairness, self._promises, waiting.arrived, waiting.key
        allowed, kept = fairness.allows(arrived, footprint, peak_blocks, priority, now_ns)
        if not allowed:
            self._queue.whys[key] = fairness.why
            return None
        if behind and overtaking.clearly_puts_off(arrived, footprint, now_ns):
            overtaking.stays(peak_blocks)
            return None
        needed = None
        if behind or not self._full:
            needed = promises.needed_with(arrived, footprint, peak_blocks, kept, now_ns, booked=waiting.booked)
        if needed is None:
            self._queue.whys[key] = promises.why_no_room(arrived, footprint, kept)
            if behind:
                overtaking.stays(peak_blocks)
            elif fairness.lacks_room(arrived, priority, kept):
                overtaking.lacks_room(waiting)
            return None
        if behind and not overtaking.may_pass(arrived, footprint, now_ns):
            overtaking.stays(peak_blocks)
            promises.withdraw(arrived)
            return None
        return waiting, needed


def _with_those_behind(
    order: Iterator[tuple[Key, int]], fairness: Fairness, overtaking: Overtaking
) -> Iterator[tuple[Key, int]]:
    yield from order
    head = overtaking.head
    if head is not None:
        for key in fairness.turns.behind(head.key):
            yield key, key[0]
