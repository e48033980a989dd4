"""How large a recurrent state is, for each mixer, and what its sizes may not be."""

from typing import Any

import pytest

from kvbudget.errors import BadConfigError, UnsupportedError
from kvbudget.model.fields import Fields
from kvbudget.model.layers import State
from kvbudget.model.states import (
    delta_net_state,
    kimi_delta_state,
    linear_attention_state,
    mamba1_state,
    mamba2_state,
    matrix_dtype,
    short_convolution_state,
)

DELTA_NET: dict[str, Any] = {
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}


def fields(config: dict[str, Any]) -> Fields:
    return Fields(config, {}, {})


def test_mamba_1_splits_by_channel() -> None:
    assert mamba1_state(8192, 16, 4) == State("mamba1", 8192, 3, 8192 * 16, heads=8192)


def test_mamba_2_convolves_its_groups_too() -> None:
    state = mamba2_state(inner=4096, heads=64, head_size=64, groups=8, state_size=128, kernel=4)
    assert state == State("mamba2", 4096, 3, 64 * 64 * 128, heads=64, groups=8, group_channels=256)
    assert state.conv_channels + state.groups * state.group_channels == 6144  # vLLM 0.32 for Nemotron-3-Nano at TP 1


def test_a_gated_delta_net_convolves_queries_keys_and_values() -> None:
    state = delta_net_state(fields(DELTA_NET), "float32")
    assert state == State("gdn", 8192, 3, 32 * 128 * 128, heads=32, matrix_dtype="float32")


def test_kda_keeps_a_square_matrix_a_head_in_float32() -> None:
    assert kimi_delta_state(96, 128, 4) == State("kda", 36864, 3, 96 * 128 * 128, 96, matrix_dtype="float32")


def test_lightning_attention_has_no_convolution_and_a_short_convolution_no_matrix() -> None:
    assert linear_attention_state(64, 128) == State("linear", 0, 0, 64 * 128 * 128, 64)
    assert short_convolution_state(2048, 3) == State("conv", 2048, 2, 0, 0)


def test_heads_that_do_not_make_up_the_mixer_are_refused() -> None:
    with pytest.raises(BadConfigError, match="63 Mamba heads of 64 do not make up the 4096 channels"):
        mamba2_state(inner=4096, heads=63, head_size=64, groups=8, state_size=128, kernel=4)


def test_value_heads_must_be_a_multiple_of_key_heads() -> None:
    with pytest.raises(BadConfigError, match="linear_num_value_heads 24 is not a multiple of linear_num_key_heads 16"):
        delta_net_state(fields(DELTA_NET | {"linear_num_value_heads": 24}))


@pytest.mark.parametrize(("given", "expected"), [("float32", "float32"), ("auto", ""), (None, "")])
def test_a_dtype_is_taken_as_asked_for(given: object, expected: str) -> None:
    assert matrix_dtype(fields({"mamba_ssm_dtype": given}), "mamba_ssm_dtype") == expected


def test_an_unknown_dtype_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="mamba_ssm_dtype 'float8' is unknown"):
        matrix_dtype(fields({"mamba_ssm_dtype": "float8"}), "mamba_ssm_dtype")
