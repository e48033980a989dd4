"""Decides the caches of MLA layers: the latent's sizes, and which layers have an indexer of their own."""

from typing import TYPE_CHECKING

from kvbudget.errors import BadConfigError, UnsupportedError
from kvbudget.model.attention import LARGEST_HEAD_SIZE, LARGEST_HEADS, attention_of
from kvbudget.model.fields import LARGEST_DRAFT, LARGEST_LAYERS, Fields
from kvbudget.model.layers import Indexer, Latent, Layer

if TYPE_CHECKING:
    from kvbudget.model.families.family import Family

_SPARSE_TYPES = ("indexed_attention", "sparse_attention", "sparse", "deepseek_sparse_attention")


def latent_layers(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """MLA in every layer, and an indexer in those that choose their tokens themselves.

    Raises BadConfigError for sizes that contradict one another.
    """
    count = fields.count("num_hidden_layers", high=LARGEST_LAYERS)
    if _has_plain_heads(fields):
        return (Layer((attention_of(fields, model_type),)),) * count
    latent = latent_of(fields)
    indexer = indexer_of(fields, family)
    if indexer is None:
        return (Layer((latent,)),) * count
    return tuple(Layer((latent, indexer) if own else (latent,)) for own in own_indexers(fields, count))


def twin_latent_layers(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """Two MLA attentions in every layer (LongCat-Flash, whose `num_layers` counts pairs)."""
    count = fields.count("num_hidden_layers", high=LARGEST_LAYERS)
    latent = latent_of(fields)
    return (Layer((latent, latent)),) * count


def typed_latent_layers(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """MLA everywhere, sparse in the layers that layer_types says (HY-V4); its indexer_types decides who shares."""
    count = fields.count("num_hidden_layers", high=LARGEST_LAYERS)
    latent = latent_of(fields)
    types = fields.texts("layer_types")
    if types is None:
        raise BadConfigError(
            "config.json: layer_types is missing: sparse layers to its config class, dense ones to vLLM 0.32",
            fix="add layer_types: full_attention or indexed_attention for each layer",
        )
    _check_length("layer_types", len(types), count)
    for name in types:
        if name != "full_attention" and name not in _SPARSE_TYPES:
            raise UnsupportedError(f"layer_types {name[:40]!r} is unknown", fix="full_attention or indexed_attention")
    # transformers 5.19 `configuration_hy_v4.py`: the first layer and every fourth from the second on
    own = _named_indexers(fields, count) or [index == 0 or index % 4 == 1 for index in range(count)]
    indexed = Layer((latent, Indexer(fields.count("index_head_dim", high=LARGEST_HEAD_SIZE))))
    dense = Layer((latent,))
    return tuple(indexed if own[index] and types[index] in _SPARSE_TYPES else dense for index in range(count))


def typed_latent_drafts(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """The MTP module of HY-V4: its layers are of the last type (vLLM 0.32 `models/hy_v4/nvidia/mtp.py`)."""
    types = fields.texts("layer_types") or ()
    if types and types[-1] in _SPARSE_TYPES:
        return latent_drafts(family, fields, model_type)
    return (Layer((latent_of(fields),)),) * draft_count(fields)


def latent_drafts(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """The MTP module: `num_nextn_predict_layers` layers of MLA, each with its own indexer where the model has any."""
    count = draft_count(fields)
    if not count or _has_plain_heads(fields):
        return ()
    indexer = indexer_of(fields, family)
    latent = latent_of(fields)
    return (Layer((latent,) if indexer is None else (latent, indexer)),) * count


def draft_count(fields: Fields, name: str = "num_nextn_predict_layers") -> int:
    """Layers of the built-in draft module; 0 when the key is missing and the class has no default."""
    return fields.optional_count(name, low=0, high=LARGEST_DRAFT) or 0


def latent_of(fields: Fields) -> Latent:
    """The latent of one layer."""
    if fields.is_null("kv_lora_rank"):
        raise BadConfigError("config.json: kv_lora_rank is null, so there is no latent", fix="give its size")
    heads = fields.count("num_attention_heads", high=LARGEST_HEADS)
    rope = fields.count("qk_rope_head_dim", low=0, high=LARGEST_HEAD_SIZE)
    key_size = fields.count("qk_nope_head_dim", low=0, high=LARGEST_HEAD_SIZE) + rope
    if key_size == 0:
        raise BadConfigError(
            f"config.json: {fields.key('qk_nope_head_dim')} and {fields.key('qk_rope_head_dim')} are both 0",
            fix="at least one of them must be positive",
        )
    stated = fields.optional_count("qk_head_dim", high=2 * LARGEST_HEAD_SIZE)
    if stated is not None and stated != key_size:
        raise BadConfigError(
            f"config.json: qk_head_dim is {stated}, but qk_nope_head_dim and qk_rope_head_dim add up to {key_size}",
            fix="correct one of them",
        )
    return Latent(
        latent_size=fields.count("kv_lora_rank", high=LARGEST_HEAD_SIZE),
        rope_size=rope,
        heads=heads,
        key_size=key_size,
        value_size=_value_size(fields, heads),
    )


def indexer_of(fields: Fields, family: "Family") -> Indexer | None:
    """The indexer of one layer, None when the model has none."""
    if fields.given("index_topk") is None and family.defaults.get("index_topk") is None:
        return None
    fields.count("index_topk")
    return Indexer(fields.count("index_head_dim", high=LARGEST_HEAD_SIZE))


def own_indexers(fields: Fields, layers: int) -> list[bool]:
    """For each layer whether it has an indexer of its own; the others use the tokens that an earlier one chose.

    vLLM 0.32 `models/deepseek_v32/attention.py` asks index_topk_pattern (F full, S shared), else every
    index_topk_freq-th layer from index_skip_topk_offset on; the config class writes the same as indexer_types.
    """
    pattern = fields.given("index_topk_pattern")
    frequency = fields.optional_count("index_topk_freq")
    if pattern is not None:
        own = _pattern(pattern, layers)
    else:
        offset = fields.optional_count("index_skip_topk_offset", low=0)
        first = 2 if offset is None else offset
        own = [max(index - first + 1, 0) % (frequency or 1) == 0 for index in range(layers)]
    stated = _named_indexers(fields, layers)
    if stated is None:
        return own
    if stated != own:
        index = next(i for i in range(layers) if stated[i] != own[i])
        key = "index_topk_pattern" if pattern is not None else "index_topk_freq"
        raise BadConfigError(
            f"config.json: indexer_types says {_word(stated[index])} for layer {index}, but by {key} it is "
            f"{_word(own[index])}",
            fix=f"make indexer_types and {key} agree; engines differ in which one they read",
        )
    return own


def _named_indexers(fields: Fields, layers: int) -> list[bool] | None:
    named = fields.texts("indexer_types")
    if named is None:
        return None
    _check_length("indexer_types", len(named), layers)
    for name in named:
        if name not in ("full", "shared"):
            raise UnsupportedError(f"indexer_types {name[:40]!r} is unknown", fix="full or shared")
    return [name == "full" for name in named]


def _word(own: bool) -> str:
    return "full" if own else "shared"


def _check_length(key: str, length: int, layers: int) -> None:
    if length != layers:
        raise BadConfigError(
            f"config.json: {key} has {length} entries, but there are {layers} layers",
            fix=f"one entry of {key} for each layer",
        )


def _pattern(pattern: object, layers: int) -> list[bool]:
    letters = pattern if isinstance(pattern, str) else pattern if isinstance(pattern, list) else None
    if letters is None or any(letter not in ("F", "S") for letter in letters):
        raise BadConfigError(
            "config.json: index_topk_pattern is not a string of F (full) and S (shared)", fix="correct it, or remove it"
        )
    if len(letters) > layers:
        raise BadConfigError(
            f"config.json: index_topk_pattern has {len(letters)} letters, but there are {layers} layers",
            fix="one letter for each layer",
        )
    return [letter == "F" for letter in letters] + [True] * (layers - len(letters))


def _value_size(fields: Fields, heads: int) -> int:
    size = fields.optional_count("v_head_dim", high=LARGEST_HEAD_SIZE)
    if size is not None:
        return size
    hidden = fields.count("hidden_size")
    if hidden % heads:
        raise BadConfigError(
            f"config.json: v_head_dim is missing and hidden_size {hidden} is not a multiple of "
            f"num_attention_heads {heads}",
            fix="add v_head_dim",
        )
    return hidden // heads


def _has_plain_heads(fields: Fields) -> bool:
    """DeepSeek-VL2-tiny and other first-generation text models: zero MLA sizes mean plain multi-head attention."""
    names = ("qk_nope_head_dim", "qk_rope_head_dim")
    return all(fields.given(name) is not None and fields.count(name, low=0) == 0 for name in names)
