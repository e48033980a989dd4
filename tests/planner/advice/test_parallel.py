"""Why twice the ranks are more than twice the pool, and where a token gets no cheaper."""

from collections.abc import Callable
from typing import Any

import pytest

from kvbudget.planner.advice.parallel import parallel_of
from kvbudget.planner.build import make_plan
from kvbudget.planner.request import PlanRequest
from kvbudget.units import GIB, Bytes

MakeRequest = Callable[..., PlanRequest]
GB = 10**9


def example(request_of: MakeRequest, **more: Any) -> PlanRequest:
    wide = {"num_hidden_layers": 40, "hidden_size": 5120, "num_attention_heads": 40, "num_key_value_heads": 40}
    return request_of(
        config=wide | more.pop("config", {}), weights=42 * GB, gpu_memory=Bytes(80 * GB), activation=Bytes(4 * GB),
        overhead=Bytes(0), gpu_memory_utilization=0.9, max_model_len=4096, **more,
    )  # fmt: skip


def test_two_cards_hold_four_times_what_one_holds(request_of: MakeRequest) -> None:
    found = parallel_of(make_plan(example(request_of)))
    assert found is not None
    assert found.before.pool_bytes == 26 * GB
    assert found.after.pool_bytes == pytest.approx(47 * GB, rel=0.001)  # norms are whole on both cards
    assert found.before.requests == 7
    assert found.after.requests in (27, 28)  # 47 GB hold 28 less a null block; norms that are not split may cost one
    assert found.pool_times == pytest.approx(94 / 26, rel=0.001)  # more than triples
    assert found.requests_times > 3.8
    assert found.limit == ""
    assert "times the pool bytes on twice the cards" in "\n".join(found.lines())


def test_replicated_heads_are_named(request_of: MakeRequest) -> None:
    plan = make_plan(example(request_of, config={"num_key_value_heads": 2}, tensor_parallel_size=2))
    found = parallel_of(plan)
    assert found is not None
    assert found.before.bytes_per_token == found.after.bytes_per_token
    assert "2 KV heads on 4 ranks" in found.limit


def test_a_given_pool_has_no_answer(request_of: MakeRequest) -> None:
    assert parallel_of(make_plan(request_of(kv_cache_memory=Bytes(GIB), max_model_len=1024))) is None


def test_a_latent_is_whole_on_every_rank(request_of: MakeRequest) -> None:
    latent = {
        "model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], "kv_lora_rank": 512,
        "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "q_lora_rank": 1536,
        "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 1024, "first_k_dense_replace": 1,
    }  # fmt: skip
    found = parallel_of(make_plan(example(request_of, config=latent)))
    assert found is not None
    assert found.before.bytes_per_token == found.after.bytes_per_token
    assert found.limit.startswith("MLA keeps one latent")
    assert found.requests_times < found.pool_times
