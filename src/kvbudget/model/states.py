"""Decides how large a recurrent state is: one function for each mixer, from its sizes in config.json.

Shapes as in vLLM 0.32 `model_executor/layers/mamba/mamba_utils.py`, of the whole model, before any parallelism and
without the extra convolution taps of speculative decoding.
"""

from kvbudget.errors import BadConfigError, UnsupportedError
from kvbudget.model.attention import LARGEST_HEAD_SIZE, LARGEST_HEADS
from kvbudget.model.fields import LARGEST_COUNT, Fields
from kvbudget.model.layers import State

LARGEST_KERNEL = 1_000
_DTYPES = ("float32", "float16", "bfloat16")


def mamba1_state(inner: int, state_size: int, kernel: int) -> State:
    """Mamba-1: `inner` channels, each its own head with `state_size` elements."""
    return State("mamba1", inner, kernel - 1, inner * state_size, inner)


def mamba2_state(
    inner: int, heads: int, head_size: int, groups: int, state_size: int, kernel: int, matrix_dtype: str = ""
) -> State:
    """Mamba-2: `heads` matrices of head_size x state_size; B and C of each group are convolved too.

    Raises BadConfigError when the heads do not make up the `inner` channels.
    """
    if heads * head_size != inner:
        raise BadConfigError(
            f"config.json: {heads} Mamba heads of {head_size} do not make up the {inner} channels of the mixer",
            fix="correct the number of Mamba heads, their size, or the expansion",
        )
    return State(
        mixer="mamba2",
        conv_channels=inner,
        conv_taps=kernel - 1,
        matrix_elements=heads * head_size * state_size,
        heads=heads,
        groups=groups,
        group_channels=2 * state_size,
        matrix_dtype=matrix_dtype,
    )


def delta_net_state(fields: Fields, matrix_dtype: str = "") -> State:
    """Gated delta net (Qwen3-Next, Qwen3.5, OLMo-Hybrid): queries, keys and values are convolved."""
    key_heads = fields.count("linear_num_key_heads", high=LARGEST_HEADS)
    value_heads = fields.count("linear_num_value_heads", high=LARGEST_HEADS)
    key_size = fields.count("linear_key_head_dim", high=LARGEST_HEAD_SIZE)
    value_size = fields.count("linear_value_head_dim", high=LARGEST_HEAD_SIZE)
    if value_heads % key_heads:
        raise BadConfigError(
            f"config.json: linear_num_value_heads {value_heads} is not a multiple of linear_num_key_heads {key_heads}",
            fix="correct one of them",
        )
    return State(
        mixer="gdn",
        conv_channels=2 * key_heads * key_size + value_heads * value_size,
        conv_taps=fields.count("linear_conv_kernel_dim", high=LARGEST_KERNEL) - 1,
        matrix_elements=value_heads * value_size * key_size,
        heads=value_heads,
        matrix_dtype=matrix_dtype,
    )


def kimi_delta_state(heads: int, head_size: int, kernel: int) -> State:
    """KDA (Kimi Linear, Kimi K3, Bailing V3): one square matrix a head, float32 unless an engine is told otherwise."""
    return State(
        mixer="kda",
        conv_channels=3 * heads * head_size,
        conv_taps=kernel - 1,
        matrix_elements=heads * head_size * head_size,
        heads=heads,
        matrix_dtype="float32",
    )


def linear_attention_state(heads: int, head_size: int) -> State:
    """Lightning attention (MiniMax-Text-01, Bailing V2.5): one square matrix a head and no convolution."""
    return State("linear", 0, 0, heads * head_size * head_size, heads)


def short_convolution_state(channels: int, kernel: int) -> State:
    """LFM2: a gated convolution and no recurrent matrix."""
    return State("conv", channels, kernel - 1, 0, 0)


def matrix_dtype(fields: Fields, name: str) -> str:
    """The dtype that config.json asks for the recurrent matrix, "" for the model's own."""
    value = fields.text(name)
    if value in ("", "auto"):
        return ""
    if value not in _DTYPES:
        raise UnsupportedError(f"{fields.key(name)} {value[:40]!r} is unknown", fix=f"one of {', '.join(_DTYPES)}")
    return value


def expanded(fields: Fields, name: str) -> int:
    """Channels of a mixer: hidden_size times the expansion called `name`."""
    hidden = fields.count("hidden_size")
    return hidden * fields.count(name, high=LARGEST_COUNT // hidden)


def head_size_or_auto(fields: Fields, name: str, inner: int, heads: int) -> int:
    """The size of a Mamba head; "auto" and null mean `inner` channels over all heads."""
    given = fields.given(name)
    if given is None or given == "auto":
        if inner % heads:
            raise BadConfigError(
                f"config.json: {inner} Mamba channels are not a multiple of {heads} heads",
                fix=f"correct the number of Mamba heads, or add {fields.key(name)}",
            )
        return inner // heads
    return fields.count(name, high=LARGEST_HEAD_SIZE)
