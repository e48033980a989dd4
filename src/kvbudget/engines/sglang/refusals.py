"""When SGLang would refuse to start, in its own words and in the order in which it would meet the reason."""

from kvbudget.engines.flags import Settings
from kvbudget.engines.rule import Pool, Refusal, Taken
from kvbudget.model.layers import Attention
from kvbudget.model.read import Model
from kvbudget.pool.groups import LayerKind, Layout
from kvbudget.units import GIB


def refusals_of(model: Model, settings: Settings, layout: Layout, pool: Pool) -> list[Refusal]:
    """All of them; empty when it would start."""
    return (
        _head_refusals(model, settings) + _length_refusals(model, settings) + _memory_refusals(settings, layout, pool)
    )


def overruns_of(settings: Settings, total: int, taken: Taken, pool: Pool) -> list[Refusal]:
    """At most one: weights, pool, graphs and one prefill chunk need more than the card's `total` bytes.

    model_executor/runner: graphs are captured when the pool is there already, and the first prefill runs after that.
    """
    left = total - taken.non_torch - taken.weights - pool.bytes
    if pool.num_blocks <= 0 or left >= taken.activation + taken.cuda_graphs:
        return []
    if left < taken.cuda_graphs:
        said = "Capture cuda graph failed: CUDA out of memory."
    else:
        said = f"CUDA out of memory in the first prefill of {settings.max_num_batched_tokens} tokens."
    needed = taken.activation + taken.cuda_graphs
    share = (total - taken.non_torch - needed) * 100 // max(1, total - taken.non_torch)
    enough = share > 0 and taken.weights * 100 < share * (total - taken.non_torch)
    return [
        Refusal(
            "beyond_the_card",
            f"{said} Weights and pool leave {max(0, left) / GIB:.2f} GiB of the card, CUDA graphs and one chunk need "
            f"{needed / GIB:.2f} GiB.",
            f"use --gpu-memory-utilization {share / 100:g} (--mem-fraction-static)"
            if enough
            else "quantise the weights, or use more tensor-parallel ranks",
        )
    ]


def _head_refusals(model: Model, settings: Settings) -> list[Refusal]:
    """layers/linear.py and the model classes assert it."""
    ranks = settings.tensor_parallel_size
    kv_heads = {c.kv_heads for layer in dict.fromkeys(model.layers) for c in layer.caches if isinstance(c, Attention)}
    uneven = next((heads for heads in sorted(kv_heads) if heads % ranks and ranks % heads), 0)
    if model.attention_heads % ranks == 0 and not uneven:
        return []
    heads = uneven or model.attention_heads
    fitting = next(n for n in range(min(ranks, heads), 0, -1) if heads % n == 0 and model.attention_heads % n == 0)
    return [
        Refusal(
            "heads_not_divisible",
            f"{heads} heads cannot be shared out over tensor parallel size {ranks} (assertion in the model class).",
            f"use --tensor-parallel-size {fitting}",
        )
    ]


def _length_refusals(model: Model, settings: Settings) -> list[Refusal]:
    """configs/model_config.py: _derive_context_length."""
    limit = model.longest_given
    if limit is None or settings.max_model_len <= limit:
        return []
    return [
        Refusal(
            "max_model_len_beyond_model",
            f"Warning: User-specified context_length ({settings.max_model_len}) is greater than the derived "
            f"context_length ({limit}). This may lead to incorrect model outputs or CUDA errors.",
            f"use --max-model-len {limit}",
        )
    ]


def _memory_refusals(settings: Settings, layout: Layout, pool: Pool) -> list[Refusal]:
    """pool_configurator.py: MemoryPoolConfig, validate_swa_pool_size; kv_cache_configurator.py."""
    if pool.num_blocks <= 0:
        capped = 0 < settings.max_pool_tokens < settings.block_size
        return [
            Refusal(
                "no_kv_memory",
                "Not enough memory. Please try to increase --mem-fraction-static. Current value: "
                f"mem_fraction_static={settings.gpu_memory_utilization:g}",
                f"use --max-total-tokens {settings.block_size} or more: a page holds so many"
                if capped
                else "quantise the weights, raise --gpu-memory-utilization (--mem-fraction-static), or use more "
                "tensor-parallel ranks",
            )
        ]
    sliding = next((group for group in layout.groups if group.kind is LayerKind.SLIDING), None)
    if sliding is None or sliding is layout.groups[0]:
        return []
    page = settings.block_size
    held, window = int(pool.tokens * 0.8) // page * page, sliding.most_tokens - page
    if window + page < held:
        return []
    return [
        Refusal(
            "no_kv_memory",
            f"SWA pool ({held} tokens) cannot hold even one request: the prefill admission floor is "
            f"sliding_window_size ({window}) + page_size ({page}). Increase --swa-full-tokens-ratio or the total KV "
            "budget.",
            "raise --gpu-memory-utilization (--mem-fraction-static)",
        )
    ]
