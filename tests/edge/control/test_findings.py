"""The gate tells what it finds of its engines, on the admin port alone, and by the same rules as kvbudget diagnose."""

import asyncio
from types import SimpleNamespace
from typing import Any

import httpx

from kvbudget.diagnose.verdict import CODES
from kvbudget.edge.control.findings import Findings
from snapshots import vllm

Stand = Any  # the class lives in conftest.py, which cannot be imported
NS = 1_000_000_000


def text(**figures: Any) -> bytes:
    return vllm(figures).encode()


async def findings_of(stand: Stand) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=stand.service.admin_url, timeout=10) as admin:
        found = (await admin.get("/v1/findings")).json()
    assert found["schema"] == "kvbudget.findings/1"
    return dict(found["instances"][0])


def test_a_full_pool_is_found_from_the_looks_that_the_gate_takes_anyway(play: Any) -> None:
    async def scene(stand: Stand) -> None:
        stand.engine.metrics = text(usage=0.99, running=40, waiting=27, preemptions=99)
        await stand.service.backend.look()
        found = await findings_of(stand)
        assert (found["instance"], found["verdict"]) == (stand.service.backend.name, "pool_full")
        assert found["findings"][0]["evidence"]["preemptions"] == 90

    play(scene, {"metrics": text(usage=0.99, running=40, waiting=25, preemptions=9)})


def test_the_metric_is_one_for_what_holds_and_zero_for_every_other_code(play: Any) -> None:
    async def scene(stand: Stand) -> None:
        await stand.service.backend.look()
        async with httpx.AsyncClient(base_url=stand.service.admin_url, timeout=10) as admin:
            metrics = (await admin.get("/metrics")).text
        lines = [line for line in metrics.splitlines() if line.startswith("kvbudget_finding{")]
        name = stand.service.backend.name
        assert f'kvbudget_finding{{code="healthy",instance="{name}"}} 1.0' in lines
        assert f'kvbudget_finding{{code="pool_full",instance="{name}"}} 0.0' in lines
        assert len(lines) == len(CODES)

    play(scene, {"metrics": text(usage=0.3)})


def test_an_engine_that_is_away_is_not_judged(play: Any) -> None:
    async def scene(stand: Stand) -> None:
        stand.engine.healthy = False
        await stand.until(lambda: not stand.service.gate.backend_up)
        found = await findings_of(stand)
        assert found["verdict"] == "insufficient_data"
        assert "/health" in found["findings"][0]["message"]

    play(scene, {"metrics": text()})


def test_the_gate_s_own_full_budget_is_found_while_the_engine_has_room(play: Any) -> None:
    async def scene(stand: Stand) -> None:
        first = asyncio.create_task(stand.chat(max_tokens=400))
        second = asyncio.create_task(stand.chat(max_tokens=400))
        await stand.until(lambda: len(stand.service.gate.queue) == 1)
        assert (await findings_of(stand))["verdict"] == "budget_full"
        stand.engine.release.set()
        await asyncio.gather(first, second)

    plain = text(usage=0.2, running=1, blocks=33, prompt=0, queries=0, hits=0, generated=0)
    play(scene, {"count": 100, "hold": True, "metrics": plain})


def kept_of(seconds: int, every: int) -> list[float]:
    backend = SimpleNamespace(on_scrape=None)
    now = [0]
    findings = Findings(SimpleNamespace(backends={"a": backend}), lambda: now[0])  # type: ignore[arg-type]
    for at in range(0, seconds, every):
        now[0] = at * NS
        backend.on_scrape("text")
    return [kept.at_s for kept in findings._kept["a"]]


def test_looks_of_a_minute_are_kept_some_seconds_apart_and_the_newest_always() -> None:
    kept = kept_of(600, 2)
    assert kept[-1] == 598
    assert 60 <= kept[-1] - kept[0] <= 76
    assert len(kept) <= 7
    assert kept_of(2, 2) == [0]
    assert kept_of(1_000, 100) == [800, 900]
