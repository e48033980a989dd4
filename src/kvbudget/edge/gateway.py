"""The asyncio driver of the gate: gives it events, and carries out what it commands.

The hot path has no task and no await: a request whose tokens are counted inline is admitted and on its way to the
engine within the callback that received its last byte.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable

from kvbudget.edge.answers import UNREACHABLE_RETRY_NS, Refuser, admitted_headers, plain_error
from kvbudget.edge.backend import Backend
from kvbudget.edge.flow import Flow, State
from kvbudget.edge.http.server import Exchange
from kvbudget.edge.http.upstream import RelayEnd, RelayOutcome
from kvbudget.edge.metrics import GateMetrics
from kvbudget.edge.openai.ask import Ask, Surface
from kvbudget.edge.openai.forward import forwarded_body
from kvbudget.edge.openai.usage import Usage, usage_in
from kvbudget.edge.tokens.count import Count, TokenIds
from kvbudget.edge.tokens.keys import PrefixKeys
from kvbudget.errors import AccountingError
from kvbudget.gate.commands import Command, Forward, Reject
from kvbudget.gate.config import PROGRESS_STRIDE
from kvbudget.gate.events import (
    Arrived,
    BackendChanged,
    DrainStarted,
    Ended,
    Event,
    PaceLost,
    PoolHeld,
    Preempted,
    Progressed,
    Tick,
)
from kvbudget.gate.gate import Gate, outcome_of
from kvbudget.gate.refusals import Outcome, Refusal
from kvbudget.units import Blocks, Tokens

log = logging.getLogger("kvbudget.gateway")

# Only these are streamed with one event per token and sequence.
_PACED_SURFACES = frozenset({Surface.CHAT, Surface.COMPLETIONS})
_TICK = Tick()
SHUTTING_DOWN = "This gate is shutting down; please try again later."
# By these an engine says that it is overloaded: not relayed, because they tell clients nothing of when to come back
# (vLLM 0.32 sends a bare 503), and 408 makes SDKs retry at once.
_ENGINE_OVERLOADED = frozenset({429, 503})
_ENGINE_TIMED_OUT = 408


class Gateway:
    """Owns the flows of one gate in front of one backend. All methods run in the event loop's thread.

    `default_new_tokens` is promised and written into a request that names no limit.
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
    ) -> None:
        self.gate = gate
        # Whether the engine lets requests use one another's blocks, as far as is known: nobody is credited otherwise.
        self.prefix_credit = False
        # Told of every exact count that the engine's usage could be compared with: (counted, told).
        self.compared: Callable[[int, int], None] | None = None
        # The ids that go to the engine in place of a prompt's text; None: the text.
        self.ids_to_forward: Callable[[Ask, Count], TokenIds | None] | None = None
        self.backend = backend
        self.metrics = metrics
        self.refuser = refuser
        self._default_new_tokens = default_new_tokens
        self._now_ns = now_ns
        self._prefix_keys = PrefixKeys() if prefix_keys is None else prefix_keys
        self._flows: dict[str, Flow] = {}  # parked or forwarded
        self._commands: deque[Command] = deque()
        self._executing = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns: int | None = None

    @property
    def flows(self) -> Iterable[Flow]:
        """All parked and forwarded flows."""
        return self._flows.values()

    def arrive(self, flow: Flow, ask: Ask, counted: Count, *, instead: bool = False) -> None:
        """A request is counted (or bounded `instead`, where the counter failed): ask the gate."""
        now_ns = self._now_ns()
        received_ns = flow.exchange.received_ns
        flow.counted(counted, instead=instead)
        self.metrics.count_seconds.observe((now_ns - received_ns) / 1e9)
        self.metrics.prompt_tokens.observe(flow.prompt_tokens)
        prompts, identity = counted.prompt_tokens, flow.identity
        flow.paced = (
            ask.stream and ask.sequences == 1 and len(prompts) == 1 and counted.exact and ask.surface in _PACED_SURFACES
        )
        if self.ids_to_forward is not None:
            flow.token_ids = self.ids_to_forward(ask, counted)
        self._flows[flow.key] = flow
        self.push(
            Arrived(
                flow.key,
                prompts,
                ask.max_new_tokens,
                self._default_new_tokens,
                ask.sequences,
                identity.tenant,
                identity.priority,
                flow.paced,
                None if identity.deadline_ns is None else received_ns + identity.deadline_ns,
                counted.exact,
                route=f"{ask.surface} {ask.model or ''}",
                prefix=self._prefix_keys.of(ask, counted, self.gate.ledger.key_tokens) if self.prefix_credit else (),
            )
        )

    # The gate decides

    def push(self, event: Event) -> None:
        """Give the gate an event and carry out what it commands."""
        try:
            commands = self.gate.handle(event, self._now_ns())
        except AccountingError:
            # Cautious: whatever the gate still holds stays promised; nothing is given out twice.
            self.metrics.ledger_errors += 1
            log.exception("the ledger was misused by %s", type(event).__name__)
            return
        if commands:
            self._commands.extend(commands)
            if self._executing:
                return  # an outer call is at it, and takes what was added here in its turn
            self._executing = True
            try:
                while self._commands:
                    self._execute(self._commands.popleft())
            finally:
                self._executing = False
        if self.gate.next_wake_ns != self._timer_ns:
            self._arm()

    def _execute(self, command: Command) -> None:
        flow = self._flows.get(command.request_id)
        if flow is None:
            return  # its client left while the command was under way, and its end was pushed already
        if type(command) is Forward:
            self._forward(flow, command)
        elif type(command) is Reject:
            self._reject(flow, command)
        else:
            flow.state = State.PARKED

    def _forward(self, flow: Flow, command: Forward) -> None:
        exchange, ask, metrics = flow.exchange, flow.ask, self.metrics
        assert ask is not None  # noqa: S101 - it is dropped only below
        flow.state = State.FORWARDED
        token_ids = flow.token_ids
        flow.ask = flow.token_ids = None
        flow.as_ids = token_ids is not None
        metrics.queue_seconds.observe(command.waited_ns / 1e9)
        metrics.overhead_seconds.observe((self._now_ns() - exchange.received_ns - command.waited_ns) / 1e9)
        request_id = flow.identity.request_id
        try:
            flow.relay = self.backend.upstream.relay(
                exchange,
                method=b"POST",
                target=exchange.target,
                headers=self.backend.request_headers(exchange, request_id),
                body=forwarded_body(ask, command.max_new_tokens, token_ids),
                response_headers=admitted_headers(self.gate, command, request_id, flow.prompt_tokens),
                watcher=flow,
            )
        except Exception:
            # Nothing may keep a reservation whose relay never began.
            self.end(flow, Outcome.UPSTREAM_FAILED, output_tokens=None, engine_done=True)
            raise

    def _reject(self, flow: Flow, command: Reject) -> None:
        del self._flows[flow.key]
        flow.state = State.OVER
        flow.let_go()
        if flow.instead and command.refusal in _BY_LENGTH:
            # Its true length may well fit: that it could not be counted is not the client's fault.
            command = command._replace(refusal=Refusal.COUNT_FAILED, retry_after_ns=UNREACHABLE_RETRY_NS)
        self.metrics.refusals[command.refusal] += 1
        self.metrics.outcomes[outcome_of(command.refusal)] += 1
        status, headers, body = self.refuser.answer(command, exact=flow.exact)
        flow.exchange.respond(status, [*headers, (b"x-request-id", flow.identity.request_id)], body)

    # Requests go on and end

    def client_gone(self, flow: Flow) -> None:
        """The client left. A forwarded flow hears of it by its relay, which closes the upstream connection."""
        if flow.state is State.COUNTING:
            flow.state = State.OVER
            self.metrics.outcomes[Outcome.WITHDRAWN] += 1
            flow.let_go()
        elif flow.state is State.PARKED:
            self.end(flow, Outcome.WITHDRAWN, output_tokens=None, engine_done=True)

    def relay_progressed(self, flow: Flow, events: int) -> None:
        """Events of a stream passed: one token each, give or take what GateConfig.lag_steps covers."""
        first = flow.seen_events == 0
        flow.seen_events += events
        flow.unreported_events += events
        if first or flow.unreported_events >= PROGRESS_STRIDE:
            self._report_progress(flow)

    def relay_stalled(self, flow: Flow) -> None:
        """The client reads slower than the engine writes: what we see says no more how far the engine is."""
        if flow.paced and flow.state is State.FORWARDED:
            flow.paced = False
            self.push(PaceLost(flow.key))

    def _report_progress(self, flow: Flow) -> None:
        events, flow.unreported_events = flow.unreported_events, 0
        if events and flow.paced and flow.state is State.FORWARDED:
            self.push(Progressed(flow.key, events))

    def relay_ended(self, flow: Flow, end: RelayEnd) -> None:
        """The one end of a forwarded flow's relay."""
        outcome = _OUTCOMES[end.outcome]
        output_tokens = cached_tokens = None
        if outcome is Outcome.FINISHED:
            if end.status is not None and end.status >= 400:
                outcome = Outcome.UPSTREAM_REFUSED
            else:
                usage = usage_in(end.body_tail)
                self._compare(flow, usage)
                if usage is not None:
                    output_tokens, cached_tokens = usage.completion_tokens, usage.cached_tokens
        if flow.unreported_events:
            self._report_progress(flow)
        self.end(
            flow,
            outcome,
            output_tokens=output_tokens,
            engine_done=end.outcome in _ENGINE_DONE,
            cached_tokens=cached_tokens,
        )
        if end.outcome is RelayOutcome.WITHHELD:
            self._answer_overload(flow, end)
        elif end.outcome in _UNANSWERED and flow.exchange.open:
            self.answer_for_engine(flow.exchange, flow.identity.request_id, end)

    def end(
        self,
        flow: Flow,
        outcome: Outcome,
        *,
        output_tokens: int | None,
        engine_done: bool,
        cached_tokens: Tokens | None = None,
    ) -> None:
        """End a parked or forwarded flow; a second call does nothing."""
        if flow.state is State.OVER:
            return
        flow.state = State.OVER
        del self._flows[flow.key]
        flow.let_go()
        self.metrics.outcomes[outcome] += 1
        tokens = None if output_tokens is None else Tokens(output_tokens)
        self.push(Ended(flow.key, outcome, tokens, engine_done, cached_tokens))

    def _compare(self, flow: Flow, usage: Usage | None) -> None:
        if usage is None:
            if flow.seen_events:
                self.metrics.output_tokens.observe(flow.seen_events)
            return
        self.metrics.output_tokens.observe(usage.completion_tokens)
        if flow.exact and self.compared is not None and not flow.as_ids:
            self.compared(flow.prompt_tokens, usage.prompt_tokens)
        if flow.exact and usage.prompt_tokens != flow.prompt_tokens:
            self.metrics.token_drift += abs(usage.prompt_tokens - flow.prompt_tokens)
            log.warning(
                "token drift: counted %s prompt tokens, the engine %s (request %s); the tokenizer or chat template is "
                "not the engine's",
                flow.prompt_tokens,
                usage.prompt_tokens,
                flow.identity.request_id.decode(),
            )

    def passes_on(self, status: int) -> bool:
        """Whether an answer of the engine with this status reaches the client."""
        return status not in _ENGINE_OVERLOADED and status != _ENGINE_TIMED_OUT

    def _answer_overload(self, flow: Flow, end: RelayEnd) -> None:
        """Say in our own form what the engine said in a form that clients cannot act on."""
        exchange, request_id = flow.exchange, flow.identity.request_id
        if end.status == _ENGINE_TIMED_OUT:
            plain_error(exchange, 504, "The engine gave up on the request.", request_id, "upstream_failed")
            return
        self.metrics.refusals[Refusal.ENGINE_BUSY] += 1
        told = "The engine has reached a limit of its own; please retry later."
        self.refuser.later(Refusal.ENGINE_BUSY, told, exchange, request_id)

    def answer_for_engine(self, exchange: Exchange, request_id: bytes, end: RelayEnd) -> None:
        """The engine gave no answer, and nothing was sent to the client yet."""
        if end.outcome is RelayOutcome.UNREACHABLE:
            self.backend.found_down()
            told = f"The engine at {self.backend.name} cannot be reached; please try again later."
            self.refuser.later(Refusal.NO_BACKEND, told, exchange, request_id)
        elif end.outcome is RelayOutcome.NO_CONNECTION:
            # Our own want (connections, descriptors): it says nothing of the engine.
            told = "This gate has no connection to the engine left; please try again later."
            self.refuser.later(Refusal.NO_BACKEND, told, exchange, request_id)
        elif end.outcome is RelayOutcome.TIMEOUT_BEFORE_HEAD:
            plain_error(exchange, 504, "The engine kept silent for too long.", request_id, "upstream_failed")
        elif end.outcome is RelayOutcome.CANCELLED:
            self.refuser.later(Refusal.DRAINING, SHUTTING_DOWN, exchange, request_id)
        else:
            plain_error(exchange, 502, "The engine broke off before it answered.", request_id, "upstream_failed")

    # The engine goes and comes; we go

    def backend_changed(self, up: bool) -> None:
        """The backend's monitor saw the engine come or go."""
        if up == self.gate.backend_up:
            return
        if up:
            log.info("the engine at %s is up", self.backend.url)
        else:
            problem = self.backend.facts.problem
            log.warning("the engine at %s is away (%s); requests get 503 until it is back", self.backend.url, problem)
        self.push(BackendChanged(up))

    def preempted(self, requests: int) -> None:
        """The engine's counter says that it has thrown out so many since it was last looked at."""
        self.push(Preempted(None, requests))

    def pool_held(self, blocks: Blocks) -> None:
        """What the engine says that it holds."""
        self.push(PoolHeld(blocks))

    def start_draining(self) -> None:
        """Refuse new requests with 503; parked and forwarded ones go on."""
        self.push(DrainStarted())

    def cut_off(self) -> None:
        """End every flow that is left; its client is told."""
        for flow in list(self._flows.values()):
            if flow.relay is not None:
                flow.relay.cancel()
            else:
                exchange, request_id = flow.exchange, flow.identity.request_id
                self.end(flow, Outcome.SHUT_DOWN, output_tokens=None, engine_done=True)
                self.refuser.later(Refusal.DRAINING, SHUTTING_DOWN, exchange, request_id)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._timer_ns = None

    def _arm(self) -> None:
        """Keep one timer, at the gate's next wake."""
        self.close()
        wake_ns = self._timer_ns = self.gate.next_wake_ns
        if wake_ns is not None:
            delay_s = max(0.0, (wake_ns - self._now_ns()) / 1e9)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._wake)

    def _wake(self) -> None:
        self._timer = self._timer_ns = None
        self.push(_TICK)


