"""Decides what happens to several gates before one pool and to their bank, in a bad network, one event after the other.

Gates, replicas and the bank are the real ones. Messages are lost, late, doubled and overtake one another; gates stand
still (as by SIGSTOP), crash, and come back under another name; the bank goes away and comes back with its memory or
without; clocks go differently. After every event the rules are looked at (`bank_rules`). The same chance and weather
give the same world.
"""

import heapq
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from kvbudget.gate.bank.bank import Bank
from kvbudget.gate.bank.branch import Branch
from kvbudget.gate.bank.replica import Replica
from kvbudget.gate.bank.terms import Answer, Call
from kvbudget.gate.commands import Command, Forward, Parked
from kvbudget.gate.config import GateConfig
from kvbudget.gate.events import Arrived, Ended, Event, Progressed, RoomTaken, Tick
from kvbudget.gate.gate import Gate
from kvbudget.gate.refusing.refusals import Outcome
from kvbudget.pool.groups import uniform_layout
from kvbudget.pool.prefix import Sharing
from kvbudget.simulate.bank_rules import Rules
from kvbudget.simulate.bank_weather import Weather
from kvbudget.simulate.chance import Chance
from kvbudget.units import Blocks, Tokens

TOKEN_NS: Final = 20_000_000
_STRIDE: Final = 16
_MS: Final = 10**6
_MOST_QUIET_NS: Final = 120 * 10**9  # by then all that came is over
_UNBOUNDED: Final = 10**15


