"""The whole answer for a workload: which parts are there, and from what."""

from collections.abc import Callable
from typing import Any

import pytest

from kvbudget.errors import BadValueError
from kvbudget.planner.build import make_plan
from kvbudget.planner.request import Plan, PlanRequest
from kvbudget.planner.workload.assess import Speed, assess
from kvbudget.planner.workload.margin import parse_margin
from kvbudget.planner.workload.mix import Workload, workload_lines
from kvbudget.units import Tokens

MakeRequest = Callable[..., PlanRequest]
GIVEN = Speed(seconds_per_token=0.02, prefill_tokens_per_s=1000)


def plan_of(request_of: MakeRequest, **more: Any) -> Plan:
    return make_plan(request_of(num_gpu_blocks_override=1001, max_model_len=8192, **more))


def trace(*requests: tuple[int, int], **more: Any) -> Workload:
    return Workload(tuple((Tokens(p), Tokens(o)) for p, o in requests), "trace", **more)


def test_without_a_speed_there_are_ceilings_alone(request_of: MakeRequest) -> None:
    found = assess(plan_of(request_of), trace((1000, 600), (1000, 600), arrivals_s=(0.0, 2.0)))
    assert (found.fits_95, found.stability, found.sharing, found.splits) == (10, None, None, ())


def test_a_trace_with_times_and_hashes_and_a_speed_has_all_parts(request_of: MakeRequest) -> None:
    workload = trace((1024, 600), (1024, 600), arrivals_s=(0.0, 2.0), hash_ids=((0, 1), (0, 2)))
    found = assess(plan_of(request_of), workload, speed=GIVEN)
    assert found.sharing is not None
    assert found.stability is not None
    assert (found.stability.arrivals_per_s, found.stability.arrivals_source) == (0.5, "of the trace")
    assert found.stability.recorded is not None
    assert len(found.splits) == 5
    assert len(workload_lines(found)) == 5 + 2 + 3 + 5


def test_a_given_rate_comes_before_that_of_the_trace(request_of: MakeRequest) -> None:
    found = assess(
        plan_of(request_of), trace((10, 6), arrivals_s=(0.0,)), speed=GIVEN._replace(arrivals_per_s=7.0)
    ).stability
    assert found is not None
    assert (found.arrivals_per_s, found.arrivals_source) == (7.0, "given")


def test_requests_that_are_refused_do_not_arrive(request_of: MakeRequest) -> None:
    workload = trace((1000, 600), (9000, 1), (1000, 600), (1000, 600), arrivals_s=(0.0, 1.0, 2.0, 3.0))
    found = assess(plan_of(request_of), workload, speed=GIVEN).stability
    assert found is not None
    assert found.arrivals_per_s == pytest.approx(3 / 4)
    assert found.recorded is not None
    assert found.recorded.most_requests == 3


def test_the_margin_and_the_target_reach_every_part(request_of: MakeRequest) -> None:
    plan = plan_of(request_of, target_concurrency=9)
    found = assess(plan, trace((1000, 600)), parse_margin("200"), GIVEN._replace(arrivals_per_s=0.1))
    assert (found.margin_blocks, found.fits_95, found.overflow_at_target) == (200, 8, 1.0)
    assert found.stability is not None
    assert found.stability.usable_blocks == 800


@pytest.mark.parametrize("field", Speed._fields)
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_rates_that_are_none_are_refused(request_of: MakeRequest, field: str, value: float) -> None:
    with pytest.raises(BadValueError, match="out of range"):
        assess(plan_of(request_of), trace((10, 1)), speed=Speed(**{field: value}))
