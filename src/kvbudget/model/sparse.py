"""Decides the caches of layers whose attention reads only chosen tokens, and of those beside them that read a window.

MiniMax-M3 (plain attention and an indexer) and dots3 (MLA: sparse in some layers, a sliding window in the others).
"""

from typing import TYPE_CHECKING

from kvbudget.errors import BadConfigError, UnsupportedError
from kvbudget.model.attention import LARGEST_HEAD_SIZE, LARGEST_HEADS, attention_of
from kvbudget.model.fields import LARGEST_LAYERS, Fields
from kvbudget.model.kinds import refuse_other_kinds
from kvbudget.model.latent import draft_count, latent_of
from kvbudget.model.layers import Attention, Indexer, Latent, Layer
from kvbudget.model.windows import FULL, SLIDING

if TYPE_CHECKING:
    from kvbudget.model.families.family import Family

_DENSE_LAYERS = 3


def indexed_layers(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """MiniMax-M3: sparse layers keep the keys of their indexer beside the attention (vLLM 0.32 models/minimax_m3)."""
    count = fields.count("num_hidden_layers", high=LARGEST_LAYERS)
    refuse_other_kinds(fields, model_type, ("sparse_attention_config",))
    section = fields.section("sparse_attention_config")
    if section is None:  # class default: the first layers are dense
        sparse = tuple(int(index >= _DENSE_LAYERS) for index in range(count))
    else:
        sparse = Fields(section, {}, {}).counts("sparse_attention_freq") or (0,) * count
    if len(sparse) != count:
        raise BadConfigError(
            f"config.json: sparse_attention_freq has {len(sparse)} entries, but there are {count} layers",
            fix="one entry of sparse_attention_freq for each layer",
        )
    dense = Layer((attention_of(fields, model_type),))
    indexed = _indexed(fields, model_type)
    return tuple(indexed if flag else dense for flag in sparse)


def indexed_drafts(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """MiniMax-M3's MTP modules are sparse layers (vLLM 0.32 models/minimax_m3/nvidia/mtp.py)."""
    return (_indexed(fields, model_type),) * draft_count(fields)


def _indexed(fields: Fields, model_type: str) -> Layer:
    own = Fields(fields.section("sparse_attention_config") or {}, {}, {"sparse_index_dim": 128})
    indexer = Indexer(own.count("sparse_index_dim", high=LARGEST_HEAD_SIZE), plain=True)
    attention: Attention = attention_of(fields, model_type)
    return Layer((attention, indexer))


def sparse_or_sliding_layers(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """dots3: layer_types says which layers are sparse and which keep a window, each with a latent of their own."""
    count = fields.count("num_hidden_layers", high=LARGEST_LAYERS)
    types = fields.texts("layer_types")
    if types is None or len(types) != count:
        raise BadConfigError(
            f"config.json: layer_types must have {count} entries, one for each layer",
            fix="give the model's own config.json, unchanged",
        )
    return _typed(fields, types)


def sparse_or_sliding_drafts(family: "Family", fields: Fields, model_type: str) -> tuple[Layer, ...]:
    """dots3's MTP modules: mtp_layer_types, sliding when that is missing (vLLM 0.32 config/speculative.py)."""
    count = draft_count(fields)
    types = fields.texts("mtp_layer_types")
    if types is not None and len(types) != count:
        raise BadConfigError(
            f"config.json: mtp_layer_types has {len(types)} entries, but there are {count} draft layers",
            fix="one entry of mtp_layer_types for each",
        )
    return _typed(fields, types or (SLIDING,) * count)


def _typed(fields: Fields, types: tuple[str, ...]) -> tuple[Layer, ...]:
    sliding = _sliding_latent(fields)
    width = sliding.latent_size + sliding.rope_size
    latent = latent_of(fields)
    if latent.latent_size + latent.rope_size > width:
        raise BadConfigError(
            f"config.json: a latent of {latent.latent_size} + {latent.rope_size} does not fit into the sliding layers' "
            f"{width}, which both kinds of layer take",
            fix="correct kv_lora_rank or swa_kv_lora_rank",
        )
    indexer = Indexer(fields.count("index_head_dim", high=LARGEST_HEAD_SIZE))
    kinds = {SLIDING: Layer((sliding,)), FULL: Layer((latent._replace(padded_size=width), indexer))}
    for name in types:
        if name not in kinds:
            raise UnsupportedError(f"layer_types {name[:40]!r} is unknown", fix=f"known are {', '.join(kinds)}")
    return tuple(kinds[name] for name in types)


def _sliding_latent(fields: Fields) -> Latent:
    rope = fields.count("swa_qk_rope_head_dim", low=0, high=LARGEST_HEAD_SIZE)
    return Latent(
        latent_size=fields.count("swa_kv_lora_rank", high=LARGEST_HEAD_SIZE),
        rope_size=rope,
        heads=fields.count("swa_num_attention_heads", high=LARGEST_HEADS),
        key_size=fields.count("swa_qk_nope_head_dim", low=0, high=LARGEST_HEAD_SIZE) + rope,
        value_size=fields.count("swa_v_head_dim", high=LARGEST_HEAD_SIZE),
        window=fields.count("sliding_window_size"),
    )
