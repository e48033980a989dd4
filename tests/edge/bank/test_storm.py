"""Gates before a real server while everything goes wrong: at no moment do they go by more than there is."""

import asyncio
import random
import signal
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from kvbudget.edge.bank.redis_store import RedisStore
from kvbudget.edge.bank.store import LedgerError
from kvbudget.gate.bank.branch import Branch, Stand
from ledger_gates import LIMIT, Wire, opened, run
from ledger_servers import KINDS, Server, running

LEASE_NS = 600 * 10**6
STORM_S = 4.0
SHIFT = """
local kept = redis.call('GET', KEYS[1])
if kept then
  local bank = cmsgpack.unpack(kept)
  bank.w = bank.w - tonumber(ARGV[1])
  redis.call('SET', KEYS[1], cmsgpack.pack(bank), 'KEEPTTL')
end
return 1
"""


class StormGate:
    """One gate that wants now more and now less, dies and comes back under another name, or sleeps past its lease."""

    def __init__(self, storm: "Storm", name: str, store: RedisStore) -> None:
        self.storm = storm
        self.name = name
        self.store = store
        self.heard = 0
        self.failed = 0
        self.lives = 0
        self.wants: int | None = None  # set: it is calm, and wants just that
        self.branch = self._born()

    def has(self, now_ns: int) -> int:
        """What it goes by."""
        return 0 if self.branch.is_lost(now_ns) else self.branch.slices.get("blocks", 0)

    async def live(self) -> None:
        chance = random.Random(f"{self.storm.seed} {self.name}")
        while not self.storm.over:
            needs = chance.choice([0, 5, 20, 50, 80]) if self.wants is None else self.wants
            reserve = chance.choice([0, 5, 30]) if self.wants is None else 0
            promised = min(needs, self.has(time.monotonic_ns()))
            stand = Stand("blocks", LIMIT, promised, needs, reserve)
            call = self.branch.call([stand], time.monotonic_ns(), waited_ns=chance.randrange(10**9))
            try:
                answer = await self.store.call("p", call)
            except LedgerError:
                self.failed += 1
                self.branch.failed(call.number)
            else:
                if answer is not None and self.branch.heard(answer, time.monotonic_ns()):
                    self.heard += 1
            self.storm.check()
            if self.wants is None and chance.random() < 0.02:
                self.branch = self._born()  # killed: nobody goes by its slice any more
            if self.wants is None and chance.random() < 0.02:
                await asyncio.sleep(1.3 * LEASE_NS / 1e9)
            await asyncio.sleep(chance.random() * 0.02)

    def _born(self) -> Branch:
        self.lives += 1
        return Branch(f"{self.name}-{self.lives}", LEASE_NS)


class Storm:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.over = False
        self.most = 0
        self.gates: list[StormGate] = []

    def check(self) -> None:
        """By the clock of the gates, which is one here."""
        now_ns = time.monotonic_ns()
        held = {gate.branch.name: gate.has(now_ns) for gate in self.gates}
        self.most = max(self.most, sum(held.values()))
        assert self.most <= LIMIT, (self.seed, held)


async def rage(server: Server, wires: list[Wire], chance: random.Random) -> None:
    """One thing after the other."""
    until = time.monotonic() + STORM_S
    while time.monotonic() < until:
        await asyncio.sleep(chance.random() * 0.25)
        what, wire = chance.randrange(9), chance.choice(wires)
        for_s = chance.choice([0.05, 0.3, 0.9])
        if what == 0:
            wire.cut()
        elif what == 1:
            wire.hold()
            await asyncio.sleep(for_s)
            wire.flows.set()
        elif what == 2:
            server.ask("FLUSHALL")
        elif what == 3:
            server.ask("SCRIPT", "FLUSH")
        elif what == 4:
            server.ask("CLIENT", "PAUSE", int(for_s * 1000), "WRITE")
        elif what == 5:
            server.kill()
            await asyncio.sleep(for_s)
            server.start()
        elif what == 6:
            assert server.process is not None
            server.process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(for_s)
            server.process.send_signal(signal.SIGCONT)
        elif what == 7:
            server.ask("EVAL", SHIFT, 1, "kvbudget:{default/p}:bank", chance.choice([-(10**7), 400, 10**7]))
        else:
            server.ask("CLIENT", "KILL", "TYPE", "NORMAL")


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("keeps", [["appendonly", "yes", "appendfsync", "always"], []], ids=["file", "forgetful"])
@pytest.mark.parametrize("kind", KINDS)
def test_gates_never_go_by_more_than_there_is(kind: str, keeps: list[str], seed: int, tmp_path: Path) -> None:
    storm = Storm(seed)

    async def scene() -> None:
        async with AsyncExitStack() as stack:
            wires = [await stack.enter_async_context(Wire(server.port)) for _ in range(4)]
            for at, wire in enumerate(wires):
                store = await stack.enter_async_context(opened(f"redis://127.0.0.1:{wire.port}", timeout_s=0.15))
                storm.gates.append(StormGate(storm, f"gate{at}", store))
            living = [asyncio.create_task(gate.live()) for gate in storm.gates]
            await rage(server, wires, random.Random(seed))
            for gate in storm.gates:
                gate.wants = 20
            deadline = time.monotonic() + 15
            while any(gate.has(time.monotonic_ns()) < 20 for gate in storm.gates):
                assert time.monotonic() < deadline, "calm has not come back"
                done = [task for task in living if task.done()]
                assert not done, await asyncio.gather(*done)
                await asyncio.sleep(0.02)
            storm.over = True
            await asyncio.gather(*living)

    with running(kind, tmp_path / "s", keeps) as server:
        run(scene, 80.0)
    assert sum(gate.heard for gate in storm.gates) > 100
    assert storm.most > LIMIT / 2  # else it would not have been hard
