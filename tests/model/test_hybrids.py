"""Which layers of a hybrid model keep a state, which attention, which both and which nothing."""

from typing import Any

import pytest

from kvbudget.errors import BadConfigError, InputError, UnsupportedError
from kvbudget.model.layers import Attention, Layer, State
from kvbudget.model.read import model_from_config

# Qwen/Qwen3.5-35B-A3B, its text part
QWEN3_5: dict[str, Any] = {
    "model_type": "qwen3_5_moe_text",
    "hidden_size": 2048,
    "num_hidden_layers": 40,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "mamba_ssm_dtype": "float32",
    "mtp_num_hidden_layers": 1,
}
# nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16
NANO: dict[str, Any] = {
    "model_type": "nemotron_h",
    "hidden_size": 2688,
    "num_hidden_layers": 52,
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "mamba_num_heads": 64,
    "mamba_head_dim": 64,
    "n_groups": 8,
    "ssm_state_size": 128,
}
NANO_STATE = State("mamba2", 4096, 3, 64 * 64 * 128, 64, 8, 256, "float32")


def kinds(config: dict[str, Any]) -> str:
    """One letter for each layer: S state, A attention, B both, L latent, - nothing."""
    letters = []
    for layer in model_from_config(config).layers:
        held = {type(cache) for cache in layer.caches}
        both = held == {State, Attention}
        letters.append("B" if both else "S" if State in held else "A" if Attention in held else "L" if held else "-")
    return "".join(letters)


def test_every_fourth_layer_of_a_delta_net_model_is_attention_unless_layer_types_says_otherwise() -> None:
    assert kinds(QWEN3_5) == "SSSA" * 10
    types = ["full_attention", *["linear_attention"] * 39]
    assert kinds(QWEN3_5 | {"layer_types": types}) == "A" + "S" * 39


def test_the_state_of_a_delta_net_has_the_dtype_that_config_json_asks_for() -> None:
    model = model_from_config({"model_type": "qwen3_5_moe", "text_config": QWEN3_5})
    assert model.layers[0].caches == (State("gdn", 8192, 3, 32 * 128 * 128, 32, matrix_dtype="float32"),)
    assert model.layers[3].caches == (Attention(2, 256, 256),)
    assert model.draft_layers == (Layer((Attention(2, 256, 256),)),)


def test_a_letter_decides_what_a_layer_of_nemotron_keeps() -> None:
    model = model_from_config(NANO)
    assert model.kinds == {"mamba": 23, "none": 23, "full": 6}
    assert model.layers[0].caches == (NANO_STATE,)
    assert model.draft_layers == ()


def test_named_blocks_mean_the_same_as_letters() -> None:
    names = {"M": "mamba", "E": "moe", "*": "attention", "-": "mlp"}
    named = {key: value for key, value in NANO.items() if key != "hybrid_override_pattern"}
    named["layers_block_type"] = [names[letter] for letter in NANO["hybrid_override_pattern"]]
    assert model_from_config(named).layers == model_from_config(NANO).layers


def test_the_draft_module_of_nemotron_has_one_attention_for_each_star() -> None:
    drafts = model_from_config(NANO | {"num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*E"}).draft_layers
    assert [layer.kind for layer in drafts] == ["full", "none"]


def test_jamba_has_attention_at_its_offset_in_each_period() -> None:
    assert kinds({"model_type": "jamba"}) == "SSSSASSS" * 4
    state = model_from_config({"model_type": "jamba"}).layers[0].caches[0]
    assert state == State("mamba1", 8192, 3, 8192 * 16, 8192)


def test_falcon_h1_keeps_both_in_every_layer() -> None:
    model = model_from_config({"model_type": "falcon_h1", "num_hidden_layers": 44})
    assert model.kinds == {"full+mamba": 44}


def test_a_null_mixer_width_of_falcon_h1_means_the_expansion() -> None:
    model = model_from_config({"model_type": "falcon_h1", "mamba_d_ssm": None, "mamba_n_heads": 64})
    state = model.layers[0].caches[1]
    assert state == State("mamba2", 8192, 3, 64 * 128 * 256, 64, 1, 512)


def test_zamba2_has_double_width_attention_beside_nine_of_its_states() -> None:
    model = model_from_config({"model_type": "zamba2"})
    assert kinds({"model_type": "zamba2"}).count("B") == 9
    assert model.layers[6].caches[0] == Attention(32, 160, 160)


