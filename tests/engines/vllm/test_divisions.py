"""Over how many ranks a model can be shared out, and what vLLM says where it cannot."""

import time
from typing import Any

import pytest

from kvbudget.engines.rule import Refusal
from kvbudget.engines.vllm.divisions import division_refusals, largest_divisor
from kvbudget.model.read import model_from_config

LLAMA = {
    "model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 24, "num_key_value_heads": 4,
    "hidden_size": 3072, "intermediate_size": 14336, "vocab_size": 128256,
}  # fmt: skip
QWEN3_MOE = {
    "model_type": "qwen3_moe", "num_hidden_layers": 2, "num_attention_heads": 64, "num_key_value_heads": 4,
    "hidden_size": 4096, "head_dim": 128, "moe_intermediate_size": 1536, "num_experts": 128,
}  # fmt: skip
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def refusal(config: dict[str, Any], ranks: int, dtype: str = "auto") -> Refusal | None:
    found = division_refusals(model_from_config(config), ranks, dtype)
    assert len(found) <= 1
    return found[0] if found else None


def test_a_feed_forward_part_that_ranks_cannot_share_is_refused() -> None:
    """vLLM 0.32 asserts so in linear.py, called by llama.py."""
    found = refusal(LLAMA, 12)
    assert found is not None
    assert found.code == "intermediate_size_not_divisible"
    assert "14336 over 12 ranks" in found.message
    assert found.fix == "use --tensor-parallel-size 8"
    assert refusal(LLAMA, 8) is None


def test_experts_that_ranks_cannot_share_are_refused_in_the_words_of_their_own_layer() -> None:
    found = refusal({**QWEN3_MOE, "moe_intermediate_size": 1544}, 16)
    assert found is not None
    assert found.message.startswith("AssertionError: assert self.intermediate_size % tp_size == 0")
    assert found.fix == "use --tensor-parallel-size 8"


@pytest.mark.parametrize(("ranks", "part"), [(2, 0), (4, 0), (8, 192)])
def test_fp8_blocks_of_experts_cannot_be_cut_through(ranks: int, part: int) -> None:
    """Qwen3-235B-A22B-FP8: four ranks work, eight do not."""
    found = refusal({**QWEN3_MOE, "quantization_config": FP8}, ranks)
    if not part:
        assert found is None
        return
    assert found is not None
    assert found.message == (
        f"The output_size of gate's and up's weight = {part} is not divisible by weight quantization block_n = 128."
    )
    assert (found.code, found.fix) == ("quantised_block_not_divisible", "use --tensor-parallel-size 4")


def test_fp8_blocks_of_a_dense_part_are_cut_where_its_input_is_split() -> None:
    """Merged projections may end within a block (linear.py: _maybe_allow_fp8_block_shape_mismatch)."""
    config = {**LLAMA, "num_attention_heads": 64, "num_key_value_heads": 8, "hidden_size": 8192, "head_dim": 128}
    config |= {"intermediate_size": 28672, "quantization_config": FP8}
    assert refusal(config, 32) is None
    found = refusal({**config, "intermediate_size": 29568}, 8)
    assert found is not None
    assert found.message == (
        "Weight input_size_per_partition = 3696 is not divisible by weight quantization block_k = 128."
    )


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "The input size is not aligned with the quantized"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "in_features per partition 3696 is not divisible by"),
    ],
)
def test_groups_of_integers_cannot_be_cut_through(section: dict[str, Any], words: str) -> None:
    """Qwen2.5-72B with its 29,568 channels: eight ranks are 28.875 groups each."""
    config = {**LLAMA, "model_type": "qwen2", "num_attention_heads": 64, "num_key_value_heads": 8, "hidden_size": 8192}
    config |= {"intermediate_size": 29568, "vocab_size": 152064, "quantization_config": section}
    found = refusal(config, 8)
    assert found is not None
    assert words in found.message
    assert refusal(config, 1) is None


def test_exllama_takes_gptq_groups_of_any_cut_in_float16() -> None:
    section = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    config = {**LLAMA, "num_attention_heads": 64, "num_key_value_heads": 8, "hidden_size": 8192, "head_dim": 128}
    config |= {"intermediate_size": 29568, "quantization_config": section}
    assert refusal(config, 8, "half") is None
    assert refusal(config, 8) is not None


def test_heads_of_a_recurrent_state_are_shared_whole() -> None:
    config = {
        "model_type": "mamba2",
        "num_heads": 24,
        "head_dim": 64,
        "n_groups": 1,
        "hidden_size": 768,
        "vocab_size": 1024,
    }
    found = refusal(config, 16)
    assert found is not None
    assert found.code == "state_heads_not_divisible"
    assert found.fix == "use --tensor-parallel-size 8"


@pytest.mark.parametrize(("ranks", "groups", "works"), [(8, 8, True), (16, 8, False), (16, 1, True), (4, 2, False)])
def test_groups_of_mamba2_are_shared_whole_or_there_is_one(ranks: int, groups: int, works: bool) -> None:
    config = {"model_type": "mamba2", "num_heads": 128, "head_dim": 64, "n_groups": groups, "hidden_size": 4096}
    found = refusal(config, ranks)
    assert (found is None) is works
    if found is not None:
        assert "then num_groups must equal 1" in found.message
        assert found.fix == f"use --tensor-parallel-size {groups}"


def test_a_part_without_gates_is_refused_in_the_words_of_its_own_layer() -> None:
    config = {"model_type": "gpt2", "n_layer": 2, "n_head": 12, "n_embd": 768, "vocab_size": 6144, "n_inner": 3080}
    found = refusal(config, 3)
    assert found is not None
    assert found.message.startswith("AssertionError: 3080 is not divisible by 3")
    assert found.fix == "use --tensor-parallel-size 2"


@pytest.mark.parametrize("ranks", [99_999_999, 10**12 - 1, 10**12])
def test_absurd_numbers_of_ranks_are_refused_at_once(ranks: int) -> None:
    started = time.process_time()
    for config in (LLAMA, {"model_type": "mamba2"}):
        found = refusal(config, ranks)
        assert found is not None
    assert time.process_time() - started < 0.5


def test_the_largest_divisor_is_found_like_by_trying_all() -> None:
    for number in (1, 2, 12, 97, 360):
        for limit in range(1, number + 3):
            assert largest_divisor(number, limit) == max(n for n in range(1, limit + 1) if number % n == 0)


def test_deepseek_v3_splits_over_up_to_sixteen_ranks() -> None:
    deepseek = {"model_type": "deepseek_v3", "quantization_config": FP8}
    assert [refusal(deepseek, ranks) for ranks in (2, 4, 8, 16)] == [None] * 4
    found = refusal(deepseek, 32)
    assert found is not None
    assert "576 is not divisible by weight quantization block_k" in found.message
