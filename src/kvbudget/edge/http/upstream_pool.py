"""Decides which connection to the origin a transfer uses: a pooled one, a new one, or the next that gets free.

Charged requests are bounded by their reservations, uncharged ones only here: they get a part of the connections, so
that they cannot keep the others waiting. The gate's own calls have some on top: a probe that waits behind users would
report an engine as dead that is only busy.
"""

import asyncio
import errno
import logging
import socket
from collections import deque
from typing import Final, cast

from kvbudget.edge.http.address import Address
from kvbudget.edge.http.limits import UpstreamLimits
from kvbudget.edge.http.transfer import Claim, Failure, Transfer

_LOG: Final = logging.getLogger("kvbudget.http")
# Read with every request; a member by its class is a slow look-up before Python 3.12.
_CHARGED: Final = Claim.CHARGED
_UNCHARGED: Final = Claim.UNCHARGED
_OWN: Final = Claim.OWN
# Our own machine's shortage. EADDRNOTAVAIL is not among them: it also comes for ::1 where there is no IPv6.
_SHORTAGES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class UpstreamConnection:
    """One keep-alive connection to the origin; carries one transfer at a time.

    An asyncio.Protocol in all but its base: with that one the compiler makes it an ordinary Python class.
    """

    __slots__ = ("_paused", "_pool", "claim", "idle_since_s", "reused", "transfer", "transport")

    def __init__(self, pool: "UpstreamPool") -> None:
        self._pool = pool
        self.transport: asyncio.Transport | None = None
        self._paused = False
        self.transfer: Transfer | None = None
        self.claim = _CHARGED  # what the pool counted it as; not charged only while it carries or awaits a transfer
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

    def pause_writing(self) -> None:
        """The origin does not keep up with a request: its body is bounded, and the response limit runs."""

    def resume_writing(self) -> None:
        """It has caught up."""

    def _lost(self, error: Exception | None) -> None:
        transfer, self.transfer = self.transfer, None
        self._pool.unusable(self)
        if transfer is None or transfer.ended:
            return
        if self.reused and not transfer.started and self._pool.in_reuse_race(transfer):
            # It died while it lay in the pool, or as the request was sent: the origin's idle limit hit in the very
            # moment of reuse (RFC 9112, 9.3.1), so once more, on a new connection. Only then. A proxy must not send a
            # POST again by itself (RFC 9110, 9.2.2): an origin that fell silent later may have read it and generated
            # for seconds, and the second generation would have no reservation. nginx and the SDKs of the big APIs make
            # the same exception for this race.
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

    def __init__(self, address: Address, limits: UpstreamLimits, loop: asyncio.AbstractEventLoop) -> None:
        self._address = address
        self._limits = limits
        self._loop = loop
        self._open: set[UpstreamConnection] = set()  # connecting ones included
        self._idle: dict[UpstreamConnection, None] = {}  # oldest first
        self._connecting: dict[UpstreamConnection, Transfer] = {}
        self._waiting_own: deque[Transfer] = deque()
        self._waiting_charged: deque[Transfer] = deque()
        self._waiting_uncharged: deque[Transfer] = deque()
        # Connections that carry, or are opened for, the gate's own calls and uncharged relays.
        self._own = 0
        self._uncharged = 0
        self._uncharged_connections = limits.uncharged_connections
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

    @property
    def waiting(self) -> int:
        """Transfers that wait for a connection."""
        return len(self._waiting_own) + len(self._waiting_charged) + len(self._waiting_uncharged)

    def submit(self, transfer: Transfer) -> None:
        """Sends it as soon as there is a connection; the newest idle one first, it is the least likely to be closed."""
        if self._closed:
            self._loop.call_soon(transfer.fail, Failure.UNREACHABLE, "the upstream was closed")
            return
        if self._sweeper is None:
            self._keep_time()
        idle = self._idle
        if idle and transfer.claim is _CHARGED and len(self._open) - len(idle) < self._limits.connections:
            # As nearly always, and without a call: as below, for the gate's own connections only give more room.
            connection, _ = idle.popitem()
            transport = connection.transport
            if transport is not None and not transport.is_closing():
                connection.reused = True
                connection.transfer = transfer
                transfer.attach(connection)
                return
        if not self._has_room(transfer.claim):
            self._wait(transfer)
        elif not self._reuse(transfer):
            self._open_for(transfer)

    def submit_again(self, transfer: Transfer) -> None:
        """The second and last try, on a connection that is not from the pool."""
        if self._has_room(transfer.claim):
            self._open_for(transfer)
        else:
            transfer.deadline_s = self._loop.time() + self._limits.connect_s
            self._queue_of(transfer.claim).appendleft(transfer)

    def in_reuse_race(self, transfer: Transfer) -> bool:
        """True while the loss of its reused connection means that the origin was closing it already."""
        return self._loop.time() - transfer.sent_s <= self._limits.reuse_race_s

    def close(self) -> None:
        """Closes every connection; transfers under way are cancelled."""
        self._closed = True
        for transfer in self._under_way():
            transfer.cancel()
        for queue in (self._waiting_own, self._waiting_charged, self._waiting_uncharged):
            queue.clear()
        for connection in list(self._open):
            connection.abort()
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None

    def _has_room(self, claim: Claim) -> bool:
        """Whether a transfer of that kind may have a connection now."""
        own, reserve = self._own, self._limits.own_connections
        if claim is _OWN and own < reserve:
            return True
        if claim is _UNCHARGED and self._uncharged >= self._uncharged_connections:
            return False
        # Connections on their way out count until they are closed.
        return len(self._open) - len(self._idle) - min(own, reserve) < self._limits.connections

    def _reuse(self, transfer: Transfer) -> bool:
        while self._idle:
            connection, _ = self._idle.popitem()
            transport = connection.transport
            if transport is not None and not transport.is_closing():
                connection.reused = True
                self._claim(connection, transfer.claim)
                self._start(connection, transfer)
                return True
        return False

    def _start(self, connection: UpstreamConnection, transfer: Transfer) -> None:
        connection.transfer = transfer
        transfer.attach(connection)

    def _claim(self, connection: UpstreamConnection, claim: Claim) -> None:
        connection.claim = claim
        if claim is _UNCHARGED:
            self._uncharged += 1
        elif claim is _OWN:
            self._own += 1

    def _unclaim(self, connection: UpstreamConnection) -> None:
        """Any number of times."""
        claim = connection.claim
        if claim is not _CHARGED:
            connection.claim = _CHARGED
            if claim is _UNCHARGED:
                self._uncharged -= 1
            else:
                self._own -= 1

    def _wait(self, transfer: Transfer) -> None:
        queue = self._queue_of(transfer.claim)
        if transfer.claim is _UNCHARGED and len(queue) >= self._limits.uncharged_waiting:
            message = f"{len(queue)} requests without a charge wait for a connection already"
            # Not in here: whoever submits does not expect its end before it has the relay in hand.
            self._loop.call_soon(transfer.fail, Failure.NO_CONNECTION, message)
            return
        transfer.deadline_s = self._loop.time() + self._limits.connect_s
        queue.append(transfer)

    def _queue_of(self, claim: Claim) -> deque[Transfer]:
        if claim is _CHARGED:
            return self._waiting_charged
        return self._waiting_own if claim is _OWN else self._waiting_uncharged

    def _open_for(self, transfer: Transfer) -> None:
        connection = UpstreamConnection(self)
        self._open.add(connection)
        self._claim(connection, transfer.claim)
        self._connecting[connection] = transfer
        transfer.deadline_s = self._loop.time() + self._limits.connect_s
        task = self._loop.create_task(self._connect(connection, transfer))
        transfer.connecting = task
        # A task that is cancelled before its first step runs none of its own cleaning up.
        task.add_done_callback(lambda done: self.closed(connection) if done.cancelled() else None)

    async def _connect(self, connection: UpstreamConnection, transfer: Transfer) -> None:
        try:
            address, protocol = self._address, cast(asyncio.Protocol, connection)
            if address.socket_path is not None:
                await self._loop.create_unix_connection(lambda: protocol, address.socket_path)
            else:
                await self._loop.create_connection(lambda: protocol, address.host, address.port, ssl=address.tls)
        except (OSError, UnicodeError) as error:  # ssl.SSLError is an OSError
            transfer.connecting = None
            failure = Failure.NO_CONNECTION if _is_shortage(error) else Failure.UNREACHABLE
            transfer.fail(failure, f"cannot connect: {error}")
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
        if connection.claim is not _CHARGED:
            self._unclaim(connection)
        if self._closed:
            connection.abort()
            return
        connection.idle_since_s = self._loop.time()
        self._idle[connection] = None
        if self._sweeper is None:
            self._keep_time()
        if self._waiting_charged or self._waiting_own or self._waiting_uncharged:
            self._serve_waiting()

    def unusable(self, connection: UpstreamConnection) -> None:
        """It is closing."""
        self._idle.pop(connection, None)
        self._unclaim(connection)

    def closed(self, connection: UpstreamConnection) -> None:
        """It is closed: there is room for a new one."""
        self._open.discard(connection)
        self._idle.pop(connection, None)
        self._connecting.pop(connection, None)
        self._unclaim(connection)
        self._serve_waiting()

    def _serve_waiting(self) -> None:
        for queue in (self._waiting_own, self._waiting_charged, self._waiting_uncharged):
            while queue:
                transfer = queue[0]
                if transfer.ended:
                    queue.popleft()
                elif self._has_room(transfer.claim):
                    queue.popleft()
                    if not self._reuse(transfer):
                        self._open_for(transfer)
                else:
                    break

    def _under_way(self) -> list[Transfer]:
        carried = [connection.transfer for connection in self._open if connection.transfer is not None]
        queues = (*self._waiting_own, *self._waiting_charged, *self._waiting_uncharged)
        return [*carried, *self._connecting.values(), *queues]

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
        for queue in (self._waiting_own, self._waiting_charged, self._waiting_uncharged):
            if queue:  # who gave up must not be kept alive by the queue
                living = [transfer for transfer in queue if not transfer.ended]
                queue.clear()
                queue.extend(living)
        self._sweeper = None
        if (self._open or self.waiting) and not self._closed:
            self._keep_time()


def _is_shortage(error: OSError | UnicodeError) -> bool:
    """Whether connecting failed for want of something on our side."""
    if isinstance(error, socket.gaierror):
        # The C library reports a host name that it had no descriptor to look up as unknown; so try for one.
        try:
            socket.socket().close()
        except OSError as shortage:
            error = shortage
    return isinstance(error, OSError) and error.errno in _SHORTAGES
