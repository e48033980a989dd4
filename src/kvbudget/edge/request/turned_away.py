"""Decides how a request ends that the gate refuses: in which words, counted as what, in which log."""

from typing import TYPE_CHECKING, Final

from kvbudget.edge.request.answers import UNREACHABLE_RETRY_NS, identified
from kvbudget.edge.request.flow import Flow, State
from kvbudget.gate.commands import Reject
from kvbudget.gate.gate import outcome_of
from kvbudget.gate.refusing.refusals import Refusal

if TYPE_CHECKING:
    from kvbudget.edge.request.gateway import Gateway

OF_THE_ENGINE: Final = frozenset({Refusal.DRAINING, Refusal.NO_BACKEND})
"""There is nobody to forward to: refused in shadow mode as well."""
_BY_LENGTH: Final = frozenset({Refusal.CONTEXT_EXCEEDED, Refusal.NEVER_FITS, Refusal.TENANT_TOO_LARGE})
_LACKS_ROOM: Final = frozenset({Refusal.POOL_FULL, Refusal.QUEUE_FULL, Refusal.DEADLINE, Refusal.TENANT_SHARE})


def as_told(flow: Flow, command: Reject) -> Reject:
    """The refusal as its client is to hear it."""
    if flow.instead and command.refusal in _BY_LENGTH:
        # Its true length may well fit: that it could not be counted is not the client's fault.
        return command._replace(refusal=Refusal.COUNT_FAILED, retry_after_ns=UNREACHABLE_RETRY_NS)
    return command


def turn_away(gateway: "Gateway", flow: Flow, command: Reject) -> None:
    """Answer a flow that neither gate nor gateway has any more."""
    flow.state = State.OVER
    metrics = gateway.metrics
    field = "max_tokens" if flow.ask is None else flow.ask.max_new_field
    flow.let_go()
    metrics.refusals[command.refusal] += 1
    if command.refusal in _LACKS_ROOM:
        default = gateway.arrivals.default_new_tokens
        asked = default if command.max_new_tokens is None else command.max_new_tokens
        metrics.refused_block_tokens += command.needed_blocks * asked
    metrics.outcomes[outcome_of(command.refusal)] += 1
    exchange, request_id = flow.exchange, flow.identity.request_id
    status, headers, body = gateway.refuser.answer(
        command, exact=flow.exact, errors=exchange.errors, field=field, request_id=request_id
    )
    if gateway.access_log is not None and flow.record is not None:
        gateway.access_log.refused(flow.record, status, command.refusal, gateway.now_ns(), command)
    exchange.respond(status, [*headers, *identified(exchange, request_id)], body)
