"""Decides which layers of a hybrid model keep a recurrent state, which keep attention, and which keep nothing."""

from typing import TYPE_CHECKING

from kvbudget.errors import BadConfigError, UnsupportedError
from kvbudget.model.attention import LARGEST_HEAD_SIZE, LARGEST_HEADS, attention_of
from kvbudget.model.fields import LARGEST_LAYERS, Fields
from kvbudget.model.latent import draft_count
from kvbudget.model.layers import Attention, Layer, State
from kvbudget.model.states import (
    LARGEST_KERNEL,
    delta_net_state,
    expanded,
    head_size_or_auto,
    linear_attention_state,
    mamba1_state,
    mamba2_state,
    matrix_dtype,
    short_convolution_state,
)

if TYPE_CHECKING:
    from kvbudget.model.families.family import Family

_RECURRENT = "linear_attention"
_ATTENTION = "full_attention"
_EMPTY = "mlp"
# transformers 5.19 renames the older words of published configs to the first ones.
_NAMES = {
    _ATTENTION: _ATTENTION,
    "attention": _ATTENTION,
    _RECURRENT: _RECURRENT,
    "mamba": _RECURRENT,
    "conv": _RECURRENT,
    "mlp": _EMPTY,
    "moe": _EMPTY,
    "hybrid": "hybrid",
}
_LETTERS = {"M": _RECURRENT, "*": _ATTENTION, "-": _EMPTY, "E": _EMPTY}
# transformers 5.19 `configuration_nemotron_h.py`: what the MTP module is made of when nothing is said
_MTP_LETTERS = "*E"
_LARGEST_GROUPS = 100_000


