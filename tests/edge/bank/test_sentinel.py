"""The primary that Sentinels name, and the one after it."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from kvbudget.edge.bank.store import LedgerError
from ledger_gates import AsyncGates, eventually, opened, run
from ledger_servers import KINDS, Server, free_port, running

LEASE_MS = 1500


class Watched(NamedTuple):
    primary: Server
    replica: Server
    sentinel: Server


@pytest.fixture(params=KINDS)
def watched(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Watched]:
    """A primary with a replica, under one Sentinel that has seen both."""
    with running(request.param, tmp_path / "p", ["repl-diskless-sync-delay", "0"]) as primary:
        options = ["replicaof", f"127.0.0.1 {primary.port}"]
        with running(request.param, tmp_path / "r", options) as replica:
            port = free_port()
            folder = tmp_path / "sentinel"
            folder.mkdir()
            (folder / "sentinel.conf").write_text(
                f"port {port}\nbind 127.0.0.1\nsentinel monitor main 127.0.0.1 {primary.port} 1\n"
                "sentinel down-after-milliseconds main 500\nsentinel failover-timeout main 3000\n"
                f"requirepass watch\ndir {folder}\n"
            )
            with running(request.param, folder, port=port, mode="sentinel.conf --sentinel") as sentinel:
                yield Watched(primary, replica, sentinel)


def url_of(watched: Watched, *, name: str = "main") -> str:
    nobody = free_port()  # the first Sentinel is down
    return f"redis+sentinel://127.0.0.1:{nobody},127.0.0.1:{watched.sentinel.port}/{name}"


async def replicated(watched: Watched) -> None:
    """The Sentinel knows the replica, and that has what the primary has."""
    talk = watched.sentinel.talk()
    talk("AUTH", "watch")

    def done() -> bool:
        known = talk("SENTINEL", "REPLICAS", "main")
        info = watched.primary.ask("INFO", "replication").decode()
        return (
            bool(known)
            and "state=online" in info
            and b"master_link_status:up" in watched.replica.ask("INFO", "replication")
        )

    await eventually(done, 30.0)
    talk.close()


def test_after_a_failover_everybody_is_known_and_nothing_is_given_away_for_a_lease(watched: Watched) -> None:
    async def scene() -> None:
        await replicated(watched)
        async with opened(url_of(watched), timeout_s=1.0, KVBUDGET_LEDGER_SENTINEL_PASSWORD="watch") as store:
            gates = AsyncGates(store, lease_ms=LEASE_MS)
            await gates.settled("a")
            await gates.until("a", 60, lambda _: gates.has["a"] == 60)
            await replicated(watched)
            watched.primary.kill()
            gates.has["a"] = 60
            answer = await gates.until("a", 60, lambda _: True, 40.0)
            came_back = time.monotonic()
            assert (answer.settling, gates.has["a"]) == (True, 60)
            await gates.call("b", 40)
            assert gates.has["b"] == 0
            while gates.has["b"] < 40:
                await gates.call("a", 60)
                await gates.call("b", 40)
                assert gates.has["a"] == 60
            assert time.monotonic() - came_back >= LEASE_MS / 1000 - 0.02
            assert watched.replica.ask("ROLE")[0] == b"master"

    run(scene, 90.0)


def test_what_sentinels_do_not_know_is_told(watched: Watched) -> None:
    async def scene() -> None:
        with pytest.raises(LedgerError, match=r"knows no primary 'other'"):
            async with opened(url_of(watched, name="other"), KVBUDGET_LEDGER_SENTINEL_PASSWORD="watch"):
                pass
        with pytest.raises(LedgerError, match=r"wants a password"):
            async with opened(url_of(watched)):
                pass
        with pytest.raises(LedgerError, match=r"no Sentinel leads.*cannot be reached"):
            async with opened(f"redis+sentinel://127.0.0.1:{free_port()}/main"):
                pass

    run(scene)
