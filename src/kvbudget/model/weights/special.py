"""Decides the weights of layers that follow rules of their own: Gemma, DeepSeek-V4, Zamba, pruned models.

Each was checked against the same model of vLLM 0.32, built without memory.
"""

from typing import NamedTuple

from kvbudget.errors import BadConfigError
from kvbudget.model.fields import LARGEST_LAYERS, Fields
from kvbudget.model.layers import Compressed, Layer
from kvbudget.model.weights.attention import add_latent
from kvbudget.model.weights.feedforward import FeedForward, add_feed_forward, dense_inner, has_experts
from kvbudget.model.weights.matrices import Parts
from kvbudget.model.weights.mixers import add_mixer
from kvbudget.model.weights.rule import WeightRule


class Top(NamedTuple):
    """Weights outside of the layers, besides embedding, last norm and head."""

    split: int = 0
    whole: int = 0


def special_feed_forward(fields: Fields, rule: WeightRule, index: int, *, shared: bool) -> FeedForward | None:
    """The feed-forward part of layer `index`, None when the common rule holds."""
    if rule.special == "gemma4":
        doubled = 2 if shared and fields.flag("use_double_wide_mlp") else 1
        return FeedForward(doubled * dense_inner(fields, rule), experts=fields.flag("enable_moe_block"))
    if rule.special == "gemma3n":
        given = fields.given("intermediate_size")
        sizes = fields.counts("intermediate_size") if isinstance(given, list) else ()
        return FeedForward(sizes[index] if index < len(sizes) else fields.count("intermediate_size"))
    if rule.special == "nemotron_h":
        return _lettered(fields, rule, _pattern(fields), index)
    if rule.special == "pruned":
        return _pruned(fields, rule, index)
    if rule.special == "lfm2":
        return _lfm2(fields, rule, index)
    if rule.special in ("none", "longcat", "deepseek_v4", "zamba2"):
        return FeedForward(0)
    if rule.special == "granite":
        inner = fields.optional_count("shared_intermediate_size", low=0) or 0
        return FeedForward(inner, experts=rule.experts is not None and has_experts(fields, rule.experts, index))
    return None


def special_layer(parts: Parts, fields: Fields, rule: WeightRule, layer: Layer, index: int) -> None:
    """Add what a layer has besides its attention or mixer, feed-forward part and norms."""
    hidden = fields.count("hidden_size")
    if rule.special == "gemma4":
        _gemma4(parts, fields, hidden)
    elif rule.special == "gemma3n":
        _gemma3n(parts, fields, hidden)
    elif rule.special == "deepseek_v4":
        _deepseek_v4(parts, fields, rule, layer, index)
    elif rule.special == "zamba2":
        _zamba2(parts, fields, layer, index)
    elif rule.special == "longcat":
        for half in range(2):
            add_feed_forward(parts, fields, rule._replace(mlp=f"mlps.{half}"), FeedForward(dense_inner(fields, rule)))
        add_feed_forward(parts, fields, rule, FeedForward(0, experts=True))
    elif rule.special == "kimi" and fields.optional_count("attn_res_block_size") is not None:
        parts.whole += 4 * hidden  # a norm and a projection to one number before attention and before the experts


def special_attention(parts: Parts, fields: Fields, rule: WeightRule, layer: Layer, index: int) -> bool:
    """Add the attention of layers whose caches do not tell it; False when the common rule holds."""
    if rule.special == "deepseek_v4":
        return True
    if rule.special == "zamba2" and len(layer.caches) > 1 and index not in _zamba2_blocks(fields):
        add_mixer(parts, fields, rule, layer.caches[1])  # type: ignore[arg-type]
        return True
    if rule.special == "longcat":
        for half, latent in enumerate(layer.caches):
            add_latent(parts, fields, rule, latent, f"self_attn.{half}")  # type: ignore[arg-type]
        return True
    return False


