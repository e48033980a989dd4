"""Decides whether every layer keeps a plain full-attention cache; any other kind is refused by its name.

The next kinds to be computed take their entry out of here and add a class in `layers.py`.
"""

from collections.abc import Iterator

from kvbudget.errors import BadConfigError, UnsupportedError
from kvbudget.model.families import Family
from kvbudget.model.fields import LARGEST_LAYERS, Fields

# Architectures whose config class makes them something else even where no key in config.json says so.
OTHER_KINDS = {
    **dict.fromkeys(
        ("gemma2", "gemma3", "gemma3_text", "gemma4", "gemma4_text", "cohere2", "gpt_oss", "ministral", "exaone4",
         "olmo3", "mimo_v2_flash", "mimo_v2", "step3p5", "step3p7", "vaultgemma", "cwm", "dots1", "afmoe", "laguna",
         "modernbert", "granite_swa", "granitemoe_swa"),
        "sliding-window layers beside full ones",
    ),
    **dict.fromkeys(("gemma3n", "gemma3n_text"), "sliding-window layers and cache shared across layers"),
    **dict.fromkeys(("llama4", "llama4_text"), "chunked attention"),
    **dict.fromkeys(
        ("deepseek_v2", "deepseek_v3", "kimi_k2", "kimi_k25", "kimi_vl", "minicpm3", "longcat_flash", "glm4_moe_lite",
         "pangu_ultra_moe", "axk1", "deepseek_vl_v2", "mistral4", "youtu"),
        "MLA (one latent per token)",
    ),
    **dict.fromkeys(
        ("deepseek_v32", "glm_moe_dsa", "glm5_next", "deepseek_v4", "deepseek_ref"),
        "MLA with a sparse-attention indexer or compressed cache",
    ),
    **dict.fromkeys(
        ("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "qwen4_exp", "kimi_linear",
         "kimi_k3", "minimax", "minimax_text_01", "minimax_m1", "bailing_hybrid", "olmo_hybrid"),
        "linear attention (recurrent state)",
    ),
    **dict.fromkeys(
        ("mamba", "mamba2", "falcon_mamba", "falcon_h1", "jamba", "bamba", "zamba", "zamba2", "nemotron_h",
         "granitemoehybrid", "plamo2", "lfm2", "lfm2_moe", "recurrent_gemma", "rwkv", "xlstm"),
        "Mamba or other recurrent state",
    ),
    **dict.fromkeys(
        ("t5", "mt5", "umt5", "bart", "mbart", "pegasus", "whisper", "mllama", "encoder-decoder", "t5gemma",
         "t5gemma2", "cohere_asr", "marian", "m2m_100", "florence2"),
        "encoder-decoder or cross attention",
    ),
    **dict.fromkeys(("nemotron-nas", "deci"), "layers without attention (NAS block_configs)"),
    "minimax_m3_vl": "sparse attention",
}  # fmt: skip

# Keys that only architectures with another kind of cache carry, whatever their model_type says.
_TELLTALE_KEYS = (
    ("kv_lora_rank", "MLA (one latent per token)"),
    ("index_topk", "a sparse-attention indexer"),
    ("indexer_types", "a sparse-attention indexer"),
    ("compress_ratios", "a compressed cache"),
    ("attention_chunk_size", "chunked attention"),
    ("block_configs", "layers without attention (NAS block_configs)"),
    ("layers_block_type", "Mamba or other recurrent state"),
    ("hybrid_override_pattern", "Mamba or other recurrent state"),
    ("attn_layer_period", "Mamba or other recurrent state"),
    ("mamba_d_state", "Mamba or other recurrent state"),
    ("ssm_state_size", "Mamba or other recurrent state"),
    ("linear_num_value_heads", "linear attention (recurrent state)"),
    ("linear_attn_config", "linear attention (recurrent state)"),
    ("full_attention_interval", "linear attention (recurrent state)"),
    ("num_kv_shared_layers", "cache shared across layers"),
    ("cla_share_factor", "cache shared across layers"),
    ("sliding_window_pattern", "sliding-window layers beside full ones"),
    ("global_attn_every_n_layers", "sliding-window layers beside full ones"),
    ("hybrid_layer_pattern", "sliding-window layers beside full ones"),
    ("rswa_window", "sliding-window layers"),
    ("cross_attention_layers", "encoder-decoder or cross attention"),
    ("per_layer_config", "layers that differ from one another"),
)
# Values that switch such a key off: nothing shared, nothing interleaved.
_OFF: tuple[object, ...] = (None, 0, 1, False, [], {}, "")
_NOT_FULL = {
    "sliding_attention": "sliding-window layers",
    "chunked_attention": "chunked attention",
    "linear_attention": "linear attention (recurrent state)",
    "mamba": "Mamba or other recurrent state",
    "conv": "convolution state",
}
_FULL_NAMES = ("full_attention", "attention")


def refuse_other_architecture(model_type: str) -> None:
    """Raise UnsupportedError when this architecture is known to keep another kind of cache."""
    kind = OTHER_KINDS.get(model_type)
    if kind is not None:
        raise _other(model_type, kind)


def refuse_other_kinds(fields: Fields, family: Family, model_type: str, layers: int) -> None:
    """Raise UnsupportedError, naming the kind, unless all `layers` layers are full attention."""
    if fields.flag("is_encoder_decoder"):
        raise _other(model_type, "encoder-decoder or cross attention")
    for key, kind in _TELLTALE_KEYS:
        if fields.raw.get(key) not in _OFF:
            raise _other(f"{model_type} with {key}", kind)
    named = fields.texts("layer_types")
    if named is not None:
        _check_length(len(named), layers, "layer_types")
        for name in named:
            if name not in _FULL_NAMES:
                raise _other(f"{model_type} with layer_types", _NOT_FULL.get(name, f"layers of type {name[:40]!r}"))
    kinds = fields.counts("attn_type_list")
    if kinds:
        _check_length(len(kinds), layers, "attn_type_list")
        if any(kind != 1 for kind in kinds):
            raise _other(f"{model_type} with attn_type_list", "linear attention (recurrent state)")
    for reason in _active_windows(fields, family, layers, named is not None):
        raise _other(f"{model_type} with {reason}", "sliding-window layers")


def _active_windows(fields: Fields, family: Family, layers: int, layers_are_named: bool) -> Iterator[str]:
    """Why a window is active, if it is. An explicit layer_types has been checked already and decides alone."""
    default = family.defaults.get("sliding_window")
    raw = fields.raw.get("sliding_window", default)
    window = None if raw is None else fields.optional_count("sliding_window")
    if family.window == "switch" or fields.raw.get("use_sliding_window") is False:
        if not fields.flag("use_sliding_window") or layers_are_named:
            return
        first = fields.optional_count("max_window_layers", low=0, high=LARGEST_LAYERS) or 0
        if first < layers or family.defaults.get("max_window_layers") is None:
            yield "use_sliding_window"
    elif window is not None and not layers_are_named:
        where = "its class default" if "sliding_window" not in fields.raw else "sliding_window"
        yield f"{where} {window}"


def _check_length(length: int, layers: int, key: str) -> None:
    if length != layers:
        raise BadConfigError(
            f"config.json: {key} has {length} entries, but there are {layers} layers",
            fix=f"one entry of {key} for each layer",
        )


def _other(what: str, kind: str) -> UnsupportedError:
    return UnsupportedError(
        f"{what} needs a cache that is not computed yet: {kind}; only uniform full attention (MHA, GQA, MQA) is",
        fix="nothing is guessed; plan a uniform model, or wait for this layer kind",
    )
