"""How a worker asks the ledger that its parent process holds, over a Unix socket: one connection for all pools."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Final, cast

from kvbudget.edge.bank.lines import LONGEST_LINE, WOKEN, Asked, Left, LineError, Told, asked_line, left_line, told_in
from kvbudget.edge.bank.store import LedgerError, Woken, not_heeded
from kvbudget.gate.bank.board import Notes, Put
from kvbudget.gate.bank.terms import Answer, Call

_ANSWER_S: Final = 1.0
_MOST_WAITING: Final = 1000  # calls without an answer


class SocketStore:
    """The store at the Unix socket `path`; connects anew whenever it is asked and there is no connection."""

    def __init__(self, path: str, *, answer_s: float = _ANSWER_S) -> None:
        self.woken: Woken = not_heeded
        self._path = path
        self._answer_s = answer_s
        self._link: _Link | None = None
        self._connecting = asyncio.Lock()
        self._closed = False

    @property
    def address(self) -> str:
        """For people."""
        return f"unix:{self._path}"

    async def start(self) -> None:
        """Connect. Raises LedgerError; the next call tries again."""
        await self._linked()

    async def call(self, pool: str, call: Call) -> Answer | None:
        """The bank's answer; None: the call was out of date. Raises LedgerError."""
        answer = await self._asked(lambda number: asked_line(Asked(number, pool, call)))
        if isinstance(answer, Notes):
            raise LedgerError("notes are no answer to a call")
        return answer

    async def exchange(self, topic: str, put: Put) -> Notes:
        """The notes of others. Raises LedgerError."""
        answer = await self._asked(lambda number: left_line(Left(number, topic, put)))
        if not isinstance(answer, Notes):
            raise LedgerError("a note was answered by something else")
        return answer

    async def _asked(self, line_of: Callable[[int], bytes]) -> Answer | Notes | None:
        try:
            async with asyncio.timeout(self._answer_s):
                link = self._link
                if link is None or link.is_lost:
                    link = await self._linked()
                return await link.ask(line_of)
        except TimeoutError:
            raise LedgerError(f"no answer within {self._answer_s:g} s") from None

    async def close(self) -> None:
        """End the connection."""
        self._closed = True
        if self._link is not None:
            self._link.cut("it is closed")

    async def _linked(self) -> "_Link":
        async with self._connecting:
            if self._closed:
                raise LedgerError("it is closed")
            if self._link is None or self._link.is_lost:
                try:
                    _, self._link = await asyncio.get_running_loop().create_unix_connection(
                        lambda: _Link(self), self._path
                    )
                except OSError as error:
                    raise LedgerError(f"cannot connect: {error.strerror or error}") from None
            return self._link


class _Link(asyncio.Protocol):
    """One connection."""

    def __init__(self, store: SocketStore) -> None:
        self._store = store
        self._transport: asyncio.WriteTransport | None = None
        self._waiting: dict[int, asyncio.Future[Answer | Notes | None]] = {}
        self._numbers = itertools.count()
        self._rest = b""

    @property
    def is_lost(self) -> bool:
        """Whether it is of no use any more."""
        return self._transport is None

    async def ask(self, line_of: Callable[[int], bytes]) -> Answer | Notes | None:
        """`line_of`: makes the line of a question, by its number. Raises LedgerError."""
        if self._transport is None:
            raise LedgerError("the connection is lost")
        if len(self._waiting) >= _MOST_WAITING:
            raise LedgerError(f"{_MOST_WAITING} calls wait for an answer already")
        number = next(self._numbers)
        answered: asyncio.Future[Answer | Notes | None] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answered
        try:
            self._transport.write(line_of(number))
            return await answered
        finally:
            self._waiting.pop(number, None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose("the connection is lost")

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        try:
            if len(self._rest) > LONGEST_LINE:
                raise LineError(f"a line of more than {LONGEST_LINE} bytes")
            for line in lines:
                self._heard(told_in(line))
        except LineError as error:
            self.cut(f"it does not speak our language: {error}")

    def cut(self, why: str) -> None:
        """Close it; all who wait are told why."""
        if self._transport is not None:
            self._transport.abort()
        self._lose(why)

    def _heard(self, told: Told) -> None:
        if told.number == WOKEN:
            self._store.woken(told.pool, told.branch)
            return
        answered = self._waiting.get(told.number)  # nobody waits any more for one that came too late
        if answered is not None and not answered.done():
            answered.set_result(told.answer)

    def _lose(self, why: str) -> None:
        self._transport = None
        for answered in self._waiting.values():
            if not answered.done():
                answered.set_exception(LedgerError(why))
