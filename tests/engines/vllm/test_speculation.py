"""What vLLM's speculative methods need, and when it refuses them (vLLM 0.32 config/speculative.py)."""

from typing import Any

import pytest

from kvbudget.engines.flags import EngineFlags, Speculation
from kvbudget.engines.rule import Refusal
from kvbudget.engines.vllm.rule import Vllm
from kvbudget.errors import InputError
from kvbudget.model.read import model_from_config
from kvbudget.units import GIB

LLAMA: dict[str, Any] = {"model_type": "llama", "num_hidden_layers": 2, "vocab_size": 128256}
MODULES: dict[str, Any] = {"model_type": "deepseek_v3", "num_hidden_layers": 4, "num_nextn_predict_layers": 2}
PATTERN = {"mtp_hybrid_override_pattern": "*E"}  # one module of two layers
DRAFT = model_from_config({**LLAMA, "num_hidden_layers": 1})
OTHER = model_from_config({**LLAMA, "num_hidden_layers": 1, "vocab_size": 151936})


def settled(config: dict[str, Any], asked: Speculation, version: str = "") -> Speculation | None:
    return Vllm(version).settle(model_from_config(config), EngineFlags(speculation=asked), 80 * GIB, "").speculation


def refusals(config: dict[str, Any], asked: Speculation, version: str = "") -> list[Refusal]:
    engine, model = Vllm(version), model_from_config(config)
    settings = engine.settle(model, EngineFlags(max_model_len=2048, speculation=asked), 80 * GIB, "")
    stages = engine.stages(model, settings)
    return engine.refusals(model, settings, stages, engine.pool(model, settings, stages, [20 * GIB] * len(stages)))


def test_a_draft_model_speaks_the_target_s_vocabulary() -> None:
    assert refusals(LLAMA, Speculation("draft_model", 3, DRAFT)) == []
    (found,) = refusals(LLAMA, Speculation("draft_model", 3, OTHER))
    assert found.code == "draft_vocabulary_differs"
    assert found.message.startswith(
        "Target and draft model should have the same vocabulary size. Target model vocab_size=128256. Draft model "
        "vocab_size=151936."
    )
    assert refusals(LLAMA, Speculation("draft_model", 3, OTHER, any_vocabulary=True)) == []
    assert refusals(LLAMA, Speculation("eagle3", 3, OTHER)) == []


@pytest.mark.parametrize("method", ["eagle3", "ngram"])
def test_only_a_draft_model_may_have_another_vocabulary(method: str) -> None:
    (found,) = refusals(LLAMA, Speculation(method, 3, DRAFT, any_vocabulary=True))
    assert found.message == "use_heterogeneous_vocab only works with method='draft_model'"


@pytest.mark.parametrize(("tokens", "starts"), [(1, True), (2, True), (3, False), (4, True), (5, False)])
def test_tokens_beyond_a_pass_are_whole_passes(tokens: int, starts: bool) -> None:
    found = refusals(MODULES, Speculation("mtp", tokens))
    assert [r.code for r in found] == ([] if starts else ["draft_tokens_not_divisible"])
    if not starts:
        assert found[0].message == f"num_speculative_tokens:{tokens} must be divisible by n_predict=2"
        assert found[0].fix == f"use {tokens - 1} as num_speculative_tokens of --speculative-config"


@pytest.mark.parametrize(
    ("config", "predicts"),
    [
        (LLAMA, 0),
        (MODULES, 2),
        ({**MODULES, "num_nextn_predict_layers": 0}, 0),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "M*-", "num_nextn_predict_layers": 1, **PATTERN}, 1),
        ({"model_type": "qwen3_5_text", "mtp_num_hidden_layers": 1}, 1),
        ({"model_type": "longcat_flash"}, 1),  # says no number
    ],
)
def test_the_config_says_how_much_a_pass_predicts(config: dict[str, Any], predicts: int) -> None:
    assert model_from_config(config).draft_predicts == predicts


def test_a_draft_model_with_a_module_of_its_own_is_that_module() -> None:
    """hf_config_override makes DeepSeekMTPModel of it, whatever it was named for."""
    found = settled(MODULES, Speculation("draft_model", 2, model_from_config(MODULES)))
    assert found is not None
    assert (found.method, found.modules) == ("mtp", 2)


@pytest.mark.parametrize("method", ["medusa", "mlp_speculator", ""])
def test_what_needs_a_model_is_refused_without_one(method: str) -> None:
    words = "num_speculative_tokens was provided but without speculative model."
    with pytest.raises(InputError, match=words) as caught:
        settled(MODULES, Speculation(method, 2))
    assert caught.value.fix


def test_older_versions_took_the_model_s_own_module_where_nothing_was_named() -> None:
    found = settled(MODULES, Speculation("", 2), "0.10.2")
    assert found is not None
    assert found.method == "mtp"
    with pytest.raises(InputError):
        settled(LLAMA, Speculation("", 2), "0.10.2")


def test_mlp_speculators_are_not_served() -> None:
    (found,) = refusals(LLAMA, Speculation("mlp_speculator", 3, model="d"))
    assert found.code == "architecture_unsupported"
    assert "MLPSpeculatorPreTrainedModel" in found.message
    assert refusals(LLAMA, Speculation("mlp_speculator", 3, model="d"), "0.8.5") == []


def test_a_class_of_one_s_own_is_planned_without_a_cache() -> None:
    assert refusals(LLAMA, Speculation("custom_class", 3, model="my.module.Proposer")) == []
    with pytest.raises(InputError, match="requires 'model' to contain the custom proposer module path"):
        settled(LLAMA, Speculation("custom_class", 3))


def test_hidden_states_in_the_pool_are_not_computed() -> None:
    with pytest.raises(InputError, match="what that takes is not computed here"):
        settled(LLAMA, Speculation("extract_hidden_states", 1))
    with pytest.raises(InputError, match="'guess' is unknown"):
        settled(LLAMA, Speculation("guess", 1))
