"""What MLA models keep: the latent, indexers and which layers share them, draft modules, and what is refused."""

from typing import Any

import pytest

from kvbudget.errors import BadConfigError, UnsupportedError
from kvbudget.model.layers import Attention, Indexer, Latent, Layer
from kvbudget.model.read import model_from_config

# deepseek-ai/DeepSeek-V3
DEEPSEEK_V3: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "num_nextn_predict_layers": 1,
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
}
LATENT = Latent(latent_size=512, rope_size=64, heads=128, key_size=192, value_size=128)
DEEPSEEK_V32 = DEEPSEEK_V3 | {"model_type": "deepseek_v32", "index_topk": 2048, "index_head_dim": 128}
# zai-org/GLM-5.2
GLM_5_2 = DEEPSEEK_V32 | {
    "model_type": "glm_moe_dsa",
    "num_hidden_layers": 78,
    "index_topk_freq": 4,
    "index_topk_pattern": None,
    "index_skip_topk_offset": 3,
}


def test_every_layer_of_an_mla_model_keeps_one_latent_and_its_draft_module_another() -> None:
    model = model_from_config(DEEPSEEK_V3)
    assert model.layers == (Layer((LATENT,)),) * 61
    assert model.draft_layers == (Layer((LATENT,)),)
    assert model.kinds == {"mla": 61}


@pytest.mark.parametrize("missing", ["kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"])
def test_a_missing_size_means_the_class_default(missing: str) -> None:
    config = {key: value for key, value in DEEPSEEK_V3.items() if key != missing}
    model = model_from_config(config)
    assert model.layers[0].caches == (LATENT,)
    assert missing in model.filled


def test_a_model_without_draft_layers_says_so() -> None:
    assert model_from_config(DEEPSEEK_V3 | {"num_nextn_predict_layers": 0}).draft_layers == ()
    assert model_from_config(DEEPSEEK_V3 | {"model_type": "deepseek_v2"}).draft_layers == ()


def test_a_nested_text_model_is_read_through_its_wrapper() -> None:
    nested = {"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25"}
    model = model_from_config(nested | {"text_config": DEEPSEEK_V3 | {"model_type": "kimi_k2"}})
    assert model.kinds == {"mla": 61}


def test_value_heads_that_are_not_named_are_the_hidden_size_over_the_heads() -> None:
    model = model_from_config({"model_type": "minicpm3"})
    assert model.layers[0].caches == (Latent(256, 32, 40, 96, 64),)


def test_two_attentions_of_one_layer_keep_two_latents() -> None:
    model = model_from_config({"model_type": "longcat_flash", "num_layers": 28})
    assert [len(layer.caches) for layer in model.layers] == [2] * 28
    assert len(model.draft_layers) == 1
    assert len(model.draft_layers[0].caches) == 1


def test_a_sparse_model_keeps_an_indexer_beside_each_latent() -> None:
    model = model_from_config(DEEPSEEK_V32)
    assert model.layers == (Layer((LATENT, Indexer(128))),) * 61
    assert model.kinds == {"mla_indexer": 61}


def test_layers_that_share_an_indexer_have_none_of_their_own() -> None:
    model = model_from_config(GLM_5_2)
    own = [index for index, layer in enumerate(model.layers) if len(layer.caches) == 2]
    assert own == [0, 1, 2, *range(6, 78, 4)]
    assert model.kinds == {"mla_indexer": 21, "mla": 57}


def test_the_draft_module_of_a_sparse_model_always_has_its_indexer() -> None:
    model = model_from_config(GLM_5_2 | {"num_nextn_predict_layers": 1})
    assert model.draft_layers == (Layer((LATENT, Indexer(128))),)


def test_a_pattern_of_letters_comes_before_the_frequency_and_full_follows_its_end() -> None:
    config = DEEPSEEK_V32 | {"num_hidden_layers": 5, "index_topk_pattern": "FSS", "index_topk_freq": 4}
    assert [len(layer.caches) for layer in model_from_config(config).layers] == [2, 1, 1, 2, 2]


def test_indexer_types_that_contradict_the_frequency_are_refused_by_layer() -> None:
    types = ["full"] * 6
    config = DEEPSEEK_V32 | {"num_hidden_layers": 6, "index_topk_freq": 4, "indexer_types": types}
    with pytest.raises(BadConfigError, match="says full for layer 2, but by index_topk_freq it is shared"):
        model_from_config(config)


def test_dense_layers_of_a_sparse_model_have_no_indexer_and_its_draft_module_is_as_the_last() -> None:
    types = ["full_attention", *["indexed_attention"] * 5]
    model = model_from_config({"model_type": "hy_v4", "num_hidden_layers": 6, "layer_types": types})
    assert [len(layer.caches) for layer in model.layers] == [1, 2, 1, 1, 1, 2]
    assert [len(layer.caches) for layer in model.draft_layers] == [2]
    dense = model_from_config({"model_type": "hy_v4", "num_hidden_layers": 2, "layer_types": ["full_attention"] * 2})
    assert [len(layer.caches) for layer in (*dense.layers, *dense.draft_layers)] == [1, 1, 1]
    with pytest.raises(BadConfigError, match="layer_types is missing"):
        model_from_config({"model_type": "hy_v4"})


def test_zero_latent_sizes_mean_plain_heads() -> None:
    text = {
        "model_type": "deepseek_v2",
        "hidden_size": 1280,
        "num_attention_heads": 10,
        "num_key_value_heads": 10,
        "num_hidden_layers": 12,
        "kv_lora_rank": None,
        "qk_nope_head_dim": 0,
        "qk_rope_head_dim": 0,
        "v_head_dim": 0,
    }
    model = model_from_config({"model_type": "deepseek_vl_v2", "language_config": text})
    assert model.layers == (Layer((Attention(10, 128, 128),)),) * 12


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kv_lora_rank": -1}, "kv_lora_rank is -1"),
        ({"kv_lora_rank": None}, "kv_lora_rank is null"),
        ({"kv_lora_rank": 512.0}, "kv_lora_rank is 512.0"),
        ({"qk_head_dim": 128}, "qk_head_dim is 128, but"),
        ({"qk_nope_head_dim": 0, "qk_rope_head_dim": 0.0}, "qk_rope_head_dim is 0.0"),
        ({"num_nextn_predict_layers": True}, "num_nextn_predict_layers is True"),
    ],
)
def test_a_size_that_cannot_be_is_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(BadConfigError, match=words):
        model_from_config(DEEPSEEK_V3 | change)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"index_topk_pattern": "FXF"}, "not a string of F"),
        ({"index_topk_pattern": "F" * 62}, "62 letters, but there are 61 layers"),
        ({"index_topk_freq": 0}, "index_topk_freq is 0"),
        ({"index_head_dim": 0}, "index_head_dim is 0"),
        ({"indexer_types": ["full"]}, "1 entries, but there are 61 layers"),
    ],
)
def test_an_indexer_that_cannot_be_is_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(BadConfigError, match=words):
        model_from_config(DEEPSEEK_V32 | change)


def test_an_unknown_indexer_type_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="indexer_types 'half' is unknown"):
        model_from_config(DEEPSEEK_V32 | {"indexer_types": ["half"] * 61})
