"""What every engine's rule answers, in the engine's own words and blocks."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from kvbudget.engines.flags import EngineFlags, Settings
from kvbudget.model.read import Model
from kvbudget.pool.groups import Layout
from kvbudget.units import Blocks, Bytes, Tokens


class Refusal(NamedTuple):
    """Why the engine would not start: a stable code, the engine's own words, and what to change."""

    code: str
    message: str
    fix: str


class Held(NamedTuple):
    """What one card holds of the weights: layers first..end (end exclusive), and the output layer or not. The embedding
    is with neither: llama.cpp keeps it in the machine's memory."""

    first: int
    end: int
    output: bool


class Stage(NamedTuple):
    """One pipeline stage: layers first..end (end exclusive) and their cache on one rank.

    `held`: which weights are on the card, where that is not told by its layers: None: theirs, the embedding with the
    first of the model, the output layer with the last. `on_card` False: the cache lies in the machine's memory.
    """

    first: int
    end: int
    layout: Layout
    held: Held | None = None
    on_card: bool = True


class Taken(NamedTuple):
    """What is on a rank beside the cache, in bytes."""

    weights: int
    activation: int
    cuda_graphs: int
    non_torch: int


class Pool(NamedTuple):
    """The KV pool as the engine sees it. `stage` is the index of the stage that decided it.

    `tokens` and `concurrency` are the figures of the start-up log: null block included, for `max_model_len` requests.
    `checked_blocks`: those that the engine's start check counts, which may be one more than are usable.
    `most_requests`: what other pools beside it (recurrent states, request slots) hold at most; 0: no such bound.
    `max_model_len` and `largest_max_model_len` are of one request: in llama.cpp of a slot, whose flag says the context
    of all slots together. `stage_blocks`: what each pipeline stage would hold alone, of
    `stage_bytes` for its cache; both are empty where stages are not told apart.
    """

    stage: int
    num_blocks: Blocks
    usable_blocks: Blocks
    bytes: Bytes
    max_model_len: Tokens
    blocks_per_request: Blocks
    tokens: int
    concurrency: float
    largest_max_model_len: Tokens
    checked_blocks: Blocks
    most_requests: int = 0
    stage_blocks: tuple[int, ...] = ()
    stage_bytes: tuple[int, ...] = ()


class Engine(Protocol):
    """The rule of one engine and version. Stateless; figures carry the version they were read at."""

    @property
    def name(self) -> str:
        """As in --engine."""

    @property
    def version(self) -> str:
        """The version whose rule this is, as in --engine NAME@VERSION."""

    @property
    def memory_version(self) -> tuple[int, int]:
        """The vLLM release whose memory beside weights and pool this engine's is most like."""

    @property
    def needs_memory(self) -> bool:
        """Whether the pool is what memory leaves; False where flags alone size it, and memory holds it or not."""

    def settle(self, model: Model, flags: EngineFlags, device_memory: int, device_name: str) -> Settings:
        """What the engine runs with. `device_memory` in bytes, 0 when unknown.

        Raises BadValueError and UnsupportedError for values that no start could use.
        """

    def usable_memory(self, total: int, settings: Settings) -> Bytes:
        """The share of a card's `total` bytes that the engine plans with, as it names it."""

    def cache_memory(self, total: int, taken: Taken, settings: Settings) -> int:
        """Bytes that are left for the cache on a rank; negative when the rest is already too much."""

    def stages(self, model: Model, settings: Settings) -> tuple[Stage, ...]:
        """Pipeline stages in order, each with the groups of one tensor-parallel rank."""

    def pool(self, model: Model, settings: Settings, stages: Sequence[Stage], available: Sequence[int]) -> Pool:
        """The pool when stage `i` has `available[i]` bytes for it."""

    def refusals(self, model: Model, settings: Settings, stages: Sequence[Stage], pool: Pool) -> list[Refusal]:
        """Everything that would stop the start, in the order in which the engine would meet it."""

    def overruns(self, settings: Settings, total: int, taken: Taken, pool: Pool) -> list[Refusal]:
        """What stops the start once the pool is there: CUDA graphs or a first batch that a card of `total` bytes has no
        room for. Always empty where the engine measures them before it sizes the pool. `taken` on the pool's stage.
        """

    def log_line(self, settings: Settings, pool: Pool) -> str:
        """What the start-up log will say of the pool, in the engine's own words."""
