"""What GLM5-Next and Qwen4-Exp keep: recurrent states, pooled keys, and those of the pool that is not full yet."""

from typing import Any

import pytest

from kvbudget.errors import BadConfigError, UnsupportedError
from kvbudget.model.layers import Attention, Indexer, Latent, Layer, Ring, State
from kvbudget.model.read import model_from_config

GLM5_NEXT: dict[str, Any] = {"model_type": "glm5_next", "text_config": {"model_type": "glm5_next_text"}}
KDA = Layer((State("kda", 3 * 64 * 128, 3, 64 * 128 * 128, 64, matrix_dtype="float32"),))
POOLED_LATENT = Layer((Indexer(128, 16), Ring("glm5_next", 256, 2, 16), Latent(512, 0, 64, 256, 256)))
QWEN4: dict[str, Any] = {
    "model_type": "qwen4_exp_text",
    "num_hidden_layers": 4,
    "indexer_n_heads": 16,
    "indexer_head_dim": 128,
    "indexer_compress_ratio": 16,
    "ple_layer_ids": [1],
}
DELTA = State("gdn", 2 * 16 * 128 + 32 * 128, 3, 32 * 128 * 128, 32)
EMBEDDING = State("conv", 4 * 2048, 9, 0, 0, replicated=True)
QSA = Layer((Ring("qwen4_exp", 128, 2, 16), Indexer(128, 16, plain=True), Attention(2, 256, 256)))


def test_every_fourth_layer_of_glm5_next_is_mla() -> None:
    model = model_from_config(GLM5_NEXT)
    assert model.layers == ((KDA,) * 3 + (POOLED_LATENT,)) * 11 + (KDA,)
    assert model.kinds == {"mamba": 34, "mla_indexer": 11}


def test_glm5_next_may_have_its_text_at_the_top_level() -> None:
    assert model_from_config({"model_type": "glm5_next"}).layers == model_from_config(GLM5_NEXT).layers


def test_linear_attn_config_replaces_the_sizes_of_kda() -> None:
    section = {"head_dim": 64, "num_heads": 32, "short_conv_kernel_size": 3}
    layers = model_from_config({"model_type": "glm5_next", "linear_attn_config": section}).layers
    assert layers[0] == Layer((State("kda", 3 * 32 * 64, 2, 32 * 64 * 64, 32, matrix_dtype="float32"),))


def test_glm5_next_draft_modules_are_mla_layers() -> None:
    assert model_from_config({"model_type": "glm5_next", "num_nextn_predict_layers": 1}).draft_layers == (
        POOLED_LATENT,
    )
    assert model_from_config(GLM5_NEXT).draft_layers == ()


def test_a_pool_of_one_token_is_refused() -> None:
    with pytest.raises(BadConfigError, match="index_kpool is 1"):
        model_from_config({"model_type": "glm5_next", "index_kpool": 1})


def test_qwen4_convolves_an_embedding_in_the_layers_that_ple_layer_ids_names_from_one_on() -> None:
    model = model_from_config(QWEN4)
    assert model.layers == (Layer((EMBEDDING, DELTA)), Layer((DELTA,)), Layer((DELTA,)), QSA)
    assert model.draft_layers == (QSA,)
    assert model.kinds == {"mamba": 3, "indexer+full": 1}


def test_qwen4_without_an_indexer_keeps_plain_attention() -> None:
    assert model_from_config(QWEN4 | {"indexer_n_heads": None}).layers[3] == Layer((Attention(2, 256, 256),))


def test_a_raw_key_has_positions_beside_it_where_images_have_three() -> None:
    config = QWEN4 | {"rope_parameters": {"mrope_section": [11, 11, 10]}}
    ring = model_from_config(config).layers[3].caches[0]
    assert ring == Ring("qwen4_exp", 128, 2, 16, positions=24)
    odd = model_from_config(config | {"indexer_head_dim": 129}).layers[3].caches[0]
    assert odd == Ring("qwen4_exp", 129, 2, 16, positions=30)  # at a multiple of eight bytes


@pytest.mark.parametrize(
    "change", [{"ple_layer_ids": [5]}, {"ple_layer_ids": [0]}, {"layer_types": ["full_attention"]}]
)
def test_layers_that_are_not_there_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(BadConfigError):
        model_from_config(QWEN4 | change)


def test_layer_types_may_call_sparse_attention_full() -> None:
    types = ["linear_attention", "full_attention", "linear_attention", "indexed_attention"]
    assert [layer.kind for layer in model_from_config(QWEN4 | {"layer_types": types}).layers] == [
        "mamba",
        "indexer+full",
        "mamba",
        "indexer+full",
    ]
    with pytest.raises(UnsupportedError, match="'sliding_attention' is unknown"):
        model_from_config(QWEN4 | {"layer_types": ["sliding_attention"] * 4})
