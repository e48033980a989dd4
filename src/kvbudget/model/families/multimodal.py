"""Multimodal architectures: the model_type of the text part when the nested config names none; "" when it must.

vLLM 0.32 `model_executor/models/registry.py` lists them; only the text part keeps a cache between tokens.
"""

from collections.abc import Mapping

_QWEN2 = ("qwen2_audio", "llava_onevision", "internvl", "audioflamingo3", "ovis2", "vibevoice_asr", "musicflamingo")
_LLAMA = (
    "llava",
    "llava_next",
    "llava_next_video",
    "idefics3",
    "smolvlm",
    "ultravox",
    "glmasr",
    "granite4_vision",
    "voxtral",
)
_QWEN3 = ("qianfan_ocr", "qwen3_asr", "lightonocr")
# Their config class ships in the checkpoint: which text model it is, the nested config has to say.
_NAMED_INSIDE = (
    "bagel", "bee", "cosmos3", "cosmos3_edge", "dots_ocr", "eagle2_5_vl", "eagle_2_5_vl", "funasr",
    "funaudiochat", "h2ovl_chat", "hyperclovax_vlm", "intern_s1", "interns1", "interns1_pro", "interns2_preview",
    "isaac", "kanana-1.5-v", "kanana_v", "Llama_Nemotron_Nano_VL", "llama_nemotron_vl", "llava_onevision2",
    "midashenglm", "minicpmo", "minicpmv", "molmo2", "moss_audio", "moss_transcribe_diarize", "nemotron_h_omni",
    "NemotronH_Nano_Omni_Reasoning_V3", "NemotronH_Nano_VL_V2", "nvlm_d", "NVLM_D", "opencua", "openpangu_vl",
    "openvla", "ovis", "ovis2_5", "ovis2_6", "pixtral", "rvl", "skywork_chat", "step_robotics", "step_vl",
)  # fmt: skip

WRAPPERS: Mapping[str, str] = {
    **dict.fromkeys(_NAMED_INSIDE, ""),
    **dict.fromkeys(_QWEN2, "qwen2"),
    **dict.fromkeys(_LLAMA, "llama"),
    **dict.fromkeys(_QWEN3, "qwen3"),
    "aria": "aria_text",
    "blip-2": "opt",
    "cohere2_vision": "cohere2",
    "cohere_compass": "cohere_compass_text",
    "diffusion_gemma": "diffusion_gemma_text",
    "emu3": "emu3_text_model",
    "ernie4_5_vl_moe": "ernie4_5_vl_moe_text",
    "exaone4_5": "exaone4",
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "gemma4_unified": "gemma4_unified_text",
    "glm4v": "glm4v_text",
    "glm4v_moe": "glm4v_moe_text",
    "glm_ocr": "glm_ocr_text",
    "granite_speech": "granite",
    "granite_speech_plus": "granite",
    "hunyuan_vl": "hunyuan_vl_text",
    "hunyuan_v1_vl": "hunyuan_vl_text",
    "internvl_chat": "internlm2",
    "llama4": "llama4_text",
    "minicpmv4_6": "qwen3_5_text",
    "minicpmv4_7": "qwen3_5_text",
    "mistral3": "mistral",
    "moondream3": "moondream3_text",
    "muse_glimmer": "muse_glimmer_text",
    "paddleocr_vl": "paddleocr_vl_text",
    "paligemma": "gemma",
    "qwen2_vl": "qwen2_vl_text",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen2_5_omni": "qwen2_5_omni_text",
    "qwen2_5_omni_thinker": "qwen2_5_omni_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "qwen3_omni_moe": "qwen3_omni_moe_text",
    "qwen3_omni_moe_thinker": "qwen3_omni_moe_text",
    "step3_vl": "step3_text",
    # Keeps only a window of the answer beside the prompt, but is sized as full attention (vLLM 0.32 RSWASpec).
    "unlimited-ocr": "deepseek_v2",
    "unlimited_ocr": "deepseek_v2",
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
