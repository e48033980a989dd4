"""Decides which configs are refused: an architecture or a key that means a cache which the reader does not compute."""

from kvbudget.errors import UnsupportedError
from kvbudget.model.fields import Fields

_CROSS = "encoder-decoder or cross attention"
_RECURRENT = "Mamba or other recurrent state"

# Architectures that are known and kept out: no engine here serves them, or how it does is not known.
OTHER_KINDS = {
    **dict.fromkeys(
        ("t5", "mt5", "umt5", "bart", "mbart", "pegasus", "encoder-decoder", "t5gemma", "t5gemma2", "marian",
         "m2m_100", "florence2", "mllama", "mllama_text_model", "led", "blenderbot", "longt5", "prophetnet"),
        f"{_CROSS}, which vLLM 0.32 no longer serves",
    ),
    **dict.fromkeys(
        ("bert", "roberta", "xlm-roberta", "modernbert", "distilbert", "electra", "deberta", "deberta-v2", "albert",
         "nomic_bert", "clip", "siglip"),
        "an encoder, which keeps no cache between tokens",
    ),
    **dict.fromkeys(("rwkv", "xlstm", "recurrent_gemma"), _RECURRENT),
    **dict.fromkeys(
        ("voxtral_realtime", "voxtral_realtime_text"), "an audio encoder with a cache that params.json sizes"
    ),
}  # fmt: skip

# Keys that only architectures with another kind of cache carry, whatever their model_type says.
_TELLTALE_KEYS = (
    ("kv_lora_rank", "MLA (one latent per token)"),
    ("index_topk", "a sparse-attention indexer"),
    ("indexer_types", "a sparse-attention indexer"),
    ("sparse_attention_config", "sparse attention"),
    ("compress_ratios", "a compressed cache"),
    ("attention_chunk_size", "chunked attention"),
    ("block_configs", "layers without attention (NAS block_configs)"),
    ("layers_block_type", _RECURRENT),
    ("hybrid_override_pattern", _RECURRENT),
    ("attn_layer_period", _RECURRENT),
    ("mamba_d_state", _RECURRENT),
    ("ssm_state_size", _RECURRENT),
    ("linear_num_value_heads", "linear attention (recurrent state)"),
    ("linear_attn_config", "linear attention (recurrent state)"),
    ("full_attention_interval", "linear attention (recurrent state)"),
    ("num_kv_shared_layers", "cache shared across layers"),
    ("cla_share_factor", "cache shared across layers"),
    ("sliding_window_pattern", "sliding-window layers beside full ones"),
    ("interleaved_sliding_window", "sliding-window layers beside full ones"),
    ("global_attn_every_n_layers", "sliding-window layers beside full ones"),
    ("hybrid_layer_pattern", "sliding-window layers beside full ones"),
    ("sliding_windows", "sliding-window layers of different lengths"),
    ("rswa_window", "sliding-window layers"),
    ("cross_attention_layers", _CROSS),
    ("per_layer_config", "layers that differ from one another"),
    ("attention_other_setting", "layers that differ from one another"),
    ("swa_num_key_value_heads", "layers that differ from one another"),
    ("global_head_dim", "layers that differ from one another"),
    ("param_sink_number", "attention with kept sink tokens"),
    ("loop_num", "layers that run several times"),
)
# Values that switch such a key off: nothing shared, nothing interleaved.
_OFF: tuple[object, ...] = (None, 0, 1, False, [], {}, "")
_KINDS = {
    "sliding_attention": "sliding-window layers",
    "chunked_attention": "chunked attention",
    "linear_attention": "linear attention (recurrent state)",
    "mamba": _RECURRENT,
    "conv": "convolution state",
}


def refuse_other_architecture(model_type: str) -> None:
    """Raise UnsupportedError when this architecture is known and kept out."""
    kind = OTHER_KINDS.get(model_type)
    if kind is not None:
        raise _other(model_type, kind)


def refuse_other_kinds(fields: Fields, model_type: str, reads: tuple[str, ...] = ()) -> None:
    """Raise UnsupportedError when a key means a kind of cache that this family does not have.

    `reads`: the keys that its reader takes into account.
    """
    if fields.flag("is_encoder_decoder"):
        raise _other(model_type, _CROSS)
    for key, kind in _TELLTALE_KEYS:
        if key not in reads and fields.raw.get(key) not in _OFF:
            raise _other(f"{model_type} with {key}", kind)
    if any(kind != 1 for kind in fields.counts("attn_type_list")):  # MiniMax: 1 is attention, 0 linear attention
        raise _other(f"{model_type} with attn_type_list", _KINDS["linear_attention"])


def kind_named(name: str) -> str:
    """What a layer type keeps, for an error."""
    return _KINDS.get(name, f"layers of type {name[:40]!r}")


def _other(what: str, kind: str) -> UnsupportedError:
    return UnsupportedError(
        f"{what} needs a cache that is not computed for it: {kind}",
        fix="nothing is guessed; plan a model that vLLM 0.32 serves, or remove the key if it has no effect",
    )
