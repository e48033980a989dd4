"""Decides whether config.json's architectures and its model_type mean one model: vLLM builds what architectures says.

`model_executor/models/registry.py`: the class comes from `architectures`, its sizes from the config class of
`model_type`. Where the two are of different families the class finds none of the sizes that it asks for.
"""

from kvbudget.engines.rule import Refusal
from kvbudget.model.layers import Attention
from kvbudget.model.read import Model

# registry.py: _EMBEDDING_MODELS that are encoders; they keep no cache
_ENCODERS = (
    "BertModel", "BertForMaskedLM", "BertSpladeSparseEmbeddingModel", "BgeM3EmbeddingModel", "GteModel", "GteNewModel",
    "ModernBertModel", "NomicBertModel", "RobertaForMaskedLM", "RobertaModel", "XLMRobertaModel", "CLIPModel",
    "SiglipModel",
)  # fmt: skip
_DEEPSEEK = ("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "dots3_note", "pangu_ultra_moe", "mistral4")
_NEMOTRON_H = ("nemotron_h", "nemotron_h_puzzle")
_MIMO_V2 = ("mimo_v2", "mimo_v2_flash")
# Classes with caches that only their own families have, and the model types whose config they read.
_OWN = {
    "MambaForCausalLM": ("mamba", "falcon_mamba"),
    "FalconMambaForCausalLM": ("mamba", "falcon_mamba"),
    "Mamba2ForCausalLM": ("mamba2",),
    "JambaForCausalLM": ("jamba",),
    "BambaForCausalLM": ("bamba",),
    "FalconH1ForCausalLM": ("falcon_h1",),
    "GraniteMoeHybridForCausalLM": ("granitemoehybrid",),
    "NemotronHForCausalLM": _NEMOTRON_H,
    "NemotronHPuzzleForCausalLM": _NEMOTRON_H,
    "Zamba2ForCausalLM": ("zamba2",),
    "Plamo2ForCausalLM": ("plamo2",),
    "Lfm2ForCausalLM": ("lfm2",),
    "Lfm2MoeForCausalLM": ("lfm2_moe",),
    "OlmoHybridForCausalLM": ("olmo_hybrid",),
    "KimiLinearForCausalLM": ("kimi_linear",),
    "Qwen3NextForCausalLM": ("qwen3_next",),
    "Qwen3_5ForCausalLM": ("qwen3_5_text",),
    "Qwen3_5MoeForCausalLM": ("qwen3_5_moe_text",),
    "Qwen4ExpForCausalLM": ("qwen4_exp_text",),
    "DeepseekV2ForCausalLM": _DEEPSEEK,
    "DeepseekV3ForCausalLM": _DEEPSEEK,
    "DeepseekV32ForCausalLM": _DEEPSEEK,
    "DeepseekV4ForCausalLM": ("deepseek_v4",),
    "GlmMoeDsaForCausalLM": ("glm_moe_dsa",),
    "Glm4MoeLiteForCausalLM": ("glm4_moe_lite",),
    "MiniCPM3ForCausalLM": ("minicpm3",),
    "DeciLMForCausalLM": ("nemotron-nas", "deci", "llama"),
    "GptOssForCausalLM": ("gpt_oss",),
    "Gemma3nForCausalLM": ("gemma3n_text",),
    "Llama4ForCausalLM": ("llama4", "llama4_text"),
    "MiMoV2FlashForCausalLM": _MIMO_V2,
    "MiMoV2ForCausalLM": _MIMO_V2,
}
# Classes that have attention and nothing else.
_PLAIN = (
    "LlamaForCausalLM", "LLaMAForCausalLM", "MistralForCausalLM", "MixtralForCausalLM", "Qwen2ForCausalLM",
    "Qwen2MoeForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "Phi3ForCausalLM", "GemmaForCausalLM",
    "Gemma2ForCausalLM", "Gemma3ForCausalLM", "GraniteForCausalLM", "Olmo2ForCausalLM", "CohereForCausalLM",
    "GPT2LMHeadModel", "OPTForCausalLM", "BloomForCausalLM", "FalconForCausalLM", "Glm4ForCausalLM",
    "Glm4MoeForCausalLM", "NemotronForCausalLM",
)  # fmt: skip


def class_refusals(model: Model) -> list[Refusal]:
    """At most one: no name of `architectures` is of a class that reads a config of this model_type, for certain."""
    names = model.architectures
    if not names or any(not _contradicts(name, model) for name in names):
        return []
    first = names[0][:60]
    if first in _ENCODERS:
        says = f"{first} is an encoder, which keeps no cache"
    else:
        says = f"{first} asks the config of {model.model_type} for sizes of another family (AttributeError)"
    return [
        Refusal(
            "architecture_contradicts_model_type",
            f"config.json: architectures is {[name[:60] for name in names[:3]]} and model_type is {model.model_type}: "
            f"vLLM builds what architectures says, and {says}.",
            "give the model's own config.json, unchanged",
        )
    ]


def _contradicts(name: str, model: Model) -> bool:
    if name in _ENCODERS:
        return True
    if name in _PLAIN:
        return any(not isinstance(c, Attention) for layer in dict.fromkeys(model.layers) for c in layer.caches)
    return name in _OWN and model.model_type not in _OWN[name]
