"""The store in a real Redis and a real Valkey, by the server's own clock."""

import asyncio
import time
from collections.abc import Callable

import pytest

from kvbudget.edge.bank.store import LedgerError
from kvbudget.edge.bank.urls import store_from_url
from kvbudget.errors import BadValueError
from kvbudget.gate.bank.board import Notes, Put
from kvbudget.gate.bank.terms import Answer, Call, Line
from ledger_gates import LIMIT, AsyncGates, eventually, opened, run
from ledger_servers import KINDS, Server


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest, servers: Callable[[str], Server]) -> Server:
    """Empty."""
    found = servers(request.param)
    found.ask("FLUSHALL")
    return found


def test_the_first_gate_of_a_pool_waits_one_lease_and_then_gets_what_it_needs(server: Server) -> None:
    async def scene() -> None:
        async with opened(server.url) as store:
            gates = AsyncGates(store)
            began = time.monotonic()
            answer = await gates.call("a", 10)
            assert (answer.known, answer.settling, gates.has["a"]) == (False, True, 0)
            answer = await gates.until("a", 10, lambda answer: not answer.settling)
            assert time.monotonic() - began >= 0.59
            assert (answer.known, gates.has["a"]) == (True, 10)

    run(scene)


def test_two_processes_share_one_pool_and_wake_each_other(server: Server) -> None:
    async def scene() -> None:
        woken: list[tuple[str, str, str]] = []
        async with (
            opened(server.url, woken=lambda pool, name: woken.append(("one", pool, name))) as one,
            opened(server.url, woken=lambda pool, name: woken.append(("other", pool, name))) as other,
        ):
            here, there = AsyncGates(one, lease_ms=60_000), AsyncGates(other, lease_ms=60_000)
            server.ask("FLUSHALL")
            await AsyncGates(one, lease_ms=300).settled()
            await here.call("a", 80)
            await here.call("a", 60)
            await there.call("b", 40)
            assert there.has["b"] == 0
            await eventually(lambda: bool(woken))
            await here.call("a", 60, keeps=60)
            await eventually(lambda: len(woken) > 1)
            await there.call("b", 40)
            assert (here.has["a"], there.has["b"]) == (60, 40)
            assert woken[:2] == [("one", "p", "a"), ("other", "p", "b")]

    run(scene)


def test_a_call_that_is_out_of_date_has_no_answer(server: Server) -> None:
    async def scene() -> None:
        async with opened(server.url) as store:
            call = Call("a", 2, 600, (Line("blocks", LIMIT, 0, 0, 0, 0),))
            assert await store.call("p", call) is not None
            assert await store.call("p", call) is None
            assert await store.call("p", call._replace(number=1, leaves=True)) is None
            assert await store.call("p", call._replace(number=3, leaves=True)) == Answer(3, True, False, False, 0, {})

    run(scene)


def test_pools_and_ledgers_know_nothing_of_one_another(server: Server) -> None:
    async def scene() -> None:
        async with opened(server.url) as store, opened(f"{server.url}/0?name=other") as other:
            for gates in (AsyncGates(store, "p"), AsyncGates(store, "q"), AsyncGates(other, "p")):
                answer = await gates.call("a", keeps=100)
                assert (answer.branches, gates.has["a"]) == (1, 100)
        assert set(server.ask("KEYS", "*")) == {
            b"kvbudget:{default/p}:bank",
            b"kvbudget:{default/q}:bank",
            b"kvbudget:{other/p}:bank",
        }

    run(scene)


def test_notes_go_from_gate_to_gate_and_ledgers_know_nothing_of_one_another(server: Server) -> None:
    async def scene() -> None:
        async with (
            opened(server.url) as one,
            opened(server.url) as other,
            opened(f"{server.url}/0?name=other") as apart,
        ):
            assert await one.exchange("lengths", Put("a", 1, 0, "of a")) == Notes(1, True, ())
            assert await other.exchange("lengths", Put("b", 1, 0, "of b")) == Notes(2, True, (("a", "of a"),))
            assert await apart.exchange("lengths", Put("c", 1, 0, "of c")) == Notes(1, True, ())
        assert set(server.ask("KEYS", "*")) == {b"kvbudget:{default/lengths}:notes", b"kvbudget:{other/lengths}:notes"}
        assert 3_000_000 < server.ask("PTTL", "kvbudget:{default/lengths}:notes") <= 3_600_000
        server.ask("FLUSHALL")
        async with opened(server.url) as one:
            assert await one.exchange("lengths", Put("a", 2, 2, "")) == Notes(0, False, ())

    run(scene)


