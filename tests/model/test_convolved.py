"""What Inkling's layers keep: attention, and the past inputs of four short convolutions beside it."""

from typing import Any

import pytest

from kvbudget.errors import BadConfigError
from kvbudget.model.layers import Attention, ConvolutionWindow, Layer
from kvbudget.model.read import model_from_config

TEXT: dict[str, Any] = {
    "model_type": "inkling_model",
    "hidden_size": 6144,
    "num_hidden_layers": 3,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "swa_num_key_value_heads": 16,
    "local_layer_ids": [0, 1],
    "model_max_length": 131072,
}
SLIDING = Layer((ConvolutionWindow(16, 2 * 128 + 2 * 384, 4), Attention(16, 128, 128, window=512)))
FULL = Layer((ConvolutionWindow(8, 2 * 128 + 2 * 768, 4), Attention(8, 128, 128)))


def test_the_listed_layers_slide_and_all_have_convolutions() -> None:
    model = model_from_config(TEXT)
    assert model.layers == (SLIDING, SLIDING, FULL)
    assert model.kinds == {"convolution+sliding": 2, "convolution+full": 1}
    assert model.draft_layers == ()


def test_the_kernel_has_two_spellings() -> None:
    assert model_from_config(TEXT | {"sconv_kernel_size": 3}).layers[2].caches[0] == ConvolutionWindow(8, 1792, 3)
    assert model_from_config(TEXT | {"conv_kernel_size": 5}).layers[2].caches[0] == ConvolutionWindow(8, 1792, 5)


def test_mtp_config_beside_the_text_config_counts_the_draft_modules() -> None:
    config = {
        "model_type": "inkling_mm_model",
        "text_config": TEXT,
        "mtp_config": {"num_nextn_predict_layers": 3, "local_layer_ids": [1]},
    }
    assert model_from_config(config).draft_layers == (FULL, SLIDING, FULL)


def test_nothing_is_guessed_where_engine_and_class_differ() -> None:
    with pytest.raises(BadConfigError, match="local_layer_ids is missing"):
        model_from_config({key: value for key, value in TEXT.items() if key != "local_layer_ids"})


def test_a_layer_that_is_not_there_cannot_slide() -> None:
    with pytest.raises(BadConfigError, match="names layer 3, but layers are 0 to 2"):
        model_from_config(TEXT | {"local_layer_ids": [3]})
