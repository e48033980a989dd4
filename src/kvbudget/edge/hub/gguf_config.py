"""Decides which config.json describes the same model as a GGUF file's metadata.

Keys: ggml `docs/gguf.md` and gguf-py 0.19 `constants.py`; what an architecture leaves out means the default of the
config class from which it was converted, so an architecture without a known class is refused.
"""

from collections.abc import Mapping

from kvbudget.errors import BadConfigError, UnsupportedError

# general.architecture -> model_type
_TYPES = {
    "llama": "llama", "llama4": "llama4_text", "deci": "nemotron-nas", "mistral3": "ministral3",
    "qwen2": "qwen2", "qwen2moe": "qwen2_moe", "qwen3": "qwen3", "qwen3moe": "qwen3_moe", "qwen3next": "qwen3_next",
    "qwen2vl": "qwen2_vl_text", "qwen3vl": "qwen3_vl_text", "qwen3vlmoe": "qwen3_vl_moe_text",
    "qwen35": "qwen3_5_text", "qwen35moe": "qwen3_5_moe_text",
    "gemma": "gemma", "gemma2": "gemma2", "gemma3": "gemma3_text", "gemma3n": "gemma3n_text", "gemma4": "gemma4_text",
    "gpt-oss": "gpt_oss", "deepseek2": "deepseek_v3", "phi2": "phi", "phi3": "phi3", "phimoe": "phimoe",
    "command-r": "cohere", "cohere2": "cohere2", "starcoder2": "starcoder2", "stablelm": "stablelm",
    "falcon": "falcon", "gpt2": "gpt2", "gptj": "gptj", "gptneox": "gpt_neox", "bloom": "bloom", "mpt": "mpt",
    "granite": "granite", "granitemoe": "granitemoe", "granitehybrid": "granitemoehybrid",
    "olmo": "olmo", "olmo2": "olmo2", "olmoe": "olmoe", "nemotron": "nemotron", "nemotron_h": "nemotron_h",
    "nemotron_h_moe": "nemotron_h", "glm4": "glm4", "glm4moe": "glm4_moe", "chatglm": "glm",
    "exaone": "exaone", "exaone4": "exaone4", "internlm2": "internlm2", "smollm3": "smollm3", "seed_oss": "seed_oss",
    "hunyuan-dense": "hunyuan_v1_dense", "ernie4_5": "ernie4_5", "ernie4_5-moe": "ernie4_5_moe", "dots1": "dots1",
    "bailingmoe": "bailing_moe", "bailingmoe2": "bailing_moe_v2", "apertus": "apertus", "arcee": "arcee",
    "afmoe": "afmoe", "minimax-m2": "minimax_m2", "mimo2": "mimo_v2_flash", "mamba": "mamba", "mamba2": "mamba2",
    "jamba": "jamba", "falcon-h1": "falcon_h1", "lfm2": "lfm2", "lfm2moe": "lfm2_moe", "minicpm": "minicpm",
    "minicpm3": "minicpm3", "baichuan": "baichuan", "orion": "orion",
}  # fmt: skip

