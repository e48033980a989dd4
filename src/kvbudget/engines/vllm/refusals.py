"""When vLLM would refuse to start, in its own words and in the order in which it would meet the reason."""

from collections.abc import Sequence

from kvbudget.engines.flags import Settings
from kvbudget.engines.rule import Pool, Refusal, Stage
from kvbudget.engines.vllm.pages import LATENT_KERNEL_BLOCK, caches_of, kernel_block
from kvbudget.engines.vllm.parallel import parallel_refusals
from kvbudget.engines.vllm.versions import Traits
from kvbudget.model.layers import Compressed, Latent, State
from kvbudget.model.read import Model
from kvbudget.pool.groups import LayerKind, Layout
from kvbudget.units import GIB

# v1/core/kv_cache_utils.py: the versions from which its refusals name the documentation, and the CPU's memory
_DOCS_NAMED, _CPU_NAMED = (0, 20, 0), (0, 24, 0)
_DOCS = "https://docs.vllm.ai/en/latest/configuration/conserving_memory/"
_BACKENDS = {16: "FLASH_ATTN: [MultipleOf(16)]", 64: "FLASHMLA: [64]"}


def refusals_of(
    model: Model,
    settings: Settings,
    stages: Sequence[Stage],
    pool: Pool,
    traits: Traits,
    version: tuple[int, int, int],
) -> list[Refusal]:
    """All of them; empty when it would start. `version`: (0, 32, 0), which decides words."""
    found = parallel_refusals(model, settings, refines=traits.refined_blocks, strict=traits.exact)
    found += _length_refusals(model, settings)
    found += _batch_refusals(settings)
    found += _block_size_refusals(model, settings)
    found += _memory_refusals(model, stages, pool, version)
    return found + _state_refusals(settings, stages[pool.stage].layout, pool)


def _batch_refusals(settings: Settings) -> list[Refusal]:
    """config/scheduler.py: verify_max_model_len."""
    tokens, length = settings.max_num_batched_tokens, settings.max_model_len
    if not settings.chunked_prefill and tokens < length:
        return [
            Refusal(
                "batched_tokens_below_length",
                f"max_num_batched_tokens ({tokens}) is smaller than max_model_len ({length}). This effectively limits "
                "the maximum sequence length to max_num_batched_tokens and makes vLLM reject longer sequences. Please "
                "increase max_num_batched_tokens or decrease max_model_len.",
                f"leave --no-enable-chunked-prefill out, or use --max-model-len {tokens}",
            )
        ]
    if tokens >= settings.max_num_seqs:
        return []
    return [
        Refusal(
            "batched_tokens_below_seqs",
            f"max_num_batched_tokens ({settings.max_num_batched_tokens}) must be greater than or equal to "
            f"max_num_seqs ({settings.max_num_seqs}).",
            "raise --max-num-batched-tokens or lower --max-num-seqs",
        )
    ]


def _block_size_refusals(model: Model, settings: Settings) -> list[Refusal]:
    kernel = kernel_block(
        model, sm100=settings.sm100, latent_block=settings.latent_block
    )  # v1 worker utils.py: select_common_block_size
    states = any(isinstance(cache, State) for cache in caches_of(model))
    size = settings.block_size if states else settings.asked_block_size or settings.block_size
    if size % kernel == 0:
        return []
    shared = max((c.ratio for c in caches_of(model) if isinstance(c, Compressed)), default=0)
    if shared > size:  # v1/core/kv_cache_utils.py: _get_kv_cache_bytes_per_block, before kernels are asked
        return [
            Refusal(
                "block_size_unsupported",
                f"ZeroDivisionError: integer division or modulo by zero (a block of {size} tokens holds none of the "
                f"vectors that {shared} tokens share)",
                f"--block-size must be a multiple of {kernel}",
            )
        ]
    if settings.latent_block < LATENT_KERNEL_BLOCK and any(isinstance(cache, Latent) for cache in caches_of(model)):
        return [
            Refusal(
                "block_size_unsupported",
                f"No valid attention backend found for cuda with block_size={size}, use_mla=True. Reasons: "
                "{TRITON_MLA: [block_size not supported]}.",
                f"--block-size must be a multiple of {kernel}",
            )
        ]
    return [
        Refusal(
            "block_size_unsupported",
            f"No common block size for {size} ({_BACKENDS.get(kernel, f'[{kernel}]')})",
            f"--block-size must be a multiple of {kernel}",
        )
    ]


def _state_refusals(settings: Settings, layout: Layout, pool: Pool) -> list[Refusal]:
    """config/compilation.py: full CUDA graphs of decode need one state for each sequence."""
    states = any(group.kind is LayerKind.MAMBA for group in layout.groups)
    known = settings.defaults_known and not settings.enforce_eager
    if not states or not known or not 0 < pool.num_blocks < settings.max_num_seqs:
        return []
    return [
        Refusal(
            "max_num_seqs_beyond_states",
            f"max_num_seqs ({settings.max_num_seqs}) exceeds available Mamba cache blocks ({pool.num_blocks}). Each "
            "decode sequence requires one Mamba cache block, so CUDA graph capture cannot proceed. Please lower "
            f"max_num_seqs to at most {pool.num_blocks} or increase gpu_memory_utilization.",
            f"use --max-num-seqs {pool.num_blocks}",
        )
    ]


