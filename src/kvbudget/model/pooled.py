"""Decides the caches of hybrids whose sparse attention chooses among pooled keys: GLM5-Next and Qwen4-Exp.

Beside the pooled keys a layer keeps those of the pool that is not full yet. Caches are in the order in which vLLM 0.32
(`models/glm5next`, `models/qwen4_exp`) registers them.
"""

from typing import TYPE_CHECKING

from kvbudget.errors import BadConfigError, UnsupportedError
from kvbudget.model.attention import LARGEST_HEAD_SIZE, LARGEST_HEADS, attention_of
from kvbudget.model.fields import LARGEST_LAYERS, Fields
from kvbudget.model.latent import draft_count, latent_of
from kvbudget.model.layers import Indexer, Layer, Ring, State
from kvbudget.model.states import LARGEST_KERNEL, delta_net_state, kimi_delta_state, matrix_dtype

if TYPE_CHECKING:
    from kvbudget.model.families.family import Family

_RECURRENT = "linear_attention"
_SPARSE_NAMES = ("indexed_attention", "full_attention", "qwen_sparse_attention")
_HALF = 2  # bytes of the raw keys, which are bf16 whatever the format
_LARGEST_POOL = 1_000
_ROPE_AXES = 3
_POSITION = 4  # a position takes as much as four bf16 elements, and lies at a multiple of that


def pooled_latent_layers(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """GLM5-Next: KDA in three of four layers, MLA with a pooled indexer in the others. Every indexer is its own."""
    state = _kimi_state(fields)
    sparse = _pooled_latent(fields)
    return tuple(Layer((state,)) if recurrent else sparse for recurrent in _recurrent(fields))


def pooled_latent_drafts(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """GLM5-Next's MTP modules are MLA layers."""
    return (_pooled_latent(fields),) * draft_count(fields)


def pooled_layers(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """Qwen4-Exp: gated delta net in three of four layers; the first ones may also convolve an embedding of n-grams."""
    recurrent = _recurrent(fields)
    state = delta_net_state(fields, matrix_dtype(fields, "mamba_ssm_dtype"))
    sparse = _pooled(fields, model_type)
    embedded = fields.counts("ple_layer_ids")  # counted from 1
    if any(not 1 <= index <= len(recurrent) for index in embedded):
        raise BadConfigError(
            f"config.json: ple_layer_ids names a layer that is not one of 1 to {len(recurrent)}",
            fix="correct ple_layer_ids",
        )
    layers = [Layer((state,)) if own else sparse for own in recurrent]
    for index in frozenset(embedded):
        layers[index - 1] = Layer((_embedding_state(fields), *layers[index - 1].caches))
    return tuple(layers)


def pooled_drafts(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """Qwen4-Exp's MTP modules are attention layers like the model's."""
    return (_pooled(fields, model_type),) * draft_count(fields)


def _recurrent(fields: Fields) -> list[bool]:
    count = fields.count("num_hidden_layers", high=LARGEST_LAYERS)
    names = fields.texts("layer_types")
    if names is None:
        interval = fields.count("full_attention_interval", high=LARGEST_LAYERS)
        return [bool((index + 1) % interval) for index in range(count)]
    if len(names) != count:
        raise BadConfigError(
            f"config.json: layer_types has {len(names)} entries, but there are {count} layers",
            fix="one entry of layer_types for each layer",
        )
    for name in names:
        if name != _RECURRENT and name not in _SPARSE_NAMES:
            raise UnsupportedError(f"layer_types {name[:40]!r} is unknown", fix=f"{_RECURRENT} or {_SPARSE_NAMES[0]}")
    return [name == _RECURRENT for name in names]


def _pooled_latent(fields: Fields) -> Layer:
    size = fields.count("index_head_dim", high=LARGEST_HEAD_SIZE)
    pool = fields.count("index_kpool", low=2, high=_LARGEST_POOL)
    # a raw key and its score
    return Layer((Indexer(size, pool), Ring("glm5_next", 2 * size, _HALF, pool), latent_of(fields)))


def _kimi_state(fields: Fields) -> State:
    section = fields.section("linear_attn_config")
    own = fields if section is None else Fields(section, {}, {})
    heads, size, kernel = ("linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim")
    if section is not None:
        heads, size, kernel = "num_heads", "head_dim", "short_conv_kernel_size"
    return kimi_delta_state(
        own.count(heads, high=LARGEST_HEADS),
        own.count(size, high=LARGEST_HEAD_SIZE),
        own.count(kernel, high=LARGEST_KERNEL),
    )


def _pooled(fields: Fields, model_type: str) -> Layer:
    attention = attention_of(fields, model_type)
    if fields.optional_count("indexer_n_heads", high=LARGEST_HEADS) is None:
        return Layer((attention,))
    size = fields.count("indexer_head_dim", high=LARGEST_HEAD_SIZE)
    ratio = fields.count("indexer_compress_ratio", high=_LARGEST_POOL)
    ring = Ring("qwen4_exp", size, _HALF, ratio, _position_bytes(fields, size))
    return Layer((ring, Indexer(size, ratio, plain=True), attention))


def _position_bytes(fields: Fields, size: int) -> int:
    """Rotary positions of images beside each raw key (vLLM 0.32 models/qwen4_exp/common/qsa_cache.py)."""
    if "mrope_section" not in (fields.section("rope_parameters") or fields.section("rope_scaling") or {}):
        return 0
    return (-size % _POSITION + _ROPE_AXES * _POSITION) * _HALF


def _embedding_state(fields: Fields) -> State:
    """The convolution over a per-layer embedding, dilated by the n-gram's length; the same on all ranks."""
    channels = fields.count("hidden_size") * fields.count("hc_count", high=100)
    kernel = fields.count("ple_conv_kernel_size", high=LARGEST_KERNEL)
    taps = (kernel - 1) * fields.count("ngram_size", high=100)
    return State("conv", channels, taps, 0, 0, replicated=True)
