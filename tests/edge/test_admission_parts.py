"""Prefix credit, limits of tenants and the learned policy, end to end through the real gateway."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop

from kvbudget.edge.engine.server import RunningEngine, start_engine
from kvbudget.edge.engine.settings import EngineSettings
from kvbudget.edge.service import GateService, ServiceSettings, start_service
from kvbudget.gate.gate import GateConfig
from kvbudget.gate.policies import Policy
from kvbudget.gate.tenants.settings import ALL_OTHERS, ClassLimits, TenantLimits
from kvbudget.pool.prefix import Sharing
from kvbudget.units import Blocks, Tokens

Play = Callable[..., None]
Stand = Any  # the class lives in conftest.py, which cannot be imported
CACHED = {"cache_labels": 'kv_cache_size_tokens="None",enable_prefix_caching="True"', "usage_prompt_tokens": 100}
COMMON = list(range(500, 596))  # six whole blocks of 16
EACH_ITS_OWN = httpx.Limits(max_connections=None, max_keepalive_connections=0)
IN_ALL = -(-(100 + 16) // 16)  # blocks of one such request


@asynccontextmanager
async def streams(stand: Stand, *members: dict[str, object]) -> AsyncIterator[None]:
    """As many such requests at once, one after another; their clients leave at the end."""
    writers: list[asyncio.StreamWriter] = []
    try:
        for number, more in enumerate(members):
            writers.append(await begin(stand, number, **more))
        yield
    finally:
        for writer in writers:
            writer.close()
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)
    await stand.until(lambda: stand.promised() == 0)


async def begin(stand: Stand, last: int, **members: object) -> asyncio.StreamWriter:
    """A stream whose prompt is 100 token ids that begin alike; returns once its first bytes are there."""
    ask = {"model": "m", "prompt": [*COMMON, 7, 7, 7, last], "max_tokens": 16, "stream": True, **members}
    data = json.dumps(ask).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", int(stand.service.url.rsplit(":", 1)[1]))
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(data) + data)
    head = await reader.readuntil(b"\r\n\r\n")
    assert b" 200 " in head, head
    await reader.readuntil(b"data:")
    return writer


async def state_of(stand: Stand) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=stand.service.admin_url) as admin:
        state: dict[str, Any] = (await admin.get("/v1/state")).json()
        metrics = (await admin.get("/metrics")).text
    for line in metrics.splitlines():
        name = line.partition("{")[0]
        if name in ("kvbudget_shared_prefix_blocks", "kvbudget_learned_answers", "kvbudget_learned_margin"):
            state[name] = float(line.rpartition(" ")[2])
    return state


def test_two_requests_with_a_common_beginning_reserve_less_than_twice(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        stand.engine.hold = True
        async with streams(stand, {}):
            assert stand.promised() == IN_ALL
        async with streams(stand, {}, {}):
            assert stand.promised() == 2 * IN_ALL - 6
            state = await state_of(stand)
            assert state["prefix_credit"] == {"sharing": "computed", "trusted": True, "shared_blocks": 6}
            assert state["kvbudget_shared_prefix_blocks"] == 6
            assert (state["kvbudget_learned_answers"], state["kvbudget_learned_margin"]) == (0, 0)
            assert state["learned"] == {"ready": False, "answers": 0.0, "margin": 0.0}
        async with streams(stand, {}, {"cache_salt": "own"}):
            assert stand.promised() == 2 * IN_ALL

    play(scene, CACHED)


@pytest.mark.parametrize("change", ["engine has no prefix cache", "engine does not tell", "switched off"])
def test_nothing_is_credited_where_the_engine_does_not_say_that_it_shares(play: Play, change: str) -> None:
    async def scene(stand: Stand) -> None:
        stand.engine.hold = True
        async with streams(stand, {}, {}):
            assert stand.promised() == 2 * IN_ALL
            assert (await state_of(stand))["prefix_credit"]["sharing"] == "off"

    labels = {"engine has no prefix cache": ',enable_prefix_caching="False"', "engine does not tell": ""}
    told = CACHED["cache_labels"] if change == "switched off" else f'kv_cache_size_tokens="None"{labels[change]}'
    config = {"sharing": Sharing.OFF} if change == "switched off" else {}
    play(scene, {**CACHED, "cache_labels": told}, **config)


@pytest.mark.parametrize(("cached", "trusted"), [(96, True), (0, False), (None, True)])
def test_what_the_engine_says_it_had_cached_decides_whether_credit_goes_on(
    play: Play, cached: int | None, trusted: bool
) -> None:
    async def scene(stand: Stand) -> None:
        stand.engine.hold = True
        async with streams(stand, {}, {}, {}):
            stand.engine.usage_cached_tokens = cached
            stand.engine.release.set()
            await stand.until(lambda: stand.promised() == 0)
            assert stand.outcomes() == {"finished": 3}
            assert stand.service.gate.trust.given is trusted

    play(scene, CACHED)


def test_a_tenant_at_its_own_limit_is_told_which_one_it_is_and_others_are_served(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        def acme(**body: object) -> Any:
            return stand.chat(headers={"x-kvbudget-tenant": "acme"}, **body)

        too_large = await acme(max_tokens=100)
        assert (too_large.status_code, too_large.json()["error"]["code"]) == (400, "tenant_limit_exceeded")
        assert "max_blocks" in too_large.json()["error"]["message"]
        stand.engine.hold = True
        first = asyncio.create_task(acme())
        await stand.until(lambda: stand.promised() == 2)
        busy = await acme()
        assert (busy.status_code, busy.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert 1 <= int(busy.headers["retry-after"]) <= 120
        state = await state_of(stand)
        assert state["tenants"]["acme"]["blocks_reserved"] == 2
        assert state["tenants"]["acme"]["max_blocks"] == 3
        assert state["tenants"]["*"] == {"weight": 2.0, "max_blocks": None, "tokens_per_minute": 60}
        assert state["classes"] == {"-5": {"reserved_blocks": 1, "reserved_slots": 0}}
        stand.engine.release.set()
        assert (await first).status_code == 200
        others = [await stand.chat(headers={"x-kvbudget-tenant": "b"}) for _ in range(3)]
        assert [answer.status_code for answer in others] == [200, 200, 429]
        message = others[-1].json()["error"]["message"]
        assert "tokens_per_minute" in message
        assert 1 <= int(others[-1].headers["retry-after"]) <= 60
        assert stand.refusals() == {"tenant_too_large": 1, "tenant_blocks": 1, "tenant_tokens": 1}

    tenants = {
        "acme": TenantLimits(max_blocks=Blocks(3)),
        ALL_OTHERS: TenantLimits(weight=2.0, tokens_per_minute=Tokens(60)),
    }
    classes = {-5: ClassLimits(reserved_blocks=1)}
    play(scene, {"count": 10, "usage_prompt_tokens": 10}, tenants=tenants, classes=classes, queue_requests=0)


def test_a_limit_that_only_the_upper_bound_of_an_uncounted_prompt_exceeds_is_not_the_client_s_fault(play: Play) -> None:
    async def scene(stand: Stand) -> None:
        refused = await stand.chat()
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "count_failed")
        assert "retry-after" in refused.headers

    play(scene, {"count": -1}, tenants={ALL_OTHERS: TenantLimits(max_blocks=Blocks(1))})


ENGINE = EngineSettings(num_blocks=120, block_size=16, max_model_len=512, step_cost_s=0.001, mean_output_tokens=24)


def test_the_learned_policy_learns_keeps_it_and_gives_everything_back_after_a_storm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "learned.json"

    async def storm(requests: int) -> GateService:
        engine = await start_engine(ENGINE)
        gate = GateConfig(abort_tail_ns=10_000_000)
        settings = ServiceSettings(engine.url, port=0, admin_port=0, gate=gate, learned_state=str(path))
        service = await start_service(settings)
        try:
            async with httpx.AsyncClient(base_url=service.url, timeout=20, limits=EACH_ITS_OWN) as client:
                statuses = await asyncio.gather(*(one(client, number) for number in range(requests)))
            async with asyncio.timeout(10):
                while service.gate.promised_blocks() or len(service.gate.queue) or list(service.gateway.flows):
                    await asyncio.sleep(0.01)
                while engine.engine.free_blocks != ENGINE.num_blocks - 1:
                    await asyncio.sleep(0.01)
            assert set(statuses) <= {0, 200, 429}
            assert statuses.count(200) > requests // 3
        finally:
            await service.close()
            await engine.close()
        assert service.gateway.metrics.ledger_errors == 0
        assert len(service.gate.ledger) == 0
        return service

    async def one(client: httpx.AsyncClient, number: int) -> int:
        await asyncio.sleep(number * 0.003)
        leaves = number % 4 == 0
        body = {"messages": [{"role": "user", "content": "word " * (number % 40)}], "max_tokens": 200, "stream": True}
        headers = {"x-kvbudget-tenant": f"t{number % 3}"}
        async with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
            got = 0
            async for line in answer.aiter_lines():
                got += bool(line)
                if leaves and got > number % 12:
                    return 0
            return answer.status_code

    with caplog.at_level(logging.INFO, "kvbudget.learned"):
        service = uvloop.run(storm(120))
        assert service.gate.config.policy is Policy.LEARNED
        assert service.gate.learned.ready
        kept = json.loads(path.read_text())
        assert kept["schema"] == "kvbudget.learned/1"
        again = uvloop.run(storm(10))
    assert "goes on from" in caplog.text
    assert again.gate.learned.lengths.answers > service.gate.learned.lengths.answers * 0.9


def test_an_engine_of_our_own_is_known_to_share_nothing() -> None:
    async def run() -> tuple[RunningEngine, bool]:
        engine = await start_engine(ENGINE)
        service = await start_service(ServiceSettings(engine.url, port=0, admin_port=0))
        try:
            return engine, service.gateway.prefix_credit
        finally:
            await service.close()
            await engine.close()

    assert uvloop.run(run())[1] is False
