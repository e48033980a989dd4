"""Decides which layers of PLaMo 2 keep attention and which a Mamba-2 state without B and C in its convolution."""

from typing import TYPE_CHECKING

from kvbudget.errors import BadConfigError
from kvbudget.model.attention import LARGEST_HEAD_SIZE, LARGEST_HEADS, divided_heads
from kvbudget.model.fields import LARGEST_LAYERS, Fields
from kvbudget.model.layers import Attention, Layer
from kvbudget.model.states import LARGEST_KERNEL, mamba2_state

if TYPE_CHECKING:
    from kvbudget.model.families.family import Family


def plamo2_layers(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """Attention in the middle of every mamba_step layers (vLLM 0.26 models/plamo2.py, the last that has it)."""
    count = fields.count("num_hidden_layers", high=LARGEST_LAYERS)
    step = fields.count("mamba_step", high=LARGEST_LAYERS)
    if step < 2:
        raise BadConfigError(f"config.json: mamba_step is {step}, but it must be at least 2", fix="correct mamba_step")
    size = fields.count("hidden_size_per_head", high=LARGEST_HEAD_SIZE)
    heads = fields.count("num_attention_heads", high=LARGEST_HEADS)
    kv_heads = divided_heads(fields, heads, fields.count("num_key_value_heads", high=LARGEST_HEADS))
    mamba_heads = fields.count("mamba_num_heads", high=LARGEST_HEADS)
    state = mamba2_state(
        inner=mamba_heads * size,
        heads=mamba_heads,
        head_size=size,
        groups=0,
        state_size=fields.count("mamba_d_state", high=LARGEST_HEAD_SIZE),
        kernel=fields.count("mamba_d_conv", high=LARGEST_KERNEL),
    )
    attention = Layer((Attention(kv_heads, size, size),))
    middle = step // 2
    whole = count > middle  # a shorter model has it in its last layer
    return tuple(
        attention if (index % step == middle if whole else index == count - 1) else Layer((state,))
        for index in range(count)
    )
