"""Decides which layers keep a recurrent state and which a latent: Kimi Linear and K3, and Bailing."""

from typing import TYPE_CHECKING

from kvbudget.errors import BadConfigError, UnsupportedError
from kvbudget.model.attention import LARGEST_HEAD_SIZE, LARGEST_HEADS
from kvbudget.model.fields import LARGEST_LAYERS, Fields
from kvbudget.model.hybrids import count_of, indices_of, kernel_of
from kvbudget.model.latent import latent_of
from kvbudget.model.layers import Layer
from kvbudget.model.states import kimi_delta_state, linear_attention_state

if TYPE_CHECKING:
    from kvbudget.model.families.family import Family


def kimi_linear_layers(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """KDA in the layers that linear_attn_config.kda_layers lists (the first is 1), MLA in the others."""
    count = count_of(fields)
    section = fields.section("linear_attn_config")
    latent = latent_of(fields)
    if section is None:
        return (Layer((latent,)),) * count
    linear = Fields(section, {}, {})
    recurrent = indices_of(linear, "kda_layers", count, first=1)
    full = indices_of(linear, "full_attn_layers", count, first=1)
    if full and (recurrent & full or len(recurrent) + len(full) != count):
        raise BadConfigError(
            f"config.json: kda_layers and full_attn_layers do not name each of the {count} layers once",
            fix="correct linear_attn_config",
        )
    if not recurrent:
        return (Layer((latent,)),) * count
    state = kimi_delta_state(
        linear.count("num_heads", high=LARGEST_HEADS),
        linear.count("head_dim", high=LARGEST_HEAD_SIZE),
        kernel_of(linear, "short_conv_kernel_size"),
    )
    return tuple(Layer((state if index in recurrent else latent,)) for index in range(1, count + 1))


def bailing_layers(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """MLA at the end of each group of layer_group_size; Lightning attention (V2.5) or KDA (V3) before it."""
    count = count_of(fields)
    group = fields.count("layer_group_size", high=LARGEST_LAYERS)
    latent = latent_of(fields)
    heads = fields.count("num_attention_heads", high=LARGEST_HEADS)
    # A text model inside the multimodal one names none; vLLM 0.32 then takes V3.
    names = " ".join(fields.texts("architectures") or ("BailingMoeV3",))
    if "BailingMoeV3" in names:
        # vLLM 0.32 `bailing_moe_v3.py: _is_kda_layer`: a last group that is not whole is MLA.
        state = kimi_delta_state(heads, _bailing_head(fields, heads), kernel_of(fields, "short_conv_kernel_size"))
        whole = count // group * group
        return tuple(Layer((state if (i + 1) % group and i < whole else latent,)) for i in range(count))
    if "BailingMoeV2_5" in names:
        state = linear_attention_state(heads, _bailing_head(fields, heads))
        return tuple(Layer((state if (i + 1) % group else latent,)) for i in range(count))
    raise UnsupportedError(
        f"{model_type} with architectures {names[:60]!r} is unknown: which recurrent layers it has is missing",
        fix="known are BailingMoeV2_5ForCausalLM and BailingMoeV3ForCausalLM",
    )


def _bailing_head(fields: Fields, heads: int) -> int:
    return fields.optional_count("head_dim", high=LARGEST_HEAD_SIZE) or max(1, fields.count("hidden_size") // heads)
