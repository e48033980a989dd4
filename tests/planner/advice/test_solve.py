"""Solvers: each answer carries the wish, and the next value does not."""

from collections.abc import Callable
from typing import Any

import pytest

from kvbudget.engines.flags import EngineFlags
from kvbudget.model.read import model_from_config
from kvbudget.planner.advice.solve import (
    MOST_PLANS,
    Wish,
    _Search,
    capacity,
    carries,
    fewest_gpus,
    largest_concurrency,
    largest_max_model_len,
    largest_max_num_seqs,
    planned,
    smallest_gpu_memory_utilization,
    smallest_kv_cache_memory,
    starts,
)
from kvbudget.planner.build import make_plan
from kvbudget.planner.hardware.gpus import gpu_named
from kvbudget.planner.request import PlanRequest
from kvbudget.planner.workload.margin import parse_margin
from kvbudget.units import GIB, Bytes

MakeRequest = Callable[..., PlanRequest]
GB = 10**9
WIDE = {"num_hidden_layers": 40, "hidden_size": 5120, "num_attention_heads": 40, "num_key_value_heads": 40}


def card(request_of: MakeRequest, **more: Any) -> PlanRequest:
    """24 GiB: 16 weights, 2 overhead, 6 for the cache: 3,071 usable blocks of 16 tokens."""
    given: dict[str, Any] = {
        "weights": 16 * GIB, "gpu_memory": Bytes(24 * GIB), "overhead": Bytes(2 * GIB), "activation": Bytes(0),
        "gpu_memory_utilization": 1.0, "max_model_len": 8192,
    }  # fmt: skip
    return request_of(**(given | more))


def test_the_longest_context_is_the_last_that_carries_the_wish(request_of: MakeRequest) -> None:
    request = card(request_of)
    found = largest_max_model_len(request, Wish(concurrency=4))
    assert found.value == 3071 // 4 * 16
    assert found.plan is not None
    assert carries(found.plan, Wish(4))
    longer = make_plan(request._replace(flags=request.flags._replace(max_model_len=int(found.value) + 1)))
    assert not carries(longer, Wish(4))
    assert found.plans <= MOST_PLANS


def test_one_request_may_have_the_whole_pool(request_of: MakeRequest) -> None:
    assert largest_max_model_len(card(request_of)).value == 3071 * 16


def test_the_config_ends_the_context_where_the_pool_would_not(request_of: MakeRequest) -> None:
    found = largest_max_model_len(card(request_of, config={"max_position_embeddings": 4096}))
    assert (found.value, found.note) == (4096, "the model takes no longer one")


def test_max_num_seqs_is_what_the_pool_carries_at_that_length(request_of: MakeRequest) -> None:
    assert largest_max_num_seqs(card(request_of), Wish(length=1024)).value == 3071 // 64
    assert largest_max_num_seqs(card(request_of), Wish(length=1024, margin=parse_margin("10%"))).value == 2763 // 64


def test_the_concurrency_is_that_of_the_request_as_it_is(request_of: MakeRequest) -> None:
    assert largest_concurrency(card(request_of), Wish(length=1024)).value == 47
    assert largest_concurrency(card(request_of, max_num_seqs=9), Wish(length=1024)).value == 9


def test_the_smallest_share_of_the_card_is_found_to_the_hundredth(request_of: MakeRequest) -> None:
    request, wish = card(request_of), Wish(2, 8192)
    found = smallest_gpu_memory_utilization(request, wish)
    assert found.value == 0.84  # 18 + 2 GiB and one block of 24
    less = make_plan(request._replace(flags=request.flags._replace(gpu_memory_utilization=0.83)))
    assert not carries(less, wish)


def test_a_given_pool_has_no_share_of_the_card(request_of: MakeRequest) -> None:
    found = smallest_gpu_memory_utilization(request_of(kv_cache_memory=Bytes(GIB), max_model_len=1024))
    assert (found.value, found.plans) == (None, 0)


def test_the_smallest_pool_holds_the_requests_and_the_null_block_and_no_more(request_of: MakeRequest) -> None:
    block = 16 * 128 * 1024
    assert smallest_kv_cache_memory(card(request_of), Wish(6, 8192)).value == (6 * 512 + 1) * block
    with_margin = smallest_kv_cache_memory(card(request_of), Wish(6, 8192, parse_margin("100")))
    assert with_margin.value == (6 * 512 + 100 + 1) * block


def test_a_model_of_42_gb_on_80_gb_holds_7_and_two_cards_four_times_that(request_of: MakeRequest) -> None:
    request = request_of(
        config=WIDE, weights=42 * GB, gpu_memory=Bytes(80 * GB), activation=Bytes(4 * GB), overhead=Bytes(0),
        gpu_memory_utilization=0.9, max_model_len=4096,
    )  # fmt: skip
    assert largest_concurrency(request).value == 7
    assert fewest_gpus(request, Wish(7)).value == 1
    two = fewest_gpus(request, Wish(8))
    assert (two.value, two.note) == (2, "-tp 2 -pp 1")
    assert two.plan is not None
    assert capacity(two.plan, Wish()) in (27, 28)  # norms are whole on both cards


