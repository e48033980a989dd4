"""Decides whether who cannot go now may wait: by the bounds of the queue, and by how long it would wait.

Under `learned` the wait is foreseen. Whoever would wait longer than is worth it is refused on arrival: it can try
elsewhere, and those who wait behind it are served in time.
"""

from typing import Final, NamedTuple

from kvbudget.gate.config import GateConfig
from kvbudget.gate.events import Arrived
from kvbudget.gate.learning.learned import LearnedPolicy
from kvbudget.gate.policies import Policy
from kvbudget.gate.promises import Promises
from kvbudget.gate.refusing.refusals import QueueBound, Refusal
from kvbudget.gate.tenants.fairness import Fairness
from kvbudget.gate.tenants.kept import Kept
from kvbudget.gate.waiting.queue import Demand, Queue, Waiting
from kvbudget.pool.footprint import Footprint
from kvbudget.pool.ledger import Ledger
from kvbudget.units import Blocks, Tokens

_READ_PART: Final = 0.125  # of the longest wait worth having: so long prompts may be read that the engine is given
_LEAST_READ_NS: Final = 100_000_000  # with less it would stand idle between a first token and the next prompt


class Expected(NamedTuple):
    """A wait that is foreseen. `room_ns`: the same if it is for room in the pool, 0 if that would come sooner: then how
    long it takes really says nothing of how well room is foreseen."""

    wait_ns: int
    room_ns: int


_NOTHING: Final = Expected(0, 0)


class Place(NamedTuple):
    """A place in the queue. `displaced`: whom it is taken from. `demand` and `expected`, the wait that is foreseen:
    None and 0 where lengths are not learned, or it cannot be foreseen."""

    deadline_ns: int
    demand: Demand | None
    expected: Expected
    displaced: Waiting | None


class NoPlace(NamedTuple):
    """Why it may not wait; for QUEUE_FULL, which bound it met (requests, tokens or ns)."""

    refusal: Refusal
    bound: QueueBound | None = None
    limit: int = 0


