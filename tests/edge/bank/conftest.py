"""The bank in memory, in a real Redis and in a real Valkey, behind one face."""

import asyncio
import itertools
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import hiredis
import pytest

from kvbudget.edge.bank.client import Connection
from kvbudget.edge.bank.link import Access, Place, ask, dial
from kvbudget.edge.bank.memory import MemoryStore
from kvbudget.edge.bank.script import (
    BOARD_SCRIPT,
    SCRIPT,
    SHA,
    answer_of,
    arguments,
    board_arguments,
    board_key,
    keys_of,
    names_in,
    notes_of,
)
from kvbudget.edge.bank.socket_server import BankServer
from kvbudget.edge.bank.socket_store import SocketStore
from kvbudget.edge.bank.store import LedgerError
from kvbudget.gate.bank.board import Notes, Put
from kvbudget.gate.bank.terms import Answer, Call
from ledger_servers import KINDS, Server, running

LEASE_MS = 3000
_POOLS = itertools.count()


class Banker(Protocol):
    """One pool's bank on a clock that the test moves. `call`: the answer, and who should call soon."""

    now_ms: int

    def call(self, call: Call) -> tuple[Answer | None, list[str]]: ...

    def exchange(self, put: Put) -> Notes: ...

    def close(self) -> None: ...


class InMemory:
    def __init__(self) -> None:
        self.now_ms = 0
        self.woken: list[str] = []
        self._store = MemoryStore(lambda _pool, name: self.woken.append(name), now_ms=lambda: self.now_ms)

    def call(self, call: Call) -> tuple[Answer | None, list[str]]:
        answer = asyncio.run(self._store.call("p", call))
        woken, self.woken = self.woken, []
        return answer, woken

    def exchange(self, put: Put) -> Notes:
        return asyncio.run(self._store.exchange("t", put))

    def close(self) -> None:
        pass


class OverSocket:
    """The bank of the parent of several workers, as one of these reaches it."""

    def __init__(self, folder: Path) -> None:
        self.now_ms = 0
        self.woken: list[str] = []
        self._runner = asyncio.Runner()
        self._server = BankServer(str(folder / "ledger"), lambda: self.now_ms * 10**6)
        self._store = SocketStore(self._server.path)
        self._store.woken = lambda _pool, name: self.woken.append(name)
        self._server.expect(os.getpid())
        self._runner.run(self._server.start())

    def call(self, call: Call) -> tuple[Answer | None, list[str]]:
        return self._runner.run(self._call(call))

    def exchange(self, put: Put) -> Notes:
        return self._runner.run(self._store.exchange("t", put))

    async def _call(self, call: Call) -> tuple[Answer | None, list[str]]:
        answer = await self._store.call("p", call)
        await self._store.call("another", Call("nobody", 1, LEASE_MS, (), leaves=True))  # pushed ones come before
        woken, self.woken = self.woken, []
        return answer, woken

    def close(self) -> None:
        self._runner.run(self._close())
        self._runner.close()

    async def _close(self) -> None:
        await self._store.close()
        await self._server.close()


class InServer:
    """The script on a clock of the test's. `settled`: the lease that a bank without memory waits is over."""

    def __init__(self, server: Server, *, settled: bool = True) -> None:
        self.now_ms = 10**9
        self.run_id = b"1" * 40
        self.topic = f"topic{next(_POOLS)}"
        self.keys = keys_of("tests", f"pool{next(_POOLS)}")
        self.woken: list[str] = []
        self._runner = asyncio.Runner()
        self._connection = self._runner.run(self._connect(server))
        if settled:
            for _ in range(3):
                self.call(Call("nobody", 1, LEASE_MS, (), leaves=True))
                self.now_ms += LEASE_MS // 2

    def call(self, call: Call) -> tuple[Answer | None, list[str]]:
        return self._runner.run(self._call(call))

    def exchange(self, put: Put) -> Notes:
        return notes_of(self._runner.run(self._put(put)))

    def close(self) -> None:
        self._runner.run(self._close())
        self._runner.close()

    async def _put(self, put: Put) -> object:
        parts = board_arguments(board_key("tests", self.topic), put, self.now_ms)
        reply = await self._connection.send(b"EVAL", BOARD_SCRIPT, *parts)
        if isinstance(reply, hiredis.ReplyError):
            raise reply
        return reply

    async def _connect(self, server: Server) -> Connection:
        connection = await dial(Place("", 0, server.socket_path), Access(timeout_s=10.0), self._pushed)
        await ask(connection, [b"SCRIPT", b"LOAD", SCRIPT], [b"SUBSCRIBE", self.keys.channel])
        return connection

    async def _call(self, call: Call) -> tuple[Answer | None, list[str]]:
        self.woken = []
        parts = arguments(self.keys, b"PUBLISH", self.run_id, call, self.now_ms)
        reply = self._connection.send(b"EVALSHA", SHA, *parts)
        await self._connection.send(b"PING")  # what is pushed comes before its reply
        if isinstance(error := await reply, hiredis.ReplyError):
            raise error
        return answer_of(call, await reply), self.woken

    def slices(self) -> dict[str, dict[str, int]]:
        """What each branch has of each account, by what is stored."""
        reading = b"return cjson.encode(cmsgpack.unpack(redis.call('GET', KEYS[1])))"
        stored = json.loads(self._runner.run(self._command(b"EVAL", reading, 1, self.keys.bank)))
        return {one["n"]: {account: held["g"] for account, held in dict(one["h"]).items()} for one in stored["b"]}

    async def _command(self, *parts: bytes | int) -> bytes:
        reply = await self._connection.send(*parts)
        assert isinstance(reply, bytes), reply
        return reply

    async def _close(self) -> None:
        await self._connection.send(b"DEL", self.keys.bank)
        await self._connection.send(b"DEL", board_key("tests", self.topic))
        self._connection.close(LedgerError("done"))

    def _pushed(self, _connection: Connection, pushed: list[object]) -> None:
        match pushed:
            case [b"message", _, bytes(names)]:
                self.woken += names_in(names)


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Server]]:
    """One of each kind, started when it is first asked for."""
    opened: dict[str, Server] = {}
    with ExitStack() as stack:

        def get(kind: str) -> Server:
            if kind not in opened:
                opened[kind] = stack.enter_context(running(kind, tmp_path_factory.mktemp(kind)))
            return opened[kind]

        yield get


@pytest.fixture(params=KINDS)
def in_server(request: pytest.FixtureRequest, servers: Callable[[str], Server]) -> Iterator[Callable[[], InServer]]:
    """Makes banks in a server, each of a pool of its own and without memory."""
    made: list[InServer] = []

    def make() -> InServer:
        made.append(InServer(servers(request.param), settled=False))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture(params=["memory", "socket", *KINDS])
def bank(request: pytest.FixtureRequest, servers: Callable[[str], Server], tmp_path: Path) -> Iterator[Banker]:
    """A bank that nobody has called yet, and that has no memory to wait for."""
    made: Banker
    match request.param:
        case "memory":
            made = InMemory()
        case "socket":
            made = OverSocket(tmp_path)
        case _:
            made = InServer(servers(request.param))
    yield made
    made.close()
