"""Decides which connections are open: accepts them, bounds their number, sweeps over their time limits, drains them."""

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Final, cast

from kvbudget.edge.http.connection import ClientConnection
from kvbudget.edge.http.exchange import Exchange
from kvbudget.edge.http.limits import ServerLimits
from kvbudget.edge.http.peers import ProxyHeaderError, Trusted
from kvbudget.edge.http.refused import ErrorAnswer, openai_answer
from kvbudget.edge.http.repeats import KnownRequests

__all__ = ["App", "Exchange", "HttpServer", "start_server"]

App = Callable[[Exchange], None]
"""Called as soon as a request is whole. It answers, now or later; what it raises becomes a 500."""

_LOG: Final = logging.getLogger("kvbudget.http")
_BACKLOG: Final = 1024
# A client that lost power sends nothing: probes find it within about two minutes, also while it waits in a queue.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4))


async def start_server(
    app: App,
    host: str,
    port: int,
    limits: ServerLimits,
    *,
    error_answer: ErrorAnswer = openai_answer,
    tls: ssl.SSLContext | None = None,
    trusted: Trusted | None = None,
    shared: bool = False,
) -> "HttpServer":
    """Listens on `host`:`port` (0: any free port), or on the Unix socket of a `host` like `unix:/run/gate.sock`.

    `error_answer` makes headers and body of errors that never reach the app. `tls`: speak TLS with that certificate;
    who does not finish the handshake within `limits.head_s` is closed. `trusted`: from there connections begin with a
    PROXY header (not in TLS, which would come before it). `shared`: other processes listen there as well, and the
    kernel spreads the connections over them. Raises OSError when the address cannot be had.
    """
    loop = asyncio.get_running_loop()
    server = HttpServer(app, limits, error_answer, loop, trusted)
    protocol = cast("Callable[[], asyncio.Protocol]", server.new_connection)
    handshake_s = limits.head_s if tls is not None else None
    if host.startswith("unix:"):
        path = host.removeprefix("unix:")
        await _refuse_to_displace(path)
        listener = await loop.create_unix_server(
            protocol, path, backlog=_BACKLOG, ssl=tls, ssl_handshake_timeout=handshake_s
        )
        server.listen(listener)
        return server
    listener = await loop.create_server(
        protocol, host, port, backlog=_BACKLOG, ssl=tls, ssl_handshake_timeout=handshake_s, reuse_port=shared or None
    )
    for listening in _sockets(listener):  # accepted sockets inherit these on Linux
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            listening.setsockopt(socket.IPPROTO_TCP, option, value)
    server.listen(listener)
    return server


async def _refuse_to_displace(path: str) -> None:
    """Binding removes a socket that lies there, as one that nobody closed does; a server that lives must keep it."""
    try:
        _, there = await asyncio.open_unix_connection(path)
    except OSError:
        return
    there.close()
    raise OSError(errno.EADDRINUSE, "another process listens on this socket")


def _sockets(listener: asyncio.Server) -> list[socket.socket]:
    """Its sockets: asyncio gives a tuple of them, uvloop a list, and compiled code believes the annotation."""
    return list(getattr(listener, "sockets"))  # noqa: B009 - an annotated access would be checked for a tuple


class HttpServer:
    """A listening server; made by `start_server`."""

    def __init__(
        self,
        app: App,
        limits: ServerLimits,
        error_answer: ErrorAnswer,
        loop: asyncio.AbstractEventLoop,
        trusted: Trusted | None = None,
    ) -> None:
        self.app = app
        self.limits = limits
        self.error_answer = error_answer
        self.draining = False
        self.trusted = trusted
        self._proxy_told = False
        self.known = KnownRequests()
        self.port = 0
        self._loop = loop
        self._buffered_bytes = 0
        self._buffered_most_bytes = limits.buffered_most_bytes
        self._open: set[ClientConnection] = set()
        self._listener: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def connections(self) -> int:
        """Open client connections."""
        return len(self._open)

    @property
    def buffered_bytes(self) -> int:
        """Bytes of large request bodies that have arrived, and whose answer has not begun nor ended."""
        return self._buffered_bytes

    def stop_accepting(self) -> None:
        """Closes the listening socket; open connections live on."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def close(self, grace_s: float) -> None:
        """Drains: idle connections close at once, busy ones finish their answer within `grace_s`, then all are cut."""
        self.stop_accepting()
        self.draining = True
        try:
            for connection in list(self._open):
                connection.drain()
            try:
                async with asyncio.timeout(grace_s):
                    await self._empty.wait()
            except TimeoutError:
                _LOG.warning("%d connections were cut after %.1f s of grace", len(self._open), grace_s)
        finally:
            for connection in list(self._open):
                connection.abort()
            if self._sweeper is not None:
                self._sweeper.cancel()
        await self._empty.wait()

    # For start_server and the connections.

    def new_connection(self) -> ClientConnection:
        """The protocol of a connection just accepted."""
        return ClientConnection(self, self._loop)

    def listen(self, listener: asyncio.Server) -> None:
        """The listener is open."""
        self._listener = listener
        name = _sockets(listener)[0].getsockname()
        self.port = name[1] if isinstance(name, tuple) else 0  # a Unix socket has a path instead
        self._sweeper = self._loop.call_later(self.limits.sweep_s, self._sweep)

    def admit(self, connection: ClientConnection) -> bool:
        """Counts a new connection in; False when there are too many."""
        if len(self._open) >= self.limits.connections or self.draining:
            return False
        self._open.add(connection)
        self._empty.clear()
        return True

    def no_proxy_header(self, peer: str, error: ProxyHeaderError) -> None:
        """A connection was closed for want of one. Said once: a balancer that sends none opens many."""
        if not self._proxy_told:
            self._proxy_told = True
            _LOG.warning("%s is in --proxy-protocol, and its connection was closed: %s (told once)", peer, error)

    def fits(self, size_bytes: int) -> bool:
        """Whether so many more bytes of bodies may be held."""
        return self._buffered_bytes + size_bytes <= self._buffered_most_bytes

    def hold(self, size_bytes: int) -> None:
        """Counts bytes of a body (negative: released)."""
        self._buffered_bytes += size_bytes

    def forget(self, connection: ClientConnection) -> None:
        """The connection is closed."""
        self._open.discard(connection)
        if not self._open:
            self._empty.set()

    def _sweep(self) -> None:
        now_s = self._loop.time()
        for connection in list(self._open):
            try:
                connection.sweep(now_s)
            except Exception:
                _LOG.exception("error in the sweep over connections")
        self._sweeper = self._loop.call_later(self.limits.sweep_s, self._sweep)
