"""Decides how one request is answered: exactly once, by `respond` or by a relay, and who hears that the client left."""

import logging
from collections.abc import Callable
from typing import Final, Protocol

from kvbudget.edge.http.heads import Framing, RequestHead
from kvbudget.edge.http.messages import Headers, has_no_body, serialise_response_head
from kvbudget.edge.http.refused import Asked
from kvbudget.edge.http.repeats import KnownRequest

_LOG: Final = logging.getLogger("kvbudget.http")
_CLOSE: Final = b"connection: close\r\n\r\n"
_OURS: Final = frozenset({b"connection", b"keep-alive", b"content-length", b"transfer-encoding"})
# Up to here one joined write is cheaper than two; above, the copy costs more than the second buffer.
_JOIN_BYTES: Final = 65536
# Read with every answer; a member by its class is a slow look-up before Python 3.12.
_LENGTH: Final = Framing.LENGTH
_CHUNKED: Final = Framing.CHUNKED
_EOF: Final = Framing.EOF
_NOBODY: Final[frozenset[str]] = frozenset()


class Answering(Protocol):
    """What a relay is for the client's connection."""

    def pause(self) -> None:
        """The client does not keep up: bring no more."""

    def resume(self) -> None:
        """The client has caught up."""

    def client_gone(self) -> None:
        """The client left; nothing can be sent any more. Called once."""


class Carrier(Protocol):
    """What the client's connection is for an exchange."""

    @property
    def may_keep_alive(self) -> bool:
        """False once the server drains."""

    def send(self, data: bytes) -> None:
        """Bytes for the client."""

    def answered(self, keep_alive: bool) -> None:
        """The answer is complete."""

    def cut(self, reset: bool) -> None:
        """End the connection so that the client sees a body that is not complete."""

    def body_released(self, size_bytes: int) -> None:
        """A body that was counted is not held any more."""

    def error_answer(self, status: int, code: str, message: str, asked: Asked) -> tuple[Headers, bytes]:
        """Headers and body of an error that we answer by ourselves."""


class ErrorForm(Protocol):
    """How errors look to the clients of one API."""

    def body(self, status: int, code: str, message: str, *, param: str | None = None, request_id: bytes = b"") -> bytes:
        """The JSON of a whole answer."""

    def event(self, code: str, message: str) -> bytes:
        """The server-sent event that ends a stream which cannot be completed."""


