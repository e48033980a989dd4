"""Four gates as real processes before one engine, over one real Valkey: what becomes of the promise in trouble."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from ledger_servers import Server, running

POOL = 256
LEASE_S = 3.0
GATES = 4
READY_S = 60.0


@dataclass
class Gate:
    process: "subprocess.Popen[bytes]"
    url: str = ""
    admin: str = ""

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


@dataclass
class Scene:
    gates: list[Gate]
    engine: str
    ledger: Server
    client: httpx.AsyncClient
    answers: "Counter[int | str]" = field(default_factory=Counter)
    most: int = 0  # promised at any look, by all gates that answered

    async def chat(self, gate: int, max_tokens: int) -> httpx.Response:
        ask = {"prompt": "hi", "max_tokens": max_tokens, "ignore_eos": True}
        return await self.client.post(f"{self.gates[gate].url}/v1/completions", json=ask)

    @asynccontextmanager
    async def streaming(self, gate: int, max_tokens: int) -> AsyncIterator[httpx.Response]:
        """One that has begun to answer, and is given up at the end of the block."""
        ask = {"prompt": "hi", "max_tokens": max_tokens, "ignore_eos": True, "stream": True}
        async with self.client.stream("POST", f"{self.gates[gate].url}/v1/completions", json=ask) as answer:
            yield answer

    async def one(self, gate: int, max_tokens: int) -> None:
        try:
            answer = await self.chat(gate, max_tokens)
            self.answers[answer.status_code] += 1
        except httpx.HTTPError as error:
            self.answers[type(error).__name__] += 1

    async def value(self, base: str, name: str) -> float:
        text = (await self.client.get(f"{base}/metrics", timeout=2.0)).text
        lines = [line for line in text.splitlines() if line.startswith(name) and line[len(name) :][:1] in " {"]
        return sum(float(line.split()[-1]) for line in lines)

    async def reserved(self, gate: int) -> int:
        return int(await self.value(self.gates[gate].admin, "kvbudget_reserved_blocks"))

    async def watch(self, gates: list[int]) -> None:
        """Looks one after the other: a block that moves between two looks may be seen twice, never for long."""
        while True:
            seen = sum(await asyncio.gather(*[self.reserved(gate) for gate in gates]))
            if seen > POOL:
                seen = sum(await asyncio.gather(*[self.reserved(gate) for gate in gates]))
            self.most = max(self.most, seen)
            await asyncio.sleep(0.02)

    async def until(self, what: Callable[[], Awaitable[bool]], within_s: float = 60.0) -> float:
        began = time.monotonic()
        async with asyncio.timeout(within_s):
            while not await what():
                await asyncio.sleep(0.02)
        return time.monotonic() - began


@contextmanager
def command(folder: Path, name: str, *words: str) -> Iterator["subprocess.Popen[bytes]"]:
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "kvbudget", *words], stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONUNBUFFERED": "1"}, start_new_session=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)
        if process.stdout is not None:
            process.stdout.close()


async def ready(process: "subprocess.Popen[bytes]") -> dict[str, object]:
    assert process.stdout is not None
    line = await asyncio.wait_for(asyncio.to_thread(process.stdout.readline), READY_S)
    assert line, f"it ended with {process.poll()}; see its log"
    told: dict[str, object] = json.loads(line)
    return told


@asynccontextmanager
async def stand(folder: Path, ledger: Server, *more: str, step_s: str = "0.01") -> AsyncIterator[Scene]:
    with command(folder, "engine", "engine", "--port", "0", "--num-blocks", str(POOL + 1), "--max-model-len", "4096",
                 "--step-cost", step_s, "--json") as engine:  # fmt: skip
        url = str((await ready(engine))["url"])
        words = ["serve", "--backend", url, "--port", "0", "--admin-port", "0", "--policy", "worst-case", "--json",
                 "--queue-seconds", "60", "--queue-tokens", "1m",
                 "--ledger", ledger.url, "--lease-seconds", str(LEASE_S), *more]  # fmt: skip
        managers = [command(folder, f"gate{n}", *words) for n in range(GATES)]
        gates: list[Gate] = []
        try:
            gates = [Gate(manager.__enter__()) for manager in managers]
            for gate in gates:
                told = await ready(gate.process)
                gate.url, gate.admin = str(told["gate"]), str(told["admin"])
            limits = httpx.Limits(max_connections=400)
            async with httpx.AsyncClient(timeout=60.0, limits=limits) as client:
                yield Scene(gates, url, ledger, client)
        finally:
            for manager in reversed(managers[: len(gates)]):
                manager.__exit__(None, None, None)


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[Server]:
    with running("valkey", tmp_path / "valkey") as server:
        yield server


def test_under_twice_the_load_that_fits_nothing_is_promised_twice_and_nobody_is_preempted(
    tmp_path: Path, valkey: Server
) -> None:
    async def scene() -> None:
        async with stand(tmp_path, valkey, step_s="0.002") as s:
            watching = asyncio.create_task(s.watch([0, 1, 2, 3]))
            await asyncio.gather(*[s.one(n % GATES, 100 + 61 * n % 500) for n in range(120)])
            watching.cancel()
            assert s.answers == {200: 120}
            assert POOL * 0.7 < s.most <= POOL
            assert await s.value(s.engine, "vllm:num_preemptions_total") == 0
            idle = [s.gates[n].admin for n in range(GATES)]

            async def all_is_back() -> bool:
                return not any([await s.value(admin, "kvbudget_ledger_reserved_blocks") for admin in idle])

            await s.until(all_is_back, within_s=3 * LEASE_S)

    asyncio.run(scene())


def test_the_blocks_of_a_gate_that_was_killed_are_back_when_its_lease_is_over(tmp_path: Path, valkey: Server) -> None:
    async def scene() -> None:
        async with stand(tmp_path, valkey) as s:
            load = [asyncio.create_task(s.one(0, 900)) for _ in range(4)]

            async def has_it() -> bool:
                return await s.reserved(0) > 200

            await s.until(has_it)
            s.gates[0].send(signal.SIGKILL)
            async with s.streaming(1, POOL * 16 - 16) as whole:
                assert whole.status_code == 200
                assert float(whole.headers["x-kvbudget-queue-ms"]) < (LEASE_S + 1.0) * 1000
            await asyncio.gather(*load)
            assert s.answers == {"RemoteProtocolError": 4}
            assert await s.value(s.engine, "vllm:num_preemptions_total") == 0

    asyncio.run(scene())


def test_what_a_gate_that_sleeps_past_its_lease_has_in_the_engine_is_nobody_else_s(
    tmp_path: Path, valkey: Server
) -> None:
    async def scene() -> None:
        async with stand(tmp_path, valkey) as s:
            load = [asyncio.create_task(s.one(0, 900)) for _ in range(4)]

            async def has_it() -> bool:
                return await s.reserved(0) > 200

            await s.until(has_it)
            s.gates[0].send(signal.SIGSTOP)
            await asyncio.sleep(LEASE_S + 0.5)  # the lease is over; what it forwarded runs on in the engine
            large = asyncio.create_task(s.chat(1, 800))
            small = await s.chat(2, 10)  # there is some left beside it
            assert small.status_code == 200
            assert await s.reserved(1) == 0
            late = [asyncio.create_task(s.one(0, 300)) for _ in range(8)]  # they lie in its socket when it wakes
            watching = asyncio.create_task(s.watch([1, 2, 3]))
            await asyncio.sleep(0.5)
            s.gates[0].send(signal.SIGCONT)
            await asyncio.gather(*load, *late)
            assert (await large).status_code == 200
            watching.cancel()
            assert s.most <= POOL
            assert s.answers[200] >= 4  # nothing that ran was lost
            assert not [kind for kind in s.answers if kind not in (200, 429, 503)]
            assert await s.value(s.engine, "vllm:num_preemptions_total") == 0

    asyncio.run(scene())


def test_without_its_ledger_every_gate_refuses_with_503_and_goes_on_when_it_is_back_empty(
    tmp_path: Path, valkey: Server
) -> None:
    async def scene() -> None:
        async with stand(tmp_path, valkey) as s:
            long = [asyncio.create_task(s.chat(n, 600)) for n in range(GATES)]

            async def all_run() -> bool:
                return min([await s.reserved(n) for n in range(GATES)]) > 0

            await s.until(all_run)
            valkey.kill()

            async def all_refuse() -> bool:
                answers = await asyncio.gather(*[s.chat(n, 600) for n in range(GATES)])
                return all(answer.status_code == 503 for answer in answers)

            await s.until(all_refuse, within_s=30)
            refused = await s.chat(0, 10)
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) >= 1
            assert "ledger" in refused.json()["error"]["message"]
            assert await s.value(s.gates[0].admin, "kvbudget_ledger_errors_total") > 0
            valkey.start()
            answers = await asyncio.gather(*long)
            assert [answer.status_code for answer in answers] == [200] * GATES

            async def all_serve() -> bool:
                answers = await asyncio.gather(*[s.chat(n, 10) for n in range(GATES)])
                return all(answer.status_code == 200 for answer in answers)

            await s.until(all_serve, within_s=30)
            watching = asyncio.create_task(s.watch([0, 1, 2, 3]))
            await asyncio.gather(*[s.one(n % GATES, 300) for n in range(40)])
            watching.cancel()
            assert s.most <= POOL
            assert await s.value(s.engine, "vllm:num_preemptions_total") == 0

    asyncio.run(scene())
