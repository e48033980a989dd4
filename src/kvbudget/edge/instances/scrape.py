"""Reads what an engine says of itself on /metrics: which engine it is, its pool, and what it holds now."""

from collections.abc import Callable
from dataclasses import replace

from kvbudget.engines.metrics import llamacpp, sglang, tgi, trtllm, vllm
from kvbudget.engines.metrics.exposition import parsed
from kvbudget.engines.metrics.span import STARTED
from kvbudget.engines.readings import EngineReading, Sums, plain_name

__all__ = ["EngineReading", "reading_of"]

_ADAPTERS: tuple[tuple[tuple[str, ...], Callable[[Sums], EngineReading]], ...] = (
    (vllm.READ_BY_GATE, vllm.reading),
    (sglang.READ_BY_GATE, sglang.reading),
    (tgi.READ_BY_GATE, tgi.reading),
    (llamacpp.READ_BY_GATE, llamacpp.reading),
    (trtllm.READ_BY_GATE, trtllm.reading),
)
_WANTED = frozenset([*(plain_name(name) for names, _ in _ADAPTERS for name in names), STARTED])


def reading_of(metrics_text: str) -> EngineReading:
    """Parse a scrape; lines that are not wanted are never parsed (vLLM sends about 58 kB of them).

    Raises ValueError when a wanted line is damaged, InputError when the pool is one that we cannot account for.
    """
    told = parsed(metrics_text, _WANTED.__contains__)
    if told.damaged:
        raise ValueError(f"{told.damaged} damaged lines in a scrape")
    sums = Sums(told.samples)
    started = [sample.value for sample in sums.samples(STARTED)]
    last = started[-1] if started else None
    for names, read in _ADAPTERS:
        if any(name in sums for name in names):
            return replace(read(sums), started=last)
    return EngineReading(None, None, None, None, None, engine="", started=last)