@pytest.mark.parametrize("value", [b"what is this", b"\x81\xa1v\x63", b""])
def test_what_is_no_board_is_left_alone(server: Server, value: bytes) -> None:
    async def scene() -> None:
        server.ask("SET", "kvbudget:{default/lengths}:notes", value)
        async with opened(server.url) as store:
            with pytest.raises(LedgerError, match="cannot use what is stored"):
                await store.exchange("lengths", Put("a", 1, 0, "of a"))
            await AsyncGates(store).call("a")  # the bank does not mind
        assert server.ask("GET", "kvbudget:{default/lengths}:notes") == value

    run(scene)


def test_nothing_stays_for_ever(server: Server) -> None:
    async def scene() -> None:
        async with opened(server.url) as store:
            await AsyncGates(store).call("a")
            assert 3_000_000 < server.ask("PTTL", "kvbudget:{default/p}:bank") <= 3_600_000
            await AsyncGates(store, "long", lease_ms=600_000).call("a")
            assert server.ask("PTTL", "kvbudget:{default/long}:bank") > 11_000_000

    run(scene)


def test_many_calls_at_once_on_one_connection_get_each_their_own_answer(server: Server) -> None:
    async def scene() -> None:
        async with opened(server.url) as store:
            pools = [AsyncGates(store, f"p{at}") for at in range(300)]
            before = server.ask("INFO", "stats").decode()
            await asyncio.gather(*[gates.call("a", keeps=at % 100) for at, gates in enumerate(pools)])
            assert [gates.has["a"] for gates in pools] == [at % 100 for at in range(300)]
            after = server.ask("INFO", "stats").decode()
            opened_since = [
                int(text.partition("total_connections_received:")[2].partition("\r")[0]) for text in (before, after)
            ]
            assert opened_since[1] - opened_since[0] == 1  # that of the second look

    run(scene)


def test_one_who_gives_up_waiting_takes_nobody_elses_answer(server: Server) -> None:
    async def scene() -> None:
        async with opened(server.url) as store:
            one, other = AsyncGates(store, "one"), AsyncGates(store, "other")
            await one.call("a", keeps=1)
            await other.call("b", keeps=2)
            calling = asyncio.create_task(one.call("a", keeps=1))
            await asyncio.sleep(0)
            calling.cancel()
            assert (await other.call("b", keeps=2)).number == 2
            with pytest.raises(asyncio.CancelledError):
                await calling
            assert (await one.call("a", keeps=1)).number == 3

    run(scene)


def test_a_unix_socket_and_a_database_lead_to_the_same_rules(server: Server) -> None:
    async def scene() -> None:
        async with opened(f"unix://{server.socket_path}?db=3") as store:
            await AsyncGates(store).call("a", keeps=5)
        talk = server.ask("INFO", "keyspace").decode()
        assert "db3:keys=1" in talk

    run(scene)


def test_a_closed_store_says_so(server: Server) -> None:
    async def scene() -> None:
        async with opened(server.url) as store:
            gates = AsyncGates(store)
            await gates.call("a")
            calling = asyncio.create_task(gates.call("a"))
            await asyncio.sleep(0)
        with pytest.raises(LedgerError, match="closed"):
            await calling
        with pytest.raises(LedgerError, match="closed"):
            await gates.call("a")

    run(scene)


def test_a_name_that_would_be_two_is_refused(server: Server) -> None:
    async def scene() -> None:
        async with opened(server.url) as store:
            with pytest.raises(BadValueError, match="name"):
                await AsyncGates(store).call("a\nb")

    run(scene)


def test_the_address_makes_the_store(server: Server) -> None:
    async def scene() -> None:
        store = store_from_url(f"valkey://127.0.0.1:{server.port}/1", lease_ns=8 * 10**9)
        assert store.address == f"valkey://127.0.0.1:{server.port}/1"
        await store.start()
        assert await store.call("p", Call("a", 1, 8000, ())) is not None
        await store.close()

    run(scene)
