"""Four gates over a real Valkey charge what their prompts begin with to the pool once (`gate.bank.commons`)."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvbudget.edge.engine import metrics
from kvbudget.edge.engine.server import start_engine
from kvbudget.edge.engine.settings import EngineSettings
from kvbudget.edge.service import ServiceSettings, start_service
from kvbudget.gate.gate import GateConfig
from kvbudget.gate.policies import Policy
from kvbudget.pool.prefix import Sharing
from ledger_servers import running

POOL = 256
GATES = 4
COMMON = list(range(60 * 16))


@pytest.fixture
def says_that_it_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded engine has no prefix cache, and so room for everybody's own copy, beyond what the gates are told."""
    cache_config: Any = metrics.EngineMetrics._cache_config
    monkeypatch.setattr(
        metrics.EngineMetrics, "_cache_config", lambda self: {**cache_config(self), "enable_prefix_caching": "True"}
    )


@pytest.mark.usefixtures("says_that_it_shares")
def test_what_prompts_at_all_gates_begin_with_is_charged_to_the_pool_once(tmp_path: Path) -> None:
    """Twenty of them need 60 blocks in common and 93 of their own, of 256. Charged at three gates, it is too much."""

    async def scene(url: str) -> None:
        async with AsyncExitStack() as stack:
            engine = await start_engine(
                EngineSettings(num_blocks=20 * POOL, block_size=16, max_model_len=4096, step_cost_s=0.01)
            )
            stack.push_async_callback(engine.close)
            settings = ServiceSettings(
                engine.url, port=0, admin_port=0, ledger=url, lease_seconds=3.0, pool_blocks=POOL,
                gate=GateConfig(policy=Policy.WORST_CASE, abort_tail_ns=0, sharing=Sharing.SCHEDULED),
            )  # fmt: skip
            services = []
            for _ in range(GATES):
                services.append(await start_service(settings))
                stack.push_async_callback(services[-1].close)
            client = await stack.enter_async_context(httpx.AsyncClient(timeout=60.0))
            ledgers = [service.gate.ledger for service in services]
            ended = False

            async def asks(number: int) -> None:
                ask = {"prompt": [*COMMON, *[number] * 8], "max_tokens": 40 + 2 * number, "ignore_eos": True}
                while not ended:
                    answer = await client.post(f"{services[number % GATES].url}/v1/completions", json=ask)
                    assert answer.status_code in (200, 429, 503)  # until the ledger is open, and who waits too long
                    await asyncio.sleep(0.0 if answer.status_code == 200 else 0.05)

            clients = [asyncio.create_task(asks(number)) for number in range(5 * GATES)]
            most = 0
            async with asyncio.timeout(60.0):
                while sum(map(len, ledgers)) < 5 * GATES:
                    commons = {
                        name: one.common_blocks_of(len(keys)) for one in ledgers for name, keys in one.commons.items()
                    }
                    promised = sum([service.gate.promised_blocks() for service in services])
                    most = max(most, promised + sum(commons.values()))
                    await asyncio.sleep(0.002)
            names = [name for one in ledgers for name in one.commons]
            assert len(names) >= 2
            assert len(set(names)) == 1
            ended = True
            await asyncio.gather(*clients)
            assert POOL * 0.6 < most <= POOL
            async with asyncio.timeout(10.0):  # nobody lives: it is given up
                while any(one.commons for one in ledgers):
                    await asyncio.sleep(0.01)

    with running("valkey", tmp_path / "valkey") as valkey:
        asyncio.run(scene(valkey.url))
