"""What goes wrong with a real server is a LedgerError or recovered from, and never lends more than there is."""

import asyncio
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvbudget.edge.bank.redis_store import RedisStore
from kvbudget.edge.bank.store import LedgerError
from kvbudget.edge.bank.urls import address_of
from ledger_gates import AsyncGates, Wire, eventually, opened, run
from ledger_servers import KINDS, Server, Talk, free_port, running

LEASE_MS = 600


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """One that a test may kill, and that appends each write to a file at once."""
    with running(request.param, tmp_path / "s", ["appendonly", "yes", "appendfsync", "always"]) as made:
        yield made


@pytest.fixture(params=KINDS)
def forgetful(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """One that keeps nothing when it ends."""
    with running(request.param, tmp_path / "s") as made:
        yield made


async def lent(store: Any, **slices: int) -> AsyncGates:
    """Gates that hold so much, of a bank that has settled."""
    gates = AsyncGates(store, lease_ms=LEASE_MS)
    await gates.settled(next(iter(slices)))
    for name, needs in slices.items():
        await gates.until(name, needs, lambda _, name=name, needs=needs: gates.has[name] == needs)  # type: ignore[misc]
    return gates


async def keep_on(gates: AsyncGates, taker: str, needs: int, within_s: float = 20.0) -> None:
    """All call in turn, until `taker` has what it needs; never do they have more than there is."""
    deadline = time.monotonic() + within_s
    while gates.has.get(taker, 0) < needs:
        assert time.monotonic() < deadline, gates.has
        for name in [*gates.has]:
            if name != taker:
                await gates.call(name)
        await gates.call(taker, needs)
        assert sum(gates.has.values()) <= 100
        await asyncio.sleep(0.02)


def test_a_server_that_comes_back_empty_gives_nothing_away_for_a_lease(forgetful: Server) -> None:
    async def scene() -> None:
        async with opened(forgetful.url) as store:
            gates = await lent(store, a=60, b=30)
            forgetful.kill()
            with pytest.raises(LedgerError, match=f"127.0.0.1:{forgetful.port}"):
                await gates.call("a", 60)
            gates.has.update(a=60, b=30)  # what they go by, until they are answered
            forgetful.start()
            began = time.monotonic()
            answer = await gates.until("c", 100, lambda _: True)
            assert (answer.settling, gates.has["c"]) == (True, 0)
            assert await gates.call("a", 60)
            assert gates.has["a"] == 60
            gates.begin_anew("b")  # it died meanwhile: its blocks are free after a lease
            await gates.until("c", 40, lambda _: gates.has["c"] == 40)
            assert time.monotonic() - began >= LEASE_MS / 1000 - 0.01
            assert store.address.endswith(str(forgetful.port))

    run(scene)


def test_a_server_that_comes_back_with_its_file_knows_everybody_and_settles(server: Server) -> None:
    async def scene() -> None:
        async with opened(server.url) as store:
            gates = await lent(store, a=60, b=30)
            server.kill()
            server.start()
            answer = await gates.until("a", 60, lambda _: True)
            assert (answer.known, answer.settling, gates.has["a"]) == (True, True, 60)
            answer = await gates.call("c", 10)
            assert (answer.settling, gates.has["c"]) == (True, 0)
            assert (await gates.call("b", 30)).known
            await keep_on(gates, "c", 10)

    run(scene)


def test_a_write_that_was_lost_with_the_server_is_claimed_again_before_others_get_it(server: Server) -> None:
    async def scene() -> None:
        async with opened(server.url) as store:
            gates = await lent(store, a=20, b=10)
            copy = {path.name: path.read_bytes() for path in (server.folder / "appendonlydir").iterdir()}
            await gates.call("a", 80)
            assert gates.has["a"] == 80
            server.kill()
            for name, content in copy.items():
                (server.folder / "appendonlydir" / name).write_bytes(content)
            server.start()
            await gates.until("c", 60, lambda _: True)  # 70 are free by what the server remembers
            assert gates.has["c"] == 0
            answer = await gates.call("a", 80)
            assert (answer.known, gates.has["a"]) == (True, 80)
            await gates.call("b", 10)
            await keep_on(gates, "c", 10)

    run(scene)


@pytest.mark.parametrize("how", ["FLUSHALL", "DEL", "EXPIRE"])
def test_a_memory_that_vanished_gives_nothing_away_for_a_lease(forgetful: Server, how: str) -> None:
    async def scene() -> None:
        async with opened(forgetful.url) as store:
            gates = await lent(store, a=60, b=30)
            key = "kvbudget:{default/p}:bank"
            forgetful.ask(*{"FLUSHALL": ("FLUSHALL",), "DEL": ("DEL", key), "EXPIRE": ("PEXPIRE", key, 0)}[how])
            answer = await gates.call("c", 100)
            assert (answer.settling, gates.has["c"]) == (True, 0)
            answer = await gates.call("a", 60)
            assert (answer.known, gates.has["a"]) == (False, 60)
            await gates.call("b", 30)
            await keep_on(gates, "c", 10)

    run(scene)


def test_scripts_that_were_flushed_are_sent_again(forgetful: Server) -> None:
    async def scene() -> None:
        async with opened(forgetful.url) as store:
            gates = await lent(store, a=60)
            forgetful.ask("SCRIPT", "FLUSH")
            assert (await gates.call("a", 60)).known
            assert (await gates.call("a", 60)).known

    run(scene)


@pytest.mark.parametrize("how", ["CLIENT PAUSE", "DEBUG SLEEP", "SIGSTOP"])
def test_a_server_that_hangs_is_an_error_after_the_time_out_and_used_again_when_it_is_back(
    forgetful: Server, how: str
) -> None:
    async def scene() -> None:
        async with opened(forgetful.url, timeout_s=0.2) as store:
            gates = await lent(store, a=60, b=30)
            talk = Talk(forgetful)
            if how == "SIGSTOP":
                assert forgetful.process is not None
                forgetful.process.send_signal(signal.SIGSTOP)
            else:
                talk.send(*(("CLIENT", "PAUSE", 900, "ALL") if how == "CLIENT PAUSE" else ("DEBUG", "SLEEP", "0.9")))
                await eventually_hangs(forgetful)
            began = time.monotonic()
            with pytest.raises(LedgerError, match="no answer within 200 ms"):
                await gates.call("a", 60)
            with pytest.raises(LedgerError, match="within 200 ms"):
                await gates.call("a", 60)
            assert time.monotonic() - began < 1.5
            if how == "SIGSTOP":
                forgetful.process.send_signal(signal.SIGCONT)  # type: ignore[union-attr]
            gates.has.update(a=60, b=30)
            answer = await gates.until("a", 60, lambda _: True)
            assert gates.has["a"] == 60
            assert answer.branches in (1, 2)  # b's lease may have ended meanwhile
            talk.close()

    run(scene)


async def eventually_hangs(server: Server) -> None:
    """Until a command is not answered any more."""

    def hangs() -> bool:
        talk = Talk(server)
        talk.timeout(0.02)
        try:
            talk("PING")
        except TimeoutError:
            return True
        finally:
            talk.close()
        return False

    await eventually(hangs)


def test_a_line_that_is_cut_is_an_error_for_who_waits_and_opened_anew(forgetful: Server) -> None:
    async def scene() -> None:
        async with Wire(forgetful.port) as wire, opened(f"redis://127.0.0.1:{wire.port}") as store:
            gates = await lent(store, a=60)
            wire.hold()
            calling = asyncio.create_task(gates.call("a", 60))
            await asyncio.sleep(0)
            wire.cut()
            with pytest.raises(LedgerError, match="connection"):
                await calling
            wire.flows.set()
            gates.has["a"] = 60
            assert (await gates.call("a", 60)).known
            assert wire.connections == 2

    run(scene)


def test_a_line_that_is_dead_on_one_side_is_given_up_after_the_time_out(forgetful: Server) -> None:
    async def scene() -> None:
        async with Wire(forgetful.port) as wire, opened(f"redis://127.0.0.1:{wire.port}", timeout_s=0.3) as store:
            gates = await lent(store, a=60)
            wire.hold()  # bytes are taken and come to nothing
            calls = [asyncio.create_task(gates.call("a", 60)) for _ in range(3)]
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert [str(result)[-200:] for result in results if not isinstance(result, LedgerError)] == []
            wire.flows.set()
            gates.has["a"] = 60
            await gates.until("a", 60, lambda _: gates.has["a"] == 60)
            assert wire.connections >= 2

    run(scene)


def test_a_held_call_that_comes_through_after_all_changes_nothing(forgetful: Server) -> None:
    async def scene() -> None:
        async with (
            opened(forgetful.url) as store,
            Wire(forgetful.port) as wire,
            opened(f"redis://127.0.0.1:{wire.port}", timeout_s=0.2) as slow,
        ):
            gates = await lent(store, a=60)
            await AsyncGates(slow, "q").call("x")
            held = AsyncGates(slow, lease_ms=LEASE_MS)
            held._numbers["a"] = gates._numbers["a"]
            wire.hold()
            with pytest.raises(LedgerError):
                await held.call("a", 10, keeps=10)
            gates._numbers["a"] += 1
            await gates.call("a", 60)
            wire.flows.set()  # what was written goes out now, to a server that knows better
            await eventually(lambda: b"kvbudget" in forgetful.ask("CLIENT", "LIST"))
            await gates.call("b", 40)
            assert gates.has == {"a": 60, "b": 40}

    run(scene)


def test_no_memory_is_an_error_that_changes_nothing(forgetful: Server) -> None:
    async def scene() -> None:
        async with opened(forgetful.url) as store:
            gates = await lent(store, a=10)
            before = forgetful.ask("GET", "kvbudget:{default/p}:bank")
            forgetful.ask("CONFIG", "SET", "maxmemory", "1")
            with pytest.raises(LedgerError, match=r"no memory left.*give it more memory"):
                await gates.call("b", 50)
            assert forgetful.ask("GET", "kvbudget:{default/p}:bank") == before
            forgetful.ask("CONFIG", "SET", "maxmemory", "0")
            await gates.call("a", 10, keeps=10)
            await gates.until("b", 50, lambda _: gates.has["b"] == 50)

    run(scene)


def test_too_few_replicas_are_an_error_that_changes_nothing(forgetful: Server) -> None:
    async def scene() -> None:
        async with opened(forgetful.url) as store:
            gates = await lent(store, a=10)
            before = forgetful.ask("GET", "kvbudget:{default/p}:bank")
            forgetful.ask("CONFIG", "SET", "min-replicas-to-write", "1")
            with pytest.raises(LedgerError, match=r"too few replicas"):
                await gates.call("b", 50)
            assert forgetful.ask("GET", "kvbudget:{default/p}:bank") == before

    run(scene)


def test_a_replica_is_an_error_until_it_is_the_primary(forgetful: Server) -> None:
    async def scene() -> None:
        async with opened(forgetful.url) as store:
            gates = await lent(store, a=10)
            forgetful.ask("REPLICAOF", "127.0.0.1", str(free_port()))
            with pytest.raises(LedgerError, match="is a replica"):
                await gates.call("a", 10)
            forgetful.ask("REPLICAOF", "NO", "ONE")
            gates.has["a"] = 10
            await gates.until("a", 10, lambda _: gates.has["a"] == 10)

    run(scene)


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_still_loads_is_an_error_until_it_has(kind: str, tmp_path: Path) -> None:
    async def scene(server: Server) -> None:
        async with opened(server.url, timeout_s=0.4) as store:
            gates = await lent(store, a=60)
            server.ask("EVAL", "for at = 1, 3000 do redis.call('SET', 'k' .. at, 'v') end", 0)
            server.ask("SAVE")
            server.kill()
            server.options = ["key-load-delay", "500", "loading-process-events-interval-bytes", "1024"]
            server.start()
            assert b"loading:1" in server.ask("INFO", "persistence")
            errors: set[str] = set()
            answer = None
            while answer is None:
                gates.has["a"] = 60
                try:
                    answer = await gates.call("a", 60)
                except LedgerError as error:
                    errors.add(error.message.rpartition(": ")[2])
                    await asyncio.sleep(0.01)
            assert any("LOADING" in error for error in errors), errors
            assert (answer.settling, gates.has["a"]) == (True, 60)

    with running(kind, tmp_path / "s") as server:
        run(lambda: scene(server))


def test_a_password_is_needed_and_may_be_changed_and_is_never_told(forgetful: Server, tmp_path: Path) -> None:
    file = tmp_path / "password"

    async def scene() -> None:
        forgetful.ask("CONFIG", "SET", "requirepass", "s3cret")
        for url, match in (
            (forgetful.url, "wants a password"),
            (f"redis://:wr0ng@127.0.0.1:{forgetful.port}", "does not take"),
            (f"redis://someone:s3cret@127.0.0.1:{forgetful.port}", "does not take"),
            (f"{forgetful.url}?password_file={tmp_path}/none", "password file .* cannot be read"),
        ):
            with pytest.raises(LedgerError, match=match) as told:
                async with opened(url):
                    pass
            assert "s3cret" not in str(told.value)
            assert "wr0ng" not in str(told.value)
        for at, (url, from_environment) in enumerate(
            (
                (f"redis://:s3cret@127.0.0.1:{forgetful.port}", ""),
                (f"redis://default:s3cret@127.0.0.1:{forgetful.port}", ""),
                (forgetful.url, "s3cret"),
            )
        ):
            async with opened(url, KVBUDGET_LEDGER_PASSWORD=from_environment) as store:
                await AsyncGates(store, f"pool{at}").call("a")
                assert "s3cret" not in f"{store.address}{store._address!r}"
        file.write_text("s3cret\n")
        async with opened(f"{forgetful.url}?password_file={file}", timeout_s=2.0) as store:
            gates = AsyncGates(store)
            await gates.call("a")
            talk = Talk(forgetful)
            talk("AUTH", "s3cret")
            talk("CONFIG", "SET", "requirepass", "an0ther")
            file.write_text("an0ther")
            talk("CLIENT", "KILL", "TYPE", "NORMAL", "SKIPME", "YES")
            await gates.until("a", 0, lambda _: True)
            talk.close()

    run(scene)


def test_the_rights_that_the_documentation_names_are_enough_and_each_is_needed(forgetful: Server) -> None:
    words = (
        "~kvbudget:* &kvbudget:* +hello +auth +select +client|setname +ping +info +script|load +evalsha +eval +time"
        " +get +set +publish +subscribe"
    )
    rights = words.split()

    async def lacks_and_wakes(pool: str) -> None:
        async with opened(f"redis://gate:pw@127.0.0.1:{forgetful.port}/1") as store:
            gates = AsyncGates(store, pool)
            await gates.call("a", keeps=100)
            await gates.call("b", 10)

    async def scene() -> None:
        forgetful.ask("ACL", "SETUSER", "gate", "on", ">pw", *rights)
        await lacks_and_wakes("all")
        for without in ("-set", "-info", "-subscribe", "-time", "-publish", "resetchannels", "resetkeys"):
            forgetful.ask("ACL", "SETUSER", "gate", "reset", "on", ">pw", *rights, without)
            with pytest.raises(LedgerError, match=r"does not allow this user"):
                await lacks_and_wakes(f"without {without}")

    run(scene)


def test_a_state_of_another_version_is_refused_and_left_alone(forgetful: Server) -> None:
    async def scene() -> None:
        key = "kvbudget:{default/p}:bank"
        forgetful.ask("EVAL", "redis.call('SET', KEYS[1], cmsgpack.pack({v = 999}))", 1, key)
        before = forgetful.ask("GET", key)
        async with opened(forgetful.url) as store:
            gates = AsyncGates(store)
            with pytest.raises(LedgerError, match=r"version 999, this gate knows [0-9]+.*\?name="):
                await gates.call("a", 10)
            assert forgetful.ask("GET", key) == before
            forgetful.ask("SET", key, b"\xc1 what is this")
            with pytest.raises(LedgerError, match="version unknown"):
                await gates.call("a", 10)
            forgetful.ask("DEL", key)
            forgetful.ask("RPUSH", key, "x")
            with pytest.raises(LedgerError, match="holds something else"):
                await gates.call("a", 10)

    run(scene)


def test_what_is_no_ledger_at_all_says_so() -> None:
    async def scene() -> None:
        async def hangs_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(10)
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            writer.close()

        other = await asyncio.start_server(hangs_up, "127.0.0.1", 0)
        port = other.sockets[0].getsockname()[1]
        with pytest.raises(LedgerError, match=r"no RESP.*port that of a Valkey or Redis"):
            async with opened(f"redis://127.0.0.1:{port}"):
                pass
        other.close()
        with pytest.raises(LedgerError, match=r"cannot be reached.*look whether it runs"):
            async with opened(f"redis://127.0.0.1:{port}"):
                pass
        for host in ("no..host", "x" * 70 + ".invalid"):  # no names: nobody is asked for them
            with pytest.raises(LedgerError, match="cannot be reached"):
                async with opened(f"redis://{host}"):
                    pass
        with pytest.raises(LedgerError, match="cannot be reached"):
            async with opened("unix:///no/such.sock"):
                pass

    run(scene)


def test_a_store_that_could_not_start_goes_on_trying(forgetful: Server) -> None:
    async def scene() -> None:
        forgetful.kill()
        store = RedisStore(address_of(forgetful.url, {}), timeout_s=2.0)
        with pytest.raises(LedgerError, match="cannot be reached"):
            await store.start()
        forgetful.start()
        answer = await AsyncGates(store).until("a", 0, lambda _: True)
        assert answer.branches == 1
        await store.close()

    run(scene)


def test_a_clock_that_is_set_ends_no_lease(server: Server) -> None:
    """By the script's own account of time; the server's clock cannot be set in a test."""

    async def scene() -> None:
        async with opened(server.url) as store:
            gates = await lent(store, a=60)
            shift = (
                "local bank = cmsgpack.unpack(redis.call('GET', KEYS[1]))"
                " bank.w = bank.w - tonumber(ARGV[1]) redis.call('SET', KEYS[1], cmsgpack.pack(bank))"
            )
            for set_by_ms in (10**9, -(10**9)):
                server.ask("EVAL", shift, 1, "kvbudget:{default/p}:bank", set_by_ms)
                assert (await gates.call("b", 50)).branches == 2
                assert gates.has["b"] == 0
                assert (await gates.call("a", 60)).known

    run(scene)
