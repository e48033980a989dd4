"""What PLaMo 2 keeps: attention once in mamba_step layers, and Mamba-2 states."""

from typing import Any

import pytest

from kvbudget.errors import BadConfigError
from kvbudget.model.layers import Attention, Layer, State
from kvbudget.model.read import model_from_config

# pfnet/plamo-2-1b
PLAMO2: dict[str, Any] = {
    "model_type": "plamo2",
    "architectures": ["Plamo2ForCausalLM"],
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 1,
    "hidden_size_per_head": 128,
    "mamba_d_state": 64,
    "mamba_d_conv": 4,
    "mamba_num_heads": 32,
    "mamba_step": 2,
    "intermediate_size": 8192,
    "vocab_size": 100000,
    "max_position_embeddings": 10485760,
}
ATTENTION = Layer((Attention(1, 128, 128),))
STATE = Layer((State("mamba2", 32 * 128, 3, 32 * 128 * 64, 32, group_channels=128),))


def test_attention_is_in_the_middle_of_each_step() -> None:
    assert model_from_config(PLAMO2).layers == (STATE, ATTENTION) * 8
    assert model_from_config(PLAMO2 | {"mamba_step": 4, "num_hidden_layers": 6}).layers == (
        STATE, STATE, ATTENTION, STATE, STATE, STATE,
    )  # fmt: skip


def test_a_model_shorter_than_half_a_step_has_it_last() -> None:
    assert model_from_config(PLAMO2 | {"mamba_step": 8, "num_hidden_layers": 3}).layers == (STATE, STATE, ATTENTION)


def test_a_step_of_one_is_refused() -> None:
    with pytest.raises(BadConfigError, match="mamba_step is 1"):
        model_from_config(PLAMO2 | {"mamba_step": 1})
