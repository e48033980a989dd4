"""Decides how a request is put to one origin: relayed for a client, or called by the gate itself."""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from kvbudget.edge.http.address import address_of
from kvbudget.edge.http.exchange import Exchange
from kvbudget.edge.http.heads import ResponseHead
from kvbudget.edge.http.limits import UpstreamLimits
from kvbudget.edge.http.messages import (
    ClientHeaders,
    Headers,
    OwnLines,
    check_lines,
    end_to_end,
    fields_of,
    serialise_request_head,
)
from kvbudget.edge.http.relay import Relay, RelayEnd, RelayOutcome, Watcher
from kvbudget.edge.http.repeats import without_length
from kvbudget.edge.http.transfer import Claim, Failure, Origin, Transfer
from kvbudget.edge.http.upstream_pool import UpstreamPool
from kvbudget.errors import KvbudgetError

__all__ = ["Relay", "RelayEnd", "RelayOutcome", "Response", "Upstream", "UpstreamError", "UpstreamLimits", "Watcher"]

CALL_BYTES: Final = 16 * 1024 * 1024
"""Largest body of an answer to `Upstream.request`."""
_JOIN_BYTES: Final = 65536
_MOST_UPSTREAMS: Final = 64  # for which one client's head is kept ready
# Read with every request; a member by its class is a slow look-up before Python 3.12.
_CHARGED: Final = Claim.CHARGED
_UNCHARGED: Final = Claim.UNCHARGED
# Host and length are ours; a 100-continue was answered by the server already.
_REPLACED: Final = frozenset({b"host", b"content-length", b"expect", b"http2-settings"})


ErrorKind = Literal["no_connection", "unreachable", "timeout", "broken"]
_KINDS: Final[dict[Failure, ErrorKind]] = {
    Failure.NO_CONNECTION: "no_connection",
    Failure.UNREACHABLE: "unreachable",
    Failure.TIMEOUT: "timeout",
    Failure.BROKEN: "broken",
}


class UpstreamError(KvbudgetError):
    """A call by the gate itself failed. `no_connection` says nothing about the engine: none got free in time."""

    code = "upstream_failed"

    def __init__(self, kind: ErrorKind, message: str) -> None:
        super().__init__(message, fix="check that the server runs and that its address is right")
        self.code = "upstream_failed"  # compiled, the class has its base's
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Response:
    """An answer to the gate itself; `headers` are without Content-Length, `body` is de-chunked."""

    status: int
    headers: Headers
    body: bytes


