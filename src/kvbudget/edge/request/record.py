"""What is known of one request until it is over, and who wants to hear of it then."""

from typing import TYPE_CHECKING, ClassVar, Final, Protocol

from kvbudget.edge.openai.ask import Ask, Surface
from kvbudget.edge.request.flow import Flow
from kvbudget.edge.request.identity import Identity
from kvbudget.gate.commands import Forward, Reject
from kvbudget.gate.refusing.refusals import Outcome, Refusal
from kvbudget.values import Value

if TYPE_CHECKING:
    from kvbudget.edge.tracing.context import Trace

_SURFACES: Final = {surface: surface.value for surface in Surface}  # of a member it is a slow look-up


class Asked(Value):
    """What a request asked for, as it is logged. `declared`: the max_tokens that it named itself."""

    _fields: ClassVar = ("surface", "model", "stream", "sequences", "declared")
    __slots__ = _fields

    def __init__(self, surface: str, model: str | None, stream: bool, sequences: int, declared: int | None) -> None:
        self.surface: Final = surface
        self.model: Final = model
        self.stream: Final = stream
        self.sequences: Final = sequences
        self.declared: Final = declared


class Record:
    """What is known of one request until its line is written. Times are of the monotonic clock, in ns.

    `trace`: its place in a trace, where there are any."""

    __slots__ = (
        "admitted", "asked", "exact", "first_ns", "identity", "instance", "peer", "prompt_tokens", "since_ns", "trace",
    )  # fmt: skip

    def __init__(self, identity: Identity, asked: Asked | None, peer: str, since_ns: int) -> None:
        self.identity = identity
        self.asked = asked
        self.peer = peer
        self.since_ns = since_ns
        self.prompt_tokens: int | None = None
        self.exact = False
        self.admitted: Forward | None = None
        self.first_ns: int | None = None
        self.instance: str | None = None
        self.trace: Trace | None = None


class RequestLog(Protocol):
    """Hears of every request once, when it is over."""

    def refused(self, record: Record, status: int, refusal: Refusal, now_ns: int, reject: Reject | None = None) -> None:
        """It was not forwarded."""

    def ended(
        self, record: Record, outcome: Outcome, status: int | None, now_ns: int, output: int | None, cached: int | None
    ) -> None:
        """It was admitted or waited, and is over."""


def record_of(flow: Flow, ask: Ask) -> Record:
    """What is known of a request that was counted."""
    exchange = flow.exchange
    asked = Asked(_SURFACES[ask.surface], ask.model, ask.stream, ask.sequences, ask.max_new_tokens)
    record = Record(flow.identity, asked, exchange.peer, exchange.received_ns)
    record.prompt_tokens, record.exact = flow.prompt_tokens, flow.exact
    return record
