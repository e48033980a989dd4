"""Which architectures we know, by `model_type`, and which multimodal wrappers around them."""

from collections.abc import Mapping

from kvbudget.model.families.family import Family
from kvbudget.model.families.latent import LATENT
from kvbudget.model.families.multimodal import MULTIMODAL
from kvbudget.model.families.other import OTHER
from kvbudget.model.families.plain import PLAIN
from kvbudget.model.families.recurrent import RECURRENT
from kvbudget.model.families.sliding import SLIDING
from kvbudget.model.families.uniform import UNIFORM

FAMILIES: Mapping[str, Family] = {**UNIFORM, **PLAIN, **SLIDING, **LATENT, **RECURRENT, **OTHER}

# Multimodal wrappers whose text part is one of the above, and the text type when the nested config names none.
WRAPPERS: Mapping[str, str] = {
    **MULTIMODAL,
    "deepseek_vl_v2": "deepseek_v2",
    "kimi_vl": "deepseek_v3",
    "kimi_k25": "kimi_k2",
    "kimi_k3": "kimi_linear",
    "minimax_m3_vl": "minimax_m3_text",
    # DeepSeek-V4 in its reference format: the same fields, of which none but class defaults may be missing
    "deepseek_ref": "deepseek_v4",
    "deepseek_v41": "deepseek_v41",
    "deepseek_v41_text": "deepseek_v41",
    "glm5_next": "glm5_next_text",
    "qwen4_exp": "qwen4_exp_text",
    "inkling_mm_model": "inkling_model",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "lfm2_vl": "lfm2",
    "bailing_moe_v3_vl": "bailing_hybrid",
    "NemotronH_Nano_VL_V2": "nemotron_h",
    "NemotronH_Nano_Omni_Reasoning_V3": "nemotron_h",
    "NemotronH_Super_Omni_Reasoning_V3": "nemotron_h",
    "NemotronH_Omni_Reasoning_V3": "nemotron_h",
}
