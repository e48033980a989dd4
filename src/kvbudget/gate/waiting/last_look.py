"""Decides whether a look at those who wait would let nobody in again: nothing that the last one went by has changed.

Room is looked for some time after every report of tokens (`promises.RECHECK_NS`), and an engine's step may take longer
than that. By learned lengths of one tenant alone a look goes by the outlook, its step, the ledger, the queue, what is
kept for those who come back, and the tables of lengths; where other things count as well, every look is made.
"""

from kvbudget.gate.learning.learned import LearnedPolicy
from kvbudget.gate.promises import Promises
from kvbudget.gate.refusing.returns import Returns
from kvbudget.gate.tenants.fairness import Fairness
from kvbudget.gate.waiting.overtaking import Overtaking
from kvbudget.gate.waiting.queue import Queue
from kvbudget.pool.ledger import Ledger

Basis = tuple[int, int, int, int, int, int, bool, int, int, float, float, float, int, int, float]


class LastLook:
    """What the last look went by, if it let nobody in."""

    def __init__(
        self,
        ledger: Ledger,
        queue: Queue,
        fairness: Fairness,
        promises: Promises,
        learned: LearnedPolicy,
        overtaking: Overtaking,
        returns: Returns,
    ) -> None:
        self._ledger = ledger
        self._queue = queue
        self._fairness = fairness
        self._promises = promises
        self._learned = learned
        self._overtaking = overtaking
        self._returns = returns
        self._basis: Basis | None = None

    def forget(self) -> None:
        """Other rules hold from now on."""
        self._basis = None

    def begins(self) -> None:
        """A look is made."""
        self._basis = None
        self._learned.note_tables()

    def ends(self, now_ns: int, *, let_in: bool) -> None:
        """And it is over."""
        self._learned.tables_are_noted()
        if not let_in and self._decides_all:
            self._basis = self._now_by(now_ns)
            self._overtaking.note_look()

    def stands(self, now_ns: int) -> bool:
        """Whether one more would end in the same way; then everything is as after it."""
        basis = self._basis
        if basis is None or not self._decides_all:
            return False
        if self._learned.batch.is_old(self._ledger, now_ns) or self._returns.is_due(now_ns):
            return False
        outlook = self._learned.outlook
        if basis[0] != outlook.version or basis[1] != outlook.now or basis[4] != self._queue.changes:
            return False  # as nearly always, if it does not stand
        if basis != self._now_by(now_ns) or not self._learned.tables_stand():
            return False
        self._overtaking.as_after_look()
        return True

    @property
    def _decides_all(self) -> bool:
        """Whether nothing else does: the clairvoyant goes by each one's tokens."""
        return self._fairness.is_alone and self._promises.by_lengths and not self._learned.is_clairvoyant

    def _now_by(self, now_ns: int) -> Basis:
        ledger, learned, promises = self._ledger, self._learned, self._promises
        outlook = learned.outlook
        bookings, booked, kept = self._returns.state
        return (
            outlook.version, outlook.now, ledger.changes, ledger.capacity_blocks, self._queue.changes,
            promises.cached.changes, promises.trust.given, promises.taken_blocks, learned.lengths.forgotten,
            learned.margin.z, learned.batch.hindsight.excess, learned.shared, bookings, booked, kept,
        )  # fmt: skip
