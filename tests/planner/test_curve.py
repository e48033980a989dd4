"""Requests at once against their length: whole requests, falling, and equal to the plan's own ceilings."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbudget.engines.flags import EngineFlags
from kvbudget.model.read import model_from_config
from kvbudget.planner.build import make_plan
from kvbudget.planner.curve import concurrency_curve, requests_at
from kvbudget.planner.request import PlanRequest
from kvbudget.planner.workload.lengths import parse_lengths
from kvbudget.planner.workload.margin import parse_margin
from kvbudget.units import GIB, Bytes

MakeRequest = Callable[..., PlanRequest]


def test_the_curve_ends_in_the_plans_own_ceiling_and_holds_its_lengths(request_of: MakeRequest) -> None:
    lengths = parse_lengths("p50=700,p95=3000,p99=5000", "--prompt-lengths")
    plan = make_plan(
        request_of(kv_cache_memory=Bytes(6 * GIB), max_model_len=16384, prompt_lengths=lengths, output_lengths=lengths)
    )
    curve = {point.length: point.requests for point in concurrency_curve(plan)}
    assert list(curve) == sorted({1024, 1400, 2048, 4096, 6000, 8192, 10000, 16384})
    assert curve[plan.pool.max_model_len] == plan.ceilings.ceiling == 2
    assert [curve[length] for length in plan.ceilings.lengths] == [
        plan.ceilings.p50,
        plan.ceilings.p95,
        plan.ceilings.p99,
    ]


def test_max_num_seqs_ends_the_curve_of_short_requests(request_of: MakeRequest) -> None:
    plan = make_plan(request_of(kv_cache_memory=Bytes(6 * GIB), max_model_len=8192, max_num_seqs=20))
    assert (requests_at(plan, 1024).requests, requests_at(plan, 1024).limited_by) == (20, "max_num_seqs")
    assert (requests_at(plan, 8192).requests, requests_at(plan, 8192).limited_by) == (5, "pool")


def test_a_margin_and_the_pools_beside_it_hold_for_the_curve_as_for_the_plan(request_of: MakeRequest) -> None:
    request = request_of(kv_cache_memory=Bytes(6 * GIB), max_model_len=8192)
    plan = make_plan(request._replace(margin=parse_margin("50%")))
    assert requests_at(plan, 8192).requests == plan.ceilings.ceiling == 2
    beside = plan._replace(pool=plan.pool._replace(most_requests=1))
    assert requests_at(beside, 1024) == (1024, 1, "state")
    assert requests_at(beside, 8192).limited_by == "state"


@pytest.mark.parametrize("length", [1, 7, 100, 4095])
def test_a_short_context_has_a_curve_too(request_of: MakeRequest, length: int) -> None:
    curve = concurrency_curve(make_plan(request_of(kv_cache_memory=Bytes(GIB), max_model_len=length)))
    assert curve[-1].length == length
    assert all(point.length >= 1 for point in curve)


@given(gib=st.integers(1, 200), length=st.integers(16, 131072), doubling=st.integers(1, 16))
def test_longer_requests_are_never_more(gib: int, length: int, doubling: int) -> None:
    flags = EngineFlags(max_model_len=length)
    model = model_from_config({"model_type": "llama", "num_key_value_heads": 8}, "m")
    plan = make_plan(PlanRequest(model=model, engine="vllm", flags=flags, kv_cache_memory=Bytes(gib * GIB)))
    curve = concurrency_curve(plan, per_doubling=doubling)
    assert [point.length for point in curve] == sorted({point.length for point in curve})
    assert [point.requests for point in curve] == sorted((point.requests for point in curve), reverse=True)
    assert curve[-1].requests == plan.ceilings.ceiling
