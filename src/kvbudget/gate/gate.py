"""Decides of every request whether it goes to the engine now, waits, or is refused, and takes its promise back.

A state machine without clock or I/O: `handle(event, now_ns) -> commands`. Rules, in the order in which they apply:

1. Whoever can never be served is refused at once: the prompt leaves no room under the context cap, or its peak is
   more than the whole pool. `max_new_tokens` that is missing or over the context cap is clamped to what fits.
2. Whoever fits by the policy, with nobody of the same or a more urgent priority waiting, is forwarded: its promise
   lives in the ledger until `Ended`.
3. Everybody else waits in the queue, in order, until room comes back or the deadline passes. The queue is bounded by
   requests, tokens and time; beyond that they are refused with the time at which room is expected.

Nobody is overtaken within a priority; an empty pool keeps nobody waiting; nobody waits past the deadline.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from kvbudget.errors import AccountingError
from kvbudget.gate.commands import Command, Forward, Parked, Reject
from kvbudget.gate.events import (
    Arrived,
    BackendChanged,
    CapacityChanged,
    DrainStarted,
    Ended,
    Event,
    PaceLost,
    Progressed,
    Tick,
)
from kvbudget.gate.expectation import MAX_WAIT_NS, Expectation
from kvbudget.gate.policies import Policy, promise_with, promised_blocks, promised_by_tenant, shared_out
from kvbudget.gate.queue import Queue, Waiting
from kvbudget.gate.refusals import Outcome, Refusal
from kvbudget.pool.footprint import Footprint, largest_new_tokens
from kvbudget.pool.groups import Layout
from kvbudget.pool.ledger import Ledger, Reservation
from kvbudget.units import Blocks, Tokens

# Progress can let the head of the queue in, but looking for every report would cost more than the room is worth: with
# 900 sequences one look takes a millisecond.
RECHECK_NS = 20_000_000
_MIN_RETRY_NS = 1_000_000_000  # sooner than a second is no waiting time worth telling
_TICK = Tick()
_DOWN_RETRY_NS = 5_000_000_000  # a restarting engine takes longer than that, but it may be only a blink


@dataclass(frozen=True, slots=True)
class GateConfig:
    """Limits of the gate; each is told in the refusal that it causes."""

    policy: Policy = Policy.TRAJECTORY
    max_num_seqs: int = 256
    max_context: Tokens | None = None  # None: what the pool can hold
    margin_blocks: int = 0
    queue_requests: int = 1024
    queue_tokens: Tokens | None = None  # None: twice what the pool holds
    queue_ns: int = 30 * 10**9
    # What bounds how far sequences get out of step, in engine steps (see pool.trajectory):
    prefill_tokens_per_step: int = 2048  # vLLM 0.32's smallest default of max_num_batched_tokens
    lag_steps: int = 32  # reports under way, asynchronous scheduling, events that are no token
    # After a request was cut off, the engine takes this long to notice: vLLM 0.32 freed after 46-238 ms.
    abort_tail_ns: int = 250_000_000


class Gate:
    """The admission state machine over one pool. All state changes happen inside `handle`, which never waits."""

    def __init__(self, config: GateConfig, layout: Layout, usable_blocks: Blocks) -> None:
        self.config = config
        self.ledger = Ledger(layout, usable_blocks, Blocks(config.margin_blocks))
        self.queue = Queue()
        self.expectation = Expectation()
        self.draining = False
        self.backend_up = True
        self.engine_context: Tokens | None = None
        self._context_cap = self._smallest_cap()
        self._lag_steps = config.lag_steps
        self._tails: deque[tuple[int, str]] = deque()  # (give back at ns, reservation): cut off, engine not yet told
        self._ended_ids: set[str] = set()  # reservations that only live on as tails
        self._arrivals = 0
        self._recheck_ns: int | None = None  # when to look again whether progress made room for the head
        # What was shown to suffice when the last one was let in covers every course from then on, so it still does. The
        # same sum made later lets everybody be out of step once more, from where they are seen to be by then.
        # Who is no longer watched goes on in step: an engine queues its tokens and does not wait for readers.
        self._shown: Blocks | None = None
        self._told_free: tuple[int, Blocks] | None = None  # (valid until, free blocks), for what refusals tell
        self._handlers: dict[type, Callable[..., list[Command]]] = {
            Arrived: self._arrived,
            Progressed: self._progressed,
            PaceLost: self._pace_lost,
            Ended: self._ended,
            CapacityChanged: self._capacity_changed,
            BackendChanged: self._backend_changed,
            DrainStarted: self._drain_started,
            Tick: self._tick,
        }

    def handle(self, event: Event, now_ns: int) -> list[Command]:
        """Take in one event; returns what the driver has to do, in order.

        Raises AccountingError, with nothing changed, for an event about a request that does not live.
        """
        return self._handlers[type(event)](event, now_ns)

    @property
    def next_wake_ns(self) -> int | None:
        """When to push a Tick, if nothing else happens before; None if never."""
        wakes = [wake for wake in (self.queue.next_deadline_ns(), self._recheck_ns) if wake is not None]
        if self._tails:
            wakes.append(self._tails[0][0])
        return min(wakes) if wakes else None

    @property
    def max_context(self) -> Tokens:
        """Most tokens of prompt and output together, per sequence: what is configured, what the engine told, or what
        the pool can hold; the least of those that are known."""
        capacity = self.ledger.layout.largest_length(self.ledger.capacity_blocks)
        cap = self._context_cap
        return capacity if cap is None else min(cap, capacity)

    @property
    def skew_steps(self) -> int:
        """How far sequences may be out of step with one another: outstanding prefill, and reports under way."""
        return self._skew_with(0)

    def promised_blocks(self) -> Blocks:
        """Blocks that all promises need at their worst common moment: never less than the engine can come to hold.

        At most the capacity, unless the pool shrank, its layout changed, or sequences turned out to be further out of
        step than was thought when they were let in; then nobody is let in until it fits again.
        """
        anew = promised_blocks(self.config.policy, self.ledger, self.skew_steps)
        return anew if self._shown is None else min(anew, self._shown)

    def promised_by_tenant(self) -> dict[str, Blocks]:
        """The same, by tenant; the sum is `promised_blocks`."""
        by_tenant = promised_by_tenant(self.config.policy, self.ledger, self.skew_steps)
        return shared_out(by_tenant, self.promised_blocks())

    def free_blocks(self) -> Blocks:
        """Blocks that are not promised."""
        return Blocks(max(0, self.ledger.capacity_blocks - self.promised_blocks()))

    # Arrivals

    def _arrived(self, event: Arrived, now_ns: int) -> list[Command]:
        if event.request_id in self.queue or self.ledger.get(event.request_id) is not None:
            raise AccountingError(f"request {event.request_id!r} already lives", fix="use a fresh id per request")
        # What is due comes first; an idle gate has nothing due.
        commands = self._tick(_TICK, now_ns) if self._tails or self.queue else []
        if self.draining:
            return [*commands, self._reject(event, Refusal.DRAINING, now_ns, retry_after_ns=_DOWN_RETRY_NS)]
        if not self.backend_up:
            return [*commands, self._reject(event, Refusal.NO_BACKEND, now_ns, retry_after_ns=_DOWN_RETRY_NS)]
        resolved = self._resolve(event)
        if isinstance(resolved, Refusal):
            return [*commands, self._reject(event, resolved, now_ns, retry_after_ns=0)]
        if event.deadline_ns is not None and event.deadline_ns <= now_ns:
            wait_ns = self._room_expected_in(event, resolved[0], now_ns)
            return [*commands, self._reject(event, Refusal.DEADLINE, now_ns, retry_after_ns=wait_ns)]
        footprint, peak_blocks = resolved
        promise = None
        if self.queue.place_for(event.priority) == 1:
            promise = self._promise_with(event, footprint, peak_blocks)
        if promise is not None:
            commands.append(self._forward(event, footprint, peak_blocks, promise, now_ns, waited_ns=0))
        else:
            commands.append(self._park(event, footprint, peak_blocks, now_ns))
        return commands

    def _resolve(self, event: Arrived) -> tuple[Footprint, Blocks] | Refusal:
        """The lengths to promise, clamped to what can be served at all, and their peak; or why that is impossible."""
        if event.sequences * len(event.prompts) > self.config.max_num_seqs:
            return Refusal.TOO_MANY_SEQUENCES
        asked = event.max_new_tokens if event.max_new_tokens is not None else event.default_new_tokens
        prompts = event.prompts
        cap = self._context_cap
        if cap is not None:
            if not event.exact:
                # The engine holds no request to more than its window, so a bound is worth at most what that leaves
                # beside the asked tokens; taking it at its word would refuse prompts that fit.
                asked = Tokens(min(asked, cap - 1))
                prompts = tuple(Tokens(min(prompt, cap - asked)) for prompt in prompts)
            room = cap - max(prompts)
            if room < 1:
                return Refusal.CONTEXT_EXCEEDED
            if asked > room:
                asked = Tokens(room)
        footprint = Footprint(prompts, asked, event.sequences)
        peak_blocks = footprint.peak_blocks(self.ledger.layout)
        if peak_blocks <= self.ledger.capacity_blocks:
            return footprint, peak_blocks
        # No limit named: ours shrinks to the pool. A limit that the client named is not cut below the context cap.
        largest = self._largest_new_tokens(event)
        if event.max_new_tokens is None and largest >= 1:
            footprint = Footprint(prompts, largest, event.sequences)
            return footprint, footprint.peak_blocks(self.ledger.layout)
        return Refusal.NEVER_FITS

    def _promise_with(self, event: Arrived, footprint: Footprint, peak_blocks: Blocks) -> Blocks | None:
        """What all promises need together with this one; None if there is no room for it."""
        if self.ledger.sequences + footprint.total_sequences > self.config.max_num_seqs:
            return None
        return promise_with(
            self.config.policy,
            self.ledger,
            footprint,
            peak_blocks,
            paced=_can_be_watched(event, footprint),
            skew_steps=self._skew_with(sum(footprint.prompts)),
        )

    def _forward(
        self, event: Arrived, footprint: Footprint, peak_blocks: Blocks, promise: Blocks, now_ns: int, waited_ns: int
    ) -> Forward:
        self._told_free = None
        self._shown = promise
        made = self.ledger.reserve(
            event.request_id,
            event.tenant,
            footprint,
            paced=_can_be_watched(event, footprint),
            now_ns=now_ns,
            peak_blocks=peak_blocks,
        )
        return Forward(event.request_id, made.peak_blocks, footprint.max_new_tokens, waited_ns)

    def _park(self, event: Arrived, footprint: Footprint, peak_blocks: Blocks, now_ns: int) -> Command:
        config = self.config
        queue_tokens = config.queue_tokens
        if queue_tokens is None:
            queue_tokens = Tokens(2 * self.ledger.layout.largest_length(self.ledger.capacity_blocks))
        deadline_ns = now_ns + config.queue_ns
        if event.deadline_ns is not None:
            deadline_ns = min(deadline_ns, event.deadline_ns)
        refusal = None
        if min(config.queue_requests, config.queue_ns, queue_tokens) <= 0:
            refusal = Refusal.POOL_FULL
        elif len(self.queue) >= config.queue_requests or (
            # A lone request may wait however large it is: it fits the pool, so it will be served.
            len(self.queue) > 0 and self.queue.tokens + footprint.total_tokens > queue_tokens
        ):
            refusal = Refusal.QUEUE_FULL
        if refusal is not None:
            return self._reject(event, refusal, now_ns, retry_after_ns=self._room_expected_in(event, footprint, now_ns))
        self._arrivals += 1
        waiting = Waiting(event, footprint, peak_blocks, now_ns, deadline_ns, (event.priority, self._arrivals))
        return Parked(event.request_id, self.queue.push(waiting))

    # Endings

    def _ended(self, event: Ended, now_ns: int) -> list[Command]:
        head = self.queue.head()
        if self.queue.remove(event.request_id) is not None:
            was_head = head is not None and head.arrived.request_id == event.request_id
            return self._tick(_TICK, now_ns, look=was_head)  # without it, the next one may fit
        living = self.ledger.get(event.request_id)
        if living is None or event.request_id in self._ended_ids:
            raise AccountingError(f"request {event.request_id!r} does not live (ended twice?)")
        if event.output_tokens is not None:
            self._learn(living, event.output_tokens, now_ns)
        if event.engine_done or self.config.abort_tail_ns <= 0:
            self.ledger.end(event.request_id)
        else:
            self.ledger.lose_pace(event.request_id)
            self._ended_ids.add(event.request_id)
            self._tails.append((now_ns + self.config.abort_tail_ns, event.request_id))
        self._told_free = None
        return self._tick(_TICK, now_ns, look=True)

    def _learn(self, living: Reservation, output_tokens: int, now_ns: int) -> None:
        self.expectation.learn(living, output_tokens // living.footprint.total_sequences, now_ns)
        if living.paced and output_tokens <= living.footprint.max_new_tokens:  # an engine that lies teaches nothing
            # The engine put several tokens into one event: that far our view of a sequence can be behind it.
            behind = output_tokens - living.seen_tokens
            if behind > self._lag_steps:
                self._lag_steps = behind
                self._shown = None

    def _progressed(self, event: Progressed, now_ns: int) -> list[Command]:
        self.ledger.progress(event.request_id, event.new_tokens, now_ns)
        if self._recheck_ns is None and self.queue and self.config.policy is not Policy.WORST_CASE:
            self._recheck_ns = now_ns + RECHECK_NS
        return []

    def _pace_lost(self, event: PaceLost, now_ns: int) -> list[Command]:
        self.ledger.lose_pace(event.request_id)
        self._told_free = None
        return []

    # The world changes

    def _capacity_changed(self, event: CapacityChanged, now_ns: int) -> list[Command]:
        self.ledger.resize(event.layout, event.usable_blocks)
        self._shown = None
        self.engine_context = event.max_context
        self._context_cap = self._smallest_cap()
        self._told_free = None
        commands: list[Command] = []
        for waiting in list(self.queue):  # who waits was told no lengths yet, so they may be resolved anew
            resolved = self._resolve(waiting.arrived)
            if isinstance(resolved, Refusal):
                commands.append(self._throw_out(waiting, resolved, now_ns, retry_after_ns=0))
            else:
                self.queue.replace(waiting, *resolved)
        return commands + self._tick(_TICK, now_ns, look=True)

    def _smallest_cap(self) -> Tokens | None:
        """The cap that was set or told; None if the pool is the only bound."""
        caps = [cap for cap in (self.config.max_context, self.engine_context) if cap is not None]
        return min(caps) if caps else None

    def _backend_changed(self, event: BackendChanged, now_ns: int) -> list[Command]:
        self.backend_up = event.up
        if event.up:
            return self._tick(_TICK, now_ns, look=True)
        return [
            self._throw_out(waiting, Refusal.NO_BACKEND, now_ns, retry_after_ns=_DOWN_RETRY_NS)
            for waiting in list(self.queue)
        ]

    def _drain_started(self, event: DrainStarted, now_ns: int) -> list[Command]:
        self.draining = True
        return self._tick(_TICK, now_ns)

    def _tick(self, event: Tick, now_ns: int, *, look: bool = False) -> list[Command]:
        """Do what is due. The head of the queue is only looked at when room may have come: arrivals make none."""
        while self._tails and self._tails[0][0] <= now_ns:
            _, request_id = self._tails.popleft()
            self._ended_ids.discard(request_id)
            self.ledger.end(request_id)
            self._told_free = None
            look = True
        if self._recheck_ns is not None and self._recheck_ns <= now_ns:
            self._recheck_ns = None
            look = True
        commands: list[Command] = [
            self._reject(
                waiting.arrived,
                Refusal.DEADLINE,
                now_ns,
                retry_after_ns=self._room_expected_in(waiting.arrived, waiting.footprint, now_ns),
                waited_ns=now_ns - waiting.since_ns,
            )
            for waiting in self.queue.expired(now_ns)
        ]
        if look or commands:  # an expired head may have held up others
            commands += self._admit(now_ns)
        return commands

    def _admit(self, now_ns: int) -> list[Command]:
        commands: list[Command] = []
        while (head := self.queue.head()) is not None and self.backend_up:
            arrived, footprint, peak_blocks = head.arrived, head.footprint, head.peak_blocks
            promise = self._promise_with(arrived, footprint, peak_blocks)
            if promise is None:
                break
            self.queue.remove(arrived.request_id)
            commands.append(self._forward(arrived, footprint, peak_blocks, promise, now_ns, now_ns - head.since_ns))
        return commands

    # Refusals

    def _throw_out(self, waiting: Waiting, refusal: Refusal, now_ns: int, retry_after_ns: int) -> Reject:
        self.queue.remove(waiting.arrived.request_id)
        waited_ns = now_ns - waiting.since_ns
        return self._reject(waiting.arrived, refusal, now_ns, retry_after_ns=retry_after_ns, waited_ns=waited_ns)

    def _reject(
        self, event: Arrived, refusal: Refusal, now_ns: int, *, retry_after_ns: int, waited_ns: int = 0
    ) -> Reject:
        asked = event.max_new_tokens if event.max_new_tokens is not None else event.default_new_tokens
        cap = self._context_cap
        if cap is not None:
            asked = Tokens(max(1, min(asked, cap - max(event.prompts))))
        needed = Footprint(event.prompts, asked, event.sequences).peak_blocks(self.ledger.layout)
        return Reject(
            request_id=event.request_id,
            refusal=refusal,
            prompt_tokens=Tokens(sum(event.prompts)),
            max_new_tokens=event.max_new_tokens,
            needed_blocks=needed,
            free_blocks=self._free_to_tell(now_ns),
            capacity_blocks=self.ledger.capacity_blocks,
            max_context=self.max_context,
            largest_new_tokens=self._largest_new_tokens(event),
            position=self.queue.place_for(event.priority),
            retry_after_ns=retry_after_ns,
            sequences=event.sequences * len(event.prompts),
            running_sequences=self.ledger.sequences,
            max_num_seqs=self.config.max_num_seqs,
            waited_ns=waited_ns,
        )

    def _largest_new_tokens(self, event: Arrived) -> Tokens:
        room = max(0, self.max_context - max(event.prompts))
        by_pool = largest_new_tokens(self.ledger.layout, event.prompts, event.sequences, self.ledger.capacity_blocks)
        return min(Tokens(room), by_pool)

    def _room_expected_in(self, event: Arrived, footprint: Footprint, now_ns: int) -> int:
        """Time until everybody before it and then itself has been let in; within [1 s, 120 s]."""
        blocks_before, sequences_before = self.queue.before(event.priority)
        needed = blocks_before + footprint.peak_blocks(self.ledger.layout)
        sequences = sequences_before + footprint.total_sequences
        wait_ns = self.expectation.wait_ns(
            self.ledger,
            missing_blocks=needed - self._free_to_tell(now_ns),
            missing_sequences=sequences - (self.config.max_num_seqs - self.ledger.sequences),
            now_ns=now_ns,
        )
        return min(max(wait_ns, _MIN_RETRY_NS), MAX_WAIT_NS)

    def _free_to_tell(self, now_ns: int) -> Blocks:
        """`free_blocks`, at most RECHECK_NS old as to progress: a storm of refusals must be cheap."""
        if self._told_free is None or self._told_free[0] <= now_ns:
            self._told_free = (now_ns + RECHECK_NS, self.free_blocks())
        return self._told_free[1]

    def _skew_with(self, more_prompt_tokens: int) -> int:
        waiting_for_prefill = self.ledger.unseen_prompt_tokens + more_prompt_tokens
        return -(-waiting_for_prefill // self.config.prefill_tokens_per_step) + self._lag_steps


def _can_be_watched(event: Arrived, footprint: Footprint) -> bool:
    """Whether its course is known: its tokens are reported, its prompt is counted, and it is one sequence."""
    return event.paced and event.exact and footprint.total_sequences == 1


def outcome_of(refusal: Refusal) -> Outcome:
    """The outcome under which a refused request is counted."""
    return Outcome.EXPIRED if refusal is Refusal.DEADLINE else Outcome.REFUSED
