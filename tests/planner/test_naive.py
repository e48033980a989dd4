"""What simple formulas would have said: shown only where wrong, with the number that the formula gives."""

from collections.abc import Callable
from typing import Any

import pytest

from kvbudget.planner.build import make_plan
from kvbudget.planner.hardware.gpus import gpu_named
from kvbudget.planner.naive import Naive, naive_answers
from kvbudget.planner.request import PlanRequest
from kvbudget.units import GIB, Bytes

MakeRequest = Callable[..., PlanRequest]
POOL = Bytes(6 * GIB)
WINDOWS: dict[str, Any] = {
    "model_type": "gemma3_text", "num_hidden_layers": 12, "sliding_window_pattern": 6, "sliding_window": 1024,
    "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128, "hidden_size": 5376,
}  # fmt: skip
LATENT: dict[str, Any] = {
    "model_type": "deepseek_v3", "num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128, "v_head_dim": 128, "num_attention_heads": 128, "num_key_value_heads": 128,
    "hidden_size": 7168,
}  # fmt: skip


def answers_of(request: PlanRequest) -> dict[str, Naive]:
    return {answer.code: answer for answer in naive_answers(make_plan(request))}


def test_a_plain_model_on_a_given_pool_has_few_wrong_answers(request_of: MakeRequest) -> None:
    found = answers_of(request_of(kv_cache_memory=POOL, max_model_len=8192))
    assert set(found) == {"all_attention_heads", "null_block"}
    assert found["all_attention_heads"].said == 4 * GIB
    assert found["all_attention_heads"].ours == GIB
    assert found["all_attention_heads"].ratio == 4
    assert (found["null_block"].said, found["null_block"].ours) == (6, 5)


def test_a_right_formula_is_not_shown(request_of: MakeRequest) -> None:
    config = {"num_key_value_heads": 32}
    assert answers_of(request_of(config, kv_cache_memory=Bytes(7 * GIB), max_model_len=4096)) == {}


def test_a_card_is_read_wrong_in_four_ways(request_of: MakeRequest) -> None:
    request = request_of(gpu=gpu_named("h100"), weights=16 * GIB, max_model_len=8192)
    found, plan = answers_of(request), make_plan(request)
    assert {"size_on_the_box", "decimal_gigabytes", "former_utilization", "weights_alone"} <= set(found)
    assert found["decimal_gigabytes"].said < found["former_utilization"].said < plan.pool.tokens
    assert plan.pool.tokens < found["size_on_the_box"].said < found["weights_alone"].said
    assert (
        found["former_utilization"].said
        == make_plan(request._replace(flags=request.flags._replace(gpu_memory_utilization=0.9))).pool.tokens
    )
    assert "79.19 GiB" in found["size_on_the_box"].why


def test_a_utilization_that_was_said_is_not_doubted(request_of: MakeRequest) -> None:
    request = request_of(gpu=gpu_named("h100"), weights=16 * GIB, max_model_len=8192, gpu_memory_utilization=0.95)
    assert "former_utilization" not in answers_of(request)


def test_memory_that_was_given_has_no_box(request_of: MakeRequest) -> None:
    found = answers_of(request_of(gpu_memory=Bytes(24 * GIB), weights=8 * GIB, max_model_len=8192))
    assert not {"size_on_the_box", "decimal_gigabytes"} & set(found)


def test_windows_are_forgotten_in_both_directions(request_of: MakeRequest) -> None:
    request = request_of(WINDOWS, kv_cache_memory=POOL, max_model_len=32768, max_num_batched_tokens=2048)
    found, plan = answers_of(request), make_plan(request)
    per_token = 16 * 256 * 2
    ours = plan.pool.blocks_per_request * plan.stage.layout.bytes_per_block
    assert found["every_layer_full"].said == 12 * per_token * 32768 > ours
    assert found["window_alone"].said == (2 * 32768 + 10 * 1024) * per_token < ours
    assert found["hidden_over_heads"].said == 12 * 16 * 2 * 168 * 2 * 32768
    assert found["blocks_times_size"].said == plan.pool.num_blocks * 16 > plan.pool.tokens
    assert "10 sliding" in found["every_layer_full"].why


def test_mla_is_neither_heads_nor_divided(request_of: MakeRequest) -> None:
    request = request_of(LATENT, kv_cache_memory=POOL, max_model_len=8192, tensor_parallel_size=8)
    found = answers_of(request)
    latent = 61 * 576 * 2 * 8192
    assert found["latent_over_ranks"].said == latent // 8
    assert found["latent_as_heads"].said == 61 * 16 * (192 + 128) * 2 * 8192
    assert found["latent_over_ranks"].ours == latent
    assert "every_layer_full" not in found


def test_ranks_beyond_the_kv_heads_divide_nothing(request_of: MakeRequest) -> None:
    config = {"num_key_value_heads": 2}
    found = answers_of(request_of(config, kv_cache_memory=POOL, max_model_len=8192, tensor_parallel_size=8))
    assert found["heads_below_ranks"].ratio == pytest.approx(2 / 8)


def test_the_pool_is_not_the_only_limit(request_of: MakeRequest) -> None:
    found = answers_of(request_of(kv_cache_memory=POOL, max_model_len=8192, max_num_seqs=3))
    assert (found["pool_alone"].said, found["pool_alone"].ours) == (6, 3)


def test_nothing_is_divided_by_a_pool_that_is_not_there(request_of: MakeRequest) -> None:
    for answer in naive_answers(make_plan(request_of(weights=500 * GIB, gpu=gpu_named("h100")))):
        assert answer.ratio is None or answer.ratio >= 0