def mamba_layers(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """Mamba-1 in every layer. A given intermediate_size wins over the expansion (Falcon-Mamba states both)."""
    inner = fields.optional_count("intermediate_size") or expanded(fields, "expand")
    state = mamba1_state(inner, fields.count("state_size", high=LARGEST_HEAD_SIZE), kernel_of(fields, "conv_kernel"))
    return (Layer((state,)),) * count_of(fields)


def mamba2_layers(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """Mamba-2 in every layer."""
    state = mamba2_state(
        inner=fields.optional_count("intermediate_size") or expanded(fields, "expand"),
        heads=fields.count("num_heads", high=LARGEST_HEADS),
        head_size=fields.count("head_dim", high=LARGEST_HEAD_SIZE),
        groups=fields.count("n_groups", high=_LARGEST_GROUPS),
        state_size=fields.count("state_size", high=LARGEST_HEAD_SIZE),
        kernel=kernel_of(fields, "conv_kernel"),
    )
    return (Layer((state,)),) * count_of(fields)


def jamba_layers(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """Mamba-1, and attention in every attn_layer_period-th layer from attn_layer_offset on."""
    period = fields.count("attn_layer_period", high=LARGEST_LAYERS)
    offset = fields.count("attn_layer_offset", low=0, high=LARGEST_LAYERS)
    if offset >= period:
        raise BadConfigError(
            f"config.json: attn_layer_offset {offset} must be less than attn_layer_period {period}",
            fix="correct one of them",
        )
    state = mamba1_state(
        expanded(fields, "mamba_expand"),
        fields.count("mamba_d_state", high=LARGEST_HEAD_SIZE),
        kernel_of(fields, "mamba_d_conv"),
    )
    attention = _derived_attention(fields, model_type)
    return tuple(Layer((attention if i % period == offset else state,)) for i in range(count_of(fields)))


def granite_layers(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """Mamba-2 or attention as layer_types says; without it, Mamba-2 everywhere."""
    count = count_of(fields)
    names = _named(fields, ("layer_types", "layers_block_type"), count) or (_RECURRENT,) * count
    attention = _derived_attention(fields, model_type)
    if _RECURRENT not in names:  # Granite 4.0 Micro: the mixer's sizes mean nothing
        return _layers(names, None, attention)
    return _layers(names, _granite_state(fields), attention)


def bamba_layers(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """Mamba-2, and attention in the layers that attn_layer_indices lists."""
    count = count_of(fields)
    listed = indices_of(fields, "attn_layer_indices", count, first=0)
    attention = _derived_attention(fields, model_type)
    state = _granite_state(fields)
    return tuple(Layer((attention if index in listed else state,)) for index in range(count))


def falcon_h1_layers(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """Attention and Mamba-2 side by side in every layer."""
    inner = fields.optional_count("mamba_d_ssm") if not fields.is_null("mamba_d_ssm") else None
    heads = fields.count("mamba_n_heads", high=LARGEST_HEADS)
    inner = inner or expanded(fields, "mamba_expand")
    state = _described_state(fields, inner, heads, head_size_or_auto(fields, "mamba_d_head", inner, heads))
    return (Layer((attention_of(fields, model_type), state)),) * count_of(fields)


def zamba2_layers(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """Mamba-2 in every layer, and attention of double width beside it in the hybrid ones.

    The attention's weights are shared between hybrid layers, its cache is not.
    """
    count = count_of(fields)
    inner = expanded(fields, "mamba_expand")
    mamba_heads = fields.count("n_mamba_heads", high=LARGEST_HEADS)
    state = _described_state(
        fields, inner, mamba_heads, head_size_or_auto(fields, "mamba_headdim", inner, mamba_heads), "mamba_ngroups"
    )
    heads = fields.count("num_attention_heads", high=LARGEST_HEADS)
    double = 2 * fields.count("hidden_size")
    if double % heads:
        raise BadConfigError(
            f"config.json: twice hidden_size, {double}, is not a multiple of num_attention_heads {heads}",
            fix="correct one of them",
        )
    attention = Attention(heads, double // heads, double // heads)
    names = _named(fields, ("layers_block_type", "layer_types"), count) or _zamba2_names(count)
    return tuple(Layer((attention, state) if name == "hybrid" else (state,)) for name in names)


def nemotron_h_layers(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """One layer for each letter: M Mamba-2, * attention, - MLP, E experts."""
    named = fields.texts("layers_block_type") or fields.texts("layer_types")
    pattern = fields.text("hybrid_override_pattern")
    if named is not None:
        key, names = "layers_block_type", tuple(_name("layers_block_type", name) for name in named)
    else:
        key, names = "hybrid_override_pattern", _lettered("hybrid_override_pattern", pattern)
    if not names:
        raise BadConfigError(
            "config.json: layers_block_type or hybrid_override_pattern is missing, so the layers' kinds are unknown",
            fix="add hybrid_override_pattern: one of M, *, - and E for each layer",
        )
    # the class has no number of its own beside the list (transformers 5.19 `configuration_nemotron_h.py`)
    stated = None
    if fields.given("num_hidden_layers") is not None:
        stated = fields.count("num_hidden_layers", high=LARGEST_LAYERS)
    if stated is not None and stated != len(names):
        raise BadConfigError(
            f"config.json: {key} has {len(names)} entries, but num_hidden_layers is {stated}",
            fix=f"one entry of {key} for each layer",
        )
    if len(names) > LARGEST_LAYERS:
        raise BadConfigError(f"config.json: {key} has {len(names)} entries, over {LARGEST_LAYERS}", fix="correct it")
    heads = fields.count("mamba_num_heads", high=LARGEST_HEADS)
    head_size = fields.count("mamba_head_dim", high=LARGEST_HEAD_SIZE)
    state = mamba2_state(
        inner=heads * head_size,
        heads=heads,
        head_size=head_size,
        groups=fields.count("n_groups", high=_LARGEST_GROUPS),
        state_size=fields.count("ssm_state_size", high=LARGEST_HEAD_SIZE),
        kernel=kernel_of(fields, "conv_kernel"),
        matrix_dtype=matrix_dtype(fields, "mamba_ssm_cache_dtype"),
    )
    return _layers(names, state, attention_of(fields, model_type))


def nemotron_h_drafts(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """One MTP step: a layer for each letter of mtp_hybrid_override_pattern (vLLM 0.32 `nemotron_h_mtp.py`)."""
    steps = draft_count(fields)
    if not steps:
        return ()
    if steps > 1:
        raise UnsupportedError(f"num_nextn_predict_layers {steps} of nemotron_h is unknown", fix="only 1 is known")
    pattern = fields.text("mtp_hybrid_override_pattern")
    named = fields.texts("mtp_layers_block_type")
    if named is not None:
        names = tuple(_name("mtp_layers_block_type", name) for name in named)
    else:
        names = _lettered("mtp_hybrid_override_pattern", pattern or _MTP_LETTERS)
    if not names or len(names) > LARGEST_LAYERS or _RECURRENT in names or "hybrid" in names:
        raise UnsupportedError(
            "the MTP module of nemotron_h has a layer other than attention (*), MLP (-) and experts (E)",
            fix="correct mtp_hybrid_override_pattern, or set num_nextn_predict_layers to 0",
        )
    attention = attention_of(fields, model_type)
    return tuple(Layer((attention,) if name == _ATTENTION else ()) for name in names)


def delta_net_layers(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """Gated delta net, and attention where layer_types says so or in every full_attention_interval-th layer."""
    count = count_of(fields)
    names = _named(fields, ("layer_types",), count)
    if names is None:
        interval = fields.count("full_attention_interval", high=LARGEST_LAYERS)
        names = tuple(_RECURRENT if (index + 1) % interval else _ATTENTION for index in range(count))
    state = delta_net_state(fields, matrix_dtype(fields, "mamba_ssm_dtype"))
    return _layers(names, state, attention_of(fields, model_type))


def delta_net_drafts(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """The MTP module's layers are full attention, also where the model's are mostly recurrent."""
    return (Layer((attention_of(fields, model_type),)),) * draft_count(fields)


def olmo_hybrid_layers(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """Gated delta net, its sizes from the attention's when they are missing; every fourth layer is attention."""
    count = count_of(fields)
    heads = fields.count("num_attention_heads", high=LARGEST_HEADS)
    names = _named(fields, ("layer_types",), count)
    if names is None:
        last = count - 1 if count < 4 else None
        names = tuple(_ATTENTION if index % 4 == 3 or index == last else _RECURRENT for index in range(count))
    key_heads = fields.optional_count("linear_num_key_heads", high=LARGEST_HEADS) or heads
    key_size = fields.optional_count("linear_key_head_dim", high=LARGEST_HEAD_SIZE)
    if key_size is None:
        key_size = fields.count("hidden_size") * 3 // (4 * key_heads)
    derived = {
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": heads,
        "linear_key_head_dim": key_size,
        "linear_value_head_dim": 2 * key_size,
        "linear_conv_kernel_dim": 4,
    }
    state = delta_net_state(Fields(fields.raw, {}, derived))
    return _layers(names, state, _derived_attention(fields, model_type))


def lfm2_layers(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """Short convolutions, and attention where layer_types or full_attn_idxs says so."""
    count = count_of(fields)
    names = _named(fields, ("layer_types",), count)
    if names is None:
        listed = indices_of(fields, "full_attn_idxs", count, first=0)
        names = tuple(_ATTENTION if i in listed or not listed else _RECURRENT for i in range(count))
    channels = fields.optional_count("conv_dim") or fields.count("hidden_size")
    state = short_convolution_state(channels, kernel_of(fields, "conv_L_cache"))
    return _layers(names, state, _derived_attention(fields, model_type))


def lightning_layers(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """Lightning attention and full attention by layer_types, attn_type_list (0 linear, 1 full), or in turns."""
    count = count_of(fields)
    attention = attention_of(fields, model_type)
    names = _named(fields, ("layer_types",), count)
    listed = fields.counts("attn_type_list")
    if names is None and listed:
        _check_length(len(listed), count, "attn_type_list")
        if any(kind > 1 for kind in listed):
            raise UnsupportedError("attn_type_list has a kind other than 0 (linear) and 1 (full)", fix="0 or 1")
        names = tuple(_ATTENTION if kind else _RECURRENT for kind in listed)
    if names is None:
        names = tuple(_ATTENTION if (index + 1) % 2 else _RECURRENT for index in range(count))
    heads = fields.count("num_attention_heads", high=LARGEST_HEADS)
    return _layers(names, linear_attention_state(heads, attention.key_size), attention)


def _layers(names: tuple[str, ...], state: State | None, attention: Attention) -> tuple[Layer, ...]:
    """Layers by their names; a name that means nothing here is refused."""
    kinds = {_ATTENTION: Layer((attention,)), _EMPTY: Layer(())}
    if state is not None:
        kinds[_RECURRENT] = Layer((state,))
    for name in names:
        if name not in kinds:
            raise UnsupportedError(f"a layer of type {name[:40]!r} is unknown here", fix="attention or recurrent")
    return tuple(kinds[name] for name in names)


def _named(fields: Fields, keys: tuple[str, ...], count: int) -> tuple[str, ...] | None:
    """The kind of each layer by the first of `keys` that is there, None when none is."""
    for key in keys:
        names = fields.texts(key)
        if names is not None:
            _check_length(len(names), count, key)
            return tuple(_name(key, name) for name in names)
    return None


def _name(key: str, name: str) -> str:
    kind = _NAMES.get(name)
    if kind is None:
        raise UnsupportedError(f"{key} {name[:40]!r} is unknown", fix=f"known are {', '.join(_NAMES)}")
    return kind


def _lettered(key: str, pattern: str) -> tuple[str, ...]:
    for letter in pattern:
        if letter not in _LETTERS:
            raise UnsupportedError(f"{key} has the unknown letter {letter!r}", fix=f"known are {' '.join(_LETTERS)}")
    return tuple(_LETTERS[letter] for letter in pattern)


def _zamba2_names(count: int) -> tuple[str, ...]:
    """The class default: 54 layers, hybrid in nine places (transformers 5.19 `configuration_zamba2.py`)."""
    names = ["linear_attention"] * 54
    for index in (6, 12, 18, 24, 30, 36, 42, 47, 51):
        names[index] = "hybrid"
    _check_length(len(names), count, "the class default of layers_block_type")
    return tuple(names)


def _granite_state(fields: Fields) -> State:
    inner = expanded(fields, "mamba_expand")
    heads = fields.count("mamba_n_heads", high=LARGEST_HEADS)
    return _described_state(fields, inner, heads, head_size_or_auto(fields, "mamba_d_head", inner, heads))


def _described_state(
    fields: Fields, inner: int, heads: int, head_size: int, groups_key: str = "mamba_n_groups"
) -> State:
    return mamba2_state(
        inner=inner,
        heads=heads,
        head_size=head_size,
        groups=fields.count(groups_key, high=_LARGEST_GROUPS),
        state_size=fields.count("mamba_d_state", high=LARGEST_HEAD_SIZE),
        kernel=kernel_of(fields, "mamba_d_conv"),
    )


def _derived_attention(fields: Fields, model_type: str) -> Attention:
    """Attention whose heads divide hidden_size; these models' code in vLLM 0.32 does not read head_dim."""
    attention = attention_of(fields, model_type)
    hidden = fields.count("hidden_size")
    heads = fields.count("num_attention_heads", high=LARGEST_HEADS)
    if attention.key_size != hidden // heads:
        raise BadConfigError(
            f"config.json: head_dim is {attention.key_size}, but {model_type} divides hidden_size {hidden} by "
            f"num_attention_heads {heads}",
            fix="correct or remove head_dim",
        )
    return attention


def indices_of(fields: Fields, key: str, count: int, first: int) -> frozenset[int]:
    """Layer numbers listed under `key`, counted from `first`; empty when missing."""
    listed = fields.counts(key)
    for index in listed:
        if not first <= index < first + count:
            raise BadConfigError(
                f"config.json: {key} names layer {min(index, 10**9)}, but layers are {first} to {first + count - 1}",
                fix=f"correct {key}",
            )
    return frozenset(listed)


def kernel_of(fields: Fields, name: str) -> int:
    """The taps of a convolution."""
    return fields.count(name, high=LARGEST_KERNEL)


def count_of(fields: Fields) -> int:
    """The number of layers."""
    return fields.count("num_hidden_layers", high=LARGEST_LAYERS)


def _check_length(length: int, count: int, key: str) -> None:
    if length != count:
        raise BadConfigError(
            f"config.json: {key} has {length} entries, but there are {count} layers",
            fix=f"one entry of {key} for each layer",
        )
