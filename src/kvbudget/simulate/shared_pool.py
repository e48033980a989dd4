"""Decides what several gates before one engine hear, from it and from the ledger that they share.

The engine is that of stepping.py; requests are spread over the gates at random. Three ways to share the pool: slices
that a bank lends (`gate.bank`), an exact reservation of every request at the ledger, and an equal part each.
"""

import heapq
from collections.abc import Callable
from typing import Final, NamedTuple

from kvbudget.gate.bank.appointments import Appointments, Word
from kvbudget.gate.bank.bank import Bank
from kvbudget.gate.bank.board import Board, Put, again
from kvbudget.gate.bank.branch import Branch
from kvbudget.gate.bank.experience import Experience, Told
from kvbudget.gate.bank.replica import Replica
from kvbudget.gate.bank.terms import Answer, Call
from kvbudget.gate.bank.whole_pool import needed_of_pool
from kvbudget.gate.commands import Command, Forward
from kvbudget.gate.events import Arrived, Ended, Event, SliceChanged, Tick
from kvbudget.gate.refusing.refusals import Outcome
from kvbudget.simulate.clients import Client
from kvbudget.simulate.instance import NEVER_NS, Owner, gate_of
from kvbudget.simulate.outcome import Result
from kvbudget.simulate.policies import Contender
from kvbudget.simulate.settings import Gates, PoolSharing, Settings
from kvbudget.simulate.stepping import SteppingInstance
from kvbudget.units import Blocks

LEASE_NS: Final = 3 * 10**9
SHARE_NS: Final = 3 * 10**9  # between two notes of what a gate has learned
RETURNS_NS: Final = 5 * 10**8  # between two words of whom it has told to come back
_MS: Final = 10**6
_LOOK_NS: Final = 100 * _MS  # at what lies idle
_TICK: Final = Tick()


class Idle(NamedTuple):
    """What lay idle: looks, and in how many of them somebody waited for whom there was room; `blocks`: that those who
    wait could have had, in the sum over all looks."""

    looks: int
    with_room: int
    blocks: int


