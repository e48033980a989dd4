"""A gate takes requests once it has looked at its engines, so that nobody gets a 503 of an engine that is well."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest

from kvbudget.cli.serving.ready_line import ready_of
from kvbudget.edge.instances.settings import InstanceSettings
from kvbudget.edge.service import GateService, ServiceSettings, start_service
from kvbudget.gate.config import GateConfig
from kvbudget.gate.policies import Policy


def settings(*urls: str) -> ServiceSettings:
    return ServiceSettings(backend_url=urls[0], port=0, admin_port=0, gate=GateConfig(policy=Policy.WORST_CASE))


def watched_opening(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the engine was known to be up, whenever a gate began to listen."""
    seen: list[bool] = []
    opened = GateService.open_data_plane

    async def opening(service: GateService) -> Any:
        seen.append(service.fleet.backend_up)
        return await opened(service)

    monkeypatch.setattr(GateService, "open_data_plane", opening)
    return seen


def test_the_first_look_comes_before_the_first_request(
    make_engine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = watched_opening(monkeypatch)

    async def scene() -> None:
        engine = make_engine(count=10)
        service = await start_service(settings(await engine.start()), look_for_s=0)
        try:
            async with httpx.AsyncClient(base_url=service.url, timeout=10) as client:
                answer = await client.post("/v1/completions", json={"model": "m", "prompt": "hi", "max_tokens": 4})
            assert answer.status_code == 200
        finally:
            await service.close()
            await engine.stop()

    asyncio.run(scene())
    assert seen == [True]


async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Takes whatever comes, and says nothing."""
    try:
        while await reader.read(65536):
            pass
    finally:
        writer.close()


def test_an_engine_that_hangs_is_not_waited_for_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watched_opening(monkeypatch)

    async def scene() -> None:
        silent = await asyncio.start_server(silence, "127.0.0.1", 0)
        port = silent.sockets[0].getsockname()[1]
        began = time.monotonic()
        service = await start_service(settings(f"http://127.0.0.1:{port}"), look_for_s=0)
        took_s = time.monotonic() - began
        try:
            async with httpx.AsyncClient(base_url=service.url, timeout=10) as client:
                answer = await client.post("/v1/completions", json={"model": "m", "prompt": "hi", "max_tokens": 4})
            assert (answer.status_code, answer.headers["x-should-retry"]) == (503, "true")
            assert 0.9 < took_s < 8
        finally:
            await service.close()
            silent.close()
            await asyncio.sleep(0.1)

    asyncio.run(scene())
    assert seen == [False]


def test_an_engine_that_is_away_is_known_at_once() -> None:
    async def scene() -> float:
        began = time.monotonic()
        service = await start_service(settings("http://127.0.0.1:1"), look_for_s=0)
        await service.close()
        return time.monotonic() - began

    assert asyncio.run(scene()) < 5  # 0.02 s where nothing else runs


def test_a_gate_is_ready_where_any_of_its_engines_is_up(make_engine: Callable[..., Any]) -> None:
    async def scene() -> None:
        engine = make_engine(count=10)
        url = await engine.start()
        named = (InstanceSettings("http://127.0.0.1:1", name="a"), InstanceSettings(url, name="b"))
        both = replace(settings("http://127.0.0.1:1"), instances=named)
        service = await start_service(both, look_for_s=0)
        try:
            ready = ready_of(service)
            assert (ready["backend_up"], ready["problem"]) == (True, "")
            assert [one["up"] for one in ready["instances"]] == [False, True]  # type: ignore[attr-defined]
        finally:
            await service.close()
            await engine.stop()

    asyncio.run(scene())


def test_a_start_that_waits_says_at_once_for_whom(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        starting = asyncio.ensure_future(start_service(settings("http://127.0.0.1:1"), look_for_s=30))
        async with asyncio.timeout(20):
            while "waiting for" not in caplog.text:
                await asyncio.sleep(0.01)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)

    with caplog.at_level("WARNING", "kvbudget.service"):
        asyncio.run(scene())
    assert "waiting for the engine at http://127.0.0.1:1 (" in caplog.text
    assert "at most 30 s" in caplog.text
