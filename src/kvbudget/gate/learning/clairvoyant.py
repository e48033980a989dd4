"""Decides how many blocks suffice where every length is known: what a gate that sees the future would promise.

For comparison only: a driver that knows lengths (`Arrived.known_tokens`) is a simulation or a test.
"""

from typing import Final

from kvbudget.gate.events import Arrived
from kvbudget.gate.learning.batch import Batch
from kvbudget.pool.footprint import Footprint
from kvbudget.pool.ledger import Ledger
from kvbudget.pool.trajectory import Course, peak_over_time
from kvbudget.units import Blocks

KNOWN_SKEW: Final = 4  # steps by which even the clairvoyant is unsure, as prompts are read in between


def all_known(batch: Batch) -> bool:
    """Whether the length of everybody who lives is known."""
    return all(tracked.known_tokens is not None for tracked in batch.tracked.values())


def clairvoyant_promise(batch: Batch, ledger: Ledger, event: Arrived, footprint: Footprint, limit: int) -> Blocks:
    """Blocks that all promises need with this one at their worst common moment, by their true lengths; just something
    above `limit` if that is more."""
    own = batch.overlap.own
    prompt = int(own * footprint.prompts[0])
    courses = {event.request_id: Course(prompt, prompt + (event.known_tokens or 1))}
    cut_off = 0
    for living in ledger:
        tracked = batch.tracked.get(living.reservation_id)
        if tracked is None or tracked.known_tokens is None:
            cut_off += living.peak_blocks - ledger.common_blocks(living.reservation_id)
        else:
            prompt = int(own * living.footprint.prompts[0])
            made = min(batch.made(living, tracked), tracked.known_tokens)
            courses[living.reservation_id] = Course(prompt + made, prompt + tracked.known_tokens)
    order = sorted(courses, key=lambda name: courses[name].held_tokens - courses[name].peak_tokens)
    for name, blocks in ledger.shared_in(order).items():
        courses[name] = courses[name]._replace(shared_blocks=int(own * blocks))
    return Blocks(cut_off + peak_over_time(ledger.layout, list(courses.values()), KNOWN_SKEW, limit - cut_off))
