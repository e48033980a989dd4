"""Which layers of Kimi Linear, Kimi K3 and Bailing keep a state and which a latent."""

from typing import Any

import pytest

from kvbudget.errors import BadConfigError, UnsupportedError
from kvbudget.model.layers import Latent, State
from kvbudget.model.read import model_from_config

# moonshotai/Kimi-K3, its text part
KIMI_K3: dict[str, Any] = {
    "model_type": "kimi_linear",
    "hidden_size": 7168,
    "num_hidden_layers": 93,
    "num_attention_heads": 96,
    "num_key_value_heads": 96,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "num_experts": 896,
    "num_experts_per_token": 16,
    "num_shared_experts": 2,
    "moe_intermediate_size": 3072,
    "routed_expert_hidden_size": 3584,
    "first_k_dense_replace": 1,
    "linear_attn_config": {
        "kda_layers": [index for index in range(1, 93) if index % 4],
        "full_attn_layers": [*range(4, 93, 4), 93],
        "head_dim": 128,
        "num_heads": 96,
        "short_conv_kernel_size": 4,
    },
}
BAILING: dict[str, Any] = {
    "model_type": "bailing_hybrid",
    "hidden_size": 1024,
    "num_hidden_layers": 10,
    "num_attention_heads": 16,
    "head_dim": 64,
    "layer_group_size": 4,
    "short_conv_kernel_size": 4,
    "vocab_size": 1024,
}


def test_kimi_names_its_kda_layers_from_one() -> None:
    model = model_from_config({"model_type": "kimi_k3", "text_config": KIMI_K3})
    assert model.kinds == {"mamba": 69, "mla": 24}
    assert model.layers[3].caches == (Latent(512, 64, 96, 192, 128),)
    assert model.layers[92].kind == "mla"


@pytest.mark.parametrize(
    ("architecture", "expected", "mixer"),
    [("BailingMoeV2_5ForCausalLM", "SSSLSSSLSS", "linear"), ("BailingMoeV3ForCausalLM", "SSSLSSSLLL", "kda")],
)
def test_bailing_ends_its_groups_with_mla(architecture: str, expected: str, mixer: str) -> None:
    config = BAILING | {"architectures": [architecture]}
    assert "".join("L" if layer.kind == "mla" else "S" for layer in model_from_config(config).layers) == expected
    state = model_from_config(config).layers[0].caches[0]
    assert isinstance(state, State)
    assert (state.mixer, state.matrix_elements) == (mixer, 16 * 64 * 64)


@pytest.mark.parametrize(("listed", "words"), [([0], "names layer 0"), ([1, 4], "each of the 93")])
def test_kda_layers_that_contradict_the_others_are_refused(listed: list[int], words: str) -> None:
    section = KIMI_K3["linear_attn_config"] | {"kda_layers": listed}
    with pytest.raises(BadConfigError, match=words):
        model_from_config(KIMI_K3 | {"linear_attn_config": section})


def test_another_generation_of_bailing_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="which recurrent layers it has is missing"):
        model_from_config(BAILING | {"architectures": ["BailingMoeV9ForCausalLM"]})
