"""Decides what the end of a relay means: for the gate, for the engine's health, for another try, and for the client."""

import logging
from typing import TYPE_CHECKING, Final

from kvbudget.edge.http.server import Exchange
from kvbudget.edge.http.upstream import RelayEnd, RelayOutcome
from kvbudget.edge.instances.backend import Backend
from kvbudget.edge.openai.usage import Usage, usage_in
from kvbudget.edge.request.flow import Flow, Held, State
from kvbudget.edge.request.identity import Identity
from kvbudget.edge.request.tries import MOST_TRIES, OVERLOADED, Again, again_after, busy_ns, heard_of
from kvbudget.edge.surfaces.table import ROWS
from kvbudget.gate.events import EngineBusy
from kvbudget.gate.fleet.events import Heard
from kvbudget.gate.refusing.refusals import Outcome, Refusal

if TYPE_CHECKING:
    from kvbudget.edge.request.gateway import Gateway

log = logging.getLogger("kvbudget.gateway")

_FORFEITED: Final = "This gate was out of touch with the shared ledger for too long; please try again."
SHUTTING_DOWN: Final = "This gate is shutting down; please try again later."
# By 408 and those of `tries.OVERLOADED` an engine says that it has enough to do: not relayed, because they tell clients
# nothing of when to come back (vLLM 0.32 sends a bare 503, Dynamo 529), and 408 makes SDKs retry at once.
_ENGINE_TIMED_OUT: Final = 408
# Where the gate has put the engine's key in place of the client's, these are no word to the client.
_KEY_REFUSED: Final = frozenset({401, 403})
_DONE: Final = RelayOutcome.DONE
_RESERVED: Final = Held.RESERVED
_OUTCOMES: Final[dict[RelayOutcome, Outcome]] = {
    RelayOutcome.DONE: Outcome.FINISHED,
    RelayOutcome.UNSEEN: Outcome.FINISHED,
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
_ENGINE_DONE: Final = frozenset(
    {RelayOutcome.DONE, RelayOutcome.WITHHELD, RelayOutcome.UNREACHABLE, RelayOutcome.NO_CONNECTION}
)
_WELL: Final = frozenset({RelayOutcome.DONE, RelayOutcome.UNSEEN})
_UNANSWERED: Final = frozenset(
    {
        RelayOutcome.UNREACHABLE,
        RelayOutcome.NO_CONNECTION,
        RelayOutcome.BROKEN_BEFORE_HEAD,
        RelayOutcome.TIMEOUT_BEFORE_HEAD,
        RelayOutcome.CANCELLED,
    }
)


def _outcome_of(flow: Flow, ended: RelayOutcome, *, done: bool) -> Outcome:
    if done:
        return Outcome.FINISHED
    if flow.forfeited and ended is RelayOutcome.CANCELLED:
        return Outcome.LEASE_LOST
    return Outcome.ENGINE_LOST if flow.lost else _OUTCOMES[ended]


def _failure(ended: RelayOutcome, outcome: Outcome) -> str | None:
    """What a trace calls an end that is not that of a whole answer: what was not shown to us is none."""
    if outcome is Outcome.FINISHED:
        return None
    return outcome.value if ended in _WELL else ended.value  # well, but of an engine that is another one by now


class RelayEnds:
    """What a gateway makes of the ends of its relays."""

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway

    def ended(self, flow: Flow, end: RelayEnd) -> None:
        """The one end of a forwarded flow's relay."""
        gateway = self._gateway
        ended = end.outcome
        done = ended is _DONE and not flow.lost
        outcome = _outcome_of(flow, ended, done=done)
        output_tokens = cached_tokens = usage = None
        if done:
            if end.status is not None and end.status >= 400:
                outcome = Outcome.UPSTREAM_REFUSED
            else:
                read = ROWS[flow.surface].usage
                usage = usage_in(end.body_tail) if read is None else read(end.body_tail, end.headers)
                self._compare(flow, usage)
                if usage is not None:
                    output_tokens, cached_tokens = usage.completion_tokens, usage.cached_tokens
        if flow.record is not None and flow.record.trace is not None:
            failure = None if done else _failure(ended, outcome)
            prompt_tokens = usage.prompt_tokens if usage is not None else None
            flow.record.trace.over(gateway.now_ns(), end.status, failure, prompt_tokens)
        if flow.unreported_events:
            gateway.relay_progressed(flow)
        backend = flow.backend
        if not done or gateway.only is None:
            self._hear(flow, end)
            if not done and self._tries_again(flow, end, outcome):
                return
        elif backend is not None:
            backend.busy_in_row = 0
        gateway.end(
            flow,
            outcome,
            output_tokens=output_tokens,
            engine_done=done or flow.lost or ended in _ENGINE_DONE,
            cached_tokens=cached_tokens,
            status=end.status,
        )
        if done:
            return
        if ended is RelayOutcome.WITHHELD:
            self._answer_overload(flow, end)
        elif outcome is Outcome.LEASE_LOST and flow.exchange.open:
            request_id, waited_ns = flow.identity.request_id, flow.waited_ns
            gateway.refuser.later(Refusal.LEDGER_LOST, _FORFEITED, flow.exchange, request_id, waited_ns=waited_ns)
        elif flow.recalled and flow.exchange.open:
            told = "The engine was restarted, or makes no progress; the request is lost there."
            self._failed(flow, 502, told)
        elif ended in _UNANSWERED and flow.exchange.open:
            self.unanswered(flow.exchange, flow.identity.request_id, end, backend, waited_ns=flow.waited_ns)

    def uncharged(self, exchange: Exchange, identity: Identity, end: RelayEnd) -> None:
        """The end of one that passed without a charge because shadow mode refuses nothing."""
        outcome = _OUTCOMES[end.outcome]
        if end.outcome is _DONE and end.status is not None and end.status >= 400:
            outcome = Outcome.UPSTREAM_REFUSED
        self._gateway.metrics.outcomes[outcome] += 1
        self._gateway.log_uncounted(exchange, identity, outcome, end.status)

    def _hear(self, flow: Flow, end: RelayEnd) -> None:
        """What the end of a relay tells of the engine."""
        gateway = self._gateway
        backend = flow.backend
        assert backend is not None  # noqa: S101 - it was forwarded
        heard = heard_of(end)
        if heard is Heard.WELL:
            backend.busy_in_row = 0
        if end.outcome is RelayOutcome.UNREACHABLE:
            backend.found_down()
        elif end.outcome is RelayOutcome.CLIENT_GONE:
            backend.look_soon()  # an abort has killed engines (LMCache#3688)
        if gateway.fleet.only is None and flow.state is State.FORWARDED:
            member = gateway.fleet.named(backend.name)  # a shadow may wait at another one, or be refused
            now_ns = gateway.now_ns()
            gateway.obey(gateway.fleet.heard(flow.key, heard, now_ns, member), now_ns)

    def _tries_again(self, flow: Flow, end: RelayEnd, outcome: Outcome) -> bool:
        """Whether it goes back into the queue, or to another instance: nothing of an answer was sent, and it may."""
        gateway = self._gateway
        backend = flow.backend
        assert backend is not None  # noqa: S101 - it was forwarded
        again = again_after(end, flow.tries, alone=len(gateway.backends) == 1, recalled=flow.recalled)
        if again is Again.BUSY:
            self._engine_busy(backend, end)
        lives = flow.state is State.FORWARDED and flow.exchange.open
        if flow.held is not _RESERVED:
            return False  # a shadow: what becomes of it is the engine's matter
        if again is Again.NO or flow.tries >= MOST_TRIES - 1 or flow.arrived is None or not lives:
            return False
        engine_done = end.outcome in _ENGINE_DONE or outcome is Outcome.ENGINE_LOST
        avoid = frozenset({backend.name}) if again is Again.ELSEWHERE else frozenset[str]()
        gateway.try_again(flow, outcome, engine_done=engine_done, avoid=avoid)
        return True

    def _engine_busy(self, backend: Backend, end: RelayEnd) -> None:
        gateway = self._gateway
        member = gateway.fleet.named(backend.name)
        assert member is not None  # noqa: S101 - it was forwarded to it
        backend.busy_in_row += 1
        until_ns = gateway.now_ns() + busy_ns(end, backend.busy_in_row)
        gateway.push_at(member, EngineBusy(max(until_ns, member.gate.busy_until_ns)))

    def _compare(self, flow: Flow, usage: Usage | None) -> None:
        gateway = self._gateway
        if usage is None:
            if flow.seen_events > 0:
                gateway.metrics.output_tokens.observe(flow.seen_events)
            return
        if usage.completion_tokens is not None:
            gateway.metrics.output_tokens.observe(usage.completion_tokens)
        if not flow.exact or usage.prompt_tokens is None:
            return
        if gateway.compared is not None and not flow.as_ids:
            name = "" if flow.backend is None else flow.backend.name
            gateway.compared(flow.prompt_tokens, usage.prompt_tokens, name)
        if usage.prompt_tokens != flow.prompt_tokens:
            gateway.metrics.token_drift += abs(usage.prompt_tokens - flow.prompt_tokens)
            log.warning(
                "token drift: counted %s prompt tokens, the engine %s (request %s); the tokenizer or chat template is "
                "not the engine's",
                flow.prompt_tokens,
                usage.prompt_tokens,
                flow.identity.request_id.decode(),
            )

    def passes_on(self, flow: Flow, status: int) -> bool:
        """Whether an answer of the engine with this status reaches the client as it comes."""
        if flow.record is not None and flow.record.trace is not None:
            flow.record.trace.answered(self._gateway.now_ns())
        if status < 400:
            return True  # nearly always
        if status == 500 and flow.backend is not None and flow.backend.facts.engine == "llamacpp":
            return False  # its body tells whether that was for want of room
        if status in _KEY_REFUSED and flow.backend is not None and flow.backend.replaces_keys:
            return False
        return status not in OVERLOADED and status != _ENGINE_TIMED_OUT

    def _answer_overload(self, flow: Flow, end: RelayEnd) -> None:
        """Say in our own form what the engine said in a form that clients cannot act on."""
        gateway = self._gateway
        exchange, request_id = flow.exchange, flow.identity.request_id
        if end.status == _ENGINE_TIMED_OUT:
            self._failed(flow, 504, "The engine gave up on the request.")
            return
        if end.status in _KEY_REFUSED:
            log.error("the engine answered %s to the gate's key for it (KVBUDGET_BACKEND_API_KEY)", end.status)
            self._failed(flow, 502, "The engine does not take the key that this gate has for it.")
            return
        if again_after(end, 0, alone=True, recalled=False) is not Again.BUSY:
            status, body = end.status or 500, end.body_tail
            gateway.refuser.passed_on(exchange, status, end.headers, body, request_id, flow.waited_ns)
            return
        gateway.metrics.refusals[Refusal.ENGINE_BUSY] += 1
        told = "The engine has reached a limit of its own; please retry later."
        gateway.refuser.later(Refusal.ENGINE_BUSY, told, exchange, request_id, waited_ns=flow.waited_ns)

    def _failed(self, flow: Flow, status: int, told: str) -> None:
        request_id, refuser = flow.identity.request_id, self._gateway.refuser
        refuser.plain_error(flow.exchange, status, told, request_id, "upstream_failed", waited_ns=flow.waited_ns)

    def unanswered(
        self,
        exchange: Exchange,
        request_id: bytes,
        end: RelayEnd,
        backend: Backend | None = None,
        *,
        waited_ns: int = 0,
    ) -> None:
        """The engine gave no answer, and nothing was sent to the client yet."""
        gateway = self._gateway
        refuser = gateway.refuser
        backend = backend or gateway.backend
        if end.outcome is RelayOutcome.UNREACHABLE:
            backend.found_down()
            told = f"The engine at {backend.name} cannot be reached; please try again later."
            refuser.later(Refusal.NO_BACKEND, told, exchange, request_id, waited_ns=waited_ns)
        elif end.outcome is RelayOutcome.NO_CONNECTION:
            # Our own want (connections, descriptors): it says nothing of the engine.
            told = "This gate has no connection to the engine left; please try again later."
            refuser.later(Refusal.NO_BACKEND, told, exchange, request_id, waited_ns=waited_ns)
        elif end.outcome is RelayOutcome.TIMEOUT_BEFORE_HEAD:
            told = "The engine kept silent for too long."
            refuser.plain_error(exchange, 504, told, request_id, "upstream_failed", waited_ns=waited_ns)
        elif end.outcome is RelayOutcome.CANCELLED:
            refuser.later(Refusal.DRAINING, SHUTTING_DOWN, exchange, request_id, waited_ns=waited_ns)
        else:
            told = "The engine broke off before it answered."
            refuser.plain_error(exchange, 502, told, request_id, "upstream_failed", waited_ns=waited_ns)
