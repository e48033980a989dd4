"""vLLM 0.32: what it makes of its flags, the pages and blocks of its KV pool, and when it refuses to start.

Paths in comments are relative to the `vllm` package of version 0.32.0.
"""

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

from kvbudget.engines.flags import AUTO_LENGTH, EngineFlags, Settings
from kvbudget.errors import BadValueError, UnsupportedError
from kvbudget.model.read import Model
from kvbudget.pool.groups import Group, LayerKind, Layout
from kvbudget.units import GIB, Blocks, Bytes, Tokens, whole_blocks

DEFAULT_GPU_MEMORY_UTILIZATION = 0.92  # config/cache.py
DEFAULT_BLOCK_SIZE = 16  # config/cache.py: DEFAULT_BLOCK_SIZE
BLOCK_SIZE_MULTIPLE = 16  # v1/attention/backends/flash_attn.py, triton_attn.py: get_supported_kernel_block_sizes
NULL_BLOCKS = 1  # v1/core/block_pool.py: one block is never given out
# engine/arg_utils.py: get_batch_defaults, API server: (from this much device memory, batched tokens, sequences)
_BATCH_DEFAULTS = ((160 * GIB, 16384, 1024), (70 * GIB, 8192, 1024), (0, 2048, 256))
# utils/torch_utils.py: STR_DTYPE_TO_TORCH_DTYPE; the plain ones, whose page holds nothing but keys and values
_KV_ELEMENT_BYTES = {
    "float16": 2,
    "bfloat16": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "fp8_inc": 1,
}
# config/cache.py: CacheDType; these pages carry scales or packed formats as well
_KV_DTYPES_WITH_SCALES = (
    "fp8_ds_mla", "nvfp4_ds_mla", "turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc",
    "ultraquant_4bit", "int4_per_token_head", "int8_per_token_head", "fp8_per_token_head", "nvfp4", "nvfp4_4over6",
)  # fmt: skip
# config/model.py: _resolve_auto_dtype runs float32 checkpoints in a 16-bit type
_ELEMENT_BYTES = {"auto": 2, "half": 2, "float16": 2, "bfloat16": 2, "float": 4, "float32": 4}


class Refusal(NamedTuple):
    """Why the engine would not start: a stable code, the engine's own words, and what to change."""

    code: str
    message: str
    fix: str


class Stage(NamedTuple):
    """One pipeline stage: layers first..end (end exclusive) and their cache on one rank."""

    first: int
    end: int
    layout: Layout