def _length_refusals(model: Model, settings: Settings) -> list[Refusal]:
    """config/model.py: _get_and_verify_max_len. Where config.json has no key vLLM takes its class's default; files that
    people cut short must still be planned, so that the planner warns of those."""
    limit, key = model.longest_given, model.longest_key
    if settings.auto_length or limit is None or settings.max_model_len <= limit:
        return []
    return [
        Refusal(
            "max_model_len_beyond_model",
            f"User-specified max_model_len ({settings.max_model_len}) is greater than the derived max_model_len "
            f"({key}={limit} or model_max_length=None in model's config.json).",
            f"use --max-model-len {limit}, or a model or RoPE scaling made for more",
        )
    ]


def _memory_refusals(model: Model, stages: Sequence[Stage], pool: Pool, version: tuple[int, int, int]) -> list[Refusal]:
    """v1/core/kv_cache_utils.py: _check_enough_kv_cache_memory, stage by stage; the first that fails speaks."""
    held_back = pool.num_blocks - pool.checked_blocks  # the null block
    told_apart = len(pool.stage_bytes) == len(stages)
    for index, (stage, blocks) in enumerate(zip(stages, pool.stage_blocks, strict=True)):
        per_block = stage.layout.bytes_per_block
        if not per_block:
            return [_cacheless(model, stage)]
        available = (pool.stage_bytes[index] if told_apart else blocks * per_block) - held_back * per_block
        if available <= 0:
            return [
                Refusal(
                    "no_kv_memory",
                    "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
                    f"initializing the engine{_also_of_cpu(version)}.{_more(version)}",
                    "quantise the weights, raise --gpu-memory-utilization, or use more tensor-parallel ranks",
                )
            ]
        checked = max(0, blocks - held_back)
        if pool.blocks_per_request > checked:
            return [_too_long(stage.layout, checked, available, pool, version)]
    return []


def _also_of_cpu(version: tuple[int, int, int]) -> str:
    if version < _CPU_NAMED:
        return ""
    return " (this flag also controls CPU memory reservation on the CPU backend, despite its name)"


def _more(version: tuple[int, int, int]) -> str:
    return f" See {_DOCS} for more details." if version >= _DOCS_NAMED else ""


def _cacheless(model: Model, stage: Stage) -> Refusal:
    """v1/core/kv_cache_utils.py: get_kv_cache_config_from_groups: memory is divided by the bytes of no layer."""
    layers = f"the pipeline stage of layers {stage.first} to {stage.end - 1}"
    shares = any(layer.shared for layer in model.layers[stage.first : stage.end])
    return Refusal(
        "stage_without_cache",
        f"{layers} has no cache of its own: they read that of another stage, which cannot be reached from there"
        if shares
        else f"ZeroDivisionError: integer division or modulo by zero ({layers} keeps no cache)",
        "use fewer pipeline stages",
    )


def _too_long(layout: Layout, checked: int, available: int, pool: Pool, version: tuple[int, int, int]) -> Refusal:
    estimate = layout.largest_length(checked, pool.max_model_len)
    needed = pool.blocks_per_request * layout.bytes_per_block
    based = f"Based on the available memory, the estimated maximum model length is {estimate}. " if estimate else ""
    length = min(pool.max_model_len, pool.largest_max_model_len)
    also = " (which also controls CPU memory on the CPU backend)" if version >= _CPU_NAMED else ""
    return Refusal(
        "max_model_len_too_large",
        f"To serve at least one request with the model's max seq len ({pool.max_model_len}), "
        f"({_gib(needed)} GiB KV cache is needed, which is larger than the available KV cache memory "
        f"({_gib(available)} GiB). {based}Try increasing `gpu_memory_utilization`{also} or decreasing "
        f"`max_model_len` when initializing the engine.{_more(version)}",
        f"use --max-model-len {length}" if length else "give the cache more memory: no length fits",
    )


def whole_model_refusals(layout: Layout, pool: Pool) -> list[Refusal]:
    """Around 0.15 the start check held the smallest stage's memory against all layers (issue 34076). `layout`: of the
    whole model on one stage."""
    needed = layout.blocks_for(pool.max_model_len) * layout.bytes_per_block
    if needed <= pool.bytes:
        return []
    estimate = layout.largest_length(pool.bytes // layout.bytes_per_block, pool.max_model_len)
    return [
        Refusal(
            "pipeline_start_check",
            f"To serve at least one request with the models's max seq len ({pool.max_model_len}), ({_gib(needed)} GiB "
            f"KV cache is needed, which is larger than the available KV cache memory ({_gib(pool.bytes)} GiB). Based "
            f"on the available memory, the estimated maximum model length is {estimate}. This version compares one "
            "stage's memory with all layers, though each stage keeps the caches of its own alone.",
            f"use --max-model-len {estimate}, or a newer vLLM, which checks stage by stage",
        )
    ]


def _gib(size: int) -> str:
    """As the engine prints it (utils/mem_utils.py: format_gib)."""
    return f"{round(size / GIB, 2)}"
