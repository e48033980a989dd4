"""Cost per million tokens."""

from collections.abc import Callable
from typing import Any

import pytest

from kvbudget.errors import BadValueError
from kvbudget.planner.advice.cost import Cost, cost_for, cost_json, cost_lines, cost_of, span_text
from kvbudget.planner.build import make_plan
from kvbudget.planner.hardware.gpus import Gpu
from kvbudget.planner.request import PlanRequest
from kvbudget.planner.workload.assess import assess
from kvbudget.planner.workload.lengths import parse_lengths
from kvbudget.planner.workload.mix import workload_of_lengths
from kvbudget.units import GIB, Bytes

MakeRequest = Callable[..., PlanRequest]


def fast_card(bandwidth: int = 2 * 10**12, flops: int = 10**15) -> Gpu:
    """Round figures."""
    return Gpu("made up", Bytes(80 * GIB), "given", Bytes(80 * GIB), Bytes(80 * GIB), bandwidth, flops)


def cost(request_of: MakeRequest, price: float = 2.0, concurrency: int = 32, **more: Any) -> Cost | None:
    given = {name: more.pop(name) for name in ("output_tokens_per_s", "replicas") if name in more}
    plan = make_plan(request_of(**({"gpu": fast_card(), "max_model_len": 8192} | more)))
    return cost_of(plan, price, prompt_tokens=1000, output_tokens=250, concurrency=concurrency, **given)


def test_two_an_hour_at_1000_tokens_a_second_is_0_56_a_million(request_of: MakeRequest) -> None:
    found = cost(request_of, output_tokens_per_s=1000)
    assert found is not None
    full = found.rates[-1]
    assert (full.utilisation, found.source) == (1.0, "given")
    assert full.per_million_output_low == full.per_million_output_high == pytest.approx(2 / 3.6)
    assert full.per_million_total_low == pytest.approx(2 / 3.6 / 5)
    assert found.rates[0].per_million_output_low == pytest.approx(10 * full.per_million_output_low)


def test_the_price_is_of_one_gpu_and_all_of_them_are_paid(request_of: MakeRequest) -> None:
    found = cost(request_of, output_tokens_per_s=1000, tensor_parallel_size=2, replicas=3)
    assert found is not None
    assert (found.gpus, found.price_per_hour) == (6, 12.0)


def test_an_estimate_is_a_range_and_more_at_once_is_cheaper(request_of: MakeRequest) -> None:
    few, many = cost(request_of, concurrency=1), cost(request_of, concurrency=32)
    assert few is not None
    assert many is not None
    assert many.source == "estimated"
    assert many.rates[0].per_million_output_low < many.rates[0].per_million_output_high
    assert many.rates[0].per_million_output_high < few.rates[0].per_million_output_low
    document: Any = cost_json(many)
    assert len(document["rates"]) == len(cost_lines(many)) - 1 == 4


def test_what_is_not_known_has_no_cost(request_of: MakeRequest) -> None:
    assert cost(request_of, gpu=None, kv_cache_memory=Bytes(GIB), max_model_len=1024) is None
    assert cost(request_of, concurrency=0) is None


@pytest.mark.parametrize("price", [0.0, -1.0, float("nan"), float("inf")])
def test_a_price_that_is_none_is_refused(request_of: MakeRequest, price: float) -> None:
    with pytest.raises(BadValueError, match="--price-per-hour"):
        cost(request_of, price)


def test_lengths_that_nobody_gave_are_said_to_be_assumed(request_of: MakeRequest) -> None:
    plan = make_plan(request_of(gpu=fast_card(), max_model_len=8192))
    assumed = cost_of(plan, 2.0, prompt_tokens=4096, output_tokens=4096, concurrency=4, lengths="assumed")
    given = cost_of(plan, 2.0, prompt_tokens=4096, output_tokens=4096, concurrency=4)
    assert assumed is not None
    assert given is not None
    assert "is assumed" in "\n".join(cost_lines(assumed))
    assert "assumed" not in "\n".join(cost_lines(given))
    assert (cost_json(assumed)["lengths"], cost_json(given)["lengths"]) == ("assumed", "given")


def test_lengths_that_are_known_are_paid_for_and_else_halves_of_the_longest(request_of: MakeRequest) -> None:
    plan = make_plan(request_of(gpu=fast_card(), max_model_len=8192))
    assert workload_of_lengths(plan) is None
    assumed = cost_for(plan, 2.0, None)
    assert assumed is not None
    assert (assumed.lengths, assumed.prompt_tokens, assumed.output_tokens) == ("assumed", 4096, 4096)
    assert assumed.concurrency == plan.ceilings.ceiling
    lengths = {"prompt_lengths": parse_lengths("1000", "p"), "output_lengths": parse_lengths("250", "o")}
    known = make_plan(request_of(gpu=fast_card(), max_model_len=8192, **lengths))
    workload = workload_of_lengths(known)
    assert workload is not None
    assessed = assess(known, workload)
    given = cost_for(known, 2.0, assessed)
    assert given is not None
    assert (given.lengths, given.prompt_tokens, given.output_tokens) == ("given", 1000, 250)
    assert given.concurrency == assessed.fits_95
    assert given == cost_of(known, 2.0, prompt_tokens=1000, output_tokens=250, concurrency=assessed.fits_95)


def test_a_span_of_one_number_is_that_number() -> None:
    assert (span_text(1, 1, 2), span_text(1000, 2000, 0), span_text(1, 2, 1, "–")) == (
        "1.00",
        "1,000 to 2,000",
        "1.0–2.0",
    )
