"""Weights of the vision and audio parts of multimodal models, against published totals."""

from typing import Any

import pytest

from kvbudget.model.read import model_from_config

QWEN2_VL: dict[str, Any] = {
    "model_type": "qwen2_vl", "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
    "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064, "tie_word_embeddings": False,
    "vision_config": {"depth": 32, "embed_dim": 1280, "hidden_size": 3584, "mlp_ratio": 4, "patch_size": 14,
                      "spatial_merge_size": 2, "temporal_patch_size": 2},
}  # fmt: skip
QWEN25_VL = QWEN2_VL | {
    "model_type": "qwen2_5_vl",
    "vision_config": {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "out_hidden_size": 3584,
                      "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2},
}  # fmt: skip
GEMMA3: dict[str, Any] = {
    "model_type": "gemma3",
    "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
                    "num_hidden_layers": 34, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
                    "sliding_window": 1024, "vocab_size": 262208},
    "vision_config": {"model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304,
                      "num_attention_heads": 16, "num_hidden_layers": 27, "image_size": 896, "patch_size": 14},
}  # fmt: skip
QWEN3_VL: dict[str, Any] = {
    "model_type": "qwen3_vl",
    "text_config": {"model_type": "qwen3_vl_text", "hidden_size": 2048, "intermediate_size": 6144,
                    "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
                    "vocab_size": 151936, "tie_word_embeddings": True},
    "vision_config": {"depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "out_hidden_size": 2048,
                      "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2,
                      "num_position_embeddings": 2304, "deepstack_visual_indexes": [5, 11, 17]},
    "tie_word_embeddings": True,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "published"),
    [
        (QWEN2_VL, 8_291_375_616),
        (QWEN25_VL, 8_292_166_656),
        (GEMMA3, 4_300_079_472),
        (QWEN3_VL, 2_127_532_032),
    ],
)
def test_a_known_tower_is_counted_exactly(config: dict[str, Any], published: int) -> None:
    parameters = model_from_config(config).parameters
    assert parameters is not None
    assert parameters.total == published
    assert parameters.estimated == ""


def test_an_unknown_tower_is_counted_as_a_plain_one_and_labelled() -> None:
    vision = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24}
    config = {**QWEN3_VL, "model_type": "internvl", "vision_config": vision}
    config["text_config"] = {**QWEN3_VL["text_config"], "model_type": "qwen3"}
    parameters = model_from_config(config).parameters
    assert parameters is not None
    assert "plain" in parameters.estimated
    assert 0.25e9 < parameters.total - parameters.text_total < 0.4e9  # ViT-L has 0.3 B


def test_a_text_model_has_no_such_part() -> None:
    parameters = model_from_config(QWEN3_VL["text_config"]).parameters
    assert parameters is not None
    assert parameters.encoder == (0, 0)
