"""Decides whether one who comes may go now, before those that wait or before the one that lacks room.

Whoever was told to come back is tried at once, otherwise whoever comes before all that wait; or whoever puts off none
of those that lack room (`gate.waiting.overtaking`). But not who would wait too long for the prompts ahead of it.
"""

from kvbudget.gate.events import Arrived
from kvbudget.gate.promises import Promises
from kvbudget.gate.refusing.returns import Booking
from kvbudget.gate.tenants.fairness import Fairness
from kvbudget.gate.tenants.kept import Kept
from kvbudget.gate.waiting.overtaking import Overtaking
from kvbudget.gate.waiting.parking import Parking
from kvbudget.gate.waiting.queue import Queue
from kvbudget.gate.waiting.why import Why
from kvbudget.pool.footprint import Footprint
from kvbudget.units import Blocks


class Trial:
    """The way past the queue of one gate."""

    def __init__(
        self, queue: Queue, fairness: Fairness, promises: Promises, overtaking: Overtaking, parking: Parking
    ) -> None:
        self.busy_until_ns = 0  # the engine takes nobody before
        self.why = Why.TURN  # of the last newcomer that could not go
        self._queue = queue
        self._fairness = fairness
        self._promises = promises
        self._overtaking = overtaking
        self._parking = parking

    def of(
        self, event: Arrived, footprint: Footprint, peak_blocks: Blocks, booking: Booking | None, now_ns: int
    ) -> tuple[Blocks | None, bool]:
        """(what all promises need together with this newcomer, None if it cannot go now; whether it was the first, and
        the pool has no room for it). `booking`: of who comes when it was told to."""
        fairness, promises = self._fairness, self._promises
        promised = booking is not None and booking.promised
        first = self.comes_first(event, now_ns)
        tried = booking is not None or first or self._overtaking.is_worth_trying(footprint, peak_blocks, now_ns)
        if not tried or now_ns < self.busy_until_ns:
            self.why = Why.TURN if self._queue else Why.PROMPTS  # nobody is before it, so only prompts can be
            return None, False
        allowed, kept = self._allows(event, footprint, peak_blocks, now_ns, promised=promised)
        if not allowed:
            self.why = fairness.why
            return None, False
        needed = promises.needed_with(event, footprint, peak_blocks, kept, now_ns, booked=promised)
        if needed is None:
            self.why = promises.why_no_room(event, footprint, kept)
        lacks_room = first and needed is None and kept is None
        if booking is None and not first:
            needed = self._behind(event, footprint, peak_blocks, needed, now_ns)
        return needed, lacks_room

    def room_for(
        self, event: Arrived, footprint: Footprint, peak_blocks: Blocks, now_ns: int, booking: Booking | None = None
    ) -> Blocks | None:
        """What all promises would need together with one that comes before all that wait, or when it was told to
        (`booking`); None if it could not go now. Nothing is changed by it: as what a fleet asks before it chooses."""
        promised = booking is not None and booking.promised
        if (booking is None and not self.comes_first(event, now_ns)) or now_ns < self.busy_until_ns:
            return None
        allowed, kept = self._allows(event, footprint, peak_blocks, now_ns, promised=promised)
        if not allowed:
            return None
        needed = self._promises.needed_with(event, footprint, peak_blocks, kept, now_ns, booked=promised)
        if needed is not None:
            self._promises.withdraw(event)  # what was offered for the reckoning
        return needed

    def _allows(
        self, event: Arrived, footprint: Footprint, peak_blocks: Blocks, now_ns: int, *, promised: bool
    ) -> tuple[bool, Kept | None]:
        """(whether it may be tried now, what has to stay free for others). `promised`: room was kept for it."""
        if promised:
            return self._fairness.allows_booked(event, peak_blocks, now_ns)
        return self._fairness.allows(event, footprint, peak_blocks, event.priority, now_ns)

    def comes_first(self, event: Arrived, now_ns: int) -> bool:
        """Whether it may be tried before all that wait, and would get its first token in time."""
        first = self._queue.place_for(event.priority) == 1 or self._fairness.may_overtake(event)
        return first and not self._parking.prompts_wait_ns(now_ns)

    def _behind(
        self, event: Arrived, footprint: Footprint, peak_blocks: Blocks, needed: Blocks | None, now_ns: int
    ) -> Blocks | None:
        """`needed` if it may go before the one that lacks room, and would get its first token in time."""
        on_time = not self._parking.prompts_wait_ns(now_ns)
        if needed is not None and on_time and self._overtaking.may_pass(event, footprint, now_ns):
            return needed
        if needed is not None:
            self.why = Why.TURN
        self._overtaking.stays(peak_blocks)
        self._promises.withdraw(event)
        return None