class Upstream:
    """One origin, for instance `http://10.0.0.7:8000` or `http://[::1]:8000/prefix`, and its pooled connections.

    `tls`: what the certificate of an https origin is checked by. Made inside of a running loop. Raises BadValueError
    for an address that cannot be used.
    """

    def __init__(self, url: str, limits: UpstreamLimits, tls: ssl.SSLContext | None = None) -> None:
        self.url = url
        address = address_of(url, tls)
        self._authority, self._prefix = address.authority, address.prefix
        self._loop = asyncio.get_running_loop()
        self._origin = Origin(limits, self._loop)
        self._pool = UpstreamPool(address, limits, self._loop)

    @property
    def connections(self) -> int:
        """Open connections to the origin."""
        return self._pool.connections

    @property
    def idle(self) -> int:
        """Those of them that wait for a request."""
        return self._pool.idle

    def relay(
        self,
        exchange: Exchange,
        method: bytes,
        target: bytes,
        headers: Headers | ClientHeaders,
        body: bytes,
        response_headers: Headers | OwnLines,
        watcher: Watcher,
        charged: bool = True,
    ) -> Relay:
        """Sends the request and lets its answer flow to the exchange's client.

        Hop-by-hop headers, Host and Content-Length are set here. `response_headers` replace the upstream's of the same
        name. The cheapest way, as nothing is made anew for a head that came before: `ClientHeaders` and `OwnLines`,
        with `target` and `method` those of the exchange.

        Where the number of requests is not bounded by what they are charged, say so (`charged`): they get a part of the
        connections (`UpstreamLimits.uncharged_connections`), and one too many ends as NO_CONNECTION. Raises ValueError
        for a header with CR, LF or NUL or when only one side is HEAD, RuntimeError when the exchange is answered
        already; then the watcher hears nothing.
        """
        if (method == b"HEAD") is not (exchange.method == b"HEAD"):
            raise ValueError("HEAD must be relayed as HEAD: the answers have different ends")
        if isinstance(headers, ClientHeaders):
            request = self._forwarded(exchange, method, target, headers, body)
        else:
            request = self._request(method, target, headers, body)
        claim = _CHARGED if charged else _UNCHARGED
        relay = Relay(exchange, method, request, claim, response_headers, watcher, self._origin)
        if exchange.gone:
            self._loop.call_soon(relay.end_at_once)
        else:
            exchange.take(relay)
            self._pool.submit(relay)
        return relay

    async def request(self, method: bytes, target: bytes, headers: Headers, body: bytes, timeout_s: float) -> Response:
        """A small call by the gate itself; the answer is read whole, at most 16 MiB. Raises UpstreamError."""
        call = _Call(method, self._request(method, target, headers, body), self._origin, self._loop)
        self._pool.submit(call)
        try:
            async with asyncio.timeout(timeout_s):
                return await call.answer
        except TimeoutError:
            if call.waiting:
                message = f"{self.url}: no connection got free within {timeout_s:g} s"
                raise UpstreamError("no_connection", message) from None
            raise UpstreamError("timeout", f"{self.url}: no answer within {timeout_s:g} s") from None
        finally:
            call.cancel()

    async def stream(self, method: bytes, target: bytes, headers: Headers, heard: Callable[[bytes], None]) -> Response:
        """As `request`, for an answer that may go on for ever: of a 200 each piece goes to `heard`, which must not
        raise, and the response has none of it. Only the limits of silence bound it. Raises UpstreamError."""
        call = _Stream(method, self._request(method, target, headers, b""), self._origin, self._loop, heard)
        self._pool.submit(call)
        try:
            return await call.answer
        finally:
            call.cancel()

    def close(self) -> None:
        """Closes all connections; relays under way end as CANCELLED."""
        self._pool.close()

    def _forwarded(
        self, exchange: Exchange, method: bytes, target: bytes, headers: ClientHeaders, body: bytes
    ) -> tuple[bytes, ...]:
        """The request with the client's own headers; of a head that is known, they are made once."""
        known = exchange.known
        if known is None or method != exchange.method or target is not exchange.target:
            fields = end_to_end(exchange.headers, headers.without)
            return self._request(method, target, fields + fields_of(headers.own), body)
        key = (self, headers.without)
        kept = known.forwarded.get(key)
        if kept is None:
            fields = end_to_end(exchange.headers, _REPLACED | headers.without)
            made = serialise_request_head(method, self._prefix + target, [(b"host", self._authority), *fields])
            if len(known.forwarded) >= _MOST_UPSTREAMS:
                known.forwarded.clear()
            kept = known.forwarded[key] = made[:-2]
        own, size = headers.own, len(body)
        lines = own.lines if own.plain else check_lines(own)
        if size <= _JOIN_BYTES:
            return (b"%b%bcontent-length: %d\r\n\r\n%b" % (kept, lines, size, body),)
        return (b"%b%bcontent-length: %d\r\n\r\n" % (kept, lines, size), body)

    def _request(self, method: bytes, target: bytes, headers: Headers, body: bytes) -> tuple[bytes, ...]:
        fields = end_to_end(headers, _REPLACED)
        fields.insert(0, (b"host", self._authority))
        if body or method not in (b"GET", b"HEAD", b"OPTIONS", b"DELETE", b"TRACE"):
            fields.append((b"content-length", b"%d" % len(body)))
        head = serialise_request_head(method, self._prefix + target, fields)
        return (head + body,) if len(body) <= _JOIN_BYTES else (head, body)


class _Call(Transfer):
    """An answer read whole."""

    __slots__ = ("_body", "answer")

    def __init__(
        self,
        method: bytes,
        request: tuple[bytes, ...],
        origin: Origin,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(method, request, Claim.OWN, origin)
        self.answer: asyncio.Future[Response] = loop.create_future()
        self._body = bytearray()

    def on_head(self, head: ResponseHead, *, alone: bool) -> None:
        """Nothing to decide yet."""

    def on_body(self, raw: bytes, body: bytes) -> None:
        """Gathers."""
        self._body += body
        if len(self._body) > CALL_BYTES:
            self.fail(Failure.BROKEN, f"an answer over the limit of {CALL_BYTES} bytes")

    def on_complete(self) -> None:
        """Answers."""
        if self.head is not None and not self.answer.done():
            headers = self.head.headers if self.known is None else self.known.headers
            self.answer.set_result(Response(self.head.status, without_length(headers), bytes(self._body)))

    def on_failure(self, failure: Failure, message: str) -> None:
        """Answers with the error."""
        if not self.answer.done():
            self.answer.set_exception(UpstreamError(_KINDS[failure], message))

    def on_cancelled(self) -> None:
        """The caller has gone, or the upstream was closed."""
        if not self.answer.done():
            self.answer.set_exception(UpstreamError("broken", "the upstream was closed"))
            self.answer.exception()  # seen: a caller that timed out does not look any more


class _Stream(_Call):
    """An answer that is handed on as it comes."""

    __slots__ = ("_heard",)

    def __init__(
        self,
        method: bytes,
        request: tuple[bytes, ...],
        origin: Origin,
        loop: asyncio.AbstractEventLoop,
        heard: Callable[[bytes], None],
    ) -> None:
        super().__init__(method, request, origin, loop)
        self._heard = heard

    def on_body(self, raw: bytes, body: bytes) -> None:
        """Hands on, unless it is about an error."""
        if self.head is not None and self.head.status == 200:
            self._heard(body)
        else:
            super().on_body(raw, body)
