"""Decides whether a smaller request may go before one that the pool has no room for, so that one huge one holds up
nobody while room for it comes together.

As EASY backfilling does (Lifka 1995): whoever is first of those that lack room is given the time at which it could
start, and others may go before if that does not put it off, because they end by then or because there is room beside
it: by declared limits where those decide, by learned lengths where those do.

Nobody is starved by that, however wrong the lengths are: the start is reckoned without those who went before, and once
there would be room if none of them had, nobody goes before it any more. Then it waits for them at most, so it starts
later than it would have by no more than the longest of them has left to its limit.
"""

from typing import Final, NamedTuple

from kvbudget.gate.config import GateConfig
from kvbudget.gate.events import Arrived
from kvbudget.gate.learning.learned import LearnedPolicy
from kvbudget.gate.promises import RECHECK_NS, Promises
from kvbudget.gate.waiting.queue import Demand, Queue, Waiting
from kvbudget.gate.waiting.wait_forecast import Start as Foreseen
from kvbudget.gate.waiting.wait_forecast import has_room_by, start_of
from kvbudget.pool.footprint import Footprint
from kvbudget.pool.ledger import Ledger, Reservation
from kvbudget.pool.risk import Outlook
from kvbudget.pool.share import Instead, Share

MOST_TRIES: Final = 8  # of those behind, in one look
_NEVER: Final = (-1, -1)


class Start(NamedTuple):
    """When one could start, where limits decide: once `last` has come to its limit, with so much free beside it from
    then on."""

    made_ns: int
    last: Reservation | None  # None: now
    blocks: int
    sequences: int

    @property
    def steps(self) -> int:
        """Until then, by what `last` has made by now: this may be older than its newest tokens."""
        return 0 if self.last is None else _left(self.last)


class Head:
    """One that lacks room."""

    __slots__ = ("overtook", "sealed", "waiting")

    def __init__(self, waiting: Waiting) -> None:
        self.waiting = waiting
        self.overtook: set[str] = set()  # who went before it and lives
        self.sealed = False  # nobody goes before it any more


