"""What a way to an engine is for those who send requests on it: our own connections, or another proxy's."""

from typing import Protocol

from kvbudget.edge.http.exchange import Exchange
from kvbudget.edge.http.messages import ClientHeaders, Headers, OwnLines
from kvbudget.edge.http.relay import Watcher
from kvbudget.edge.http.upstream import Response


class Relaying(Protocol):
    """An answer on its way to a client. Its watcher hears of the end exactly once."""

    def cancel(self) -> None:
        """End it now; the app answers where that is still possible."""


class Way(Protocol):
    """To one origin. `Upstream` is the one of our own connections, and says more of each argument."""

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
    ) -> Relaying:
        """Send the request and let its answer flow to the exchange's client."""

    async def request(self, method: bytes, target: bytes, headers: Headers, body: bytes, timeout_s: float) -> Response:
        """A small call by the gate itself. Raises UpstreamError."""
