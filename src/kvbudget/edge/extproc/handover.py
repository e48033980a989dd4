"""Decides how an admitted request goes on by Envoy, and what is known of its end: a relay whose bytes others carry."""

import asyncio
import logging
from typing import Final, Protocol, cast

from kvbudget.edge.extproc.endpoints import Endpoints
from kvbudget.edge.extproc.heard import Answer
from kvbudget.edge.extproc.told import Changes
from kvbudget.edge.http.events import EventCounter
from kvbudget.edge.http.exchange import Exchange
from kvbudget.edge.http.messages import ClientHeaders, Headers, OwnLines, fields_of
from kvbudget.edge.http.relay import STREAM_TAIL_BYTES, TAIL_BYTES, RelayEnd, RelayOutcome, Watcher
from kvbudget.edge.http.repeats import without_length
from kvbudget.edge.http.upstream import Response
from kvbudget.edge.http.way import Way

_LOG: Final = logging.getLogger("kvbudget.extproc")
_OWN_LENGTH: Final = frozenset({b"host", b"content-length"})
_LOCAL_TIMEOUT: Final = 504
_LOCAL_FAILURES: Final = frozenset({502, 503})


class Bearer(Protocol):
    """What the stream to Envoy is for a request that goes on."""

    def forward(self, handed: "Handed", changes: Changes, body: bytes, *, changed: bool) -> None:
        """Let Envoy send it. `changed`: the body is another one than came."""

    def cut(self, reset: bool) -> None:
        """End the stream so that Envoy ends both sides of the request."""


class Handed:
    """A request that Envoy carries. It ends exactly once, and its watcher hears of that."""

    __slots__ = (
        "_bearer",
        "_body_bytes",
        "_complete",
        "_counter",
        "_ended",
        "_exchange",
        "_head",
        "_own",
        "_tail",
        "_tail_bytes",
        "_watcher",
        "endpoint",
    )

    def __init__(
        self, exchange: Exchange, bearer: Bearer, endpoint: str, own: Headers | OwnLines, watcher: Watcher
    ) -> None:
        self.endpoint = endpoint
        self._exchange = exchange
        self._bearer = bearer
        self._own = own
        self._watcher = watcher
        self._head: Answer | None = None
        self._counter: EventCounter | None = None
        self._tail = bytearray()
        self._tail_bytes = TAIL_BYTES
        self._body_bytes = 0
        self._complete = False
        self._ended = False

    # For an exchange (`Answering`)

    def pause(self) -> None:
        """Nothing of the answer waits here."""

    def resume(self) -> None:
        """As `pause`."""

    def client_gone(self) -> None:
        """The client left before Envoy was told to go on."""
        self._end(RelayOutcome.CLIENT_GONE)

    # For the gateway (`Relaying`)

    def cancel(self) -> None:
        """Its engine is lost, or we go. Envoy answers the client, if an answer has not begun: we could only answer a
        message of its, and there is none."""
        if not self._ended:
            self._end(RelayOutcome.CANCELLED)
            self._bearer.cut(reset=True)

    # For the stream

    def head(self, answer: Answer) -> Headers | None:
        """The answer begins: headers of ours for it. None: it was refused, or answered otherwise, by the gateway."""
        self._head = answer
        if not answer.by_engine:
            self._local(answer)
        # What a 500 means may stand in its body, which is Envoy's: it goes on as it came.
        elif not self._watcher.on_head(answer.status, answer.headers) and answer.status != 500:
            self._exchange.give_back()
            self._end(RelayOutcome.WITHHELD)
        if self._ended:
            return None
        if any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in answer.headers):
            self._counter, self._tail_bytes = EventCounter(), STREAM_TAIL_BYTES
        return fields_of(self._own) if isinstance(self._own, OwnLines) else self._own

    def _local(self, answer: Answer) -> None:
        """Envoy's own answer, in place of an engine's: what it could not reach is told as we tell it."""
        if answer.status in _LOCAL_FAILURES:
            self._exchange.give_back()
            self._end(RelayOutcome.UNREACHABLE)
        elif answer.status == _LOCAL_TIMEOUT:
            self._exchange.give_back()
            self._end(RelayOutcome.TIMEOUT_BEFORE_HEAD)

    def body(self, piece: bytes, *, ends: bool) -> None:
        """A piece of the answer passes, where Envoy shows us its body."""
        if self._ended:
            return
        self._complete = self._complete or ends
        self._body_bytes += len(piece)
        tail, most = self._tail, self._tail_bytes
        tail += piece
        if len(tail) > most + most // 4:
            del tail[:-most]
        if self._counter is not None and (count := self._counter.feed(piece)):
            self._watcher.on_events(count)

    def trailers(self) -> None:
        """The answer ends with trailers, after its body."""
        self._complete = True

    def over(self, *, heads_come: bool) -> None:
        """Envoy has ended the stream. `heads_come`: it shows the headers of answers, so that there was none."""
        unseen, head = self._exchange.unseen, self._head
        if head is None:
            self._end(RelayOutcome.CLIENT_GONE if heads_come or not unseen else RelayOutcome.UNSEEN)
        elif self._complete or head.status >= 400 or any(name == b"content-length" for name, _ in head.headers):
            self._end(RelayOutcome.DONE)  # who told the length of an answer had made the whole of it
        else:
            self._end(RelayOutcome.UNSEEN if unseen else RelayOutcome.CLIENT_GONE)

    def nowhere(self) -> None:
        """There is no endpoint to send it to."""
        if not self._ended:
            self._exchange.give_back()
            self._end(RelayOutcome.UNREACHABLE)

    def _end(self, outcome: RelayOutcome) -> None:
        if self._ended:
            return
        self._ended = True
        head, counter = self._head, self._counter
        end = RelayEnd(
            outcome,
            None if head is None else head.status,
            [] if head is None else without_length(head.headers),
            bytes(self._tail[-self._tail_bytes :]),
            0 if counter is None else counter.total,
            self._body_bytes,
            sent=True,
        )
        try:
            self._watcher.on_end(end)
        except Exception:
            _LOG.exception("the watcher of a request failed")
            self._exchange.fail(500, "internal_error", "internal error of the gateway")


