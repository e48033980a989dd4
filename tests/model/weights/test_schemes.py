"""Bits per parameter of each published quantisation, and which matrices it leaves alone."""

from typing import Any

import pytest

from kvbudget.errors import BadConfigError
from kvbudget.model.quantization import Quantization, quantization_of
from kvbudget.model.weights.formats import Format

LINEAR = {"targets": ["Linear"]}


def read(section: dict[str, Any], **text: object) -> Quantization:
    found = quantization_of({"quantization_config": section}, text)
    assert found is not None
    assert found.weights_unknown == ""
    return found


def bits(stored: Format | None) -> float:
    """Bits for each parameter of a large matrix."""
    assert stored is not None
    return 8 * stored.size(4096, 4096) / 4096**2


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({"quant_method": "fp8"}, 8),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 8 + 32 / 128**2),
        ({"quant_method": "fbgemm_fp8"}, 8 + 32 / 4096),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, 4 + 20 / 128),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}, 4 + 20 / 128),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 8 + 24 / 4096),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4.5),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 8 + 32 / 4096),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 4.5),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, 8),
        ({"quant_method": "modelopt", "quant_algo": "MXFP8"}, 8.25),
        ({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "group_size": 16}}, 4.5),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": LINEAR | {
            "weights": {"num_bits": 4, "type": "int", "group_size": 128, "symmetric": True}}}}, 4 + 16 / 128),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": LINEAR | {
            "weights": {"num_bits": 4, "type": "int", "group_size": 128, "symmetric": False}}}}, 4 + 20 / 128),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": LINEAR | {
            "weights": {"num_bits": 8, "type": "int", "strategy": "channel"}}}}, 8 + 32 / 4096),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": LINEAR | {
            "weights": {"num_bits": 4, "type": "float", "group_size": 32}}}}, 4.25),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": LINEAR | {
            "weights": {"num_bits": 4, "type": "float", "group_size": 16}}}}, 4.5),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": LINEAR | {
            "weights": {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}}}},
         8 + 32 / 128**2),
    ],
)  # fmt: skip
def test_bits_of_a_parameter_with_its_scales_and_zeros(section: dict[str, Any], expected: float) -> None:
    assert bits(read(section).format_of(0, "self_attn.q_proj")) == pytest.approx(expected, rel=1e-5)


def test_mxfp4_of_gpt_oss_means_experts_alone() -> None:
    found = read({"quant_method": "mxfp4"})
    assert bits(found.format_of(3, "mlp.experts.0.up_proj")) == 4.25
    assert found.format_of(3, "self_attn.q_proj") is None


def test_deepseek_v4_has_fp8_linears_and_4_bit_experts() -> None:
    section = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    found = read(section, expert_dtype="fp4")
    assert bits(found.format_of(3, "ffn.experts.0.up_proj")) == 4.25
    assert bits(found.format_of(3, "attn.wq_b")) == pytest.approx(8, rel=1e-3)
    mixed = read(section | {"quantized_layers": {"layers.3.ffn.experts": {"quant_algo": "NVFP4", "group_size": 16}}})
    assert bits(mixed.format_of(3, "ffn.experts.0.up_proj")) == pytest.approx(4.5, rel=1e-4)
    assert bits(mixed.format_of(4, "ffn.experts.0.up_proj")) == pytest.approx(8, rel=1e-3)


def test_a_mixed_checkpoint_has_a_format_for_each_module_and_none_for_the_rest() -> None:
    found = read(
        {
            "quant_method": "modelopt",
            "quant_algo": "MIXED_PRECISION",
            "ignore": ["mtp*"],
            "quantized_layers": {
                "model.layers.0.mlp.up_proj": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
                "model.layers.0.self_attn.o_proj": {"quant_algo": "FP8"},
                "lm_head": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
            },
        }
    )
    assert bits(found.format_of(0, "mlp.up_proj")) == pytest.approx(4.5, rel=1e-4)
    assert bits(found.format_of(0, "self_attn.o_proj")) == pytest.approx(8, rel=1e-4)
    assert found.format_of(1, "mlp.up_proj") is None
    assert bits(found.head_format()) == pytest.approx(4.5, rel=1e-4)
    assert read({"quant_method": "fp8"}).head_format() is None


@pytest.mark.parametrize(
    "section",
    [
        {"quant_method": "fp8", "weight_block_size": [0, 128]},
        {"quant_method": "fp8", "modules_to_not_convert": "lm_head"},
    ],
)
def test_a_damaged_section_is_a_clear_error(section: dict[str, Any]) -> None:
    with pytest.raises(BadConfigError, match="quantization_config"):
        quantization_of({"quantization_config": section}, {})


@pytest.mark.parametrize(
    "section",
    [
        {"quant_method": "torchao"},
        {"quant_method": "awq"},
        {"quant_method": "gptq", "bits": 4, "group_size": 0},
        {"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {"+:x": {"bits": 8}}},
        {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"},
        {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 3, "type": "float"}}}},
        {"quant_method": "compressed-tensors", "ignore": ["re:(a+)+$"],
         "config_groups": {"g": {"weights": {"num_bits": 4, "type": "int"}}}},
    ],
)  # fmt: skip
def test_a_format_that_is_not_computed_says_so(section: dict[str, Any]) -> None:
    found = quantization_of({"quantization_config": section}, {})
    assert found is not None
    assert found.weights_unknown
