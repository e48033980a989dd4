"""Reads what a vLLM engine says of itself on /metrics: its pool, and what it holds now."""

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from kvbudget.engines.vllm_metrics import (
    CACHE_CONFIG_INFO,
    KV_CACHE_USAGE,
    NUM_DRAFTS,
    NUM_PREEMPTIONS,
    NUM_REQUESTS_RUNNING,
    NUM_REQUESTS_WAITING,
    EnginePool,
    pool_from_cache_config,
)

_WANTED = (
    CACHE_CONFIG_INFO, KV_CACHE_USAGE, NUM_DRAFTS, NUM_PREEMPTIONS, NUM_REQUESTS_RUNNING, NUM_REQUESTS_WAITING,
)  # fmt: skip
_LARGEST_COUNT = 1e15


@dataclass(frozen=True, slots=True)
class EngineReading:
    """One scrape. None: the engine did not export it. `usage` is the share of the pool in use, 0 to 1."""

    pool: EnginePool | None
    usage: float | None
    running: int | None
    waiting: int | None
    preemptions: int | None


def reading_of(metrics_text: str) -> EngineReading:
    """Parse a scrape; lines that are not wanted are never parsed (vLLM sends about 58 kB of them).

    Raises ValueError when a wanted line is damaged, InputError when the pool is one that we cannot account for.
    """
    lines = "\n".join(_wanted_lines(metrics_text)) + "\n"
    pool: EnginePool | None = None
    engines = 0
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(lines):
        for sample in family.samples:
            if sample.name == CACHE_CONFIG_INFO:
                pool = pool_from_cache_config(sample.labels)
                engines += 1
            else:
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value

    if pool is not None and (engines > 1 or NUM_DRAFTS in sums):
        # Data-parallel engines do not use one another's blocks; with EAGLE or MTP a request computes the last block
        # that it finds again (vLLM 0.32 v1/core/kv_cache_coordinator.py: drop_eagle_block).
        pool = pool._replace(prefix_caching=False)

    def within(name: str, most: float) -> float | None:
        """A gauge may hold NaN or infinity, and so may a broken exporter: that is unknown, not a number."""
        value = sums.get(name)
        return value if value is not None and 0 <= value <= most else None

    def count(name: str) -> int | None:
        value = within(name, _LARGEST_COUNT)
        return None if value is None else int(value)

    return EngineReading(
        pool,
        within(KV_CACHE_USAGE, 1.0),
        count(NUM_REQUESTS_RUNNING),
        count(NUM_REQUESTS_WAITING),
        count(NUM_PREEMPTIONS),
    )


def _wanted_lines(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if line.startswith(_WANTED) and line.partition("{")[0].partition(" ")[0] in _WANTED:
            yield line
