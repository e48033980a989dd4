"""Decides when a refused client should come back, and who has come when it was told.

Under overload everybody's honest answer would be "when the load ends". So each is told a time of its own: after those
of its tenant and class who were told before it (`gate.refusing.return_pace`), and never sooner than room is expected.
Whoever then asks for the same again has waited already. It goes before those who wait here, into room that was kept for
it and, as few come at a time, into what caution keeps free (`gate.promises`). The room that is kept is bounded, so that
who never comes back costs little.

A client is known again by what it asks for: tenant, route, prompts, limit. Who asks for the same by chance takes its
place, which is then not taken twice. But it does not count as one who came back: as many as asked for the same at other
times, in as long, would have come anyway.

Of gates before one pool any may be the one to which a client comes back. Whom the others have told is known here as
well (`gate.bank.appointments`); whether that one comes is learned by who told it.
"""

import heapq
from bisect import insort
from collections import OrderedDict
from hashlib import blake2b
from math import sqrt
from typing import Final

from kvbudget.gate.events import Arrived
from kvbudget.gate.refusing.return_pace import PROBES, ReturnPace, ReturnShare
from kvbudget.gate.tenants.settings import account_name

# An account has at most as many of these as are free (Choudhury, Hahne 1998): one flood takes half.
MOST_BOOKED: Final = 4096
MOST_ACCOUNTS: Final = 1024  # names come from outside
# Who is the first of its tenant and class waits for nobody else of it. So many of those are expected at a time and no
# more: where every client is a tenant of its own, they come after one another like the clients of one tenant.
FIRSTS_AT_ONCE: Final = 2 * PROBES
# Of the pool, at most; the second bound is for one request that is larger than the first.
MOST_KEPT, MOST_KEPT_FOR_ONE = 0.1, 0.25
# The edge lengthens what is told by up to a quarter (edge/request/answers.py); a round trip and a connection come on
# top.
LATE_SHARE, LATE_NS = 0.25, 1_500_000_000
EARLY_NS: Final = 100_000_000
_BEFORE_ALL: Final = -(1 << 60)  # in the order of arrival: at another gate it came before those who wait here

Key = tuple[object, ...]


class Booking:
    """One client who was told to come back at `due_ns`, and may be as late as `until_ns`."""

    __slots__ = (
        "asked", "blocks", "came", "due_ns", "elsewhere", "first", "key", "number", "over", "pace", "peak_blocks",
        "sequences", "serial", "share", "told_ns",
    )  # fmt: skip

    def __init__(
        self, key: Key, pace: ReturnPace, blocks: int, peak_blocks: int, sequences: int, number: int, told_ns: int,
        due_ns: int,
    ) -> None:  # fmt: skip
        self.key = key
        self.serial = 0
        self.elsewhere = False  # another gate has told it
        self.first = False  # nobody of its tenant and class was to come before it
        self.pace = pace
        self.blocks = blocks
        self.peak_blocks = peak_blocks
        self.sequences = sequences
        self.number = number  # its place in the order of arrival when it was refused
        self.told_ns = told_ns
        self.due_ns = due_ns
        self.asked = 0  # how often the same was asked for before; when it is due: how often since
        self.share = 0.0  # the chance with which it is expected, when it is due; by the word of who told it
        self.over = self.came = False  # it came, or did not

    @property
    def until_ns(self) -> int:
        """Later than that it is nobody who was told to come."""
        return self.due_ns + int((self.due_ns - self.told_ns) * LATE_SHARE) + LATE_NS

    @property
    def promised(self) -> bool:
        """Whether it was expected to come, so that room was kept for it; else it only goes before those who wait."""
        return self.share > 0.0

    @property
    def by_chance(self) -> float:
        """How many were to come for it who were told nothing: as often as the same was asked for before it was due."""
        before_ns = max(1, self.due_ns - EARLY_NS - self.told_ns)
        return self.asked * (self.until_ns - self.due_ns + EARLY_NS) / before_ns