class Pool(NamedTuple):
    """The KV pool as the engine sees it. `stage` is the index of the stage that decided it.

    `tokens` and `concurrency` are the figures of the start-up log: null block included, for `max_model_len` requests.
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


class Vllm:
    """The rule of this engine version. Stateless."""

    name = "vllm"
    version = "0.32"

    def settle(self, model: Model, flags: EngineFlags, device_memory: int, device_name: str) -> Settings:
        """What the engine runs with. `device_memory` in bytes, 0 when unknown, as vLLM does when it cannot ask.

        Raises BadValueError and UnsupportedError for values that no start could use.
        """
        if flags.pipeline_parallel_size > len(model.layers):
            raise BadValueError(
                f"--pipeline-parallel-size {flags.pipeline_parallel_size}: the model has {len(model.layers)} layers, "
                "a stage would hold none",
                fix=f"at most {len(model.layers)}",
            )
        auto = flags.max_model_len == AUTO_LENGTH
        asked = None if auto else flags.max_model_len
        length = asked or model.max_model_len
        tokens, seqs = _batch_defaults(flags, length, device_memory, device_name)
        asynchronous = flags.async_scheduling is not False  # default on GPUs
        # config/vllm.py: max_concurrent_batches, V2 model runner
        batches = flags.pipeline_parallel_size + (1 if asynchronous else 0)
        dtype, kv_bytes = _kv_dtype(model, flags)
        return Settings(
            max_model_len=Tokens(length),
            auto_length=auto,
            max_num_seqs=seqs,
            max_num_batched_tokens=Tokens(tokens),
            max_in_flight_tokens=Tokens(batches * tokens),
            block_size=Tokens(flags.block_size or DEFAULT_BLOCK_SIZE),
            kv_cache_dtype=dtype,
            kv_element_bytes=Bytes(kv_bytes),
            element_bytes=Bytes(_element_bytes(flags.dtype)),
            tensor_parallel_size=flags.tensor_parallel_size,
            pipeline_parallel_size=flags.pipeline_parallel_size,
            gpu_memory_utilization=(
                DEFAULT_GPU_MEMORY_UTILIZATION if flags.gpu_memory_utilization is None else flags.gpu_memory_utilization
            ),
            async_scheduling=asynchronous,
            num_gpu_blocks_override=flags.num_gpu_blocks_override,
        )

    def usable_memory(self, total: int, settings: Settings) -> Bytes:
        """Share of the TOTAL memory that the engine may use (v1 worker utils.py: request_memory)."""
        return Bytes(ceil(total * settings.gpu_memory_utilization))

    def stages(self, model: Model, settings: Settings) -> tuple[Stage, ...]:
        """Pipeline stages in order, each with the groups of one tensor-parallel rank."""
        bounds = _stage_bounds(len(model.layers), settings.pipeline_parallel_size)
        return tuple(Stage(first, end, _layout(model, settings, first, end)) for first, end in bounds)

    def pool(self, model: Model, settings: Settings, stages: Sequence[Stage], available: Sequence[int]) -> Pool:
        """The pool when stage `i` has `available[i]` bytes for it: every rank uses the smallest number of blocks."""
        counts = [
            whole_blocks(max(0, space), s.layout.bytes_per_block) for s, space in zip(stages, available, strict=True)
        ]
        tightest = counts.index(min(counts))
        layout = stages[tightest].layout
        blocks = counts[tightest]
        if settings.num_gpu_blocks_override is not None:
            blocks = Blocks(settings.num_gpu_blocks_override)
        usable = Blocks(max(0, blocks - NULL_BLOCKS))
        largest = layout.largest_length(usable)
        if model.longest_given is not None:
            largest = Tokens(min(largest, model.longest_given))
        length = settings.max_model_len
        if settings.auto_length:  # v1/core/kv_cache_utils.py: _auto_fit_max_model_len
            length = Tokens(max(1, min(length, largest)))
        need = layout.blocks_for(length)
        concurrency = blocks / need  # v1/core/kv_cache_utils.py: get_max_concurrency_for_kv_cache_config
        return Pool(
            stage=tightest,
            num_blocks=blocks,
            usable_blocks=usable,
            bytes=Bytes(blocks * layout.bytes_per_block),
            max_model_len=length,
            blocks_per_request=need,
            tokens=int(concurrency * length),
            concurrency=concurrency,
            largest_max_model_len=largest,
        )

    def refusals(self, model: Model, settings: Settings, stages: Sequence[Stage], pool: Pool) -> list[Refusal]:
        """Everything that would stop the start, in the order in which the engine would meet it."""
        found = _parallel_refusals(model, settings)
        found += _length_refusals(model, settings)
        if settings.max_num_batched_tokens < settings.max_num_seqs:  # config/scheduler.py: verify_max_model_len
            found.append(
                Refusal(
                    "batched_tokens_below_seqs",
                    f"max_num_batched_tokens ({settings.max_num_batched_tokens}) must be greater than or equal to "
                    f"max_num_seqs ({settings.max_num_seqs}).",
                    "raise --max-num-batched-tokens or lower --max-num-seqs",
                )
            )
        if settings.block_size % BLOCK_SIZE_MULTIPLE:  # v1 worker utils.py
            found.append(
                Refusal(
                    "block_size_unsupported",
                    f"No common block size for {settings.block_size} (FLASH_ATTN: [MultipleOf({BLOCK_SIZE_MULTIPLE})])",
                    f"--block-size must be a multiple of {BLOCK_SIZE_MULTIPLE}",
                )
            )
        return found + _memory_refusals(stages[pool.stage].layout, pool)


def _batch_defaults(flags: EngineFlags, length: int, device_memory: int, device_name: str) -> tuple[int, int]:
    """(max_num_batched_tokens, max_num_seqs), engine/arg_utils.py: _set_default_max_num_seqs_and_batched_tokens_..."""
    large_is_slow = "a100" in device_name.lower() and device_memory < _BATCH_DEFAULTS[0][0]
    memory = 0 if large_is_slow else device_memory
    tokens, seqs = next((tokens, seqs) for floor, tokens, seqs in _BATCH_DEFAULTS if memory >= floor)
    seqs = flags.max_num_seqs or seqs
    tokens = flags.max_num_batched_tokens or min(seqs * length, tokens)
    return tokens, flags.max_num_seqs or min(seqs, tokens)


def _kv_dtype(model: Model, flags: EngineFlags) -> tuple[str, int]:
    """(dtype, bytes of one element); `auto` is what the checkpoint prescribes, else the model's own type."""
    dtype = flags.kv_cache_dtype
    if dtype == "auto":
        prescribed = model.quantization.kv_cache_dtype if model.quantization else ""
        if prescribed == "?":
            raise UnsupportedError(
                "the checkpoint prescribes a KV cache format whose meaning for --kv-cache-dtype auto is not known",
                fix="say --kv-cache-dtype bfloat16 or fp8",
            )
        if not prescribed:
            return "auto", _element_bytes(flags.dtype)
        dtype = prescribed
    if dtype in _KV_DTYPES_WITH_SCALES:
        raise UnsupportedError(
            f"--kv-cache-dtype {dtype}: its page carries scales or a packed format that is not computed yet",
            fix=f"use one of auto, {', '.join(_KV_ELEMENT_BYTES)}",
        )
    if dtype not in _KV_ELEMENT_BYTES:
        raise BadValueError(
            f"--kv-cache-dtype: {dtype[:40]!r} is not one of vLLM {Vllm.version}",
            fix=f"use one of auto, {', '.join(_KV_ELEMENT_BYTES)}",
        )
    return dtype, _KV_ELEMENT_BYTES[dtype]