class Handover:
    """The way to an engine by Envoy. The gate's own calls go by its own connections."""

    def __init__(self, name: str, own: Way, endpoints: Endpoints) -> None:
        self._name = name
        self._own = own
        self._endpoints = endpoints

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
    ) -> Handed:
        """As `Way.relay`, of an exchange whose client Envoy holds."""
        bearer = cast("Bearer", exchange.carrier)
        endpoint = self._endpoint(exchange)
        handed = Handed(exchange, bearer, endpoint or "", response_headers, watcher)
        exchange.take(handed)
        if endpoint is None:
            asyncio.get_running_loop().call_soon(handed.nowhere)
            return handed
        assert isinstance(headers, ClientHeaders)  # noqa: S101 - what a gateway gives
        own = fields_of(headers.own)
        replaced = {name for name, _ in own} | _OWN_LENGTH
        gone = {name for name, _ in exchange.headers if name in headers.without and name not in replaced}
        bearer.forward(handed, Changes(endpoint, own, sorted(gone)), body, changed=body is not exchange.body)
        exchange.release_body()
        # Nothing can be tried again, as nothing but the headers of an answer is seen: prompts are let go of now.
        watcher.on_head(200, [])
        return handed

    def _endpoint(self, exchange: Exchange) -> str | None:
        """Of this instance; of another one where whoever brought the request does not allow this one. Only what is not
        charged comes here that way: it is nobody's choice to which engine it goes."""
        if self._name not in exchange.avoid:
            return self._endpoints.of(self._name)
        return self._endpoints.any_but(exchange.avoid)

    async def request(self, method: bytes, target: bytes, headers: Headers, body: bytes, timeout_s: float) -> Response:
        """As `Way.request`."""
        return await self._own.request(method, target, headers, body, timeout_s)
