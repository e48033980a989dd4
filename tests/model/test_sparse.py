"""What sparse attention keeps beside plain or latent caches: MiniMax-M3's indexers, dots3's padded latents."""

from typing import Any

import pytest

from kvbudget.errors import BadConfigError, UnsupportedError
from kvbudget.model.layers import Attention, Indexer, Latent, Layer
from kvbudget.model.read import model_from_config

MINIMAX_M3: dict[str, Any] = {"model_type": "minimax_m3_text", "architectures": ["MiniMaxM3SparseForCausalLM"]}
DENSE = Layer((Attention(4, 128, 128),))
INDEXED = Layer((Attention(4, 128, 128), Indexer(128, plain=True)))
DOTS3: dict[str, Any] = {
    "model_type": "dots3_note",
    "num_hidden_layers": 4,
    "max_position_embeddings": 131072,
    "swa_num_attention_heads": 64,
    "swa_qk_nope_head_dim": 128,
    "swa_qk_rope_head_dim": 64,
    "swa_v_head_dim": 128,
    "swa_kv_lora_rank": 1024,
    "index_head_dim": 128,
    "sliding_window_size": 512,
    "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
}
SLIDING = Layer((Latent(1024, 64, 64, 192, 128, window=512),))
SPARSE = Layer((Latent(512, 64, 128, 192, 128, padded_size=1088), Indexer(128)))


def test_the_class_s_first_three_layers_are_dense() -> None:
    assert model_from_config(MINIMAX_M3).layers == (DENSE,) * 3 + (INDEXED,) * 57


def test_sparse_attention_freq_says_which_layers_have_an_indexer() -> None:
    config = MINIMAX_M3 | {
        "num_hidden_layers": 3,
        "sparse_attention_config": {"sparse_attention_freq": [1, 0, 1], "sparse_index_dim": 64},
    }
    indexed = Layer((Attention(4, 128, 128), Indexer(64, plain=True)))
    assert model_from_config(config).layers == (indexed, DENSE, indexed)


def test_without_sparse_attention_freq_no_layer_is_sparse() -> None:
    assert set(model_from_config(MINIMAX_M3 | {"sparse_attention_config": {}}).layers) == {DENSE}


def test_a_wrong_number_of_entries_is_refused() -> None:
    config = MINIMAX_M3 | {"sparse_attention_config": {"sparse_attention_freq": [1]}}
    with pytest.raises(BadConfigError, match="sparse_attention_freq has 1 entries"):
        model_from_config(config)


def test_minimax_m3_draft_modules_are_sparse() -> None:
    wrapped = {"model_type": "minimax_m3_vl", "text_config": {"num_mtp_modules": 2}}
    assert model_from_config(wrapped).draft_layers == (INDEXED,) * 2


def test_dots3_pads_the_sparse_layers_latent_to_the_sliding_one() -> None:
    assert model_from_config(DOTS3).layers == (SLIDING,) * 3 + (SPARSE,)


def test_dots3_draft_modules_slide_unless_mtp_layer_types_says_otherwise() -> None:
    assert model_from_config(DOTS3).draft_layers == (SLIDING,)
    named = DOTS3 | {"num_nextn_predict_layers": 2, "mtp_layer_types": ["full_attention", "sliding_attention"]}
    assert model_from_config(named).draft_layers == (SPARSE, SLIDING)
    with pytest.raises(BadConfigError, match="mtp_layer_types has 2 entries"):
        model_from_config(named | {"num_nextn_predict_layers": 1})


@pytest.mark.parametrize("change", [{"layer_types": None}, {"layer_types": ["full_attention"]}, {"kv_lora_rank": 2048}])
def test_dots3_sizes_that_contradict_one_another_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(BadConfigError):
        model_from_config(DOTS3 | change)


def test_dots3_layers_of_another_type_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="'chunked_attention' is unknown"):
        model_from_config(DOTS3 | {"layer_types": ["chunked_attention"] * 4})