def special_top(fields: Fields, rule: WeightRule, layers: int) -> Top:
    """What the model has outside of its layers."""
    hidden = fields.count("hidden_size")
    width = fields.optional_count("hidden_size_per_layer_input", low=0) or 0
    if rule.special in ("gemma4", "gemma3n") and width:
        rows = fields.optional_count("vocab_size_per_layer_input") or fields.count("vocab_size")
        split = (rows + hidden) * layers * width
        inputs = fields.optional_count("altup_num_inputs") or 4
        streams = 2 * (inputs - 1) * hidden * hidden if rule.special == "gemma3n" else 0
        return Top(split, width + streams)
    if rule.special == "deepseek_v4":
        copies = fields.count("hc_mult", high=100)
        return Top(0, copies * copies * hidden + copies + 1)
    if rule.special == "kimi" and fields.optional_count("attn_res_block_size") is not None:
        return Top(0, 2 * hidden)
    return Top()


def _gemma4(parts: Parts, fields: Fields, hidden: int) -> None:
    width = fields.optional_count("hidden_size_per_layer_input", low=0) or 0
    if width:
        parts.matrix("per_layer_input_gate", width, hidden, ranks=1)
        parts.matrix("per_layer_projection", hidden, width, ranks=1)
        parts.whole += hidden
    if fields.flag("enable_moe_block"):
        parts.whole += 4 * hidden + fields.count("num_experts")  # three more norms, and scales of the router


def _gemma3n(parts: Parts, fields: Fields, hidden: int) -> None:
    """AltUp and LAuReL beside every layer (transformers 5.19 `models/gemma3n/modeling_gemma3n.py`)."""
    inputs = fields.count("altup_num_inputs", high=100)
    rank = fields.count("laurel_rank")
    width = fields.count("hidden_size_per_layer_input")
    parts.whole += inputs**2 + inputs**3 + (inputs + 2) * hidden
    parts.matrix("laurel.linear_left", rank, hidden, ranks=1)
    parts.matrix("laurel.linear_right", hidden, rank, ranks=1)
    parts.matrix("per_layer_input_gate", width, hidden, ranks=1)
    parts.matrix("per_layer_projection", hidden, width, ranks=1)
    parts.whole += 2 * hidden


