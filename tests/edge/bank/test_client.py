"""One connection with many commands, before a server that says what the test wants."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import hiredis
import pytest

from kvbudget.edge.bank.client import Connection
from kvbudget.edge.bank.link import Access, Place, dial
from kvbudget.edge.bank.script import answer_of
from kvbudget.edge.bank.store import LedgerError
from kvbudget.gate.bank.terms import Answer, Call, Line, Slice
from ledger_gates import opened, run

Says = Callable[[list[bytes]], bytes]


@asynccontextmanager
async def scripted(says: Says) -> AsyncIterator[int]:
    """The port of a server that answers each command with what `says` returns; HELLO is answered well."""
    tasks: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())
        parser = hiredis.Reader()
        try:
            while data := await reader.read(65536):
                parser.feed(data)
                while (command := parser.gets()) is not False:
                    writer.write(b"%0\r\n" if command[0] == b"HELLO" else says(command))
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        living = [task for task in tasks if task is not None]
        for task in living:
            task.cancel()
        await asyncio.gather(*living, return_exceptions=True)


def talk(says: Says, scene: Callable[[Connection], Awaitable[None]], pushed: list[object] | None = None) -> None:
    async def whole() -> None:
        async with scripted(says) as port:
            heard = [] if pushed is None else pushed
            connection = await dial(
                Place("127.0.0.1", port), Access(timeout_s=0.3), lambda _connection, said: heard.append(said)
            )
            try:
                await scene(connection)
            finally:
                connection.close(LedgerError("done"))

    run(whole)


def test_replies_come_in_the_order_of_commands_and_in_any_pieces() -> None:
    async def scene(connection: Connection) -> None:
        sent = [connection.send(b"ECHO", at) for at in range(1000)]
        assert [await one for one in sent] == [b"%d" % at for at in range(1000)]

    talk(lambda command: b"$%d\r\n%b\r\n" % (len(command[1]), command[1]), scene)


def test_what_is_pushed_is_no_reply() -> None:
    pushed: list[object] = []

    async def scene(connection: Connection) -> None:
        assert await connection.send(b"PING") == b"x"
        assert pushed == [[b"message", b"c", b"a"], [b"invalidate", None]]

    talk(lambda _: b">3\r\n+message\r\n+c\r\n+a\r\n>2\r\n+invalidate\r\n_\r\n+x\r\n", scene, pushed)


def test_an_error_is_a_reply_and_the_connection_lives_on() -> None:
    async def scene(connection: Connection) -> None:
        assert isinstance(await connection.send(b"PING"), hiredis.ReplyError)
        assert connection.lost is None

    talk(lambda _: b"-ERR no\r\n", scene)


@pytest.mark.parametrize(
    ("said", "match"),
    [
        (b"+x\r\n+y\r\n", "unasked"),
        (b"\x00", "no RESP"),
        (b"$99999999999\r\n", "no RESP|no answer within 300 ms"),
        (b"", "no answer within 300 ms"),
    ],
)
def test_what_makes_no_sense_ends_the_connection(said: bytes, match: str) -> None:
    async def scene(connection: Connection) -> None:
        with contextlib.suppress(LedgerError):
            await connection.send(b"PING")
            await connection.send(b"PING")
        assert connection.lost is not None
        with pytest.raises(LedgerError, match=match):
            await connection.send(b"PING")

    talk(lambda _: said, scene)


ONE = Call("a", 7, 3000, (Line("blocks", 100, 0, 1, 1, 0),))


def test_an_answer_is_read() -> None:
    answer = answer_of(ONE, [b"a", 7, 1, 0, 1, 2, 1, -3, 1, 5, 6])
    assert answer == Answer(7, True, False, True, 2, {"blocks": Slice(5, 6)}, -3, True)
    assert answer_of(ONE, None) is None


@pytest.mark.parametrize(
    "reply",
    [
        [b"b", 7, 1, 0, 0, 1, 0, 0, 0, 5, 5],
        [b"a", 8, 1, 0, 0, 1, 0, 0, 0, 5, 5],
        [b"a", 7, 1, 0, 0, 1, 0, 0, 0, 5, 5, 5, 5],
        [b"a", 7, 1, 0, 0, 1, 0, 0, 0],
        [b"a", 7, 1, 0, 0, 1, 0, 0, 0, b"5", 5],
        b"OK",
        5,
        [],
    ],
)
def test_an_answer_to_another_call_is_none_of_ours(reply: object) -> None:
    with pytest.raises(LedgerError):
        answer_of(ONE, reply)


def test_after_an_answer_to_another_call_the_connection_is_opened_anew() -> None:
    def says(command: list[bytes]) -> bytes:
        if command[0] == b"SUBSCRIBE":
            return b">3\r\n+subscribe\r\n+c\r\n:1\r\n"
        if command[0] == b"EVALSHA":
            return b"*11\r\n$1\r\nb\r\n:7\r\n:1\r\n:0\r\n:0\r\n:1\r\n:0\r\n:0\r\n:0\r\n:100\r\n:0\r\n"
        return b"+x\r\n"

    async def scene() -> None:
        async with scripted(says) as port, opened(f"redis://127.0.0.1:{port}", timeout_s=1.0) as store:
            server = store._servers.link("p").now()
            assert server is not None
            with pytest.raises(LedgerError, match="no answer to call 7 of a"):
                await store.call("p", ONE)
            assert server.connection.lost is not None

    run(scene)
