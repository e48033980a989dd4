"""Decides what a model is of which only a shape is known: so many layers of so many KV heads, all with full attention.

The sliders of the ledger page, and whoever computes on paper first, know no more. It holds keys and values as any model
of that shape does; its weights are not known, but those of a plain decoder around it can be taken for them.
"""

from typing import NamedTuple

from kvbudget.errors import BadValueError
from kvbudget.model.read import Model, model_from_config
from kvbudget.units import Bytes

_HEADS = 32  # attention heads of a model of which only the KV heads are given, at least
_LONGEST = 10**9
_UNKNOWN = "only the shape of its cache is known; say how large they are"


class Precision(NamedTuple):
    """How an element is stored. `flag`: vLLM's --kv-cache-dtype. `bits`: of one element in the end, scales and all,
    where no engine has the format (0: the engine's own rule decides). `note`: for people."""

    flag: str
    bits: int
    note: str


# 2 bits in groups of 32 with a 16-bit scale and zero point each (KIVI, arXiv 2402.02750, section 4): 2 + 32 / 32.
_TWO_BIT_WITH_SCALES = 3
PRECISIONS = {
    "fp16": Precision("auto", 0, "16-bit, as most models are stored"),
    "fp8": Precision("fp8", 0, "8-bit floats; vLLM --kv-cache-dtype fp8"),
    "int4": Precision("int4_per_token_head", 0, "4-bit, and a 32-bit scale for each key and value of a head"),
    "int2": Precision("fp8", _TWO_BIT_WITH_SCALES, "2-bit with 16-bit scale and zero for each 32; in no engine yet"),
}


class Shape(NamedTuple):
    """Layers, KV heads of each, elements of a head, and the name of a precision."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: str


def precision_named(name: str) -> Precision:
    """Raises BadValueError for a name that is none."""
    if name not in PRECISIONS:
        raise BadValueError(f"dtype: {name[:40]!r} is no precision", fix=f"one of {', '.join(PRECISIONS)}")
    return PRECISIONS[name]


def plain_weights(shape: Shape) -> Bytes:
    """What the weights of a plain decoder around that shape take in 16 bits: as many attention heads as KV heads, 32 at
    least, a feed-forward of four times their width, 32,000 words. Of Llama-3.1-8B's shape 15.0 GiB, as it has."""
    heads = _heads_of(shape)
    model = model_from_config(_config(shape, heads, shape.head_dim), "a plain decoder")
    assert model.parameters is not None  # noqa: S101 - nothing in it is unknown
    return Bytes(2 * model.parameters.text_total)


def model_of_shape(shape: Shape) -> tuple[Model, str]:
    """(the model, its kv_cache_dtype). A format that no engine has is written as the 8-bit head of as many bytes."""
    precision = precision_named(shape.dtype)
    head = -(-shape.head_dim * precision.bits // 8) if precision.bits else shape.head_dim
    name = f"{shape.layers} layers, {shape.kv_heads} KV heads of {shape.head_dim}, {shape.dtype}"
    model = model_from_config(_config(shape, _heads_of(shape), head), name)
    return model._replace(parameters=None, weights_unknown=_UNKNOWN), precision.flag


def _heads_of(shape: Shape) -> int:
    heads = max(_HEADS, shape.kv_heads)
    return heads + -heads % shape.kv_heads


def _config(shape: Shape, heads: int, head: int) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": shape.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": head,
        "hidden_size": heads * head,
        "intermediate_size": 4 * heads * head,
        "vocab_size": 32000,
        "max_position_embeddings": _LONGEST,
    }
