"""Decides what a simulation is told beside its load: the engine's sizes, the gate's bounds, the clients' habits."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from kvbudget.errors import BadValueError
from kvbudget.gate.tenants.settings import ClassLimits, TenantLimits
from kvbudget.pool.groups import Layout
from kvbudget.pool.prefix import Sharing
from kvbudget.simulate.cost import DEFAULT_COST, StepCost
from kvbudget.units import Blocks, Tokens

MOST_INSTANCES = 64
MOST_GATES = 64
_DEFAULT_NEW_TOKENS = Tokens(2048)  # as `kvbudget serve`
_MOST_NS = 10 * 366 * 86_400 * 10**9


@dataclass(frozen=True, slots=True)
class EngineSizes:
    """One engine, every instance alike. `num_blocks` includes the null block, as vLLM's does; `max_model_len` None:
    the longest sequence that the pool holds. 8,192 batched tokens and 256 sequences are vLLM 0.32's defaults on a card
    of the H100's class (the sequences cut from 1,024: a pool is full before). `prefix_id_tokens`: prompt tokens that
    one of a request's hash_ids stands for (Mooncake: 512). `by_priority`: vLLM's --scheduling-policy priority."""

    layout: Layout
    num_blocks: int
    max_model_len: int | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    prefix_caching: bool = True
    prefix_id_tokens: int = 512
    by_priority: bool = False
    async_scheduling: bool = False
    cost: StepCost = DEFAULT_COST

    @property
    def usable_blocks(self) -> Blocks:
        """All but the null block."""
        return Blocks(max(0, self.num_blocks - 1))

    @property
    def window(self) -> int:
        """`max_model_len`, or what the pool can hold."""
        return self.max_model_len or self.layout.largest_length(self.usable_blocks)


@dataclass(frozen=True, slots=True)
class GateBounds:
    """The gate's bounds, defaults as `kvbudget serve` has them. `queue_tokens` None: twice what the pool holds.
    `default_new_tokens` is promised to a request that names no max_tokens. `sharing`: prefixes are credited as soon as
    scheduled, which is exact for this engine; OFF counts every prompt whole. `tenants` and `classes`: as [gate.tenants]
    and [gate.classes] of a budget file, classes by priority."""

    margin_blocks: int = 0
    queue_requests: int = 1024
    queue_tokens: Tokens | None = None
    queue_ns: int = 30 * 10**9
    default_new_tokens: Tokens = _DEFAULT_NEW_TOKENS
    sharing: Sharing = Sharing.SCHEDULED
    tenants: Mapping[str, TenantLimits] = field(default_factory=dict)
    classes: Mapping[int, ClassLimits] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClientHabits:
    """A client leaves when no first token came within `patience_ns` of its first try. After a refusal it comes back at
    the time that it was told (where it was told none: after 0.5 s, doubled each time up to 8 s, as the OpenAI SDKs do),
    at most `retries` times and only if its patience lasts until then. `deadline_ns`: it tells the gate
    (x-kvbudget-deadline-ms) that it will not wait longer in the queue."""

    patience_ns: int | None = 30 * 10**9
    retries: int = 0
    deadline_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Slo:
    """A good answer: first token within `ttft_ns` of the first try, no later gap over `gap_ns`; None does not judge."""

    ttft_ns: int | None = 5 * 10**9
    gap_ns: int | None = 10**9


class PoolSharing(StrEnum):
    """How several gates share the pool of one engine."""

    SLICES = "slices"  # each borrows slices from a bank, and promises out of its slice (`gate.bank`)
    EACH = "each"  # every request is let in at the ledger itself, which keeps the queue
    STATIC = "static"  # an equal part each, for ever


class Gates(NamedTuple):
    """Several gates before one engine; each request comes to one of them at random. `rtt_ns`: to the ledger and
    back."""

    gates: int
    rtt_ns: int = 1_000_000
    sharing: PoolSharing = PoolSharing.SLICES


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything but the load and the contender. `shared`: several gates before each engine."""

    engine: EngineSizes
    gate: GateBounds = field(default_factory=GateBounds)
    clients: ClientHabits = field(default_factory=ClientHabits)
    slo: Slo = field(default_factory=Slo)
    instances: int = 1
    shared: Gates | None = None

    def __post_init__(self) -> None:
        """Raises BadValueError for what could not run."""
        if not 1 <= self.instances <= MOST_INSTANCES:
            raise BadValueError(f"instances: {self.instances} is not between 1 and {MOST_INSTANCES}")
        if self.shared is not None and not 1 <= self.shared.gates <= MOST_GATES:
            raise BadValueError(f"gates: {self.shared.gates} is not between 1 and {MOST_GATES}")
        if self.shared is not None and self.instances > 1:
            raise BadValueError(
                f"gates: {self.shared.gates} before each of {self.instances} instances is not simulated",
                fix="give --gates or --instances",
            )
        if self.shared is not None and not 0 <= self.shared.rtt_ns <= 10**9:
            raise BadValueError(f"ledger_rtt: {self.shared.rtt_ns / 1e6:g} ms is not between 0 and 1,000")
        if self.clients.retries < 0 or self.clients.retries > 1000:
            raise BadValueError(f"retries: {self.clients.retries} is not between 0 and 1000")
        gate = self.gate
        for name in ("margin_blocks", "queue_requests", "queue_tokens"):
            value = getattr(gate, name)
            if value is not None and not 0 <= value <= 10**12:
                raise BadValueError(f"{name}: {value} is not between 0 and 10^12")
        if not 1 <= gate.default_new_tokens <= 10**12:
            raise BadValueError(f"default_max_tokens: {gate.default_new_tokens} is below 1")
        times = {
            "queue_seconds": gate.queue_ns,
            "patience": self.clients.patience_ns,
            "deadline": self.clients.deadline_ns,
            "slo_ttft": self.slo.ttft_ns,
            "slo_gap": self.slo.gap_ns,
        }
        for name, value in times.items():
            if value is not None and not (0 if name == "queue_seconds" else 1) <= value <= _MOST_NS:
                raise BadValueError(f"{name}: {value / 1e9:g} s is not a time above 0", fix="give seconds")
