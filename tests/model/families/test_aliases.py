"""Keys that mean the same as another one."""

from typing import Any

import pytest

from kvbudget.model.families.aliases import spelt_as_read
from kvbudget.model.read import model_from_config


@pytest.mark.parametrize(
    ("model_type", "other", "key", "value"),
    [
        ("bloom", "n_embed", "hidden_size", 1024),
        ("falcon", "n_embed", "hidden_size", 1136),
        ("deepseek_v3", "num_local_experts", "n_routed_experts", 64),
        ("deepseek_v3", "num_mtp_layers", "num_nextn_predict_layers", 2),
        ("qwen3_moe", "num_local_experts", "num_experts", 64),
        ("gpt_oss", "num_experts", "num_local_experts", 64),
        ("ernie4_5_moe", "num_experts_per_tok", "moe_k", 4),
        ("lfm2", "block_ff_dim", "intermediate_size", 6144),
    ],
)
def test_a_value_counts_under_either_name(model_type: str, other: str, key: str, value: int) -> None:
    """transformers 5: attribute_map of the config class, or its constructor."""
    base: dict[str, Any] = {"model_type": model_type}
    under_its_own, under_the_other = (model_from_config({**base, name: value}) for name in (key, other))
    assert under_its_own._replace(filled=()) == under_the_other._replace(filled=())
    assert under_its_own._replace(filled=()) != model_from_config(base)._replace(filled=())


def test_bloom_560m_is_as_wide_as_its_config_says() -> None:
    config = {"model_type": "bloom", "n_embed": 1024, "n_layer": 24, "n_head": 16, "num_attention_heads": 16}
    model = model_from_config(config)
    assert (model.hidden_size, len(model.layers)) == (1024, 24)
    assert model.layers[0].caches[0].key_size == 64  # type: ignore[union-attr]


def test_the_class_s_own_key_wins_where_its_constructor_says_nothing_else() -> None:
    text = {"n_routed_experts": 8, "num_local_experts": 16}
    assert spelt_as_read(text, "deepseek_v3") is text
    assert spelt_as_read({"n_embed": 8, "hidden_size": 4}, "bloom")["hidden_size"] == 8
    assert spelt_as_read({"n_embed": None, "hidden_size": 4}, "bloom")["hidden_size"] == 4
    assert spelt_as_read({"num_local_experts": 16, "n_routed_experts": None}, "dots1")["n_routed_experts"] == 16
