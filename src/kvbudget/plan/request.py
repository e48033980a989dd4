"""What a plan is asked for, and the plan itself: values only."""

from typing import NamedTuple

from kvbudget.engines.flags import EngineFlags, Settings
from kvbudget.engines.vllm import Pool, Stage
from kvbudget.model.read import Model
from kvbudget.plan.gpus import Gpu
from kvbudget.plan.lengths import Lengths
from kvbudget.units import Bytes, Tokens


class Amount(NamedTuple):
    """Bytes and where they come from: given, measured, computed or estimated. `note` says more to people."""

    bytes: Bytes
    source: str
    note: str = ""


class Finding(NamedTuple):
    """Something to act on. `severity` "error" means exit 1; "warning" does not."""

    code: str
    severity: str
    message: str
    fix: str


class PlanRequest(NamedTuple):
    """All inputs. `weights` are those of the whole checkpoint; the other sizes are per GPU. None: not given."""

    model: Model
    engine: str
    flags: EngineFlags
    gpu: Gpu | None = None
    gpus: int | None = None
    gpu_memory: Bytes | None = None
    kv_cache_memory: Bytes | None = None
    weights: Amount | None = None
    activation: Bytes | None = None
    overhead: Bytes | None = None
    prompt_lengths: Lengths | None = None
    output_lengths: Lengths | None = None
    target_concurrency: int | None = None


class Memory(NamedTuple):
    """One rank of the stage that decides the pool: total, usable, what is taken off, and the rest for KV."""

    total: Amount
    usable: Amount
    weights: Amount
    activation: Amount
    cuda_graphs: Amount
    non_torch: Amount
    kv: Amount


class Ceilings(NamedTuple):
    """Whole requests at once: at the engine's max_model_len, and of percentile lengths.

    `lengths` are the tokens that p50, p95 and p99 were taken at. `limited_by`: what ends the ceiling.
    """

    ceiling: int
    limited_by: str
    p50: int
    p95: int
    p99: int
    lengths: tuple[Tokens, Tokens, Tokens]


class Plan(NamedTuple):
    """The answer; `plan_json` writes it, `explain` shows how it came about."""

    request: PlanRequest
    engine_name: str
    engine_version: str
    settings: Settings
    stage: Stage
    memory: Memory
    pool: Pool
    ceilings: Ceilings
    findings: tuple[Finding, ...]

    @property
    def fits(self) -> bool:
        """Whether the engine would start and reach what was asked."""
        return not any(finding.severity == "error" for finding in self.findings)