def _element_bytes(dtype: str) -> int:
    if dtype not in _ELEMENT_BYTES:
        raise BadValueError(f"--dtype: {dtype[:40]!r} is unknown", fix=f"use one of {', '.join(_ELEMENT_BYTES)}")
    return _ELEMENT_BYTES[dtype]


def _stage_bounds(layers: int, stages: int) -> list[tuple[int, int]]:
    """(first, end) of each stage, distributed/utils.py: get_pp_indices: extra layers go to stages before the last."""
    sizes = [layers // stages] * stages
    for back in range(2, layers % stages + 2):
        sizes[-back] += 1
    bounds, first = [], 0
    for size in sizes:
        bounds.append((first, first + size))
        first += size
    return bounds


def _layout(model: Model, settings: Settings, first: int, end: int) -> Layout:
    """Groups of layers first..end on one rank. All layers are alike so far: one group (v1/core/kv_cache_utils.py)."""
    layer = model.layers[first]
    # config/model.py: get_num_kv_heads: heads are split over ranks, and replicated when there are fewer than ranks
    heads = max(1, layer.kv_heads // settings.tensor_parallel_size)
    # v1/kv_cache_interface.py: AttentionSpec.page_size_bytes
    page = heads * settings.block_size * (layer.key_size + layer.value_size) * settings.kv_element_bytes
    return Layout((Group(LayerKind(layer.kind), end - first, settings.block_size, Bytes(page)),))


def _parallel_refusals(model: Model, settings: Settings) -> list[Refusal]:
    ranks = settings.tensor_parallel_size
    if model.attention_heads % ranks:  # config/model.py: verify_with_parallel_config
        return [
            Refusal(
                "heads_not_divisible",
                f"Total number of attention heads ({model.attention_heads}) must be divisible by tensor parallel size "
                f"({ranks}).",
                f"use --tensor-parallel-size {_divisor_below(model.attention_heads, ranks)}",
            )
        ]
    kv_heads = model.layers[0].kv_heads
    if kv_heads % ranks and ranks % kv_heads:  # model_executor/models/llama.py: assertions on total_num_kv_heads
        return [
            Refusal(
                "kv_heads_not_divisible",
                f"{kv_heads} KV heads can be neither split over nor replicated on tensor parallel size {ranks} "
                "(assertion on total_num_kv_heads).",
                f"use --tensor-parallel-size {_divisor_below(kv_heads, ranks)}",
            )
        ]
    return []


def _divisor_below(number: int, limit: int) -> int:
    return next(n for n in range(min(limit, number), 0, -1) if number % n == 0)


def _length_refusals(model: Model, settings: Settings) -> list[Refusal]:
    """config/model.py: _get_and_verify_max_len; only against a limit that config.json itself states."""
    if settings.auto_length or model.longest_given is None or settings.max_model_len <= model.longest_given:
        return []
    return [
        Refusal(
            "max_model_len_beyond_model",
            f"User-specified max_model_len ({settings.max_model_len}) is greater than the derived max_model_len "
            f"({model.longest_key}={model.longest_given} or model_max_length=None in model's config.json).",
            f"use --max-model-len {model.longest_given}, or a model or RoPE scaling made for more",
        )
    ]


def _memory_refusals(layout: Layout, pool: Pool) -> list[Refusal]:
    """v1/core/kv_cache_utils.py: _check_enough_kv_cache_memory, with the null block already taken off."""
    per_block = layout.bytes_per_block
    checked = pool.usable_blocks * per_block
    if checked <= 0:
        return [
            Refusal(
                "no_kv_memory",
                "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing "
                "the engine.",
                "quantise the weights, raise --gpu-memory-utilization, or use more tensor-parallel ranks",
            )
        ]
    if pool.blocks_per_request <= pool.usable_blocks:
        return []
    estimate = min(pool.largest_max_model_len, pool.max_model_len)
    needed = pool.blocks_per_request * per_block
    return [
        Refusal(
            "max_model_len_too_large",
            f"To serve at least one request with the model's max seq len ({pool.max_model_len}), "
            f"({_gib(needed)} GiB KV cache is needed, which is larger than the available KV cache memory "
            f"({_gib(checked)} GiB). Based on the available memory, the estimated maximum model length is {estimate}. "
            "Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.",
            f"use --max-model-len {estimate}",
        )
    ]


def _gib(size: int) -> str:
    """As the engine prints it (utils/mem_utils.py: format_gib)."""
    return f"{round(size / GIB, 2)}"
