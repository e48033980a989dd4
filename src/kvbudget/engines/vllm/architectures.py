"""Which architectures vLLM no longer serves, or never did, although their caches are known: it names the version.

`model_executor/models/registry.py: _PREVIOUSLY_SUPPORTED_MODELS`, without those that the Transformers backend still
runs (Dots1, Persimmon, Fuyu, Chameleon, AyaVision).
"""

from kvbudget.engines.rule import Refusal
from kvbudget.model.read import Model

# the last version that had it
_LAST_SERVED = {
    "MotifForCausalLM": (0, 10),
    "Phi3SmallForCausalLM": (0, 9),
    "Phi4FlashForCausalLM": (0, 10),
    "JAISLMHeadModel": (0, 22),
    "InternLM2VEForCausalLM": (0, 23),
    "QWenLMHeadModel": (0, 23),
    "QwenVLForConditionalGeneration": (0, 23),
    "InternLMForCausalLM": (0, 23),
    "XverseForCausalLM": (0, 23),
    "BambaForCausalLM": (0, 23),
    "MiniMaxForCausalLM": (0, 23),
    "MiniMaxText01ForCausalLM": (0, 23),
    "MiniMaxM1ForCausalLM": (0, 23),
    "MiniMaxVL01ForConditionalGeneration": (0, 23),
    "BaiChuanForCausalLM": (0, 23),
    "BaichuanForCausalLM": (0, 23),
    "AquilaModel": (0, 24),
    "AquilaForCausalLM": (0, 24),
    "Grok1ModelForCausalLM": (0, 24),
    "Grok1ForCausalLM": (0, 24),
    "TarsierForConditionalGeneration": (0, 24),
    "Tarsier2ForConditionalGeneration": (0, 23),
    "MantisForConditionalGeneration": (0, 24),
    "TeleChatForCausalLM": (0, 25),
    "Plamo2ForCausalLM": (0, 26),
    "OuroForCausalLM": (0, 26),
    "ArcticForCausalLM": (0, 28),
    "Cheers": (0, 28),
    "CheersForConditionalGeneration": (0, 28),
    "Fairseq2LlamaForCausalLM": (0, 28),
    "FireRedLIDForConditionalGeneration": (0, 28),
    "GritLM": (0, 28),
    "HCXVisionForCausalLM": (0, 28),
    "MPTForCausalLM": (0, 28),
    "MptForCausalLM": (0, 28),
    "RWForCausalLM": (0, 28),
    "StableLMEpochForCausalLM": (0, 28),
}
_NEVER_SERVED = ("CodeGenForCausalLM",)


def architecture_refusals(model: Model, version: tuple[int, int]) -> list[Refusal]:
    """At most one: `version` (0, 32) no longer has this architecture, or none ever had it."""
    names = model.architectures
    if any(name in _NEVER_SERVED for name in names):
        return [
            Refusal(
                "architecture_unsupported",
                f"Model architectures {list(names)} are not supported for now.",
                "serve a model that vLLM has, or use another engine",
            )
        ]
    name = next((name for name in names if name in _LAST_SERVED), None)
    if name is None:
        return []
    last = _LAST_SERVED[name]
    if version <= last:
        return []
    return [
        Refusal(
            "architecture_removed",
            f"Model architecture {name} was supported in vLLM until v{last[0]}.{last[1]}, and is not supported "
            "anymore. Please use an older version of vLLM if you want to use this model architecture.",
            f"run vLLM {last[0]}.{last[1]} and plan with --engine vllm@{last[0]}.{last[1]}",
        )
    ]
