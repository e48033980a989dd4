"""Decides how tests of real ledgers call: gates that go by their answers, and a line to the server that can be cut."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import uvloop

from kvbudget.edge.bank.redis_store import RedisStore
from kvbudget.edge.bank.store import BankStore, LedgerError
from kvbudget.edge.bank.urls import address_of
from kvbudget.gate.bank.terms import Answer, Call, Line

LIMIT = 100


class AsyncGates:
    """Gates of one pool that call one store. `lease_ms`: short, so that tests need not wait long."""

    def __init__(self, store: BankStore, pool: str = "p", lease_ms: int = 600) -> None:
        self.store = store
        self.pool = pool
        self.lease_ms = lease_ms
        self.has: dict[str, int] = {}
        self._numbers: dict[str, int] = {}

    async def call(self, name: str, needs: int = 0, *, keeps: int | None = None, wants: int = 0) -> Answer:
        keeps = self.has.get(name, 0) if keeps is None else keeps
        self.has[name] = keeps
        self._numbers[name] = number = self._numbers.get(name, 0) + 1
        lines = (Line("blocks", LIMIT, keeps, needs, max(needs, wants, keeps), needs),)
        answer = await self.store.call(self.pool, Call(name, number, self.lease_ms, lines))
        assert answer is not None
        self.has[name] = answer.slices["blocks"].granted
        return answer

    async def until(self, name: str, needs: int, what: Callable[[Answer], bool], within_s: float = 20.0) -> Answer:
        """Calls until the answer is as wished; what fails on the way is called again."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            try:
                answer = await self.call(name, needs)
            except LedgerError:
                await asyncio.sleep(0.02)
                continue
            assert sum(self.has.values()) <= LIMIT
            if what(answer):
                return answer
            await asyncio.sleep(0.02)
        raise AssertionError(f"not within {within_s:.0f} s: {name} has {self.has.get(name)} of {needs}")

    async def settled(self, name: str = "first") -> None:
        """A bank that has no memory waits one lease; `name` is there afterwards, and has nothing."""
        await self.until(name, 0, lambda answer: not answer.settling)

    def begin_anew(self, *names: str) -> None:
        """These gates died; others go by their names, and number their calls from the start."""
        for name in names:
            self.has.pop(name, None)


@asynccontextmanager
async def opened(
    url: str, *, timeout_s: float = 5.0, woken: Any = None, **environment: str
) -> AsyncIterator[RedisStore]:
    """A store that has started."""
    store = RedisStore(address_of(url, environment), timeout_s=timeout_s)
    if woken is not None:
        store.woken = woken
    try:
        await store.start()
        yield store
    finally:
        await store.close()


def run(scene: Callable[[], Awaitable[None]], within_s: float = 60.0) -> None:
    """On the loop of the product, and not for ever."""

    async def bounded() -> None:
        async with asyncio.timeout(within_s):
            await scene()

    uvloop.run(bounded())


async def eventually(what: Callable[[], bool], within_s: float = 20.0) -> None:
    """Until it holds."""
    async with asyncio.timeout(within_s):
        while not what():
            await asyncio.sleep(0.005)


class Wire:
    """A line to a server at `port`, through which bytes go until they are held or it is cut."""

    def __init__(self, port: int) -> None:
        self.port = 0
        self.connections = 0
        self.flows = asyncio.Event()
        self.flows.set()
        self._to = port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Wire":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        self.flows.set()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def hold(self) -> None:
        """Nothing gets through any more, in either direction; connections stay open."""
        self.flows.clear()

    def cut(self) -> None:
        """All connections end, without a word."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        for one, other in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.create_task(self._carry(one, other))
            self._tasks.add(task)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                await self.flows.wait()
                writer.write(data)
        except OSError:
            pass
        finally:
            writer.close()
