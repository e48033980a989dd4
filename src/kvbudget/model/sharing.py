"""Decides which layers read the cache of an earlier one, and which layers run several times with a cache for each."""

from typing import TYPE_CHECKING

from kvbudget.errors import BadConfigError, UnsupportedError
from kvbudget.model.attention import (
    LARGEST_HEAD_SIZE,
    LARGEST_HEADS,
    attention_of,
    divided_heads,
    head_size_of,
    layer_types_of,
    windowed_layers,
)
from kvbudget.model.fields import LARGEST_LAYERS, Fields
from kvbudget.model.kinds import refuse_other_kinds
from kvbudget.model.layers import Attention, Layer
from kvbudget.model.windows import FULL, SLIDING, Reach, reaches

if TYPE_CHECKING:
    from kvbudget.model.families.family import Family

_SHARED = Layer((), shared=True)


def gemma3_layers(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """Gemma 3 and Gemma 3n; the latter's last num_kv_shared_layers read the last earlier layer of their type."""
    _refuse_bidirectional(fields, model_type)
    count = fields.count("num_hidden_layers", high=LARGEST_LAYERS)
    refuse_other_kinds(fields, model_type, ("sliding_window_pattern", "num_kv_shared_layers"))
    types = layer_types_of(family, fields, model_type, count)
    attention = attention_of(fields, model_type)
    own = tuple(
        Layer((attention._replace(window=reach.window),)) for reach in reaches(fields, model_type, count, types)
    )
    return _shared_from_the_end(fields, own, types or (FULL,) * count)


def gemma4_layers(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """Gemma 4: full layers have their own head size and, when keys are values too, their own KV heads.

    Keys that serve as values are still stored twice (vLLM 0.32 models/gemma4.py). The last layer is always full.
    """
    _refuse_bidirectional(fields, model_type)
    count = fields.count("num_hidden_layers", high=LARGEST_LAYERS)
    refuse_other_kinds(fields, model_type, ("num_kv_shared_layers", "global_head_dim", "sliding_window_pattern"))
    types = layer_types_of(family, fields, model_type, count) or ()
    types = (*types[:-1], FULL)
    heads = fields.count("num_attention_heads", high=LARGEST_HEADS)
    kv_heads = fields.count("num_key_value_heads", high=LARGEST_HEADS)
    size = head_size_of(fields, heads)
    global_size = fields.optional_count("global_head_dim", high=LARGEST_HEAD_SIZE) or 512
    global_heads = kv_heads
    if fields.flag("attention_k_eq_v"):
        global_heads = fields.optional_count("num_global_key_value_heads", high=LARGEST_HEADS) or kv_heads
    attentions = {
        FULL: Attention(divided_heads(fields, heads, global_heads), global_size, global_size),
        SLIDING: Attention(divided_heads(fields, heads, kv_heads), size, size),
    }
    known: dict[Reach, Layer] = {}
    own = []
    for name, reach in zip(types, reaches(fields, model_type, count, types), strict=True):
        if reach not in known:
            known[reach] = Layer((attentions[name]._replace(window=reach.window),))
        own.append(known[reach])
    return _shared_from_the_end(fields, tuple(own), types)


def _shared_from_the_end(fields: Fields, own: tuple[Layer, ...], types: tuple[str, ...]) -> tuple[Layer, ...]:
    """The last num_kv_shared_layers keep nothing; each reads the last earlier layer of its own type."""
    sharing = fields.optional_count("num_kv_shared_layers", low=0, high=LARGEST_LAYERS) or 0
    if not sharing:
        return own
    first = len(own) - sharing
    if first <= 0 or set(types[first:]) - set(types[:first]):
        raise BadConfigError(
            f"config.json: num_kv_shared_layers {sharing} of {len(own)} layers leaves one that has nothing to share",
            fix="correct num_kv_shared_layers",
        )
    return own[:first] + (_SHARED,) * sharing


def _refuse_bidirectional(fields: Fields, model_type: str) -> None:
    if fields.raw.get("use_bidirectional_attention") in (True, "all"):
        raise UnsupportedError(
            f"{model_type} with use_bidirectional_attention is an encoder, which keeps no cache between tokens",
            fix="nothing is guessed; it serves embeddings, not generation",
        )


def looped_layers(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """IQuest LoopCoder: a layer runs loop_num times; the first keeps everything, the others a short window each."""
    count = fields.count("num_hidden_layers", high=LARGEST_LAYERS)
    refuse_other_kinds(fields, model_type, ("loop_num",))
    attention = attention_of(fields, model_type)
    loops = fields.optional_count("loop_num", high=1000) or 2
    local = attention._replace(window=fields.optional_count("loop_window_size") or 64)
    return (Layer((attention, *(local,) * (loops - 1))),) * count


def recurrent_depth_layers(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """HRM-Text: two stacks that run in turns, with a cache for each turn (vLLM 0.32 models/hrm_text.py).

    The config class multiplies num_hidden_layers by the turns unless num_layers_per_stack is there already.
    """
    refuse_other_kinds(fields, model_type)
    stack = fields.optional_count("num_layers_per_stack", high=LARGEST_LAYERS)
    if stack is None:
        stack = fields.count("num_hidden_layers", high=LARGEST_LAYERS)
    turns = fields.count("H_cycles", high=100) * (fields.count("L_cycles", high=100) + 1)
    if stack * turns > LARGEST_LAYERS:
        raise BadConfigError("config.json: H_cycles and L_cycles give too many layers", fix="correct them")
    heads = fields.count("num_attention_heads", high=LARGEST_HEADS)
    size = head_size_of(fields, heads)
    return (Layer((Attention(heads, size, size),)),) * (stack * turns)


def unshared_layers(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """HunYuan: cla_share_factor counts only with use_cla, which vLLM 0.32 does not serve."""
    if fields.flag("use_cla"):
        raise UnsupportedError(
            f"{model_type} with use_cla shares its cache across layers, which vLLM 0.32 does not serve",
            fix="nothing is guessed",
        )
    return windowed_layers(family, fields, model_type, reads=("cla_share_factor",))
