"""When vLLM would refuse to start, in its own words and in the order in which it would meet the reason."""

from collections.abc import Sequence

from kvbudget.engines.flags import Settings
from kvbudget.engines.rule import Pool, Refusal, Stage
from kvbudget.engines.vllm.pages import kernel_block
from kvbudget.model.layers import Attention, CrossAttention, Latent, State
from kvbudget.model.read import Model
from kvbudget.pool.groups import LayerKind, Layout
from kvbudget.units import GIB

_UNREPLICATED = ("gpt_oss",)  # model_executor/models/gpt_oss.py divides KV heads by the ranks, rounded down
_VOCABULARY_PADDING = 64  # model_executor/layers/vocab_parallel_embedding.py
_BACKENDS = {16: "FLASH_ATTN: [MultipleOf(16)]", 64: "FLASHMLA: [64]"}


def refusals_of(model: Model, settings: Settings, stages: Sequence[Stage], pool: Pool) -> list[Refusal]:
    """All of them; empty when it would start."""
    found = _parallel_refusals(model, settings)
    found += _length_refusals(model, settings)
    found += _batch_refusals(settings)
    found += _block_size_refusals(model, settings)
    found += _memory_refusals(stages, pool)
    return found + _state_refusals(settings, stages[pool.stage].layout, pool)


def _batch_refusals(settings: Settings) -> list[Refusal]:
    if settings.max_num_batched_tokens >= settings.max_num_seqs:  # config/scheduler.py: verify_max_model_len
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
    kernel = kernel_block(model, sm100=settings.sm100)  # v1 worker utils.py: select_common_block_size
    states = any(isinstance(cache, State) for layer in model.layers for cache in layer.caches)
    size = settings.block_size if states else settings.asked_block_size or settings.block_size
    if size % kernel == 0:
        return []
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


