"""Workloads in a pool: average beside tail, and what fits together with a stated probability."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from kvbudget.errors import BadValueError
from kvbudget.planner.build import make_plan
from kvbudget.planner.request import Plan, PlanRequest
from kvbudget.planner.workload.lengths import parse_lengths
from kvbudget.planner.workload.mix import (
    Workload,
    within,
    workload_from_percentiles,
    workload_json,
    workload_lines,
    workload_of,
)
from kvbudget.units import Tokens

MakeRequest = Callable[..., PlanRequest]


def workload(*requests: tuple[int, int], **more: Any) -> Workload:
    return Workload(tuple((Tokens(prompt), Tokens(output)) for prompt, output in requests), "trace", **more)


def pool_of(request_of: MakeRequest, blocks: int, **flags: Any) -> Plan:
    """A plan with so many usable blocks of 16 tokens."""
    return make_plan(request_of(num_gpu_blocks_override=blocks + 1, **({"max_model_len": 8192} | flags)))


def test_equal_requests_have_one_ceiling_everywhere(request_of: MakeRequest) -> None:
    found = workload_of(pool_of(request_of, 1000), workload((1000, 600)))
    assert {found.mean.ceiling, found.p50.ceiling, found.p99.ceiling, found.fits_95, found.fits_99} == {10}
    assert (found.fits_95_in_service, found.overflow_at_mean_ceiling, found.limited_by) == (10, 0.0, "pool")


def test_the_average_promises_more_than_fits_together(request_of: MakeRequest) -> None:
    """Nine short requests and a long one: the mean is 1,600 tokens, the chance that ten of them fit is not 95 %."""
    found = workload_of(pool_of(request_of, 1000), workload(*[(700, 100)] * 9, (8000, 192)))
    assert found.mean.ceiling == 1000 // 96 == 10
    assert found.fits_99 < found.fits_95 < found.mean.ceiling < found.p50.ceiling == 20
    chance = (
        sum(1 for draw in product([50] * 9 + [512], repeat=3) if sum(draw) <= 1000) / 10**3
    )  # three of them: two long ones are already too many
    assert chance == pytest.approx(0.972, abs=1e-9)
    assert found.fits_95 == 3


def test_requests_that_stay_longer_are_met_more_often(request_of: MakeRequest) -> None:
    found = workload_of(pool_of(request_of, 2000), workload(*[(100, 10)] * 9, (2000, 2000)))
    assert found.fits_95_in_service < found.fits_95


def test_the_chance_at_a_target_and_the_margin_are_counted(request_of: MakeRequest) -> None:
    plan = pool_of(request_of, 1000)
    found = workload_of(plan, workload((700, 100), (1500, 100)), target_concurrency=16)
    assert found.overflow_at_target is not None
    assert 0 < found.overflow_at_target < 1
    kept = workload_of(plan, workload((700, 100), (1500, 100)), margin_blocks=200, target_concurrency=16)
    assert kept.overflow_at_target is not None
    assert kept.overflow_at_target > found.overflow_at_target
    assert kept.fits_95 < found.fits_95
    assert any("200 of 1,000 usable blocks" in line for line in workload_lines(kept))


def test_max_num_seqs_ends_the_count_where_the_pool_does_not(request_of: MakeRequest) -> None:
    found = workload_of(pool_of(request_of, 1000, max_num_seqs=4), workload((700, 100), (900, 100)))
    assert (found.fits_95, found.fits_99, found.mean.ceiling, found.limited_by) == (4, 4, 4, "max_num_seqs")


def test_what_is_longer_than_the_context_is_cut_or_refused(request_of: MakeRequest) -> None:
    assert within([(10, 5), (98, 5), (100, 1)], 100) == [(10, 5), (98, 2)]
    found = workload_of(pool_of(request_of, 1000), workload((9000, 1), (8000, 1000), (100, 100)))
    assert found.beyond == pytest.approx(2 / 3)
    assert (found.p99.tokens, found.longest) == (8192, 9001)
    assert found.left_out == (1, 1)
    assert (found.mean_prompt, found.mean_output) == ((8000 + 100) / 2, (192 + 100) / 2)  # of what is served
    assert "3 requests from trace, 1 refused" in workload_lines(found)[0]
    with pytest.raises(BadValueError, match="all 1 prompts"):
        workload_of(pool_of(request_of, 1000), workload((9000, 1)))
    with pytest.raises(BadValueError, match="no requests"):
        workload_of(pool_of(request_of, 1000), workload())


def test_8001_tokens_waste_15_slots_at_block_16(request_of: MakeRequest) -> None:
    tail = workload_of(pool_of(request_of, 1000), workload((8000, 1))).tail
    assert tail == (15, 15 / 8016)


def test_percentiles_give_the_ceilings_of_the_plan(request_of: MakeRequest) -> None:
    prompt, output = (parse_lengths(text, "--x") for text in ("p50=800,p95=4000", "p50=200,p95=900"))
    plan = pool_of(request_of, 10_000, prompt_lengths=prompt, output_lengths=output)
    found = workload_of(plan, workload_from_percentiles(prompt, output))
    assert (found.p50.tokens, found.p95.tokens, found.p99.tokens) == plan.ceilings.lengths
    ceilings = plan.ceilings
    assert (found.p50.ceiling, found.p95.ceiling, found.p99.ceiling) == (ceilings.p50, ceilings.p95, ceilings.p99)
    assert found.derived == ("p99",)
    assert "p99 was not given" in "\n".join(workload_lines(found))


def test_sliding_layers_make_long_requests_cheaper(request_of: MakeRequest) -> None:
    """A model of several groups: what is counted is the layout's own footprint, not tokens / block size."""
    plan = make_plan(
        request_of(
            config={"model_type": "mistral", "sliding_window": 1024},
            num_gpu_blocks_override=1001,
            max_model_len=8192,
            max_num_batched_tokens=2048,
        )
    )
    found = workload_of(plan, workload((7000, 192)))
    assert found.mean.blocks == plan.stage.layout.blocks_for(7192) < 7192 // 16


def test_the_document_is_whole_and_says_what_was_not_asked(request_of: MakeRequest) -> None:
    document: Any = workload_json(workload_of(pool_of(request_of, 1000), workload((700, 100))))
    assert document["p95"] == {"tokens": 800, "blocks": 50, "ceiling": 20}
    assert (document["stability"], document["splits"]) == (None, [])
