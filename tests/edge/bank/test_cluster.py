"""Pools on the nodes of a cluster, and where they go from there."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kvbudget.edge.bank.script import keys_of
from kvbudget.edge.bank.store import LedgerError
from ledger_gates import AsyncGates, eventually, opened, run
from ledger_servers import KINDS, Server, free_port, running

SLOTS = 16384
LEASE_MS = 1500


@pytest.fixture(params=KINDS)
def nodes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[Server]]:
    """Three primaries and a replica of the first."""
    options = ["cluster-enabled", "yes", "cluster-node-timeout", "1500", "cluster-require-full-coverage", "no"]
    options += ["repl-diskless-sync-delay", "0"]
    with ExitStack() as stack:
        buses = [free_port() for _ in range(4)]
        made = [
            stack.enter_context(running(request.param, tmp_path / str(at), [*options, "cluster-port", str(bus)]))
            for at, bus in enumerate(buses)
        ]
        for at, node in enumerate(made[:3]):
            node.ask("CLUSTER", "ADDSLOTSRANGE", at * SLOTS // 3, (at + 1) * SLOTS // 3 - 1)
        for node in made[1:]:
            node.ask("CLUSTER", "MEET", "127.0.0.1", made[0].port, buses[0])

        def whole() -> bool:
            return all(b"cluster_known_nodes:4" in node.ask("CLUSTER", "INFO") for node in made)

        asyncio.run(eventually(whole, 30.0))
        made[3].ask("CLUSTER", "REPLICATE", made[0].ask("CLUSTER", "MYID"))

        def ready() -> bool:
            return all(b"cluster_state:ok" in node.ask("CLUSTER", "INFO") for node in made) and (
                b"master_link_status:up" in made[3].ask("INFO", "replication")
            )

        asyncio.run(eventually(ready, 30.0))
        yield made


def slot_of(node: Server, pool: str) -> int:
    slot = node.ask("CLUSTER", "KEYSLOT", keys_of("default", pool).bank)
    assert isinstance(slot, int)
    return slot


def pool_on(nodes: list[Server], at: int) -> str:
    """A pool whose key is on that node."""
    return next(f"pool{number}" for number in range(1000) if slot_of(nodes[0], f"pool{number}") * 3 // SLOTS == at)


def urls(*nodes: Server) -> str:
    return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes)


def test_each_pool_is_on_its_node_and_wakes_there(nodes: list[Server]) -> None:
    async def scene() -> None:
        woken: list[tuple[str, str]] = []
        async with (
            opened(urls(nodes[0]), woken=lambda pool, name: woken.append((pool, name))) as one,
            opened(urls(nodes[2], nodes[1])) as other,
        ):
            for at in range(3):
                pool = pool_on(nodes, at)
                here, there = AsyncGates(one, pool), AsyncGates(other, pool)
                await here.call("a", keeps=100)
                answer = await there.call("b", 10)
                assert (answer.branches, there.has["b"]) == (2, 0)
                await eventually(lambda pool=pool: (pool, "a") in woken)  # type: ignore[misc]
                assert [len(node.ask("KEYS", keys_of("default", pool).bank)) for node in nodes[:3]] == [
                    int(number == at) for number in range(3)
                ]

    run(scene)


def test_a_pool_is_followed_while_its_slot_moves_there_and_back(nodes: list[Server]) -> None:
    async def scene() -> None:
        woken: list[str] = []
        async with opened(urls(nodes[0]), woken=lambda _pool, name: woken.append(name)) as store:
            pool = pool_on(nodes, 1)
            key, slot = keys_of("default", pool).bank, slot_of(nodes[0], pool)
            gates = AsyncGates(store, pool, lease_ms=60_000)
            await gates.call("a", keeps=30)
            ids = [node.ask("CLUSTER", "MYID") for node in nodes]
            for moves, (there, to) in enumerate(((1, 2), (2, 1)), 1):
                nodes[to].ask("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[there])
                nodes[there].ask("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[to])
                assert (await gates.call("a")).known  # still there
                nodes[there].ask("MIGRATE", "127.0.0.1", nodes[to].port, key, 0, 5000)
                answer = await gates.call("a")  # by ASK
                assert (answer.known, gates.has["a"]) == (True, 30)
                for node in (nodes[to], nodes[there], nodes[0]):
                    node.ask("CLUSTER", "SETSLOT", slot, "NODE", ids[to])
                for _ in range(3):
                    assert (await gates.call("a")).known  # by MOVED
                assert gates.has["a"] == 30
                await gates.call(f"asks the node {to}", 80)
                await eventually(lambda moves=moves: len(woken) == moves)  # type: ignore[misc]
            assert woken == ["a", "a"]

    run(scene)


def test_after_a_failover_a_pool_is_found_on_the_new_primary(nodes: list[Server]) -> None:
    async def scene() -> None:
        async with opened(urls(nodes[0]), timeout_s=1.0) as store:  # others are known by what it says
            gates = AsyncGates(store, pool_on(nodes, 0), lease_ms=LEASE_MS)
            others = AsyncGates(store, pool_on(nodes, 1), lease_ms=LEASE_MS)
            await gates.settled("a")
            await gates.until("a", 60, lambda _: gates.has["a"] == 60)
            await others.call("x", keeps=7)
            await eventually(lambda: b"lag=0" in nodes[0].ask("INFO", "replication"))
            nodes[0].kill()
            with pytest.raises(LedgerError):
                await gates.call("a", 60)
            await others.call("x")
            assert others.has["x"] == 7  # nothing happened to that pool
            gates.has["a"] = 60
            answer = await gates.until("a", 60, lambda _: True, 40.0)
            assert (answer.settling, gates.has["a"]) == (True, 60)
            assert nodes[3].ask("ROLE")[0] == b"master"

    run(scene, 90.0)


def test_a_cluster_is_entered_by_any_node_that_lives(nodes: list[Server]) -> None:
    async def scene() -> None:
        nodes[1].kill()
        async with opened(urls(nodes[1], nodes[2]), timeout_s=1.0) as store:
            await AsyncGates(store, pool_on(nodes, 0)).call("a", keeps=5)
        with pytest.raises(LedgerError, match="cannot be reached"):
            async with opened(urls(nodes[1])):
                pass

    run(scene)


def test_in_a_cluster_the_rights_that_the_documentation_names_are_enough(nodes: list[Server]) -> None:
    words = (
        "~kvbudget:* &kvbudget:* +hello +auth +select +client|setname +ping +info +script|load +evalsha +eval +time"
        " +get +set +publish +subscribe +spublish +ssubscribe +asking"
    )
    for node in nodes:
        node.ask("ACL", "SETUSER", "gate", "on", ">pw", *words.split())

    async def scene() -> None:
        url = urls(nodes[0]).replace("://", "://gate:pw@")
        woken: list[str] = []
        async with opened(url, woken=lambda _pool, name: woken.append(name)) as store:
            for at in range(3):
                gates = AsyncGates(store, pool_on(nodes, at))
                await gates.call("a", keeps=100)
                await gates.call("b", 10)
                await eventually(lambda at=at: woken == ["a"] * (at + 1))  # type: ignore[misc]

    run(scene)