def test_granite_and_bamba_name_their_attention_layers_differently() -> None:
    mixer = {"num_hidden_layers": 4, "mamba_n_heads": 128, "mamba_d_head": 64}
    types = ["mamba", "mamba", "attention", "mamba"]
    assert kinds({"model_type": "granitemoehybrid", "layer_types": types} | mixer) == "SSAS"
    assert kinds({"model_type": "granitemoehybrid"} | mixer) == "SSSS"
    attention_only = {"layer_types": ["attention"] * 4, "mamba_d_head": 1}
    assert kinds({"model_type": "granitemoehybrid"} | mixer | attention_only) == "AAAA"
    assert kinds({"model_type": "bamba", "attn_layer_indices": [2]} | mixer) == "SSAS"


def test_lfm2_keeps_short_convolutions() -> None:
    config = {"model_type": "lfm2", "num_hidden_layers": 3, "full_attn_idxs": [2], "conv_dim": 2048}
    assert kinds(config) == "SSA"
    assert model_from_config(config).layers[0].caches == (State("conv", 2048, 2, 0, 0),)


def test_pure_state_models_need_no_attention_heads() -> None:
    model = model_from_config({"model_type": "mamba2"})
    assert (model.attention_heads, model.kinds) == (0, {"mamba": 64})
    falcon = model_from_config({"model_type": "falcon_mamba", "expand": 16, "intermediate_size": 8192})
    assert falcon.layers[0].caches == (State("mamba1", 8192, 3, 8192 * 16, 8192),)


def test_minimax_lists_its_kinds_by_number() -> None:
    config = {"model_type": "minimax_text_01", "num_hidden_layers": 4, "attn_type_list": [0, 0, 0, 1], "head_dim": 128}
    assert kinds(config) == "SSSA"
    assert model_from_config(config).layers[0].caches == (State("linear", 0, 0, 32 * 128 * 128, 32),)


def test_olmo_hybrid_derives_its_delta_net_from_the_attention() -> None:
    model = model_from_config({"model_type": "olmo_hybrid"})
    assert kinds({"model_type": "olmo_hybrid"}) == "SSSA" * 8
    assert model.layers[0].caches == (State("gdn", 2 * 30 * 96 + 30 * 192, 3, 30 * 96 * 192, 30),)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (QWEN3_5 | {"layer_types": ["full_attention"]}, "layer_types has 1 entries, but there are 40 layers"),
        (QWEN3_5 | {"linear_num_value_heads": 0}, "linear_num_value_heads is 0"),
        (NANO | {"num_hidden_layers": 51}, "52 entries, but num_hidden_layers is 51"),
        (NANO | {"hybrid_override_pattern": ""}, "missing, so the layers' kinds are unknown"),
        ({"model_type": "jamba", "head_dim": 64}, "head_dim is 64, but jamba divides hidden_size 4096"),
        ({"model_type": "jamba", "attn_layer_offset": 8}, "attn_layer_offset 8 must be less than attn_layer_period 8"),
        ({"model_type": "bamba", "attn_layer_indices": [32]}, "names layer 32, but layers are 0 to 31"),
        ({"model_type": "zamba2", "num_hidden_layers": 53}, "54 entries, but there are 53 layers"),
        ({"model_type": "falcon_h1", "mamba_n_heads": 100}, "1024 Mamba channels are not a multiple of 100 heads"),
    ],
)
def test_what_contradicts_itself_is_named(config: dict[str, Any], words: str) -> None:
    with pytest.raises(BadConfigError, match=words):
        model_from_config(config)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (QWEN3_5 | {"layer_types": ["sliding_attention"] * 40}, "layer_types 'sliding_attention' is unknown"),
        (NANO | {"hybrid_override_pattern": "X" * 52}, "unknown letter 'X'"),
        (NANO | {"num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "M"}, "MTP module of nemotron_h"),
        (NANO | {"num_nextn_predict_layers": 2}, "num_nextn_predict_layers 2"),
        ({"model_type": "minimax", "num_hidden_layers": 1, "attn_type_list": [2]}, "attn_type_list has a kind"),
        ({"model_type": "jamba", "num_attention_heads": 0}, "num_attention_heads is 0"),
    ],
)
def test_what_is_not_known_is_refused(config: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        model_from_config(config)


def test_a_layer_kind_of_another_family_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="type 'hybrid'"):
        model_from_config(QWEN3_5 | {"layer_types": ["hybrid"] * 40})
