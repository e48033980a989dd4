"""Over how many ranks a model can be shared out, and what vLLM says where it cannot."""

import time
from typing import Any

import pytest

from kvbudget.engines.flags import EngineFlags
from kvbudget.engines.rule import Refusal
from kvbudget.engines.vllm.divisions import Split, division_refusals, largest_divisor
from kvbudget.engines.vllm.rule import Vllm
from kvbudget.model.read import model_from_config
from kvbudget.units import GIB

LLAMA = {
    "model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 24, "num_key_value_heads": 4,
    "hidden_size": 3072, "intermediate_size": 14336, "vocab_size": 128256,
}  # fmt: skip
QWEN3_MOE = {
    "model_type": "qwen3_moe", "num_hidden_layers": 2, "num_attention_heads": 64, "num_key_value_heads": 4,
    "hidden_size": 4096, "head_dim": 128, "moe_intermediate_size": 1536, "num_experts": 128,
}  # fmt: skip
PLAIN = Split()
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def refusal(config: dict[str, Any], ranks: int, split: Split = PLAIN) -> Refusal | None:
    found = division_refusals(model_from_config(config), ranks, split)
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


@pytest.mark.parametrize(("ranks", "part", "fix"), [(2, 0, 0), (4, 0, 0), (8, 0, 0), (16, 0, 0), (32, 48, 16)])
def test_fp8_blocks_of_experts_are_made_smaller_down_to_thirty_two(ranks: int, part: int, fix: int) -> None:
    """vLLM 0.32 fused_moe/oracle/fp8.py: refine_fp8_moe_block_shape makes 64 of 192 and 32 of 96, nothing of 48."""
    found = refusal({**QWEN3_MOE, "quantization_config": FP8}, ranks)
    if not part:
        assert found is None
        return
    assert found is not None
    assert found.message == (
        f"The output_size of gate's and up's weight = {part} is not divisible by weight quantization block_n = 128."
    )
    assert (found.code, found.fix) == ("quantised_block_not_divisible", f"use --tensor-parallel-size {fix}")


