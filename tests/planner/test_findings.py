"""Findings beside the engine's own refusals, and that their advice does what it says."""

from collections.abc import Callable
from typing import Any

import pytest

from kvbudget.planner.build import make_plan
from kvbudget.planner.hardware.gpus import gpu_named, gpus_named
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


@pytest.mark.parametrize("split", [{"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}])
def test_slices_of_a_card_are_never_one_engine(request_of: MakeRequest, split: dict[str, int]) -> None:
    half = gpus_named("h100:3g.40gb")[0]
    request = request_of(gpu=half, gpus=2, max_model_len=8192, **split)
    found = finding(request, "mig_slices_joined")
    assert found.severity == "error"
    assert "H100 80GB MIG 3g.40gb" in found.message
    assert "replicas" in found.fix
    for good in (
        request_of(gpu=half, gpus=2, max_model_len=8192),
        request_of(gpu=half, gpus=2, max_model_len=8192, data_parallel_size=2),
        request_of(gpu=gpu_named("h100"), gpus=2, max_model_len=8192, **split),
    ):
        assert make_plan(good).fits


def test_idle_cards_are_told_what_would_use_them(request_of: MakeRequest) -> None:
    def fix(**given: Any) -> str:
        return finding(request_of(**given), "gpus_idle").fix

    h100, small = gpu_named("h100"), gpu_named("rtx-3090")
    fits = fix(gpu=h100, gpus=8, max_model_len=8192)
    assert "--tensor-parallel-size 8" in fits
    assert "--data-parallel-size 8" in fits
    large = fix(gpu=h100, gpus=2, weights=131 * GIB, max_model_len=8192)
    assert "--tensor-parallel-size 2" in large
    assert "--data-parallel-size" not in large
    short = fix(gpu=small, gpus=2)  # 131,072 tokens do not fit one of them
    assert "--tensor-parallel-size 2" in short
    assert "--data-parallel-size" not in short
    assert "--data-parallel-size 2" in fix(gpu=h100, gpus=5, tensor_parallel_size=2, max_model_len=8192)
    assert "as replicas" in fix(gpu=gpus_named("h100:3g.40gb")[0], gpus=2, max_model_len=8192)
    assert "servers" in finding(
        request_of(gpu=h100, gpus=2, max_model_len=8192)._replace(engine="tgi"), "gpus_idle"
    ).fix  # fmt: skip
    assert fix(gpu=h100, gpus=2, max_model_len=8192) != fix(gpu=small, gpus=2)


@pytest.mark.parametrize("engine", ["sglang", "trtllm"])
def test_an_engine_that_starts_with_less_than_the_length_says_that_it_refuses_longer_requests(
    engine: str, request_of: MakeRequest
) -> None:
    def at(length: int) -> PlanRequest:
        return request_of(gpu=gpu_named("rtx-4090"), weights=8 * GIB, max_model_len=length)._replace(engine=engine)

    found = finding(at(131072), "pool_below_max_model_len")
    held = make_plan(at(131072)).pool.max_model_len
    assert found.severity == "warning"
    assert "131,072" in found.message
    assert f"--max-model-len {held} " in found.fix
    shorter = make_plan(at(held))
    assert shorter.fits
    assert "pool_below_max_model_len" not in [one.code for one in shorter.findings]
    nothing = make_plan(request_of(gpu=gpu_named("t4"), max_model_len=131072)._replace(engine=engine))
    assert not nothing.fits
    assert "pool_below_max_model_len" not in [one.code for one in nothing.findings]
    assert nothing.pool.max_model_len == 131072


@pytest.mark.parametrize("engine", ["vllm@0.32", "tgi", "llamacpp"])
def test_engines_that_refuse_or_fit_the_length_need_no_such_warning(engine: str, request_of: MakeRequest) -> None:
    request = request_of(gpu=gpu_named("l40s"))._replace(engine=engine)
    assert "pool_below_max_model_len" not in [one.code for one in make_plan(request).findings]


@pytest.mark.parametrize(("target", "given"), [(4, {}), (4, {"max_num_seqs": 2}), (6, {"max_num_seqs": 3})])
def test_llama_cpp_gets_more_slots_and_the_context_of_them(
    target: int, given: dict[str, int], request_of: MakeRequest
) -> None:
    request = request_of(
        gpu=gpu_named("h100"), weights=5 * GIB, max_model_len=8192, target_concurrency=target, **given
    )._replace(engine="llamacpp")
    fix = finding(request, "below_target_concurrency").fix
    assert "fp8" not in fix
    assert "shorten" not in fix
    words = fix.split()
    seqs, length = int(words[2]), int(words[4])
    more = request._replace(flags=request.flags._replace(max_num_seqs=seqs, max_model_len=length))
    plan = make_plan(more)
    assert plan.fits, fix
    assert plan.pool.max_model_len >= make_plan(request).pool.max_model_len
    tight = request._replace(gpu=gpu_named("rtx-4070"))
    assert "q8_0" in finding(tight._replace(target_concurrency=64), "below_target_concurrency").fix


def test_a_pool_that_a_flag_caps_is_not_told_to_make_room(request_of: MakeRequest) -> None:
    request = request_of(gpu=gpu_named("h100"), max_model_len=8192, max_pool_tokens=20_000, target_concurrency=3)
    request = request._replace(engine="sglang")
    fix = finding(request, "below_target_concurrency").fix
    assert "--max-total-tokens 20000" in fix
    assert make_plan(request._replace(flags=request.flags._replace(max_pool_tokens=None))).fits
    cut = request._replace(flags=request.flags._replace(max_model_len=32768), target_concurrency=None)
    assert "--max-total-tokens 20000" in finding(cut, "pool_below_max_model_len").fix
