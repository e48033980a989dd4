"""What-ifs beside the budget: tiers of memory, narrower formats, budgets of heads."""

from collections.abc import Callable
from typing import Any

import pytest

from kvbudget.errors import BadValueError
from kvbudget.planner.advice.offload import (
    USUAL_MEDIA,
    Medium,
    compressions_of,
    offload_json,
    offload_lines,
    offload_of,
    parse_media,
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


def test_a_medium_without_a_rate_is_refused(request_of: MakeRequest) -> None:
    with pytest.raises(BadValueError, match="cpu"):
        offload_of(plan_of(request_of), media=[Medium("cpu", GIB, 0)])


def test_tiers_are_given_by_name_size_and_rate() -> None:
    assert parse_media("usual") == USUAL_MEDIA
    assert parse_media("cpu=256GiB, s3=10TB@1GB") == (
        Medium("cpu", 256 * GIB, 25e9), Medium("s3", 10 * 10**12, 1e9)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cpu=64GiB,cpu=32GiB", "cpu is given twice"),
        ("cpu=0", "keeps nothing"),
        ("cpu=1GiB, s3=1TiB@0", "keeps nothing"),
        (",".join(f"t{number}=1GiB@1GB" for number in range(9)), "9 tiers"),
    ],
)
def test_a_tier_counts_once_and_keeps_something(text: str, said: str) -> None:
    with pytest.raises(BadValueError, match=said):
        parse_media(text)


@pytest.mark.parametrize("text", ["", "cpu", "s3=1TiB", "=1GiB", "cpu=", "cpu=1GiB@x", "a b=1GiB@1GB"])
def test_a_tier_that_is_not_understood_is_named(text: str) -> None:
    with pytest.raises(BadValueError, match="--offload"):
        parse_media(text)
