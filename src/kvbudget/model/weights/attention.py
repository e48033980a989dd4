"""Decides which weights an attention has: query, key, value and output matrices, or those of MLA and its indexer.

What every rank holds whole is what vLLM 0.32 replicates: norms, MLA's down projections (`models/deepseek_v2.py`:
fused_qkv_a_proj), the whole indexer; keys and values are split over the KV heads at most.
"""

from kvbudget.model.fields import Fields
from kvbudget.model.layers import Attention, Cache, Indexer, Latent
from kvbudget.model.weights.matrices import Parts
from kvbudget.model.weights.rule import WeightRule


def add_attention(
    parts: Parts, fields: Fields, rule: WeightRule, cache: Attention, heads: int, *, keys: bool = True
) -> None:
    """Weights of one attention; `keys` false when it reads the keys and values of another layer."""
    hidden = fields.count("hidden_size")
    heads = _own_heads(fields, cache, heads)
    name = f"{rule.attention}." if rule.attention else ""
    query, output = heads * cache.key_size, heads * cache.value_size
    key = cache.kv_heads * cache.key_size if keys else 0
    value = cache.kv_heads * cache.value_size if keys else 0
    doubled = 2 if rule.gate == "query" and fields.flag("attn_output_gate") else 1
    width = 2 * hidden if rule.special == "zamba2" else hidden
    parts.matrix(name + "q_proj", doubled * query, width)
    parts.matrix(name + "k_proj", key, width, ranks=cache.kv_heads)
    parts.matrix(name + "v_proj", value, width, ranks=cache.kv_heads)
    parts.matrix(name + "o_proj", hidden, output)
    if rule.gate == "head":
        parts.matrix(name + "g_proj", heads if fields.flag("use_head_wise_attn_gate") else 0, hidden)
    elif rule.gate == "output":
        parts.matrix(name + "gate_proj", output, hidden)
    if is_set(fields, rule.qkv_bias):
        parts.split += query + key + value
    if is_set(fields, rule.out_bias):
        parts.whole += hidden
    if rule.qk_norm and (not rule.qk_norm_flag or fields.flag(rule.qk_norm_flag)):
        if rule.qk_norm == "head":
            parts.whole += cache.key_size * (2 if keys else 1)
        else:
            parts.split += query + key
    if rule.sinks == "all" or (rule.sinks == "flags" and fields.flag(_sink_flag(cache))):
        parts.split += heads


def add_latent(parts: Parts, fields: Fields, rule: WeightRule, latent: Latent, name: str = "") -> None:
    """Weights of one MLA. vLLM keeps the up projection twice, once absorbed (`layers/attention/mla_attention.py`)."""
    hidden = fields.count("hidden_size")
    name = f"{name or rule.attention}."
    query = latent.heads * latent.key_size
    rank = None if fields.is_null("q_lora_rank") else fields.optional_count("q_lora_rank", low=0)
    down = latent.latent_size + latent.rope_size
    if rank:
        parts.matrix(name + "q_a_proj", rank, hidden, ranks=1)
        parts.matrix(name + "q_b_proj", query, rank)
        parts.whole += rank
    else:
        parts.matrix(name + "q_proj", query, hidden)
    parts.matrix(name + "kv_a_proj_with_mqa", down, hidden, ranks=1)
    up = latent.heads * (latent.key_size - latent.rope_size + latent.value_size)
    parts.matrix(name + "kv_b_proj", up, latent.latent_size)
    parts.matrix(name + "o_proj", hidden, latent.heads * latent.value_size)
    parts.whole += latent.latent_size
    parts.second_copy += up * latent.latent_size
    if fields.flag("mla_use_output_gate"):
        parts.matrix(name + "g_proj", latent.heads * latent.value_size, hidden)
    if is_set(fields, rule.qkv_bias):
        parts.whole += (rank or 0) + down + hidden


def add_indexer(parts: Parts, fields: Fields, rule: WeightRule, indexer: Indexer) -> None:
    """Weights of a sparse-attention indexer beside an MLA; the fused key and weight projection is never quantised."""
    hidden = fields.count("hidden_size")
    heads = fields.count("index_n_heads")
    size = indexer.head_size
    parts.matrix(f"{rule.attention}.indexer.wq_b", heads * size, fields.count("q_lora_rank"), ranks=1)
    parts.whole += (size + heads) * hidden + 2 * size


def is_set(fields: Fields, rule: bool | str) -> bool:
    """A bias that is always or never there, or that a flag decides."""
    return fields.flag(rule) if isinstance(rule, str) else rule


def lender(
    caches: tuple[Cache, ...], types: tuple[str, ...] | None, index: int, first: dict[str, Cache]
) -> Cache | None:
    """The cache that layer `index` reads: its own, or that of the last earlier layer of its type."""
    name = types[index] if types is not None and index < len(types) else ""
    if caches:
        first[name] = caches[0]
        return caches[0]
    return first.get(name)


def _own_heads(fields: Fields, cache: Attention, heads: int) -> int:
    """Query heads of this layer: MiMo and Step give sliding layers their own number."""
    if cache.window is None:
        return heads
    own = fields.optional_count("swa_num_attention_heads")
    if own is None:
        other = fields.section("attention_other_setting")
        if other is not None and other.get("attention_type") == "sliding_attention":
            own = Fields(other, {}, {}).optional_count("num_attention_heads")
    return own or heads


def _sink_flag(cache: Attention) -> str:
    return "add_full_attention_sink_bias" if cache.window is None else "add_swa_attention_sink_bias"
