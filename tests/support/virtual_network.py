"""An event loop whose clock jumps and whose network is made of Python objects: a run repeats itself from a seed.

Every call that would go to the kernel (connect, accept, a write that arrives, an end, a close) is an operation with a
number. A `Fault` makes one of them go wrong, so that a test can let each operation of a run fail in turn. Bytes arrive
after a latency, cut into pieces as the seed wants, and wait in the sender's buffer while the other side does not read.
"""

import asyncio
import errno
import random
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

Factory = Callable[[], asyncio.Protocol]


class Fault(NamedTuple):
    """Operation `number` (from 0) goes wrong: `reset`, `end` (half closed), `stall` (nothing arrives any more)."""

    number: int
    kind: str


class _NoFiles(selectors.SelectSelector):
    """Waits by moving the clock; real files are only the loop's own wake-up pipe."""

    def __init__(self, loop_of: "Callable[[], VirtualLoop]") -> None:
        super().__init__()
        self._loop_of = loop_of

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("everything waits and nothing will ever happen: a hang")
        self._loop_of().jump(timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop. `operations` counts what the network did."""

    def __init__(self, seed: int, fault: Fault | None = None) -> None:
        self._clock_s = 1000.0
        self.chance = random.Random(seed)
        self.fault = fault
        self.operations = 0
        self.failures: list[str] = []
        self._listening: dict[int, tuple[Factory, _Listener]] = {}
        self._port = 40_000
        super().__init__(_NoFiles(lambda: self))
        self.set_exception_handler(self._failed)

    def time(self) -> float:
        return self._clock_s

    def now_ns(self) -> int:
        """The clock as the gate reads it."""
        return round(self._clock_s * 1e9)

    def jump(self, seconds: float) -> None:
        """For the selector."""
        self._clock_s += max(0.0, seconds)

    def _failed(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.failures.append(f"{context.get('message')}: {context.get('exception')!r}")

    def operation(self) -> str:
        """Counts one; the kind of fault that it has, or nothing."""
        number, self.operations = self.operations, self.operations + 1
        return self.fault.kind if self.fault is not None and self.fault.number == number else ""

    async def create_server(self, protocol_factory: Factory, host: Any = None, port: Any = 0, **_: Any) -> Any:  # type: ignore[override]
        self._port += 1
        listener = _Listener(self, port or self._port)
        self._listening[listener.port] = (protocol_factory, listener)
        return listener

    def stop_listening(self, port: int) -> None:
        """New connections to it are refused."""
        self._listening.pop(port, None)

    async def create_connection(self, protocol_factory: Factory, host: Any = None, port: Any = None, **_: Any) -> Any:  # type: ignore[override]
        fault = self.operation()
        await asyncio.sleep(self.chance.choice((0, 0.0001, 0.001)))
        if fault == "stall":
            await asyncio.sleep(3600)
        if fault or port not in self._listening:
            code = errno.EMFILE if fault == "end" else errno.ECONNREFUSED
            raise OSError(code, "scripted")
        ours, theirs = protocol_factory(), self._listening[port][0]()
        left, right = VirtualTransport(self, ours), VirtualTransport(self, theirs)
        left.other, right.other = right, left
        theirs.connection_made(right)
        ours.connection_made(left)
        return left, ours


class VirtualTransport(asyncio.Transport):
    """One side of a connection."""

    other: "VirtualTransport"

    def __init__(self, loop: VirtualLoop, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._loop = loop
        self.protocol: Any = protocol
        self._buffer: deque[bytes] = deque()  # not arrived yet
        self._buffered = 0
        self._reading = True
        self._closing = False
        self._lost = False
        self._eof = False
        self._stalled = False
        self._paused_writing = False
        self._high, self._low = 65536, 16384
        self._delivering = False

    # What protocols call

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or self._eof or not data:
            return
        fault = self._loop.operation()
        if fault == "reset":
            self.reset()
            return
        if fault == "end":
            self.write_eof()
            return
        self._stalled = self._stalled or fault == "stall"
        left = bytes(data)
        while left:
            size = self._loop.chance.choice((1, 7, 100, 4096, 1 << 20)) if len(left) < 5000 else 1 << 16
            self._buffer.append(left[:size])
            left = left[size:]
        self._buffered += len(data)
        if self._buffered > self._high and not self._paused_writing:
            self._paused_writing = True
            self.protocol.pause_writing()
        self._deliver_soon()

    def write_eof(self) -> None:
        if not self._eof:
            self._eof = True
            self._deliver_soon()

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._reading = False
            self._eof = True
            self._deliver_soon()

    def abort(self) -> None:
        self._lose(None)
        self._loop.call_soon(self.other._lose, None)

    def reset(self) -> None:
        """Both sides lose the connection, with an error."""
        self._lose(ConnectionResetError("scripted"))
        self._loop.call_soon(self.other._lose, ConnectionResetError("scripted"))

    def is_closing(self) -> bool:
        return self._closing or self._lost

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = not self._closing
        self.other._deliver_soon()

    def is_reading(self) -> bool:
        return self._reading

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 65536 if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return self._buffered

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("10.0.0.1", 1) if name == "peername" else self if name == "socket" else default

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self.protocol  # type: ignore[no-any-return]

    # As its socket: what the data plane asks of one

    family = socket.AF_INET

    def setsockopt(self, *_: Any) -> None:
        """Nothing to set."""

    def getsockopt(self, *_: Any) -> bytes:
        """TCP_INFO: 8 is CLOSE_WAIT, 1 established."""
        return b"\x08" if self.other._lost or self.other._eof else b"\x01"

    # The network

    def _deliver_soon(self) -> None:
        if not self._delivering and not self._lost:
            self._delivering = True
            self._loop.call_later(self._loop.chance.choice((0, 0, 0.0002, 0.002)), self._deliver)

    def _deliver(self) -> None:
        self._delivering = False
        other = self.other
        if self._lost or self._stalled:
            return
        if other._lost:
            self._lose(None)
            return
        if self._buffer:
            if not other._reading and not other._closing:
                return  # it waits until the other side reads on
            fault = self._loop.operation()
            if fault == "reset":
                self.reset()
                return
            if fault == "stall":
                self._stalled = True
                return
            if fault == "end":
                self._buffer.clear()
                self._eof = True
            else:
                piece = self._buffer.popleft()
                self._buffered -= len(piece)
                if not other._closing:
                    other.protocol.data_received(piece)
            if self._paused_writing and self._buffered <= self._low and not self._lost:
                self._paused_writing = False
                self.protocol.resume_writing()
        if self._buffer:
            self._deliver_soon()
        elif self._eof and not self._lost:
            self._end()

    def _end(self) -> None:
        other = self.other
        if not other._lost and not other._closing and not getattr(self, "_told_end", False):
            self._told_end = True
            if not other.protocol.eof_received():
                other.close()
        if self._closing:
            self._lose(None)
            if not other._lost and other._closing and not other._buffer:
                other._lose(None)

    def _lose(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost = self._closing = True
        self._buffer.clear()
        self._buffered = 0
        self._loop.call_soon(self.protocol.connection_lost, error)
        if self.other._closing and not self.other._buffer:
            self._loop.call_soon(self.other._lose, None)


class _Listener:
    """What create_server gives."""

    def __init__(self, loop: VirtualLoop, port: int) -> None:
        self._loop = loop
        self.port = port
        self.sockets = (self,)

    def getsockname(self) -> tuple[str, int]:
        return "10.0.0.1", self.port

    def setsockopt(self, *_: Any) -> None:
        """Nothing to set."""

    def close(self) -> None:
        self._loop.stop_listening(self.port)

    async def wait_closed(self) -> None:
        """It is."""


@contextmanager
def virtual_time(loop: VirtualLoop) -> Iterator[None]:
    """Whoever reads the monotonic clock in ns reads that of the loop."""
    real = time.monotonic_ns
    time.monotonic_ns = loop.now_ns
    try:
        yield
    finally:
        time.monotonic_ns = real
