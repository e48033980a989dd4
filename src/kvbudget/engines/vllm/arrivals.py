"""Which architectures an older vLLM does not serve yet: it names the first version that does.

`model_executor/models/registry.py` of every release from 0.6.3 to 0.32, each against the one before.
"""

from kvbudget.engines.rule import Refusal
from kvbudget.model.layers import Attention, Layer
from kvbudget.model.read import Model

Version = tuple[int, int, int]
# From here on the Transformers backend may run what the registry lacks: text models, then multimodal ones.
_BACKEND: Version = (0, 7, 2)
_MULTIMODAL_BACKEND: Version = (0, 10, 0)
_SINKS = ("gpt_oss", "mimo_v2", "mimo_v2_flash")  # attention with learnt sinks, which that backend does not have
_FIRST_SERVED: dict[Version, tuple[str, ...]] = {
    (0, 6, 3): ("GraniteMoeForCausalLM", "MambaForCausalLM", "MolmoForCausalLM"),
    (0, 6, 4): ("FalconMambaForCausalLM", "Idefics3ForConditionalGeneration", "InternLM2VEForCausalLM"),
    (0, 6, 5): (
        "AriaForConditionalGeneration", "Cohere2ForCausalLM", "GlmForCausalLM", "MantisForConditionalGeneration",
        "Olmo2ForCausalLM", "TeleChat2ForCausalLM"
    ),
    (0, 6, 6): ("DeepseekV3ForCausalLM",),
    (0, 7, 0): ("DeepseekVLV2ForCausalLM", "InternLM3ForCausalLM"),
    (0, 7, 2): ("Qwen2_5_VLForConditionalGeneration",),
    (0, 7, 3): ("BambaForCausalLM", "GLM4VForCausalLM", "Mamba2ForCausalLM", "QwenVLForConditionalGeneration"),
    (0, 8, 0): (
        "Gemma3ForCausalLM", "Gemma3ForConditionalGeneration", "GraniteMoeSharedForCausalLM", "Grok1ModelForCausalLM",
        "Phi4MMForCausalLM", "Zamba2ForCausalLM"
    ),
    (0, 8, 2): ("TeleFLMForCausalLM",),
    (0, 8, 3): (
        "AyaVisionForConditionalGeneration", "Llama4ForCausalLM", "Llama4ForConditionalGeneration",
        "MiniMaxText01ForCausalLM", "Mistral3ForConditionalGeneration"
    ),
    (0, 8, 4): ("Glm4ForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "SmolVLMForConditionalGeneration"),
    (0, 8, 5): ("KimiVLForConditionalGeneration", "Plamo2ForCausalLM"),
    (0, 9, 0): (
        "FalconH1ForCausalLM", "GraniteMoeHybridForCausalLM", "MiMoForCausalLM", "MiniMaxVL01ForConditionalGeneration",
        "Qwen2_5OmniForConditionalGeneration"
    ),
    (0, 9, 1): ("NemotronHForCausalLM", "TarsierForConditionalGeneration"),
    (0, 9, 2): (
        "Dots1ForCausalLM", "Ernie4_5_ForCausalLM", "Ernie4_5_MoeForCausalLM", "Gemma3nForConditionalGeneration",
        "Glm4vForConditionalGeneration", "HunYuanMoEV1ForCausalLM", "KeyeForConditionalGeneration",
        "MiniMaxM1ForCausalLM", "Tarsier2ForConditionalGeneration"
    ),
    (0, 10, 0): (
        "ArceeForCausalLM", "BailingMoeForCausalLM", "Exaone4ForCausalLM", "Glm4MoeForCausalLM",
        "HunYuanDenseV1ForCausalLM", "MiniMaxForCausalLM", "Phi4FlashForCausalLM"
    ),
    (0, 10, 1): (
        "Emu3ForConditionalGeneration", "Ernie4_5ForCausalLM", "Gemma3nForCausalLM",
        "Glm4vMoeForConditionalGeneration", "GptOssForCausalLM", "HCXVisionForCausalLM",
        "InternS1ForConditionalGeneration", "Phi4MultimodalForCausalLM", "SmolLM3ForCausalLM", "Step3TextForCausalLM",
        "Step3VLForConditionalGeneration"
    ),
    (0, 10, 2): (
        "ApertusForCausalLM", "Ernie4_5_VLMoeForConditionalGeneration", "InternVLForConditionalGeneration",
        "KeyeVL1_5ForConditionalGeneration", "Lfm2ForCausalLM", "MotifForCausalLM", "Qwen3NextForCausalLM",
        "RForConditionalGeneration", "SeedOssForCausalLM"
    ),
    (0, 11, 0): (
        "BailingMoeV2ForCausalLM", "CwmForCausalLM", "DeepseekV32ForCausalLM", "LongcatFlashForCausalLM",
        "Olmo3ForCausalLM", "Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration"
    ),
    (0, 11, 1): (
        "AfmoeForCausalLM", "BeeForConditionalGeneration", "FlexOlmoForCausalLM", "KimiLinearForCausalLM",
        "Lfm2MoeForCausalLM", "MiniMaxM2ForCausalLM", "OuroForCausalLM", "PanguUltraMoEForCausalLM",
        "Qwen3OmniMoeForConditionalGeneration"
    ),
    (0, 12, 0): (
        "HunYuanVLForConditionalGeneration", "MistralLarge3ForCausalLM", "OpenCUAForConditionalGeneration",
        "Plamo3ForCausalLM", "TeleChatForCausalLM"
    ),
    (0, 13, 0): ("BagelForConditionalGeneration", "Jais2ForCausalLM"),
    (0, 14, 0): (
        "ExaoneMoEForCausalLM", "Grok1ForCausalLM", "IQuestCoderForCausalLM", "IQuestLoopCoderForCausalLM",
        "IsaacForConditionalGeneration", "KananaVForConditionalGeneration", "Lfm2VlForConditionalGeneration",
        "MiMoV2FlashForCausalLM", "PanguProMoEV2ForCausalLM"
    ),
    (0, 15, 0): (
        "Glm4MoeLiteForCausalLM", "KimiK25ForConditionalGeneration", "Molmo2ForConditionalGeneration",
        "Step1ForCausalLM", "StepVLForConditionalGeneration"
    ),
    (0, 15, 1): ("Step3p5ForCausalLM",),
    (0, 16, 0): (
        "GlmMoeDsaForCausalLM", "InternS1ProForConditionalGeneration", "NemotronHPuzzleForCausalLM",
        "OpenPanguVLForConditionalGeneration"
    ),
    (0, 17, 0): (
        "AXK1ForCausalLM", "BailingMoeV2_5ForCausalLM", "Ovis2_6ForCausalLM", "Ovis2_6_MoeForCausalLM",
        "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration"
    ),
    (0, 18, 0): (
        "HCXVisionV2ForCausalLM", "HyperCLOVAXForCausalLM", "MoonshotKimiaForCausalLM", "OlmoHybridForCausalLM",
        "SarvamMLAForCausalLM", "SarvamMoEForCausalLM"
    ),
    (0, 19, 0): ("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"),
    (0, 20, 0): (
        "DeepseekV4ForCausalLM", "Exaone4_5_ForConditionalGeneration", "Granite4VisionForConditionalGeneration",
        "HYV3ForCausalLM", "Ministral3ForCausalLM", "Param2MoEForCausalLM", "Rnj1ForCausalLM", "TeleChat3ForCausalLM"
    ),
    (0, 21, 0): (
        "Cohere2MoeForCausalLM", "LagunaForCausalLM", "MiMoV2ForCausalLM", "MiMoV2OmniForCausalLM",
        "Moondream3ForCausalLM"
    ),
    (0, 22, 0): ("InternS2PreviewForConditionalGeneration", "MiniCPMV4_6ForConditionalGeneration"),
    (0, 22, 1): ("MellumForCausalLM",),
    (0, 23, 0): (
        "Cosmos3ForConditionalGeneration", "Gemma4UnifiedForConditionalGeneration", "Step3p7ForConditionalGeneration"
    ),
    (0, 24, 0): ("HrmTextForCausalLM", "MiniMaxM3SparseForCausalLM", "MiniMaxM3SparseForConditionalGeneration"),
    (0, 25, 0): ("LlavaOnevision2ForConditionalGeneration",),
    (0, 26, 0): (
        "Cosmos3EdgeForConditionalGeneration", "InklingForCausalLM", "InklingForConditionalGeneration",
        "LongcatFlashNgramForCausalLM"
    ),
    (0, 27, 0): (
        "ExaoneMoeForCausalLM", "KimiK3ForConditionalGeneration", "Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM",
        "VaultGemmaForCausalLM"
    ),
    (0, 28, 0): (
        "BailingMoeV3ForCausalLM", "Dots3NoteForCausalLM", "InternS2MobiusForConditionalGeneration",
        "MuseGlimmerForCausalLM", "MuseGlimmerForConditionalGeneration"
    ),
    (0, 29, 0): (
        "GraniteMoeSWAForCausalLM", "GraniteSWAForCausalLM", "HYV4ForCausalLM", "Qwen4ExpForCausalLM",
        "Qwen4ExpForConditionalGeneration"
    ),
    (0, 30, 0): (
        "BailingMoeV3VLForConditionalGeneration", "DeepseekV41ForCausalLM", "DeepseekV4ForConditionalGeneration",
        "Glm5NextForCausalLM", "Glm5NextForConditionalGeneration", "K2HorizonForCausalLM", "NanbeigeForCausalLM"
    ),
    (0, 32, 0): ("MiniCPMV4_7ForConditionalGeneration",),
}  # fmt: skip


def arrival_refusals(model: Model, version: Version) -> list[Refusal]:
    """At most one: no name of the model's architectures is served by `version` (0, 10, 0), which is certain."""
    arrivals = [_arrival(name) for name in model.architectures]
    if not arrivals or min(arrivals) <= version or _may_fall_back(model, version):
        return []
    first = min(arrivals)
    named = f"{first[0]}.{first[1]}" + (f".{first[2]}" if first[2] else "")
    return [
        Refusal(
            "architecture_unknown_then",
            f"Model architectures {list(model.architectures)} are not supported for now.",
            f"run vLLM {named} or newer, and plan with --engine vllm@{named}",
        )
    ]


def _arrival(name: str) -> Version:
    return next((version for version, names in _FIRST_SERVED.items() if name in names), (0, 0, 0))


def _may_fall_back(model: Model, version: Version) -> bool:
    """Whether the Transformers backend of `version` might run it: attention that any model has."""
    if version < (_MULTIMODAL_BACKEND if model.multimodal else _BACKEND):
        return False
    return model.model_type not in _SINKS and all(_is_common(layer) for layer in dict.fromkeys(model.layers))


def _is_common(layer: Layer) -> bool:
    """Latents too: without kernels of their own they are keys and values of every head."""
    if layer.shared:
        return False
    for cache in layer.caches:
        if isinstance(cache, Attention):
            if cache.chunk or cache.key_size != cache.value_size:
                return False
        elif cache.kind != "mla":
            return False
    return True
