"""Decides what a gate would need of a pool that several share if its slice were all that others have not promised.

That is what it asks the bank for. Nothing is changed by reckoning it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kvbudget.gate.events import Arrived
from kvbudget.gate.gate import Gate
from kvbudget.gate.tenants.kept import SPREAD, Kept
from kvbudget.gate.waiting.queue import Waiting
from kvbudget.pool.footprint import Footprint
from kvbudget.units import Blocks


def needed_of_pool(
    gate: Gate, event: Arrived, footprint: Footprint, peak_blocks: Blocks, now_ns: int, *, sparing: bool = False
) -> Blocks | None:
    """What all promises of this gate would need with this one, of what others have not promised, or else of all; None
    if it lacks room even so. `sparing`: no more than that, where room is short; otherwise it may be the sum of all
    peaks, which costs nothing to reckon."""
    promises, ledger, learned = gate.promises, gate.ledger, gate.learned
    with _reckoned(gate, event, footprint):
        for others in (promises.elsewhere_blocks, 0):
            ledger.capacity_blocks = Blocks(ledger.pool_blocks - others)
            if promises.by_lengths:
                peaks = Blocks(ledger.peak_sum_blocks + peak_blocks)
                if not sparing and others == promises.elsewhere_blocks and peaks <= ledger.capacity_blocks:
                    return peaks
                needed = learned.promise_with(ledger, event, footprint, 0, now_ns)
                needed = needed if needed is None or needed <= peaks else peaks
            else:
                needed = promises.by_peaks(event, footprint, peak_blocks)
            if needed is not None:
                return needed
        return None


def is_held_back(gate: Gate, waiting: Waiting, needed: Blocks | None, now_ns: int) -> bool:
    """Whether one who waits, and would have room for what is `needed`, has to leave that to more urgent classes or
    other tenants, whatever the slice: then asking for more would only keep it from other gates."""
    return has_to_leave(gate, waiting, needed, lambda: gate.fairness.kept_from(waiting.arrived, now_ns), now_ns)


def has_to_leave(
    gate: Gate, waiting: Waiting, needed: Blocks | None, kept_for_others: Callable[[], Kept | None], now_ns: int
) -> bool:
    """The same, by what is kept for them."""
    event, footprint, ledger = waiting.arrived, waiting.footprint, gate.ledger
    free = Blocks(ledger.pool_blocks - gate.promises.elsewhere_blocks)
    if needed is None or needed > free or not len(ledger):  # an empty pool keeps nobody waiting
        return False
    kept = kept_for_others()
    return kept is not None and not _leaves(gate, event, footprint, waiting.peak_blocks, kept, free, now_ns)


def _leaves(
    gate: Gate, event: Arrived, footprint: Footprint, peak_blocks: Blocks, kept: Kept, free: Blocks, now_ns: int
) -> bool:
    promises, ledger = gate.promises, gate.ledger
    sequences = ledger.sequences + promises.elsewhere_sequences + footprint.total_sequences
    if sequences + int(kept.slots) > gate.config.max_num_seqs:
        return False
    with _reckoned(gate, event, footprint):
        ledger.capacity_blocks = free
        if promises.by_lengths:
            return gate.learned.promise_with(ledger, event, footprint, 0, now_ns, kept) is not None
        needed = promises.by_peaks(event, footprint, peak_blocks)
        return needed is not None and needed + int(kept.most(SPREAD)) <= free


@contextmanager
def _reckoned(gate: Gate, event: Arrived, footprint: Footprint) -> Iterator[None]:
    ledger = gate.ledger
    ours = ledger.capacity_blocks
    if event.prefix:
        gate.promises.offer(event, footprint)
    try:
        yield
    finally:
        ledger.capacity_blocks = ours
        gate.learned.forget_full()
        gate.promises.withdraw(event)
