"""Decides what a client's connection does: reads request after request, hands each to the app, notices when it leaves.

A client that closes its side counts as gone while its answer is not complete, half-close included. That is what nginx
does by default (proxy_ignore_client_abort off): almost every client that sends FIN has left, and every second of
generating for nobody holds KV blocks that others wait for.
"""

import asyncio
import enum
import logging
import socket
import time
from typing import TYPE_CHECKING, Final, cast

from kvbudget.edge.http.body import BodyReader, overloaded, too_large
from kvbudget.edge.http.exchange import Exchange
from kvbudget.edge.http.heads import (
    HEAD_END,
    HeadError,
    RequestHead,
    check_begun_head,
    parse_request_head,
    strip_empty_lines,
)
from kvbudget.edge.http.messages import Headers
from kvbudget.edge.http.peers import ProxyHeaderError, has_left, peer_of, read_proxy_header
from kvbudget.edge.http.refused import NOTHING_ASKED, Asked, begun_request, closing_answer

if TYPE_CHECKING:
    from kvbudget.edge.http.server import HttpServer

_LOG: Final = logging.getLogger("kvbudget.http")
WRITE_HIGH_BYTES: Final = 65536
WRITE_LOW_BYTES: Final = 16384
# Requests that a client pipelines behind the one at work; more is left in the kernel.
_PIPELINED_BYTES: Final = 65536
# One turn of the loop serves at most so many pipelined requests, then the others' turn comes.
_REQUESTS_PER_TURN: Final = 32
# After a refusal the rest of the request is read and dropped for so long: closing at once would send RST, and that
# makes many clients lose the answer (nginx's lingering_close).
_LINGER_S: Final = 5.0
_LINGER_BYTES: Final = 64 * 1024 * 1024
EMPTY_LINES: Final = 8
"""Empty lines that are skipped before a request; RFC 9112, 2.2, asks for at least one."""
ACCOUNTED_BYTES: Final = 65536
"""Bodies from here on count as buffered. Smaller ones, nearly all, are bounded by the number of connections."""
_now_ns: Final = time.monotonic_ns
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class _State(enum.Enum):
    PROXY = enum.auto()  # a balancer is to say who the client is
    IDLE = enum.auto()  # between requests; no byte of the next one is here
    HEAD = enum.auto()
    BODY = enum.auto()
    BUSY = enum.auto()  # an exchange is being answered
    LINGER = enum.auto()  # refused; reading on only to be polite
    CLOSING = enum.auto()  # answered; the last bytes are on their way
    CLOSED = enum.auto()


# Read on every request; a member by its class is a slow look-up before Python 3.12.
_IDLE: Final = _State.IDLE
_HEAD: Final = _State.HEAD
_BODY: Final = _State.BODY
_BUSY: Final = _State.BUSY


