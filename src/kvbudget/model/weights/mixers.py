"""Decides which weights a recurrent mixer has: Mamba, gated delta net, KDA, lightning attention, short convolution.

Shapes were checked against vLLM 0.32 (`model_executor/layers/mamba/`, `models/`), built without memory.
"""

from math import isqrt

from kvbudget.model.fields import Fields
from kvbudget.model.layers import State
from kvbudget.model.weights.matrices import Parts
from kvbudget.model.weights.rule import WeightRule


def add_mixer(parts: Parts, fields: Fields, rule: WeightRule, state: State) -> None:
    """Weights of the mixer whose state this is."""
    _KINDS[state.mixer](parts, fields, rule, state)


def _mamba1(parts: Parts, fields: Fields, rule: WeightRule, state: State) -> None:
    hidden, inner = fields.count("hidden_size"), state.conv_channels
    size = state.matrix_elements // inner
    given = fields.given("mamba_dt_rank" if "mamba_dt_rank" in fields.raw else "time_step_rank")
    rank = given if type(given) is int and 0 < given <= hidden else -(-hidden // 16)
    name = rule.mixer
    parts.matrix(f"{name}.in_proj", 2 * inner, hidden)
    parts.matrix(f"{name}.x_proj", rank + 2 * size, inner)
    parts.matrix(f"{name}.dt_proj", inner, rank)
    parts.matrix(f"{name}.out_proj", hidden, inner)
    # A, D, the bias of dt_proj, the convolution and its bias
    parts.split += inner * size + 2 * inner + inner * (state.conv_taps + 2)
    if rule.special == "jamba":
        parts.whole += rank + 2 * size


def _mamba2(parts: Parts, fields: Fields, rule: WeightRule, state: State) -> None:
    hidden, inner, shared = fields.count("hidden_size"), state.conv_channels, state.groups * state.group_channels
    name = rule.mixer
    parts.matrix(f"{name}.in_proj", 2 * inner + state.heads, hidden)
    parts.matrix(f"{name}.in_proj", shared, hidden, ranks=state.groups)
    parts.matrix(f"{name}.out_proj", hidden, inner)
    # the convolution and its bias; A, D and the bias of dt
    parts.split += (inner + shared) * (state.conv_taps + 2) + 3 * state.heads
    if rule.mixer_norm or fields.flag("mamba_rms_norm"):
        parts.split += inner


def _delta_net(parts: Parts, fields: Fields, rule: WeightRule, state: State) -> None:
    hidden = fields.count("hidden_size")
    size = fields.optional_count("linear_value_head_dim") or isqrt(2 * state.matrix_elements // state.heads)
    value = state.heads * size
    name = rule.mixer
    parts.matrix(f"{name}.in_proj_qkv", state.conv_channels, hidden)
    parts.matrix(f"{name}.in_proj_z", value, hidden)
    parts.matrix(f"{name}.in_proj_b", state.heads, hidden)
    parts.matrix(f"{name}.in_proj_a", state.heads, hidden)
    parts.matrix(f"{name}.out_proj", hidden, value)
    parts.split += state.conv_channels * (state.conv_taps + 1) + 2 * state.heads
    parts.whole += size


def _kimi_delta(parts: Parts, fields: Fields, rule: WeightRule, state: State) -> None:
    hidden = fields.count("hidden_size")
    width = state.conv_channels // 3
    size = width // state.heads
    name = rule.attention
    for letter in "qkv":
        parts.matrix(f"{name}.{letter}_proj", width, hidden)
    section = fields.section("linear_attn_config") or {}
    if section.get("use_full_rank_gate"):
        parts.matrix(f"{name}.g_proj", width, hidden)
    else:
        parts.matrix(f"{name}.g_a_proj", size, hidden, ranks=1)
        parts.matrix(f"{name}.g_b_proj", width, size)
    parts.matrix(f"{name}.f_a_proj", size, hidden, ranks=1)
    parts.matrix(f"{name}.f_b_proj", width, size)
    parts.matrix(f"{name}.b_proj", state.heads, hidden)
    parts.matrix(f"{name}.o_proj", hidden, width)
    parts.split += width + state.heads + state.conv_channels * (state.conv_taps + 1)
    parts.whole += size


def _lightning(parts: Parts, fields: Fields, rule: WeightRule, state: State) -> None:
    hidden = fields.count("hidden_size")
    width = state.heads * isqrt(state.matrix_elements // state.heads)
    parts.matrix(f"{rule.attention}.qkv_proj", 3 * width, hidden)
    parts.matrix(f"{rule.attention}.output_gate", width, hidden)
    parts.matrix(f"{rule.attention}.out_proj", hidden, width)
    parts.split += width


def _short_convolution(parts: Parts, fields: Fields, rule: WeightRule, state: State) -> None:
    hidden, channels = fields.count("hidden_size"), state.conv_channels
    parts.matrix(f"{rule.mixer}.in_proj", 3 * channels, hidden)
    parts.matrix(f"{rule.mixer}.out_proj", hidden, channels)
    parts.split += channels * (state.conv_taps + 1)
    if fields.flag("conv_bias"):
        parts.split += 4 * channels
        parts.whole += hidden


_KINDS = {
    "mamba1": _mamba1,
    "mamba2": _mamba2,
    "gdn": _delta_net,
    "kda": _kimi_delta,
    "linear": _lightning,
    "conv": _short_convolution,
}
