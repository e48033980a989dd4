"""The asyncio driver of the gate: gives it events, and carries out what it commands.

The hot path has no task and no await: a request whose tokens are counted inline is admitted and on its way to the
engine within the callback that received its last byte.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from kvbudget.edge.http.messages import ClientHeaders
from kvbudget.edge.http.server import Exchange
from kvbudget.edge.http.upstream import RelayEnd
from kvbudget.edge.instances.backend import Backend
from kvbudget.edge.instances.vocabularies import counted_at
from kvbudget.edge.metrics import GateMetrics
from kvbudget.edge.openai.ask import Ask
from kvbudget.edge.openai.forward import forwarded_body, slimmed
from kvbudget.edge.request.answers import Refuser, admitted_headers, identified
from kvbudget.edge.request.arrivals import Arrivals
from kvbudget.edge.request.ends import RelayEnds
from kvbudget.edge.request.engine_headers import EngineHeaders
from kvbudget.edge.request.flow import Flow, Held, State
from kvbudget.edge.request.identity import Identity
from kvbudget.edge.request.recalls import Recalls
from kvbudget.edge.request.record import Record, RequestLog, record_of
from kvbudget.edge.request.renaming import renamed
from kvbudget.edge.request.standing import Standing, most_room
from kvbudget.edge.request.turned_away import OF_THE_ENGINE, as_told, turn_away
from kvbudget.edge.sharing.lending import Lending
from kvbudget.edge.tokens.count import Count, TokenIds
from kvbudget.edge.tokens.keys import PrefixKeys
from kvbudget.edge.tracing.tracer import Tracer
from kvbudget.errors import AccountingError
from kvbudget.gate.commands import Command, Forward, Reject
from kvbudget.gate.events import Arrived, DrainStarted, Ended, Event, PaceLost, Progressed, Tick
from kvbudget.gate.fleet.fleet import Fleet, InstanceEvent
from kvbudget.gate.fleet.member import Member
from kvbudget.gate.fleet.options import FleetConfig, MemberOptions
from kvbudget.gate.gate import Gate
from kvbudget.gate.refusing.refusals import Outcome, Refusal
from kvbudget.units import Tokens

log = logging.getLogger("kvbudget.gateway")

_TICK: Final = Tick()
_SLIMMED_BYTES: Final = 16 * 1024  # of a body; below, what could be spared is not worth it
# Read with every request; a member by its class is a slow look-up before Python 3.12.
_WAITING: Final = Held.WAITING
_RESERVED: Final = Held.RESERVED
_NOTHING: Final = Held.NOTHING
_FORWARDED: Final = State.FORWARDED
_OVER: Final = State.OVER


class Gateway:
    """Owns the flows of a gate in front of its backends. All methods run in the event loop's thread.

    `gate` and `backend` are the first instance's; of several, `fleet` has the gates and `backends` the engines, by
    name. Where instances come and go (`edge.discovery`) they are those of the first that stays. `default_new_tokens` is
    promised and written into a request that names no limit.
    """

    def __init__(
        self,
        gate: Gate,
        backend: Backend,
        refuser: Refuser,
        metrics: GateMetrics,
        *,
        default_new_tokens: Tokens,
        now_ns: Callable[[], int],
        prefix_keys: PrefixKeys | None = None,
        access_log: RequestLog | None = None,
        fleet: Fleet | None = None,
        backends: dict[str, Backend] | None = None,
    ) -> None:
        self.gate = gate
        if fleet is None:
            config = FleetConfig()
            fleet = Fleet([Member(backend.name, gate, MemberOptions(), config)], config)
            fleet.home.prefix_credit = False  # nobody is credited before the engine says that it has a cache
        self.fleet = fleet
        # What decides: the fleet, or the one gate itself, at no more cost than without a fleet.
        self.admission: Fleet | Gate = fleet if fleet.only is None else gate
        self.only = gate if fleet.only is not None else None  # the same, for what is asked with every request
        # Decide and count, but forward everything at once and as it came: neither refusal nor wait nor clamp.
        self.shadow = False
        self.access_log = access_log
        self.lendings: list[Lending] = []  # where the pools are shared with other gates: one for each instance
        self.tracer: Tracer | None = None  # where it is, it is the access log as well
        # Told of every exact count that the engine's usage could be compared with: (counted, told, instance).
        self.compared: Callable[[int, int, str], None] | None = None
        # The ids that go to the engine in place of a prompt's text; None: the text.
        self.ids_to_forward: Callable[[Ask, Count], TokenIds | None] | None = None
        self.backend = backend
        self.backends = {backend.name: backend} if backends is None else backends
        self.metrics = metrics
        self.refuser = refuser
        refuser.standing = Standing(lambda: most_room(fleet))
        self.now_ns = now_ns
        self.arrivals = Arrivals(self, default_new_tokens, prefix_keys)
        self.ends = RelayEnds(self)
        self.recalls = Recalls(self)
        self._flows: dict[str, Flow] = {}  # parked or forwarded
        self._commands: deque[Command] = deque()
        self._executing = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns: int | None = None

    @property
    def flows(self) -> Iterable[Flow]:
        """All parked and forwarded flows."""
        return self._flows.values()

    @property
    def prefix_credit(self) -> bool:
        """Whether an engine lets requests use one another's blocks, as far as is known; else nobody is credited."""
        only = self.fleet.only
        return any(member.prefix_credit for member in self.fleet.members) if only is None else only.prefix_credit

    def backend_for(self, model: str | None) -> Backend:
        """An engine that serves a model, one that is up if there is any; where none is known, one that is nowhere."""
        serving = [member for member in self.fleet.members if member.serves(model)]
        serving = serving or [member for member in self.fleet.members if member.stands_in_for(model)]
        up = [member for member in serving if member.in_service]
        chosen = up or serving or self.fleet.members
        return self.backends[chosen[0].name] if chosen else self.backend

    def arrive(self, flow: Flow, ask: Ask, counted: Count, *, instead: bool = False) -> None:
        """A request is counted (or bounded `instead`, where the counter failed): ask the gate."""
        now_ns = self.now_ns()
        metrics = self.metrics
        flow.counted(counted, instead=instead)
        metrics.count_seconds.observe((now_ns - flow.exchange.received_ns) / 1e9)
        metrics.prompt_tokens.observe(flow.prompt_tokens)
        event = self.arrivals.event_of(flow, ask, counted)
        if len(ask.raw) >= _SLIMMED_BYTES:
            flow.ask = ask = slimmed(ask)
        for lending in self.lendings:
            if lending.has_to_ask(event, now_ns):
                self._ask_first(lending, flow, ask, event, now_ns)
                return
        self._give(flow, ask, event, now_ns, now_ns)

    def _ask_first(self, lending: Lending, flow: Flow, ask: Ask, event: Arrived, counted_ns: int) -> None:
        lending.ask_for(event, counted_ns, lambda: self._give(flow, ask, event, counted_ns, self.now_ns()))

    def _give(self, flow: Flow, ask: Ask, event: Arrived, counted_ns: int, now_ns: int) -> None:
        """Let it arrive at the gate, unless its client has left."""
        if flow.state is _OVER:
            return
        self._flows[flow.key] = flow
        flow.held = _WAITING
        if self.access_log is not None:
            flow.record = record_of(flow, ask)
            if self.tracer is not None:
                self._trace(flow.record, flow.exchange, counted_ns)
        if flow.exchange.avoid:
            self.obey(self.fleet.again(event, flow.exchange.avoid, now_ns), now_ns)
        else:
            self._push(event, now_ns)
        if self.shadow and flow.held is _WAITING and flow.state is not State.FORWARDED:
            self._relay(flow, forwarded=None)

    # The gate decides

    def push(self, event: Event) -> None:
        """Give the gate an event and carry out what it commands."""
        self._push(event, self.now_ns())

    def _push(self, event: Event, now_ns: int) -> None:
        only = self.only
        try:
            commands = self.fleet.handle(event, now_ns) if only is None else only.handle(event, now_ns)
        except AccountingError:
            # Cautious: whatever the gate still holds stays promised; nothing is given out twice.
            self.metrics.ledger_errors += 1
            log.exception("the ledger was misused by %s", type(event).__name__)
            return
        self.obey(commands, now_ns)

    def push_at(self, member: Member, event: Event | InstanceEvent) -> None:
        """Give an event of one instance."""
        now_ns = self.now_ns()
        self.obey(self.fleet.handle_at(member, event, now_ns), now_ns)

    def obey(self, commands: list[Command], now_ns: int) -> None:
        """Carry out what a gate commands; it was asked just now."""
        if commands:
            if self._executing:
                self._commands.extend(commands)
                return  # an outer call is at it, and takes what was added here in its turn
            self._executing = True
            try:
                if len(commands) == 1:  # as nearly always
                    self._execute(commands[0])
                else:
                    self._commands.extend(commands)
                while self._commands:
                    self._execute(self._commands.popleft())
            finally:
                self._executing = False
        only = self.only
        if (self.fleet.next_wake_ns if only is None else only.next_wake_ns) != self._timer_ns:
            self._arm()
        for lending in self.lendings:
            lending.nudge(now_ns)

    def _execute(self, command: Command) -> None:
        flow = self._flows.get(command.request_id)
        if flow is None:
            return  # its client left while the command was under way, and its end was pushed already
        if type(command) is Forward:
            self._forward(flow, command)
        elif type(command) is Reject:
            self._reject(flow, command)
        elif flow.state is not State.FORWARDED:  # a shadow does not wait
            flow.state, flow.parked_ns = State.PARKED, self.now_ns()

    def _forward(self, flow: Flow, command: Forward) -> None:
        flow.held = _RESERVED
        metrics = self.metrics
        waited_ns = flow.waited_ns = command.waited_ns
        metrics.queue_seconds.observe(waited_ns / 1e9)
        if flow.record is not None:
            flow.record.admitted = command
        if flow.state is _FORWARDED:
            return  # a shadow, which did not wait for this
        now_ns = flow.forwarded_ns = self.now_ns()
        metrics.overhead_seconds.observe((now_ns - flow.exchange.received_ns - waited_ns) / 1e9)
        self._relay(flow, command)

    def _relay(self, flow: Flow, forwarded: Forward | None) -> None:
        """Send it to the engine; without a promise (None), as it came."""
        exchange, ask = flow.exchange, flow.ask
        assert ask is not None  # noqa: S101 - it is dropped only when the engine answers
        flow.state = _FORWARDED
        request_id = flow.identity.request_id
        gate, backend = self.gate, self.backend
        several = self.only is None
        if several:
            if forwarded is None:
                backend = self.backend_for(ask.model)
            else:
                member = self.fleet.placed(flow.key)
                gate, backend = member.gate, self.backends[member.name]
                counted_at(flow, member)
        flow.backend = backend
        if forwarded is None:
            flow.forwarded_ns = self.now_ns()
        if flow.record is not None:
            flow.record.instance = backend.name
        try:
            if forwarded is None or self.shadow:
                body, flow.as_ids = ask.raw, False
            else:
                token_ids = flow.token_ids
                body = forwarded_body(ask, forwarded.max_new_tokens, token_ids)
                if token_ids:
                    flow.as_ids = True
            if ask.model is not None and (several or ask.model in backend.aliases):
                body = renamed(body, ask.model, backend.own_name(ask.model))
            flow.relay = backend.upstream.relay(
                exchange,
                b"POST",
                exchange.target,
                self._headers(flow, backend),
                body,
                (
                    identified(exchange, request_id)
                    if forwarded is None
                    else admitted_headers(gate, forwarded, request_id, flow.prompt_tokens, exchange.errors)
                ),
                flow,
            )  # without the arguments' names: of a protocol's method, compiled, to find them takes longer than to call
        except Exception:
            # Nothing may keep a reservation whose relay never began.
            self.end(flow, Outcome.UPSTREAM_FAILED, output_tokens=None, engine_done=True)
            raise

    def _headers(self, flow: Flow, backend: Backend) -> ClientHeaders:
        headers: EngineHeaders = backend.headers
        request_id, trace = flow.identity.request_id, None if flow.record is None else flow.record.trace
        if trace is None:
            return headers.of(request_id)
        parent_line = trace.sent(backend, self.now_ns())
        return headers.traced(request_id, parent_line, begins=trace.begins)

    def _trace(self, record: Record, exchange: Exchange, counted_ns: int | None) -> None:
        assert self.tracer is not None  # noqa: S101 - asked before, so that nothing is called where it is off
        record.trace = trace = self.tracer.begin(exchange)
        if trace is not None:
            trace.counted_ns = counted_ns

    def _reject(self, flow: Flow, command: Reject) -> None:
        flow.held = _NOTHING
        command = as_told(flow, command)
        if self.shadow and command.refusal not in OF_THE_ENGINE:
            self.metrics.shadow_refusals[command.refusal] += 1
            if flow.state is not _FORWARDED:
                self._relay(flow, None)
        elif flow.state is not _FORWARDED:  # else a shadow of before the mode changed; its relay goes on
            del self._flows[flow.key]
            turn_away(self, flow, command)

    def set_shadow(self, shadow: bool) -> None:
        """From now on only decide and count, or decide for real again. Switched on, whoever waits goes at once."""
        if shadow == self.shadow:
            return
        self.shadow = shadow
        log.warning("shadow mode is %s", "on: nothing is refused, nothing waits" if shadow else "off")
        if shadow:
            for flow in list(self._flows.values()):
                if flow.state is State.PARKED:
                    self._relay(flow, None)

    # Requests go on and end

    def client_gone(self, flow: Flow) -> None:
        """The client left. A forwarded flow hears of it by its relay, which closes the upstream connection."""
        if flow.state is State.COUNTING:
            flow.state = State.OVER
            self.metrics.outcomes[Outcome.WITHDRAWN] += 1
            self.log_uncounted(flow.exchange, flow.identity, Outcome.WITHDRAWN, None)
            flow.let_go()
        elif flow.state is State.PARKED:
            self.end(flow, Outcome.WITHDRAWN, output_tokens=None, engine_done=True)

    def relay_progressed(self, flow: Flow) -> None:
        """Tell the gate what passed of a stream."""
        if flow.record is not None and flow.record.first_ns is None:
            flow.record.first_ns = self.now_ns()
        if flow.held is not _RESERVED:
            return  # a shadow that the gate would still let wait: told as soon as it would not
        events = flow.unreported_events
        if events <= 0:
            return  # so far only what comes before the first token
        flow.unreported_events = 0
        if flow.paced and flow.state is State.FORWARDED:
            self.push(Progressed(flow.key, events))

    def relay_stalled(self, flow: Flow) -> None:
        """The client reads slower than the engine writes: what we see says no more how far the engine is."""
        if flow.paced and flow.state is State.FORWARDED:
            flow.paced = False
            if flow.held is _RESERVED:
                self.push(PaceLost(flow.key))

    def relay_ended(self, flow: Flow, end: RelayEnd) -> None:
        """The one end of a forwarded flow's relay."""
        try:
            self.ends.ended(flow, end)
        except Exception:
            # Whatever is wrong with what is made of it, a promise ends with its relay.
            self.end(flow, Outcome.UPSTREAM_FAILED, output_tokens=None, engine_done=False)
            raise

    def passes_on(self, flow: Flow, status: int) -> bool:
        """Whether an answer of the engine with this status reaches the client as it comes."""
        return self.ends.passes_on(flow, status)

    def try_again(self, flow: Flow, outcome: Outcome, *, engine_done: bool, avoid: frozenset[str]) -> None:
        """Nothing of an answer was sent: back to the gate with it, under a new name, as its tail may live on."""
        arrived = flow.arrived
        assert arrived is not None  # noqa: S101 - kept until the engine answers
        flow.tries += 1
        self.metrics.retries += 1
        old_key, flow.key = flow.key, f"{flow.key.partition('.')[0]}.{flow.tries}"
        flow.state, flow.relay, flow.recalled, flow.lost = State.PARKED, None, False, False
        del self._flows[old_key]
        self._flows[flow.key] = flow
        flow.seen_events = flow.unreported_events = 0 if flow.ask is None else -flow.ask.lead_events
        self.push(Ended(old_key, outcome, None, engine_done))
        flow.held = _WAITING
        if flow.state is not State.PARKED:
            return  # what followed has ended it
        event = flow.arrived = arrived._replace(request_id=flow.key)
        now_ns = self.now_ns()
        self.obey(self.fleet.again(event, avoid, now_ns, flow.exchange.received_ns), now_ns)

    def forfeit(self, member: Member, blocks: int) -> None:
        """So many blocks were given to another gate while this one was not heard of."""
        self.recalls.forfeit(member, blocks)

    def ledger_failed(self) -> None:
        """The ledger that several gates share did not answer."""
        self.metrics.ledger_errors += 1
        self.metrics.ledger_call_failures += 1

    def log_uncounted(
        self, exchange: Exchange, identity: Identity, outcome: Outcome | Refusal, status: int | None
    ) -> None:
        """A request is over before it was counted."""
        if self.access_log is None:
            return
        record = Record(identity, None, exchange.peer, exchange.received_ns)
        if self.tracer is not None:
            self._trace(record, exchange, None)
        if isinstance(outcome, Refusal):
            self.access_log.refused(record, status or 0, outcome, self.now_ns())
        else:
            self.access_log.ended(record, outcome, status, self.now_ns(), None, None)

    def end(
        self,
        flow: Flow,
        outcome: Outcome,
        *,
        output_tokens: int | None,
        engine_done: bool,
        cached_tokens: Tokens | None = None,
        status: int | None = None,
    ) -> None:
        """End a parked or forwarded flow; a second call does nothing."""
        if flow.state is _OVER:
            return
        flow.state = _OVER
        del self._flows[flow.key]
        flow.let_go()
        self.metrics.outcomes[outcome] += 1
        now_ns = self.now_ns()
        if flow.held is not _NOTHING:  # else a shadow that the gate would have refused
            flow.held = _NOTHING
            tokens = None if output_tokens is None else Tokens(output_tokens)
            self._push(Ended(flow.key, outcome, tokens, engine_done, cached_tokens), now_ns)
        if self.access_log is not None and flow.record is not None:
            self.access_log.ended(flow.record, outcome, status, now_ns, output_tokens, cached_tokens)

    # The engine goes and comes; we go

    def start_draining(self) -> None:
        """Refuse new requests with 503; parked and forwarded ones go on."""
        self.push(DrainStarted())

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._timer_ns = None

    def _arm(self) -> None:
        """Keep one timer, at the gate's next wake."""
        self.close()
        wake_ns = self._timer_ns = self.admission.next_wake_ns
        if wake_ns is not None:
            delay_s = max(0.0, (wake_ns - self.now_ns()) / 1e9)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._wake)

    def _wake(self) -> None:
        self._timer = self._timer_ns = None
        self.push(_TICK)
