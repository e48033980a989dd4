"""Decides when a refused client should come back, and who has come when it was told.

Under overload everybody's honest answer would be "when the load ends". So those who come back get a part of what the
engine takes from their tenant and class, PART of it, and each is told a time of its own: when all who were told before
it have come, at that pace, and never sooner than room is expected. Whoever then asks for the same again, when told, has
waited already: it goes before those who wait here, into room that was kept for it (`kept_blocks`) or, as it is one of
few, into what caution keeps free (`gate.promises`). How many come back at all is learned; until it is known most are
thought to, as clients do that honour Retry-After; while few do (FEW_SHARE) nothing is kept and nobody waits for others.

A client is known again by what it asks for: tenant, route, prompts, limit. Who asks for the same by chance takes its
place, which is then not taken twice. But it does not count as one who came back: as many as asked for the same at other
times, in as long, would have come anyway.
"""

import heapq
import os
from bisect import insort
from collections import OrderedDict
from math import exp, log, sqrt

from kvbudget.gate.events import Arrived
from kvbudget.gate.tenants import account_name

PART = float(os.environ.get("PART", "0.1"))  # of the blocks let in, at most, for who came back
START_SHARE = float(os.environ.get("SS", "0.8"))  # of those told a time, that are thought to come back before any did
START_WEIGHT = float(os.environ.get("SW", "1.5"))
LG = float(os.environ.get("LG", "0"))
LINDY = float(os.environ.get("LI", "0"))
FEW_SHARE = 0.15  # nothing is kept, and nobody waits for others, where fewer than these come back
KNOWN = int(os.environ.get("KN", "3"))
MOST_UNKNOWN = float(os.environ.get("MU", "2"))  # times the wait
MEMORY = 16.0  # clients told, after which an old one counts little
MOST_BOOKED = 4096
MOST_ACCOUNTS = 1024
MOST_KEPT = float(os.environ.get("MK", "0.1"))  # of the pool
# The edge lengthens what is told by up to a quarter (edge/answers.py); a round trip and a connection come on top.
LATE_SHARE, LATE_NS = 0.25, 1_500_000_000
EARLY_NS = 100_000_000
RATE_NS = 10e9  # the pace is a mean over so long

Key = tuple[object, ...]


class Booking:
    """One client who was told to come back at `due_ns`, and may be as late as `until_ns`."""

    __slots__ = ("account", "asked", "blocks", "due_ns", "key", "number", "over", "size", "told_ns", "until_ns")

    def __init__(
        self, account: "Account", key: Key, told_ns: int, due_ns: int, until_ns: int, blocks: int, size: int, number: int, asked: int
    ) -> None:
        self.account = account
        self.key = key
        self.told_ns = told_ns
        self.asked = asked  # how often the same was asked for before; when it is due: how often since
        self.due_ns = due_ns
        self.until_ns = until_ns
        self.blocks = blocks
        self.size = size
        self.number = number  # its place in the order of arrival when it was refused
        self.over = False  # it came, or did not

    @property
    def by_chance(self) -> float:
        """How many were to come for it who were told nothing: as often as the same was asked for before it was due."""
        before_ns = max(1, self.due_ns - EARLY_NS - self.told_ns)
        return self.asked * (self.until_ns - self.due_ns + EARLY_NS) / before_ns


class Account:
    """What was let in of one tenant and class, and who of it is still to come."""

    __slots__ = ("begun_ns", "booked", "known", "let_in", "let_in_ns", "share", "since", "last_refused")

    def __init__(self, now_ns: int, share: float) -> None:
        self.booked = 0.0  # size of all who are to come later
        self.share = share
        self.known = 0
        self.since = now_ns
        self.last_refused = -10**12
        self.let_in = 0.0  # fading
        self.begun_ns = now_ns
        self.let_in_ns = now_ns

    def add(self, size: int, now_ns: int) -> None:
        self.let_in = size + self.let_in * exp((self.let_in_ns - now_ns) / RATE_NS)
        self.let_in_ns = now_ns

    def rate(self, now_ns: int) -> float:
        """Size let in per ns."""
        age = max(1e9, float(now_ns - self.begun_ns))
        return self.let_in * exp((self.let_in_ns - now_ns) / RATE_NS) / (RATE_NS * (1.0 - exp(-age / RATE_NS)))

    def learn(self, came_back: float) -> None:
        self.known += 1
        self.share = max(0.0, self.share + (came_back - self.share) / min(MEMORY, START_WEIGHT + self.known))


