"""Layers that read an earlier layer's cache, and layers that run several times."""

from typing import Any

import pytest

from kvbudget.errors import BadConfigError, UnsupportedError
from kvbudget.model.layers import Attention, Cache
from kvbudget.model.read import model_from_config

GEMMA4: dict[str, Any] = {
    "model_type": "gemma4_text", "num_hidden_layers": 6, "num_attention_heads": 16, "num_key_value_heads": 8,
    "sliding_window": 1024, "num_global_key_value_heads": 2,
}  # fmt: skip


def caches(config: dict[str, Any]) -> list[tuple[Cache, ...]]:
    return [layer.caches for layer in model_from_config(config).layers]


def test_gemma_3n_s_last_layers_keep_nothing() -> None:
    model = model_from_config({"model_type": "gemma3n_text"})
    assert model.kinds == {"sliding": 16, "full": 4, "shared": 15}
    assert all(layer.shared for layer in model.layers[20:])
    listed = model_from_config({"model_type": "gemma3n_text", "intermediate_size": [8192] * 20 + [16384] * 15})
    assert listed.intermediate_size == 16384  # as published: one entry for each layer
    assert model_from_config({"model_type": "gemma3n_text", "num_kv_shared_layers": 0}).kinds == {
        "sliding": 28,
        "full": 7,
    }


def test_gemma_4_stores_keys_that_are_values_twice_and_its_full_layers_have_other_heads() -> None:
    sliding = (Attention(8, 256, 256, window=1024),)
    assert caches(GEMMA4 | {"attention_k_eq_v": True}) == [sliding] * 5 + [(Attention(2, 512, 512),)]
    assert caches(GEMMA4)[-1] == (Attention(8, 512, 512),)  # the global KV heads count only with attention_k_eq_v
    assert caches(GEMMA4 | {"global_head_dim": 256})[-1] == (Attention(8, 256, 256),)
    assert caches(GEMMA4 | {"layer_types": ["sliding_attention"] * 6})[-1] == (Attention(8, 512, 512),)
    nested = {"model_type": "gemma4", "text_config": GEMMA4, "vision_config": {}}
    assert model_from_config(nested).kinds == {"sliding": 5, "full": 1}


def test_gemma_4_shares_with_the_last_layer_of_the_same_type() -> None:
    small = GEMMA4 | {"num_hidden_layers": 12, "num_kv_shared_layers": 4}
    assert model_from_config(small).kinds == {"sliding": 7, "full": 1, "shared": 4}
    with pytest.raises(BadConfigError, match="nothing to share"):
        model_from_config(GEMMA4 | {"num_kv_shared_layers": 3})  # no full layer is left before them
    with pytest.raises(BadConfigError, match="nothing to share"):
        model_from_config(GEMMA4 | {"num_kv_shared_layers": 6})


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "gemma3_text", "use_bidirectional_attention": True},
        GEMMA4 | {"use_bidirectional_attention": "all"},
    ],
)
def test_a_bidirectional_gemma_is_an_encoder(config: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match="encoder"):
        model_from_config(config)
    assert model_from_config(GEMMA4 | {"use_bidirectional_attention": "vision"}).layers


def test_gemma_4_with_layers_of_its_own_kind_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="layers that differ"):
        model_from_config(GEMMA4 | {"per_layer_config": {"5": {"head_dim": 64}}})


def test_a_looped_layer_keeps_everything_once_and_a_short_window_for_each_further_turn() -> None:
    looped = {
        "model_type": "iquestloopcoder", "hidden_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 2,
        "num_hidden_layers": 1, "vocab_size": 1000, "loop_num": 3,
    }  # fmt: skip
    local = Attention(2, 128, 128, window=64)
    assert caches(looped) == [(Attention(2, 128, 128), local, local)]


def test_recurrent_depth_multiplies_the_layers_by_the_turns() -> None:
    assert model_from_config({"model_type": "hrm_text", "num_hidden_layers": 3}).kinds == {"full": 24}
    saved = {"model_type": "hrm_text", "num_hidden_layers": 24, "num_layers_per_stack": 3}
    assert model_from_config(saved).kinds == {"full": 24}
    with pytest.raises(BadConfigError, match="too many layers"):
        model_from_config({"model_type": "hrm_text", "num_hidden_layers": 9000})


def test_hunyuan_s_share_factor_counts_only_when_it_is_switched_on() -> None:
    published = {"model_type": "hunyuan_v1_moe", "cla_share_factor": 2, "use_cla": False}
    assert model_from_config(published).kinds == {"full": 32}
    with pytest.raises(UnsupportedError, match="use_cla"):
        model_from_config(published | {"use_cla": True})