def test_what_no_number_of_cards_carries_has_no_answer(request_of: MakeRequest) -> None:
    found = fewest_gpus(card(request_of, max_num_seqs=4), Wish(10**6, 8192), most_gpus=4)
    assert (found.value, found.plan) == (None, None)


@pytest.mark.parametrize("hole", [range(100, 300), range(129, 140), range(2, 513)])
def test_a_search_looks_beyond_a_hole_in_what_carries(request_of: MakeRequest, hole: range) -> None:
    """Capacity that is not monotone: a search must end on a value that carries, and not in front of a hole below it."""
    good, bad = card(request_of), card(request_of, weights=30 * GIB)
    search = _Search(lambda value: bad if value in hole or value > 1000 else good, Wish())
    found = search.largest(1, 1024)
    assert found.value is not None
    assert int(found.value) not in hole
    assert found.value == 1000 or hole == range(2, 513)
    assert search.plans <= MOST_PLANS + 1


def test_a_wish_that_nothing_carries_ends_with_a_reason(request_of: MakeRequest) -> None:
    found = largest_max_model_len(card(request_of, weights=30 * GIB))
    assert found.value is None
    assert found.note


def test_a_default_of_more_sequences_than_states_is_lowered_and_a_given_one_is_not(request_of: MakeRequest) -> None:
    recurrent = {
        "model_type": "mamba2", "architectures": ["Mamba2ForCausalLM"], "num_heads": 128, "head_dim": 64,
        "state_size": 128, "n_groups": 8, "expand": 2, "conv_kernel": 4, "hidden_size": 4096,
        "intermediate_size": 8192,
    }  # fmt: skip
    request = card(request_of, config=recurrent, gpu_memory=Bytes(80 * GIB), weights=70 * GIB)
    plan = planned(request)
    assert starts(plan)
    assert plan.settings.max_num_seqs <= plan.pool.num_blocks < make_plan(request).settings.max_num_seqs
    given = request._replace(flags=request.flags._replace(max_num_seqs=plan.pool.num_blocks + 1))
    assert not starts(planned(given))


def test_fewest_cards_are_looked_for_over_engines_too() -> None:
    """Qwen3-32B on L40S: two engines of two cards hold 16 requests, one of four holds 48."""
    config: dict[str, Any] = {
        "model_type": "qwen3", "num_hidden_layers": 64, "hidden_size": 5120, "intermediate_size": 25600,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
        "max_position_embeddings": 40960,
    }  # fmt: skip
    flags = EngineFlags(max_model_len=8192, tensor_parallel_size=2, data_parallel_size=2)
    request = PlanRequest(
        model=model_from_config(config, "m"), engine="vllm@0.32", flags=flags, gpu=gpu_named("l40s"), gpus=4,
        target_concurrency=20,
    )  # fmt: skip
    found = fewest_gpus(request, Wish(20))
    assert (found.value, found.note) == (4, "-tp 4 -pp 1 -dp 1")
    kept = fewest_gpus(request, Wish(16))
    assert (kept.value, kept.note) == (4, "-tp 2 -pp 1 -dp 2")


@pytest.mark.parametrize("wished", [1, 9, 40])
@pytest.mark.parametrize("given", [1, 2, 3])
def test_the_cards_that_are_named_carry_the_wish(given: int, wished: int) -> None:
    config: dict[str, Any] = {
        "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
    }  # fmt: skip
    request = PlanRequest(
        model=model_from_config(config, "m"), engine="vllm@0.32", gpu=gpu_named("l4"),
        flags=EngineFlags(max_model_len=8192, data_parallel_size=given),
    )  # fmt: skip
    found = fewest_gpus(request, Wish(wished))
    assert found.plan is not None
    flags = found.plan.request.flags
    assert found.value == flags.tensor_parallel_size * flags.pipeline_parallel_size * flags.data_parallel_size
    assert make_plan(found.plan.request._replace(target_concurrency=wished)).fits


def test_llama_cpp_shares_layers_out_over_any_number_of_cards() -> None:
    config: dict[str, Any] = {
        "model_type": "llama", "num_hidden_layers": 80, "hidden_size": 8192, "intermediate_size": 28672,
        "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
    }  # fmt: skip
    request = PlanRequest(
        model=model_from_config(config, "m"), engine="llamacpp", gpu=gpu_named("rtx-4090"),
        flags=EngineFlags(max_model_len=8192),
    )  # fmt: skip
    found = fewest_gpus(request)
    assert found.value == 7
    stages = request.flags._replace(pipeline_parallel_size=7)
    assert make_plan(request._replace(flags=stages)).fits
    assert largest_max_num_seqs(request._replace(flags=stages)).value is not None
