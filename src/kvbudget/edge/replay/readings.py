"""Decides what a replay reads from the engine's own /metrics: preemptions over the run and the mean use of the pool.

A gate's tell the latter alone.
"""

import asyncio
from collections.abc import Mapping

import aiohttp

from kvbudget.edge.replay.report import EngineReadings
from kvbudget.engines.metrics.exposition import parsed
from kvbudget.engines.metrics.gate import HELD, POOL
from kvbudget.engines.readings import plain_name
from kvbudget.engines.vllm_metrics import KV_CACHE_USAGE, NUM_PREEMPTIONS

PREEMPTIONS, POOL_USE = NUM_PREEMPTIONS, KV_CACHE_USAGE
SCRAPE_TIMEOUT_S = 5.0
MAX_METRICS_BYTES = 16 * 1024 * 1024
_PLAIN = {plain_name(name): name for name in (PREEMPTIONS, POOL_USE)}


class MetricsReader:
    """Scrapes one /metrics address; a scrape that fails is left out, the run is never disturbed by it."""

    def __init__(self, session: aiohttp.ClientSession, url: str, headers: Mapping[str, str]) -> None:
        self._session = session
        self._url = url
        self._headers = dict(headers)
        self._first: float | None = None
        self._last: float | None = None
        self._uses: list[float] = []
        self.is_gate = False  # what answered was a gate

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
        if not uses and (use := gate_s_use(text)) is not None:
            self.is_gate, uses = True, [use]
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
    for sample in parsed(text, _PLAIN.__contains__).samples:
        values[_PLAIN[sample.name]].append(sample.value)
    return values


def gate_s_use(text: str) -> float | None:
    """By a gate's metrics, the part of its pools that the engines hold; None: it is not a gate's, or not known."""
    values: dict[str, float] = {HELD: -1.0, POOL: 0.0}
    for sample in parsed(text, (HELD, POOL).__contains__).samples:
        values[sample.name] = max(0.0, values[sample.name]) + sample.value
    return values[HELD] / values[POOL] if values[HELD] >= 0 < values[POOL] else None