def _parallel_refusals(model: Model, settings: Settings) -> list[Refusal]:
    """config/model.py: verify_with_parallel_config; config/parallel.py; assertions of the model classes."""
    ranks, shards = settings.tensor_parallel_size, settings.decode_context_parallel_size
    found = []
    caches = [cache for layer in dict.fromkeys(model.layers) for cache in layer.caches]
    kv_heads = [c.kv_heads for c in caches if isinstance(c, Attention | CrossAttention)]
    if model.attention_heads % ranks:
        found.append(
            Refusal(
                "heads_not_divisible",
                f"Total number of attention heads ({model.attention_heads}) must be divisible by tensor parallel size "
                f"({ranks}).",
                f"use --tensor-parallel-size {_ranks_that_divide(model, kv_heads, ranks)}",
            )
        )
    uneven = next((heads for heads in kv_heads if heads % ranks and ranks % heads), None)
    if uneven is not None and not found:  # model_executor/models/llama.py: assertions on total_num_kv_heads
        found.append(
            Refusal(
                "kv_heads_not_divisible",
                f"{uneven} KV heads can be neither split over nor replicated on tensor parallel size {ranks} "
                "(assertion on total_num_kv_heads).",
                f"use --tensor-parallel-size {_ranks_that_divide(model, kv_heads, ranks)}",
            )
        )
    padded = -(-model.vocab_size // _VOCABULARY_PADDING) * _VOCABULARY_PADDING
    if padded % ranks and not found:  # distributed/utils.py: ensure_divisibility, called by VocabParallelEmbedding
        found.append(
            Refusal(
                "vocabulary_not_divisible",
                f"AssertionError: {padded} is not divisible by {ranks}",
                f"use --tensor-parallel-size {_ranks_that_divide(model, [*kv_heads, padded], ranks)}",
            )
        )
    if model.model_type in _UNREPLICATED and any(heads < ranks for heads in kv_heads) and not found:
        found.append(
            Refusal(
                "kv_heads_not_divisible",
                f"ZeroDivisionError: integer modulo by zero ({model.model_type} does not replicate its {kv_heads[0]} "
                f"KV heads over {ranks} ranks)",
                f"use --tensor-parallel-size {kv_heads[0]}",
            )
        )
    if settings.pipeline_parallel_size > 1 and any(isinstance(c, State) and c.replicated for c in caches):
        found.append(  # model_executor/models/config.py: Qwen4ExpForConditionalGenerationConfig
            Refusal(
                "pipeline_parallel_embedding",
                "Qwen4Exp N-gram PLE embedding requires pipeline_parallel_size=1 because non-first pipeline ranks do "
                "not receive the raw input_ids it needs. Please run with PP=1.",
                "leave --pipeline-parallel-size out and raise --tensor-parallel-size",
            )
        )
    if shards > 1:
        found += _context_parallel_refusals(model, caches, ranks, shards)
    return found


def _context_parallel_refusals(model: Model, caches: Sequence[object], ranks: int, shards: int) -> list[Refusal]:
    if ranks % shards:
        return [
            Refusal(
                "context_parallel_not_divisible",
                f"tp_size={ranks} must be divisible by dcp_size={shards}.",
                f"use --decode-context-parallel-size {_divisor_below(ranks, shards)}",
            )
        ]
    if any(isinstance(cache, Attention) and cache.window for cache in caches):
        return [
            Refusal(
                "context_parallel_sliding_window",
                "DCP not support sliding window.",
                "leave --decode-context-parallel-size out for this model",
            )
        ]
    attention = [cache for cache in caches if isinstance(cache, Attention)]
    if not attention or any(isinstance(cache, Latent) for cache in caches):
        return []
    heads = attention[0].kv_heads
    if ranks <= heads:
        return [
            Refusal(
                "context_parallel_needs_replicas",
                f"Decode context parallelism for GQA/MQA requires `--tensor-parallel-size` ({ranks}) to be greater "
                f"than the model's total number of KV heads ({heads}). Increase `--tensor-parallel-size` or set "
                "`--decode-context-parallel-size 1`.",
                f"use --tensor-parallel-size {heads * shards} or leave --decode-context-parallel-size out",
            )
        ]
    if shards > ranks // heads or (model.attention_heads // heads) % shards:
        return [
            Refusal(
                "context_parallel_too_large",
                f"`--decode-context-parallel-size` ({shards}) exceeds the maximum supported value ({ranks // heads}) "
                f"for `--tensor-parallel-size` ({ranks}) and {heads} model KV heads, or does not divide the "
                f"{model.attention_heads // heads} query heads of each.",
                f"use --decode-context-parallel-size {_divisor_below(ranks // heads, shards)}",
            )
        ]
    return []


def _ranks_that_divide(model: Model, kv_heads: Sequence[int], limit: int) -> int:
    """The most ranks up to `limit` that share the heads of every layer evenly."""
    return next(
        n
        for n in range(limit, 0, -1)
        if model.attention_heads % n == 0 and all(heads % n == 0 or n % heads == 0 for heads in kv_heads)
    )


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


def _memory_refusals(stages: Sequence[Stage], pool: Pool) -> list[Refusal]:
    """v1/core/kv_cache_utils.py: _check_enough_kv_cache_memory, stage by stage; the first that fails speaks."""
    held_back = pool.num_blocks - pool.checked_blocks  # the null block
    for stage, blocks in zip(stages, pool.stage_blocks, strict=True):
        checked, per_block = max(0, blocks - held_back), stage.layout.bytes_per_block
        if not per_block:
            return [
                Refusal(
                    "stage_without_cache",
                    f"the pipeline stage of layers {stage.first} to {stage.end - 1} has no cache of its own: they "
                    "read that of another stage, which cannot be reached from there",
                    "use fewer pipeline stages",
                )
            ]
        if not checked:
            return [
                Refusal(
                    "no_kv_memory",
                    "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
                    "initializing the engine.",
                    "quantise the weights, raise --gpu-memory-utilization, or use more tensor-parallel ranks",
                )
            ]
        if pool.blocks_per_request > checked:
            return [_too_long(stage.layout, checked, per_block, pool)]
    return []


def _too_long(layout: Layout, checked: int, per_block: int, pool: Pool) -> Refusal:
    estimate = layout.largest_length(checked, pool.max_model_len)
    needed = pool.blocks_per_request * per_block
    based = f"Based on the available memory, the estimated maximum model length is {estimate}. " if estimate else ""
    length = min(estimate, pool.largest_max_model_len)
    return Refusal(
        "max_model_len_too_large",
        f"To serve at least one request with the model's max seq len ({pool.max_model_len}), "
        f"({_gib(needed)} GiB KV cache is needed, which is larger than the available KV cache memory "
        f"({_gib(checked * per_block)} GiB). {based}"
        "Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.",
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
            f"stage's memory with all layers; the stages themselves would hold {pool.largest_max_model_len} tokens.",
            f"use --max-model-len {estimate}, or a newer vLLM, which checks stage by stage",
        )
    ]


def _gib(size: int) -> str:
    """As the engine prints it (utils/mem_utils.py: format_gib)."""
    return f"{round(size / GIB, 2)}"
