"""What holds only at the best estimate of the memory is said, with what holds at both ends."""

from collections.abc import Callable
from typing import Any

from kvbudget.engines.flags import AUTO_LENGTH
from kvbudget.planner.build import make_plan
from kvbudget.planner.hardware.gpus import gpu_named
from kvbudget.planner.request import Plan, PlanRequest
from kvbudget.units import GIB, Bytes

MakeRequest = Callable[..., PlanRequest]


def on_a_small_card(request_of: MakeRequest, **given: Any) -> Plan:
    return make_plan(request_of(gpu=gpu_named("rtx-3090"), **given))


def warned(plan: Plan) -> str:
    found = [f for f in plan.findings if f.code == "fits_only_at_best_estimate"]
    assert all(f.severity == "warning" for f in found)
    return "".join(f"{f.message}; {f.fix}" for f in found)


def test_a_length_between_the_two_ends_is_a_warning_with_one_that_holds_at_both(request_of: MakeRequest) -> None:
    largest = on_a_small_card(request_of, max_model_len=1024).pool.largest_max_model_len
    plan = on_a_small_card(request_of, max_model_len=largest)
    assert plan.fits
    assert plan.low_end is not None
    safe = plan.low_end.largest_max_model_len
    assert safe < largest
    assert f"--max-model-len {safe} holds at both ends" in warned(plan)
    assert not warned(on_a_small_card(request_of, max_model_len=safe))
    assert warned(on_a_small_card(request_of, max_model_len=safe + 16))


def test_the_share_of_the_card_that_is_named_holds_at_the_low_end(request_of: MakeRequest) -> None:
    largest = on_a_small_card(request_of, max_model_len=1024).pool.largest_max_model_len
    share = float(warned(on_a_small_card(request_of, max_model_len=largest)).partition("utilization ")[2].split()[0])
    assert not warned(on_a_small_card(request_of, max_model_len=largest, gpu_memory_utilization=share))
    assert warned(on_a_small_card(request_of, max_model_len=largest, gpu_memory_utilization=round(share - 0.01, 2)))


def test_auto_and_the_advice_to_shorten_say_both_lengths(request_of: MakeRequest) -> None:
    plan = on_a_small_card(request_of, max_model_len=AUTO_LENGTH)
    assert plan.low_end is not None
    safe, best = plan.low_end.largest_max_model_len, plan.pool.max_model_len
    assert f"auto is {best:,} tokens at the best estimate" in warned(plan)
    assert f"it is {safe:,}" in warned(plan)
    refused = on_a_small_card(request_of, max_model_len=131072)
    fix = next(f.fix for f in refused.findings if f.code == "max_model_len_too_large")
    assert f"--max-model-len {safe}," in fix
    assert f"best estimate: {best}" in fix
    assert not warned(refused)


def test_a_target_that_only_the_best_estimate_reaches_is_a_warning(request_of: MakeRequest) -> None:
    ceiling = on_a_small_card(request_of, max_model_len=1024).ceilings.ceiling
    assert "wanted requests" in warned(on_a_small_card(request_of, max_model_len=1024, target_concurrency=ceiling))
    assert not warned(on_a_small_card(request_of, max_model_len=1024, target_concurrency=ceiling // 2))


def test_a_pool_that_is_given_or_computed_has_no_low_end(request_of: MakeRequest) -> None:
    assert make_plan(request_of(kv_cache_memory=Bytes(GIB), max_model_len=8192)).low_end is None
    measured = {"gpu_memory": Bytes(24 * GIB), "weights": 16 * GIB, "activation": Bytes(0), "overhead": Bytes(0)}
    assert make_plan(request_of(max_model_len=8192, **measured)).low_end is None


def test_sequences_that_only_the_best_estimate_has_states_for_are_said_and_the_fix_holds_at_both_ends(
    request_of: MakeRequest,
) -> None:
    states: dict[str, Any] = {
        "model_type": "qwen3_5_text", "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 8,
        "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "mamba_ssm_dtype": "float32", "head_dim": 128,
    }  # fmt: skip
    refused = on_a_small_card(request_of, config=states, max_model_len=8192)
    fix = next(f.fix for f in refused.findings if f.code == "max_num_seqs_beyond_states")
    assert refused.low_end is not None
    safe, best = refused.low_end.num_blocks, refused.pool.num_blocks
    assert (
        fix
        == f"use --max-num-seqs {safe}, which also holds at the low end of the estimated memory (best estimate: {best})"
    )
    obeyed = on_a_small_card(request_of, config=states, max_model_len=8192, max_num_seqs=safe)
    assert (obeyed.fits, warned(obeyed)) == (True, "")
    bold = on_a_small_card(request_of, config=states, max_model_len=8192, max_num_seqs=best)
    assert "each of which needs one for its recurrent state" in warned(bold)
