"""What --hf-overrides sets in a config.json."""

from typing import Any

from kvbudget.model.read import model_from_config
from kvbudget.planner.overrides import with_overrides

QWEN: dict[str, Any] = {
    "model_type": "qwen3", "num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 100, "max_position_embeddings": 40960,
    "rope_scaling": None,
}  # fmt: skip


def test_plain_keys_are_set_and_the_config_given_is_left_alone() -> None:
    merged = with_overrides(QWEN, {"max_position_embeddings": 131072})
    assert model_from_config(merged).max_model_len == 131072
    assert QWEN["max_position_embeddings"] == 40960


def test_one_word_for_rope_replaces_the_other() -> None:
    scaled = QWEN | {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}
    assert model_from_config(scaled).max_model_len == 81920
    for word in ("rope_scaling", "rope_parameters"):
        merged = with_overrides(scaled, {word: {"rope_type": "linear", "factor": 4.0}})
        assert model_from_config(merged).max_model_len == 163840


def test_a_part_is_updated_and_a_plain_object_replaced() -> None:
    whole = {"text_config": {"a": 1, "b": {"c": 2, "d": 3}}, "quantization_config": {"bits": 4, "x": 1}, "o": {"p": 1}}
    overrides = {"text_config": {"b": {"c": 9}}, "quantization_config": {"bits": 8}, "o": {"q": 2}}
    assert with_overrides(whole, overrides) == {
        "text_config": {"a": 1, "b": {"c": 9}}, "quantization_config": {"bits": 8}, "o": {"q": 2}
    }  # fmt: skip


def test_no_depth_of_objects_is_too_much() -> None:
    deep: dict[str, Any] = {}
    for _ in range(500):
        deep = {"a_config": deep}
    assert with_overrides(deep, deep)
    assert with_overrides([], {"a": 1}) == []
