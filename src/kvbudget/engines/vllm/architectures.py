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


# model_types without a config class in vLLM or Transformers: DeepSeek's own format, which other engines read
_WITHOUT_CONFIG = ("deepseek_ref",)


def architecture_refusals(model: Model, version: tuple[int, int], *, exact: bool = False) -> list[Refusal]:
    """At most one: `version` (0, 32) no longer has this architecture, or none ever had it. `exact`: it is the version
    whose names are all known."""
    names = model.architectures
    if model.assumed:  # on purpose, so that a fork that has it can be planned
        return []
    if model.config_type in _WITHOUT_CONFIG:
        return [
            Refusal(
                "architecture_unsupported",
                f"The checkpoint you are trying to load has model type `{model.config_type}` but Transformers does not "
                "recognize this architecture.",
                "use a checkpoint in the Transformers format, or another engine",
            )
        ]
    removed = _removed(names, version)
    if removed or any(name in _LAST_SERVED for name in names):
        return removed
    if any(name in _NEVER_SERVED for name in names) or (exact and not _is_certain(model) and not _is_served(model)):
        return [
            Refusal(
                "architecture_unsupported",
                f"Model architectures {[name[:60] for name in names[:3]]} are not supported for now.",
                "serve a model that vLLM has, or use another engine",
            )
        ]
    return []


def _is_certain(model: Model) -> bool:
    """Whether the first name is the model_type in other letters, and so one of the registry: most are; or the code of
    its class comes with the checkpoint."""
    names = model.architectures
    return not names or model.remote_model or names[0].lower() == model.model_type.replace("_", "") + "forcausallm"


def _is_served(model: Model) -> bool:
    from kvbudget.engines.vllm.registry import is_served  # the table of all names is read where it decides

    return is_served(model)


def _removed(names: tuple[str, ...], version: tuple[int, int]) -> list[Refusal]:
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