class _Expected:
    """What those will take who are to come now, as far as they are expected."""

    __slots__ = ("_variance", "mean")

    def __init__(self) -> None:
        self.mean = 0.0
        self._variance = 0.0

    def add(self, many: int, share: float, sign: int) -> None:
        """One is to come (+1), or no more (-1), with this chance."""
        self.mean += sign * share * many
        self._variance += sign * share * (1.0 - share) * many**2

    @property
    def enough(self) -> float:
        """With a standard deviation."""
        return self.mean + sqrt(max(0.0, self._variance))


class Returns:
    """All who were told a time that has not passed."""

    def __init__(self) -> None:
        self.share = ReturnShare()  # of all, with which those begin of whom nothing is known
        self._firsts = ReturnPace(self.share, 0)  # of those who wait for nobody of their own
        self._firsts_coming = 0
        self._paces: OrderedDict[str, ReturnPace] = OrderedDict()  # by account, who came longest ago first
        self._last_name = ""  # of the account that came last, and its pace
        self._last_pace: ReturnPace | None = None
        self._of: dict[Key, list[Booking]] = {}  # by due time
        self._asked: dict[Key, int] = {}  # how often somebody came with it, since there is a booking with it
        self._coming: list[tuple[int, int, Booking]] = []  # by due time; no room is kept yet
        self._until: list[tuple[int, int, Booking]] = []
        self._largest: list[tuple[int, int, Booking]] = []  # for whom room is kept, by blocks
        self._booked = 0
        self._own: dict[int, Booking] = {}  # those that are told here, by serial number
        self._elsewhere = ReturnPace(self.share, 0)  # of those that other gates have told
        self._told_until_ns = 0  # nobody was told a later time
        self._serial = 0
        self._kept = _Expected()  # blocks of all for whom room is kept
        self._kept_sequences = _Expected()

    @property
    def state(self) -> tuple[int, int, float]:
        """What `kept_blocks` goes by, and changes with it: (bookings so far, those that are open, blocks kept)."""
        return self._serial, self._booked + self._elsewhere.booked, self._kept.mean

    def is_due(self, now_ns: int) -> bool:
        """Whether somebody is to come from now on, or no more, of whom that was not known before."""
        coming, until = self._coming, self._until
        return bool(coming and coming[0][0] - EARLY_NS <= now_ns) or bool(until and until[0][0] < now_ns)

    def let_in(self, event: Arrived, peak_blocks: int, now_ns: int) -> None:
        """A request was forwarded."""
        self._pace_of(event, now_ns).let_in(peak_blocks, now_ns)
        self._firsts.let_in(peak_blocks, now_ns)

    def tell(
        self, event: Arrived, wait_ns: int, most_ns: int, blocks: int, peak_blocks: int, number: int, now_ns: int
    ) -> int:
        """When to come back, from `wait_ns` to `most_ns` from now; it is expected then, with so many `blocks`. Who is
        told the most is not: there are more than find room."""
        self._pass(now_ns)
        pace = self._pace_of(event, now_ns)
        pace.refused(now_ns)
        after_ns = int(pace.after_others_ns(peak_blocks, wait_ns, now_ns))
        first = after_ns == 0 and pace.share.expected > 0.0
        if first:
            self._firsts.refused(now_ns)
            if self._firsts_coming >= FIRSTS_AT_ONCE:
                after_ns = int(self._firsts.after_others_ns(peak_blocks, wait_ns, now_ns))
        told_ns = max(wait_ns, after_ns)
        pace.hindsight.told(peak_blocks, min(told_ns, most_ns), now_ns)
        self._told_until_ns = max(self._told_until_ns, now_ns + min(told_ns, most_ns))
        if told_ns >= most_ns:
            return most_ns
        if pace.booked < MOST_BOOKED - self._booked:
            sequences = event.sequences * len(event.prompts)
            booking = Booking(key_of(event), pace, blocks, peak_blocks, sequences, number, now_ns, now_ns + told_ns)
            booking.first = first
            if first:
                self._firsts_coming += 1
                self._firsts.coming_blocks += peak_blocks
            pace.booked += 1
            pace.coming_blocks += peak_blocks
            self._booked += 1
            self._note(booking)
            self._own[booking.serial] = booking
        return told_ns

    def claim(self, event: Arrived, now_ns: int) -> Booking | None:
        """The booking with which this one comes, which is then used up; None if it comes unannounced."""
        for key in self._keys_of(event, now_ns):
            if key not in self._of:
                continue
            self._asked[key] += 1
            booking = self._first_due(key, now_ns)
            if booking is not None:
                self._close(booking, came=True)
                if booking.elsewhere:
                    booking.pace = self._pace_of(event, now_ns)
                return booking
        return None

    def due(self, event: Arrived, now_ns: int) -> Booking | None:
        """The booking with which this one would come now; it stays open, and this one counts as nobody who asked."""
        for key in self._keys_of(event, now_ns):
            booking = self._first_due(key, now_ns)
            if booking is not None:
                return booking
        return None

    def tried(self, event: Arrived, booking: Booking | None, peak_blocks: int, now_ns: int, *, at_once: bool) -> None:
        """One that came with `booking`, or unannounced, was let in at once, or was not."""
        if booking is not None:
            if booking.promised and not at_once:
                booking.pace.hindsight.found_no_room()
        elif at_once and now_ns < self._told_until_ns:
            self._pace_of(event, now_ns).hindsight.newcomer(peak_blocks, now_ns)

    # Together with other gates

    def told_here(self, most: int, now_ns: int) -> list[Booking]:
        """Who is to come by what was told here, the next first."""
        self._pass(now_ns)
        return heapq.nsmallest(most, self._own.values(), key=_due_ns)

    def told_elsewhere(
        self, name: str, told_ns: int, due_ns: int, share: float, blocks: int, peak_blocks: int, now_ns: int
    ) -> Booking | None:
        """Another gate has told one of this `name_of` its key to come, which it expects with a chance of `share`; None
        if that has passed, or there are many."""
        pace = self._elsewhere
        booking = Booking((name,), pace, blocks, peak_blocks, 1, _BEFORE_ALL + self._serial, told_ns, due_ns)
        booking.elsewhere, booking.share = True, share
        if booking.until_ns < now_ns or pace.booked >= MOST_BOOKED:
            return None
        pace.booked += 1
        pace.coming_blocks += peak_blocks
        self._note(booking)
        return booking

    def expect(self, booking: Booking, share: float, now_ns: int) -> None:
        """Another gate expects whom it has told with this chance by now."""
        if booking.due_ns - EARLY_NS > now_ns:
            booking.share = share

    def drop(self, booking: Booking, now_ns: int) -> None:
        """Whom another gate has told is not to come any more, at least not here."""
        self._pass(now_ns)
        if not booking.over and booking.due_ns - EARLY_NS <= now_ns:
            self._close(booking, came=False)

    def came_elsewhere(self, serial: int, asked: int, now_ns: int) -> None:
        """Who was told here has come to another gate, where the same was asked for so often before it was due."""
        self._pass(now_ns)
        booking = self._own.get(serial)
        if booking is not None and booking.due_ns - EARLY_NS <= now_ns:
            booking.asked += asked
            self._close(booking, came=True)

    # Room

    def kept_blocks(self, capacity: int, now_ns: int) -> int:
        """Blocks to keep for those who are to come now: as many as are expected, and a standard deviation, so that for
        one alone it is its whole room."""
        largest = self._due_now(now_ns)
        if largest is None:
            return 0
        return int(min(self._kept.enough, max(MOST_KEPT * capacity, min(largest.blocks, MOST_KEPT_FOR_ONE * capacity))))

    def kept_sequences(self, places: int, now_ns: int) -> int:
        """The same of `places` for sequences."""
        largest = self._due_now(now_ns)
        if largest is None:
            return 0
        most = max(MOST_KEPT * places, min(largest.sequences, MOST_KEPT_FOR_ONE * places))
        return int(min(self._kept_sequences.enough, most))

    def _due_now(self, now_ns: int) -> Booking | None:
        """Who needs most blocks of those who are to come now."""
        if not self._booked and not self._elsewhere.booked:
            return None
        self._pass(now_ns)
        largest = self._largest
        while largest and largest[0][2].over:
            heapq.heappop(largest)
        return largest[0][2] if largest else None

    def _pace_of(self, event: Arrived, now_ns: int) -> ReturnPace:
        name = account_name(event.tenant, event.priority)
        last = self._last_pace
        if last is not None and name == self._last_name:
            return last  # nobody came since, so it is the newest as it is
        pace = self._paces.get(name)
        if pace is None:
            if len(self._paces) >= MOST_ACCOUNTS:
                self._paces.popitem(last=False)
            pace = self._paces[name] = ReturnPace(ReturnShare(self.share.of_all), now_ns)
        else:
            self._paces.move_to_end(name)
        self._last_name, self._last_pace = name, pace
        return pace

    def _note(self, booking: Booking) -> None:
        self._serial += 1
        booking.serial = self._serial
        booking.asked = self._asked.setdefault(booking.key, 0)
        insort(self._of.setdefault(booking.key, []), booking, key=_due_ns)
        heapq.heappush(self._until, (booking.until_ns, self._serial, booking))
        heapq.heappush(self._coming, (booking.due_ns, self._serial, booking))

    def _keys_of(self, event: Arrived, now_ns: int) -> tuple[Key, ...]:
        """By what it may have been told to come: here, and by another gate; none where nobody is to come."""
        if not self._booked and not self._elsewhere.booked:
            return ()
        self._pass(now_ns)
        key = key_of(event)
        return (key, (name_of(key),)) if self._elsewhere.booked else (key,)

    def _first_due(self, key: Key, now_ns: int) -> Booking | None:
        bookings = self._of.get(key)
        return bookings[0] if bookings is not None and bookings[0].due_ns - EARLY_NS <= now_ns else None

    def _pass(self, now_ns: int) -> None:
        coming, until = self._coming, self._until
        while coming and coming[0][0] - EARLY_NS <= now_ns:
            _, serial, booking = heapq.heappop(coming)
            booking.asked = self._asked[booking.key] - booking.asked
            booking.pace.coming_blocks -= booking.peak_blocks
            if booking.first:
                self._firsts_coming -= 1
                self._firsts.coming_blocks -= booking.peak_blocks
            if not booking.elsewhere:
                booking.share = booking.pace.share.expected
            self._keep(booking, +1)
            if booking.share:
                heapq.heappush(self._largest, (-booking.blocks, serial, booking))
        while until and (until[0][2].over or until[0][0] < now_ns):
            booking = heapq.heappop(until)[2]
            if not booking.over:
                self._close(booking, came=False)
        if (
            len(until) > 2 * (self._booked + self._elsewhere.booked) + 64
        ):  # the heaps forget lazily; who came early enough is still in them
            self._until = [entry for entry in until if not entry[2].over]
            heapq.heapify(self._until)
            self._largest = [entry for entry in self._largest if not entry[2].over]
            heapq.heapify(self._largest)

    def _close(self, booking: Booking, *, came: bool) -> None:
        """It was due, so room is kept for it."""
        booking.over, booking.came = True, came
        booking.pace.booked -= 1
        bookings = self._of[booking.key]
        bookings.remove(booking)
        if not bookings:
            del self._of[booking.key], self._asked[booking.key]
        self._keep(booking, -1)
        if booking.elsewhere:
            return
        self._booked -= 1
        del self._own[booking.serial]
        # Below 0 where more came before; it evens out those who come then by chance.
        came_back = max(-1.0, came - booking.by_chance)
        booking.pace.share.learn(came_back)
        self.share.learn(came_back)

    def _keep(self, booking: Booking, sign: int) -> None:
        self._kept.add(booking.blocks, booking.share, sign)
        self._kept_sequences.add(booking.sequences, booking.share, sign)


def _due_ns(booking: Booking) -> int:
    return booking.due_ns


def name_of(key: Key) -> str:
    """The same at every gate, and short: it tells nothing of the tenant to who reads it."""
    return blake2b(repr(key).encode(), digest_size=8).hexdigest()


def key_of(event: Arrived) -> Key:
    """By what a client is known again."""
    return (event.tenant, event.route, event.prompts, event.max_new_tokens, event.sequences, event.priority)