# Our name -> metadata key after `ARCHITECTURE.`; of several the first that is there.
_PLAIN: Mapping[str, tuple[str, ...]] = {
    "num_hidden_layers": ("block_count",),
    "hidden_size": ("embedding_length",),
    "intermediate_size": ("feed_forward_length",),
    "num_attention_heads": ("attention.head_count",),
    "num_key_value_heads": ("attention.head_count_kv",),
    "max_position_embeddings": ("context_length",),
    "sliding_window": ("attention.sliding_window",),
    "num_experts_per_tok": ("expert_used_count",),
    "moe_intermediate_size": ("expert_feed_forward_length",),
    "n_shared_experts": ("expert_shared_count",),
    "shared_expert_intermediate_size": ("expert_shared_feed_forward_length",),
    "first_k_dense_replace": ("leading_dense_block_count",),
    "num_nextn_predict_layers": ("nextn_predict_layers",),
    "kv_lora_rank": ("attention.kv_lora_rank",),
    "q_lora_rank": ("attention.q_lora_rank",),
    "attention_chunk_size": ("attention.chunk_size",),
    "num_kv_shared_layers": ("attention.shared_kv_layers",),
    "hidden_size_per_layer_input": ("embedding_length_per_layer_input",),
    "index_n_heads": ("attention.indexer.head_count",),
    "index_head_dim": ("attention.indexer.key_length",),
    "index_topk": ("attention.indexer.top_k",),
}
# Recurrent sizes by model_type: our name -> ssm key.
_RECURRENT: Mapping[str, Mapping[str, str]] = {
    "mamba": {"conv_kernel": "conv_kernel", "state_size": "state_size", "time_step_rank": "time_step_rank"},
    "mamba2": {"conv_kernel": "conv_kernel", "state_size": "state_size", "num_heads": "time_step_rank",
               "n_groups": "group_count"},
    "jamba": {"mamba_d_conv": "conv_kernel", "mamba_d_state": "state_size", "mamba_dt_rank": "time_step_rank"},
    "granitemoehybrid": {"mamba_d_conv": "conv_kernel", "mamba_d_state": "state_size",
                         "mamba_n_heads": "time_step_rank", "mamba_n_groups": "group_count"},
    "falcon_h1": {"mamba_d_conv": "conv_kernel", "mamba_d_state": "state_size", "mamba_n_heads": "time_step_rank",
                  "mamba_n_groups": "group_count", "mamba_d_ssm": "inner_size"},
    "nemotron_h": {"conv_kernel": "conv_kernel", "ssm_state_size": "state_size", "mamba_num_heads": "time_step_rank",
                   "n_groups": "group_count"},
    "qwen3_next": {"linear_conv_kernel_dim": "conv_kernel", "linear_key_head_dim": "state_size",
                   "linear_num_value_heads": "time_step_rank", "linear_num_key_heads": "group_count"},
}  # fmt: skip
_SIGMOID = 2  # llama.cpp `LLAMA_EXPERT_GATING_FUNC_TYPE_SIGMOID`: DeepSeek-V3 and later
_DELTA_NETS = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
_LISTED = ("granitemoehybrid", "lfm2", "lfm2_moe", "nemotron_h")


def config_of(metadata: Mapping[str, object], tensors: frozenset[str]) -> dict[str, object]:
    """A mapping for `model_from_config`. Raises BadConfigError or UnsupportedError naming the key that is missing."""
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise BadConfigError("GGUF: general.architecture is missing", fix="give the model's own file")
    model_type = _TYPES.get(architecture)
    if model_type is None:
        raise UnsupportedError(
            f"GGUF architecture {architecture[:40]!r} is unknown: which config class it was converted from is missing",
            fix=f"known are {', '.join(sorted(_TYPES))}; or give the config.json of the original model",
        )
    keys = {key.removeprefix(f"{architecture}."): value for key, value in metadata.items()}
    config: dict[str, object] = {"model_type": model_type, "architectures": [architecture]}
    for name, spellings in _PLAIN.items():
        found = next((keys[key] for key in spellings if key in keys), None)
        if found is not None:
            config[name] = found
    blocks, drafts = config.get("num_hidden_layers"), config.get("num_nextn_predict_layers")
    if type(blocks) is int and type(drafts) is int and 0 < drafts < blocks:
        config["num_hidden_layers"] = blocks - drafts  # block_count counts the draft module's too
    config["vocab_size"] = _vocabulary(keys)
    config["tie_word_embeddings"] = "output.weight" not in tensors
    if isinstance(metadata.get("general.name"), str):
        config["_name_or_path"] = metadata["general.name"]
    _head_sizes(config, keys)
    _experts(config, keys)
    _recurrent(config, keys, model_type)
    _layers(config, keys, model_type)
    _rope(config, keys)
    if model_type == "deepseek_v3" and keys.get("expert_gating_func") != _SIGMOID:
        config["model_type"] = "deepseek_v2"
    if model_type == "qwen2" and any(name.endswith("attn_q_norm.weight") for name in tensors):
        config["model_type"] = "qwen3"
    return config


def _vocabulary(keys: Mapping[str, object]) -> object:
    size = keys.get("vocab_size")
    if size is None:
        tokens = keys.get("tokenizer.ggml.tokens")
        size = getattr(tokens, "length", None)
    if type(size) is not int:
        raise BadConfigError("GGUF: neither vocab_size nor tokenizer.ggml.tokens is there", fix="give the whole model")
    return size


