"""Long requests: what one of a million tokens costs, tiers, chunks and time-outs."""

from collections.abc import Callable
from math import ceil
from typing import Any

import pytest

from kvbudget.planner.advice.longcontext import long_context_json, long_context_lines, long_context_of
from kvbudget.planner.build import make_plan
from kvbudget.planner.hardware.gpus import Gpu
from kvbudget.planner.request import PlanRequest
from kvbudget.planner.workload.mix import Workload
from kvbudget.units import GIB, Bytes, Tokens

MakeRequest = Callable[..., PlanRequest]
MIX = Workload(((Tokens(1500), Tokens(100)),) * 95 + ((Tokens(100_000), Tokens(400)),) * 5, "trace")


def fast_card(bandwidth: int = 2 * 10**12, flops: int = 10**15) -> Gpu:
    """Round figures."""
    return Gpu("made up", Bytes(80 * GIB), "given", Bytes(80 * GIB), Bytes(80 * GIB), bandwidth, flops)


def plan_of(request_of: MakeRequest, **more: Any) -> Any:
    return make_plan(request_of(**({"gpu": fast_card(), "max_model_len": 131072} | more)))


def test_a_million_tokens_cost_128_times_8k(request_of: MakeRequest) -> None:
    found = long_context_of(plan_of(request_of)).request
    assert found.times_short == 128
    assert found.bytes == 128 * GIB
    assert (found.ceiling, found.engine_takes) == (0, False)
    assert found.pool_share > 1


def test_notes_say_what_refuses_it(request_of: MakeRequest) -> None:
    text = "\n".join(long_context_lines(long_context_of(plan_of(request_of))))
    assert "max_model_len is 131,072: such a request is refused" in text
    assert "not one such request fits the pool" in text


def test_time_outs_lie_beyond_the_slow_end_of_the_prefill(request_of: MakeRequest) -> None:
    found = long_context_of(plan_of(request_of), tokens=262144, output_tokens=1024)
    assert found.request.prefill_s is not None
    assert found.timeouts is not None
    assert found.timeouts.first_token_s == max(30, ceil(1.5 * found.request.prefill_s.high))
    assert found.timeouts.total_s > found.timeouts.first_token_s
    assert long_context_json(found)["source"] == "estimated"


def test_chunks_shrink_as_the_prompt_grows_and_hold_every_sequence(request_of: MakeRequest) -> None:
    short = long_context_of(plan_of(request_of), tokens=8192).chunk
    long = long_context_of(plan_of(request_of, max_num_seqs=16), tokens=1_000_000).chunk
    assert short is not None
    assert long is not None
    assert short.gap_s <= 0.25
    assert short.max_num_batched_tokens > long.max_num_batched_tokens >= 512
    wide = long_context_of(plan_of(request_of, max_num_seqs=2048), tokens=1_000_000).chunk
    assert wide is not None
    assert wide.max_num_batched_tokens >= 2048


def test_a_tier_for_short_requests_saves_instances(request_of: MakeRequest) -> None:
    tiers = long_context_of(plan_of(request_of), workload=MIX).tiers
    assert [tier.up_to for tier in tiers] == [2048]
    tier = tiers[0]
    assert tier.share == 0.95
    assert tier.block_share == pytest.approx(95 * 100 * 100 / (95 * 100 * 100 + 5 * 400 * 6275))
    assert tier.short_fits > tier.mixed_fits > tier.long_fits
    assert 0 < tier.instances_saved < 1


def test_an_unknown_card_still_has_bytes_and_no_times(request_of: MakeRequest) -> None:
    plan = make_plan(request_of(kv_cache_memory=Bytes(24 * GIB), max_model_len=131072))
    found = long_context_of(plan, tokens=131072)
    assert (found.request.prefill_s, found.chunk, found.timeouts) == (None, None, None)
    assert found.request.ceiling == 1
    assert "unknown: give --gpu NAME" in "\n".join(long_context_lines(found))