class Returns:
    """All who were told a time that has not passed."""

    def __init__(self) -> None:
        self._accounts: OrderedDict[str, Account] = OrderedDict()
        self._of: dict[Key, list[Booking]] = {}  # by due time
        self._asked: dict[Key, int] = {}  # how often somebody came with it, since there is a booking with it
        self._coming: list[tuple[int, int, Booking]] = []  # by due time; no room is kept yet
        self._until: list[tuple[int, int, Booking]] = []
        self._booked = 0
        self._due = {}
        self._serial = 0
        self._kept = 0.0  # blocks of all for whom room is kept
        self._kept_squares = 0.0

    def account(self, event: Arrived, now_ns: int) -> Account:
        name = account_name(event.tenant, event.priority)
        account = self._accounts.get(name)
        if account is None:
            account = self._accounts[name] = Account(now_ns, START_SHARE)
        return account

    @property
    def share(self):
        return max([a.share for a in self._accounts.values()], default=0)

    def let_in(self, event: Arrived, size: int, now_ns: int) -> None:
        """A request was forwarded."""
        self.account(event, now_ns).add(size, now_ns)

    def tell(self, event: Arrived, wait_ns: int, most_ns: int, blocks: int, size: int, number: int, now_ns: int) -> int:
        """When to come back, from `wait_ns` to `most_ns` from now; it is expected then, with so many `blocks`."""
        self._pass(now_ns)
        account = self.account(event, now_ns)
        others_ns = 0.0
        if account.share >= FEW_SHARE:
            rate = PART * account.rate(now_ns)
            others_ns = min(float(most_ns), account.share * account.booked / rate) if rate > 0 else most_ns
            if now_ns - account.last_refused > 10e9:
                account.since = now_ns
            account.last_refused = now_ns
            if LINDY:
                age = now_ns - account.since + wait_ns
                x = others_ns
                # T + LINDY * (T - age * ln(1+T/age)) = x
                lo, hi = 0.0, x
                for _ in range(30):
                    mid = (lo + hi) / 2
                    if mid + LINDY * (mid - age * log(1 + mid / age)) < x: lo = mid
                    else: hi = mid
                others_ns = lo
            if account.known < KNOWN:
                others_ns = min(others_ns, MOST_UNKNOWN * wait_ns)
        due_ns = now_ns + min(max(wait_ns, int(others_ns)), most_ns)
        if self._booked < MOST_BOOKED and due_ns < now_ns + most_ns:
            key = key_of(event)
            until_ns = due_ns + int((due_ns - now_ns) * LATE_SHARE) + LATE_NS
            booking = Booking(account, key, now_ns, due_ns, until_ns, blocks, size, number, self._asked.setdefault(key, 0))
            account.booked += size
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
        kept = self._kept + sqrt(max(0.0, self._kept_squares))
        most = MOST_KEPT * capacity
        if LG and self._due:
            most = max(most, min(max([b.blocks for b in self._due]), LG * capacity))
        return int(min(kept, most))

    def _pass(self, now_ns: int) -> None:
        coming, until = self._coming, self._until
        while coming and coming[0][0] - EARLY_NS <= now_ns:
            booking = heapq.heappop(coming)[2]
            booking.asked = self._asked[booking.key] - booking.asked
            account = booking.account
            account.booked -= booking.size
            share = account.share if account.share >= FEW_SHARE else 0.0
            booking.size = share  # HACK
            self._due[booking] = 1
            self._kept += share * booking.blocks
            self._kept_squares += share * (1 - share) * booking.blocks**2
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
        share = booking.size
        self._due.pop(booking, 0)
        self._kept -= share * booking.blocks
        self._kept_squares -= share * (1 - share) * booking.blocks**2
        # Below 0 where more came before; it evens out those who come then by chance.
        came_back = max(-1.0, came - booking.by_chance)
        booking.account.learn(came_back)


def _due_ns(booking: Booking) -> int:
    return booking.due_ns


def key_of(event: Arrived) -> Key:
    """By what a client is known again."""
    return (event.tenant, event.route, event.prompts, event.max_new_tokens, event.sequences, event.priority)
