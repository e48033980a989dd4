"""Decides which other keys of a config.json mean the same: names that a config class takes beside its own.

transformers 5 `models/*/configuration_*.py`: `attribute_map`, and keys that a constructor reads before its own. The
keys here are those that the readers of a family ask for; those that Family.spelling names are read there.
"""

from collections.abc import Mapping

_ROUTED = {"num_local_experts": "n_routed_experts"}
_MTP = {"num_mtp_layers": "num_nextn_predict_layers"}
_LOCAL = {"num_local_experts": "num_experts"}
_GLOBAL = {"num_experts": "num_local_experts"}
_BLOCKS = {"layer_types": "layers_block_type"}
_ERNIE = {"num_experts": "moe_num_experts", "num_experts_per_tok": "moe_k"}
_OF_TYPE: Mapping[str, Mapping[str, str]] = {
    **dict.fromkeys(
        ("axk1", "deepseek_v32", "dots1", "glm4_moe_lite", "glm4v_moe_text", "glm5_next_text", "glm_moe_dsa", "hy_v4",
         "inkling_text", "mimo_v2_flash", "mistral4", "nemotron_h", "solar_open"), _ROUTED,
    ),
    **dict.fromkeys(
        ("flex_olmo", "hy_v3", "hunyuan_v1_moe", "jamba", "olmoe", "qwen3_moe", "qwen3_vl_moe_text"), _LOCAL
    ),
    **dict.fromkeys(("gpt_oss", "mellum", "minimax"), _GLOBAL),
    **dict.fromkeys(("bamba", "falcon_h1", "zamba2"), _BLOCKS),
    **dict.fromkeys(("ernie4_5_moe", "ernie4_5_vl_moe_text"), _ERNIE),
    "deepseek_v2": {"num_experts": "n_routed_experts"},
    "deepseek_v3": _ROUTED | _MTP,
    "deepseek_v4": _ROUTED | {"intermediate_size": "moe_intermediate_size"},
    "glm4_moe": _ROUTED | _MTP,
    "granitemoehybrid": {"layers_block_type": "layer_types"},
    "kimi_linear": _LOCAL | {
        "max_position_embeddings": "model_max_length", "num_experts_per_tok": "num_experts_per_token",
        "n_shared_experts": "num_shared_experts",
    },
    "longcat_flash": _ROUTED | {
        "num_experts_per_tok": "moe_topk", "intermediate_size": "ffn_hidden_size",
        "moe_intermediate_size": "expert_ffn_hidden_size",
    },
    "hunyuan_vl_text": {"org_vocab_size": "vocab_size"},
    "step3p5": _MTP | {
        "num_local_experts": "moe_num_experts", "n_routed_experts": "moe_num_experts",
        "num_experts_per_tok": "moe_top_k", "share_expert_dims": "share_expert_dim",
    },
}  # fmt: skip
# Where these are there they replace the key that they mean.
_STRONGER: Mapping[str, Mapping[str, str]] = {
    "bloom": {"n_embed": "hidden_size"},
    "falcon": {"n_embed": "hidden_size"},
    "RefinedWeb": {"n_embed": "hidden_size"},
    "RefinedWebModel": {"n_embed": "hidden_size"},
    "inkling_text": {"dense_intermediate_size": "intermediate_size"},
    "lfm2": {"block_ff_dim": "intermediate_size"},
}


def spelt_as_read(text: Mapping[str, object], model_type: str) -> Mapping[str, object]:
    """`text` with every value under the key that is read; the same object where nothing is spelt otherwise."""
    found = {
        key: text[other]
        for other, key in _OF_TYPE.get(model_type, {}).items()
        if text.get(key) is None and text.get(other) is not None
    }
    for other, key in _STRONGER.get(model_type, {}).items():
        if text.get(other) is not None:
            found[key] = text[other]
    return {**text, **found} if found else text
