"""Decides who of those that wait goes next: the first, in fair order, whose tenant may go and who fits."""

from kvbudget.gate.fairness import Fairness
from kvbudget.gate.promises import Promises
from kvbudget.gate.queue import Queue, Waiting
from kvbudget.units import Blocks


def first_that_fits(queue: Queue, fairness: Fairness, promises: Promises, now_ns: int) -> tuple[Waiting, Blocks] | None:
    """Who may go, and what all promises need then; None if nobody may."""
    fairness.begin_look()
    order = fairness.turns.order(now_ns)
    try:
        for key, priority in order:
            waiting = queue.at(key)
            arrived, footprint, peak_blocks = waiting.arrived, waiting.footprint, waiting.peak_blocks
            allowed, kept = fairness.allows(arrived, footprint, peak_blocks, priority, now_ns)
            if not allowed:
                continue
            needed = promises.needed_with(arrived, footprint, peak_blocks, kept, now_ns, booked=waiting.booked)
            if needed is not None:
                return waiting, needed
            if fairness.ends_look(arrived, priority, kept):
                break
    finally:
        order.close()
    return None