class Life:
    """One life of one gate, with a clock of its own."""

    def __init__(self, place: int, name: str, gate: Gate, offset_ns: int, ppm: int) -> None:
        self.place = place
        self.name = name
        self.gate = gate
        self.replica: Replica
        self.offset_ns = offset_ns
        self.ppm = ppm
        self.dead = False
        self.paused_until_ns = 0
        self.inbox: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self.alive: set[str] = set()  # requests that wait or run, as its driver knows
        self.coming: list[Arrived] = []  # not given to the gate until the bank has answered
        self.timer_ns = 0

    def own_ns(self, now_ns: int) -> int:
        """By its clock."""
        return self.offset_ns + now_ns * (10**6 + self.ppm) // 10**6

    def world_ns(self, own_ns: int) -> int:
        """When its clock shows this."""
        return -(-(own_ns - self.offset_ns) * 10**6 // (10**6 + self.ppm)) + 1


class World:
    """One run; can be done once."""

    def __init__(
        self,
        chance: Chance,
        weather: Weather,
        *,
        bank_of: Callable[[int], Bank] = Bank,
        branch_of: Callable[[str, int], Branch] = Branch,
        replica_of: Callable[[Gate, Branch, int], Replica] = Replica,
    ) -> None:
        """Others than the real bank, branch and replica are for tests of the rules: they have to be found out."""
        self.weather = weather
        self.now_ns = 0
        self.steps = 0
        self._bank_of, self._branch_of, self._replica_of = bank_of, branch_of, replica_of
        self.bank = bank_of(0)
        self.bank_is_up = True
        self.lives: list[Life] = []
        self.prefixes: dict[str, tuple[int, ...]] = {}  # of every request
        self.finished = self.cut_off = self.refused = self.calls = 0
        self._chance = chance
        self._due: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = 0
        self._names = 0
        self._partitioned: dict[int, int] = {}  # place -> until when
        self._taken_blocks = 0  # by others at the engine
        self._left: dict[str, int] = {}  # tokens still to come, of what runs in the engine
        self.rules = Rules(self)

    def run(self) -> None:
        """To the end. Raises RuleBrokenError."""
        weather = self.weather
        for place in range(weather.gates):
            self._begin_life(place)
        self._at(0, self._arrives)
        for kind, count in (
            (self._pause, weather.pauses),
            (self._crash, weather.crashes),
            (self._cut_network, weather.partitions),
            (self._stop_bank, weather.outages),
            (self._squeeze, weather.squeezes),
        ):
            for _ in range(count):
                self._at(self._chance.randint(0, weather.storm_ns), kind)
        self._at(weather.storm_ns, self._squeeze)
        quiet_since_ns = weather.calm_ns
        while True:
            at_ns, _, happens, details = heapq.heappop(self._due)
            self.now_ns = max(self.now_ns, at_ns)
            happens(*details)
            self.steps += happens != self._lease_ends
            self.rules.look()
            if self.now_ns < weather.calm_ns:
                continue
            if self._left or any(life.alive or life.coming for life in self.lives if not life.dead):
                quiet_since_ns = self.now_ns
            if self.now_ns - quiet_since_ns > 3 * weather.lease_ns:
                break
            if self.now_ns - weather.calm_ns > _MOST_QUIET_NS:
                self.rules.broken("somebody waits for ever")
        self.rules.look_at_the_end()

    @property
    def is_storm(self) -> bool:
        """Whether anything fails."""
        return self.now_ns < self.weather.storm_ns

    def _at(self, at_ns: int, happens: Callable[..., None], *details: Any) -> None:
        self._numbers += 1
        heapq.heappush(self._due, (at_ns, self._numbers, happens, details))

    def _squeeze(self) -> None:
        self._taken_blocks = self._chance.randint(0, self.weather.pool_blocks // 2) if self.is_storm else 0
        for life in self.lives:
            seen_ns = self.now_ns + self._chance.randint(0, 1000 * _MS)
            self._at(seen_ns, self._deliver, life, self._sees_others)

    # The network

    def _send(self, place: int, happens: Callable[..., None], *details: Any) -> None:
        """One message between the gate of that place and the bank."""
        weather, chance = self.weather, self._chance
        copies = 1
        if self.is_storm:
            if self._partitioned.get(place, 0) > self.now_ns or chance.random() < weather.lost:
                return
            copies += chance.random() < weather.doubled
        for _ in range(copies):
            delay_ns = int(chance.expovariate(1 / weather.delay_ns))
            if self.is_storm and chance.random() < weather.astray:
                delay_ns += chance.randint(0, 2 * weather.lease_ns)
            elif not self.is_storm:
                delay_ns = min(delay_ns, 50 * _MS)
            self._at(self.now_ns + delay_ns, happens, *details)

    def _cut_network(self) -> None:
        for place in range(self.weather.gates):
            if place == 0 or self._chance.random() < 0.3:
                which = self._chance.randint(0, self.weather.gates - 1)
                self._partitioned[which] = self.now_ns + self._chance.randint(0, 3 * self.weather.lease_ns)

    # The bank

    def _bank_hears(self, place: int, call: Call) -> None:
        if not self.bank_is_up:
            return
        now_ms = self.now_ns // _MS
        self.calls += 1
        self.rules.before_call(now_ms)
        answer, woken = self.bank.call(call, now_ms)
        self.rules.after_call(call, answer, now_ms)
        if answer is not None:
            ends_ms = now_ms + call.lease_ms
            self._at(ends_ms * _MS, self._lease_ends, call.branch, ends_ms)
            self._send(place, self._deliver_to, call.branch, self._hears, answer)
        for life in self.lives:
            if not life.dead and life.name in woken:
                self._send(life.place, self._deliver_to, life.name, self._is_woken)

    def _lease_ends(self, name: str, at_ms: int) -> None:
        """Nothing happens by that, but by now the branch must know it too."""

    def _stop_bank(self) -> None:
        if self.bank_is_up:
            self.bank_is_up = False
            self._at(self.now_ns + self._chance.randint(0, 2 * self.weather.lease_ns), self._start_bank)

    def _start_bank(self) -> None:
        self.bank_is_up = True
        if self._chance.random() < 0.5:
            self.bank = self._bank_of(self.now_ns // _MS + self.weather.lease_ns // _MS)
            self.rules.bank_forgot()

    # Gates live and die

    def _begin_life(self, place: int) -> None:
        weather = self.weather
        config = GateConfig(
            policy=weather.policy,
            max_num_seqs=weather.max_num_seqs,
            queue_requests=_UNBOUNDED,
            queue_tokens=Tokens(_UNBOUNDED),
            queue_ns=_UNBOUNDED,
            worthwhile_wait_ns=_UNBOUNDED,
            abort_tail_ns=weather.abort_tail_ns,
            sharing=Sharing.SCHEDULED,
        )
        self._names += 1
        name = f"gate-{self._names}"
        gate = Gate(config, uniform_layout(16), Blocks(weather.pool_blocks))
        ppm = self._chance.randint(-weather.drift_ppm, weather.drift_ppm)
        life = Life(place, name, gate, self._chance.randint(0, 10**12), ppm)
        life.replica = self._replica_of(gate, self._branch_of(name, weather.lease_ns), life.own_ns(self.now_ns))
        self.lives = [one for one in self.lives if one.place != place] + [life]
        gate.handle(RoomTaken(Blocks(self._taken_blocks)), life.own_ns(self.now_ns))
        gate.handle(life.replica.first, life.own_ns(self.now_ns))
        self._tend(life)

    def _crash(self) -> None:
        life = self._any_life()
        if life.dead:
            return
        if not life.alive and not life.coming and self.now_ns >= life.paused_until_ns and self._chance.random() < 0.7:
            self._send(life.place, self._bank_hears, life.place, life.replica.leave(life.own_ns(self.now_ns)))
        life.dead = True
        for name in life.alive:  # the engine notices that its client is gone
            self._left.pop(name, None)
        self.rules.died(life)
        self._at(self.now_ns + self._chance.randint(0, 2 * self.weather.lease_ns), self._begin_life, life.place)

    def _pause(self) -> None:
        life = self._any_life()
        life.paused_until_ns = self.now_ns + self._chance.randint(0, 2 * self.weather.lease_ns)
        self._at(life.paused_until_ns, self._goes_on, life)

    def _goes_on(self, life: Life) -> None:
        while life.inbox and not life.dead and self.now_ns >= life.paused_until_ns:
            happens, details = life.inbox.popleft()
            happens(life, *details)

    def _any_life(self) -> Life:
        return self.lives[self._chance.randint(0, len(self.lives) - 1)]

    def _deliver_to(self, name: str, happens: Callable[..., None], *details: Any) -> None:
        for life in self.lives:
            if life.name == name:
                self._deliver(life, happens, *details)

    def _deliver(self, life: Life, happens: Callable[..., None], *details: Any) -> None:
        if life.dead:
            return
        if self.now_ns < life.paused_until_ns or life.inbox:
            life.inbox.append((happens, details))
            self._at(life.paused_until_ns, self._goes_on, life)
        else:
            happens(life, *details)

    # A gate's driver

    def _hears(self, life: Life, answer: Answer) -> None:
        own_ns = life.own_ns(self.now_ns)
        event = life.replica.heard(answer, own_ns)
        if event is not None:
            self.rules.heard(life, answer)
            self._give(life, event)
            overdrawn = life.replica.overdrawn_blocks
            if overdrawn and not answer.known:
                self._forfeit(life, overdrawn)
            self._come(life)
        self._tend(life)

    def _is_woken(self, life: Life) -> None:
        call = life.replica.called(life.own_ns(self.now_ns))
        if call is not None:
            self._call(life, call)
        self._tend(life)

    def _timer(self, life: Life, at_ns: int) -> None:
        if life.timer_ns == at_ns:
            life.timer_ns = 0
            self._give(life, Tick())
            self._tend(life)

    def _tend(self, life: Life) -> None:
        """Call the bank if it is time, and be woken when something is due."""
        own_ns = life.own_ns(self.now_ns)
        call = life.replica.due(own_ns)
        if call is not None:
            self._call(life, call)
            self._come(life)  # those who came have waited for an answer long enough
        wakes = (life.replica.next_wake_ns, life.gate.next_wake_ns)
        wake_ns = life.world_ns(max(own_ns, min(one for one in wakes if one is not None)))
        if not life.timer_ns or wake_ns < life.timer_ns or life.timer_ns <= self.now_ns:
            life.timer_ns = wake_ns
            self._at(wake_ns, self._deliver, life, self._timer, wake_ns)

    def _call(self, life: Life, call: Call) -> None:
        self._send(life.place, self._bank_hears, life.place, call)

    def _come(self, life: Life) -> None:
        coming, life.coming = life.coming, []
        for event in coming:
            self._give(life, event)

    def _give(self, life: Life, event: Event) -> None:
        for command in life.gate.handle(event, life.own_ns(self.now_ns)):
            self._obey(life, command)

    def _obey(self, life: Life, command: Command) -> None:
        name = command.request_id
        if isinstance(command, Forward):
            self._left[name] = self._chance.randint(1, int(command.max_new_tokens))
            first_ns = self.now_ns + self._chance.randint(20 * _MS, 200 * _MS)
            self._at(first_ns, self._produces, life, name, 1)
            self.rules.let_in(life)
        elif not isinstance(command, Parked):
            life.alive.discard(name)
            self.refused += 1

    def _forfeit(self, life: Life, blocks: int) -> None:
        """Cut off the youngest until so many blocks will be free."""
        for living in reversed(list(life.gate.ledger)):
            name = living.reservation_id
            if blocks <= 0:
                break
            if name in life.alive and name not in life.gate.tails:
                blocks -= living.peak_blocks
                life.alive.discard(name)
                self._left.pop(name, None)
                self.cut_off += 1
                self._give(life, Ended(name, Outcome.LEASE_LOST, None, engine_done=False))

    def _sees_others(self, life: Life) -> None:
        self._give(life, RoomTaken(Blocks(self._taken_blocks)))
        self._tend(life)

    # Requests

    def _arrives(self) -> None:
        weather, chance = self.weather, self._chance
        life = self._any_life()
        if not life.dead:
            self._numbers += 1
            name = f"request-{self._numbers}"
            prefix = _keys_of(self._numbers, weather.common_blocks)
            self.prefixes[name] = prefix
            event = Arrived(
                name,
                (Tokens(16 * len(prefix) + chance.randint(1, weather.most_prompt)),),
                Tokens(chance.randint(1, weather.most_new)),
                Tokens(16),
                priority=chance.randint(0, weather.classes - 1),
                paced=chance.random() < 0.9,
                prefix=prefix,
            )
            self._deliver(life, self._comes, event)
        next_ns = self.now_ns + int(chance.expovariate(1 / weather.gap_ns)) + 1
        if next_ns < weather.calm_ns:
            self._at(next_ns, self._arrives)

    def _comes(self, life: Life, event: Arrived) -> None:
        life.alive.add(event.request_id)
        own_ns = life.own_ns(self.now_ns)
        if life.coming:
            life.coming.append(event)
            return
        call = life.replica.call_for([event], own_ns)
        if call is not None:
            life.coming.append(event)
            self._call(life, call)
        else:
            self._give(life, event)
        self._tend(life)

    def _produces(self, life: Life, name: str, tokens: int) -> None:
        """The engine brings some tokens of one request."""
        left = self._left.get(name)
        if left is None:
            return
        left -= tokens
        self._deliver(life, self._reports, name, tokens)
        if left <= 0:
            del self._left[name]
            self._deliver(life, self._ends, name)
            return
        self._left[name] = left
        more = min(left, _STRIDE)
        self._at(self.now_ns + more * TOKEN_NS, self._produces, life, name, more)

    def _reports(self, life: Life, name: str, tokens: int) -> None:
        if name in life.alive:
            self._give(life, Progressed(name, tokens))
            self._tend(life)

    def _ends(self, life: Life, name: str) -> None:
        if name in life.alive:
            life.alive.discard(name)
            self.finished += 1
            living = life.gate.ledger.living(name)
            self._give(life, Ended(name, Outcome.FINISHED, Tokens(living.seen_tokens)))
            self._tend(life)


def _keys_of(number: int, common_blocks: int) -> tuple[int, ...]:
    """What the prompt of a request begins with: mostly one thing, of which some go on alike as well, and others leave
    half way, all alike."""
    kind = number % 8
    if not kind or not common_blocks:
        return ()
    first = 10**6 * (1 + (kind == 1))
    further = common_blocks // 4 if kind == 2 else 0
    keys = range(first, first + common_blocks + further)
    if kind < 5:
        return tuple(keys)
    half = common_blocks // 2
    return (*keys[:half], *range(3 * 10**6, 3 * 10**6 + common_blocks - half))
