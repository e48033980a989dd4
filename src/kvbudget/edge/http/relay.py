"""Decides what of an upstream's answer reaches the client: body bytes as they came, or an honest end.

The hot path is `on_body`: one read from the upstream is one write to the client, without task, queue or re-framing.
"""

import enum
import json
import logging
from typing import Final, Protocol

from kvbudget.edge.http.chunked import LAST_CHUNK, chunk
from kvbudget.edge.http.events import EventCounter
from kvbudget.edge.http.exchange import Exchange
from kvbudget.edge.http.heads import Framing, ResponseHead
from kvbudget.edge.http.messages import Headers, OwnLines, check_lines, end_to_end, fields_of, serialise_response_head
from kvbudget.edge.http.repeats import KnownAnswer, without_length
from kvbudget.edge.http.transfer import Claim, Failure, Origin, Transfer

_LOG: Final = logging.getLogger("kvbudget.http")
TAIL_BYTES: Final = 8192
"""Bytes of the body's end that are kept: a usage report stands in the last events."""
STREAM_TAIL_BYTES: Final = 1024
"""The same of an event stream: it lives long, so what it holds counts, and an event with a usage takes 400 bytes."""
_SLACK_PART: Final = 4
_SAID: Final = OwnLines(frozenset(), b"", True)  # a stream need not keep them for as long as it lives
# Read on every chunk; a member by its class is a slow look-up before Python 3.12.
_NONE: Final = Framing.NONE
_LENGTH: Final = Framing.LENGTH
_CHUNKED: Final = Framing.CHUNKED
_EOF: Final = Framing.EOF
WITHHELD_BYTES: Final = 1024 * 1024
"""Bytes of a body that is kept for the app instead of being relayed."""


class RelayOutcome(enum.Enum):
    """How a relay ended. In the second group nothing was sent to the client: the app still has to respond."""

    DONE = "done"
    UNSEEN = "unseen"
    """It is over, and well as far as was seen, which is not to the end: another proxy has carried it."""
    CLIENT_GONE = "client_gone"
    BROKEN_MIDWAY = "broken_midway"
    TIMEOUT_MIDWAY = "timeout_midway"

    WITHHELD = "withheld"
    NO_CONNECTION = "no_connection"
    """No connection got free in time, or we ran out of descriptors: nothing is known against the upstream."""
    UNREACHABLE = "unreachable"
    BROKEN_BEFORE_HEAD = "broken_before_head"
    TIMEOUT_BEFORE_HEAD = "timeout_before_head"

    CANCELLED = "cancelled"
    """By `Relay.cancel`; the app has to respond when `exchange.open` is true."""


_BEFORE_HEAD: Final = {
    Failure.NO_CONNECTION: RelayOutcome.NO_CONNECTION,
    Failure.UNREACHABLE: RelayOutcome.UNREACHABLE,
    Failure.BROKEN: RelayOutcome.BROKEN_BEFORE_HEAD,
    Failure.TIMEOUT: RelayOutcome.TIMEOUT_BEFORE_HEAD,
}


_DONE: Final = RelayOutcome.DONE


class RelayEnd:
    """What is known at the end.

    `status` and `headers` are the upstream's (None and empty when no head came; without Content-Length). `body_tail`
    are the last 8 KiB of the de-chunked body (1.5 KiB of an event stream), or when WITHHELD all of it up to 1 MiB.
    `events` counts SSE events as `EventCounter` does (`data: [DONE]` included), `body_bytes` the de-chunked bytes.
    `message` says in words why it failed. `sent`: the request was written to a connection at least once, so that an
    upstream may have read it, whatever became of it then.
    """

    __slots__ = ("body_bytes", "body_tail", "events", "headers", "message", "outcome", "sent", "status")

    def __init__(
        self,
        outcome: RelayOutcome,
        status: int | None,
        headers: Headers,
        body_tail: bytes,
        events: int,
        body_bytes: int,
        message: str = "",
        sent: bool = False,
    ) -> None:
        self.outcome = outcome
        self.status = status
        self.headers = headers
        self.body_tail = body_tail
        self.events = events
        self.body_bytes = body_bytes
        self.message = message
        self.sent = sent


class Watcher(Protocol):
    """Who follows a relay. Called in the loop's thread; must not block."""

    def on_head(self, status: int, headers: Headers) -> bool:
        """The upstream's head without Content-Length, only to be read. False: do not relay; the body comes in `on_end`
        (WITHHELD)."""

    def on_events(self, count: int) -> None:
        """`count` > 0 further SSE events passed in this read (text/event-stream only)."""

    def on_stall(self) -> None:
        """The client does not keep up, so nothing is read from the upstream for now. Once for every such pause."""

    def on_end(self, end: RelayEnd) -> None:
        """Exactly once, always, after the last byte was handed over."""


