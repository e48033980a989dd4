"""Findings beside the engine's own refusals, and that their advice does what it says."""

from collections.abc import Callable
from typing import Any

import pytest

from kvbudget.planner.build import make_plan
from kvbudget.planner.request import Finding, PlanRequest
from kvbudget.planner.workload.margin import parse_margin
from kvbudget.units import GIB, Bytes

MakeRequest = Callable[..., PlanRequest]


def finding(request: PlanRequest, code: str) -> Finding:
    return next(found for found in make_plan(request).findings if found.code == code)


def eight(request_of: MakeRequest, **given: Any) -> PlanRequest:
    """A pool of 8 GiB: 65,536 tokens of 128 KiB, so eight requests of 8,192 less the null block."""
    return request_of(kv_cache_memory=Bytes(8 * GIB + 2**21), max_model_len=8192, **given)


def test_what_ends_the_count_decides_what_raises_it(request_of: MakeRequest) -> None:
    by_pool = finding(eight(request_of, target_concurrency=9), "below_target_concurrency").fix
    assert "shorten --max-model-len" in by_pool
    assert "fp8" in by_pool
    by_seqs = finding(eight(request_of, target_concurrency=7, max_num_seqs=4), "below_target_concurrency").fix
    assert by_seqs.startswith("raise --max-num-seqs to 7")
    assert "shorten" not in by_seqs
    assert make_plan(eight(request_of, target_concurrency=7, max_num_seqs=7)).fits
    both = finding(eight(request_of, target_concurrency=30, max_num_seqs=4), "below_target_concurrency").fix
    assert "raise --max-num-seqs to 30" in both
    assert "only 8" in both
    assert (
        "fp8"
        not in finding(eight(request_of, target_concurrency=30, kv_cache_dtype="fp8"), "below_target_concurrency").fix
    )


def test_requests_that_are_mostly_state_are_not_told_to_be_shorter(request_of: MakeRequest) -> None:
    config: dict[str, Any] = {
        "model_type": "mamba2", "num_heads": 128, "head_dim": 64, "state_size": 128, "n_groups": 8,
        "num_hidden_layers": 64, "hidden_size": 4096, "expand": 2, "intermediate_size": 8192,
    }  # fmt: skip
    request = request_of(
        config=config, kv_cache_memory=Bytes(8 * GIB), max_model_len=8192, target_concurrency=10_000, max_num_seqs=64,
        max_num_batched_tokens=8192, enforce_eager=True,
    )  # fmt: skip
    plan = make_plan(request)
    fix = finding(request, "below_target_concurrency").fix
    assert plan.ceilings.limited_by == "state"
    assert "hardly helps" in fix


def test_each_engine_of_several_needs_its_share_of_the_target(request_of: MakeRequest) -> None:
    fix = finding(
        eight(request_of, target_concurrency=14, max_num_seqs=4, data_parallel_size=2), "below_target_concurrency"
    ).fix
    assert "raise --max-num-seqs to 7" in fix


@pytest.mark.parametrize("margin", ["99.9%", "0.999", "999999999", "2048"])
def test_a_margin_that_leaves_no_request_is_an_error_with_a_length_that_runs(
    margin: str, request_of: MakeRequest
) -> None:
    request = eight(request_of, margin=parse_margin(margin))
    plan = make_plan(request)
    if margin == "2048":  # exactly one half
        assert plan.fits
        return
    assert not plan.fits
    assert plan.ceilings.ceiling == 0
    fix = finding(request, "margin_leaves_nothing").fix
    digits = "".join(c for c in fix.partition(",")[0] if c.isdigit())
    if digits:
        shorter = request._replace(flags=request.flags._replace(max_model_len=int(digits)))
        assert make_plan(shorter).fits
        longer = request._replace(flags=request.flags._replace(max_model_len=int(digits) + 1))
        assert not make_plan(longer).fits


def test_a_margin_beside_a_request_that_does_not_fit_anyway_is_one_error(request_of: MakeRequest) -> None:
    plan = make_plan(request_of(kv_cache_memory=Bytes(GIB), margin=parse_margin("50%")))
    assert [found.code for found in plan.findings] == ["max_model_len_too_large"]


def test_a_length_beyond_the_class_default_is_a_warning_and_no_refusal(request_of: MakeRequest) -> None:
    config = {"max_position_embeddings": None}
    request = request_of(config=config, kv_cache_memory=Bytes(8 * GIB), max_model_len=8192)
    plan = make_plan(request)
    assert plan.fits
    assert plan.class_default_length == 2048
    assert "use --max-model-len 2048" in finding(request, "longer_than_class_default").fix
    for known in (request_of(config=config, kv_cache_memory=Bytes(8 * GIB), max_model_len=2048), eight(request_of)):
        assert "longer_than_class_default" not in [found.code for found in make_plan(known).findings]
    assert make_plan(eight(request_of)).class_default_length is None


def test_where_windows_and_what_is_in_flight_fill_the_blocks_a_shorter_length_is_no_advice(
    request_of: MakeRequest,
) -> None:
    config: dict[str, Any] = {
        "model_type": "gemma3_text", "num_hidden_layers": 24, "sliding_window": 1024, "sliding_window_pattern": 24,
        "max_position_embeddings": 131072, "head_dim": 128,
    }  # fmt: skip
    request = request_of(
        config=config, kv_cache_memory=Bytes(2 * GIB), max_model_len=8192, max_num_batched_tokens=2048,
        target_concurrency=500, async_scheduling=False,
    )  # fmt: skip
    fix = finding(request, "below_target_concurrency").fix
    assert "lower --max-num-batched-tokens" in fix
    smaller = request._replace(flags=request.flags._replace(max_num_batched_tokens=512))
    assert make_plan(smaller).ceilings.ceiling > make_plan(request).ceilings.ceiling


def test_graphs_that_an_old_version_captures_late_need_room_beside_its_share(request_of: MakeRequest) -> None:
    def at(engine: str, share: float, **more: Any) -> PlanRequest:
        given = {"gpu_memory": Bytes(22 * GIB), "max_model_len": 4096, "gpu_memory_utilization": share}
        return request_of(**given, **more)._replace(engine=engine)

    found = finding(at("vllm@0.15", 0.99), "little_headroom")
    assert found.severity == "warning"
    assert "0.22 GiB are left" in found.message
    share = float(found.fix.split()[2].rstrip(","))
    assert 0.9 < share < 0.99
    for fixed in (at("vllm@0.15", share), at("vllm@0.15", 0.99, enforce_eager=True), at("vllm@0.32", 0.99)):
        assert "little_headroom" not in [one.code for one in make_plan(fixed).findings]


def test_windows_without_a_card_say_that_the_batch_is_assumed(request_of: MakeRequest) -> None:
    windows = {"model_type": "mistral", "sliding_window": 1024}
    assert "2,048" in finding(eight(request_of, config=windows), "batch_default_assumed").message
    for given in ({"config": windows, "max_num_batched_tokens": 4096}, {}):
        assert "batch_default_assumed" not in [one.code for one in make_plan(eight(request_of, **given)).findings]
