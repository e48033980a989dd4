"""Decides who of those that wait goes next: the first, in fair order, whose tenant may go and who fits.

Behind the first that the pool has no room for, a few more are looked at who may go before it (`gate.overtaking`): the
next of the other tenants, and who came after it in its own.
"""

from collections.abc import Iterator

from kvbudget.gate.fairness import Fairness
from kvbudget.gate.overtaking import Overtaking
from kvbudget.gate.promises import Promises
from kvbudget.gate.queue import Queue, Waiting
from kvbudget.gate.turns import Key
from kvbudget.units import Blocks


def first_that_fits(
    queue: Queue, fairness: Fairness, promises: Promises, overtaking: Overtaking, now_ns: int
) -> tuple[Waiting, Blocks] | None:
    """Who may go, and what all promises need then; None if nobody may. Why not is noted of each that was tried."""
    full = False
    whys = queue.whys
    whys.clear()
    if fairness.is_alone:  # then a look ends with the first of those that wait
        head = queue.head()
        full = head is not None and promises.is_still_full(head.arrived, now_ns)
    fairness.begin_look()
    overtaking.begin_look()
    order = fairness.turns.order(now_ns)
    try:
        for key, priority in _with_those_behind(order, fairness, overtaking):
            waiting = queue.at(key)
            arrived, footprint, peak_blocks = waiting.arrived, waiting.footprint, waiting.peak_blocks
            behind = overtaking.head is not None
            if behind and not overtaking.another_try():
                break
            if behind and not overtaking.worth_trying(footprint, peak_blocks, now_ns):
                continue
            allowed, kept = fairness.allows(arrived, footprint, peak_blocks, priority, now_ns)
            if not allowed:
                whys[key] = fairness.why
                continue
            if behind and overtaking.clearly_puts_off(arrived, footprint, now_ns):
                overtaking.stays(peak_blocks)
                continue
            needed = None
            if behind or not full:
                needed = promises.needed_with(arrived, footprint, peak_blocks, kept, now_ns, booked=waiting.booked)
            if needed is None:
                whys[key] = promises.why_no_room(arrived, footprint, kept)
                if behind:
                    overtaking.stays(peak_blocks)
                elif fairness.lacks_room(arrived, priority, kept):
                    overtaking.lacks_room(waiting)
            elif behind and not overtaking.may_pass(arrived, footprint, now_ns):
                overtaking.stays(peak_blocks)
                promises.withdraw(arrived)
            else:
                return waiting, needed
    finally:
        order.close()
    return None


def _with_those_behind(
    order: Iterator[tuple[Key, int]], fairness: Fairness, overtaking: Overtaking
) -> Iterator[tuple[Key, int]]:
    yield from order
    head = overtaking.head
    if head is not None:
        for key in fairness.turns.behind(head.key):
            yield key, key[0]
