"""Decides when a refused client should come back, and keeps a little room for those who were told to come now.

Under overload everybody's honest answer would be "when the load ends". So those who come back get a part of what the
engine takes, PART of it: each is told a time of its own, at that pace after those who are still to come, never sooner
than room is expected. Whoever then asks for the same again, when told, has waited already: it goes before those who
wait here, and into room that was kept for it. How many come back at all is learned; while few do (FEW_SHARE), and until
it is known, nothing is kept and nobody is told to wait for others.

A client is known again by what it asks for: tenant, route, prompts, limit. Who asks for the same by chance takes its
place, which is then not taken twice. But it does not count as one who came back: as many as asked for the same at other
times, in as long, would have come anyway.
"""

import heapq
from bisect import insort
from math import exp, sqrt

from kvbudget.gate.events import Arrived

PART = 0.1  # of the requests let in, at most, that came back
START_SHARE = 0.2  # of those told a time, that are thought to come back before any did
FEW_SHARE = 0.15  # nothing is kept, and nobody waits for others, where fewer than these come back
KNOWN = 6  # clients of whom it was seen whether they came back; before, nobody is told much more than is expected
MOST_UNKNOWN = 2  # times the wait
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

    __slots__ = ("asked", "blocks", "due_ns", "key", "number", "over", "told_ns", "until_ns")

    def __init__(
        self, key: Key, told_ns: int, due_ns: int, until_ns: int, blocks: int, number: int, asked: int
    ) -> None:
        self.key = key
        self.told_ns = told_ns
        self.asked = asked  # how often the same was asked for before; when it is due: how often since
        self.due_ns = due_ns
        self.until_ns = until_ns
        self.blocks = blocks
        self.number = number  # its place in the order of arrival when it was refused
        self.over = False  # it came, or did not

    @property
    def by_chance(self) -> float:
        """How many were to come for it who were told nothing: as often as the same was asked for before it was due."""
        before_ns = max(1, self.due_ns - EARLY_NS - self.told_ns)
        return self.asked * (self.until_ns - self.due_ns + EARLY_NS) / before_ns


class Returns:
    """All who were told a time that has not passed."""

    def __init__(self) -> None:
        self.share = START_SHARE  # of those who are told a time, that come back then
        self._of: dict[Key, list[Booking]] = {}  # by due time
        self._asked: dict[Key, int] = {}  # how often somebody came with it, since there is a booking with it
        self._coming: list[tuple[int, int, Booking]] = []  # by due time; no room is kept yet
        self._until: list[tuple[int, int, Booking]] = []
        self._known = 0
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
        apart_ns = self.share * self.pace_ns(now_ns) / PART
        others_ns = self._last_due_ns + int(apart_ns) - now_ns
        if self._known < KNOWN:
            others_ns = min(others_ns, MOST_UNKNOWN * wait_ns)
        elif self.share < FEW_SHARE:
            others_ns = 0
        due_ns = now_ns + min(max(wait_ns, others_ns), most_ns)
        if self._booked < MOST_BOOKED:
            self._last_due_ns = due_ns
            key = key_of(event)
            until_ns = due_ns + int((due_ns - now_ns) * LATE_SHARE) + LATE_NS
            booking = Booking(key, now_ns, due_ns, until_ns, blocks, number, self._asked.setdefault(key, 0))
            self._booked += 1
            insort(self._of.setdefault(key, []), booking, key=_due_ns)
            self._serial += 1
            heapq.heappush(self._until, (until_ns, self._serial, booking))
            heapq.heappush(self._coming, (due_ns, self._serial, booking))
        return due_ns - now_ns

    def claim(self, event: Arrived, now_ns: int) -> Booking | None:
        """The booking with which this one comes, which is then used up; None if it comes unannounced."""
        if not self._booked:
            return None
        self._pass(now_ns)
        key = key_of(event)
        bookings = self._of.get(key)
        if bookings is None:
            return None
        self._asked[key] += 1
        if bookings[0].due_ns - EARLY_NS > now_ns:
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
        while coming and coming[0][0] - EARLY_NS <= now_ns:
            booking = heapq.heappop(coming)[2]
            booking.asked = self._asked[booking.key] - booking.asked
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
            del self._of[booking.key], self._asked[booking.key]
        self._kept -= booking.blocks
        self._kept_squares -= booking.blocks**2
        # Below 0 where more came before; it evens out those who come then by chance.
        self._known += 1
        came_back = max(-1.0, came - booking.by_chance)
        self.share = max(0.0, self.share + (came_back - self.share) / MEMORY)


def _due_ns(booking: Booking) -> int:
    return booking.due_ns


def key_of(event: Arrived) -> Key:
    """By what a client is known again."""
    return (event.tenant, event.route, event.prompts, event.max_new_tokens, event.sequences, event.priority)
