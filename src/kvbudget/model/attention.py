"""Decides the attention cache of layers with equal heads: KV heads, head sizes, and how far back each layer reaches."""

from typing import TYPE_CHECKING

from kvbudget.errors import BadConfigError, UnsupportedError
from kvbudget.model.fields import LARGEST_DRAFT, LARGEST_LAYERS, Fields
from kvbudget.model.kinds import refuse_other_kinds
from kvbudget.model.layers import Attention, Layer
from kvbudget.model.windows import Reach, agreed_types, class_types, named_types, reaches, refuse_unknown_types

if TYPE_CHECKING:
    from kvbudget.model.families.family import Family

LARGEST_HEADS = 100_000
LARGEST_HEAD_SIZE = 100_000


# Of the classes that compute no layer types, those whose engine reads an explicit layer_types (vLLM 0.32: the ones on
# `models/llama.py` and on the Transformers backend); the others would ignore it.
_READ_TYPES = frozenset(
    ("llama", "mistral", "ministral3", "internlm3", "phi3", "arcee", "seed_oss", "helium", "granite", "granitemoe",
     "granitemoeshared", "olmo", "olmo2", "apertus", "hunyuan_v1_dense", "hunyuan_v1_moe", "ernie4_5", "glm", "phi",
     "gpt_neox", "starcoder2", "jais2", "nanbeige", "flex_olmo", "iquestcoder", "telechat3")
)  # fmt: skip
# Those whose layers follow the pattern of the class whatever layer_types says (vLLM 0.32 models/gpt_oss.py and so on).
_FIXED_TYPES = frozenset(("gpt_oss", "muse_glimmer_text"))
_PATTERN_KEYS = ("sliding_window_pattern", "global_attn_every_n_layers")