def _deepseek_v4(parts: Parts, fields: Fields, rule: WeightRule, layer: Layer, index: int) -> None:
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    size, rank = fields.count("head_dim"), fields.count("q_lora_rank")
    groups, low = fields.count("o_groups"), fields.count("o_lora_rank")
    copies = fields.count("hc_mult", high=100)
    mixed = copies * (copies + 2)
    parts.whole += 2 * (mixed * copies * hidden + mixed + 3)
    parts.matrix("attn.wq_a", rank, hidden, ranks=1)
    parts.matrix("attn.wkv", size, hidden, ranks=1)
    parts.matrix("attn.wq_b", heads * size, rank)
    parts.matrix("attn.wo_a", groups * low, heads * size // groups)
    parts.matrix("attn.wo_b", hidden, groups * low)
    parts.whole += rank + size
    parts.split += heads
    _compressors(parts, fields, layer, hidden, size, rank)
    add_feed_forward(parts, fields, rule, FeedForward(0, experts=True))
    count = fields.count("n_routed_experts")
    hashed = index < (fields.optional_count("num_hash_layers", low=0, high=LARGEST_LAYERS) or 0)
    parts.whole += fields.count("vocab_size") * fields.count("num_experts_per_tok") if hashed else count


def _compressors(parts: Parts, fields: Fields, layer: Layer, hidden: int, size: int, rank: int) -> None:
    """A compressor of a layer with a compressed cache; where four tokens share a vector, an indexer with its own."""
    ratio = next((cache.ratio for cache in layer.caches if isinstance(cache, Compressed) and cache.ratio > 1), 0)
    if not ratio:
        return
    overlap = 2 if ratio == 4 else 1
    parts.matrix("attn.compressor.wkv_gate", 2 * overlap * size, hidden, ranks=1)
    parts.whole += ratio * overlap * size + size
    if ratio == 4:
        heads, width = fields.count("index_n_heads"), fields.count("index_head_dim")
        parts.matrix("attn.indexer.wq_b", heads * width, rank, ranks=1)
        parts.matrix("attn.indexer.compressor.wkv_gate", 4 * width, hidden, ranks=1)
        parts.whole += heads * hidden + 8 * width + width


def _zamba2(parts: Parts, fields: Fields, layer: Layer, index: int) -> None:
    """Hybrid layers have a projection of their own and use a shared transformer, counted with the first of them."""
    hidden = fields.count("hidden_size")
    if len(layer.caches) < 2:
        return
    parts.matrix("linear", hidden, hidden, ranks=1)
    if index not in _zamba2_blocks(fields):
        return
    inner = fields.count("intermediate_size")
    rank = fields.optional_count("adapter_rank", low=0) or 0
    hybrids, blocks = _zamba2_hybrids(fields), _zamba2_blocks(fields)
    adapters = -(-len(hybrids) // len(blocks))
    parts.matrix("shared_transformer.feed_forward.gate_up_proj", 2 * inner, hidden)
    parts.matrix("shared_transformer.feed_forward.down_proj", hidden, inner)
    parts.matrix("shared_transformer.adapters", rank, hidden, copies=adapters, ranks=1)
    parts.matrix("shared_transformer.adapters", 2 * inner, rank, copies=adapters)
    parts.whole += 3 * hidden


def _zamba2_blocks(fields: Fields) -> list[int]:
    """The layers with which the shared transformers are counted: the first hybrid ones."""
    return _zamba2_hybrids(fields)[: fields.optional_count("num_mem_blocks", high=1000) or 1]


def _zamba2_hybrids(fields: Fields) -> list[int]:
    names = fields.texts("layers_block_type")
    if names:
        return [index for index, name in enumerate(names) if name == "hybrid"]
    return list(fields.counts("hybrid_layer_ids")) or [6, 12, 18, 24, 30, 36, 42, 47, 51]  # class default


def _lettered(fields: Fields, rule: WeightRule, pattern: tuple[str, ...], index: int) -> FeedForward:
    name = pattern[index] if index < len(pattern) else ""
    if name in ("E", "moe"):
        return FeedForward(0, experts=True)
    return FeedForward(dense_inner(fields, rule) if name in ("-", "mlp") else 0)


def _pattern(fields: Fields) -> tuple[str, ...]:
    named = fields.texts("layers_block_type") or fields.texts("layer_types")
    return named if named is not None else tuple(fields.text("hybrid_override_pattern"))


def _pruned(fields: Fields, rule: WeightRule, index: int) -> FeedForward:
    """`ffn_mult` of the block, rounded up to a multiple of 256 (vLLM 0.32 `models/nemotron_nas.py`)."""
    blocks = fields.raw.get("block_configs")
    if not isinstance(blocks, list):
        return FeedForward(dense_inner(fields, rule))
    block = blocks[index] if index < len(blocks) else None
    part = block.get("ffn") if isinstance(block, dict) else None
    if not isinstance(part, dict):
        raise BadConfigError("config.json: an entry of block_configs has no ffn", fix="correct block_configs")
    hidden = fields.count("hidden_size")
    if part.get("no_op"):
        return FeedForward(0)
    own = Fields(part, {}, {}).optional_count("intermediate_size")
    multiple = part.get("ffn_mult")
    if own is None and isinstance(multiple, int | float) and 0 < multiple < 1000:
        own = -(-int(2 * multiple * hidden / 3) // 256) * 256
    return FeedForward(own or dense_inner(fields, rule))


def _lfm2(fields: Fields, rule: WeightRule, index: int) -> FeedForward:
    """block_auto_adjust_ff_dim: two thirds, times a factor, rounded up (vLLM 0.32 `models/lfm2.py`)."""
    if rule.experts is not None and has_experts(fields, rule.experts, index):
        return FeedForward(0, experts=True)
    inner = dense_inner(fields, rule)
    if rule.experts is None and fields.flag("block_auto_adjust_ff_dim"):
        inner = int(2 * inner / 3)
        factor = fields.given("block_ffn_dim_multiplier")
        if isinstance(factor, int | float) and 0 < factor < 1000:
            inner = int(factor * inner)
        multiple = fields.optional_count("block_multiple_of") or 256
        inner = -(-inner // multiple) * multiple
    return FeedForward(inner)
