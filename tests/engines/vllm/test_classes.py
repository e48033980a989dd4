"""Where architectures and model_type of a config.json mean different models."""

import pytest

from kvbudget.engines.flags import EngineFlags
from kvbudget.engines.vllm.classes import class_refusals
from kvbudget.engines.vllm.rule import Vllm
from kvbudget.model.families.table import FAMILIES
from kvbudget.model.read import model_from_config
from kvbudget.units import GIB


def codes(model_type: str, architectures: list[str]) -> list[str]:
    model = model_from_config({"model_type": model_type, "architectures": architectures})
    return [refusal.code for refusal in class_refusals(model)]


@pytest.mark.parametrize(
    ("model_type", "architectures"),
    [
        ("llama", ["BertModel"]),
        ("llama", ["MambaForCausalLM"]),
        ("llama", ["DeepseekV3ForCausalLM"]),
        ("mamba", ["LlamaForCausalLM"]),
        ("deepseek_v3", ["Qwen2ForCausalLM"]),
        ("llama", ["Llama4ForCausalLM"]),
    ],
)
def test_a_class_of_another_family_is_refused_by_name(model_type: str, architectures: list[str]) -> None:
    model = model_from_config({"model_type": model_type, "architectures": architectures})
    engine = Vllm()
    settings = engine.settle(model, EngineFlags(max_model_len=1024), 0, "")
    stages = engine.stages(model, settings)
    pool = engine.pool(model, settings, stages, [24 * GIB])
    (found,) = engine.refusals(model, settings, stages, pool)
    assert found.code == "architecture_contradicts_model_type"
    assert architectures[0] in found.message
    assert model_type in found.message


@pytest.mark.parametrize(
    ("model_type", "architectures"),
    [
        ("llama", []),
        ("llama", ["LlamaForCausalLM"]),
        ("llama", ["MistralForCausalLM"]),
        ("llama", ["SomethingOfItsOwn"]),
        ("llama", ["BertModel", "LlamaForCausalLM"]),
        ("kimi_k2", ["DeepseekV3ForCausalLM"]),
        ("llama", ["DeciLMForCausalLM"]),
        ("falcon_mamba", ["FalconMambaForCausalLM"]),
    ],
)
def test_names_that_agree_or_are_not_known_stay_as_they_are(model_type: str, architectures: list[str]) -> None:
    assert codes(model_type, architectures) == []


def test_every_model_type_of_the_table_is_known() -> None:
    from kvbudget.engines.vllm.classes import _OWN

    assert {name for names in _OWN.values() for name in names} <= set(FAMILIES)
