"""What was seen of an engine over a stretch of time: the one form that every engine's names and units are brought into.

It comes from two scrapes, a range of them out of a Prometheus server, or the periodic lines of a log. Tokens, requests
and blocks are counts, shares go from 0 to 1, times are seconds. None always means that it was not told; 0 was told.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kvbudget.engines.readings import EnginePool
from kvbudget.units import Tokens


class Gauges(NamedTuple):
    """One look. `usage`: share of the pool in use, 0 to 1; evictable cached blocks are free.

    `usage_by_kind`: of the sub-pools of an engine that has several ("full", "sliding", "mamba"). `waiting` counts all
    that wait; `deferred` those of them that wait for something else than room (LoRA slot, KV transfer, grammar).
    `usage_by_rank`: of data-parallel replicas that one server tells together (`usage` is then that of all).
    `swapped`: requests that were paused or swapped out. `at_s`: when, on a clock whose zero means nothing.
    """

    at_s: float | None = None
    usage: float | None = None
    usage_by_kind: Mapping[str, float] = {}
    running: int | None = None
    waiting: int | None = None
    deferred: int | None = None
    swapped: int | None = None
    usage_by_rank: Mapping[str, float] = {}


@dataclass(frozen=True, slots=True)
class Distribution:
    """What a histogram counted within the window. `bounds` are upper bounds, ascending, the last one infinite; `counts`
    are those of each bucket alone, not cumulative."""

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    total: float

    @property
    def count(self) -> float:
        """How many were observed."""
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        """None when nothing was observed."""
        return self.total / self.count if self.count else None

    def quantile(self, share: float) -> tuple[float, float] | None:
        """(low, high): the bucket in which the quantile lies; a histogram does not know more."""
        wanted = share * self.count
        low = 0.0
        for bound, count in zip(self.bounds, self.counts, strict=True):
            wanted -= count
            if count and wanted <= 0:
                return low, bound
            low = bound
        return None


@dataclass(frozen=True, slots=True)
class Counts:
    """What counters grew by within the window. `finished` and `rejected` by the engine's own reason.

    `prefix_queries` and `prefix_hits` are in tokens. `aborted`: requests whose client left, as far as it is told.
    `recomputed_tokens`: computed again after a preemption or retraction.
    """

    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    prefix_queries: float | None = None
    prefix_hits: float | None = None
    preemptions: float | None = None
    recomputed_tokens: float | None = None
    finished: Mapping[str, float] = field(default_factory=dict)
    rejected: Mapping[str, float] = field(default_factory=dict)
    failed: float | None = None
    aborted: float | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """What the engine is configured to. `pool` by its own word."""

    pool: EnginePool | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: Tokens | None = None
    prefix_caching: bool | None = None
    smallest_block: Tokens | None = None
    largest_block: Tokens | None = None


@dataclass(frozen=True, slots=True)
class EngineWindow:
    """One engine, or one data-parallel replica of it, over the window.

    `where`: the labels that tell it from others ("engine=1", "instance=10.0.0.7:8000"), "" when there is one.
    `window_s`: None for one look, when `counts` and `times` are since the engine's start (`since_start`). `restarted`:
    its counters began anew within the window, and what they tell is of the time after. `looks`: oldest first, at least
    one. `missing`: what this engine or version does not export, each with what to use instead. `notes`: what was read
    in an unusual way, such as a removed name. `extra`: figures of one engine that a finding may quote.
    `computed_lengths`: prompt tokens of a request that were computed, what the cache had left out. `totals`: what the
    same counters stand at since the engine's start; old news that a window without traffic is read against.
    """

    engine: str
    where: str = ""
    version: str | None = None
    model: str | None = None
    window_s: float | None = None
    since_start: bool = False
    restarted: bool = False
    looks: tuple[Gauges, ...] = (Gauges(),)
    counts: Counts = field(default_factory=Counts)
    limits: Limits = field(default_factory=Limits)
    queue_s: Distribution | None = None
    ttft_s: Distribution | None = None
    gap_s: Distribution | None = None
    e2e_s: Distribution | None = None
    prompt_lengths: Distribution | None = None
    output_lengths: Distribution | None = None
    computed_lengths: Distribution | None = None
    max_tokens: Distribution | None = None
    step_tokens: Distribution | None = None
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    extra: Mapping[str, float] = field(default_factory=dict)
    totals: Counts = field(default_factory=Counts)

    @property
    def last(self) -> Gauges:
        """The newest look."""
        return self.looks[-1]


@dataclass(frozen=True, slots=True)
class GateWindow:
    """What our own gate tells of one instance over the window, in blocks and requests.

    `promised`, `held` (the engine's word) and `elsewhere` (what by-passed us) are three numbers and stay three.
    `policy`: by which it admits; "" where that is not told.
    """

    instance: str
    window_s: float | None = None
    pool_blocks: int | None = None
    promised_blocks: int | None = None
    held_blocks: int | None = None
    elsewhere_blocks: int | None = None
    margin_blocks: int | None = None
    queue_requests: int | None = None
    queue_tokens: int | None = None
    outcomes: Mapping[str, float] = field(default_factory=dict)
    refusals: Mapping[str, float] = field(default_factory=dict)
    token_drift: float | None = None
    policy: str = ""


@dataclass(frozen=True, slots=True)
class Observation:
    """All that one or several sources told. `sources` in words, for the report; `problems`: what could not be read."""

    engines: tuple[EngineWindow, ...] = ()
    gates: tuple[GateWindow, ...] = ()
    sources: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
