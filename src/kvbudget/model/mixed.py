"""Decides the attention caches of models whose layers differ in heads, not only in how far back they reach."""

from typing import TYPE_CHECKING

from kvbudget.errors import BadConfigError, UnsupportedError
from kvbudget.model.attention import (
    LARGEST_HEAD_SIZE,
    LARGEST_HEADS,
    attention_of,
    divided_heads,
    layer_types_of,
    layers_of,
    windowed_layers,
)
from kvbudget.model.fields import LARGEST_COUNT, LARGEST_DRAFT, LARGEST_LAYERS, Fields
from kvbudget.model.kinds import refuse_other_kinds
from kvbudget.model.layers import Attention, Cache, CrossAttention, Layer
from kvbudget.model.windows import (
    CHUNKED,
    FULL,
    SLIDING,
    WHOLE,
    Reach,
    agreed_types,
    named_types,
    reaches,
    rotary_layers,
    window_of,
)

if TYPE_CHECKING:
    from kvbudget.model.families.family import Family


def llama_layers(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """Llama's own class also reads pruned models (DeciLM's block_configs) that name themselves llama."""
    if fields.raw.get("block_configs"):
        return pruned_layers(family, fields, model_type)
    return windowed_layers(family, fields, model_type)


def chunked_layers(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """Llama 4: layers with rotary positions attend within a chunk, the others to everything."""
    count = fields.count("num_hidden_layers", high=LARGEST_LAYERS)
    refuse_other_kinds(fields, model_type, ("attention_chunk_size", "no_rope_layers"))
    computed = tuple(CHUNKED if rotary else FULL for rotary in rotary_layers(fields, count))
    types = agreed_types(fields, model_type, computed)
    chunk = None if fields.is_null("attention_chunk_size") else fields.optional_count("attention_chunk_size")
    chunked = Reach(chunk=chunk)
    return layers_of(attention_of(fields, model_type), tuple(chunked if t == CHUNKED else WHOLE for t in types))


def mimo_layers(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """MiMo-V2: full and sliding layers each with their own KV heads and head sizes, keys wider than values.

    The chunk size that its config states is not used (vLLM 0.32 transformers_utils/model_arch_config_convertor.py).
    """
    count = fields.count("num_hidden_layers", high=LARGEST_LAYERS)
    refuse_other_kinds(fields, model_type, ("attention_chunk_size", "hybrid_layer_pattern", "swa_num_key_value_heads"))
    pattern = fields.counts("hybrid_layer_pattern")
    if not pattern:
        types = named_types(fields, count)
        pattern = (
            tuple(int(index > 0 and (index + 1) % 6 != 0) for index in range(count))
            if types is None
            else tuple(int(name == SLIDING) for name in types)
        )
    if len(pattern) != count:
        raise BadConfigError(
            f"config.json: hybrid_layer_pattern has {len(pattern)} entries, but there are {count} layers",
            fix="one entry of hybrid_layer_pattern for each layer",
        )
    full = Layer((_mimo_attention(fields, "num_key_value_heads", "head_dim", "v_head_dim"),))
    sliding = Layer((_mimo_sliding(fields),)) if any(pattern) else full
    return tuple(sliding if slides == 1 else full for slides in pattern)


def mimo_draft_layers(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """Its MTP module is one sliding layer (vLLM 0.32 models/mimo_v2_mtp.py)."""
    return (Layer((_mimo_sliding(fields),)),)


def _mimo_sliding(fields: Fields) -> Attention:
    window = fields.optional_count("sliding_window_size") or window_of(fields)
    attention = _mimo_attention(fields, "swa_num_key_value_heads", "swa_head_dim", "swa_v_head_dim")
    return attention._replace(window=window)


def _mimo_attention(fields: Fields, kv_heads: str, key_size: str, value_size: str) -> Attention:
    heads = "swa_num_attention_heads" if kv_heads.startswith("swa") else "num_attention_heads"
    count = fields.optional_count(heads, high=LARGEST_HEADS) or fields.count("num_attention_heads", high=LARGEST_HEADS)
    key = fields.count(key_size, high=LARGEST_HEAD_SIZE)
    value = fields.optional_count(value_size, high=LARGEST_HEAD_SIZE) or key
    return Attention(divided_heads(fields, count, fields.count(kv_heads, high=LARGEST_HEADS)), key, value)


def step_layers(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """Step-3.5 and 3.7: sliding layers may have heads of their own; layer_types may name the draft layers too."""
    count = fields.count("num_hidden_layers", high=LARGEST_LAYERS)
    refuse_other_kinds(fields, model_type, ("attention_other_setting",))
    types = fields.texts("layer_types")
    if types is None:
        types = tuple(SLIDING if index % 2 == 0 else FULL for index in range(count))
    elif len(types) < count:
        types = named_types(fields, count) or ()
    other = fields.section("attention_other_setting") or {}
    known: dict[str, Layer] = {}
    for name in types[:count]:
        if name not in known:
            known[name] = _step_layer(fields, model_type, name, other if other.get("attention_type") == name else {})
    return tuple(known[name] for name in types[:count])


def step_draft_layers(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """Its MTP layers follow the model's own in layer_types; full where that ends (vLLM 0.32 models/step3p5_mtp.py)."""
    first = fields.count("num_hidden_layers", high=LARGEST_LAYERS)
    count = fields.optional_count("num_nextn_predict_layers", low=0, high=LARGEST_DRAFT) or 0
    types = (fields.texts("layer_types") or ())[first : first + count]
    return tuple(_step_layer(fields, model_type, name, {}) for name in (*types, *(FULL,) * (count - len(types))))


def _step_layer(fields: Fields, model_type: str, name: str, other: object) -> Layer:
    if name not in (FULL, SLIDING):
        raise UnsupportedError(f"{model_type} with layer_types {name[:40]!r} is unknown", fix="correct layer_types")
    attention = attention_of(fields, model_type)
    if isinstance(other, dict) and other:
        own = Fields(other, {}, {})
        size = own.optional_count("head_dim", high=LARGEST_HEAD_SIZE) or attention.key_size
        heads = own.count("num_attention_heads", high=LARGEST_HEADS)
        kv_heads = own.optional_count("num_attention_groups", high=LARGEST_HEADS) or attention.kv_heads
        attention = Attention(divided_heads(own, heads, kv_heads), size, size)
    return Layer((attention._replace(window=window_of(fields) if name == SLIDING else None),))


def typed_layers(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """EXAONE MoE: sliding layers have windows of their own where sliding_windows lists them."""
    count = fields.count("num_hidden_layers", high=LARGEST_LAYERS)
    refuse_other_kinds(fields, model_type, ("sliding_window_pattern", "sliding_windows"))
    types = layer_types_of(family, fields, model_type, count) or (FULL,) * count
    return layers_of(attention_of(fields, model_type), _own_reaches(fields, model_type, types, "sliding_windows"))


def typed_draft_layers(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """EXAONE MoE's MTP: mtp_layer_types, or the model's own from its first layer (vLLM 0.32 models/exaone_moe.py)."""
    count = fields.optional_count("num_nextn_predict_layers", low=0, high=LARGEST_DRAFT) or 0
    layers = fields.count("num_hidden_layers", high=LARGEST_LAYERS)
    types = fields.texts("mtp_layer_types") or layer_types_of(family, fields, model_type, layers) or ()
    if len(types) < count:
        raise BadConfigError(
            f"config.json: {count} draft layers (num_nextn_predict_layers) have only {len(types)} layer types",
            fix="correct num_nextn_predict_layers or mtp_layer_types",
        )
    key = "mtp_sliding_windows" if fields.raw.get("mtp_sliding_windows") else "sliding_windows"
    return layers_of(attention_of(fields, model_type), _own_reaches(fields, model_type, types[:count], key))


def _own_reaches(fields: Fields, model_type: str, types: tuple[str, ...], key: str) -> tuple[Reach, ...]:
    windows = fields.raw.get(key)
    if windows is None:
        return reaches(fields, model_type, len(types), types)
    if not isinstance(windows, list) or len(windows) < len(types):
        raise BadConfigError(
            f"config.json: {key} is not a list of a window for each of {len(types)} layers", fix=f"correct {key}"
        )
    return tuple(
        Reach(_window_in_list(window, key)) if name == SLIDING else reaches(fields, model_type, 1, (name,))[0]
        for name, window in zip(types, windows, strict=False)
    )


def listed_window_layers(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """Pangu and PLaMo 3: windows in a list that repeats over the layers, null for none (vLLM 0.32 models/openpangu.py,
    plamo3.py)."""
    windows = fields.raw.get("interleaved_sliding_window")
    if windows is None:
        return windowed_layers(family, fields, model_type)
    count = fields.count("num_hidden_layers", high=LARGEST_LAYERS)
    refuse_other_kinds(fields, model_type, ("interleaved_sliding_window", "sliding_window_pattern"))
    listed = windows if isinstance(windows, list) and windows else [windows]
    repeated = tuple(Reach(_window_in_list(window, "interleaved_sliding_window")) for window in listed)
    return layers_of(attention_of(fields, model_type), tuple(repeated[index % len(repeated)] for index in range(count)))


def _window_in_list(window: object, key: str) -> int | None:
    if window is None or (type(window) is int and 0 < window <= LARGEST_COUNT):
        return window
    raise BadConfigError(
        f"config.json: {key} must hold a whole number or null for each layer",
        fix=f"correct {key}",
    )


def pruned_layers(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """Nemotron-NAS: each block has its own KV heads, or no attention at all (vLLM 0.32 models/nemotron_nas.py)."""
    count = fields.count("num_hidden_layers", high=LARGEST_LAYERS)
    refuse_other_kinds(fields, model_type, ("block_configs",))
    blocks = fields.raw.get("block_configs")
    if not isinstance(blocks, list) or len(blocks) != count:
        raise BadConfigError(
            f"config.json: block_configs must be a list of {count} objects, one for each layer",
            fix="give the model's own config.json, unchanged",
        )
    heads = fields.count("num_attention_heads", high=LARGEST_HEADS)
    default = fields.optional_count("num_key_value_heads", high=LARGEST_HEADS)
    size = attention_of(fields, model_type).key_size
    return tuple(_pruned_layer(block, heads, default, size) for block in blocks)


def _pruned_layer(block: object, heads: int, kv_heads: int | None, size: int) -> Layer:
    part = block.get("attention") if isinstance(block, dict) else None
    if not isinstance(part, dict):
        raise BadConfigError("config.json: an entry of block_configs has no attention", fix="correct block_configs")
    own = Fields(part, {}, {})
    if own.flag("no_op") or own.flag("replace_with_linear"):
        return Layer(())
    for key in ("window_length", "num_sink_tokens", "sparsify"):
        if part.get(key) not in (None, 0, False, []):
            raise UnsupportedError(
                f"block_configs with {key} needs a cache that vLLM 0.32 does not have", fix="nothing is guessed"
            )
    group = own.optional_count("n_heads_in_group", high=LARGEST_HEADS)
    own_heads = own.optional_count("num_key_value_heads", high=LARGEST_HEADS) or kv_heads
    if group is not None:
        own_heads = heads // group
    return Layer((Attention(divided_heads(own, heads, own_heads or heads), size, size),))


def cross_layers(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """Decoder layers that keep their own tokens and, once a request, the encoder's output (Whisper)."""
    count = fields.count("num_hidden_layers", high=LARGEST_LAYERS)
    heads = fields.count("num_attention_heads", high=LARGEST_HEADS)
    hidden = fields.count("hidden_size")
    if hidden % heads:
        raise BadConfigError(
            f"config.json: {fields.key('hidden_size')} {hidden} is not a multiple of {heads} decoder heads",
            fix=f"correct {fields.key('num_attention_heads')}",
        )
    size = hidden // heads
    caches: tuple[Cache, ...] = (
        Attention(heads, size, size, window=window_of(fields)),
        CrossAttention(heads, size, size, fields.count("max_source_positions")),
    )
    return (Layer(caches),) * count
