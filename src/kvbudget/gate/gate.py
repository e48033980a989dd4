"""Decides of every request whether it goes to the engine now, waits, or is refused, and takes its promise back.

A state machine without clock or I/O: `handle(event, now_ns) -> commands`. Rules, in the order in which they apply:

1. While the gate drains or the engine is down, everybody is refused.
2. Whoever can never be served is refused (`gate.resolve`): more sequences than the engine runs, no room under the
   context cap, or a peak above the whole pool. `max_new_tokens` that is missing or over the cap is clamped.
3. Whose deadline has passed, or whose tenant is at a limit of its own (`gate.tenants.limits`), is refused.
4. Whoever was refused before and comes back at the time that it was told is tried at once (`gate.refusing.returns`),
   otherwise whoever comes before all that wait: nobody of its class or a more urgent one does, or its tenant had less
   service than those of them that the pool has no room for; or whoever puts off none of those
   (`gate.waiting.overtaking`). But not who would wait too long for the prompts ahead of it.
5. Whoever is tried is forwarded if its tenant may go now (`gate.tenants.fairness`) and it fits by the policy, beside
   what has to stay free for other tenants and for those who were told to come now (`gate.promises`). Its promise lives
   in the ledger until `Ended`.
6. Everybody else waits, until room comes back or the deadline passes, unless (`gate.waiting.parking`): queueing is
   switched off; under `learned`, the wait would be longer than is worth it; or the queue is at its bound of requests or
   tokens. Then the youngest of a tenant that has more of the queue makes place, if there is one.
7. Who waits is tried when room may have come, by rule 5: by class, with one turn in ten for a less urgent one that has
   waited (`gate.tenants.turns`), and in a class the tenant that had least service. Behind the first that lacks room a
   few are tried who do not put it off.

Whoever is refused for now is told when to come back (`gate.refusing.rejections`). A tenant's own go in order of arrival
within a class, but for those who were told to come now, and smaller ones before one that lacks room
(`gate.waiting.overtaking`); an empty pool keeps nobody waiting; nobody waits past the deadline.
"""

from collections.abc import Callable
from typing import Final

from kvbudget.errors import AccountingError
from kvbudget.gate.commands import Command, Forward, Parked, Reject
from kvbudget.gate.config import GateConfig
from kvbudget.gate.engine_reports import EngineReports
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
    SliceChanged,
    Tick,
)
from kvbudget.gate.learning.learned import LearnedPolicy
from kvbudget.gate.policies import Policy
from kvbudget.gate.promises import RECHECK_NS, Promises
from kvbudget.gate.refusing.refusals import Refusal, outcome_of
from kvbudget.gate.refusing.rejections import LEDGER_LOST_RETRY_NS, Rejections
from kvbudget.gate.refusing.returns import Booking, Returns
from kvbudget.gate.resolve import Resolver
from kvbudget.gate.tails import Tails
from kvbudget.gate.tenants.fairness import Fairness
from kvbudget.gate.tenants.settings import account_name
from kvbudget.gate.waiting.expectation import Expectation
from kvbudget.gate.waiting.last_look import LastLook
from kvbudget.gate.waiting.look import first_that_fits
from kvbudget.gate.waiting.next_look import NextLook
from kvbudget.gate.waiting.overtaking import Overtaking
from kvbudget.gate.waiting.parking import NoPlace, Parking
from kvbudget.gate.waiting.queue import Queue, Waiting
from kvbudget.gate.waiting.trial import Trial
from kvbudget.pool.footprint import Footprint
from kvbudget.pool.groups import Layout
from kvbudget.pool.ledger import Ledger
from kvbudget.units import Blocks, Tokens

__all__ = ["RECHECK_NS", "Gate", "GateConfig", "outcome_of"]

