"""A gate behind a data plane that is played by hand, and before a scripted engine."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
import uvloop

from extproc_peer import Plane, plane
from kvbudget.edge.extproc.service import ExtProcService, Timeouts, start_extproc
from kvbudget.edge.http.limits import ServerLimits
from kvbudget.edge.service import ServiceSettings
from kvbudget.gate.gate import GateConfig
from kvbudget.gate.policies import Policy


@dataclass
class Stage:
    """The gate, and one connection to it. 32 blocks of 16 tokens each engine."""

    engines: list[Any]
    urls: list[str]
    service: ExtProcService
    plane: Plane

    def promised(self) -> int:
        return sum(one.member.gate.promised_blocks() for one in self.service.instances)

    def endpoint(self, number: int = 0) -> str:
        return self.urls[number].removeprefix("http://")

    async def until(self, what: Callable[[], bool], within_s: float = 30.0) -> None:
        async with asyncio.timeout(within_s):
            while not what():
                await asyncio.sleep(0.002)

    def outcomes(self) -> dict[str, int]:
        return {name: count for name, count in self.service.gateway.metrics.outcomes.items() if count}

    def refusals(self) -> dict[str, int]:
        return {name: count for name, count in self.service.gateway.metrics.refusals.items() if count}

    async def empty(self) -> None:
        """Nothing is left of any request."""
        counts = self.service.processor.counts
        await self.until(lambda: not list(self.service.gateway.flows) and not counts.streams and not self.promised())
        assert self.service.processor.buffered_bytes == 0


Scene = Callable[[Stage], Awaitable[None]]


@pytest.fixture
def stage(make_engine: Callable[..., Any]) -> Callable[..., None]:
    """`stage(scene, engines=2, engine={...}, timeouts=Timeouts(...), serve={settings}, **gate config)`: play an async
    scene. Nothing may be left of any request at its end."""

    def run(
        scene: Scene,
        engines: int = 1,
        engine: dict[str, object] | None = None,
        timeouts: Timeouts | None = None,
        limits: ServerLimits | None = None,
        serve: dict[str, object] | None = None,
        credentials: Any = None,
        **config: object,
    ) -> None:
        async def all_of_it() -> None:
            made = [make_engine(**(engine or {})) for _ in range(engines)]
            urls = [await one.start() for one in made]
            try:
                await played(urls, made)
            finally:  # whatever fails: uvloop does not close a loop that still listens
                for one in made:
                    await one.stop()

        async def played(urls: list[str], made: list[Any]) -> None:
            gate = GateConfig(**{"policy": Policy.WORST_CASE, "abort_tail_ns": 0, **config})  # type: ignore[arg-type]
            settings = ServiceSettings(
                backend_url=urls[0],
                instances=instances_of(urls) if engines > 1 else (),
                port=0,
                admin_port=0,
                gate=gate,
                default_max_tokens=64,
                server_limits=limits or ServerLimits(),
                **{"tokenizer": "bound"} | (serve or {}),  # type: ignore[arg-type]
            )
            service = await start_extproc(settings, timeouts or Timeouts())
            try:
                async with plane(service.url, credentials) as connection, asyncio.timeout(30):
                    playing = Stage(made, urls, service, connection)
                    await scene(playing)
                    await playing.empty()
                assert service.gateway.metrics.ledger_errors == 0
            finally:
                await service.close()
            assert all(one.member.gate.promised_blocks() == 0 for one in service.instances)

        uvloop.run(all_of_it())

    return run


def instances_of(urls: list[str]) -> tuple[Any, ...]:
    from kvbudget.edge.instances.settings import InstanceSettings

    return tuple(InstanceSettings(url) for url in urls)