class SharedPool(SteppingInstance):
    """Several gates and one engine."""

    def __init__(self, settings: Settings, contender: Contender, result: Result, owner: Owner) -> None:
        super().__init__(settings, contender, result, owner)
        shared = settings.shared or Gates(1)
        self._shared = shared
        self._each = shared.sharing is PoolSharing.EACH
        self._half_ns = shared.rtt_ns // 2
        self.gates = [self.gate] + [gate_of(settings, contender) for _ in range(0 if self._each else shared.gates - 1)]
        self.bank = Bank()
        self.calls = 0  # to the ledger
        self.woken = 0  # gates that it called
        self.idle = Idle(0, 0, 0)
        self._at: dict[str, int] = {}  # request -> its gate
        self._due: list[tuple[int, int, Callable[[int], None]]] = []
        self._numbers = 0
        self._held: list[dict[str, Arrived]] = [{} for _ in self.gates]  # until the bank has answered
        self._look_ns = 0
        self._experiences: list[Experience] = []
        self._board = Board()
        self._left: dict[str, list[Told]] = {}  # for which the notes on the board stand
        self._seen = [0] * len(self.gates)
        self._share_ns = [SHARE_NS * (1 + number) // len(self.gates) for number in range(len(self.gates))]
        self._appointments: list[Appointments] = []
        self._words: dict[str, Word] = {}
        self._returns_ns = 0
        self._replicas: list[Replica] = []
        pool = self.gate.ledger.pool_blocks
        for number, gate in enumerate(self.gates):
            if shared.sharing is PoolSharing.SLICES:
                replica = Replica(gate, Branch(f"gate-{number}", LEASE_NS), 0)
                self._replicas.append(replica)
                self._experiences.append(Experience())
                self._appointments.append(Appointments(gate.returns, f"gate-{number}"))
                gate.handle(replica.first, 0)
            elif shared.sharing is PoolSharing.STATIC:
                part = Blocks(pool // shared.gates)
                places = gate.config.max_num_seqs
                others = Blocks(pool - part), places - places // shared.gates
                gate.handle(SliceChanged(part, places // shared.gates, NEVER_NS, *others, None, shared.gates), 0)

    @property
    def promised_blocks(self) -> int:
        """By all gates, what they hold in common once."""
        ledgers = [gate.ledger for gate in self.gates]
        commons = {name: one.common_blocks_of(len(keys)) for one in ledgers for name, keys in one.commons.items()}
        return sum([gate.promised_blocks() for gate in self.gates]) + sum(commons.values())

    # Clients

    def arrive(self, client: Client, event: Arrived, now_ns: int) -> None:
        """A try of a client reaches one of the gates."""
        mixed = (client.number * 0x9E3779B97F4A7C15 + client.tries * 0xBF58476D1CE4E5B9) & (1 << 64) - 1
        mixed = (mixed ^ mixed >> 30) * 0x94D049BB133111EB & (1 << 64) - 1
        self._at[event.request_id] = (mixed >> 33) % len(self.gates)
        if self._each:
            self.calls += 1
            self._clients[client.key] = client
            self._held[0][event.request_id] = event
            self._later(now_ns, lambda then_ns: self._come(0, then_ns))
        else:
            super().arrive(client, event, now_ns)

    def take_over(self, client: Client, event: Arrived, now_ns: int) -> None:
        """A try reaches its gate, which may ask the bank before it decides."""
        self._clients[client.key] = client
        number = self._at[event.request_id]
        if self._replicas:
            held, replica = self._held[number], self._replicas[number]
            call = None if held else replica.call_for([event], now_ns)
            if call is not None or (held and replica.is_calling):
                held[event.request_id] = event
                if call is not None:
                    self._call(number, call, now_ns)
                self._set_wake()
                return
        self._push(event, now_ns)

    def leave(self, client: Client, now_ns: int) -> None:
        """The client gives up before its first token."""
        held = self._held[self._at[client.key]]
        if client.key in held:
            del held[client.key], self._clients[client.key]
        else:
            super().leave(client, now_ns)

    def _come(self, number: int, now_ns: int) -> None:
        """Those who were held are given to their gate."""
        held, self._held[number] = self._held[number], {}
        for event in held.values():
            self._push(event, now_ns)

    # Gates

    def _push(self, event: Event, now_ns: int) -> None:
        name = getattr(event, "request_id", None)
        if self._each and isinstance(event, Ended) and event.outcome is not Outcome.WITHDRAWN:
            self.calls += 1
            self._later(now_ns, lambda then_ns: self._push_at(0, event, then_ns))
            return
        for number in range(len(self.gates)) if name is None else (self._at[name],):
            self._push_at(number, event, now_ns)

    def _push_at(self, number: int, event: Event, now_ns: int) -> None:
        self.gate = self.gates[number]
        super()._push(event, now_ns)
        self._tend(number, now_ns)
        self._set_wake()

    def _tend(self, number: int, now_ns: int) -> None:
        if self._replicas:
            call = self._replicas[number].due(now_ns)
            if call is not None:
                self._call(number, call, now_ns)

    def _execute(self, command: Command, now_ns: int) -> None:
        if self._each and type(command) is Forward:
            self._later(now_ns, lambda then_ns: self._forward_late(command, then_ns))
        elif command.request_id in self._clients:
            super()._execute(command, now_ns)

    def _forward_late(self, command: Command, now_ns: int) -> None:
        if command.request_id in self._clients:  # otherwise it left meanwhile, and the gate knows
            super()._execute(command, now_ns)

    def wake(self, now_ns: int) -> None:
        """What is due, at the gates and from the ledger."""
        while self._due and self._due[0][0] <= now_ns:
            heapq.heappop(self._due)[2](now_ns)
        for number, gate in enumerate(self.gates):
            wake_ns = gate.next_wake_ns
            if wake_ns is not None and wake_ns <= now_ns:
                self._push_at(number, _TICK, now_ns)
            else:
                self._tend(number, now_ns)
        for number in range(len(self._experiences)):
            if now_ns >= self._share_ns[number]:
                self._share_ns[number] += SHARE_NS
                self._share_lengths(number, now_ns)
        if self._appointments and now_ns >= self._returns_ns:
            self._returns_ns = now_ns + RETURNS_NS
            self._share_returns(now_ns)
        if now_ns >= self._look_ns:
            self._look_ns = now_ns + _LOOK_NS
            self._look(now_ns)
        self._set_wake()

    def _set_wake(self) -> None:
        wakes = [gate.next_wake_ns for gate in self.gates]
        if self._clients:  # otherwise it would go on for ever
            wakes += [replica.next_wake_ns for replica in self._replicas]
            wakes.append(self._look_ns)
            wakes += self._share_ns[: len(self._experiences)]
            wakes += [self._returns_ns][: len(self._appointments)]
        if self._due:
            wakes.append(self._due[0][0])
        self.wake_ns = min([wake_ns for wake_ns in wakes if wake_ns is not None], default=NEVER_NS)

    # The ledger

    def _later(self, now_ns: int, happens: Callable[[int], None]) -> None:
        """One way."""
        self._numbers += 1
        heapq.heappush(self._due, (now_ns + self._half_ns, self._numbers, happens))
        self._set_wake()

    def _call(self, number: int, call: Call, now_ns: int) -> None:
        self.calls += 1
        self._later(now_ns, lambda then_ns: self._bank_hears(number, call, then_ns))

    def _bank_hears(self, number: int, call: Call, now_ns: int) -> None:
        answer, woken = self.bank.call(call, now_ns // _MS)
        if answer is not None:
            self._later(now_ns, lambda then_ns: self._hears(number, answer, then_ns))
        for name in woken:
            self.woken += 1
            other = int(name.removeprefix("gate-"))
            self._later(now_ns, lambda then_ns, other=other: self._is_woken(other, then_ns))  # type: ignore[misc]

    def _hears(self, number: int, answer: Answer, now_ns: int) -> None:
        event = self._replicas[number].heard(answer, now_ns)
        if event is not None:
            self._push_at(number, event, now_ns)
            self._come(number, now_ns)

    def _is_woken(self, number: int, now_ns: int) -> None:
        call = self._replicas[number].called(now_ns)
        if call is not None:
            self._call(number, call, now_ns)

    def _share_lengths(self, number: int, now_ns: int) -> None:
        """A gate leaves what it has learned, and takes in what the others have: at once, as nothing waits for it."""
        name, lengths, experience = f"gate-{number}", self.gates[number].learned.lengths, self._experiences[number]
        self._left[name] = list(experience.told(lengths))
        put: Put | None = Put(name, now_ns, self._seen[number], "a note" if self._left[name] else "")
        while put is not None:
            notes = self._board.exchange(put, now_ns // _MS)
            self._seen[number] = notes.seen
            for _ in experience.take(lengths, {other: self._left[other] for other, _ in notes.notes}):
                pass
            put = again(put, notes)

    def _share_returns(self, now_ns: int) -> None:
        """Each gate says whom it has told to come back, and hears what the others said half a second ago at most."""
        before, self._words = self._words, {}
        for number, appointments in enumerate(self._appointments):
            own = f"gate-{number}"
            for life, word in before.items():
                if life != own:
                    appointments.hear(life, word, now_ns)
            self._words[own] = appointments.word(now_ns)

    # What lies idle

    def _look(self, now_ns: int) -> None:
        """Whether somebody waits for whom there is room in the pool."""
        idle = self.idle
        free = self.gate.ledger.pool_blocks - self.promised_blocks
        places = self.gate.config.max_num_seqs - sum([gate.ledger.sequences for gate in self.gates])
        could = 0
        for gate in self.gates:
            head = gate.first_waiting()
            if head is None or places < head.footprint.total_sequences:
                continue
            needed = needed_of_pool(gate, head.arrived, head.footprint, head.peak_blocks, now_ns)
            more = None if needed is None else needed - gate.promised_blocks()
            if more is not None and more + could <= free:
                could += max(0, more)  # of one gate this is not nothing: it keeps some free for those who come back
        self.idle = Idle(idle.looks + 1, idle.with_room + (could > 0), idle.blocks + could)
