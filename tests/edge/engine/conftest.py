import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import uvloop

from kvbudget.edge.engine.server import RunningEngine, start_engine
from kvbudget.edge.engine.settings import EngineSettings


@dataclass(frozen=True)
class Bench:
    """An engine that runs, and a client that is not ours."""

    running: RunningEngine
    client: httpx.AsyncClient

    async def until(self, happened: Callable[[], bool], seconds: float = 5.0) -> None:
        """Let the loop run until it happened; fails when it does not in time."""
        async with asyncio.timeout(seconds):
            while not happened():
                await asyncio.sleep(0)

    @asynccontextmanager
    async def raw(self, path: str, body: dict[str, Any]) -> AsyncIterator[asyncio.StreamReader]:
        """A request on a bare socket; leaving the block breaks the connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.running.port)
        data = json.dumps(body).encode()
        writer.write(b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (path.encode(), len(data)) + data)
        try:
            yield reader
        finally:
            writer.transport.abort()

    async def events(self, path: str, body: dict[str, Any]) -> list[str]:
        """The data of each server-sent event."""
        answer = await self.client.post(path, json={**body, "stream": True})
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        blocks = answer.text.split("\n\n")
        assert blocks.pop() == ""
        assert all(block.startswith("data: ") for block in blocks)
        return [block[6:] for block in blocks]

    async def metric(self, name: str, **labels: str) -> float:
        """One sample of /metrics."""
        from prometheus_client.parser import text_string_to_metric_families

        text = (await self.client.get("/metrics")).text
        values = [
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        assert len(values) == 1, f"{name}{labels}: {values}"
        return values[0]


Scenario = Callable[[Bench], Awaitable[None]]
Run = Callable[..., None]


@pytest.fixture
def with_engine() -> Run:
    """Runs a scenario against a fresh engine on a free port, then closes it and checks that nothing is held."""

    def run(scenario: Scenario, *, on_uvloop: bool = True, **settings: Any) -> None:
        async def main() -> None:
            running = await start_engine(EngineSettings(**settings))
            try:
                async with httpx.AsyncClient(base_url=running.url, timeout=20) as client:
                    await scenario(Bench(running, client))
            finally:
                await running.close()
            assert running.engine.free_blocks == running.engine.block_pool.usable_blocks

        (uvloop.run if on_uvloop else asyncio.run)(main())

    return run
