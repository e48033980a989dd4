"""What DeepSeek-V4 layers keep: a window, compressed vectors and their compressor, and the indexer of ratio 4."""

from typing import Any

import pytest

from kvbudget.errors import BadConfigError, UnsupportedError
from kvbudget.model.layers import Compressed, Compressor, Indexer, Ring
from kvbudget.model.read import model_from_config

# deepseek-ai/DeepSeek-V4-Flash: two layers without compression, then 4 and 128 in turns; the last entry is the MTP's
RATIOS = [0, 0, *[4, 128] * 20, 4, 0]
FLASH: dict[str, Any] = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "hidden_size": 4096,
    "num_hidden_layers": 43,
    "num_attention_heads": 64,
    "num_key_value_heads": 1,
    "num_nextn_predict_layers": 1,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "sliding_window": 128,
    "index_head_dim": 128,
    "compress_ratios": RATIOS,
    "vocab_size": 129280,
    "max_position_embeddings": 1048576,
}
WINDOW = Compressed(512, 64, 1, 128)


def test_each_ratio_has_its_own_caches_in_order() -> None:
    layers = model_from_config(FLASH).layers
    assert layers[0].caches == (WINDOW,)
    assert layers[2].caches == (
        Indexer(128, tokens_per_key=4),
        Compressor(elements=512, window=8, ratio=4),
        WINDOW,
        Compressed(512, 64, 4),
        Compressor(elements=2048, window=8, ratio=4),
    )
    assert layers[3].caches == (WINDOW, Compressed(512, 64, 128), Compressor(elements=1024, window=128, ratio=128))


def test_layers_are_counted_by_kind() -> None:
    model = model_from_config(FLASH)
    assert model.kinds == {"sliding": 2, "compressed": 41}
    assert sum(len(layer.caches) for layer in model.layers) == 2 + 21 * 5 + 20 * 3


def test_the_draft_module_keeps_the_window_only() -> None:
    assert [layer.caches for layer in model_from_config(FLASH).draft_layers] == [(WINDOW,)]


def test_named_layers_mean_the_ratios_of_their_class() -> None:
    names = ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"]
    config = {key: value for key, value in FLASH.items() if key != "compress_ratios"}
    named = model_from_config(config | {"num_hidden_layers": 3, "layer_types": names})
    assert named.layers == model_from_config(FLASH | {"num_hidden_layers": 3, "compress_ratios": [0, 4, 128]}).layers


@pytest.mark.parametrize(
    ("ratios", "words"),
    [
        (None, "compress_ratios is missing"),
        (RATIOS[:42], "42 entries, but there are 43 layers"),
        ([*RATIOS, 4], "45 entries, but there are 43 layers"),
        ("4", "compress_ratios is '4'"),
        ([4.0] * 43, "must be a list of whole numbers"),
    ],
)
def test_ratios_that_cannot_be_are_named(ratios: object, words: str) -> None:
    with pytest.raises(BadConfigError, match=words):
        model_from_config(FLASH | {"compress_ratios": ratios})


def test_a_ratio_that_no_kernel_knows_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="compress_ratios 8 is unknown"):
        model_from_config(FLASH | {"compress_ratios": [8] * 43})


def test_a_rotary_part_larger_than_the_head_is_refused() -> None:
    with pytest.raises(BadConfigError, match="qk_rope_head_dim 513 is more than the whole head_dim 512"):
        model_from_config(FLASH | {"qk_rope_head_dim": 513})


V41: dict[str, Any] = {
    "model_type": "deepseek_v41",
    "text_config": {
        "hidden_size": 4096,
        "num_hidden_layers": 6,
        "num_attention_heads": 64,
        "head_dim": 512,
        "qk_rope_head_dim": 64,
        "sliding_window": 128,
        "index_head_dim": 128,
        "compress_ratios": [0, 2, 2, 1, 1],
        "kv_source_layer_ids": [1, 3],
        "index_source_layer_ids": [1, 2],
        "vocab_size": 129280,
        "max_position_embeddings": 1048576,
    },
}


def v41(**changes: object) -> dict[str, Any]:
    return V41 | {"text_config": V41["text_config"] | changes}


def test_only_source_layers_of_v4_1_compress_and_the_others_keep_the_window() -> None:
    model = model_from_config(V41)
    vectors = Compressed(512, 64, 2)
    assert [layer.caches for layer in model.layers] == [
        (WINDOW,),
        (vectors, Indexer(128, 2), WINDOW, Ring("deepseek_v41", 1024, 4, 2)),
        (WINDOW,),
        (Compressed(512, 64, 1), WINDOW),  # a source whose tokens an earlier layer chooses
        (WINDOW,),
        (WINDOW,),
    ]
    assert model.kinds == {"sliding": 4, "compressed": 2}
    assert model.draft_layers == ()


@pytest.mark.parametrize(
    "changes",
    [
        {"kv_source_layer_ids": [2, 3]},
        {"index_source_layer_ids": None},
        {"kv_source_layer_ids": [0, 1, 3]},
        {"compress_ratios": []},
    ],
)
def test_v4_1_sources_that_do_not_go_with_the_ratios_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(BadConfigError, match="does not go with kv_source_layer_ids"):
        model_from_config(v41(**changes))


def test_a_ratio_that_no_kernel_of_v4_1_knows_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="compress_ratios 4 is unknown"):
        model_from_config(v41(compress_ratios=[0, 4]))


def test_the_reference_format_has_the_same_layers() -> None:
    reference = {key: value for key, value in FLASH.items() if key != "model_type"} | {"model_type": "deepseek_ref"}
    assert model_from_config(reference).layers == model_from_config(FLASH).layers
