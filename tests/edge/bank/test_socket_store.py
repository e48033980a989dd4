"""A ledger over a Unix socket: what is asked and answered, who is woken, and what becomes of it when one end fails."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from kvbudget.edge.bank.lines import Asked, Left, LineError, Told, asked_in, asked_line, left_line, told_in, told_line
from kvbudget.edge.bank.socket_server import BankServer
from kvbudget.edge.bank.socket_store import SocketStore
from kvbudget.edge.bank.store import LedgerError
from kvbudget.gate.bank.board import Notes, Put
from kvbudget.gate.bank.terms import BLOCKS, Answer, Call, Line, Reading, Slice

Scene = Callable[[BankServer, SocketStore, SocketStore], Awaitable[None]]


def play(scene: Scene, tmp_path: Path, *, known: bool = True, answer_s: float = 5.0) -> None:
    async def run() -> None:
        clock_ns = 0

        def now_ns() -> int:
            nonlocal clock_ns
            clock_ns += 10**6
            return clock_ns

        server = BankServer(str(tmp_path / "ledger"), now_ns)
        await server.start()
        if known:
            server.expect(os.getpid())
        stores = SocketStore(server.path, answer_s=answer_s), SocketStore(server.path, answer_s=answer_s)
        try:
            async with asyncio.timeout(20):
                await scene(server, *stores)
        finally:
            for store in stores:
                await store.close()
            await server.close()

    asyncio.run(run())


def wants(branch: str, number: int, *, keeps: int = 0, needs: int = 0, limit: int = 100) -> Call:
    return Call(branch, number, 5000, (Line(BLOCKS, limit, keeps, needs, needs, 0),))


def leaves(branch: str, number: int) -> Call:
    return Call(branch, number, 5000, (), leaves=True)


def test_two_gates_share_one_bank(tmp_path: Path) -> None:
    async def scene(server: BankServer, one: SocketStore, other: SocketStore) -> None:
        first = await one.call("pool", wants("a", 1, needs=60))
        second = await other.call("pool", wants("b", 1, needs=60))
        assert first is not None
        assert second is not None
        assert first.slices[BLOCKS].granted == 60
        assert second.slices[BLOCKS].granted == 0
        elsewhere = await other.call("another", wants("b", 1, needs=60))
        assert elsewhere is not None
        assert elsewhere.slices[BLOCKS].granted == 60
        assert await one.call("pool", wants("a", 1, needs=10)) is None  # out of date

    play(scene, tmp_path)


def test_who_lacks_something_is_woken_when_it_is_there(tmp_path: Path) -> None:
    async def scene(server: BankServer, one: SocketStore, other: SocketStore) -> None:
        woken: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        other.woken = lambda pool, branch: woken.put_nowait((pool, branch))
        await one.call("pool", wants("a", 1, needs=60))
        await other.call("pool", wants("b", 1, needs=60))
        await one.call("pool", leaves("a", 2))
        assert await woken.get() == ("pool", "b")

    play(scene, tmp_path)


def test_what_a_dead_process_had_is_free_at_once(tmp_path: Path) -> None:
    async def scene(server: BankServer, one: SocketStore, other: SocketStore) -> None:
        await one.call("pool", wants("a", 1, needs=60))
        assert server.banks["pool"].granted(BLOCKS) == 60
        server.ended(os.getpid())
        assert server.banks["pool"].granted(BLOCKS) == 0
        server.expect(os.getpid())
        answer = await other.call("pool", wants("b", 1, needs=100))
        assert answer is not None
        assert answer.slices[BLOCKS].granted == 100

    play(scene, tmp_path)


def test_a_lost_connection_keeps_the_slice_and_the_next_call_makes_a_new_one(tmp_path: Path) -> None:
    async def scene(server: BankServer, one: SocketStore, other: SocketStore) -> None:
        await one.call("pool", wants("a", 1, needs=60))
        for link in list(server._open):
            link.cut()
        async with asyncio.timeout(5):
            while True:
                try:
                    answer = await one.call("pool", wants("a", 2, keeps=60, needs=60))
                    break
                except LedgerError:
                    await asyncio.sleep(0)
        assert answer is not None
        assert answer.known
        assert answer.slices[BLOCKS].granted == 60

    play(scene, tmp_path)


def test_who_waits_for_an_answer_is_told_when_the_ledger_goes(tmp_path: Path) -> None:
    async def scene(server: BankServer, one: SocketStore, other: SocketStore) -> None:
        await one.call("pool", wants("b", 1))
        await server.close()
        with pytest.raises(LedgerError):
            await one.call("pool", wants("a", 1))
        Path(server.path).unlink(missing_ok=True)
        with pytest.raises(LedgerError, match="cannot connect"):
            await one.call("pool", wants("a", 2))

    play(scene, tmp_path)


def test_a_ledger_that_says_nothing_is_an_error_in_time(tmp_path: Path) -> None:
    async def run() -> None:
        ends: list[asyncio.StreamWriter] = []
        quiet = await asyncio.start_unix_server(lambda _, writer: ends.append(writer), tmp_path / "quiet")
        store = SocketStore(str(tmp_path / "quiet"), answer_s=0.05)
        with pytest.raises(LedgerError, match="no answer within"):
            await store.call("pool", wants("a", 1))
        await store.close()
        quiet.close()
        with pytest.raises(LedgerError, match="closed"):
            await store.call("pool", wants("a", 2))
        for end in ends:
            end.close()
            await end.wait_closed()

    asyncio.run(run())


def test_who_is_not_expected_is_not_listened_to(tmp_path: Path) -> None:
    async def scene(server: BankServer, one: SocketStore, other: SocketStore) -> None:
        with pytest.raises(LedgerError):
            await one.call("pool", wants("a", 1, needs=60))
        assert not server.banks

    play(scene, tmp_path, known=False)


@pytest.mark.parametrize(
    "line",
    [
        b"rubbish\n",
        b"[]\n",
        b'{"a": 1}\n',
        b'[0, "pool", "a", 1, 5000, [["blocks", -1, 0, 0, 0, 0]], 0, 0, false, null]\n',
        b'[0, "pool", "a", 1, 5000, [["blocks", 1e3, 0, 0, 0, 0]], 0, 0, false, null]\n',
        b'[0, "pool", "a", 1, 5000, [["blocks", 1, 0, 0, 0, 0]], 0, 0, false, [1, -1, 0]]\n',
        b'[0, "", "a", 1, 5000, [], 0, 0, false, null]\n',
        b'[0, "pool", "a", 0, 5000, [], 0, 0, false, null]\n',
        b'[0, "board", "a", 0, 0, "text"]\n',
        b'[0, "board", "a", 1, -1, "text"]\n',
        b'[0, "", "a", 1, 0, "text"]\n',
        b'[0, "board", "a", 1, 0, 5]\n',
        b'[0, "board", "a", 1, 0, "' + b"x" * 20_000 + b'"]\n',
        b"x" * 300_000,
    ],
)
def test_a_connection_that_says_something_else_is_closed_and_changes_nothing(tmp_path: Path, line: bytes) -> None:
    async def scene(server: BankServer, one: SocketStore, other: SocketStore) -> None:
        reader, writer = await asyncio.open_unix_connection(server.path)
        writer.write(line)
        assert await reader.read() == b""
        writer.close()
        assert not server.banks
        assert not server.boards
        assert await one.call("pool", wants("a", 1, needs=1)) is not None

    play(scene, tmp_path)


def test_a_gate_that_never_reads_is_cut_off(tmp_path: Path) -> None:
    async def scene(server: BankServer, one: SocketStore, other: SocketStore) -> None:
        _, writer = await asyncio.open_unix_connection(server.path)
        reading = writer.transport
        assert isinstance(reading, asyncio.ReadTransport)
        reading.pause_reading()
        number = 0
        async with asyncio.timeout(15):
            while not writer.is_closing() and (server._open or not number):
                number += 1
                writer.write(b"".join(
                    asked_line(Asked(n, "pool", wants("a" * 900, number * 1000 + n))) for n in range(1000)
                ))  # fmt: skip
                await asyncio.sleep(0)
            while server._open:
                await asyncio.sleep(0)
        writer.transport.abort()
        await asyncio.sleep(0)

    play(scene, tmp_path)


def test_boards_are_few_and_what_is_asked_is_what_is_answered(tmp_path: Path) -> None:
    async def scene(server: BankServer, one: SocketStore, other: SocketStore) -> None:
        assert await one.exchange("board", Put("a", 1, 0, "of a")) == Notes(1, True, ())
        assert await other.exchange("board", Put("b", 1, 0, "of b")) == Notes(2, True, (("a", "of a"),))
        for number in range(15):
            await one.exchange(f"board {number}", Put("a", 1, 0, "of a"))
        with pytest.raises(LedgerError):
            await one.exchange("one too many", Put("a", 1, 0, "of a"))
        server.boards["board"] = server.banks["pool"] = Strange()  # type: ignore[assignment]
        with pytest.raises(LedgerError, match="answered by something else"):
            await other.exchange("board", Put("b", 2, 0, ""))
        with pytest.raises(LedgerError, match="no answer to a call"):
            await other.call("pool", wants("b", 1))

    play(scene, tmp_path)


class Strange:
    """Answers the one like the other."""

    def exchange(self, _put: Put, _now_ms: int) -> Answer:
        return Answer(1, True, False, False, 1, {})

    def call(self, _call: Call, _now_ms: int) -> tuple[Notes, list[str]]:
        return Notes(1, True, ()), []


def test_every_line_is_read_as_it_was_written() -> None:
    call = Call("a", 3, 5000, (Line(BLOCKS, 9, 1, 2, 3, 4),), -1, 7, leaves=True, reading=Reading(1, 2, 3))
    assert asked_in(asked_line(Asked(4, "http://engine", call))) == Asked(4, "http://engine", call)
    left = Left(5, "board", Put("a", 3, 9, "text"))
    assert asked_in(left_line(left)) == left
    answer = Answer(3, True, False, True, 2, {BLOCKS: Slice(4, 5)})
    for told in (
        Told(1, answer),
        Told(0, answer._replace(yields_to=-3, missing=True)),
        Told(2, None),
        Told(-1, None, "pool", "branch"),
        Told(3, Notes(7, True, (("a", "text"), ("ä", "")))),
        Told(3, Notes(0, False, ())),
    ):
        assert told_in(told_line(told)) == told
    for line in (
        b"1",
        b"[-1]",
        b'[1, 2, true, true, true, 2, {"blocks": [1]}, null, false]',
        b"[1, 2]",
        b'[1, 2, true, [["a"]]]',
    ):
        with pytest.raises(LineError):
            told_in(line)
