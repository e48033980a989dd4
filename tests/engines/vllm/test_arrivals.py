"""Architectures that an older vLLM does not have yet."""

from typing import Any

import pytest

from kvbudget.engines.vllm.arrivals import arrival_refusals
from kvbudget.engines.vllm.rule import Vllm
from kvbudget.engines.vllm.versions import numbers_of
from kvbudget.model.read import Model, model_from_config


def named(model_type: str, *architectures: str, **config: Any) -> Model:
    return model_from_config({"model_type": model_type, "architectures": list(architectures), **config})


GPT_OSS = named("gpt_oss", "GptOssForCausalLM")
QWEN35 = named("qwen3_5_text", "Qwen3_5ForConditionalGeneration")
QWEN3 = named("qwen3", "Qwen3ForCausalLM")


def refused(model: Model, version: str) -> bool:
    return bool(arrival_refusals(model, numbers_of(version)))


@pytest.mark.parametrize(
    ("version", "unknown"),
    [("0.6", True), ("0.10.0", True), ("0.10.1", False), ("0.10", False), ("0.20", False), ("", False)],
)
def test_an_architecture_is_unknown_before_the_first_version_that_has_it(version: str, unknown: bool) -> None:
    assert refused(GPT_OSS, version) is unknown


def test_it_is_refused_in_the_engine_s_words_with_the_first_version() -> None:
    (refusal,) = arrival_refusals(GPT_OSS, (0, 9, 0))
    assert refusal.code == "architecture_unknown_then"
    assert refusal.message == "Model architectures ['GptOssForCausalLM'] are not supported for now."
    assert refusal.fix == "run vLLM 0.10.1 or newer, and plan with --engine vllm@0.10.1"


@pytest.mark.parametrize(("version", "unknown"), [("0.16", True), ("0.17.0", False)])
def test_recurrent_states_are_not_left_to_the_transformers_backend(version: str, unknown: bool) -> None:
    assert refused(QWEN35, version) is unknown


def test_common_attention_may_be_run_by_the_transformers_backend_where_there_is_one() -> None:
    assert refused(QWEN3, "0.7.1")
    assert not refused(QWEN3, "0.8.3")


def test_a_multimodal_model_has_no_such_backend_before_0_10() -> None:
    vision = named("qwen3_vl", "Qwen3VLForConditionalGeneration", text_config={"model_type": "qwen3_vl_text"})
    assert refused(vision, "0.9.2")
    assert not refused(vision, "0.10.0")


def test_one_served_name_is_enough_and_unknown_names_are_not_judged() -> None:
    assert not refused(named("gpt_oss", "GptOssForCausalLM", "SomethingOlder"), "0.6")
    assert not refused(named("gpt_oss", "SomethingElse"), "0.6")
    assert not refused(named("gpt_oss"), "0.6")


def test_the_rule_asks_with_its_whole_version() -> None:
    from kvbudget.engines.flags import EngineFlags

    engine = Vllm("0.10.0")
    settings = engine.settle(GPT_OSS, EngineFlags(max_model_len=2048), 0, "")
    stages = engine.stages(GPT_OSS, settings)
    pool = engine.pool(GPT_OSS, settings, stages, [2**36])
    assert [r.code for r in engine.refusals(GPT_OSS, settings, stages, pool)] == ["architecture_unknown_then"]
