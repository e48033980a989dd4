"""Demand is what runs, waits and was refused; what is foretold of it is on the admin port, never on the data path."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from kvbudget.edge.control.demand import FORECAST_GAUGES, DemandWatch

MINUTE = 60 * 10**9
BODY = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 60}  # 100 + 60 tokens: 10 blocks


class Clock:
    """Nanoseconds that only a test moves."""

    def __init__(self) -> None:
        self.now = 5 * MINUTE

    def __call__(self) -> int:
        return self.now


def values_of(families: list[Metric]) -> dict[tuple[str, str], float]:
    return {
        (sample.name, sample.labels.get("bound", "")): sample.value for family in families for sample in family.samples
    }


def look_for_minutes(watch: DemandWatch, clock: Clock, minutes: int) -> None:
    for _ in range(minutes * 4):
        watch.look()
        clock.now += MINUTE // 4
    watch.look()


def test_what_runs_and_waits_is_demand(play: Callable[..., None]) -> None:
    async def scene(stand: Any) -> None:
        watch = DemandWatch(stand.service.gateway, Clock())
        sent = [asyncio.create_task(stand.client.post("/v1/chat/completions", json=BODY)) for _ in range(4)]
        await stand.until(lambda: len(stand.engine.requests) == 3 and len(stand.service.gate.queue) == 1)
        (one,) = watch.document()["instances"]
        assert one["demand"] == {"promised": 480, "waiting": 160, "refused": 0}
        assert (one["demand_tokens"], one["capacity_tokens"]) == (640, 512)
        assert one["drain"]["free_blocks"] == 2
        assert 2 <= one["drain"]["free_blocks_in_10_s"] <= one["drain"]["free_blocks_in_60_s"] <= 32
        assert values_of(watch.families()) == {("kvbudget_demand_tokens", ""): 640}
        stand.engine.release.set()
        await asyncio.gather(*sent)

    play(scene, {"count": 100, "hold": True})


def test_what_was_refused_counts_for_as_long_as_it_would_have_lived(play: Callable[..., None]) -> None:
    async def scene(stand: Any) -> None:
        clock = Clock()
        watch = DemandWatch(stand.service.gateway, clock)
        sent = [asyncio.create_task(stand.client.post("/v1/chat/completions", json=BODY)) for _ in range(3)]
        await stand.until(lambda: len(stand.engine.requests) == 3)
        for _ in range(10):
            assert (await stand.client.post("/v1/chat/completions", json=BODY)).status_code == 429
        stand.engine.release.set()
        await asyncio.gather(*sent)
        expectation = stand.service.gate.expectation
        lived_s = 60 * expectation.used_share * expectation.ns_per_token / 1e9
        look_for_minutes(watch, clock, 1)
        (one,) = watch.document()["instances"]
        assert one["demand"] == {"promised": 0, "waiting": 0, "refused": int(10 * 160 * lived_s / 60)}
        look_for_minutes(watch, clock, 1)
        assert watch.document()["instances"][0]["demand_tokens"] == 0

    play(scene, {"count": 100, "hold": True}, queue_requests=0)


def test_whoever_is_over_its_own_limit_is_no_demand(play: Callable[..., None]) -> None:
    async def scene(stand: Any) -> None:
        too_long = {**BODY, "messages": [{"role": "user", "content": "x" * 9000}]}
        assert (await stand.client.post("/v1/chat/completions", json=too_long)).status_code == 400
        assert stand.service.gateway.metrics.refused_block_tokens == 0

    play(scene)


def test_every_minute_there_is_a_new_forecast(play: Callable[..., None]) -> None:
    async def scene(stand: Any) -> None:
        clock = Clock()
        watch = DemandWatch(stand.service.gateway, clock)
        assert watch.document()["instances"][0]["forecast"] is None
        look_for_minutes(watch, clock, 3)
        (one,) = watch.document()["instances"]
        assert one["minutes"] == [0, 0, 0]
        assert (one["forecast"]["minute"], one["forecast"]["maturity"]) == (7, "cold")
        assert (one["forecast"]["capacity_tokens"], one["forecast"]["limit_tokens"]) == (512, 486)
        assert set(one["score"]) >= {"forecast", "level_0.75", "interval"}
        names = {name for name, _ in values_of(watch.families())}
        assert names == set(FORECAST_GAUGES)

    play(scene)


def test_a_minute_without_engine_is_one_that_nothing_is_known_of(play: Callable[..., None]) -> None:
    async def scene(stand: Any) -> None:
        clock = Clock()
        watch = DemandWatch(stand.service.gateway, clock)
        look_for_minutes(watch, clock, 1)
        stand.service.gate.backend_up = False
        clock.now += 2 * MINUTE  # looks stopped as well
        look_for_minutes(watch, clock, 2)
        stand.service.gate.backend_up = True
        (one,) = watch.document()["instances"]
        assert one["minutes"] == [0, 0, None, None]
        assert one["forecast"]["filled"] == 3

    play(scene)


def test_the_admin_port_tells_it(play: Callable[..., None]) -> None:
    async def scene(stand: Any) -> None:
        async with httpx.AsyncClient(base_url=stand.service.admin_url) as admin:
            document = (await admin.get("/v1/forecast")).json()
            assert document["schema"] == "kvbudget.live_forecast/1"
            text = (await admin.get("/metrics")).text
            assert f'kvbudget_demand_tokens{{instance="{stand.service.backend.name}"}} 0.0' in text
            assert "/v1/forecast" in (await admin.get("/")).json()["paths"]

    play(scene)


@pytest.mark.parametrize("every_s", [0.01])
def test_the_watch_looks_by_itself_and_outlives_a_failed_look(play: Callable[..., None], every_s: float) -> None:
    async def scene(stand: Any) -> None:
        looks = 0

        def failing() -> int:
            nonlocal looks
            looks += 1
            if looks == 3:
                raise RuntimeError("no clock")
            return 0

        watch = DemandWatch(stand.service.gateway, failing, every_s=every_s)
        watch.start()
        await stand.until(lambda: looks > 4)
        await watch.close()
        await watch.close()

    play(scene)


def test_what_is_told_is_lawful_exposition(play: Callable[..., None]) -> None:
    async def scene(stand: Any) -> None:
        clock = Clock()
        watch = DemandWatch(stand.service.gateway, clock)
        look_for_minutes(watch, clock, 1)

        class Told(Collector):
            def collect(self) -> list[Metric]:
                return watch.families()

        registry = CollectorRegistry()
        registry.register(Told())
        text = generate_latest(registry).decode()
        name = stand.service.backend.name
        assert f'kvbudget_forecast_demand_tokens{{bound="high",instance="{name}"}}' in text

    play(scene)
