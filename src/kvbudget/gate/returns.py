"""Decides when a refused client should come back, and keeps a little room for those who were told to come now.

Under overload everybody's honest answer would be "when the load ends". So those who come back get a part of what the
engine takes, PART of it: each is told a time of its own, one after another at that pace, never sooner than room is
expected. Whoever then asks for the same again, when told, has waited already: it goes before those who wait here, and
into room that was kept for it. How many come back at all is learned; where nobody does, nothing is kept and nobody is
told to wait for others.

A client is known again by what it asks for: tenant, route, prompts, limit. Who asks for the same by chance takes its
place, which is then not taken twice.
"""

import heapq
from collections import deque
from math import exp, sqrt

from kvbudget.gate.events import Arrived

PART = 0.1  # of the requests let in, at most, that came back
START_SHARE = 0.2  # of those told a time, that are thought to come back before any did
FEW_SHARE = 0.15  # nothing is kept where fewer than these come back
MEMORY = 16.0  # clients told, after which an old one counts little
MOST_BOOKED = 4096
MOST_KEPT = 0.1  # of the pool
# The edge lengthens what is told by up to a quarter (edge/answers.py); a round trip and a connection come on top.
LATE_SHARE, LATE_NS = 0.25, 1_500_000_000
EARLY_NS = 100_000_000
RATE_NS = 10e9  # the pace is a mean over so long

Key = tuple[object, ...]


class Booking:
    """One client who was told to come back at `due_ns`, and may be as late as `until_ns`."""

    __slots__ = ("blocks", "due_ns", "key", "number", "over", "until_ns")

    def __init__(self, key: Key, due_ns: int, until_ns: int, blocks: int, number: int) -> None:
        self.key = key
        self.due_ns = due_ns
        self.until_ns = until_ns
        self.blocks = blocks
        self.number = number  # its place in the order of arrival when it was refused
        self.over = False  # it came, or did not


class Returns:
    """All who were told a time that has not passed."""

    def __init__(self) -> None:
        self.share = START_SHARE  # of those who are told a time, that come back then
        self._of: dict[Key, deque[Booking]] = {}
        self._coming: deque[Booking] = deque()  # by due time; no room is kept yet
        self._until: list[tuple[int, int, Booking]] = []
        self._booked = 0
        self._serial = 0
        self._kept = 0  # blocks of all for whom room is kept
        self._kept_squares = 0
        self._last_due_ns = 0
        self._let_in = 0.0  # requests, fading
        self._begun_ns = -1
        self._let_in_ns = 0

    def let_in(self, now_ns: int) -> None:
        """A request was forwarded."""
        if self._begun_ns < 0:
            self._begun_ns = self._let_in_ns = now_ns
        self._let_in = 1.0 + self._let_in * exp((self._let_in_ns - now_ns) / RATE_NS)
        self._let_in_ns = now_ns

    def pace_ns(self, now_ns: int) -> float:
        """Time between two that are let in."""
        age = max(1e9, float(now_ns - self._begun_ns)) if self._begun_ns >= 0 else 1e9
        counted = self._let_in * exp((self._let_in_ns - now_ns) / RATE_NS)
        return RATE_NS * (1.0 - exp(-age / RATE_NS)) / max(1.0, counted)

    def tell(self, event: Arrived, wait_ns: int, most_ns: int, blocks: int, number: int, now_ns: int) -> int:
        """When to come back, from `wait_ns` to `most_ns` from now; it is expected then, with so many `blocks`."""
        self._pass(now_ns)
        due_ns = max(now_ns + wait_ns, self._last_due_ns + int(self.share * self.pace_ns(now_ns) / PART))
        due_ns = min(due_ns, now_ns + most_ns)
        if self._booked < MOST_BOOKED:
            self._last_due_ns = max(due_ns, self._last_due_ns)
            key = key_of(event)
            until_ns = due_ns + int((due_ns - now_ns) * LATE_SHARE) + LATE_NS
            booking = Booking(key, due_ns, until_ns, blocks, number)
            self._booked += 1
            self._of.setdefault(key, deque()).append(booking)
            self._serial += 1
            heapq.heappush(self._until, (until_ns, self._serial, booking))
            self._coming.append(booking)
        return due_ns - now_ns

    def claim(self, event: Arrived, now_ns: int) -> Booking | None:
        """The booking with which this one comes, which is then used up; None if it comes unannounced."""
        if not self._booked:
            return None
        self._pass(now_ns)
        bookings = self._of.get(key_of(event))
        if not bookings or bookings[0].due_ns - EARLY_NS > now_ns:
            return None
        booking = bookings[0]
        self._close(booking, came=True)
        return booking

    def kept_blocks(self, capacity: int, now_ns: int) -> int:
        """Blocks to keep for those who are to come now."""
        if not self._booked:
            return 0
        self._pass(now_ns)
        share = self.share  # as many as are expected, and a standard deviation: for one alone its whole room
        if share < FEW_SHARE:
            return 0
        kept = share * self._kept + sqrt(share * (1.0 - share) * self._kept_squares)
        return int(min(kept, MOST_KEPT * capacity))

    def _pass(self, now_ns: int) -> None:
        coming, until = self._coming, self._until
        while coming and coming[0].due_ns - EARLY_NS <= now_ns:
            booking = coming.popleft()
            self._kept += booking.blocks
            self._kept_squares += booking.blocks**2
        while until and (until[0][2].over or until[0][0] < now_ns):
            booking = heapq.heappop(until)[2]
            if not booking.over:
                self._close(booking, came=False)

    def _close(self, booking: Booking, *, came: bool) -> None:
        """It was due, so room is kept for it."""
        booking.over = True
        self._booked -= 1
        bookings = self._of[booking.key]
        bookings.remove(booking)
        if not bookings:
            del self._of[booking.key]
        self._kept -= booking.blocks
        self._kept_squares -= booking.blocks**2
        self.share += (came - self.share) / MEMORY


def key_of(event: Arrived) -> Key:
    """By what a client is known again."""
    return (event.tenant, event.route, event.prompts, event.max_new_tokens, event.sequences, event.priority)