class Exchange:
    """One request, whole, and the one answer to it.

    `target` is in origin form, `headers` have lower-cased names, `body` is de-chunked, `peer` is `ip:port`,
    `received_ns` is `time.monotonic_ns()` at the last byte of the request. Once the head of an upstream's answer is
    here, `body` is b"": a stream may live long, its prompt need not; one of 64 KiB or more also once the answer is
    complete or the client gone. `gone` turns true when the client left
    before the answer was complete; then `on_gone`, which the app sets, is called exactly once, and every later
    `respond` does nothing. `errors`, which the app may set, is the form of errors that the client understands.
    `avoid` are upstreams, by name, that whoever brought the request does not allow; `unseen`: the bytes of its answer
    do not pass here, so that nobody can tell how far it is.
    """

    __slots__ = (
        "_answered",
        "_headers",
        "_keep_alive",
        "_sink",
        "avoid",
        "body",
        "carrier",
        "errors",
        "gone",
        "held_bytes",
        "http_1_1",
        "known",
        "length",
        "method",
        "on_gone",
        "peer",
        "received_ns",
        "started",
        "target",
        "unseen",
    )

    def __init__(
        self,
        head: RequestHead,
        body: bytes,
        peer: str,
        received_ns: int,
        carrier: Carrier,
        known: KnownRequest | None = None,
    ) -> None:
        self.method = head.method
        self.target = head.target
        self.known = known  # the head was recognised, or is remembered, as this one
        self.length = len(body)  # also once it is released
        self._headers = None if known is not None else head.headers
        self.http_1_1 = head.http_1_1
        self.body = body
        self.peer = peer
        self.received_ns = received_ns
        self.held_bytes = 0  # of the body, as the server counted it
        self.gone = False
        self.on_gone: Callable[[], None] | None = None
        self.errors: ErrorForm | None = None
        self.avoid: frozenset[str] = _NOBODY
        self.unseen = False
        self.started = False  # the head of the answer is on its way
        self._answered = False
        self._keep_alive = head.keep_alive
        self._sink: Answering | None = None
        self.carrier = carrier  # a relay writes to it directly

    @property
    def headers(self) -> Headers:
        """All headers, names lower-cased, in the order in which they came."""
        headers = self._headers
        if headers is None:
            assert self.known is not None  # noqa: S101 - one of the two is there
            headers = self._headers = self.known.headers(self.length)
        return headers

    def header(self, name: bytes) -> bytes | None:
        """The value of the first header of that lower-case name, or None."""
        for field in self.headers:
            if field[0] == name:
                return field[1]
        return None

    @property
    def open(self) -> bool:
        """True while the answer may still be given: not begun, not taken by a relay, client there."""
        return not (self.started or self._answered or self.gone or self._sink is not None)

    def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """The whole answer. Length and connection headers are set here; HEAD, 204 and 304 send no body.

        Does nothing when the client is gone. Raises RuntimeError when an answer was given or a relay is giving one, and
        ValueError (nothing is sent then) when a header holds CR, LF or NUL.
        """
        if self.gone:
            return
        if not self.open:
            raise RuntimeError("the exchange is answered already")
        fields = [field for field in headers if field[0] not in _OURS]
        if not has_no_body(status):
            fields.append((b"content-length", b"%d" % len(body)))
        if has_no_body(status) or self.method == b"HEAD":
            body = b""
        head = self.start(status, fields, _LENGTH)
        if len(body) <= _JOIN_BYTES:
            self.carrier.send(head + body)
        else:
            self.carrier.send(head)
            self.carrier.send(body)
        self.finish()

    def fail(self, status: int, code: str, message: str) -> None:
        """Answers with an error of the data plane when an answer can still be given."""
        if self.open:
            asked = Asked(self.method, self.target, self.headers)
            headers, body = self.carrier.error_answer(status, code, message, asked)
            self.respond(status, headers, body)

    # What follows is for a relay.

    def take(self, sink: Answering) -> None:
        """From here `sink` answers. Raises RuntimeError when the exchange is not open."""
        if self.started or self._answered or self.gone or self._sink is not None:  # `open`, without a call
            raise RuntimeError("the exchange is answered already")
        self._sink = sink

    def give_back(self) -> None:
        """The relay has sent nothing and will not: the app answers."""
        self._sink = None

    def release_body(self) -> None:
        """The body is not needed any more."""
        self.body = b""
        if self.held_bytes:
            self._count_released()

    def _count_released(self) -> None:
        self.body = b""
        held_bytes, self.held_bytes = self.held_bytes, 0
        self.carrier.body_released(held_bytes)

    def start(self, status: int, fields: Headers, framing: Framing) -> bytes:
        """The bytes of the head, to be sent by the caller; takes `fields` over. Content-Length, if any, is in them."""
        if framing is _CHUNKED:
            fields.append((b"transfer-encoding", b"chunked"))
        keep_alive = self._keep_alive and framing is not _EOF and self.carrier.may_keep_alive
        if not keep_alive:
            fields.append((b"connection", b"close"))
        elif not self.http_1_1:
            fields.append((b"connection", b"keep-alive"))
        head = serialise_response_head(status, fields)
        self._keep_alive = keep_alive
        self.started = True
        return head

    def start_known(self) -> bytes:
        """For a head that the caller has at hand, of a body whose end is told: what it ends with. HTTP/1.1 only."""
        self.started = True
        if self._keep_alive and self.carrier.may_keep_alive:
            return b"\r\n"
        self._keep_alive = False
        return _CLOSE

    def finish(self, *, keep_alive: bool = True) -> None:
        """The last byte was sent."""
        self._sink = None
        if self.held_bytes:
            self._count_released()
        if not self._answered:
            self._answered = True
            self.carrier.answered(self._keep_alive and keep_alive)

    def cut(self, *, reset: bool) -> None:
        """The started answer cannot be completed. `reset` where a plain close would look like the end of the body."""
        self._sink = None
        if not self._answered:
            self._answered = True
            self.carrier.cut(reset)

    def throttle(self, *, paused: bool) -> None:
        """For the connection: its buffer is full, or empty enough again."""
        if self._sink is not None:
            if paused:
                self._sink.pause()
            else:
                self._sink.resume()

    def client_left(self) -> None:
        """For the connection: the client is gone before the answer was complete."""
        self.gone = True
        sink, self._sink = self._sink, None
        heard, self.on_gone = self.on_gone, None
        for hear in (sink.client_gone if sink is not None else None, heard):
            try:
                if hear is not None:
                    hear()
            except Exception:
                _LOG.exception("error while a client's leaving was handled")
        if self.held_bytes:
            self._count_released()
