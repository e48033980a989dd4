"""Layers whose heads differ: chunked, MiMo, Step, pruned, listed windows, cross attention."""

from typing import Any

import pytest

from kvbudget.errors import BadConfigError, UnsupportedError
from kvbudget.model.layers import Attention, Cache, CrossAttention, Layer
from kvbudget.model.read import model_from_config

MIMO: dict[str, Any] = {
    "model_type": "mimo_v2_flash", "num_hidden_layers": 4, "num_attention_heads": 64, "num_key_value_heads": 4,
    "head_dim": 192, "v_head_dim": 128, "swa_num_key_value_heads": 8, "swa_head_dim": 192, "swa_v_head_dim": 128,
    "sliding_window": 128, "attention_chunk_size": 128, "hybrid_layer_pattern": [0, 1, 1, 0],
}  # fmt: skip
FFN = {"ffn_mult": 2.625, "no_op": False, "replace_with_linear": False}
BLOCK: dict[str, Any] = {
    "attention": {"n_heads_in_group": 8, "no_op": False, "replace_with_linear": False},
    "ffn": FFN,
}
NAS: dict[str, Any] = {
    "model_type": "nemotron-nas", "hidden_size": 8192, "num_attention_heads": 64, "num_key_value_heads": None,
    "num_hidden_layers": 4,
}  # fmt: skip


def caches(config: dict[str, Any]) -> list[tuple[Cache, ...]]:
    return [layer.caches for layer in model_from_config(config).layers]


def test_llama_4_keeps_a_chunk_where_positions_are_rotary() -> None:
    scout = {"model_type": "llama4_text", "num_hidden_layers": 4}
    chunked, full = (Attention(8, 128, 128, chunk=8192),), (Attention(8, 128, 128),)
    assert caches(scout) == [chunked, chunked, chunked, full]
    assert caches(scout | {"no_rope_layers": [1, 0, 1, 0]}) == [chunked, full, chunked, full]
    with pytest.raises(UnsupportedError, match="differs from its class"):
        model_from_config(scout | {"layer_types": ["full_attention"] * 4})
    assert caches(scout | {"attention_chunk_size": None}) == [full] * 4
    assert model_from_config({"model_type": "llama4", "text_config": scout}).kinds == {"chunked": 3, "full": 1}


def test_mimo_has_other_heads_in_sliding_layers_and_ignores_its_chunk() -> None:
    full, sliding = (Attention(4, 192, 128),), (Attention(8, 192, 128, window=128),)
    assert caches(MIMO) == [full, sliding, sliding, full]
    (draft,) = model_from_config(MIMO).draft_layers
    assert draft.caches == sliding


def test_step_s_sliding_layers_may_have_heads_of_their_own() -> None:
    step = {
        "model_type": "step3p5", "num_hidden_layers": 2, "hidden_size": 4096, "num_attention_heads": 64,
        "num_attention_groups": 8, "head_dim": 128, "sliding_window": 512, "num_nextn_predict_layers": 1,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        "attention_other_setting": {"attention_type": "sliding_attention", "num_attention_heads": 96,
                                    "num_attention_groups": 4, "head_dim": 64},
    }  # fmt: skip
    assert caches(step) == [(Attention(8, 128, 128),), (Attention(4, 64, 64, window=512),)]
    (draft,) = model_from_config(step).draft_layers
    assert draft.kind == "sliding"


def test_a_pruned_model_has_layers_without_attention() -> None:
    no_op = {"attention": {"no_op": True, "n_heads_in_group": None}, "ffn": FFN}
    linear = {"attention": {"replace_with_linear": True, "n_heads_in_group": None}, "ffn": FFN}
    config = NAS | {"block_configs": [BLOCK, no_op, linear, {"attention": {"n_heads_in_group": 16}, "ffn": FFN}]}
    assert caches(config) == [(Attention(8, 128, 128),), (), (), (Attention(4, 128, 128),)]
    assert model_from_config(config).kinds == {"full": 2, "none": 2}
    assert caches(config | {"model_type": "llama"}) == caches(config)  # DeciLM checkpoints name themselves either way


@pytest.mark.parametrize(
    ("blocks", "error", "named"),
    [
        ([BLOCK] * 3, BadConfigError, "list of 4"),
        ([BLOCK] * 3 + [{}], BadConfigError, "no attention"),
        ([BLOCK] * 3 + [{"attention": {"n_heads_in_group": 5}}], BadConfigError, "share 12 KV heads"),
        ([BLOCK] * 3 + [{"attention": {"window_length": 512}}], UnsupportedError, "window_length"),
    ],
)
def test_a_damaged_block_is_refused(blocks: list[Any], error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        model_from_config(NAS | {"block_configs": blocks})


def test_windows_in_a_list_repeat_over_the_layers() -> None:
    pangu = {
        "model_type": "PanguEmbedded", "hidden_size": 1024, "num_attention_heads": 8, "num_hidden_layers": 4,
        "vocab_size": 1000, "interleaved_sliding_window": [512, None],
    }  # fmt: skip
    windowed, full = (Attention(8, 128, 128, window=512),), (Attention(8, 128, 128),)
    assert caches(pangu) == [windowed, full, windowed, full]
    with pytest.raises(BadConfigError, match="interleaved_sliding_window"):
        model_from_config(pangu | {"interleaved_sliding_window": ["512"]})
    with pytest.raises(UnsupportedError, match="sink tokens"):
        model_from_config(pangu | {"param_sink_number": 128})


def test_whisper_keeps_the_encoder_s_output_beside_its_own_tokens() -> None:
    large = {"model_type": "whisper", "d_model": 1280, "decoder_layers": 2, "decoder_attention_heads": 20}
    both = (Attention(20, 64, 64), CrossAttention(20, 64, 64, encoder_tokens=1500))
    assert caches(large | {"is_encoder_decoder": True}) == [both, both]
    assert model_from_config(large).max_model_len == 448


EXAONE_MOE: dict[str, Any] = {
    "model_type": "exaone_moe",
    "num_hidden_layers": 4,
    "sliding_window": 512,
    "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
    "sliding_windows": [128, 256, 128, None],
    "num_nextn_predict_layers": 1,
    "mtp_layer_types": ["sliding_attention"],
}


def exaone_windows(layers: tuple[Layer, ...]) -> list[int | None]:
    return [cache.window for layer in layers for cache in layer.caches if isinstance(cache, Attention)]


def test_exaone_s_sliding_layers_have_the_windows_that_are_listed() -> None:
    model = model_from_config(EXAONE_MOE)
    assert exaone_windows(model.layers) == [128, 256, 128, None]
    assert exaone_windows(model.draft_layers) == [128]
    plain = model_from_config(EXAONE_MOE | {"sliding_windows": None})
    assert exaone_windows(plain.layers) == [512, 512, 512, None]


def test_exaone_s_draft_modules_have_a_list_of_their_own() -> None:
    assert exaone_windows(model_from_config(EXAONE_MOE | {"mtp_sliding_windows": [64]}).draft_layers) == [64]


@pytest.mark.parametrize("windows", [[128], 128, [128, 256, "x", None], [128, 0, 128, None]])
def test_a_list_of_windows_that_says_too_little_is_refused(windows: object) -> None:
    with pytest.raises(BadConfigError, match="sliding_windows"):
        model_from_config(EXAONE_MOE | {"sliding_windows": windows})
