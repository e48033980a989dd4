"""One request as Envoy tells of it, message by message: what is answered to each, and what must never be left behind.

    HEAD -> BODY -> DECIDING -> CARRIED -> OVER
                        \\--> ANSWERED

A stream knows no gRPC: `receive` takes the bytes of one message, what is to be sent goes to `send`, and `closed` is
called exactly once, however the stream ended. Whatever was counted, waits or is reserved for its request ends there.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Protocol

from kvbudget.edge.extproc import told
from kvbudget.edge.extproc.endpoints import Endpoints
from kvbudget.edge.extproc.exchange import HeldExchange
from kvbudget.edge.extproc.handover import Handed
from kvbudget.edge.extproc.heard import ProtocolError, Start, answer_of, parsed, start_of
from kvbudget.edge.extproc.told import Changes
from kvbudget.edge.extproc.wire import BodyMode
from kvbudget.edge.http.exchange import Exchange
from kvbudget.edge.http.heads import RequestHead
from kvbudget.edge.http.limits import ServerLimits
from kvbudget.edge.http.messages import Headers
from kvbudget.edge.http.refused import NOTHING_ASKED, Asked, ErrorAnswer
from kvbudget.edge.request.answers import Refuser
from kvbudget.edge.request.paths import CHARGED, COUNT_TOKENS
from kvbudget.gate.refusing.refusals import Refusal

log = logging.getLogger("kvbudget.extproc")

_IN_TIME_S: Final = 0.25  # before Envoy's own time is up, we refuse: a 504 of Envoy's tells no client when to come back
_COUNTED_BYTES: Final = 65536  # smaller bodies are not counted, as in the data plane
_WHOLE: Final = (BodyMode.BUFFERED, BodyMode.FULL_DUPLEX)
_TOLD_MODE: Final = (
    "This gate must see whole request bodies: set request_body_mode of Envoy's ext_proc filter to BUFFERED or "
    "FULL_DUPLEX_STREAMED."
)
_TOLD_LATE: Final = "There is no room yet, and the proxy waits no longer; please retry later."
_TOLD_SUBSET: Final = "None of the endpoints that this request may go to is ready; please try again later."
_TOLD_LARGE: Final = "The request body is larger than {most} bytes (--max-body)."
_TOLD_FULL: Final = "This gate holds as many request bodies as it may; please try again later."
_TOLD_SLOW: Final = "The request body did not arrive in time."


class Step(Enum):
    """Where a stream stands."""

    HEAD = "head"  # nothing has come
    BODY = "body"  # its body comes
    DECIDING = "deciding"  # it is counted, or waits
    CARRIED = "carried"  # Envoy was told to send it
    ANSWERED = "answered"  # Envoy was told to answer it
    OVER = "over"


@dataclass(slots=True)
class Counts:
    """What happened on all streams, for the metrics."""

    streams: int = 0  # open
    protocol_errors: int = 0
    served_elsewhere: int = 0
    out_of_time: int = 0


@dataclass(slots=True)
class Processor:
    """What all streams share. `message_timeout_s`, `max_message_timeout_s`: as Envoy's filter has them, None where it
    has none. `heads_come`: an answer's headers were seen, so that Envoy shows them."""

    app: Callable[[Exchange], None]
    refuser: Refuser
    request_id: Callable[[Exchange], bytes]
    error_answer: ErrorAnswer
    endpoints: Endpoints
    limits: ServerLimits
    now_ns: Callable[[], int]
    late: Callable[[], None]  # a request was refused because Envoy waits no longer
    message_timeout_s: float
    max_message_timeout_s: float | None = None
    counts: Counts = field(default_factory=Counts)
    buffered_bytes: int = 0
    heads_come: bool = False
    leaving: bool = False

    @property
    def patience_s(self) -> float:
        """How long a request may be held before Envoy gives it up."""
        return max(self.message_timeout_s, self.max_message_timeout_s or 0.0)


class Sink(Protocol):
    """What carries a stream's messages; gRPC."""

    def send(self, message: bytes) -> None:
        """To Envoy, in this order."""

    def cut(self, reset: bool) -> None:
        """End the RPC: as an error, or as if all was said."""


