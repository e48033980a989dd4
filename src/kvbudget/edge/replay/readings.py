"""Decides what a replay reads from the engine's own /metrics: preemptions over the run and the mean use of the pool."""

import asyncio
import re
from collections.abc import Mapping

import aiohttp

from kvbudget.edge.replay.report import EngineReadings

PREEMPTIONS = "vllm:num_preemptions_total"  # counter, vLLM 0.32 v1/metrics/loggers.py
POOL_USE = "vllm:kv_cache_usage_perc"  # gauge, 0 to 1, vLLM 0.32 v1/metrics/loggers.py
SCRAPE_TIMEOUT_S = 5.0
MAX_METRICS_BYTES = 16 * 1024 * 1024
_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{.*\})?\s+([^\s]+)", re.MULTILINE)


class MetricsReader:
    """Scrapes one /metrics address; a scrape that fails is left out, the run is never disturbed by it."""

    def __init__(self, session: aiohttp.ClientSession, url: str, headers: Mapping[str, str]) -> None:
        self._session = session
        self._url = url
        self._headers = dict(headers)
        self._first: float | None = None
        self._last: float | None = None
        self._uses: list[float] = []

    async def scrape(self) -> bool:
        """Takes one sample; False when the address gave none."""
        try:
            timeout = aiohttp.ClientTimeout(total=SCRAPE_TIMEOUT_S)
            async with self._session.get(self._url, headers=self._headers, timeout=timeout) as answer:
                if answer.status != 200:
                    return False
                text = (await answer.content.read(MAX_METRICS_BYTES)).decode("utf-8", "replace")
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            return False
        samples = parse_samples(text)
        preemptions, uses = samples[PREEMPTIONS], samples[POOL_USE]
        if preemptions:
            self._last = sum(preemptions)
            self._first = self._last if self._first is None else self._first
        if uses:
            self._uses.append(sum(uses) / len(uses))
        return bool(preemptions or uses)

    async def sample_every(self, period_s: float) -> None:
        """Samples until it is cancelled."""
        while True:
            await asyncio.sleep(period_s)
            await self.scrape()

    def readings(self) -> EngineReadings:
        """What was read. A counter that fell (the engine started anew) is not known."""
        preemptions = None
        if self._first is not None and self._last is not None and self._last >= self._first:
            preemptions = round(self._last - self._first)
        return EngineReadings(preemptions, sum(self._uses) / len(self._uses) if self._uses else None)


def parse_samples(text: str) -> dict[str, list[float]]:
    """The values of the two metrics that a replay reads, one per label set, from Prometheus text."""
    values: dict[str, list[float]] = {PREEMPTIONS: [], POOL_USE: []}
    for match in _SAMPLE.finditer(text):
        if match[1] in values:
            try:
                values[match[1]].append(float(match[2]))
            except ValueError:
                continue
    return values
