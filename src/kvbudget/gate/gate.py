"""Decides of every request whether it goes to the engine now, waits, or is refused, and takes its promise back.

A state machine without clock or I/O: `handle(event, now_ns) -> commands`. Rules, in the order in which they apply:

1. While the gate drains or the engine is down, everybody is refused.
2. Whoever can never be served is refused (`gate.resolve`): more sequences than the engine runs, no room under the
   context cap, or a peak above the whole pool. `max_new_tokens` that is missing or over the cap is clamped.
3. Whose deadline has passed, or whose tenant is at a limit of its own (`gate.limits`), is refused.
4. Whoever was refused before and comes back at the time that it was told is tried at once (`gate.returns`), otherwise
   whoever comes before all that wait: nobody of its class or a more urgent one does, or its tenant had less service
   than those of them that the pool has no room for; or whoever puts off none of those (`gate.overtaking`). But not who
   would wait too long for the prompts ahead of it.
5. Whoever is tried is forwarded if its tenant may go now (`gate.fairness`) and it fits by the policy, beside what has
   to stay free for other tenants and for those who were told to come now (`gate.promises`). Its promise lives in the
   ledger until `Ended`.
6. Everybody else waits, until room comes back or the deadline passes, unless (`gate.parking`): queueing is switched
   off; under `learned`, the wait would be longer than is worth it; or the queue is at its bound of requests or tokens.
   Then the youngest of a tenant that has more of the queue makes place, if there is one.
7. Who waits is tried when room may have come, by rule 5: by class, with one turn in ten for a less urgent one that has
   waited (`gate.turns`), and in a class the tenant that had least service. Behind the first that lacks room a few are
   tried who do not put it off.

Whoever is refused for now is told when to come back (`gate.rejections`). A tenant's own go in order of arrival within
a class, but for those who were told to come now, and smaller ones before one that lacks room (`gate.overtaking`); an
empty pool keeps nobody waiting; nobody waits past the deadline.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from kvbudget.errors import AccountingError
from kvbudget.gate.commands import Command, Forward, Parked, Reject
from kvbudget.gate.config import GateConfig
from kvbudget.gate.events import (
    Arrived,
    BackendChanged,
    CacheChanged,
    CapacityChanged,
    DrainStarted,
    Ended,
    EngineBusy,
    Event,
    PaceLost,
    PoolHeld,
    Preempted,
    Progressed,
    RoomTaken,
    Tick,
)
from kvbudget.gate.expectation import Expectation
from kvbudget.gate.fairness import Fairness
from kvbudget.gate.learned import LearnedPolicy
from kvbudget.gate.look import first_that_fits
from kvbudget.gate.margin import HIGHEST
from kvbudget.gate.overtaking import Overtaking
from kvbudget.gate.parking import NoPlace, Parking
from kvbudget.gate.policies import Policy
from kvbudget.gate.promises import RECHECK_NS, Promises
from kvbudget.gate.queue import Queue, Waiting
from kvbudget.gate.refusals import Outcome, Refusal, outcome_of
from kvbudget.gate.rejections import Rejections
from kvbudget.gate.resolve import Resolver
from kvbudget.gate.returns import Booking, Returns
from kvbudget.pool.footprint import Footprint
from kvbudget.pool.groups import Layout
from kvbudget.pool.ledger import Ledger, Reservation
from kvbudget.units import Blocks, Tokens

__all__ = ["RECHECK_NS", "Gate", "GateConfig", "outcome_of"]

_TICK: Final = Tick()
_DOWN_RETRY_NS: Final = 5_000_000_000  # a restarting engine takes longer than that, but it may be only a blink


class Gate:
    """The admission state machine over one pool. All state changes happen inside `handle`, which never waits."""

    def __init__(self, config: GateConfig, layout: Layout, usable_blocks: Blocks) -> None:
        self.config = config
        self._learns = config.policy is Policy.LEARNED
        self.ledger = Ledger(layout, usable_blocks, Blocks(config.margin_blocks), config.sharing, config.key_blocks)
        self.resolver = Resolver(config, self.ledger)
        self.expectation = Expectation()
        self.learned = LearnedPolicy(layout, config.epsilon, config.enough_answers)
        self.fairness = Fairness(config, self.ledger, self.learned, self.expectation)
        self.queue = Queue(turns=self.fairness.turns)
        self.returns = Returns()
        self.promises = Promises(config, self.ledger, self.learned, self.fairness, self.returns)
        self.overtaking = Overtaking(config, self.ledger, self.queue, self.promises, self.learned)
        self.parking = Parking(config, self.ledger, self.queue, self.promises, self.learned, self.fairness)
        self.rejections = Rejections(
            config, self.ledger, self.queue, self.resolver, self.promises, self.parking, self.learned, self.expectation,
            self.returns,
        )  # fmt: skip
        self.trust = self.promises.trust
        self.cached = self.promises.cached
        self.draining = False
        self.backend_up = True
        self._tails: deque[tuple[int, str]] = deque()  # (give back at ns, reservation): cut off, engine not yet told
        self._ended_ids: set[str] = set()  # reservations that only live on as tails
        self.busy_until_ns = 0  # the engine takes nobody before
        self._now_ns = 0
        self._recheck_ns: int | None = None  # when to look again whether progress made room for the head
        self._handlers: dict[type, Callable[..., list[Command]]] = {
            Arrived: self._arrived,
            Progressed: self._progressed,
            PaceLost: self._pace_lost,
            Ended: self._ended,
            Preempted: self._preempted,
            PoolHeld: self._pool_held,
            RoomTaken: self._room_taken,
            EngineBusy: self._engine_busy,
            CacheChanged: self._cache_changed,
            CapacityChanged: self._capacity_changed,
            BackendChanged: self._backend_changed,
            DrainStarted: self._drain_started,
            Tick: self._tick,
        }

    def configure(self, config: GateConfig) -> None:
        """Decide by other limits from now on. Push CapacityChanged after it: who waits is judged anew by that.

        `sharing` and `key_blocks` stay what they were; so does `fair`.
        """
        self.config = config
        self._learns = config.policy is Policy.LEARNED
        self.resolver.configure(config)
        self.learned.configure(config.epsilon, config.enough_answers)
        self.fairness.configure(config)
        self.promises.configure(config)
        self.overtaking.configure(config)
        self.parking.configure(config)
        self.rejections.configure(config)

    def handle(self, event: Event, now_ns: int) -> list[Command]:
        """Take in one event; returns what the driver has to do, in order.

        Raises AccountingError, with nothing changed, for an event about a request that does not live.
        """
        self._now_ns = now_ns
        return self._handlers[type(event)](event, now_ns)

    @property
    def next_wake_ns(self) -> int | None:
        """When to push a Tick, if nothing else happens before; None if never."""
        if not self.queue and not self._tails and self._recheck_ns is None:
            return None  # as nearly always
        wake_ns = self.queue.next_deadline_ns()
        recheck_ns = self._recheck_ns
        if recheck_ns is not None and (wake_ns is None or recheck_ns < wake_ns):
            wake_ns = recheck_ns
        if self._tails and (wake_ns is None or self._tails[0][0] < wake_ns):
            wake_ns = self._tails[0][0]
        return wake_ns

    @property
    def waits_for_report(self) -> bool:
        """Whether the next report of tokens would make it look at those who wait, RECHECK_NS later."""
        return self._recheck_ns is None and bool(self.queue) and self.config.policy is not Policy.WORST_CASE

    @property
    def max_context(self) -> Tokens:
        """Most tokens of prompt and output together, per sequence: what is configured, what the engine told, or what
        the pool can hold; the least of those that are known."""
        return self.resolver.max_context

    @property
    def engine_context(self) -> Tokens | None:
        """What the engine itself told of that; None: nothing."""
        return self.resolver.engine_context

    @property
    def skew_steps(self) -> int:
        """How far sequences may be out of step with one another: outstanding prefill, and reports under way."""
        return self.promises.skew_steps

    def promised_blocks(self) -> Blocks:
        """Blocks that all promises need at their worst common moment (`Promises.blocks`)."""
        return self.promises.blocks(self._now_ns)

    def promised_by_tenant(self) -> dict[str, Blocks]:
        """The same, by tenant; the sum is `promised_blocks`."""
        return self.promises.by_tenant(self._now_ns)

    def free_blocks(self) -> Blocks:
        """Blocks that are not promised."""
        return self.promises.free_blocks(self._now_ns)

    # It arrives

    def _arrived(self, event: Arrived, now_ns: int) -> list[Command]:
        if event.request_id in self.queue or self.ledger.get(event.request_id) is not None:
            raise AccountingError(f"request {event.request_id!r} already lives", fix="use a fresh id per request")
        # What is due comes first; an idle gate has nothing due.
        commands = self._tick(_TICK, now_ns) if self._tails or self.queue else []
        if self.draining:
            return [*commands, self._reject(event, Refusal.DRAINING, now_ns, retry_after_ns=_DOWN_RETRY_NS)]
        if not self.backend_up:
            return [*commands, self._reject(event, Refusal.NO_BACKEND, now_ns, retry_after_ns=_DOWN_RETRY_NS)]
        resolved = self.resolver.resolve(event)
        if isinstance(resolved, Refusal):
            return [*commands, self._reject(event, resolved, now_ns, retry_after_ns=0)]
        footprint, peak_blocks = resolved
        if event.deadline_ns is not None and event.deadline_ns <= now_ns:
            return [*commands, self._reject_for_now(event, footprint, Refusal.DEADLINE, now_ns)]
        at_limit = self.fairness.refusal(event, footprint, peak_blocks, now_ns)
        if at_limit is not None:
            return [*commands, self._reject(event, at_limit[0], now_ns, retry_after_ns=at_limit[1])]
        self.fairness.arrived(event, footprint, now_ns)
        booking = self.returns.claim(event, now_ns) if self.config.policy is Policy.LEARNED else None
        promised = booking is not None and booking.promised
        needed: Blocks | None = None
        first = self.comes_first(event, now_ns)
        lacks_room = False
        tried = booking is not None or first or self.overtaking.worth_trying(footprint, peak_blocks, now_ns)
        if tried and now_ns >= self.busy_until_ns:
            if promised:
                allowed, kept = self.fairness.allows_booked(event, peak_blocks, now_ns)
            else:
                allowed, kept = self.fairness.allows(event, footprint, peak_blocks, event.priority, now_ns)
            if allowed:
                needed = self.promises.needed_with(event, footprint, peak_blocks, kept, now_ns, booked=promised)
                lacks_room = first and needed is None and kept is None
                if booking is None and not first:
                    needed = self._behind(event, footprint, peak_blocks, needed, now_ns)
        if self._learns:
            self.returns.tried(event, booking, peak_blocks, now_ns, at_once=needed is not None)
        if needed is not None:
            commands.append(self._forward(event, footprint, peak_blocks, needed, now_ns, waited_ns=0))
        else:
            commands += self._park(event, footprint, peak_blocks, booking, now_ns, lacks_room=lacks_room)
        return commands

    def needed_now(
        self, event: Arrived, footprint: Footprint, peak_blocks: Blocks, now_ns: int, *, booked: bool
    ) -> Blocks | None:
        """What all promises need together with this one, whose turn it is; None if it cannot go now."""
        if now_ns < self.busy_until_ns:
            return None
        allowed, kept = self.fairness.allows(event, footprint, peak_blocks, event.priority, now_ns)
        if not allowed:
            return None
        return self.promises.needed_with(event, footprint, peak_blocks, kept, now_ns, booked=booked)

    def comes_first(self, event: Arrived, now_ns: int) -> bool:
        """Whether it may be tried before all that wait, and would get its first token in time."""
        first = self.queue.place_for(event.priority) == 1 or self.fairness.may_overtake(event)
        return first and not self.parking.is_late(event, self.parking.backlog_ns(), now_ns)

    def _behind(
        self, event: Arrived, footprint: Footprint, peak_blocks: Blocks, needed: Blocks | None, now_ns: int
    ) -> Blocks | None:
        """`needed` if it may go before the one that lacks room, and would get its first token in time."""
        on_time = not self.parking.is_late(event, self.parking.backlog_ns(), now_ns)
        if needed is not None and on_time and self.overtaking.may_pass(event, footprint, now_ns):
            return needed
        self.overtaking.stays(peak_blocks)
        self.promises.withdraw(event)
        return None

    # It waits

    def _park(
        self,
        event: Arrived,
        footprint: Footprint,
        peak_blocks: Blocks,
        booking: Booking | None,
        now_ns: int,
        *,
        lacks_room: bool,
    ) -> list[Command]:
        place = self.parking.place(event, footprint, peak_blocks, now_ns, booked=booking is not None)
        if isinstance(place, NoPlace):
            refused = self._reject_for_now(event, footprint, place.refusal, now_ns)
            if place.refusal is Refusal.QUEUE_FULL:
                refused = refused._replace(bound=place.bound, limit=place.limit)
            return [refused]
        commands: list[Command] = []
        last = place.displaced
        if last is not None:
            told_ns = self.rejections.retry_after_ns(last.arrived, last.footprint, now_ns)
            commands.append(self._throw_out(last, Refusal.TENANT_SHARE, now_ns, told_ns))
        number = self.queue.next_number() if booking is None else booking.number
        waiting = Waiting(
            event, footprint, peak_blocks, now_ns, place.deadline_ns, (event.priority, number), place.demand,
            place.expected_ns, booking is not None and booking.promised,
        )  # fmt: skip
        commands.append(Parked(event.request_id, self.queue.push(waiting)))
        if lacks_room and self.overtaking.head is None and self.fairness.lacks_room(event, event.priority, None):
            self.overtaking.lacks_room(waiting)
        return commands

    # It is forwarded

    def _forward(
        self, event: Arrived, footprint: Footprint, peak_blocks: Blocks, needed: Blocks, now_ns: int, waited_ns: int
    ) -> Forward:
        made = self.promises.make(event, footprint, peak_blocks, needed, now_ns)
        if self.config.policy is Policy.LEARNED:
            self.returns.let_in(event, peak_blocks, now_ns)
            self.learned.forwarded(event, made, self.ledger.unseen_prompt_tokens, now_ns)
        self.fairness.forwarded(event, made, now_ns)
        return Forward(event.request_id, made.net_blocks, footprint.max_new_tokens, waited_ns)

    # It goes on

    def _progressed(self, event: Progressed, now_ns: int) -> list[Command]:
        return self.progressed(event.request_id, event.new_tokens, now_ns, event.cached_tokens)

    def progressed(
        self, request_id: str, new_tokens: int, now_ns: int, cached_tokens: Tokens | None = None
    ) -> list[Command]:
        """`handle` of a Progressed that need not be made first: nothing else happens as often."""
        self._now_ns = now_ns
        living = self.ledger.living(request_id)
        first = living.first_seen_ns is None
        self.ledger.advance(living, new_tokens, now_ns)
        if self._learns:
            self.learned.progressed(living, new_tokens, now_ns)
        less = cached_tokens is not None and self.promises.found(request_id, cached_tokens)
        if self._recheck_ns is None and self.queue and (less or self.config.policy is not Policy.WORST_CASE):
            self._recheck_ns = now_ns + RECHECK_NS
        look = first and self.fairness.first_token(request_id, now_ns)
        return self._tick(_TICK, now_ns, look=True) if look else []

    def _pace_lost(self, event: PaceLost, now_ns: int) -> list[Command]:
        self.learned.pace_lost(self.promises.lose_pace(event.request_id))
        return []

    # It ends

    def _ended(self, event: Ended, now_ns: int) -> list[Command]:
        queue = self.queue
        head = queue.head() if queue else None
        if head is not None and queue.remove(event.request_id) is not None:
            self.fairness.over(event.request_id, 0, now_ns)
            was_head = head.arrived.request_id == event.request_id
            return self._tick(_TICK, now_ns, look=was_head or self.fairness.binds)  # without it, the next one may fit
        living = self.ledger.get(event.request_id)
        if living is None or event.request_id in self._ended_ids:
            raise AccountingError(f"request {event.request_id!r} does not live (ended twice?)")
        if event.cached_tokens is not None:
            self.promises.found(event.request_id, event.cached_tokens)
        self.trust.ended()
        self._learn(living, event, now_ns)
        self.fairness.ended(living, event.output_tokens, now_ns)
        if event.engine_done or self.config.abort_tail_ns <= 0:
            self.promises.take_back(event.request_id)
            self.learned.gone(event.request_id)
            self.fairness.gone(living, event.output_tokens, now_ns)
        else:
            self.promises.lose_pace(event.request_id)
            self._ended_ids.add(event.request_id)
            self._tails.append((now_ns + self.config.abort_tail_ns, event.request_id))
        if not queue and not self._tails and self._recheck_ns is None:
            return []  # nobody waits, and nothing is due
        return self._tick(_TICK, now_ns, look=True)

    def _learn(self, living: Reservation, event: Ended, now_ns: int) -> None:
        per_sequence: int | None = None
        if event.output_tokens is not None:
            per_sequence = event.output_tokens // living.footprint.total_sequences
            self.expectation.learn(living, per_sequence, now_ns)
            if living.paced and event.output_tokens <= living.footprint.max_new_tokens:  # who lies teaches nothing
                # The engine put several tokens into one event.
                self.promises.was_behind(event.output_tokens - living.seen_tokens)
        if self.config.policy is Policy.LEARNED:
            of_itself = event.outcome is Outcome.FINISHED and event.engine_done
            self.learned.ended(living, per_sequence, of_itself=of_itself)

    # The engine tells

    def look(self, now_ns: int) -> list[Command]:
        """Try those who wait: something that this gate does not hear of may have made room."""
        return self._tick(_TICK, now_ns, look=True) if self.queue else []

    def end_tails(self, now_ns: int) -> list[Command]:
        """The engine is another process by now: what was cut off holds nothing there any more."""
        self._tails = deque((now_ns, request_id) for _, request_id in self._tails)
        return self._tick(_TICK, now_ns)

    def _preempted(self, event: Preempted, now_ns: int) -> list[Command]:
        was_risked = self.promises.by_lengths and self.learned.margin.added < HIGHEST
        if not was_risked:
            self.promises.overflowed()
        self.learned.overflowed(now_ns)
        return []

    def _pool_held(self, event: PoolHeld, now_ns: int) -> list[Command]:
        if self.config.policy is Policy.LEARNED:
            self.learned.engine_holds(self.ledger, event.blocks, now_ns)
        return []

    def _room_taken(self, event: RoomTaken, now_ns: int) -> list[Command]:
        more_room = self.promises.room_taken(event.blocks)
        return self._tick(_TICK, now_ns, look=more_room and bool(self.queue))

    def _engine_busy(self, event: EngineBusy, now_ns: int) -> list[Command]:
        self.busy_until_ns = event.until_ns
        self._look_at(event.until_ns)
        return []

    def _cache_changed(self, event: CacheChanged, now_ns: int) -> list[Command]:
        if event.cleared:
            self.cached.cleared()
        self.cached.removed(event.removed)
        self.cached.stored(event.stored)
        return []

    # The world changes

    def _capacity_changed(self, event: CapacityChanged, now_ns: int) -> list[Command]:
        key_tokens = self.ledger.key_tokens
        still_holds = event.layout == self.ledger.layout and event.usable_blocks >= self.ledger.usable_blocks
        self.ledger.resize(event.layout, event.usable_blocks)
        keys_are_old = self.ledger.key_tokens != key_tokens
        self.learned.pool_changed(event.layout)
        self.fairness.pool_changed()
        self.promises.pool_changed(still_holds=still_holds)
        self.resolver.engine_told(event.max_context)
        commands: list[Command] = []
        for waiting in list(self.queue):  # who waits was told no lengths yet, so they may be resolved anew
            resolved = self.resolver.resolve(waiting.arrived)
            if not isinstance(resolved, Refusal) and self.fairness.never_fits(waiting.arrived.tenant, resolved[1]):
                resolved = Refusal.TENANT_TOO_LARGE
            if isinstance(resolved, Refusal):
                commands.append(self._throw_out(waiting, resolved, now_ns, retry_after_ns=0))
            else:
                arrived = waiting.arrived._replace(prefix=()) if keys_are_old else waiting.arrived
                self.queue.replace(replace(waiting, arrived=arrived), *resolved)
        return commands + self._tick(_TICK, now_ns, look=True)

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

    # Time passes, room comes back

    def _tick(self, event: Tick, now_ns: int, *, look: bool = False) -> list[Command]:
        """Do what is due. Who waits is only looked at when room may have come: arrivals make none."""
        while self._tails and self._tails[0][0] <= now_ns:
            _, request_id = self._tails.popleft()
            self._ended_ids.discard(request_id)
            self.fairness.gone(self.promises.take_back(request_id), None, now_ns)
            self.learned.gone(request_id)
            look = True
        if self._recheck_ns is not None and self._recheck_ns <= now_ns:
            self._recheck_ns = None
            look = True
        commands: list[Command] = []
        for late in self.queue.expired(now_ns):
            waited_ns = now_ns - late.since_ns
            commands.append(self._reject_for_now(late.arrived, late.footprint, Refusal.DEADLINE, now_ns, waited_ns))
        if look or commands:  # an expired head may have held up others
            commands += self._admit(now_ns)
        return commands

    def _admit(self, now_ns: int) -> list[Command]:
        commands: list[Command] = []
        if now_ns < self.busy_until_ns:
            self._look_at(self.busy_until_ns)
            return []
        while self.queue and self.backend_up:
            full = self._is_still_full(now_ns)
            found = first_that_fits(self.queue, self.fairness, self.promises, self.overtaking, now_ns, full=full)
            if found is None:
                break
            waiting, needed = found
            waited_ns = now_ns - waiting.since_ns
            self.queue.remove(waiting.arrived.request_id)
            self.learned.waited(waiting.expected_ns, waited_ns)
            commands.append(
                self._forward(waiting.arrived, waiting.footprint, waiting.peak_blocks, needed, now_ns, waited_ns)
            )
        again_ns = self.fairness.look_again_ns(now_ns) if self.queue else None
        if again_ns is not None:
            self._look_at(again_ns)
        return commands

    def _look_at(self, when_ns: int) -> None:
        """Look again then whether somebody who waits may go, or sooner."""
        if self._recheck_ns is None or when_ns < self._recheck_ns:
            self._recheck_ns = when_ns

    def _is_still_full(self, now_ns: int) -> bool:
        """Where one tenant and class are alone a look ends with the first of those that wait; whether it is clear
        without one that it would not fit."""
        fairness = self.fairness
        if not self._learns or fairness.binds or fairness.limits is not None or not self.config.fair:
            return False
        head = self.queue.head()
        return head is not None and self.promises.is_still_full(head.arrived, now_ns)

    # It is refused

    def refuse(self, event: Arrived, refusal: Refusal, now_ns: int, *, waited_ns: int = 0) -> Reject:
        """The answer to one who is not at this gate and may come to none, as no engine takes it now."""
        retry_ns = 0 if refusal is Refusal.UNKNOWN_MODEL else _DOWN_RETRY_NS
        return self.rejections.reject(event, refusal, now_ns, retry_after_ns=retry_ns, waited_ns=waited_ns)

    def _throw_out(self, waiting: Waiting, refusal: Refusal, now_ns: int, retry_after_ns: int) -> Reject:
        self.queue.remove(waiting.arrived.request_id)
        waited_ns = now_ns - waiting.since_ns
        return self._reject(waiting.arrived, refusal, now_ns, retry_after_ns=retry_after_ns, waited_ns=waited_ns)

    def _reject_for_now(
        self, event: Arrived, footprint: Footprint, refusal: Refusal, now_ns: int, waited_ns: int = 0
    ) -> Reject:
        """It may come back when room is expected."""
        told_ns = self.rejections.retry_after_ns(event, footprint, now_ns)
        return self._reject(event, refusal, now_ns, retry_after_ns=told_ns, waited_ns=waited_ns)

    def _reject(
        self, event: Arrived, refusal: Refusal, now_ns: int, *, retry_after_ns: int, waited_ns: int = 0
    ) -> Reject:
        self.fairness.over(event.request_id, 0, now_ns)
        return self.rejections.reject(event, refusal, now_ns, retry_after_ns=retry_after_ns, waited_ns=waited_ns)
