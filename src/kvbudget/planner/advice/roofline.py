"""Decides how fast a card can be at best: time of a prefill and of a decode step from flops and memory bandwidth.

A roofline: the longer of (arithmetic / flops) and (bytes / bandwidth), each divided by the share of the peak that
serving engines reach in public measurements. Communication between ranks, sampling and scheduling are left out. Every
figure is an estimate, given as a range.
"""

from typing import NamedTuple

from kvbudget.model.layers import Attention, Cache, Compressed, CrossAttention, Indexer, Latent, State
from kvbudget.planner.request import Plan

# Shares of the peak, low to high: prefill of dense models on current cards reaches 35 to 65 % of the dense flops that
# the maker states, decode 50 to 85 % of the memory bandwidth (published engine and kernel benchmarks, 2024 to 2026).
_PREFILL_SHARES = (0.35, 0.65)
_BANDWIDTH_SHARES = (0.50, 0.85)
# DeepSeek-V3.2 config.json: index_n_heads 64, index_topk 2048: an indexer looks at every token, attention at its picks.
_INDEXER_HEADS = 64
_INDEXER_PICKS = 2048
_EIGHT_BIT_ARITHMETIC = ("fp8", "nvfp4", "mxfp8")  # formats whose activations are not 16-bit


class Range(NamedTuple):
    """Seconds, best case first."""

    low: float
    high: float


class Card(NamedTuple):
    """Peak of one card; 0: unknown. `flops` for the precision of the weights, dense."""

    name: str
    flops: float
    bytes_per_s: float

    @property
    def known(self) -> bool:
        """Whether anything can be estimated."""
        return self.flops > 0 and self.bytes_per_s > 0


def card_of(plan: Plan) -> Card:
    """The plan's card. 8-bit weights use the 8-bit flops where the card has them."""
    gpu = plan.request.gpu
    if gpu is None:
        return Card("", 0.0, 0.0)
    flops = gpu.bf16_flops
    quantisation = plan.request.model.quantization
    formats = {target.format.name for target in quantisation.targets if target.format} if quantisation else set()
    if any(name.startswith(_EIGHT_BIT_ARITHMETIC) for name in formats):
        flops = gpu.fp8_flops or flops
    return Card(gpu.name, float(flops), float(gpu.memory_bandwidth_bytes_per_s))


def active_parameters(plan: Plan) -> tuple[int, str]:
    """(parameters that one token passes through, where that comes from); 0 when not known."""
    parameters, settings = plan.request.model.parameters, plan.settings
    if parameters is not None and parameters.active > 0:
        return parameters.active, "active parameters by config.json"
    ranks = settings.tensor_parallel_size * settings.pipeline_parallel_size
    return plan.memory.weights.bytes * ranks // settings.element_bytes, "from the size of the weights"


def attention_flops(plan: Plan, tokens: int, start: int = 0) -> int:
    """Operations of attention for `tokens` tokens that follow `start` others, over all layers and ranks.

    Each token takes 2 operations for every element of every query head, for keys and for values, and every token it
    sees.
    """
    heads = plan.request.model.attention_heads
    caches = [cache for layer in plan.request.model.layers for cache in layer.caches]
    if any(isinstance(cache, Indexer) for cache in caches):  # layers that share an indexer have none of their own
        caches = [cache._replace(window=_INDEXER_PICKS) if isinstance(cache, Latent) else cache for cache in caches]
    return sum(_cache_flops(cache, heads, start, tokens) for cache in caches)


def prefill_s(plan: Plan, tokens: int) -> Range | None:
    """Seconds to read a prompt of so many tokens alone; None when the card or the parameters are not known.

    Pipeline stages do not shorten one prompt: it passes them one after the other.
    """
    card, (active, _) = card_of(plan), active_parameters(plan)
    if not (card.known and active):
        return None
    work = 2 * active * tokens + attention_flops(plan, tokens)
    peak = card.flops * plan.settings.tensor_parallel_size
    low, high = _PREFILL_SHARES
    weights = _weights_on_a_path(plan) / card.bytes_per_s
    return Range(max(work / peak / high, weights), max(work / peak / low, weights))


def decode_step_s(plan: Plan, running: int, tokens: int) -> Range | None:
    """Seconds of one step in which `running` requests of `tokens` tokens each get one more; None when not known.

    Every weight and every kept byte is read once. Of a mixture of experts all are: small batches are faster.
    """
    card, (active, _) = card_of(plan), active_parameters(plan)
    if not (card.known and active):
        return None
    moved = (
        _weights_on_a_path(plan) + running * plan.stage.layout.bytes_for(tokens) * plan.settings.pipeline_parallel_size
    )
    work = running * (2 * active + attention_flops(plan, 1, tokens)) / plan.settings.tensor_parallel_size
    low, high = _BANDWIDTH_SHARES
    slow, fast = _PREFILL_SHARES
    return Range(
        max(moved / card.bytes_per_s / high, work / card.flops / fast),
        max(moved / card.bytes_per_s / low, work / card.flops / slow),
    )


def _weights_on_a_path(plan: Plan) -> int:
    """Bytes of one tensor-parallel rank, all pipeline stages together."""
    return plan.memory.weights.bytes * plan.settings.pipeline_parallel_size


def _cache_flops(cache: Cache, heads: int, start: int, tokens: int) -> int:
    if isinstance(cache, State):
        return 6 * cache.matrix_elements * tokens  # decay, update and read of the whole state
    if isinstance(cache, Attention):
        if cache.chunk is None:
            seen = _seen(start, tokens, cache.window)
        else:
            seen = tokens * min(cache.chunk, start + tokens) // 2
        width = cache.key_size + cache.value_size
    elif isinstance(cache, Latent):
        seen, width = _seen(start, tokens, cache.window), cache.key_size + cache.value_size
    elif isinstance(cache, CrossAttention):
        seen, width = tokens * cache.encoder_tokens, cache.key_size + cache.value_size
    elif isinstance(cache, Compressed):
        seen, width = _seen(start, tokens, cache.window) // cache.ratio, 2 * cache.head_size
    elif isinstance(cache, Indexer):
        return 2 * _INDEXER_HEADS * cache.head_size * _seen(start, tokens, None)
    else:
        return 0  # compressors: linear and small
    return 2 * heads * width * seen


def _seen(start: int, tokens: int, window: int | None) -> int:
    """Tokens that are looked at, summed over `tokens` tokens after `start`: each sees itself and all before it."""
    end = start + tokens
    if window is None:
        return (end * (end + 1) - start * (start + 1)) // 2
    growing = max(0, min(end, window) - start)
    below = min(start, window)
    return ((below + growing) * (below + growing + 1) - below * (below + 1)) // 2 + (tokens - growing) * window
