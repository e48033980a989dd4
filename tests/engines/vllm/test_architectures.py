"""Architectures whose caches are known but which a version of vLLM does not serve."""

from typing import Any

import pytest

from kvbudget.engines.flags import EngineFlags
from kvbudget.engines.vllm.architectures import architecture_refusals
from kvbudget.engines.vllm.rule import Vllm
from kvbudget.model.read import Model, model_from_config
from kvbudget.units import GIB


def named(architecture: str, **config: Any) -> Model:
    return model_from_config({"model_type": "llama", "architectures": [architecture], **config})


def codes(model: Model, version: str) -> list[str]:
    engine = Vllm(version)
    settings = engine.settle(model, EngineFlags(max_model_len=2048), 80 * GIB, "")
    stages = engine.stages(model, settings)
    pool = engine.pool(model, settings, stages, [40 * GIB])
    return [refusal.code for refusal in engine.refusals(model, settings, stages, pool)]


def test_a_removed_architecture_is_refused_in_the_engine_s_words_with_the_last_version() -> None:
    (refusal,) = architecture_refusals(named("MiniMaxText01ForCausalLM"), (0, 32))
    assert refusal.code == "architecture_removed"
    assert refusal.message.startswith(
        "Model architecture MiniMaxText01ForCausalLM was supported in vLLM until v0.23, and is not supported anymore."
    )
    assert refusal.fix == "run vLLM 0.23 and plan with --engine vllm@0.23"


@pytest.mark.parametrize(("version", "refused"), [((0, 23), False), ((0, 24), True), ((0, 9), False), ((1, 0), True)])
def test_versions_up_to_the_last_one_serve_it(version: tuple[int, int], refused: bool) -> None:
    assert bool(architecture_refusals(named("BambaForCausalLM"), version)) is refused


def test_the_rule_asks_for_its_own_version() -> None:
    plamo = model_from_config(
        {
            "model_type": "plamo2",
            "architectures": ["Plamo2ForCausalLM"],
            "hidden_size": 2048,
            "num_hidden_layers": 16,
            "num_attention_heads": 16,
            "num_key_value_heads": 1,
            "hidden_size_per_head": 128,
            "mamba_d_state": 64,
            "mamba_d_conv": 4,
            "mamba_num_heads": 32,
            "mamba_step": 2,
            "vocab_size": 100000,
            "max_position_embeddings": 4096,
        }
    )
    assert codes(plamo, "0.32") == codes(plamo, "") == ["architecture_removed"]
    assert codes(plamo, "0.26") == []


def test_an_architecture_that_no_version_has_is_refused() -> None:
    assert (
        codes(named("CodeGenForCausalLM"), "0.32")
        == codes(named("CodeGenForCausalLM"), "0.20")
        == ["architecture_unsupported"]
    )


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "PersimmonForCausalLM", "Dots1ForCausalLM"])
def test_an_architecture_that_is_served_is_not_refused(architecture: str) -> None:
    """Some of those that lost their own class run on the Transformers backend."""
    assert codes(named(architecture), "0.32") == []


@pytest.mark.parametrize(
    ("architecture", "more", "refused"),
    [
        ("FooBarForCausalLM", {}, True),
        ("Step3p7FlashForCausalLM", {}, True),
        ("Step3p7ForConditionalGeneration", {}, False),
        ("FooBarForCausalLM", {"auto_map": {"AutoConfig": "a.B"}}, True),
        ("FooBarForCausalLM", {"auto_map": {"AutoModelForCausalLM": "a.B"}}, False),  # code of its own
        ("HeliumForCausalLM", {}, False),  # the Transformers backend has it
        ("FooBarModel", {}, False),  # may be any class of Transformers
        ("Gemma4UnifiedForCausalLM", {}, False),  # served as what it ends otherwise (config/model.py)
    ],
)
def test_a_name_that_no_registry_has_is_refused_by_the_newest_version(
    architecture: str, more: dict[str, Any], refused: bool
) -> None:
    model = named(architecture, **more)
    found = architecture_refusals(model, (0, 32), exact=True)
    assert [r.message for r in found] == (
        [f"Model architectures ['{architecture}'] are not supported for now."] if refused else []
    )
    assert architecture_refusals(model, (0, 31)) == []  # not all of its names are known


def test_what_is_assumed_on_purpose_is_planned() -> None:
    config = {"model_type": "llama", "architectures": ["FooBarForCausalLM"]}
    assert architecture_refusals(model_from_config(config, assume="full"), (0, 32), exact=True) == []
    assert architecture_refusals(model_from_config(config), (0, 32), exact=True)


def test_one_served_name_is_enough() -> None:
    config = {"model_type": "llama", "architectures": ["FooBarForCausalLM", "LlamaForCausalLM"]}
    assert architecture_refusals(model_from_config(config), (0, 32), exact=True) == []


def test_a_format_without_a_config_class_is_refused_in_the_engine_s_words() -> None:
    (refusal,) = architecture_refusals(named("LlamaForCausalLM")._replace(config_type="deepseek_ref"), (0, 32))
    assert refusal.code == "architecture_unsupported"
    assert "model type `deepseek_ref` but Transformers does not recognize this architecture" in refusal.message


@pytest.mark.parametrize("auto_map", [None, 5, [], "x", {}, {"AutoConfig": "a.B"}, {5: 6}, {"AutoModel": None}])
def test_a_damaged_auto_map_is_read_without_a_traceback(auto_map: object) -> None:
    config = {"model_type": "llama", "architectures": ["FooBarForCausalLM"], "auto_map": auto_map}
    assert isinstance(model_from_config(config).remote_model, bool)