_FOR_EVER_NS: Final = 1 << 61  # a machine word where this is compiled
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
        self.lane = self.learned.lane
        self.fairness = Fairness(config, self.ledger, self.learned, self.expectation)
        self.queue = Queue(turns=self.fairness.turns)
        self.returns = Returns()
        self.promises = Promises(config, self.ledger, self.learned, self.fairness, self.returns)
        self.overtaking = Overtaking(config, self.ledger, self.queue, self.promises, self.learned)
        self.parking = Parking(config, self.ledger, self.queue, self.promises, self.learned, self.fairness)
        self.rejections = Rejections(
            config, self.ledger, self.queue, self.resolver, self.promises, self.parking, self.learned, self.expectation,
            self.returns, self.fairness,
        )  # fmt: skip
        self.last_look = LastLook(
            self.ledger, self.queue, self.fairness, self.promises, self.learned, self.overtaking, self.returns
        )
        self.trial = Trial(self.queue, self.fairness, self.promises, self.overtaking, self.parking)
        self.next_look = NextLook(self.queue, self.parking, self.overtaking)
        self.engine_reports = EngineReports(
            config, self.ledger, self.queue, self.resolver, self.promises, self.learned, self.fairness, self.expectation
        )
        self.trust, self.cached = self.promises.trust, self.promises.cached
        self.draining = False
        self.backend_up = True
        self.tails = Tails()
        self._now_ns = 0
        self._slice_until_ns = _FOR_EVER_NS  # of a pool that several gates share; then nothing of it is ours
        self.ledger_lost = False
        self.ledger_settles = False  # it gives no room to anybody until leases of before are over
        self._handlers: dict[type, Callable[..., list[Command]]] = {
            Progressed: self._progressed,
            PaceLost: self._pace_lost,
            Preempted: self.engine_reports.preempted,
            PoolHeld: self.engine_reports.pool_held,
            RoomTaken: self._room_taken,
            EngineBusy: self._engine_busy,
            CacheChanged: self.engine_reports.cache_changed,
            CapacityChanged: self._capacity_changed,
            SliceChanged: self._slice_changed,
            BackendChanged: self._backend_changed,
            DrainStarted: self._drain_started,
            Tick: self._time_passed,
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
        self.engine_reports.configure(config)
        self.last_look.forget()

    def handle(self, event: Event, now_ns: int) -> list[Command]:
        """Take in one event; returns what the driver has to do, in order.

        Raises AccountingError, with nothing changed, for an event about a request that does not live. A time before
        that of the last event counts as that one.
        """
        now_ns = self._come_to(now_ns)
        # What every request brings is called by name: compiled, that is a plain call, and one by a table is not.
        if isinstance(event, Arrived):
            return self._arrived(event, now_ns)
        if isinstance(event, Ended):
            return self._ended(event, now_ns)
        return self._handlers[type(event)](event, now_ns)

    def _come_to(self, now_ns: int) -> int:
        """The time by which it goes: it never goes back."""
        if now_ns > self._now_ns:
            self._now_ns = now_ns
        else:
            now_ns = self._now_ns
        if now_ns >= self._slice_until_ns:
            self._slice_until_ns = _FOR_EVER_NS
            self.ledger_lost = True
            self.promises.slice_lost()
        return now_ns

    @property
    def next_wake_ns(self) -> int | None:
        """When to push a Tick, if nothing else happens before; None if never."""
        # Their lists and not they themselves: not compiled, each of those would be a call.
        look_ns = self.next_look.due_ns
        if not self.queue.in_order and not self.tails.due and look_ns is None:
            return None  # as nearly always
        wake_ns = _FOR_EVER_NS if look_ns is None else look_ns
        deadline_ns, tail_ns = self.queue.next_deadline_ns(), self.tails.first_ns
        if deadline_ns is not None:
            wake_ns = min(wake_ns, deadline_ns)
            wake_ns = min(wake_ns, self._slice_until_ns, self.next_look.at_latest_ns)
        return wake_ns if tail_ns is None else min(wake_ns, tail_ns)

    @property
    def waits_for_report(self) -> bool:
        """Whether the next report of tokens would make it look at those who wait, RECHECK_NS later."""
        return self.next_look.due_ns is None and bool(self.queue) and self.config.policy is not Policy.WORST_CASE

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
    def busy_until_ns(self) -> int:
        """The engine takes nobody before."""
        return self.trial.busy_until_ns

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

    def slice_at(self, now_ns: int) -> tuple[int, int]:
        """(blocks, sequences) that may be promised of a pool that several gates share, at a time not before the last
        event."""
        return self.promises.slice if now_ns < self._slice_until_ns and not self.ledger_lost else (0, 0)

    def lower_slice(self, blocks: Blocks, sequences: int) -> None:
        """At most so much of it may be promised from now on: the rest is about to be given back. Nobody gets in by
        that, so nobody is looked at."""
        self.promises.lower_slice(blocks, sequences, self._now_ns)
        self.last_look.forget()

    def first_waiting(self) -> Waiting | None:
        """Who goes next when there is room: the one that lacks it, if it is known, or the first of the most urgent."""
        return self.overtaking.first_waiting()

    # It arrives

    def _arrived(self, event: Arrived, now_ns: int) -> list[Command]:
        if event.request_id in self.queue or self.ledger.get(event.request_id) is not None:
            raise AccountingError(f"request {event.request_id!r} already lives", fix="use a fresh id per request")
        # What is due comes first; an idle gate has nothing due.
        commands = self._tick(now_ns) if self.tails.due or self.queue.in_order else []
        if self.draining or not self.backend_up or self.ledger_lost:
            return [*commands, self.refuse(event, self._why_nobody(), now_ns)]
        resolved = self.resolver.resolve(event)
        if not isinstance(resolved, tuple):
            return [*commands, self.rejections.reject(event, resolved, now_ns, retry_after_ns=0)]
        footprint, peak_blocks = resolved
        if event.deadline_ns is not None and event.deadline_ns <= now_ns:
            return [*commands, self.rejections.for_now(event, footprint, Refusal.DEADLINE, now_ns)]
        at_limit = self.fairness.refusal(event, footprint, peak_blocks, now_ns)
        if at_limit is not None:
            return [*commands, self.rejections.reject(event, at_limit[0], now_ns, retry_after_ns=at_limit[1])]
        self.fairness.arrived(event, footprint, now_ns)
        booking = self.returns.claim(event, now_ns) if self._learns else None
        needed, lacks_room = self.trial.of(event, footprint, peak_blocks, booking, now_ns)
        if self._learns:
            self.returns.tried(event, booking, peak_blocks, now_ns, at_once=needed is not None)
        if needed is not None:
            commands.append(self._forward(event, footprint, peak_blocks, needed, now_ns, waited_ns=0))
        else:
            commands += self._park(event, footprint, peak_blocks, booking, now_ns, lacks_room=lacks_room)
        return commands

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
            refused = self.rejections.for_now(event, footprint, place.refusal, now_ns)
            if place.refusal is Refusal.QUEUE_FULL:
                refused = refused._replace(bound=place.bound, limit=place.limit)
            return [refused]
        commands: list[Command] = []
        last = place.displaced
        if last is not None:
            told_ns = self.rejections.retry_after_ns(last.arrived, last.footprint, now_ns)
            commands.append(self.rejections.throw_out(last, Refusal.TENANT_SHARE, now_ns, told_ns))
        number = self.queue.next_number() if booking is None else booking.number
        waiting = Waiting(
            event, footprint, peak_blocks, now_ns, place.deadline_ns, (event.priority, number), place.demand,
            place.expected.wait_ns, booking is not None and booking.promised, place.expected.room_ns,
        )  # fmt: skip
        commands.append(Parked(event.request_id, self.queue.push(waiting)))
        self.queue.whys[waiting.key] = self.trial.why
        self.next_look.wait_for_prompts(now_ns)
        nobody_lacks_room = self.overtaking.head is None
        if lacks_room and nobody_lacks_room and self.fairness.lacks_room(event, event.priority, None):
            self.overtaking.lacks_room(waiting)
        elif nobody_lacks_room:  # those before it, or others, are in its way: a look tells whether they are still
            self.next_look.not_later_than(now_ns + RECHECK_NS)
        return commands

    # It is forwarded

    def _forward(
        self, event: Arrived, footprint: Footprint, peak_blocks: Blocks, needed: Blocks, now_ns: int, waited_ns: int
    ) -> Forward:
        made = self.promises.make(event, footprint, peak_blocks, needed, now_ns)
        if self._learns:
            self.returns.let_in(event, peak_blocks, now_ns)
            self.learned.forwarded(event, made, now_ns)
        prompt_tokens = footprint.prompt_tokens * footprint.sequences
        account = account_name(event.tenant, event.priority)
        self.lane.joined(event.request_id, account, prompt_tokens, now_ns, watched=made.paced)
        self.fairness.forwarded(event, made, now_ns)
        return Forward(event.request_id, made.net_blocks, footprint.max_new_tokens, waited_ns)

    # It goes on

    def _progressed(self, event: Progressed, now_ns: int) -> list[Command]:
        return self.progressed(event.request_id, event.new_tokens, now_ns, event.cached_tokens)

    def progressed(
        self, request_id: str, new_tokens: int, now_ns: int, cached_tokens: Tokens | None = None
    ) -> list[Command]:
        """`handle` of a Progressed that need not be made first: nothing else happens as often."""
        now_ns = self._come_to(now_ns)
        living = self.ledger.living(request_id)
        first = living.first_seen_ns is None
        self.ledger.advance(living, new_tokens, now_ns)
        if self._learns:
            self.learned.progressed(living, new_tokens, now_ns)
        less = cached_tokens is not None and self.promises.found(request_id, cached_tokens)
        next_look = self.next_look
        if next_look.due_ns is None and self.queue and (less or self.config.policy is not Policy.WORST_CASE):
            next_look.due_ns = now_ns + RECHECK_NS
        if not first:
            return []
        self.lane.read(request_id, now_ns)
        return self._less_unread(now_ns)

    def _pace_lost(self, event: PaceLost, now_ns: int) -> list[Command]:
        self.learned.pace_lost(self.promises.lose_pace(event.request_id))
        self.lane.lost(event.request_id, now_ns)
        return self._less_unread(now_ns)

    def _less_unread(self, now_ns: int) -> list[Command]:
        """The engine has less to read, or is thought to: try those who wait for that."""
        look = self.next_look.for_prompts or self.fairness.waits_for_prompts
        return self._tick(now_ns, look=True) if look else []

    # It ends

    def _ended(self, event: Ended, now_ns: int) -> list[Command]:
        queue = self.queue
        if event.request_id in queue:
            self.fairness.over(event.request_id, 0, now_ns)
            return self.move_away(event.request_id, now_ns)
        living = self.ledger.get(event.request_id)
        if living is None or event.request_id in self.tails:
            raise AccountingError(f"request {event.request_id!r} does not live (ended twice?)")
        output_tokens = self.engine_reports.ended(living, event, now_ns)
        self.lane.left(event.request_id, now_ns)
        if event.engine_done or self.config.abort_tail_ns <= 0:
            self.promises.take_back(event.request_id)
            self.learned.gone(event.request_id)
            self.fairness.gone(living, output_tokens, now_ns)
        else:
            self.promises.lose_pace(event.request_id)
            self.tails.add(event.request_id, now_ns + self.config.abort_tail_ns)
        if not queue.in_order and not self.tails.due and self.next_look.due_ns is None:
            return []  # nobody waits, and nothing is due
        return self._tick(now_ns, look=True)

    def move_away(self, request_id: str, now_ns: int) -> list[Command]:
        """One who waits does so here no more, but goes on: its tokens of this minute stay taken."""
        now_ns = self._come_to(now_ns)
        head = self.queue.head()
        was_head = head is not None and head.arrived.request_id == request_id
        self.queue.remove(request_id)
        return self._tick(now_ns, look=was_head or self.fairness.binds)  # without it, the next one may fit

    # The engine tells

    def look(self, now_ns: int) -> list[Command]:
        """Try those who wait: something that this gate does not hear of may have made room."""
        return self._tick(self._come_to(now_ns), look=True) if self.queue else []

    def end_tails(self, now_ns: int) -> list[Command]:
        """The engine is another process by now: what was cut off holds nothing there any more."""
        now_ns = self._come_to(now_ns)
        self.tails.end_all(now_ns)
        return self._tick(now_ns)

    def _room_taken(self, event: RoomTaken, now_ns: int) -> list[Command]:
        more_room = self.promises.room_taken(event.blocks)
        return self._tick(now_ns, look=more_room and bool(self.queue))

    def _engine_busy(self, event: EngineBusy, now_ns: int) -> list[Command]:
        self.trial.busy_until_ns = event.until_ns
        self.next_look.by(event.until_ns)
        return []

    # The world changes

    def _capacity_changed(self, event: CapacityChanged, now_ns: int) -> list[Command]:
        commands: list[Command] = [
            self.rejections.throw_out(waiting, refusal, now_ns, retry_after_ns=0)
            for waiting, refusal in self.engine_reports.capacity_changed(event)
        ]
        return commands + self._tick(now_ns, look=True)

    def _slice_changed(self, event: SliceChanged, now_ns: int) -> list[Command]:
        self._slice_until_ns = event.until_ns
        self.ledger_lost = False
        self.ledger_settles = event.settling and not event.blocks
        more = self.promises.slice_changed(event)
        self.last_look.forget()
        limits = self.fairness.limits
        if limits is not None and event.tenants_elsewhere is not None:
            more = limits.shared(event.tenants_elsewhere, event.gates, event.tokens_elsewhere or {}, now_ns) or more
        return self._tick(now_ns, look=more and bool(self.queue))

    def _backend_changed(self, event: BackendChanged, now_ns: int) -> list[Command]:
        self.backend_up = event.up
        if event.up:
            return self._tick(now_ns, look=True)
        return self._throw_out_all(Refusal.NO_BACKEND, now_ns, _DOWN_RETRY_NS)

    def _throw_out_all(self, refusal: Refusal, now_ns: int, retry_ns: int) -> list[Command]:
        return [
            self.rejections.throw_out(waiting, refusal, now_ns, retry_after_ns=retry_ns) for waiting in list(self.queue)
        ]

    def _drain_started(self, event: DrainStarted, now_ns: int) -> list[Command]:
        self.draining = True
        return self._tick(now_ns)

    # Time passes, room comes back

    def _time_passed(self, event: Tick, now_ns: int) -> list[Command]:
        return self._tick(now_ns)

    def _tick(self, now_ns: int, *, look: bool = False) -> list[Command]:
        """Do what is due. Who waits is only looked at when room may have come: arrivals make none."""
        while (request_id := self.tails.take_due(now_ns)) is not None:
            self.fairness.gone(self.promises.take_back(request_id), None, now_ns)
            self.learned.gone(request_id)
            look = True
        if self.next_look.begins(now_ns):
            look = True
        commands: list[Command] = []
        if self.ledger_lost and self.queue:
            commands += self._throw_out_all(Refusal.LEDGER_LOST, now_ns, LEDGER_LOST_RETRY_NS)
        for late, why in self.queue.expired(now_ns):
            waited_ns = now_ns - late.since_ns
            refused = self.rejections.for_now(late.arrived, late.footprint, Refusal.DEADLINE, now_ns, waited_ns)
            commands.append(refused._replace(why=why))
        if look or commands:  # an expired head may have held up others
            commands += self._admit(now_ns)
        return commands

    def _admit(self, now_ns: int) -> list[Command]:
        commands: list[Command] = []
        if now_ns < self.busy_until_ns:
            self.next_look.by(self.busy_until_ns)
            return []
        self.next_look.looks()
        while self.queue and self.backend_up:
            if self.next_look.wait_for_prompts(now_ns) or self.last_look.stands(now_ns):
                break
            self.last_look.begins()
            found = first_that_fits(self.queue, self.fairness, self.promises, self.overtaking, now_ns)
            self.last_look.ends(now_ns, let_in=found is not None)
            if found is None:
                break
            waiting, needed = found
            waited_ns = now_ns - waiting.since_ns
            self.queue.remove(waiting.arrived.request_id)
            self.learned.waited(waiting.room_ns, waited_ns)
            commands.append(
                self._forward(waiting.arrived, waiting.footprint, waiting.peak_blocks, needed, now_ns, waited_ns)
            )
        again_ns = self.fairness.look_again_ns(now_ns) if self.queue else None
        if again_ns is not None:
            self.next_look.not_later_than(again_ns)
        return commands

    # It is refused

    def _why_nobody(self) -> Refusal:
        """Why nobody at all is let in."""
        if self.draining:
            return Refusal.DRAINING
        return Refusal.LEDGER_LOST if self.backend_up else Refusal.NO_BACKEND

    def refuse(self, event: Arrived, refusal: Refusal, now_ns: int, *, waited_ns: int = 0) -> Reject:
        """The answer to one whom no engine takes now, at this gate or, where it came to none, at any."""
        lost = refusal is Refusal.LEDGER_LOST
        retry_ns = 0 if refusal is Refusal.UNKNOWN_MODEL else LEDGER_LOST_RETRY_NS if lost else _DOWN_RETRY_NS
        return self.rejections.reject(event, refusal, now_ns, retry_after_ns=retry_ns, waited_ns=waited_ns)