def test_blocks_of_experts_cannot_be_cut_through_where_none_are_made_smaller() -> None:
    """Versions before 0.29 do not, and compressed_tensors_moe_w8a8_fp8.py does not in 0.32 either."""
    model = model_from_config({**QWEN3_MOE, "quantization_config": FP8})
    assert division_refusals(model, 8) == []
    (found,) = division_refusals(model, 8, Split(refines=False))
    assert found.fix == "use --tensor-parallel-size 4"
    weights = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128], "dynamic": False}
    section: dict[str, Any] = {"quant_method": "compressed-tensors", "format": "float-quantized"}
    section |= {"config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}
    compressed = refusal({**QWEN3_MOE, "quantization_config": section}, 8)
    assert compressed is not None
    assert compressed.code == "quantised_block_not_divisible"


@pytest.mark.parametrize(("version", "refused"), [("0.32", False), ("0.29", False), ("0.28", True), ("0.10.2", True)])
def test_the_version_decides_whether_blocks_are_made_smaller(version: str, refused: bool) -> None:
    engine = Vllm(version)
    model = model_from_config({**QWEN3_MOE, "quantization_config": FP8})
    flags = EngineFlags(tensor_parallel_size=8, max_model_len=2048)
    for given, expected in ((flags, refused), (flags._replace(enable_expert_parallel=True), False)):
        settings = engine.settle(model, given, 80 * GIB, "")
        stages = engine.stages(model, settings)
        pool = engine.pool(model, settings, stages, [20 * GIB])
        found = [r.code for r in engine.refusals(model, settings, stages, pool)]
        assert ("quantised_block_not_divisible" in found) is expected


def test_a_single_rank_is_refused_experts_that_are_no_blocks() -> None:
    """1,040 channels are no blocks of 128, and no smaller ones down to 32."""
    engine = Vllm()
    for width, expected in ((1040, ["quantised_block_not_divisible"]), (1056, []), (1024, [])):
        model = model_from_config({**QWEN3_MOE, "moe_intermediate_size": width, "quantization_config": FP8})
        settings = engine.settle(model, EngineFlags(max_model_len=2048), 80 * GIB, "H100 80GB")
        stages = engine.stages(model, settings)
        found = engine.refusals(model, settings, stages, engine.pool(model, settings, stages, [20 * GIB]))
        assert [r.code for r in found] == expected


@pytest.mark.parametrize(
    ("card", "refused"),
    [("A100 SXM4 80GB", True), ("RTX 3090", True), ("L40S", False), ("H100 80GB", False), ("", False)],
)
def test_smaller_blocks_need_a_card_with_fp8(card: str, refused: bool) -> None:
    """vLLM 0.32 experts/triton_moe.py has them from 8.9 on; experts/marlin_moe.py takes blocks of 128 alone."""
    model = model_from_config({**QWEN3_MOE, "quantization_config": FP8})
    engine = Vllm()
    for ranks, expected in ((4, False), (8, refused)):
        settings = engine.settle(model, EngineFlags(tensor_parallel_size=ranks, max_model_len=2048), 80 * GIB, card)
        stages = engine.stages(model, settings)
        found = engine.refusals(model, settings, stages, engine.pool(model, settings, stages, [20 * GIB]))
        assert [r.code for r in found] == ["fp8_experts_unsupported"] * expected
    for found_one in found:
        assert found_one.message.startswith(
            "NotImplementedError: No FP8 MoE backend supports the deployment configuration. (192 channels of a rank"
        )
        assert found_one.fix == "use --tensor-parallel-size 4"


@pytest.mark.parametrize(
    ("ranks", "engines", "section", "code"),
    [
        (1, 5, None, "intermediate_size_not_divisible"),
        (1, 4, None, ""),
        (2, 8, FP8, ""),  # 96 channels of a rank, in blocks of 32
        (2, 16, FP8, "quantised_block_not_divisible"),
    ],
)
def test_ranks_of_all_engines_share_each_expert(
    ranks: int, engines: int, section: dict[str, Any] | None, code: str
) -> None:
    """fused_moe/config.py: flatten_tp_across_dp_and_pcp."""
    config = QWEN3_MOE | ({"quantization_config": section} if section else {})
    found = refusal(config, ranks, Split(engines=engines))
    assert (found.code if found else "") == code
    if found is not None:
        assert found.fix == "use --enable-expert-parallel, or another --data-parallel-size"
    assert refusal(config, ranks, Split(engines=engines, whole_experts=True)) is None


def test_engines_of_a_dense_model_share_nothing() -> None:
    assert refusal(LLAMA, 1, Split(engines=5)) is None
    assert refusal(LLAMA, 2, Split(engines=5)) is None


@pytest.mark.parametrize(
    ("flags", "stored", "card", "works"),
    [
        ({"dtype": "half"}, "bfloat16", "H100 80GB", True),
        ({}, "float16", "H100 80GB", True),
        ({}, "bfloat16", "H100 80GB", False),
        ({}, "", "H100 80GB", False),
        ({}, "bfloat16", "T4", True),  # has no bfloat16
        ({"dtype": "bfloat16"}, "float16", "H100 80GB", False),
    ],
)
def test_auto_is_the_type_of_the_checkpoint(flags: dict[str, Any], stored: str, card: str, works: bool) -> None:
    section = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    config = {**LLAMA, "num_attention_heads": 64, "num_key_value_heads": 8, "hidden_size": 8192, "head_dim": 128}
    config |= {"intermediate_size": 29568, "quantization_config": section, "torch_dtype": stored or None}
    model = model_from_config(config)
    engine = Vllm()
    settings = engine.settle(model, EngineFlags(tensor_parallel_size=8, max_model_len=2048, **flags), 80 * GIB, card)
    stages = engine.stages(model, settings)
    found = engine.refusals(model, settings, stages, engine.pool(model, settings, stages, [20 * GIB]))
    assert ("quantised_block_not_divisible" not in [r.code for r in found]) is works


def test_whole_experts_are_not_cut_at_all() -> None:
    """fused_moe/config.py: with expert parallelism the tensor-parallel size of experts is one."""
    model = model_from_config({**QWEN3_MOE, "moe_intermediate_size": 1544})
    assert division_refusals(model, 16)
    assert division_refusals(model, 16, Split(whole_experts=True)) == []


def test_the_vocabulary_is_shared_out_before_the_first_layer_is() -> None:
    found = refusal(
        {**LLAMA, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936}, 5
    )
    assert found is not None
    assert found.message == "AssertionError: 151936 is not divisible by 5"


def test_a_layer_that_is_quantised_is_met_behind_one_that_is_not() -> None:
    config = {**LLAMA, "num_attention_heads": 64, "num_key_value_heads": 8, "hidden_size": 8192, "head_dim": 128}
    config |= {"intermediate_size": 29568, "quantization_config": {**FP8, "modules_to_not_convert": ["layers.0"]}}
    found = refusal(config, 8)
    assert found is not None
    assert found.code == "quantised_block_not_divisible"


def test_a_second_plan_of_one_model_asks_no_matrix_again() -> None:
    model = model_from_config({"model_type": "deepseek_v3", "quantization_config": FP8})
    started = time.process_time()
    for _ in range(2000):
        division_refusals(model, 8)
    assert time.process_time() - started < 1


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
    assert refusal(config, 8, Split(float16=True)) is None
    assert refusal(config, 8) is not None


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128}
MXFP8 = {"quant_method": "modelopt", "quant_algo": "MXFP8"}
NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}


