"""Windows of an engine by hand: looks as lists, counters by name."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvbudget.diagnose.symptoms import Symptoms
from kvbudget.engines.readings import EnginePool
from kvbudget.engines.window import Counts, Distribution, EngineWindow, Gauges, Limits
from kvbudget.units import Blocks, Tokens

LOOKS = ("usage", "running", "waiting", "deferred", "swapped", "usage_by_kind", "usage_by_rank")
COUNTS = (
    "prompt_tokens", "generation_tokens", "prefix_queries", "prefix_hits", "preemptions", "recomputed_tokens",
    "finished", "rejected", "failed", "aborted",
)  # fmt: skip
LIMITS = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "prefix_caching",
    "smallest_block",
    "largest_block",
)


def pool_of(tokens: int, block: int = 16, concurrency: float | None = None) -> EnginePool:
    """A pool of one group."""
    blocks = tokens // block
    return EnginePool(
        Blocks(blocks + 1), Blocks(blocks), Tokens(block), tokens, concurrency, None, None, single_group=True,
        prefix_caching=True,
    )  # fmt: skip


def histogram(counts: Mapping[float, float], total: float) -> Distribution:
    """Counts by upper bound."""
    return Distribution(tuple(counts), tuple(counts.values()), total)


def window(*, looks: int = 2, engine: str = "vllm", pool: EnginePool | None = None, **given: Any) -> EngineWindow:
    """`usage=0.4` at every look, or `usage=(0.4, 0.5)`, one each; counters, limits and fields of the window by name."""
    seen = []
    for index in range(looks):
        figures = {name: _at(given[name], index) for name in LOOKS if name in given}
        seen.append(Gauges(at_s=10.0 * index, **figures))
    counts = {name: given[name] for name in COUNTS if name in given}
    limits = {name: given[name] for name in LIMITS if name in given}
    rest = {name: value for name, value in given.items() if name not in (*LOOKS, *COUNTS, *LIMITS)}
    return EngineWindow(
        engine=engine, looks=tuple(seen), counts=Counts(**counts), limits=Limits(pool=pool, **limits), **rest
    )


def symptoms(max_num_seqs: int | None = None, /, **given: Any) -> Symptoms:
    """Of such a window."""
    return Symptoms(window(**given), max_num_seqs)


def _at(value: Any, index: int) -> Any:
    return value[index] if isinstance(value, Sequence) and not isinstance(value, str) else value
