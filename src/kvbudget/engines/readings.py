"""What one scrape of an engine's metrics tells the gate, whatever the engine."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple

from kvbudget.engines.vllm_metrics import EnginePool
from kvbudget.units import Blocks, Tokens

__all__ = ["EnginePool", "EngineReading", "Sample", "Sums", "plain_name", "pool_of_tokens", "within"]

_LARGEST_COUNT = 1e15


def plain_name(name: str) -> str:
    """A metric's name as it is compared: some collectors write the colon as an underscore, and Ray puts itself before
    vLLM's names."""
    name = name.replace(":", "_")
    return name[4:] if name.startswith("ray_vllm_") else name


class Sample(NamedTuple):
    """One line of a scrape."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class EngineReading:
    """One scrape. None: the engine did not export it, or no number that can be.

    `usage` is the share of the pool in use, 0 to 1; `usage_is_reserved`: rather of what the engine has reserved for
    its requests. `deferred`: of those that wait, how many wait for something else than room. `preemptions` and
    `progress` (tokens computed) are counters, `started` the start of its process in seconds. `max_num_seqs` and
    `max_context`: limits of its own.
    """

    pool: EnginePool | None
    usage: float | None
    running: int | None
    waiting: int | None
    preemptions: int | None
    engine: str = "vllm"
    deferred: int | None = None
    progress: float | None = None
    started: float | None = None
    usage_is_reserved: bool = False
    max_num_seqs: int | None = None
    max_context: Tokens | None = None


class Sums:
    """Samples by plain name, put together over the ranks and replicas of one engine."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self._by_name: dict[str, list[Sample]] = {}
        for sample in samples:
            self._by_name.setdefault(plain_name(sample.name), []).append(sample)

    def __contains__(self, name: str) -> bool:
        return plain_name(name) in self._by_name

    def samples(self, name: str) -> list[Sample]:
        """All of one name."""
        return self._by_name.get(plain_name(name), [])

    def total(self, name: str, most: float = _LARGEST_COUNT) -> float | None:
        """The sum; None if there is none, or one that cannot be (NaN, infinite, below 0, above `most`)."""
        return within(sum([sample.value for sample in self.samples(name)]), most) if name in self else None

    def count(self, name: str) -> int | None:
        """The sum as a whole number."""
        total = self.total(name)
        return None if total is None else int(total)

    def most(self, name: str, most: float = _LARGEST_COUNT) -> float | None:
        """The largest: of gauges that every rank shows of the same thing."""
        return within(max([sample.value for sample in self.samples(name)]), most) if name in self else None

    def least(self, name: str) -> float | None:
        """The smallest."""
        return within(min([sample.value for sample in self.samples(name)]), _LARGEST_COUNT) if name in self else None

    def over(self, name: str, label: str) -> int | None:
        """The largest of each value of `label`, summed: replicas add up, the ranks of one show the same."""
        largest: dict[str, float] = {}
        for sample in self.samples(name):
            replica = sample.labels.get(label, "")
            largest[replica] = max(sample.value, largest.get(replica, sample.value))
        total = within(sum(largest.values()), _LARGEST_COUNT) if largest else None
        return None if total is None else int(total)

    def mean(self, name: str, most: float) -> float | None:
        """The mean of several."""
        samples = self.samples(name)
        return within(sum([sample.value for sample in samples]) / len(samples), most) if samples else None

    def progress(self, *names: str) -> float | None:
        """The sum of several counters; None where any is missing."""
        totals = [self.total(name) for name in names]
        known = [total for total in totals if total is not None]
        return sum(known) if len(known) == len(totals) else None


def within(value: float, most: float = _LARGEST_COUNT) -> float | None:
    """The value, None where it is no number: a gauge may hold NaN or infinity, and so may a broken exporter."""
    return value if isfinite(value) and 0 <= value <= most else None


def pool_of_tokens(tokens: float | None, block_size: int) -> EnginePool | None:
    """A pool that an engine tells in tokens, without a block that nobody may use; None if it is not known."""
    if tokens is None or tokens < 1 or block_size < 1:
        return None
    blocks = Blocks(int(tokens) // block_size)
    return EnginePool(blocks, blocks, Tokens(block_size), int(tokens), None, None, None, None, None)
