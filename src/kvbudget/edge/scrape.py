"""Reads what an engine says of itself on /metrics: which engine it is, its pool, and what it holds now."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from kvbudget.engines.other_metrics import (
    LLAMACPP,
    SGLANG,
    TGI,
    TRTLLM,
    llamacpp_reading,
    sglang_reading,
    tgi_reading,
    trtllm_reading,
)
from kvbudget.engines.readings import EngineReading, Sample, Sums
from kvbudget.engines.vllm_reading import VLLM, vllm_reading

__all__ = ["EngineReading", "reading_of"]

# Of the process, not of the engine: prometheus_client exports it wherever it runs on Linux.
_STARTED = "process_start_time_seconds"
_ADAPTERS: tuple[tuple[tuple[str, ...], Callable[[Sums], EngineReading]], ...] = (
    (VLLM, vllm_reading),
    (SGLANG, sglang_reading),
    (TGI, tgi_reading),
    (LLAMACPP, llamacpp_reading),
    (TRTLLM, trtllm_reading),
)
# Some collectors on the way write the colon as an underscore.
_WRITTEN = {name.replace(":", "_"): name for names, _ in _ADAPTERS for name in names}
_WANTED = frozenset([*_WRITTEN, *_WRITTEN.values(), _STARTED])
_BEGIN = tuple(sorted({name[:6] for name in _WANTED}))


def reading_of(metrics_text: str) -> EngineReading:
    """Parse a scrape; lines that are not wanted are never parsed (vLLM sends about 58 kB of them).

    Raises ValueError when a wanted line is damaged, InputError when the pool is one that we cannot account for.
    """
    lines = "\n".join(_wanted_lines(metrics_text)) + "\n"
    samples: list[Sample] = []
    started: float | None = None
    for family in text_string_to_metric_families(lines):
        for sample in family.samples:
            if sample.name == _STARTED:
                started = sample.value
            else:
                name = _WRITTEN.get(sample.name, sample.name)
                samples.append(Sample(name, sample.labels, sample.value))
    sums = Sums(samples)
    for names, read in _ADAPTERS:
        if any(name in sums for name in names):
            return replace(read(sums), started=started)
    return EngineReading(None, None, None, None, None, engine="", started=started)


def _wanted_lines(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if line.startswith(_BEGIN) and line.partition("{")[0].partition(" ")[0] in _WANTED:
            yield line