_OUTCOMES: dict[RelayOutcome, Outcome] = {
    RelayOutcome.DONE: Outcome.FINISHED,
    RelayOutcome.WITHHELD: Outcome.UPSTREAM_REFUSED,
    RelayOutcome.CLIENT_GONE: Outcome.CLIENT_GONE,
    RelayOutcome.UNREACHABLE: Outcome.UPSTREAM_FAILED,
    RelayOutcome.NO_CONNECTION: Outcome.UPSTREAM_FAILED,
    RelayOutcome.BROKEN_BEFORE_HEAD: Outcome.UPSTREAM_FAILED,
    RelayOutcome.TIMEOUT_BEFORE_HEAD: Outcome.TIMED_OUT,
    RelayOutcome.BROKEN_MIDWAY: Outcome.UPSTREAM_FAILED,
    RelayOutcome.TIMEOUT_MIDWAY: Outcome.TIMED_OUT,
    RelayOutcome.CANCELLED: Outcome.SHUT_DOWN,
}
_BY_LENGTH = frozenset({Refusal.CONTEXT_EXCEEDED, Refusal.NEVER_FITS, Refusal.TENANT_TOO_LARGE})
_ENGINE_DONE = frozenset(
    {RelayOutcome.DONE, RelayOutcome.WITHHELD, RelayOutcome.UNREACHABLE, RelayOutcome.NO_CONNECTION}
)
_UNANSWERED = frozenset(
    {
        RelayOutcome.UNREACHABLE,
        RelayOutcome.NO_CONNECTION,
        RelayOutcome.BROKEN_BEFORE_HEAD,
        RelayOutcome.TIMEOUT_BEFORE_HEAD,
        RelayOutcome.CANCELLED,
    }
)
