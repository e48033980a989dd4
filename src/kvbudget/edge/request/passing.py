"""An exchange that passes to the engine without a KV charge."""

from collections.abc import Callable
from typing import Final

from kvbudget.edge.http.messages import Headers
from kvbudget.edge.http.server import Exchange
from kvbudget.edge.http.upstream import RelayEnd, RelayOutcome
from kvbudget.edge.http.way import Relaying
from kvbudget.edge.instances.backend import Backend

Unanswered = Callable[[Exchange, bytes, RelayEnd, Backend], None]
_BEFORE_HEAD: Final = frozenset(
    {
        RelayOutcome.UNREACHABLE,
        RelayOutcome.NO_CONNECTION,
        RelayOutcome.BROKEN_BEFORE_HEAD,
        RelayOutcome.TIMEOUT_BEFORE_HEAD,
        RelayOutcome.CANCELLED,
    }
)


class PassingBy:
    """One uncharged exchange: relayed as it is, its own watcher."""

    __slots__ = ("_backend", "_exchange", "_over", "_request_id", "_unanswered", "_under_way", "relay")

    def __init__(
        self,
        exchange: Exchange,
        backend: Backend,
        request_id: bytes,
        unanswered: Unanswered,
        under_way: "set[PassingBy]",
        over: Callable[[RelayEnd], None] | None = None,
    ) -> None:
        """`over`: whoever wants to hear how it ended."""
        self._exchange = exchange
        self._backend = backend
        self._request_id = request_id
        self._unanswered = unanswered
        self._under_way = under_way
        self._over = over
        under_way.add(self)
        self.relay: Relaying | None = None
        self.relay = backend.upstream.relay(
            exchange,
            method=exchange.method,
            target=exchange.target,
            headers=backend.headers.of(request_id),
            body=exchange.body,
            response_headers=[(b"x-request-id", request_id)],
            watcher=self,
            charged=False,
        )

    def on_head(self, status: int, headers: Headers) -> bool:
        """Relay whatever the engine answers."""
        return True

    def on_events(self, count: int) -> None:
        """Nothing is charged, so nothing is counted."""

    def on_stall(self) -> None:
        """Nothing is charged, so nobody waits for it."""

    def on_end(self, end: RelayEnd) -> None:
        """Answer in the engine's place if it said nothing."""
        self._under_way.discard(self)
        if self._over is not None:
            self._over(end)
        if end.outcome in _BEFORE_HEAD and self._exchange.open:
            self._unanswered(self._exchange, self._request_id, end, self._backend)
