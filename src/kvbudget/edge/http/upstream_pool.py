"""Decides which connection to the origin a transfer uses: a pooled one, a new one, or the next that gets free."""

import asyncio
import logging
from collections import deque
from typing import cast

from kvbudget.edge.http.limits import UpstreamLimits
from kvbudget.edge.http.transfer import Failure, Transfer

_LOG = logging.getLogger("kvbudget.http")


class UpstreamConnection(asyncio.Protocol):
    """One keep-alive connection to the origin; carries one transfer at a time."""

    __slots__ = ("_paused", "_pool", "idle_since_s", "reused", "transfer", "transport")

    def __init__(self, pool: "UpstreamPool") -> None:
        self._pool = pool
        self.transport: asyncio.Transport | None = None
        self._paused = False
        self.transfer: Transfer | None = None
        self.reused = False
        self.idle_since_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Bytes of the answer."""
        transfer = self.transfer
        if transfer is not None:
            transfer.received(data)
        else:  # an answer to nothing: whatever it is, the next request must not get it
            self.abort()

    def eof_received(self) -> bool:
        """The upstream closed its side."""
        self._lost(None)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is over."""
        self._lost(exc)
        self._pool.closed(self)

    def _lost(self, error: Exception | None) -> None:
        transfer, self.transfer = self.transfer, None
        self._pool.unusable(self)
        if transfer is None or transfer.ended:
            return
        if self.reused and not transfer.started:
            # It died while it lay in the pool, or as the request was sent: the origin's idle limit hit in the very
            # moment of reuse. Not a byte of an answer came, so once more, on a new connection (RFC 9112, 9.3.1).
            transfer.lane = None
            self._pool.submit_again(transfer)
        else:
            transfer.upstream_closed(error)

    # The transfer calls these.

    def write(self, data: bytes) -> None:
        """Bytes of the request."""
        if self.transport is not None:
            self.transport.write(data)

    def throttle(self, *, paused: bool) -> None:
        """Stops or goes on reading."""
        if paused is self._paused or self.transport is None or self.transport.is_closing():
            return
        self._paused = paused
        if paused:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def release(self, *, reusable: bool) -> None:
        """The answer is complete. Not reusable either while the origin still has not taken the whole request."""
        self.transfer = None
        transport = self.transport
        if not reusable or transport is None or transport.is_closing() or transport.get_write_buffer_size():
            self.abort()
            return
        if self._paused:
            self.throttle(paused=False)
        self._pool.free(self)

    def abort(self) -> None:
        """Closes now."""
        self.transfer = None
        self._pool.unusable(self)
        if self.transport is not None:
            self.transport.abort()


class UpstreamPool:
    """All connections to one origin."""

    def __init__(self, host: str, port: int, limits: UpstreamLimits, loop: asyncio.AbstractEventLoop) -> None:
        self._host = host
        self._port = port
        self._limits = limits
        self._loop = loop
        self._open: set[UpstreamConnection] = set()  # connecting ones included
        self._idle: dict[UpstreamConnection, None] = {}  # oldest first
        self._connecting: dict[UpstreamConnection, Transfer] = {}
        self._waiting: deque[Transfer] = deque()
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def connections(self) -> int:
        """Open connections, connecting ones included."""
        return len(self._open)

    @property
    def idle(self) -> int:
        """Connections that wait for a request."""
        return len(self._idle)

    def submit(self, transfer: Transfer) -> None:
        """Sends it as soon as there is a connection; the newest idle one first, it is the least likely to be closed."""
        if self._closed:
            self._loop.call_soon(transfer.fail, Failure.UNREACHABLE, "the upstream was closed")
            return
        if self._sweeper is None:
            self._keep_time()
        while self._idle:
            connection, _ = self._idle.popitem()
            transport = connection.transport
            if transport is not None and not transport.is_closing():
                connection.reused = True
                connection.transfer = transfer
                transfer.attach(connection)
                return
        transfer.deadline_s = self._loop.time() + self._limits.connect_s
        self._connect_or_wait(transfer)

    def submit_again(self, transfer: Transfer) -> None:
        """The second and last try, on a connection that is not from the pool."""
        transfer.deadline_s = self._loop.time() + self._limits.connect_s
        self._connect_or_wait(transfer)

    def close(self) -> None:
        """Closes every connection; transfers under way are cancelled."""
        self._closed = True
        for transfer in self._under_way():
            transfer.cancel()
        self._waiting.clear()
        for connection in list(self._open):
            connection.abort()
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None

    def _start(self, connection: UpstreamConnection, transfer: Transfer) -> None:
        connection.transfer = transfer
        transfer.attach(connection)

    def _connect_or_wait(self, transfer: Transfer) -> None:
        if len(self._open) >= self._limits.connections:
            self._waiting.append(transfer)
            return
        connection = UpstreamConnection(self)
        self._open.add(connection)
        self._connecting[connection] = transfer
        transfer.connecting = self._loop.create_task(self._connect(connection, transfer))

    async def _connect(self, connection: UpstreamConnection, transfer: Transfer) -> None:
        try:
            await self._loop.create_connection(lambda: connection, self._host, self._port)
        except (OSError, UnicodeError) as error:
            transfer.connecting = None
            transfer.fail(Failure.UNREACHABLE, f"cannot connect: {error}")
            self.closed(connection)
        except BaseException:
            connection.abort()
            self.closed(connection)
            raise
        else:
            transfer.connecting = None
            del self._connecting[connection]
            if transfer.ended:
                self.free(connection)
            else:
                self._start(connection, transfer)

    # The connections call these.

    def free(self, connection: UpstreamConnection) -> None:
        """It can carry the next transfer."""
        transfer = self._next_waiting() if self._waiting else None
        if transfer is not None:
            connection.reused = True
            self._start(connection, transfer)
        elif self._closed:
            connection.abort()
        else:
            connection.idle_since_s = self._loop.time()
            self._idle[connection] = None
            if self._sweeper is None:
                self._keep_time()

    def unusable(self, connection: UpstreamConnection) -> None:
        """It is closing."""
        self._idle.pop(connection, None)

    def closed(self, connection: UpstreamConnection) -> None:
        """It is closed: there is room for a new one."""
        self._open.discard(connection)
        self._idle.pop(connection, None)
        self._connecting.pop(connection, None)
        if self._waiting and len(self._open) < self._limits.connections:
            transfer = self._next_waiting()
            if transfer is not None:
                self._connect_or_wait(transfer)

    def _next_waiting(self) -> Transfer | None:
        while self._waiting:
            transfer = self._waiting.popleft()
            if not transfer.ended:
                return transfer
        return None

    def _under_way(self) -> list[Transfer]:
        carried = [connection.transfer for connection in self._open if connection.transfer is not None]
        return [*carried, *self._connecting.values(), *self._waiting]

    def _keep_time(self) -> None:
        self._sweeper = self._loop.call_later(self._limits.sweep_s, self._sweep)

    def _sweep(self) -> None:
        now_s = self._loop.time()
        for transfer in self._under_way():
            if transfer.deadline_s is not None and now_s >= transfer.deadline_s and not transfer.ended:
                transfer.expire()
        for connection in list(self._idle):
            if now_s - connection.idle_since_s < self._limits.idle_s:
                break
            connection.abort()
        if self._waiting:  # who gave up must not be kept alive by the queue
            self._waiting = deque(transfer for transfer in self._waiting if not transfer.ended)
        self._sweeper = None
        if (self._open or self._waiting) and not self._closed:
            self._keep_time()