def _head_sizes(config: dict[str, object], keys: Mapping[str, object]) -> None:
    key, value, rotary = keys.get("attention.key_length"), keys.get("attention.value_length"), keys.get(
        "rope.dimension_count")  # fmt: skip
    if config.get("kv_lora_rank") is not None:
        # Newer files state the expanded heads apart, and as key_length the latent with its rotary part.
        key, value = keys.get("attention.key_length_mla", key), keys.get("attention.value_length_mla", value)
        if type(key) is not int or type(value) is not int or type(rotary) is not int or rotary > key:
            raise BadConfigError(
                "GGUF: an MLA model needs attention.key_length, attention.value_length and rope.dimension_count",
                fix="give the model's own file",
            )
        config.update(qk_rope_head_dim=rotary, qk_nope_head_dim=key - rotary, v_head_dim=value)
        heads = config.get("num_attention_heads")
        config["num_key_value_heads"] = heads
        return
    if key is not None:
        config["head_dim"] = key
    if value is not None and value != key:
        config["v_head_dim"] = value
        if config["model_type"] not in ("mimo_v2_flash",):
            raise UnsupportedError(
                "GGUF: attention.key_length and attention.value_length differ, which is not known of this architecture",
                fix="give the config.json of the original model",
            )


def _experts(config: dict[str, object], keys: Mapping[str, object]) -> None:
    count = keys.get("expert_count")
    if type(count) is not int or count == 0:
        return
    config.update(num_experts=count, num_local_experts=count, n_routed_experts=count)
    if config["model_type"] == "llama":
        config["model_type"] = "mixtral"
    if config["model_type"] in ("gpt_oss", "mixtral") and "expert_feed_forward_length" in keys:
        config["intermediate_size"] = keys["expert_feed_forward_length"]


