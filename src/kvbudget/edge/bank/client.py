"""Decides how commands share one connection to a server: in order, answered in order, and never waited for longer than
a time-out, after which the connection is given up, since nobody can tell a slow server from a dead line.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, cast

import hiredis

from kvbudget.edge.bank.store import LedgerError

# hiredis gives bytes, whole numbers, None, lists, dicts (RESP3) and ReplyError objects.
Reply = object
Pushed = Callable[["Connection", list[object]], None]  # what the server says unasked (RESP3)


_NO_MORE: Final = object()


class Connection(asyncio.Protocol):
    """One open connection. What is sent in one turn of the loop is written at once."""

    def __init__(self, place: str, timeout_s: float, pushed: Pushed) -> None:
        """`place`: for errors. `pushed`: hears what the server says unasked."""
        self.place = place
        self.lost: LedgerError | None = None
        self.channels: set[bytes] = set()  # subscribed to
        self._timeout_s = timeout_s
        self._pushed = pushed
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(notEnoughData=_NO_MORE)
        self._waiting: deque[tuple[asyncio.Future[Reply], float]] = deque()
        self._unsent: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._alarm: asyncio.TimerHandle | None = None

    def send(self, *parts: bytes | int | str) -> asyncio.Future[Reply]:
        """The reply, which may be a `hiredis.ReplyError`; raises LedgerError when the connection is lost before."""
        future: asyncio.Future[Reply] = self._loop.create_future()
        if self.lost is not None:
            future.set_exception(self.lost.anew())
            return future
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(hiredis.pack_command(parts))  # type: ignore[arg-type]
        self._waiting.append((future, self._loop.time() + self._timeout_s))
        if self._alarm is None:
            self._alarm = self._loop.call_later(self._timeout_s, self._look)
        return future

    def close(self, why: LedgerError) -> None:
        """Everyone who waits gets `why`."""
        if self.lost is not None:
            return
        self.lost = why
        if self._alarm is not None:
            self._alarm.cancel()
        if self._transport is not None:
            self._transport.abort()
        for future, _ in self._waiting:
            if not future.done():
                future.set_exception(why.anew())
        self._waiting.clear()
        self._unsent.clear()

    # What the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The line stands."""
        self._transport = cast("asyncio.Transport", transport)
        if self.lost is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Some bytes of replies."""
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not _NO_MORE:
                self._take(reply)
        except (hiredis.HiredisError, ValueError) as error:
            self.close(self._error(f"answers what is no RESP: {error}", "is the port that of a Valkey or Redis?"))

    def connection_lost(self, exc: Exception | None) -> None:
        """The line was cut."""
        why = "closed the connection" if exc is None else f"the connection broke: {exc}"
        self.close(self._error(why, "look at the server's log; the gate connects again by itself"))

    # Inside

    def _take(self, reply: object) -> None:
        if isinstance(reply, hiredis.PushNotification):
            if reply and reply[0] in (b"subscribe", b"ssubscribe"):
                reply = list(reply)  # the answer to our own command
            else:
                self._pushed(self, reply)
                return
        if not self._waiting:
            self.close(self._error(f"says {str(reply)[:80]!r} unasked", "the gate connects again by itself"))
            return
        future, _ = self._waiting.popleft()
        if not future.done():
            future.set_result(reply)

    def _flush(self) -> None:
        if self._transport is not None and self._unsent and self.lost is None:
            self._transport.write(b"".join(self._unsent))
            self._unsent.clear()

    def _look(self) -> None:
        """Whether the oldest that waits has waited too long. One alarm for all: they are answered in order."""
        self._alarm = None
        if not self._waiting:
            return
        left_s = self._waiting[0][1] - self._loop.time()
        if left_s > 0:
            self._alarm = self._loop.call_later(left_s, self._look)
            return
        why = f"gave no answer within {self._timeout_s * 1000:.0f} ms"
        self.close(self._error(why, "is it overloaded, paused, or behind a broken line?"))

    def _error(self, what: str, fix: str) -> LedgerError:
        return LedgerError(f"ledger {self.place}: {what}", fix=fix)
