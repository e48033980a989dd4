"""Pushes anything whatever at a gate or a fleet, from one seed, and holds it after every event to what it promises.

Lawful and unlawful events in any order: several tenants and classes, prefixes, clients that come when told, early, late
or never, engines that lie, restart, shrink and grow, clocks that stand still or go back, settings that change while
requests live, what was learned saved and restored in between. `Anything(seed).run(events)` raises AssertionError with
the seed and the number of the event.
"""

import random
from dataclasses import replace
from typing import Any

from kvbudget.errors import AccountingError
from kvbudget.gate.commands import Command, Forward, Parked, Reject
from kvbudget.gate.config import GateConfig
from kvbudget.gate.events import (
    Arrived,
    BackendChanged,
    CacheChanged,
    CapacityChanged,
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
from kvbudget.gate.fleet.events import Drained, Heard, HeldElsewhere, Restarted, Serves
from kvbudget.gate.fleet.fleet import Fleet
from kvbudget.gate.fleet.member import Member
from kvbudget.gate.fleet.options import FleetConfig, MemberOptions
from kvbudget.gate.gate import Gate
from kvbudget.gate.policies import Policy
from kvbudget.gate.refusing.refusals import Outcome, Refusal
from kvbudget.gate.refusing.rejections import MIN_RETRY_NS
from kvbudget.gate.tenants.settings import ClassLimits, TenantLimits
from kvbudget.gate.waiting.expectation import MAX_WAIT_NS
from kvbudget.pool.chains import chain_keys
from kvbudget.pool.groups import Layout, uniform_layout
from kvbudget.pool.prefix import Sharing
from kvbudget.units import Blocks, Tokens

BLOCK = 16
SECOND = 10**9
HOPELESS = (Refusal.NEVER_FITS, Refusal.CONTEXT_EXCEEDED)
# A request that waits is told one of these before its time is up, and no other.
MAY_BE_THROWN_OUT = {
    *HOPELESS, Refusal.TOO_MANY_SEQUENCES, Refusal.TENANT_TOO_LARGE, Refusal.TENANT_SHARE, Refusal.NO_BACKEND,
    Refusal.DEADLINE, Refusal.DRAINING, Refusal.UNKNOWN_MODEL,
}  # fmt: skip


class Inside:
    """One that was forwarded."""

    def __init__(self, arrived: Arrived, granted: Forward) -> None:
        self.arrived = arrived
        self.granted = granted
        self.made = 0


class Anything:
    """One run. `lies`: engines and clients may say what cannot be; `clock`: it may go back."""

    def __init__(self, seed: int, *, instances: int = 1, lies: bool = True, clock: bool = True) -> None:
        self.chance = chance = random.Random(seed)
        self.seed = seed
        self.lies = lies
        self.clock = clock
        self.number = 0
        self.now = 0
        self.latest = 0
        self.names = 0
        self.log: list[str] = []
        self.parked: dict[str, tuple[Arrived, int, int]] = {}  # (as it arrived, at, its time is up at)
        self.inside: dict[str, Inside] = {}
        self.ended: list[str] = []
        self.told: list[tuple[int, Arrived]] = []  # when to come back
        self.shrunk = False
        self.scatters = False  # who waits at one that goes away is judged as if it came to another
        self.fleet: Fleet | None = None
        self.config = self.any_config()
        self.gates = [self.any_gate() for _ in range(instances)]
        if instances > 1:
            config = FleetConfig(
                failures=2, open_ns=SECOND, longest_open_ns=4 * SECOND, ramp_ns=chance.choice((0, SECOND))
            )
            members = [
                Member(f"m{number}", gate, MemberOptions(
                    models=frozenset(chance.choice(("", "a", "ab"))), fallback=frozenset(chance.choice(("", "c"))),
                    borrow=chance.choice((1.0, 0.3)), fallback_share=chance.choice((1.0, 0.3)),
                ), config)
                for number, gate in enumerate(self.gates)
            ]  # fmt: skip
            self.fleet = Fleet(members, config)

    # What it is

    def any_config(self) -> GateConfig:
        chance = self.chance
        tenants = {
            "small": TenantLimits(max_blocks=Blocks(chance.choice((4, 20)))),
            "metered": TenantLimits(tokens_per_minute=Tokens(chance.choice((300, 5000))), weight=3.0),
        }
        if chance.random() < 0.3:
            tenants["*"] = TenantLimits(max_blocks=Blocks(40), tokens_per_minute=Tokens(20_000))
        return GateConfig(
            policy=chance.choice((Policy.LEARNED, Policy.LEARNED, Policy.TRAJECTORY, Policy.WORST_CASE)),
            max_num_seqs=chance.choice((2, 16, 256)),
            max_context=chance.choice((None, None, Tokens(600))),
            margin_blocks=chance.choice((0, 0, 3)),
            sharing=chance.choice(tuple(Sharing)),
            key_blocks=chance.choice((1, 1, 2)),
            queue_requests=chance.choice((0, 3, 30, 1024)),
            queue_tokens=chance.choice((None, None, Tokens(2000))),
            queue_ns=chance.choice((2, 30)) * SECOND,
            lag_steps=chance.choice((0, 32)),
            abort_tail_ns=chance.choice((0, SECOND // 4, 3 * SECOND)),
            enough_answers=chance.choice((0.0, 1.0)),
            tenants=chance.choice(({}, {}, tenants)),
            classes=chance.choice(({}, {}, {-1: ClassLimits(5, 1)})),
            fair=chance.random() < 0.85,
        )

    def any_gate(self) -> Gate:
        return Gate(self.config, uniform_layout(BLOCK), Blocks(self.chance.choice((12, 60, 200))))

    # Events

    def run(self, events: int) -> None:
        try:
            for _ in range(events):
                self.number += 1
                self.one()
            self.come_to_rest()
        except AssertionError as error:
            raise AssertionError(f"seed {self.seed}, event {self.number}: {error}") from error
        except Exception as error:
            raise AssertionError(f"seed {self.seed}, event {self.number}: {error!r}") from error

    def one(self) -> None:
        chance = self.chance
        what = chance.random()
        if what < 0.35:
            self.arrive(self.any_arrival())
        elif what < 0.40 and self.told:
            self.come_back()
        elif what < 0.65 and self.inside:
            self.progress()
        elif what < 0.80 and self.inside:
            self.end_one(chance.choice(sorted(self.inside)))
        elif what < 0.83 and self.parked:
            self.withdraw()
        elif what < 0.88:
            self.engine_tells()
        elif what < 0.90:
            self.reconfigure()
        elif what < 0.93:
            self.unlawful()
        else:
            self.time_passes()
        self.look()

    def any_arrival(self) -> Arrived:
        chance = self.chance
        self.names += 1
        prompts = tuple(Tokens(chance.choice((1, 16, 40, 100, 333))) for _ in range(chance.choice((1, 1, 1, 1, 3))))
        limit = chance.choice((None, 1, 16, 64, 200, 900, 10**6, 10**30))
        sequences = chance.choice((1, 1, 1, 1, 2, 7))
        one = len(prompts) == 1 and sequences == 1
        tenant = chance.choice(("a", "a", "a", "b", "small", "metered", f"new{self.names}"))
        prefix: tuple[int, ...] = ()
        if len(prompts) == 1 and chance.random() < 0.4:
            step = BLOCK * self.config.key_blocks
            ids = [chance.choice((1, 2))] * (prompts[0] // 2) + [self.names] * (prompts[0] - prompts[0] // 2)
            prefix = chain_keys(ids, step)
        return Arrived(
            f"r{self.names}", prompts, None if limit is None else Tokens(limit), Tokens(chance.choice((16, 64))),
            sequences, tenant, chance.choice((0, 0, 0, 1, -1, 100)), one and chance.random() < 0.8,
            chance.choice((None, None, None, 0, self.now, self.now + SECOND, self.now + 10**20)),
            exact=chance.random() < 0.9, prefix=prefix,
            model=chance.choice((None, None, "a", "b", "c")) if self.fleet is not None else None,
        )  # fmt: skip

    def arrive(self, event: Arrived) -> None:
        gates = [gate for gate in self.gates if gate.backend_up and not gate.draining]
        if self.fleet is not None:
            members = [member for member in self.fleet.members if member.takes(self.latest)]
            gates = [m.gate for m in members if m.serves(event.model) or m.stands_in_for(event.model)]
        fits = any(fits_an_empty_pool(gate, event) for gate in gates)
        now_ns = self.latest = max(self.now, self.latest)
        up_to_ns = min(now_ns + self.config.queue_ns, event.deadline_ns or 10**30)
        self.parked[event.request_id] = (event, now_ns, up_to_ns)
        commands = self.push(event)
        own = [command for command in commands if command.request_id == event.request_id]
        assert own, "an arrival that nothing is said of"
        last = own[-1]
        if isinstance(last, Reject):
            if last.refusal in HOPELESS:
                assert not fits, f"{last.refusal} of one that fits an empty pool"
            if last.retry_after_ns:
                self.told.append((self.now + last.retry_after_ns, event))

    def come_back(self) -> None:
        """One who was told to: when told, early, late, more than once, or with others than it was told for."""
        chance = self.chance
        when, event = chance.choice(self.told)
        if chance.random() < 0.8:
            self.told.remove((when, event))
        if chance.random() < 0.7:
            self.now = max(self.now, when + int((when - self.now) * chance.choice((-0.1, 0.0, 0.1, 0.25))))
        self.names += 1
        self.arrive(event._replace(request_id=f"r{self.names}", deadline_ns=None))

    def progress(self) -> None:
        chance = self.chance
        name = chance.choice(sorted(self.inside))
        one = self.inside[name]
        if not one.arrived.paced:
            if chance.random() < 0.1:
                self.push(PaceLost(name))
            return
        most = one.granted.max_new_tokens
        steps = min(chance.choice((1, 1, 16, 16, 100)), most - one.made)
        if self.lies and chance.random() < 0.02:
            steps = chance.choice((10**12, most + 5, 0))
        one.made = min(most, one.made + steps)
        cached = None
        if chance.random() < 0.1:
            cached = Tokens(chance.choice((0, 16, 160, 10**12) if self.lies else (0, 16)))
        self.push(Progressed(name, steps, cached))
        if chance.random() < 0.03:
            self.push(PaceLost(name))

    def end_one(self, name: str) -> None:
        chance = self.chance
        one = self.inside.pop(name)
        outcome = chance.choice((Outcome.FINISHED, Outcome.FINISHED, Outcome.CLIENT_GONE, Outcome.UPSTREAM_FAILED))
        sequences = one.arrived.sequences * len(one.arrived.prompts)
        told = chance.choice((None, one.made * sequences, one.made * sequences, one.granted.max_new_tokens * sequences))
        if self.lies and chance.random() < 0.03:
            told = chance.choice((10**12, -7, 0))
        cached = Tokens(chance.choice((0, 16, 10**9))) if self.lies and chance.random() < 0.1 else None
        if self.fleet is not None and self.fleet.only is None:
            heard = {Outcome.FINISHED: Heard.WELL, Outcome.CLIENT_GONE: Heard.NOTHING}.get(outcome, Heard.FAILED)
            self.scatters = True
            self.obey(self.fleet.heard(name, heard, self.now))
            self.scatters = False
        self.ended.append(name)
        self.push(Ended(name, outcome, None if told is None else Tokens(told), chance.random() < 0.7, cached))

    def withdraw(self) -> None:
        name = self.chance.choice(sorted(self.parked))
        del self.parked[name]
        self.ended.append(name)
        self.push(Ended(name, Outcome.WITHDRAWN))

    def engine_tells(self) -> None:
        chance = self.chance
        gate = chance.choice(self.gates)
        usable = gate.ledger.usable_blocks
        what = chance.randrange(10)
        if what == 0:
            blocks = chance.choice((0, 8, usable, 60, 200))
            block = chance.choice((BLOCK, BLOCK, BLOCK, 32))
            self.shrunk = True
            context = chance.choice((None, None, Tokens(400)))
            self.push_at(gate, CapacityChanged(uniform_layout(block), Blocks(blocks), context))
        elif what == 1:
            self.push_at(gate, BackendChanged(chance.random() < 0.3))
            self.push_at(gate, BackendChanged(True))
        elif what == 2:
            self.push_at(gate, EngineBusy(self.now + chance.choice((0, SECOND, -SECOND))))
        elif what == 3:
            name = chance.choice(sorted(self.inside) or [None])
            self.push_at(gate, Preempted(name, chance.choice((1, 5))))
        elif what == 4:
            self.push_at(
                gate, PoolHeld(Blocks(chance.choice((0, usable // 2, usable, 10**9 if self.lies else usable))))
            )
        elif what == 5:
            taken = Blocks(chance.choice((0, 0, usable // 3, 10**9 if self.lies else usable)))
            self.push_at(gate, RoomTaken(taken) if self.fleet is None else HeldElsewhere(taken))
        elif what == 6:
            keys = chain_keys([chance.choice((1, 2))] * 160, BLOCK)
            self.push_at(gate, CacheChanged(keys if chance.random() < 0.5 else (), keys[3:], chance.random() < 0.3))
        elif what == 7 and self.fleet is not None:
            self.push_at(gate, Restarted())
        elif what == 8 and self.fleet is not None:
            self.push_at(gate, Drained(chance.random() < 0.3))
        elif what == 9 and self.fleet is not None:
            self.push_at(gate, Serves(frozenset(chance.choice(("a", "ab", "")))))
        elif what == 7:
            self.obey(gate.end_tails(self.now))
        elif what == 8:
            state = gate.learned.state()
            gate.learned.resume(state)
            if self.fleet is not None:
                self.fleet.share()

    def reconfigure(self) -> None:
        """Other limits, as a reload brings them."""
        other = self.any_config()
        kept = self.config
        self.config = replace(other, sharing=kept.sharing, key_blocks=kept.key_blocks, fair=kept.fair)
        self.shrunk = True
        for gate in self.gates:
            gate.configure(self.config)
            ledger = gate.ledger
            self.push_at(gate, CapacityChanged(ledger.layout, ledger.usable_blocks, gate.engine_context))
        if self.fleet is not None:
            self.fleet.share()
        for name, (event, since, up_to) in self.parked.items():
            self.parked[name] = (event, since, max(up_to, since + 30 * SECOND))

    def unlawful(self) -> None:
        """About requests that do not live, or that live already: an error, and nothing changes."""
        chance = self.chance
        gone = chance.choice(self.ended[-20:] or ["nobody"])
        event: Event = chance.choice((Ended(gone, Outcome.FINISHED), Ended("nobody", Outcome.WITHDRAWN)))
        if self.parked and chance.random() < 0.3:
            event = self.parked[chance.choice(sorted(self.parked))][0]
        elif self.inside and chance.random() < 0.3:
            event = self.inside[chance.choice(sorted(self.inside))].arrived
        elif self.parked and chance.random() < 0.5:
            event = Progressed(chance.choice(sorted(self.parked)), 1)
        elif chance.random() < 0.3:
            event = PaceLost("nobody")
        before = self.seen()
        try:
            commands = self.handle(event)
        except AccountingError:
            after = self.seen()
            assert after == before, f"{event} was refused, but something changed: {before} {after}"
        else:
            raise AssertionError(f"{event} was taken, with {commands}")

    def time_passes(self) -> None:
        chance = self.chance
        pause = chance.choice((0, 10**6, 10**7, 10**8, SECOND, 5 * SECOND, 60 * SECOND))
        if chance.random() < 0.02:
            pause = chance.choice((3600, 10**6)) * SECOND
        if self.clock and chance.random() < 0.05:
            self.now -= chance.choice((1, SECOND, 86_400 * SECOND * 30))
            self.push(Tick())
            return
        until = self.now + pause
        for _ in range(60):
            wake = self.next_wake_ns()
            if wake is None or wake > until:
                break
            self.now = max(self.now, wake)
            self.push(Tick())
        self.now = until
        self.push(Tick())

    # The system

    def handle(self, event: Event) -> list[Command]:
        admission = self.gates[0] if self.fleet is None else self.fleet
        return admission.handle(event, self.now)

    def push(self, event: Event) -> list[Command]:
        commands = self.handle(event)
        self.obey(commands)
        return commands

    def push_at(self, gate: Gate, event: Any) -> None:
        if self.fleet is None:
            self.obey(gate.handle(event, self.now))
        else:
            self.scatters = isinstance(event, BackendChanged | Drained)
            self.obey(self.fleet.handle_at(self.fleet.members[self.gates.index(gate)], event, self.now))
            self.scatters = False

    def next_wake_ns(self) -> int | None:
        return self.gates[0].next_wake_ns if self.fleet is None else self.fleet.next_wake_ns

    def obey(self, commands: list[Command]) -> None:
        for command in commands:
            self.log.append(f"{self.now} {command}")
            name = command.request_id
            assert name in self.parked, f"{command} of one who is not asked about"
            event, _, _ = self.parked[name]
            if isinstance(command, Parked):
                assert command.position >= 1
                continue
            del self.parked[name]
            assert command.waited_ns >= 0, command
            if isinstance(command, Reject):
                self.ended.append(name)
                told = command.retry_after_ns
                assert told == 0 or MIN_RETRY_NS <= told <= MAX_WAIT_NS, f"told {told / 1e9} s: {command}"
                assert command.position >= 1
                assert command.free_blocks >= 0
                assert command.needed_blocks >= 0
                if command.waited_ns and not self.scatters:
                    set_meanwhile = self.shrunk and command.refusal is Refusal.TENANT_TOKENS
                    assert set_meanwhile or command.refusal in MAY_BE_THROWN_OUT, f"thrown out of the queue: {command}"
                continue
            assert isinstance(command, Forward)
            assert command.max_new_tokens >= 1
            assert command.reserved_blocks >= 0
            if event.max_new_tokens is not None:
                assert command.max_new_tokens <= event.max_new_tokens
            self.inside[name] = Inside(event, command)

    def seen(self) -> list[Any]:
        """What of the gates must not change by an event that they refuse."""
        found: list[Any] = []
        for gate in self.gates:
            ledger, queue = gate.ledger, gate.queue
            found.append((
                sorted((one.reservation_id, one.seen_tokens, one.paced) for one in ledger), ledger.peak_sum_blocks,
                ledger.sequences, ledger.unseen_prompt_tokens, ledger.prefixes.held_keys,
                [one.arrived.request_id for one in queue], queue.tokens, gate.returns._booked,
                gate.fairness.turns._passed.copy(), len(gate.fairness.shares._charges), gate.trust.doubt,
            ))  # fmt: skip
        if self.fleet is not None:
            found.append(sorted(self.fleet._places))
        return found

    # What holds after every event

    def look(self) -> None:
        self.latest = max(self.latest, self.now)
        for gate in self.gates:
            self.look_at(gate)
        waiting = [one.arrived.request_id for gate in self.gates for one in gate.queue]
        assert sorted(waiting) == sorted(self.parked), "somebody is forgotten, or waits twice"
        living = {one.reservation_id for gate in self.gates for one in gate.ledger}
        tails = {name for gate in self.gates for name in gate.tails._names}
        assert living == {*self.inside, *tails}, "promises are not those of who lives"
        if self.fleet is not None and self.fleet.only is None:
            assert set(self.fleet._places) == {*self.inside, *self.parked}
        if waiting:
            assert self.next_wake_ns() is not None, "nobody looks at who waits"

    def look_at(self, gate: Gate) -> None:
        ledger, queue = gate.ledger, gate.queue
        assert ledger.peak_sum_blocks >= 0
        assert 0 <= ledger.prefixes.charged_keys <= ledger.prefixes.held_keys
        assert ledger._offered is None, "an offer is left open"
        assert queue.tokens == sum(one.tokens for one in queue)
        promised = gate.promised_blocks()
        assert 0 <= promised <= ledger.peak_sum_blocks
        assert sum(gate.promised_by_tenant().values()) == promised
        assert gate.free_blocks() >= 0
        if not self.shrunk and not self.lies and gate.config.policy is not Policy.LEARNED and gate.trust.given:
            assert promised <= ledger.capacity_blocks, f"{promised} of {ledger.capacity_blocks} are promised"
        if gate.backend_up and not len(ledger) and gate.busy_until_ns <= self.now and not gate.draining:
            free = self.fleet is None or not self.fleet.draining
            wake = self.next_wake_ns()
            due = wake is not None and wake <= self.now
            limits = gate.fairness.limits
            firsts = {one.arrived.tenant: one for one in reversed(list(queue))}.values()
            may = [one for one in firsts if limits is None or limits.has_blocks(one.arrived.tenant, one.peak_blocks)]
            assert not may or not free or due, "an empty pool keeps somebody waiting"
        assert gate.learned.pace.ns_per_step >= 1.0, "a step takes no time"
        for one in queue:
            up_to = self.parked[one.arrived.request_id][2]
            assert one.deadline_ns <= max(up_to, one.since_ns + gate.config.queue_ns), (
                "it would wait longer than it may"
            )

    def come_to_rest(self) -> None:
        """All end, time passes: nothing is left of anybody."""
        self.lies = False
        for gate in self.gates:
            self.push_at(gate, BackendChanged(True))
        for _ in range(50):
            for name in sorted(self.inside):
                if name in self.inside:
                    self.end_one(name)
            self.now = max(self.now, self.latest) + 10 * SECOND
            self.latest = self.now
            self.push(Tick())
            if not self.parked and not self.inside and not any(len(gate.ledger) for gate in self.gates):
                break
        assert not self.parked, f"{sorted(self.parked)} wait for ever"
        self.now += 300 * SECOND
        self.push(Tick())
        for gate in self.gates:
            assert what_is_left(gate) == {}, what_is_left(gate)
        if self.fleet is not None:
            assert not self.fleet._places
            for member in self.fleet.members:
                assert (member.lent_blocks, member.stand_in_blocks) == (0, 0)


def fits_an_empty_pool(gate: Gate, event: Arrived) -> bool:
    """By plain arithmetic: what was asked for, cut to the context, or at least one token where no limit was named."""
    config, ledger = gate.config, gate.ledger
    if event.sequences * len(event.prompts) > config.max_num_seqs or ledger.capacity_blocks < 1:
        return False
    caps = [cap for cap in (gate.resolver.context_cap,) if cap is not None]
    asked = event.max_new_tokens if event.max_new_tokens is not None else event.default_new_tokens
    cap = min(caps, default=None)
    if cap is not None:
        if max(event.prompts) + 1 > cap:
            return False
        asked = Tokens(min(asked, cap - max(event.prompts)))
    if event.max_new_tokens is None:
        asked = Tokens(1)
    return peak_of(ledger.layout, event, asked) <= ledger.capacity_blocks


def peak_of(layout: Layout, event: Arrived, new_tokens: int) -> int:
    """Blocks at the worst moment."""
    return sum(layout.blocks_for(prompt + new_tokens) for prompt in event.prompts) * event.sequences


def what_is_left(gate: Gate) -> dict[str, Any]:
    """Everything of requests that is not gone although all of them are."""
    ledger, shares = gate.ledger, gate.fairness.shares
    limits = gate.fairness.limits
    left: dict[str, Any] = {
        "living": len(ledger),
        "peaks": ledger.peak_sum_blocks,
        "unpaced": ledger.unpaced_peak_blocks,
        "sequences": ledger.sequences,
        "unseen": ledger.unseen_prompt_tokens,
        "keys": ledger.prefixes.held_keys,
        "charged keys": ledger.prefixes.charged_keys,
        "places in the tree": len(ledger.prefixes._places),
        "runs in the tree": len(ledger.prefixes._root.children),
        "waiting": len(gate.queue),
        "waiting tokens": gate.queue.tokens,
        "parts": len(gate.queue._parts),
        "sums": len(gate.queue._sums),
        "lines": len(gate.fairness.turns._lines),
        "promised": gate.promised_blocks(),
        "tenants": gate.promised_by_tenant(),
        "charges": len(shares._charges),
        "lane": len(shares.lane._unread),
        "lane's unwatched": len(shares.lane._unwatched),
        "lane's own": len(shares.lane._own),
        "lane's tokens": shares.lane._unread_tokens,
        "sequences of all": shares._all.sequences.now,
        "tracked": len(gate.learned.batch.tracked),
        "tails": len(gate.tails.due),
        "ended": len(gate.tails._names),
    }
    for account in shares._accounts.values():
        left[f"sequences of {account.name}"] = account.sequences.now
    for (priority, name), flow in shares._flows.items():
        left[f"flow of {name} in {priority}"] = flow.sequences.now
    for priority, sequences in shares._in_class.items():
        left[f"class {priority}"] = sequences
    if limits is not None:
        left["reserved"] = dict(limits._blocks)
        left["held"] = len(limits._held)
        left["taken"] = len(limits._taken)
    return {name: value for name, value in left.items() if value}