class Stream:
    """The state of one stream."""

    __slots__ = (
        "_body",
        "_body_bytes",
        "_exchange",
        "_guard",
        "_handed",
        "_held_bytes",
        "_processor",
        "_sink",
        "_start",
        "_trailers",
        "due_ns",
        "step",
    )

    def __init__(self, processor: Processor, sink: Sink) -> None:
        self.step = Step.HEAD
        # When the next part of the request must be here.
        self.due_ns = processor.now_ns() + int(processor.limits.head_s * 1e9)
        self._processor = processor
        self._sink = sink
        self._start: Start | None = None
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._held_bytes = 0
        self._trailers = False
        self._exchange: HeldExchange | None = None
        self._handed: Handed | None = None
        self._guard: asyncio.TimerHandle | None = None
        processor.counts.streams += 1

    def receive(self, data: bytes) -> None:
        """One message of Envoy. Raises ProtocolError."""
        kind, message = parsed(data)
        if kind == "request_headers":
            self._request_headers(message)
        elif kind == "request_body":
            self._request_body(message.request_body)
        elif kind == "request_trailers":
            self._request_trailers()
        elif kind == "response_headers":
            self._response_headers(message)
        elif kind == "response_body":
            self._response_body(message.response_body)
        else:
            self._response_trailers()

    def closed(self) -> None:
        """The stream is over, whoever ended it. Called exactly once."""
        step, self.step = self.step, Step.OVER
        self._processor.counts.streams -= 1
        self._release()
        exchange, handed = self._exchange, self._handed
        self._exchange = self._handed = None
        if handed is not None and step is not Step.DECIDING:
            handed.over(heads_come=self._processor.heads_come)
        elif exchange is not None and step is Step.DECIDING:
            exchange.client_left()

    def overdue(self) -> None:
        """`due_ns` has passed."""
        if self.step is Step.BODY:
            self._answer(400, "request_timeout", _TOLD_SLOW)
        elif self.step in (Step.HEAD, Step.ANSWERED):
            self._sink.cut(reset=True)

    # The request

    def _request_headers(self, message: Any) -> None:
        if self.step is not Step.HEAD:
            raise ProtocolError("request headers twice")
        start = self._start = start_of(message)
        if start.ends:
            self._begin(b"")
        elif start.request_mode in _WHOLE:
            self.step = Step.BODY
            self.due_ns = self._processor.now_ns() + int(self._processor.limits.body_s * 1e9)
            if start.request_mode == BodyMode.BUFFERED:
                self._sink.send(told.GO_ON["request_headers"])
        elif _needs_body(start.target):
            self._answer(500, "internal_error", _TOLD_MODE)
            log.error("%s", _TOLD_MODE)
        else:
            self._begin(b"")

    def _request_body(self, body: Any) -> None:
        if self.step is Step.CARRIED:
            self._sink.send(told.GO_ON["request_body"])  # of one that is not charged, and passes in pieces
        elif self.step is Step.BODY:
            self._gather(body.body)
            assert self._start is not None  # noqa: S101 - its headers came first
            whole = body.end_of_stream or self._start.request_mode == BodyMode.BUFFERED
            if whole and self.step is Step.BODY:
                self._begin(b"".join(self._body))
        elif self.step not in (Step.ANSWERED, Step.OVER):
            raise ProtocolError(f"a request body while {self.step.value}")

    def _gather(self, piece: bytes) -> None:
        processor = self._processor
        self._body.append(piece)
        self._body_bytes += len(piece)
        if self._body_bytes > processor.limits.body_bytes:
            self._answer(413, "body_too_large", _TOLD_LARGE.format(most=processor.limits.body_bytes))
        elif self._body_bytes > _COUNTED_BYTES:
            processor.buffered_bytes += self._body_bytes - self._held_bytes
            self._held_bytes = self._body_bytes
            if processor.buffered_bytes > processor.limits.buffered_most_bytes:
                self._answer(503, "server_is_overloaded", _TOLD_FULL)

    def _request_trailers(self) -> None:
        if self.step is Step.BODY:
            self._trailers = True
            self._begin(b"".join(self._body))
        elif self.step is Step.DECIDING:
            self._trailers = True
        elif self.step is Step.CARRIED:
            self._sink.send(told.GO_ON["request_trailers"])
        elif self.step is Step.HEAD:
            raise ProtocolError("request trailers first")

    def _begin(self, body: bytes) -> None:
        """The request is whole: to the gate with it."""
        processor, start = self._processor, self._start
        assert start is not None  # noqa: S101 - its headers came first
        self._body = []
        self.step = Step.DECIDING
        head = RequestHead(start.method, start.target, start.headers, True, True, len(body), False, False)
        exchange = self._exchange = HeldExchange(head, body, start.peer, processor.now_ns(), self)
        exchange.unseen = start.response_mode not in (BodyMode.STREAMED, BodyMode.FULL_DUPLEX)
        if start.subset is not None:
            avoided = processor.endpoints.avoided(start.subset)
            if avoided is None:
                request_id = processor.request_id(exchange)
                processor.refuser.later(Refusal.NO_BACKEND, _TOLD_SUBSET, exchange, request_id)
                return
            exchange.avoid = avoided
        try:
            processor.app(exchange)
        except Exception:
            log.exception("a request failed")
            exchange.fail(500, "internal_error", "internal error of the gate")
        if self.step is Step.DECIDING:
            self._wait()

    def _wait(self) -> None:
        """It is counted, or waits for room: Envoy must not run out of patience before we have answered."""
        processor = self._processor
        longer_s = processor.max_message_timeout_s
        if longer_s is not None and longer_s > processor.message_timeout_s:
            self._sink.send(told.more_time(longer_s))
        seconds = max(0.0, processor.patience_s - _IN_TIME_S)
        self._guard = asyncio.get_running_loop().call_later(seconds, self._out_of_time)

    def _out_of_time(self) -> None:
        self._guard = None
        exchange = self._exchange
        if self.step is not Step.DECIDING or exchange is None:
            return
        processor = self._processor
        processor.counts.out_of_time += 1
        heard = exchange.on_gone
        request_id, waited_ns = processor.request_id(exchange), processor.now_ns() - exchange.received_ns
        processor.refuser.later(Refusal.DEADLINE, _TOLD_LATE, exchange, request_id, waited_ns=waited_ns)
        processor.late()
        if heard is not None:
            heard()  # for the gate it is as if the client had left

    # The answer

    def _response_headers(self, message: Any) -> None:
        answer = answer_of(message)
        if answer.by_engine:
            self._processor.heads_come = True
        handed = self._handed
        if self.step is Step.CARRIED and handed is not None:
            if answer.served and answer.served != handed.endpoint:
                self._processor.counts.served_elsewhere += 1
            own = handed.head(answer)
            if own is not None:
                self._sink.send(told.answer_headers(own))
        elif self.step in (Step.BODY, Step.DECIDING):
            # Another filter, or Envoy itself, has answered: a body over its limit, a route without an upstream.
            self._withdraw()
            self._sink.send(told.GO_ON["response_headers"])
        elif self.step is Step.OVER:
            self._sink.send(told.GO_ON["response_headers"])
        elif self.step is Step.HEAD:
            raise ProtocolError("response headers first")

    def _response_body(self, body: Any) -> None:
        start, handed = self._start, self._handed
        if start is None or self.step in (Step.HEAD, Step.BODY, Step.DECIDING):
            raise ProtocolError(f"a response body while {self.step.value}")
        if self.step is Step.ANSWERED:
            return
        if start.response_mode == BodyMode.FULL_DUPLEX:
            self._sink.send(told.passed_on(body.body, ends=body.end_of_stream))
        else:
            self._sink.send(told.GO_ON["response_body"])
        if handed is not None:
            handed.body(body.body, ends=body.end_of_stream)

    def _response_trailers(self) -> None:
        if self.step in (Step.HEAD, Step.BODY, Step.DECIDING):
            raise ProtocolError(f"response trailers while {self.step.value}")
        if self.step is not Step.ANSWERED:
            self._sink.send(told.GO_ON["response_trailers"])
        if self._handed is not None:
            self._handed.trailers()

    # What becomes of it

    def forward(self, handed: Handed, changes: Changes, body: bytes, *, changed: bool) -> None:
        """Admitted, or not charged: Envoy sends it."""
        start = self._start
        assert start is not None and self.step is Step.DECIDING  # noqa: S101, PT018 - an exchange is relayed once
        self.step = Step.CARRIED
        self._handed = handed
        self._release()
        if start.ends or start.request_mode not in _WHOLE:
            self._sink.send(told.without_body(changes))
            return
        if start.request_mode == BodyMode.FULL_DUPLEX:
            for message in told.with_streamed_body(changes, body, trailers=self._trailers):
                self._sink.send(message)
            return
        self._sink.send(told.with_whole_body(changes, body if changed else None))
        if self._trailers:
            self._sink.send(told.GO_ON["request_trailers"])

    def refuse(self, status: int, headers: Headers, body: bytes) -> None:
        """For the exchange: Envoy answers with this."""
        self.step = Step.ANSWERED
        self.due_ns = self._processor.now_ns() + int(self._processor.limits.head_s * 1e9)
        self._release()
        self._sink.send(told.refusal(status, headers, body, "kvbudget"))

    def _answer(self, status: int, code: str, message: str) -> None:
        """An error before there is an exchange."""
        start = self._start
        asked = NOTHING_ASKED if start is None else Asked(start.method, start.target, start.headers)
        headers, body = self.error_answer(status, code, message, asked)
        self.refuse(status, headers, body)

    def _withdraw(self) -> None:
        """Nobody waits for its answer any more."""
        self.step = Step.OVER
        self._release()
        if self._exchange is not None:
            self._exchange.client_left()

    def _release(self) -> None:
        """It is not watched over any more, and its body not held."""
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.cancel()
        self._body = []
        self._processor.buffered_bytes -= self._held_bytes
        self._held_bytes = 0

    # For the exchange (`Holder`)

    @property
    def may_keep_alive(self) -> bool:
        """No concern of ours."""
        return True

    def send(self, data: bytes) -> None:
        """Nothing of HTTP/1.1 is for Envoy."""

    def answered(self, keep_alive: bool) -> None:
        """Said by `refuse` already."""

    def body_released(self, size_bytes: int) -> None:
        """Counted here, not by the exchange."""

    def error_answer(self, status: int, code: str, message: str, asked: Asked) -> tuple[Headers, bytes]:
        """As of the data plane."""
        return self._processor.error_answer(status, code, message, asked)

    def cut(self, reset: bool) -> None:
        """For what Envoy carries: its engine is lost, or we go; then what has begun may go on without us."""
        self.step = Step.OVER
        self._sink.cut(reset=reset and not self._processor.leaving)


def _needs_body(target: bytes) -> bool:
    path = target.partition(b"?")[0]
    return path in CHARGED or path == COUNT_TOKENS