class Overtaking:
    """Who lacks room, and who went before."""

    def __init__(
        self, config: GateConfig, ledger: Ledger, queue: Queue, promises: Promises, learned: LearnedPolicy
    ) -> None:
        self._config = config
        self._ledger = ledger
        self._queue = queue
        self._promises = promises
        self._learned = learned
        self._heads: dict[tuple[int, int], Head] = {}  # all that lacked room and wait; they are few
        # Of the last look:
        self._head: Head | None = None
        self._start: Start | None = None
        self._foreseen: Foreseen | None = None  # the same by learned lengths, of the epoch and step of
        self._foreseen_at = _NEVER  # these
        self._foreseen_by = (-1, 0.0, 0, 0)  # and by that: (version of the outlook, z, blocks, seats)
        # Of that: the head, and what those who went before it no longer hold.
        self._reckoned: tuple[Share, Demand | None]
        self._smaller_than = 0  # blocks at their peaks: as many there was no room for
        self._tries = 0
        self._head_after: Head | None = None
        self._smaller_than_after = 0

    def configure(self, config: GateConfig) -> None:
        """Decide by other limits from now on."""
        self._config = config

    def begin_look(self) -> None:
        """Those who wait are gone through from the start: nobody is known to lack room."""
        self._head = None

    def note_look(self) -> None:
        """A look is over."""
        self._head_after, self._smaller_than_after = self._head, self._smaller_than

    def as_after_look(self) -> None:
        """One more would end as that one did: forget who came and was tried since."""
        self._head, self._smaller_than = self._head_after, self._smaller_than_after

    def lacks_room(self, waiting: Waiting) -> None:
        """The first in the order that does."""
        queue, living = self._queue, self._ledger
        head = self._heads.get(waiting.key)
        if head is None or len(self._heads) > 1:
            self._heads = {
                key: other for key, other in self._heads.items() if other.waiting.arrived.request_id in queue
            }
        if head is None:
            head = self._heads[waiting.key] = Head(waiting)
        head.waiting = waiting
        if head.overtook:
            head.overtook = {name for name in head.overtook if living.get(name) is not None}
        self._head = head
        self._start = None
        self._foreseen_at = _NEVER
        self._smaller_than = waiting.peak_blocks
        self._tries = 0

    @property
    def has_met_head(self) -> bool:
        """Whether the look that is made has met one that lacks room."""
        return self._head is not None

    @property
    def head(self) -> Waiting | None:
        """Who is known to lack room and waits."""
        head = self._head
        return head.waiting if head is not None and head.waiting.arrived.request_id in self._queue else None

    def first_waiting(self) -> Waiting | None:
        """Who goes next when there is room: the one that lacks it, if it is known, or the first of the most urgent."""
        head = self.head
        return self._queue.head() if head is None else head

    def another_try(self) -> bool:
        """Whether one more of those behind is looked at."""
        self._tries += 1
        return self._tries <= MOST_TRIES

    def is_worth_trying(self, footprint: Footprint, peak_blocks: int, now_ns: int) -> bool:
        """`worth_trying` after the look, when the head may have gone."""
        return self.head is not None and self.worth_trying(footprint, peak_blocks, now_ns)

    def worth_trying(self, footprint: Footprint, peak_blocks: int, now_ns: int) -> bool:
        """Whether one may go before the head, as far as that is told at no cost: whoever is no smaller than others for
        whom there was no room is not tried."""
        head = self._head
        if head is None or peak_blocks >= self._smaller_than:
            return False
        if any(other.sealed for other in self._heads.values()):
            return False
        if self._promises.by_lengths:
            return True
        start = self._start
        if start is None or now_ns >= start.made_ns + RECHECK_NS:
            start = self._start = self._start_by_limits(head, now_ns)
        if head.overtook and start.steps <= 0:
            head.sealed = True
            return False
        if footprint.max_new_tokens <= start.steps:
            return True
        return peak_blocks <= start.blocks and footprint.total_sequences <= start.sequences

    def clearly_puts_off(self, event: Arrived, footprint: Footprint, now_ns: int) -> bool:
        """Whether `may_pass` would say no, so that its room need not be reckoned: that takes longer. Not told where the
        answer itself may end all going before."""
        head = self._head
        if head is None or not self._promises.by_lengths or self._promises.are_due(now_ns):
            return False
        if head.overtook and not self._is_foreseen(now_ns):
            return False
        return not self._keeps_start(head, event, footprint, now_ns)

    def may_pass(self, event: Arrived, footprint: Footprint, now_ns: int) -> bool:
        """Whether one that was worth trying, and that there is room for, goes before the head. If so, it is let in."""
        head = self._head
        if head is None or (self._promises.by_lengths and not self._keeps_start(head, event, footprint, now_ns)):
            return False
        head.overtook.add(event.request_id)
        self._start = None
        self._foreseen_at = _NEVER
        return True

    def stays(self, peak_blocks: int) -> None:
        """There was no room for one behind the head, or it may not pass."""
        self._smaller_than = min(self._smaller_than, peak_blocks)

    # When the head could start, had nobody gone before it

    def _keeps_start(self, head: Head, event: Arrived, footprint: Footprint, now_ns: int) -> bool:
        """By learned lengths."""
        outlook = self._learned.outlook
        if not self._is_foreseen(now_ns):
            waiting = head.waiting
            newcomer = self._learned.newcomer(self._ledger, waiting.arrived, waiting.footprint, now_ns)
            head.sealed = bool(head.overtook) and self._fits_without(head, newcomer)
            self._foreseen = None if head.sealed else self._foresee(head, newcomer)
            self._foreseen_at = (outlook.epoch, outlook.now)
        start = self._foreseen
        if start is None:
            return False
        more = self._learned.newcomer(self._ledger, event, footprint, now_ns)
        newcomer, ahead = self._reckoned
        blocks, seats = self._room_for(head)
        z, by = self._learned.margin.z, self._foreseen_by
        is_as_foreseen = by[0] == outlook.version and by[1] == z and by[2] == blocks and by[3] == seats
        if is_as_foreseen and start.is_put_off_by(more, outlook.now - outlook.epoch):
            return False
        return has_room_by(start.steps, outlook, z, newcomer, blocks, seats, ahead, more)

    def _is_foreseen(self, now_ns: int) -> bool:
        self._learned.refresh(self._ledger, now_ns)
        outlook, at = self._learned.outlook, self._foreseen_at
        return at[0] == outlook.epoch and at[1] == outlook.now

    def _start_by_limits(self, head: Head, now_ns: int) -> Start:
        """The lease ends: when all that have to end first have come to their limits, one token a step."""
        ledger, footprint = self._ledger, head.waiting.footprint
        blocks = ledger.capacity_blocks - ledger.peak_sum_blocks - head.waiting.peak_blocks
        sequences = self._config.max_num_seqs - ledger.sequences - footprint.total_sequences
        leases: list[Reservation] = []
        passed: list[Reservation] = []
        for living in ledger:
            if living.reservation_id in head.overtook:
                passed.append(living)
                blocks += living.net_blocks
                sequences += living.footprint.total_sequences
            else:
                leases.append(living)
        last: Reservation | None = None
        for living in sorted(leases, key=_lease):
            if blocks >= 0 and sequences >= 0:
                break
            last = living
            blocks += living.net_blocks
            sequences += living.footprint.total_sequences
        steps = 0 if last is None else _left(last)
        for living in passed:
            if _left(living) > steps:  # it was let in to be beside it
                blocks -= living.net_blocks
                sequences -= living.footprint.total_sequences
        return Start(now_ns, last, blocks, sequences)

    def _foresee(self, head: Head, newcomer: Share) -> Foreseen | None:
        """By learned lengths; None if that is beyond what can be seen."""
        learned = self._learned
        ahead: Demand | None = None
        if head.overtook:
            ahead = Demand(0, 0)
            for share in _shares_of(head, learned.outlook):
                _take_off(ahead, share)
        self._reckoned = (newcomer, ahead)
        blocks, seats = self._room_for(head)
        self._foreseen_by = (learned.outlook.version, learned.margin.z, blocks, seats)
        return start_of(learned.outlook, learned.margin.z, newcomer, blocks, seats, ahead, None)

    def _room_for(self, head: Head) -> tuple[int, int]:
        """(blocks of all together, sequences beside it)"""
        blocks = self._ledger.capacity_blocks - self._learned.batch.together(self._ledger)
        return blocks, self._config.max_num_seqs - head.waiting.footprint.total_sequences

    def _fits_without(self, head: Head, newcomer: Share) -> bool:
        """Whether it would be let in now if those who went before it were not there."""
        learned, outlook = self._learned, self._learned.outlook
        shares = _shares_of(head, outlook)
        sequences = self._ledger.sequences + newcomer.sequences - sum([share.sequences for share in shares])
        less = Instead(newcomer, shares, outlook.now - outlook.epoch)
        limit, _ = self._room_for(head)
        held = outlook.held_now() + less.held
        fits = outlook.promise_up_to(limit, held, learned.margin.z, less) is not None
        return fits and sequences <= self._config.max_num_seqs


def _left(living: Reservation) -> int:
    return living.footprint.max_new_tokens - living.seen_tokens


def _lease(living: Reservation) -> tuple[int, int, int]:
    return _left(living), living.net_blocks, living.footprint.total_sequences


def _shares_of(head: Head, outlook: Outlook) -> list[Share]:
    return [outlook.shares[name] for name in sorted(head.overtook) if name in outlook.shares]


def _take_off(demand: Demand, share: Share) -> None:
    means, alive, blocks, sequences = share.mean, share.alive, demand.blocks, demand.sequences
    for g in range(len(means)):
        blocks[g] = blocks[g] - means[g]
        sequences[g] = sequences[g] - alive[g]
