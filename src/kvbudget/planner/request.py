"""What a plan is asked for, and the plan itself: values only."""

from typing import TYPE_CHECKING, NamedTuple

from kvbudget.engines.flags import EngineFlags, Settings
from kvbudget.engines.rule import Pool, Stage
from kvbudget.model.read import Model
from kvbudget.units import Blocks, Bytes, Tokens

if TYPE_CHECKING:
    from kvbudget.planner.hardware.gpus import Gpu
    from kvbudget.planner.workload.lengths import Lengths
    from kvbudget.planner.workload.margin import Margin
else:  # who gives one has imported it; as strings the names would be compiled at start, which costs ten modules' time
    Gpu = Lengths = Margin = object


class Amount(NamedTuple):
    """Bytes and where they come from: given, measured, computed or estimated. `note` says more to people; `doubt` why a
    measured number may be that of something else.

    `low` and `high`: nine of ten engines lie between them; None where the number is not an estimate.
    """

    bytes: Bytes
    source: str
    note: str = ""
    low: Bytes | None = None
    high: Bytes | None = None
    doubt: str = ""


class Finding(NamedTuple):
    """Something to act on. `severity` "error" means exit 1; "warning" does not."""

    code: str
    severity: str
    message: str
    fix: str


class Told(NamedTuple):
    """What an engine's start told of its memory on one GPU, in bytes; None: not printed. `version` is (major, minor).

    `rest`: weights and pool together, from which all else follows where the share of the card is known.
    """

    version: tuple[int, int]
    max_model_len: int | None = None
    activation: int | None = None
    cuda_graphs: int | None = None
    non_torch: int | None = None
    rest: int | None = None


class PlanRequest(NamedTuple):
    """All inputs. `weights` are those of the whole checkpoint; the other sizes are per GPU. None: not given.

    `draft_weights`: of the whole checkpoint of a draft model that has files of its own. `requests`: (prompt, output)
    tokens of real ones; percentiles are taken of them when they are there, and else of the given lengths. `trial`: one
    of many plans that a search makes: what would make room is not looked for.
    """

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
    margin: Margin | None = None
    receipts: tuple[Told, ...] = ()
    draft_weights: Amount | None = None
    requests: tuple[tuple[int, int], ...] = ()
    trial: bool = False

    @property
    def knows_lengths(self) -> bool:
        """Whether percentiles are of requests that somebody has, not of the longest one."""
        return bool(self.requests) or self.prompt_lengths is not None


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

    `lengths` are the tokens that p50, p95 and p99 were taken at. `limited_by`: what ends the ceiling. `margin_blocks`
    were kept back in all of them.
    """

    ceiling: int
    limited_by: str
    p50: int
    p95: int
    p99: int
    lengths: tuple[Tokens, Tokens, Tokens]
    margin_blocks: Blocks = Blocks(0)


class TailWaste(NamedTuple):
    """Slots that stay empty in last blocks, a request, and their share of the slots that a request holds.

    Of real requests on average, where they are known; else of one as long as the median.
    """

    slots: int
    fraction: float


def class_default_length(model: Model) -> int | None:
    """As `Plan.class_default_length`."""
    unsaid = model.longest_given is None and "max_position_embeddings" in model.filled
    return model.max_model_len if unsaid else None


class Plan(NamedTuple):
    """The answer; `plan_json` writes it, `explain` shows how it came about.

    `low_end`: the pool where the least memory is left that is likely; None where none of it is estimated.
    """

    request: PlanRequest
    engine_name: str
    engine_version: str
    settings: Settings
    stage: Stage
    memory: Memory
    pool: Pool
    ceilings: Ceilings
    findings: tuple[Finding, ...]
    tail_waste: TailWaste = TailWaste(0, 0.0)
    low_end: Pool | None = None

    @property
    def engines(self) -> int:
        """Engines beside one another (--data-parallel-size), each with a pool of its own; the plan is of one."""
        return self.request.flags.data_parallel_size

    @property
    def class_default_length(self) -> int | None:
        """The model's limit where config.json does not say it but its config class does; None in every other case.

        vLLM takes a class's own default for the model's limit; files that people cut short must still be planned.
        """
        return class_default_length(self.request.model)

    @property
    def fits(self) -> bool:
        """Whether the engine would start and reach what was asked."""
        return not any(finding.severity == "error" for finding in self.findings)