class Parking:
    """The way into the queue of one gate."""

    def __init__(
        self,
        config: GateConfig,
        ledger: Ledger,
        queue: Queue,
        promises: Promises,
        learned: LearnedPolicy,
        fairness: Fairness,
    ) -> None:
        self._config = config
        self._ledger = ledger
        self._queue = queue
        self._promises = promises
        self._learned = learned
        self._fairness = fairness

    def configure(self, config: GateConfig) -> None:
        """Decide by other limits from now on."""
        self._config = config

    def place(
        self, event: Arrived, footprint: Footprint, peak_blocks: Blocks, now_ns: int, *, booked: bool
    ) -> Place | NoPlace:
        """Where it may wait; or why not. `booked`: it has waited already, so it may wait however long."""
        config = self._config
        demand: Demand | None = None
        expected: Expected | None = None
        worthwhile = True
        if config.policy is Policy.LEARNED:
            credit = self._promises.credit(event, footprint)
            demand = self._learned.demand(event, footprint, credit)
            if self._promises.by_lengths:  # by a guess of lengths nobody is refused who may yet be served
                expected = self._expected(event, footprint, credit, self._fairness.kept_from(event, now_ns), now_ns)
                # What cannot be foreseen is further away than lengths tell anything of.
                late = expected is None or expected.wait_ns > self._worthwhile_ns(event, now_ns)
                worthwhile = booked or not late
            elif self._learned.lane.is_known:
                ahead = self._fairness.ahead_of(event, footprint, self._queue, now_ns)
                worthwhile = booked or self.prompts_wait_ns(now_ns, ahead) <= self._worthwhile_ns(event, now_ns)
        queue_tokens = self._queue_tokens()
        if min(config.queue_requests, config.queue_ns, queue_tokens) <= 0:
            return NoPlace(self._fairness.refused_for(event, peak_blocks, now_ns, Refusal.POOL_FULL))
        if not worthwhile:
            refusal = self._fairness.refused_for(event, peak_blocks, now_ns)
            return NoPlace(refusal, QueueBound.SECONDS, self._worthwhile_ns(event, now_ns))
        tokens = demand.tokens if demand is not None else footprint.total_tokens
        displaced: Waiting | None = None
        queue = self._queue
        # A lone request may wait however large it is: it fits the pool, so it will be served.
        if len(queue) >= config.queue_requests or (queue and queue.tokens + tokens > queue_tokens):
            displaced = self._fairness.makes_place(event, tokens, queue)
            if displaced is None or queue.tokens - displaced.tokens + tokens > queue_tokens:
                refusal = self._fairness.refused_for(event, peak_blocks, now_ns, Refusal.QUEUE_FULL)
                if len(queue) >= config.queue_requests:
                    return NoPlace(refusal, QueueBound.REQUESTS, config.queue_requests)
                return NoPlace(refusal, QueueBound.TOKENS, queue_tokens)
        return Place(self._deadline_ns(event, now_ns), demand, expected or _NOTHING, displaced)

    def _worthwhile_ns(self, event: Arrived, now_ns: int) -> int:
        if event.deadline_ns is not None:
            return event.deadline_ns - now_ns
        # Who comes while nobody can be let in waits for that: all other gates of the pool are closed as well.
        return self._promises.closed_ns(now_ns) + self._config.worthwhile_wait_ns

    def wait_for_room_ns(self, event: Arrived, footprint: Footprint, now_ns: int) -> int | None:
        """By learned lengths: time until everybody before it and then itself is let in and its prompt can be read; None
        if that cannot be foreseen. What it has to leave free for others it needs for a time that nobody foresees: then
        without that."""
        credit = self._promises.credit(event, footprint)
        kept = self._fairness.kept_from(event, now_ns)
        expected = self._expected(event, footprint, credit, kept, now_ns)
        if expected is None and kept is not None:
            expected = self._expected(event, footprint, credit, None, now_ns)
        return None if expected is None else expected.wait_ns

    def _expected(
        self, event: Arrived, footprint: Footprint, credit: int, kept: Kept | None, now_ns: int
    ) -> Expected | None:
        """`credit`: blocks of it that others hold."""
        ahead = self._fairness.ahead_of(event, footprint, self._queue, now_ns)
        places = self._config.max_num_seqs
        room_ns = self._learned.wait_ns(self._ledger, event, footprint, credit, ahead, places, now_ns, kept)
        closed_ns = self._promises.closed_ns(now_ns)
        if closed_ns:  # no length of an answer tells when a ledger has settled, but it will
            return Expected(closed_ns + (room_ns or 0), 0)
        if room_ns is None:
            return None
        prompts_ns = self.prompts_wait_ns(now_ns, ahead)
        return Expected(prompts_ns, 0) if prompts_ns > room_ns else Expected(room_ns, room_ns)

    def prompts_wait_ns(self, now_ns: int, ahead: Demand | None = None) -> int:
        """Time until the engine has so few prompts to read that it is given another one, and those `ahead` before; 0:
        now. An engine that is given more answers nobody sooner: it only reads so many in a step that all others wait
        for it, and the order in which they go would not be ours any more."""
        if self._config.policy is not Policy.LEARNED:
            return 0
        lane = self._learned.lane
        ahead_ns = 0 if ahead is None else lane.takes_ns(ahead.prompt_tokens)
        most_ns = max(_LEAST_READ_NS, int(self._config.worthwhile_wait_ns * _READ_PART * self._learned.part))
        return max(0, lane.backlog_ns(now_ns) + ahead_ns - most_ns)

    def _deadline_ns(self, event: Arrived, now_ns: int) -> int:
        config = self._config
        deadline_ns = now_ns + config.queue_ns
        if event.deadline_ns is not None:
            return min(deadline_ns, event.deadline_ns)
        if config.policy is Policy.LEARNED:
            closed_ns = self._promises.closed_ns(now_ns)
            return min(deadline_ns, now_ns + closed_ns + config.worthwhile_wait_ns * 11 // 10)
        return deadline_ns

    def _queue_tokens(self) -> Tokens:
        if self._config.queue_tokens is not None:
            return self._config.queue_tokens
        # Of several gates, all together as much as one would.
        ours = self._ledger.pool_blocks // self._promises.gates
        return Tokens(2 * self._ledger.layout.largest_length(Blocks(ours)))