class Relay(Transfer):
    """The answer of an upstream on its way to a client; made by `Upstream.relay`."""

    __slots__ = (
        "_body_bytes",
        "_counter",
        "_exchange",
        "_only",
        "_out",
        "_pending",
        "_response_headers",
        "_send",
        "_tail",
        "_tail_bytes",
        "_watcher",
        "_withheld",
    )

    def __init__(
        self,
        exchange: Exchange,
        method: bytes,
        request: tuple[bytes, ...],
        claim: Claim,
        response_headers: Headers | OwnLines,
        watcher: Watcher,
        origin: Origin,
    ) -> None:
        super().__init__(method, request, claim, origin)
        self._exchange = exchange
        self._response_headers = response_headers
        self._watcher = watcher
        self._send = exchange.carrier.send
        self._only = b""  # the body's first read, while there is no other: most answers come in one
        self._tail: bytearray | None = None
        self._tail_bytes = TAIL_BYTES
        self._body_bytes = 0
        self._counter: EventCounter | None = None
        self._withheld = False
        self._out = _NONE  # how the body is framed for the client
        self._pending = b""  # the head, sent together with the first body bytes

    # The client's side.

    def pause(self) -> None:
        """The client does not keep up: stop reading; no time limit of the upstream runs meanwhile."""
        self.deadline_s = None
        if self.lane is not None:
            self.lane.throttle(paused=True)
        try:
            self._watcher.on_stall()
        except Exception:
            _LOG.exception("the watcher of a relay failed")

    def resume(self) -> None:
        """The client has caught up."""
        if self.lane is not None:
            origin = self._origin
            self.deadline_s = origin.time() + (origin.read_stall_s if self.started else origin.response_s)
            self.lane.throttle(paused=False)

    def client_gone(self) -> None:
        """The client left: the upstream's connection is closed in the same turn of the loop."""
        if self._let_go():
            self._end(RelayOutcome.CLIENT_GONE)

    # The upstream's side.

    def on_head(self, head: ResponseHead, *, alone: bool) -> None:
        """Lets the watcher decide, and makes the client's head."""
        self._exchange.release_body()
        known = self.known
        try:
            passes = self._watcher.on_head(
                head.status, without_length(head.headers) if known is None else known.headers
            )
        except Exception:
            _LOG.exception("the watcher of a relay failed")
            self.cancel()
            self._exchange.fail(500, "internal_error", "internal error of the gateway")
            return
        if self.ended:
            return
        if head.event_stream:
            self._counter = EventCounter()
            self._tail_bytes = STREAM_TAIL_BYTES
        if not passes:
            self._withheld = True
            return
        try:
            self._pending = self._client_head(head)
            self._response_headers = _SAID
        except ValueError as error:
            self.fail(Failure.BROKEN, f"the answer cannot be passed on: {error}")
            return
        if alone:  # else it goes out with the first bytes of the body, in one write
            self._flush()

    def on_body(self, raw: bytes, body: bytes) -> None:
        """Passes one read on."""
        size = len(body)
        self._body_bytes += size
        if self._withheld:
            self._keep(body)
            return
        # A bytearray, because a list of the reads was no faster and takes several times the room when they are small.
        tail = self._tail
        if tail is None:
            self._begin_tail(body)
        else:
            most = self._tail_bytes
            if size < most:
                tail += body
                if len(tail) > most + most // _SLACK_PART:
                    del tail[:-most]
            else:
                tail[:] = body[-most:]
        if self._out is not _CHUNKED:
            raw = body
        elif self.decoder is None:
            raw = chunk(body)
        if self._pending:
            raw = self._pending + raw
            self._pending = b""
        self._send(raw)
        counter = self._counter
        if counter is not None:
            count = counter.feed(body)
            if count and not self.ended:  # a watcher that hears of a stall may cancel
                try:
                    self._watcher.on_events(count)
                except Exception:
                    _LOG.exception("the watcher of a relay failed")

    def on_complete(self) -> None:
        """Ends the client's answer."""
        if self._withheld:
            self._exchange.give_back()
            self._end(RelayOutcome.WITHHELD)
            return
        if self._out is _CHUNKED and self.decoder is None and self.method != b"HEAD":
            self._pending += LAST_CHUNK
        if self._pending:
            self._flush()
        self._exchange.finish()
        self._end(_DONE)

    def on_failure(self, failure: Failure, message: str) -> None:
        """Ends the client's answer visibly incomplete, or leaves it to the app."""
        if self._exchange.started:
            self._break_off(message, "upstream_failed")
            timeout = failure is Failure.TIMEOUT
            self._end(RelayOutcome.TIMEOUT_MIDWAY if timeout else RelayOutcome.BROKEN_MIDWAY, message)
        else:
            self._exchange.give_back()
            self._end(_BEFORE_HEAD[failure], message)

    def on_cancelled(self) -> None:
        """As a failure."""
        message = "the answer was stopped by the gateway"
        if self._exchange.started:
            self._break_off(message, "request_cancelled")
        else:
            self._exchange.give_back()
        self._end(RelayOutcome.CANCELLED, message)

    # Details.

    def _begin_tail(self, body: bytes) -> None:
        """Keeps the first read as it is, and begins to gather with the second."""
        if not self._only:
            self._only = body
        else:
            most = self._tail_bytes
            self._tail = bytearray((self._only + body)[-most:])
            self._only = b""

    def _body_tail(self) -> bytes:
        tail = self._tail
        most = self._tail_bytes
        return self._only[-most:] if tail is None else bytes(tail[-most:])

    def _client_head(self, head: ResponseHead) -> bytes:
        own = self._response_headers
        if isinstance(own, OwnLines):
            known = self.known
            if known is not None and self._exchange.http_1_1:
                return self._known_head(known, own)
            own = fields_of(own)
        framing = head.framing
        if self.known is None:
            headers = end_to_end(head.headers, dict(own))
        else:
            headers = end_to_end(self.known.headers, dict(own))
            if framing is _LENGTH:
                headers.append((b"content-length", b"%d" % self._missing_bytes))
        headers += own
        if framing is _NONE:
            if head.status == 204:
                headers = [field for field in headers if field[0] != b"content-length"]
            elif self.method == b"HEAD" and b"transfer-encoding" in dict(head.headers) and self._exchange.http_1_1:
                framing = _CHUNKED  # only said, no body follows
        elif framing is _CHUNKED or framing is _EOF:
            framing = _CHUNKED if self._exchange.http_1_1 else _EOF
        self._out = framing
        return self._exchange.start(head.status, headers, framing)

    def _known_head(self, known: KnownAnswer, own: OwnLines) -> bytes:
        """The same, of a head that was made before: of a 200 that has a body, to a client that takes chunks."""
        kept = known.passed_on.get(own.names)
        if kept is None:
            kept = known.passed_on[own.names] = _kept_lines(known, own.names)
        lines = own.lines if own.plain else check_lines(own)
        if known.head.framing is _LENGTH:
            self._out = _LENGTH
            return b"%b%bcontent-length: %d\r\n%b" % (kept, lines, self._missing_bytes, self._exchange.start_known())
        self._out = _CHUNKED
        return b"%b%btransfer-encoding: chunked\r\n%b" % (kept, lines, self._exchange.start_known())

    def _flush(self) -> None:
        if self._pending:
            pending, self._pending = self._pending, b""
            self._send(pending)

    def _keep(self, body: bytes) -> None:
        tail = self._tail
        if tail is None:
            tail = self._tail = bytearray()
        tail += body
        if len(tail) > WITHHELD_BYTES and self._let_go():
            del tail[WITHHELD_BYTES:]
            self._exchange.give_back()
            self._end(RelayOutcome.WITHHELD, f"the body was cut at {WITHHELD_BYTES} bytes")

    def _break_off(self, message: str, code: str) -> None:
        """Never a body that looks complete: an SSE error event where one fits, else a connection cut short."""
        self._flush()
        fits = self.decoder is None or self.decoder.between_chunks
        if self._counter is not None and self._out is _CHUNKED and fits:
            form = self._exchange.errors
            if form is None:
                error = {"message": message, "type": "upstream_error", "param": None, "code": code}
                event = b"data: %s\n\n" % json.dumps({"error": error}).encode()
            else:
                event = form.event(code, message)
            tail = self._body_tail()
            if tail and not tail.endswith((b"\n\n", b"\r\n\r\n")):
                event = (b"\n" if tail.endswith(b"\n") else b"\n\n") + event
            self._send(chunk(event) + LAST_CHUNK)
            self._exchange.finish(keep_alive=False)
        else:
            self._exchange.cut(reset=self._out is _EOF)

    def _end(self, outcome: RelayOutcome, message: str = "") -> None:
        head = self.head
        end = RelayEnd(
            outcome,
            None if head is None else head.status,
            self._headers(),
            bytes(self._tail or b"") if self._withheld else self._body_tail(),
            0 if self._counter is None else self._counter.total,
            self._body_bytes,
            message,
            self.sent_s > 0.0,
        )
        try:
            self._watcher.on_end(end)
        except Exception:
            _LOG.exception("the watcher of a relay failed")
            self._exchange.fail(500, "internal_error", "internal error of the gateway")

    def _headers(self) -> Headers:
        if self.known is not None:
            return self.known.headers
        return [] if self.head is None else without_length(self.head.headers)

    def end_at_once(self) -> None:
        """For a client that left before the relay began."""
        if not self.ended:
            self.ended = True
            self._end(RelayOutcome.CLIENT_GONE)


def _kept_lines(known: KnownAnswer, names: frozenset[bytes]) -> bytes:
    """What the client gets of a known head: status line and end-to-end headers but for `names`, no empty line."""
    return serialise_response_head(known.head.status, end_to_end(known.headers, names))[:-2]