def uniform_layers(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """Layers with the same heads; some may keep a window. Raises UnsupportedError when a key says that they differ."""
    return windowed_layers(family, fields, model_type)


def assumed_layers(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """An architecture that is not known, said by the caller to be full attention in layers that are all alike."""
    layers = windowed_layers(family, fields, model_type)
    if layers[0].kind != "full":
        raise UnsupportedError(
            f"{model_type[:40]} is to be assumed full attention, but its config has a sliding_window",
            fix="set sliding_window to null if it has no effect",
        )
    return layers


def cohere_layers(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """As `uniform_layers`; a sliding layer keeps its own token beside the window (vLLM 0.32 models/commandr.py)."""
    return windowed_layers(family, fields, model_type, beyond=1)


def windowed_layers(
    family: "Family", fields: Fields, model_type: str, *, beyond: int = 0, reads: tuple[str, ...] = ()
) -> tuple[Layer, ...]:
    """One attention for every layer, each with its reach; `reads`: further keys that the family takes into account."""
    count = fields.count("num_hidden_layers", high=LARGEST_LAYERS)
    refuse_other_kinds(fields, model_type, (*_PATTERN_KEYS, *reads) if family.window in ("last", "prefixed") else reads)
    attention = attention_of(fields, model_type)
    types = layer_types_of(family, fields, model_type, count)
    return layers_of(attention, reaches(fields, model_type, count, types, beyond=beyond))


def grouped_layers(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """Step-1: without num_attention_groups there is one KV head (vLLM 0.32 models/step1.py)."""
    if fields.given("num_key_value_heads") is not None:
        return windowed_layers(family, fields, model_type)
    count = fields.count("num_hidden_layers", high=LARGEST_LAYERS)
    refuse_other_kinds(fields, model_type)
    size = head_size_of(fields, fields.count("num_attention_heads", high=LARGEST_HEADS))
    return (Layer((Attention(1, size, size),)),) * count


def one_draft_layer(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """An MTP module of num_nextn_predict_layers layers like the model's own, over the whole context."""
    count = fields.optional_count("num_nextn_predict_layers", low=0, high=LARGEST_DRAFT) or 0
    return (Layer((attention_of(fields, model_type),)),) * count


def layer_types_of(family: "Family", fields: Fields, model_type: str, count: int) -> tuple[str, ...] | None:
    """layer_types, or what the config class computes; None when it computes none."""
    if model_type in _FIXED_TYPES:
        return agreed_types(fields, model_type, class_types(family, fields, count) or ())
    types = named_types(fields, count)
    if types is None:
        types = class_types(family, fields, count)
    if types is None or len(set(types)) < 2:
        return types
    if family.window == "switch" or (family.window in ("never", "always", "flag") and model_type not in _READ_TYPES):
        refuse_unknown_types(model_type, types)
        # vLLM 0.32 models/qwen2.py does not start; the other classes would keep the whole context on every layer.
        raise UnsupportedError(
            f"{model_type} with sliding-window layers beside full ones is not served by vLLM 0.32",
            fix="set use_sliding_window to false, or remove layer_types",
        )
    return types


def layers_of(attention: Attention, reached: tuple[Reach, ...]) -> tuple[Layer, ...]:
    """One layer for each reach; equal ones are the same object."""
    known = {reach: Layer((attention._replace(window=reach.window, chunk=reach.chunk),)) for reach in set(reached)}
    return tuple(known[reach] for reach in reached)


def attention_of(fields: Fields, model_type: str) -> Attention:
    """The attention of one layer over its whole context."""
    heads = fields.count("num_attention_heads", high=LARGEST_HEADS)
    kv_heads = divided_heads(fields, heads, kv_heads_of(fields, model_type, heads))
    size = head_size_of(fields, heads)
    return Attention(kv_heads, size, size)


def divided_heads(fields: Fields, heads: int, kv_heads: int) -> int:
    """`kv_heads`. Raises BadConfigError unless the attention heads share them evenly."""
    if kv_heads > heads or heads % kv_heads:
        raise BadConfigError(
            f"config.json: {heads} attention heads cannot share {kv_heads} KV heads evenly",
            fix=f"{fields.key('num_attention_heads')} must be a multiple of {fields.key('num_key_value_heads')}",
        )
    return kv_heads


def head_size_of(fields: Fields, heads: int) -> int:
    """head_dim, or hidden_size over the heads when it is missing or null."""
    size = None if fields.is_null("head_dim") else fields.optional_count("head_dim", high=LARGEST_HEAD_SIZE)
    if size is not None:
        return size
    hidden = fields.count("hidden_size")
    if hidden % heads:
        raise BadConfigError(
            f"config.json: head_dim is missing and {fields.key('hidden_size')} {hidden} is not a multiple of "
            f"{fields.key('num_attention_heads')} {heads}",
            fix="add head_dim",
        )
    return hidden // heads


def kv_heads_of(fields: Fields, model_type: str, heads: int) -> int:
    """KV heads of one layer; the older spellings of multi-query attention come first, as the engines read them."""
    if model_type in ("falcon", "RefinedWeb", "RefinedWebModel"):
        # vLLM 0.32 FalconModelArchConfigConvertor: the new architecture ignores multi_query.
        if not fields.flag("new_decoder_architecture") and fields.flag("multi_query"):
            return 1
    elif model_type == "gpt_bigcode":
        return 1 if fields.flag("multi_query") else heads
    elif model_type == "chatglm" and fields.flag("multi_query_attention"):
        return fields.count("multi_query_group_num", high=LARGEST_HEADS)
    elif model_type == "mpt":
        return _mpt_kv_heads(fields, heads)
    elif model_type == "dbrx":
        section = Fields(fields.section("attn_config") or {}, {}, {"kv_n_heads": 1})
        return section.count("kv_n_heads", high=LARGEST_HEADS)
    if fields.is_null("num_key_value_heads"):
        return heads
    found = fields.optional_count("num_key_value_heads", high=LARGEST_HEADS)
    if found is None:  # the class means multi-head attention by it
        fields.note_filled("num_key_value_heads")
    return found or heads


def _mpt_kv_heads(fields: Fields, heads: int) -> int:
    section = Fields(fields.section("attn_config") or {}, {}, {"attn_type": "multihead_attention"})
    kind = section.text("attn_type")
    if kind == "multihead_attention":
        return heads
    if kind == "multiquery_attention":
        return 1
    if kind == "grouped_query_attention":
        return section.count("kv_n_heads", high=LARGEST_HEADS)
    raise UnsupportedError(f"mpt with attn_type {kind[:40]!r} is unknown", fix="multihead, multiquery or grouped_query")