def packed(symmetric: bool = True) -> dict[str, Any]:
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": symmetric}
    group = {"targets": ["Linear"], "weights": weights}
    return {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": group}}


@pytest.mark.parametrize(
    ("section", "width", "ranks", "words"),
    [
        (packed(), 768, 4, "per tensor-parallel partition (192) to be divisible by group_size (128)"),
        (packed(), 768, 2, ""),
        (packed(), 768, 1, ""),
        (packed(), 832, 1, "per tensor-parallel partition (832) to be divisible by group_size (128)"),
        (GPTQ, 768, 8, ""),  # 96 channels
        (GPTQ, 768, 16, "assert group_size >= 32 (48 channels of a rank, groups of 32)"),
        (AWQ, 768, 4, ""),  # 192 channels, in groups of 64
        (AWQ, 768, 8, ""),
        (AWQ, 768, 16, "assert group_size >= 32 (48 channels of a rank, groups of 128)"),
        (AWQ, 784, 1, "assert group_size >= 32 (784 channels of a rank, groups of 128)"),
        (MXFP8, 768, 16, "MXFP8 MoE requires intermediate_size_per_partition divisible by 32, got 48."),
        (MXFP8, 768, 8, ""),
        (FP8, 1040, 1, "The output_size of gate's and up's weight = 1040 is not divisible by weight quantization"),
        (FP8, 1056, 1, ""),  # in blocks of 32
    ],
)
def test_experts_of_every_format_need_whole_groups(section: dict[str, Any], width: int, ranks: int, words: str) -> None:
    """compressed_tensors_moe_wna16.py, moe_wna16.py, modelopt.py: create_weights; with one rank as with many."""
    config = {**QWEN3_MOE, "hidden_size": 2048, "moe_intermediate_size": width, "quantization_config": section}
    found = refusal(config, ranks)
    if not words:
        assert found is None
        return
    assert found is not None
    assert words in found.message
    alone = "serve the model in another format: no number of ranks helps"
    assert found.fix == (alone if ranks == 1 else f"use --tensor-parallel-size {ranks // 2}")


@pytest.mark.parametrize(
    ("section", "hidden", "words"),
    [
        (packed(), 2112, "requires hidden_size (2112) to be divisible by group_size (128)."),
        ({**AWQ, "group_size": 128}, 2064, "assert group_size >= 32"),
        (MXFP8, 2064, "MXFP8 MoE requires hidden_size divisible by 32, got 2064."),
    ],
)
def test_the_model_s_own_width_must_consist_of_groups_too(section: dict[str, Any], hidden: int, words: str) -> None:
    skipped = {"ignore": ["re:.*self_attn.*"], "modules_to_not_convert": ["self_attn"]}
    config = {**QWEN3_MOE, "hidden_size": hidden, "moe_intermediate_size": 768}
    for ranks in (1, 2):
        found = refusal({**config, "quantization_config": {**section, **skipped}}, ranks)
        assert found is not None
        assert words in found.message
        assert found.fix == "serve the model in another format: no number of ranks helps"


def test_zero_points_of_compressed_experts_fill_whole_words() -> None:
    weights = packed(symmetric=False)
    weights["config_groups"]["group_0"]["weights"]["group_size"] = 2
    config = {**QWEN3_MOE, "moe_intermediate_size": 776, "quantization_config": weights}
    found = refusal(config, 4)
    assert found is not None
    assert "(2 * intermediate_size_per_partition = 388) must be divisible by packed_factor (8)." in found.message
    assert refusal(config, 2) is None


def test_whole_experts_must_consist_of_groups_themselves() -> None:
    config = {**QWEN3_MOE, "moe_intermediate_size": 832, "quantization_config": packed()}
    found = refusal(config, 2, Split(whole_experts=True))
    assert found is not None
    assert "partition (832)" in found.message


def test_older_versions_do_not_check_the_groups_of_compressed_experts() -> None:
    config = {**QWEN3_MOE, "moe_intermediate_size": 768, "quantization_config": packed()}
    assert refusal(config, 4, Split(strict=False)) is None


@pytest.mark.parametrize(
    ("section", "width", "ranks", "words"),
    [
        (MXFP8, 29568, 8, "MXFP8 requires input size divisible by 32, got 3696"),
        (MXFP8, 28672, 8, ""),
        (MXFP8, 29584, 1, "MXFP8 requires input size divisible by 32, got 29584"),
        (NVFP4, 29568, 32, "Unsupported model when in features size is not multiple of 16 (924 of a rank)"),
        ({"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}, 29568, 8, "FP8_PB_WO requires in divisible by 128"),
        ({"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}, 28672, 8, ""),
    ],
)
def test_formats_of_modelopt_need_whole_groups_of_inputs(
    section: dict[str, Any], width: int, ranks: int, words: str
) -> None:
    """quantization/modelopt.py: KMxfp8Static, KNvfp4Static, the scheme of FP8_PB_WO."""
    config = {**LLAMA, "num_attention_heads": 64, "num_key_value_heads": 8, "hidden_size": 8192, "head_dim": 128}
    found = refusal({**config, "intermediate_size": width, "quantization_config": section}, ranks)
    assert (found.message if found else "").startswith(words)
    assert (found is None) is (not words)


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
