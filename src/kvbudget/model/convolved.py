"""Decides the caches of Inkling's layers: attention, full or sliding, and past inputs of four short convolutions."""

from typing import TYPE_CHECKING

from kvbudget.errors import BadConfigError
from kvbudget.model.attention import LARGEST_HEAD_SIZE, LARGEST_HEADS, divided_heads
from kvbudget.model.fields import LARGEST_DRAFT, LARGEST_LAYERS, Fields
from kvbudget.model.layers import Attention, ConvolutionWindow, Layer
from kvbudget.model.states import LARGEST_KERNEL

if TYPE_CHECKING:
    from kvbudget.model.families.family import Family

_KEY = "local_layer_ids"


def convolved_layers(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """local_layer_ids lists the layers that keep a window (vLLM 0.32 models/inkling/nvidia)."""
    count = fields.count("num_hidden_layers", high=LARGEST_LAYERS)
    if fields.raw.get(_KEY) is None:
        raise BadConfigError(
            f"config.json: {_KEY} is missing: five of six layers slide to the config class, none to vLLM 0.32",
            fix=f"add {_KEY}: the sliding layers' numbers from 0",
        )
    return _layers(fields, count, fields.counts(_KEY))


def convolved_drafts(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """The MTP modules that mtp_config counts; its local_layer_ids are those that slide."""
    own = Fields(fields.section("mtp_config") or {}, {}, {"num_nextn_predict_layers": 0})
    count = own.count("num_nextn_predict_layers", low=0, high=LARGEST_DRAFT)
    return _layers(fields, count, own.counts(_KEY)) if count else ()


def _layers(fields: Fields, count: int, local: tuple[int, ...]) -> tuple[Layer, ...]:
    if any(index >= count for index in local):
        raise BadConfigError(
            f"config.json: {_KEY} names layer {min(max(local), 10**9)}, but layers are 0 to {count - 1}",
            fix=f"correct {_KEY}",
        )
    sliding, full = _layer(fields, "swa_", fields.count("sliding_window_size")), _layer(fields, "", None)
    listed = frozenset(local)
    return tuple(sliding if index in listed else full for index in range(count))


def _layer(fields: Fields, prefix: str, window: int | None) -> Layer:
    heads = _own(fields, prefix, "num_attention_heads", LARGEST_HEADS)
    kv_heads = divided_heads(fields, heads, _own(fields, prefix, "num_key_value_heads", LARGEST_HEADS))
    size = _own(fields, prefix, "head_dim", LARGEST_HEAD_SIZE)
    hidden = fields.count("hidden_size")
    kernel = fields.optional_count("sconv_kernel_size", high=LARGEST_KERNEL)
    if kernel is None:
        kernel = fields.count("conv_kernel_size", high=LARGEST_KERNEL)
    # inputs of the convolutions over keys, values, the attention's output and the MLP's, shared out over the KV heads
    convolution = ConvolutionWindow(kv_heads, 2 * size + 2 * (hidden // kv_heads), kernel)
    return Layer((convolution, Attention(kv_heads, size, size, window=window)))


def _own(fields: Fields, prefix: str, name: str, high: int) -> int:
    """A size of the sliding layers, or that of the full ones where theirs is missing."""
    return fields.optional_count(prefix + name, high=high) or fields.count(name, high=high)
