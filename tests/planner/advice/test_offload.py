"""What-ifs beside the budget: tiers of memory, narrower formats, budgets of heads."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbudget.errors import BadValueError
from kvbudget.planner.advice.offload import (
    Medium,
    compressions_of,
    head_budgets,
    offload_json,
    offload_lines,
    offload_of,
    quantised_element_bytes,
)
from kvbudget.planner.build import make_plan
from kvbudget.planner.request import PlanRequest
from kvbudget.units import GIB, Bytes

MakeRequest = Callable[..., PlanRequest]


def plan_of(request_of: MakeRequest, **more: Any) -> Any:
    return make_plan(request_of(**({"kv_cache_memory": Bytes(6 * GIB), "max_model_len": 8192} | more)))


def test_a_tier_holds_whole_requests_and_moves_them_at_its_rate(request_of: MakeRequest) -> None:
    gpu, cpu = offload_of(plan_of(request_of), media=[Medium("cpu", 10 * GIB, GIB)]).tiers
    assert (gpu.requests, gpu.move_s) == (5, 0.0)
    assert (cpu.requests, cpu.move_s, cpu.worth_it) == (10, 1.0, None)


def test_what_ifs_are_marked_as_outside_of_the_budget(request_of: MakeRequest) -> None:
    plan = plan_of(request_of)
    before = plan.ceilings
    found = offload_of(plan)
    assert offload_json(found)["in_admission_budget"] is False
    assert offload_lines(found)[0] == "what if, not in the ceilings above:"
    assert plan.ceilings == before


def test_narrow_formats_pay_for_their_scales() -> None:
    assert quantised_element_bytes(4, 64) == 0.5 + 4 / 64
    assert quantised_element_bytes(2, 32, zero_bits=0) == 0.25 + 2 / 32


def test_each_compression_multiplies_the_tokens_by_what_it_saves(request_of: MakeRequest) -> None:
    found = {one.name: one for one in compressions_of(plan_of(request_of))}
    assert found["as planned (16 bits)"].tokens == 49152
    assert found["2 layers share one cache"].tokens == 2 * 49152
    assert found["int4, a 16-bit scale and zero for 64 values"].times == pytest.approx(2 / 0.5625)
    assert found["eviction keeps 25% of the tokens"].bytes_per_token == 131072 / 4
    assert not any(name.startswith("int8") for name in (c.name for c in compressions_of(
        plan_of(request_of, kv_cache_dtype="fp8"))))  # fmt: skip


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40), st.integers(0, 10**6), st.floats(0, 1))
def test_head_budgets_spend_exactly_the_total(weights: list[float], tokens: int, least: float) -> None:
    budgets = head_budgets(weights, tokens, least)
    assert sum(budgets) == tokens
    assert min(budgets) >= int(tokens * least / len(weights)) - 1


def test_a_head_that_needs_more_gets_more_and_none_goes_empty() -> None:
    assert head_budgets([3, 1, 0, 0], 1000, 0.2) == (650, 250, 50, 50)
    assert head_budgets([0, 0], 11) == (6, 5)


@pytest.mark.parametrize(
    ("weights", "tokens", "least"), [([], 1, 0.2), ([-1.0], 1, 0.2), ([1.0], -1, 0), ([1.0], 1, 2)]
)
def test_budgets_of_nothing_are_refused(weights: list[float], tokens: int, least: float) -> None:
    with pytest.raises(BadValueError):
        head_budgets(weights, tokens, least)


def test_a_medium_without_a_rate_is_refused(request_of: MakeRequest) -> None:
    with pytest.raises(BadValueError, match="cpu"):
        offload_of(plan_of(request_of), media=[Medium("cpu", GIB, 0)])