class ClientConnection:
    """One client connection; made by HttpServer only.

    An asyncio.Protocol in all but its base: with that one the compiler makes it an ordinary Python class.
    """

    __slots__ = (
        "_accepted_bytes",
        "_accepted_s",
        "_advancing",
        "_body",
        "_buffer",
        "_deadline_s",
        "_empty_lines",
        "_exchange",
        "_held_bytes",
        "_known",
        "_lingered_bytes",
        "_loop",
        "_peer",
        "_reading_paused",
        "_sent_bytes",
        "_server",
        "_state",
        "_transport",
        "write_paused",
    )

    _transport: asyncio.Transport

    def __init__(self, server: "HttpServer", loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._loop = loop
        self._state = _State.CLOSED
        self._buffer = b""
        self._body: BodyReader | None = None
        self._known = server.known.last
        self._held_bytes = 0  # of the body that is being read, counted by the server
        self._empty_lines = 0  # before the request at hand
        self._exchange: Exchange | None = None
        self._deadline_s: float | None = None
        self._reading_paused = False
        self._advancing = False
        self.write_paused = False
        self._sent_bytes = 0
        self._accepted_bytes = 0
        self._accepted_s = 0.0
        self._lingered_bytes = 0

    # The transport calls these.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Counts itself in, or says that there are too many."""
        self._transport = cast(asyncio.Transport, transport)
        if not self._server.admit(self):
            told = "too many open connections; try again later"
            headers, body = self.error_answer(503, "too_many_connections", told, NOTHING_ASKED)
            self._transport.write(closing_answer(503, headers, body))
            self._transport.close()
            return
        self._transport.set_write_buffer_limits(WRITE_HIGH_BYTES, WRITE_LOW_BYTES)
        peername, trusted = transport.get_extra_info("peername"), self._server.trusted
        self._peer = peer_of(peername)
        self._state = _State.PROXY if trusted is not None and trusted.includes(peername) else _IDLE
        self._deadline_s = self._loop.time() + self._server.limits.head_s

    def data_received(self, data: bytes) -> None:
        """Bytes of a request, or behind one."""
        state = self._state
        if state is _IDLE or state is _HEAD:
            self._buffer = self._buffer + data if self._buffer else data
            self._advance()
        elif state is _BODY:
            self._advance(data)
        elif state is _BUSY:
            self._buffer += data
            self._balance_reading()
        elif state is _State.LINGER:
            self._lingered_bytes += len(data)
            if self._lingered_bytes > _LINGER_BYTES:
                self._transport.abort()
        elif state is _State.PROXY:
            self._read_proxy_header(data)

    def eof_received(self) -> bool:
        """The client closed its side."""
        if self._exchange is not None:
            self._left()
            self._transport.abort()
        return False  # close; what is written already still goes out

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is over, by either side."""
        self._server.forget(self)
        self._left()
        self._state = _State.CLOSED
        self._buffer = b""
        self._drop_body()

    def pause_writing(self) -> None:
        """The client does not keep up."""
        self.write_paused = True
        if self._exchange is not None:
            self._exchange.throttle(paused=True)

    def resume_writing(self) -> None:
        """The client has caught up."""
        self.write_paused = False
        if self._exchange is not None:
            self._exchange.throttle(paused=False)
        elif self._buffer:
            self._advance()

    def _left(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            self._state = _State.CLOSED
            exchange.client_left()

    # Reading requests.

    def _read_proxy_header(self, data: bytes) -> None:
        """Of a connection that has to begin with one: without it, it is closed, and nothing of it is a request."""
        buffer = self._buffer = self._buffer + data
        try:
            header = read_proxy_header(buffer)
        except ProxyHeaderError as error:
            self._server.no_proxy_header(self._peer, error)
            self._state = _State.CLOSED
            self._transport.abort()
            return
        if header is not None:
            self._peer = header.peer or self._peer
            self._state = _IDLE
            self._buffer = buffer[header.size_bytes :]
            self._advance()

    def _advance(self, body_data: bytes = b"") -> None:
        """Reads on in a body, and then as many whole requests from the buffer as may be answered now."""
        if self._advancing:
            return
        self._advancing = True
        try:
            if body_data:
                self._read_body(body_data)
            turns = _REQUESTS_PER_TURN
            while self._buffer and not self.write_paused and (self._state is _IDLE or self._state is _HEAD):
                if not turns:
                    self._loop.call_soon(self._advance)
                    return
                turns -= 1
                if not self._read_head():
                    return
        except HeadError as error:
            self._refuse(error)
        finally:
            self._advancing = False
            if self._buffer or self._reading_paused:
                self._balance_reading()

    def _balance_reading(self) -> None:
        """Leaves in the kernel what a client pipelines beyond the bound; reads on when there is room."""
        full = len(self._buffer) > max(_PIPELINED_BYTES, self._server.limits.header_bytes)
        if full is self._reading_paused or self._transport.is_closing():
            return
        self._reading_paused = full
        if full:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _read_head(self) -> bool:
        """Takes one head off the buffer, and what has come of its body. False: bytes are missing. Raises HeadError."""
        buffer = self._buffer
        limits = self._server.limits
        if buffer.startswith(b"\r\n"):
            return self._skip_empty_lines()
        known = self._known
        if known is not None:
            end = known.end_in(buffer)
            if 0 < end <= limits.header_bytes:
                return self._take(known.head, known.length, buffer, end)
        stop = buffer.find(HEAD_END)
        if stop > limits.header_bytes - len(HEAD_END) or (stop < 0 and len(buffer) > limits.header_bytes):
            raise HeadError(
                431, "header_too_large", f"the request head is over the limit of {limits.header_bytes} bytes"
            )
        if stop < 0:
            check_begun_head(buffer)
            self._await_head()
            return False
        head = parse_request_head(buffer[:stop])
        end = stop + len(HEAD_END)
        self._known = self._server.known.learn(buffer[:end], head)
        return self._take(head, head.length, buffer, end)

    def _take(self, head: RequestHead, length: int, buffer: bytes, end: int) -> bool:
        """Goes on behind a head that is read: `length` counts, and not what a head said that was like it."""
        limits = self._server.limits
        self._empty_lines = 0
        if length > limits.body_bytes:
            raise too_large(limits.body_bytes)
        if length >= ACCOUNTED_BYTES and not self._server.fits(length):
            raise overloaded()
        if not head.chunked and len(buffer) - end >= length:  # one read, one request: the usual case
            self._buffer = b"" if len(buffer) == end + length else buffer[end + length :]
            self._dispatch(head, buffer[end : end + length])
            return True
        rest = buffer[end:]
        self._buffer = b""
        self._body = BodyReader(head, limits.body_bytes, length)
        self._state = _BODY
        self._deadline_s = self._loop.time() + limits.body_s
        if rest:
            self._read_body(rest)
        elif head.expects_continue:
            self.send(_CONTINUE)
        return True

    def _skip_empty_lines(self) -> bool:
        """True when something is left behind them. Raises HeadError when they are too many."""
        self._buffer, lines = strip_empty_lines(self._buffer)
        self._empty_lines += lines
        if self._empty_lines > EMPTY_LINES:
            raise HeadError(400, "bad_request", f"more than {EMPTY_LINES} empty lines before the request")
        self._await_head()
        return bool(self._buffer)

    def _await_head(self) -> None:
        if self._state is _IDLE:
            self._state = _HEAD
            self._deadline_s = self._loop.time() + self._server.limits.head_s

    def _read_body(self, data: bytes) -> None:
        body = self._body
        assert body is not None  # noqa: S101 - only called in the state BODY
        rest = body.feed(data)
        size_bytes = body.size_bytes
        if size_bytes >= ACCOUNTED_BYTES:
            more_bytes = size_bytes - self._held_bytes
            if not self._server.fits(more_bytes):
                raise overloaded()
            self._server.hold(more_bytes)
            self._held_bytes = size_bytes
        if rest is not None:
            self._body = None
            self._buffer = rest
            self._dispatch(body.head, body.whole())

    def _dispatch(self, head: RequestHead, body: bytes) -> None:
        self._state = _BUSY
        self._deadline_s = None
        exchange = Exchange(head, body, self._peer, _now_ns(), self, self._known)
        self._exchange = exchange
        size_bytes = len(body)
        if size_bytes >= ACCOUNTED_BYTES:
            self._server.hold(size_bytes - self._held_bytes)  # the rest when it came in one read with its head
            self._held_bytes = 0
            exchange.held_bytes = size_bytes
        try:
            self._server.app(exchange)
        except Exception:
            _LOG.exception("the app failed on %s %s", exchange.method.decode(), exchange.target[:200].decode("latin-1"))
            exchange.fail(500, "internal_error", "internal error of the gateway")

    # The exchange calls these (see exchange.Carrier).

    @property
    def may_keep_alive(self) -> bool:
        """False once the server drains."""
        return not self._server.draining

    def send(self, data: bytes) -> None:
        """Bytes for the client."""
        self._sent_bytes += len(data)
        self._transport.write(data)

    def answered(self, keep_alive: bool) -> None:
        """The answer is complete: on to the next request, or close."""
        self._exchange = None
        if self._state is not _BUSY:
            return
        if not keep_alive or self._server.draining:
            self._close()
            return
        self._state = _IDLE
        self._deadline_s = self._loop.time() + self._server.limits.idle_s
        if self._buffer and not self._advancing:
            self._loop.call_soon(self._advance)

    def cut(self, reset: bool) -> None:
        """Ends the connection in the middle of a body."""
        self._exchange = None
        if reset:
            linger = b"\1\0\0\0\0\0\0\0"  # struct linger {on, 0 s}: close() sends RST
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self._transport.abort()
        else:
            self._close()

    def body_released(self, size_bytes: int) -> None:
        """A counted body is not held any more."""
        self._server.hold(-size_bytes)

    def error_answer(self, status: int, code: str, message: str, asked: Asked) -> tuple[Headers, bytes]:
        """Headers and body of an error that we answer by ourselves."""
        return self._server.error_answer(status, code, message, asked)

    # Ending.

    def _drop_body(self) -> None:
        """What has come of a body that will not be whole."""
        self._body = None
        if self._held_bytes:
            self._server.hold(-self._held_bytes)
            self._held_bytes = 0

    def _refuse(self, error: HeadError) -> None:
        """Answers a request that never reached the app, and closes."""
        head = None if self._body is None else self._body.head
        asked = begun_request(self._buffer) if head is None else Asked(head.method, head.target, head.headers)
        self._drop_body()
        self._buffer = b""
        headers, body = self.error_answer(error.status, error.code, error.message, asked)
        self.send(closing_answer(error.status, headers, body, asked.method))
        self._linger()

    def _close(self) -> None:
        if self._buffer or self._reading_paused:
            self._linger()
            return
        self._state = _State.CLOSING
        self._deadline_s = None  # the write limit is what counts now
        self._transport.close()

    def _linger(self) -> None:
        self._state = _State.LINGER
        self._deadline_s = self._loop.time() + _LINGER_S
        self._buffer = b""
        self._balance_reading()
        if not self._transport.is_closing():
            if self._transport.can_write_eof():
                self._transport.write_eof()
            else:  # TLS has no half-closed connections
                self._transport.close()

    # The server calls these.

    def sweep(self, now_s: float) -> None:
        """Applies the time limits."""
        waiting_bytes = self._transport.get_write_buffer_size()
        if waiting_bytes:
            accepted_bytes = self._sent_bytes - waiting_bytes
            if accepted_bytes != self._accepted_bytes:
                self._accepted_bytes = accepted_bytes
                self._accepted_s = now_s
            elif now_s - self._accepted_s >= self._server.limits.write_stall_s:
                self.abort()
                return
        else:
            self._accepted_bytes = -1
        if self._deadline_s is not None and now_s >= self._deadline_s:
            self._expire()
        elif self._reading_paused and self._state is _BUSY and has_left(self._transport):
            self.abort()

    def _expire(self) -> None:
        self._deadline_s = None
        if self._state in (_HEAD, _BODY):
            part = "head" if self._state is _HEAD else "body"
            # Not 408: clients take it as an invitation to retry at once.
            self._refuse(HeadError(400, "request_timeout", f"the request {part} did not arrive in time"))
        elif self._state is _IDLE:
            self._state = _State.CLOSING
            self._transport.close()
        else:
            self._transport.abort()

    def drain(self) -> None:
        """Closes when idle; otherwise the answer at work is the last."""
        if self._state is _IDLE or self._state is _State.PROXY:
            self._close()

    def abort(self) -> None:
        """Closes now; whoever waits for the answer hears that the client is gone."""
        self._left()
        self._transport.abort()