def _recurrent(config: dict[str, object], keys: Mapping[str, object], model_type: str) -> None:
    names = _RECURRENT["qwen3_next"] if model_type in _DELTA_NETS else _RECURRENT.get(model_type, {})
    for name, key in names.items():
        value = keys.get(f"ssm.{key}")
        if value is not None:
            config[name] = value
    inner, heads = keys.get("ssm.inner_size"), keys.get("ssm.time_step_rank")
    if type(inner) is int and type(heads) is int and heads > 0 and inner % heads == 0:
        if model_type == "mamba2":
            config.update(intermediate_size=inner, head_dim=inner // heads)
        elif model_type == "nemotron_h":
            config["mamba_head_dim"] = inner // heads
        elif model_type in ("granitemoehybrid", "falcon_h1"):
            config["mamba_d_head"] = inner // heads
        elif model_type in _DELTA_NETS:
            config["linear_value_head_dim"] = inner // heads
    hidden = config.get("hidden_size")
    if type(inner) is int and model_type in ("mamba", "jamba", "granitemoehybrid") and type(hidden) is int and hidden:
        if model_type == "mamba":
            config["intermediate_size"] = inner
        elif inner % hidden == 0:
            config["mamba_expand"] = inner // hidden
    if model_type in ("mamba", "mamba2"):
        config.pop("num_key_value_heads", None)
    if keys.get("shortconv.l_cache") is not None:
        config["conv_L_cache"] = keys["shortconv.l_cache"]


def _layers(config: dict[str, object], keys: Mapping[str, object], model_type: str) -> None:
    """Lists with an entry for each layer: KV heads of 0 where there is no attention, windows as true or false."""
    if model_type == "gemma4_text":
        _gemma4(config, keys)
    kv_heads, inner = config.get("num_key_value_heads"), config.get("intermediate_size")
    if isinstance(kv_heads, list):
        if model_type == "nemotron-nas":
            _pruned(config, kv_heads, inner)
        elif model_type in _LISTED and isinstance(kv_heads, list):
            recurrent = "conv" if model_type.startswith("lfm2") else "mamba"
            names = ["attention" if heads else recurrent for heads in kv_heads]
            if model_type == "nemotron_h":
                sizes = inner if isinstance(inner, list) else [0] * len(names)
                names = ["mlp" if size else name for name, size in zip(names, sizes, strict=False)]
                config["layers_block_type"] = names
            else:
                config["layer_types"] = ["full_attention" if name == "attention" else name for name in names]
        used = [heads for heads in kv_heads if heads]
        # Blocks that are listed anyway need no number for all.
        config["num_key_value_heads"] = _one(
            used[:1] if model_type == "nemotron-nas" else used, "attention.head_count_kv"
        )
    heads = config.get("num_attention_heads")
    if isinstance(heads, list):
        used = [count for count in heads if count]
        config["num_attention_heads"] = _one(used[:1] if model_type == "nemotron-nas" else used, "attention.head_count")
    if isinstance(inner, list) and model_type != "gemma3n_text":
        config["intermediate_size"] = max((size for size in inner if type(size) is int), default=0)
    if model_type == "jamba" and isinstance(kv_heads, list):
        at = [index for index, count in enumerate(kv_heads) if count]
        if len(at) > 1:
            config.update(attn_layer_offset=at[0], attn_layer_period=at[1] - at[0])
    pattern = keys.get("attention.sliding_window_pattern")
    if isinstance(pattern, list) and len(pattern) == config.get("num_hidden_layers"):
        config["layer_types"] = ["sliding_attention" if slides else "full_attention" for slides in pattern]
    elif type(pattern) is int and pattern > 0:
        config["sliding_window_pattern"] = pattern


def _pruned(config: dict[str, object], kv_heads: list[object], inner: object) -> None:
    heads = config.get("num_attention_heads")
    every = heads if isinstance(heads, list) else [heads] * len(kv_heads)
    sizes = inner if isinstance(inner, list) else [inner] * len(kv_heads)
    if not all(type(count) is int and count >= 0 for count in (*every, *kv_heads, *sizes)):
        raise BadConfigError("GGUF: heads and sizes of layers must be whole numbers", fix="give the model's own file")
    config["block_configs"] = [
        {
            "attention": {"n_heads_in_group": own // kv} if kv and own else {"no_op": True},
            "ffn": {"intermediate_size": size} if size else {"no_op": True},
        }
        for own, kv, size in zip(every, kv_heads, sizes, strict=False)
    ]


def _one(values: list[object], key: str) -> object:
    """The value that all layers with attention share. Raises UnsupportedError when they differ: nothing is guessed."""
    if not values:
        raise BadConfigError(f"GGUF: {key} has no layer with attention", fix="give the model's own file")
    if any(value != values[0] for value in values):
        raise UnsupportedError(
            f"GGUF: {key} differs between layers, which is not known of this architecture",
            fix="give the config.json of the original model",
        )
    return values[0]


def _gemma4(config: dict[str, object], keys: Mapping[str, object]) -> None:
    """Full layers have KV heads and a head size of their own; shared ones may be twice as wide."""
    pattern, kv_heads = keys.get("attention.sliding_window_pattern"), config.get("num_key_value_heads")
    if isinstance(kv_heads, list) and isinstance(pattern, list) and len(pattern) == len(kv_heads):
        sliding = [heads for heads, slides in zip(kv_heads, pattern, strict=True) if slides]
        full = [heads for heads, slides in zip(kv_heads, pattern, strict=True) if not slides]
        if sliding and full:
            config["num_key_value_heads"] = _one(sliding, "attention.head_count_kv")
            config["num_global_key_value_heads"] = _one(full, "attention.head_count_kv")
            config["attention_k_eq_v"] = config["num_global_key_value_heads"] != config["num_key_value_heads"]
    own = keys.get("attention.key_length_swa")
    if own is not None:
        config["global_head_dim"] = config.get("head_dim")
        config["head_dim"] = own
    inner = config.get("intermediate_size")
    if isinstance(inner, list) and all(type(size) is int for size in inner):
        widths = sorted(set(inner))
        if len(widths) == 2 and widths[1] == 2 * widths[0]:
            config.update(intermediate_size=widths[0], use_double_wide_mlp=True)


def _rope(config: dict[str, object], keys: Mapping[str, object]) -> None:
    kind, factor = keys.get("rope.scaling.type"), keys.get("rope.scaling.factor")
    if isinstance(kind, str) and kind not in ("none", "") and isinstance(factor, int | float):
        # The file's context_length is the length after scaling.
        config["rope_scaling"] = {"rope_type": "yarn" if kind == "linear" else kind, "factor": factor}
