"""Advice: each step's numbers are those of a plan with that change."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvbudget.planner.advice.steps import Advice, advice_json, advice_of
from kvbudget.planner.advice.told import advice_lines
from kvbudget.planner.build import make_plan
from kvbudget.planner.hardware.gpus import gpu_named
from kvbudget.planner.request import Amount, PlanRequest
from kvbudget.planner.workload.margin import NO_MARGIN, parse_margin
from kvbudget.planner.workload.mix import Workload
from kvbudget.planner.workload.sharing import Sharing
from kvbudget.units import GIB, Bytes, Tokens

MakeRequest = Callable[..., PlanRequest]
GB = 10**9
WIDE = {"num_hidden_layers": 40, "hidden_size": 5120, "num_attention_heads": 40, "num_key_value_heads": 40}
MIX = Workload(((Tokens(900), Tokens(100)),) * 99 + ((Tokens(7000), Tokens(192)),), "trace")


def wide(request_of: MakeRequest, **more: Any) -> PlanRequest:
    """80 GB x 0.9 - 42 - 4 = 26 GB."""
    given: dict[str, Any] = {
        "config": WIDE, "weights": 42 * GB, "gpu_memory": Bytes(80 * GB), "activation": Bytes(4 * GB),
        "overhead": Bytes(0), "gpu_memory_utilization": 0.9, "max_model_len": 8192, "config_": None,
    }  # fmt: skip
    del given["config_"]
    given["config"] = WIDE | {"max_position_embeddings": 32768}
    return request_of(**(given | more))


def step(advice: Advice, name: str, spending: bool = True) -> Any:
    return next(one for one in (advice.spending if spending else advice.retreat) if one.name == name)


def test_steps_come_in_the_order_of_their_cost(request_of: MakeRequest) -> None:
    advice = advice_of(make_plan(wide(request_of)), MIX)
    assert [one.name for one in advice.retreat] == [
        "lower concurrency", "shorten the context", "8-bit KV cache", "share prefixes", "refuse",
    ]  # fmt: skip
    assert [one.name for one in advice.spending] == [
        "limit what is let in", "shorten the context", "quantise the weights", "8-bit KV cache",
        "twice the cards for one engine", "one more replica",
    ]  # fmt: skip
    assert [one.cost for one in advice.spending] == ["free", "free", "quality", "quality", "money", "money"]


def test_an_8_bit_cache_doubles_the_tokens_and_is_planned_not_said(request_of: MakeRequest) -> None:
    request = wide(request_of)
    advice = advice_of(make_plan(request))
    planned = make_plan(request._replace(flags=request.flags._replace(kv_cache_dtype="fp8")))
    assert step(advice, "8-bit KV cache").alone.pool_tokens == planned.pool.tokens
    assert step(advice, "8-bit KV cache").alone.pool_tokens == pytest.approx(2 * advice.now.pool_tokens, rel=0.001)


def test_the_context_is_cut_to_what_99_percent_of_the_requests_need(request_of: MakeRequest) -> None:
    advice = advice_of(make_plan(wide(request_of)), MIX)
    assert step(advice, "shorten the context").flag == "--max-model-len 1024"
    assert step(advice, "shorten the context").alone.ceiling == 8 * advice.now.ceiling + 6
    unknown = advice_of(make_plan(wide(request_of)))
    assert step(unknown, "shorten the context").flag == "--max-model-len 4096"


def test_quantised_weights_leave_their_room_to_the_cache(request_of: MakeRequest) -> None:
    advice = advice_of(make_plan(wide(request_of)))
    kept = 2 * 128256 * 5120 * 2  # embedding and head
    saved = (42 * GB - kept) // 2
    tokens = (26 * GB + saved) // (16 * 819200) * 16
    assert step(advice, "quantise the weights").alone.pool_tokens == pytest.approx(tokens, abs=32)


def test_steps_add_up_and_the_first_that_is_enough_is_marked(request_of: MakeRequest) -> None:
    advice = advice_of(make_plan(wide(request_of, target_concurrency=16)))
    assert advice.enough_now is False
    assert [one.enough for one in advice.spending] == [False, False, False, True, True, True]
    together = [one.together.pool_tokens for one in advice.spending if one.together is not None]
    assert len(together) == 6
    assert together == sorted(together)
    replicas = step(advice, "one more replica").together
    assert replicas.ceiling == 2 * step(advice, "twice the cards for one engine").together.ceiling
    assert replicas.gpus == 4


def test_what_cannot_be_done_says_why(request_of: MakeRequest) -> None:
    plan = make_plan(request_of(kv_cache_memory=Bytes(6 * GIB), max_model_len=1024, kv_cache_dtype="fp8"))
    advice = advice_of(plan)
    for name, reason in (
        ("quantise the weights", "the pool is given"),
        ("8-bit KV cache", "8 bits already"),
        ("twice the cards for one engine", "the pool is given"),
    ):
        assert step(advice, name).together is None
        assert reason in step(advice, name).note
    assert advice.parallel is None


def test_ranks_that_the_engine_refuses_are_no_advice(request_of: MakeRequest) -> None:
    plan = make_plan(wide(request_of, config=WIDE | {"num_attention_heads": 5, "num_key_value_heads": 5}))
    assert step(advice_of(plan), "twice the cards for one engine").together is None


def test_where_max_num_seqs_ends_the_count_raising_it_comes_first(request_of: MakeRequest) -> None:
    advice = advice_of(make_plan(wide(request_of, max_num_seqs=2)))
    assert advice.spending[0].flag == "--max-num-seqs 4"
    assert advice.spending[0].alone is not None
    assert advice.spending[0].alone.ceiling > advice.now.ceiling


def test_sharing_counts_only_where_a_trace_shows_it(request_of: MakeRequest) -> None:
    plan = make_plan(wide(request_of))
    assert step(advice_of(plan, MIX), "share prefixes", spending=False).together is None
    shared = Sharing(8, 512, 0.5, 0.6, 30.0, 1.5)
    known = step(advice_of(plan, MIX, sharing=shared), "share prefixes", spending=False)
    now = advice_of(plan, MIX).now.fits_95
    assert now is not None
    assert known.alone.fits_95 == int(now * 1.5)
    assert known.alone.pool_tokens == advice_of(plan).now.pool_tokens  # it holds more, it is no larger


def test_the_margin_is_kept_back_in_every_number(request_of: MakeRequest) -> None:
    plan = make_plan(wide(request_of))
    assert advice_of(plan, MIX, parse_margin("50%")).now.ceiling == plan.pool.usable_blocks // 2 // 512


def test_the_text_names_every_step_and_the_document_is_plain(request_of: MakeRequest) -> None:
    advice = advice_of(make_plan(wide(request_of)), MIX)
    text = "\n".join(advice_lines(advice))
    assert all(one.name in text for one in (*advice.retreat, *advice.spending))
    document: Any = advice_json(advice)
    assert document["now"]["gpus"] == 1


def _again(request: PlanRequest, one: Any) -> PlanRequest:
    """As if all that differs by that step stood on the command line, behind what was there."""
    if one.weights_bytes is not None:
        request = request._replace(weights=Amount(Bytes(one.weights_bytes), "given", "--weights"))
    return request._replace(flags=request.flags._replace(**one.flags))


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    target=st.integers(1, 200),
    length=st.sampled_from((2048, 8192, 16384, 32768)),
    seqs=st.sampled_from((None, 2, 12, 64)),
    engines=st.sampled_from((1, 4)),
    margin=st.sampled_from((None, "20%")),
    hybrid=st.booleans(),
)
def test_the_flags_of_a_step_together_give_the_numbers_that_it_shows(
    request_of: MakeRequest, target: int, length: int, seqs: int | None, engines: int, margin: str | None, hybrid: bool
) -> None:
    kept = parse_margin(margin) if margin else None
    layers: dict[str, Any] = {"layer_types": ["linear_attention", "full_attention"] * 20} if hybrid else {}
    config = WIDE | {"max_position_embeddings": 32768} | ({"model_type": "qwen3_5_text"} | layers if hybrid else {})
    request = wide(
        request_of, config=config, target_concurrency=target, max_model_len=length, max_num_seqs=seqs,
        data_parallel_size=engines, margin=kept,
    )  # fmt: skip
    advice = advice_of(make_plan(request), None, kept or NO_MARGIN)
    for one in (*advice.retreat, *advice.spending):
        if one.together is None or not one.together.starts or one.name == "one more replica":
            continue
        found = make_plan(_again(request, one)._replace(gpus=None))
        assert found.ceilings.ceiling * found.engines == one.together.ceiling, one
        assert found.pool.tokens * found.engines == one.together.pool_tokens, one
        assert one.enough is found.fits, one


def test_once_the_limit_is_lowered_every_later_step_says_where_it_is_by_then(request_of: MakeRequest) -> None:
    request = wide(request_of, max_model_len=16384, target_concurrency=3)
    advice = advice_of(make_plan(request))
    lowered, shorter, eight_bit = advice.retreat[:3]
    assert (lowered.flag, lowered.enough) == ("--max-num-seqs 1", False)
    for one in (shorter, eight_bit):
        assert one.together is not None
        assert f"--max-num-seqs {one.together.ceiling} " in one.joined  # not the 1 of the first step
    assert f"all of it: {shorter.joined}" in "\n".join(advice_lines(advice))
    assert shorter.enough is True


def test_steps_behind_the_first_that_is_enough_are_named_and_not_told_in_detail(request_of: MakeRequest) -> None:
    lines = advice_lines(advice_of(make_plan(wide(request_of, target_concurrency=16))))
    spending = lines[lines.index("to spend, in this order, each with those before it:") + 1 :]
    assert [line.partition(" (")[0] for line in spending[:4]] == [
        "1. limit what is let in", "2. shorten the context", "3. quantise the weights", "4. 8-bit KV cache",
    ]  # fmt: skip
    assert " ENOUGH" in spending[3]
    assert spending[4] == "if more is wanted: twice the cards for one engine, one more replica (their numbers: --json)"
    assert len(spending) == 5
    enough = advice_lines(advice_of(make_plan(wide(request_of, target_concurrency=1))))
    assert len(enough) == 2
    assert enough[0].endswith(" ENOUGH")


def test_requests_are_told_and_the_tokens_of_the_pool_are_not(request_of: MakeRequest) -> None:
    plan = make_plan(wide(request_of))
    lines = advice_lines(advice_of(plan))
    assert lines[0] == f"now: {plan.ceilings.ceiling} requests of 8,192 tokens at once"
    assert f"{plan.pool.tokens:,} tokens" not in "\n".join(lines)
    assert all("changes nothing here" not in line for line in lines if "8-bit KV cache" in line)


def test_a_step_that_changes_a_plan_together_does_not_say_that_it_changes_nothing(request_of: MakeRequest) -> None:
    """Alone the second half of nothing is nothing: what is told beside a number is of that number."""
    full = make_plan(wide(request_of, weights=75 * GB, gpu_memory=Bytes(92 * GB), max_model_len=32768))
    for one in (*advice_of(full).retreat, *advice_of(full).spending):
        if one.together is not None and "changes nothing" in one.note:
            assert one.together == advice_of(full).now


def test_where_nothing_starts_only_what_makes_it_start_is_told(request_of: MakeRequest) -> None:
    plan = make_plan(wide(request_of, weights=60 * GB, max_model_len=32768))  # 8 GB: 9,760 tokens
    assert not plan.fits
    lines = advice_lines(advice_of(plan))
    text = "\n".join(lines)
    assert "does not start" in lines[0]
    assert "limit what is let in" not in text
    assert "gate at" not in text
    told = [line for line in lines if line[:1].isdigit()]
    assert [line.partition(" (")[0][3:] for line in told] == ["shorten the context"] * 2
    assert all(" STARTS" in line and " 0 requests" not in line for line in told)
    assert "not enough alone to start: lower concurrency" in text


def test_the_length_that_is_advised_starts_at_the_low_end_too(request_of: MakeRequest) -> None:
    plan = make_plan(request_of(gpu=gpu_named("rtx-3090")))
    shorter = step(advice_of(plan), "shorten the context")
    assert plan.low_end is not None
    assert shorter.flags["max_model_len"] == plan.low_end.largest_max_model_len // 1024 * 1024
    assert shorter.together.starts


def test_cards_that_lie_idle_are_the_first_step_and_cost_nothing(request_of: MakeRequest) -> None:
    advice = advice_of(make_plan(request_of(gpu=gpu_named("rtx-3090"), gpus=2)))
    for first in (advice.retreat[0], advice.spending[0]):
        assert (first.name, first.cost, first.flag) == ("use all cards", "free", "--tensor-parallel-size 2")
        assert first.together is not None
        assert (first.together.starts, first.together.max_model_len, first.together.gpus) == (True, 131072, 2)
    assert len([line for line in advice_lines(advice) if line[:1].isdigit()]) == 2  # the rest is named


def test_a_latent_cache_is_split_before_anything_is_given_up(request_of: MakeRequest) -> None:
    config = {
        "model_type": "deepseek_v3", "num_hidden_layers": 24, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128, "v_head_dim": 128, "q_lora_rank": 1536, "n_routed_experts": 8,
        "num_experts_per_tok": 2, "moe_intermediate_size": 2048, "n_shared_experts": 1, "first_k_dense_replace": 3,
        "num_attention_heads": 32, "num_key_value_heads": 32,
    }  # fmt: skip
    plan = make_plan(
        request_of(config=config, weights=100 * GB, gpu=gpu_named("h100"), gpus=4, tensor_parallel_size=4,
                   max_model_len=65536, target_concurrency=40)
    )  # fmt: skip
    advice = advice_of(plan)
    first = advice.spending[0]
    assert (first.name, first.cost) == ("split the same cards otherwise", "free")
    assert first.together is not None
    assert first.together.gpus == 4
    assert first.together.ceiling > advice.now.ceiling
    assert advice.retreat[0].name == first.name
    found = make_plan(_again(plan.request, first))
    assert found.ceilings.ceiling * found.engines == first.together.ceiling


def test_cards_that_are_too_few_for_the_length_start_with_a_shorter_one(request_of: MakeRequest) -> None:
    plan = make_plan(request_of(weights=141 * GB, gpu=gpu_named("h100"), gpus=2, config=WIDE | {
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131072,
        "num_hidden_layers": 80,
    }))  # fmt: skip
    assert plan.pool.largest_max_model_len == 0
    first = advice_of(plan).spending[0]
    assert (first.name, first.cost) == ("use all cards", "free")
    assert first.together is not None
    assert first.together.starts
    assert 1024 <= first.together.max_model_len < 131072
    assert "--max-model-len" in first.joined
    assert make_plan(_again(plan.request, first)).ceilings.ceiling == first.together.ceiling >= 1


def test_what_the_card_cannot_do_does_not_spoil_the_steps_behind_it(request_of: MakeRequest) -> None:
    """fp8 on a Turing card is refused whatever the memory; half the weights help."""
    advice = advice_of(make_plan(request_of(gpu=gpu_named("t4"))))
    smaller = step(advice, "quantise the weights")
    assert smaller.together.starts
    for one in advice.spending:
        assert one.together is None or one.together.starts or one.name == "shorten the context"


def test_slices_that_were_joined_are_taken_apart(request_of: MakeRequest) -> None:
    plan = make_plan(request_of(gpu=gpu_named("h100:3g.40gb"), gpus=2, tensor_parallel_size=2, max_model_len=8192))
    assert not plan.fits
    first = advice_of(plan).spending[0]
    assert (first.name, first.flag) == ("one engine on each slice", "--tensor-parallel-size 1")
    assert first.together is not None
    assert first.together.starts


def test_a_mig_slice_is_not_joined_with_others(request_of: MakeRequest) -> None:
    advice = advice_of(make_plan(request_of(gpu=gpu_named("h100:3g.40gb"), max_model_len=8192)))
    wider = step(advice, "twice the cards for one engine")
    assert wider.together is None
    assert "larger slice" in wider.note
    assert advice.parallel is None


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("sglang", ("--max-running-requests ", "--context-length ", "--kv-cache-dtype fp8_e4m3", "--tp-size 2")),
        ("tgi", ("--max-batch-size ", "--max-total-tokens ", "--num-shard 2")),
        ("trtllm", ("--max-batch-size ", "--max-seq-len ", "--kv-cache-dtype fp8", "--tensor-parallel-size 2")),
        ("llamacpp", ("--ctx-size ", "--parallel ", "--cache-type-k q8_0", "--cache-type-v q8_0", "over 2 cards")),
    ],
)
def test_steps_are_spelt_as_the_engine_spells_them(
    request_of: MakeRequest, engine: str, words: tuple[str, ...]
) -> None:
    plan = make_plan(request_of(gpu=gpu_named("l40s"), max_model_len=16384)._replace(engine=engine))
    advice = advice_of(plan)
    text = "\n".join(f"{one.flag}; {one.joined}" for one in (*advice.retreat, *advice.spending))
    for word in words:
        assert word in text
    for other in ("--max-model-len", "--max-num-seqs", "--enable-prefix-caching", "--weights"):
        assert other not in text


def test_slots_of_one_context_are_given_more_of_it_not_less(request_of: MakeRequest) -> None:
    """llama.cpp: half of --ctx-size is half of the pool for all."""
    request = request_of(weights=5 * GB, gpu=gpu_named("l40s"), max_model_len=16384, target_concurrency=4)
    plan = make_plan(request._replace(engine="llamacpp"))
    assert not plan.fits
    first = advice_of(plan).spending[0]
    assert (first.name, first.flag) == ("a context for each slot", "--parallel 4 --ctx-size 65536")
    assert (first.enough, first.cost) == (True, "free")
    assert make_plan(_again(plan.request, first)).ceilings.ceiling == 4


def test_weights_of_a_few_bits_are_not_quantised_again(request_of: MakeRequest) -> None:
    plan = make_plan(request_of(weights=5 * GB, gpu=gpu_named("l40s"), max_model_len=16384))
    assert "bits already" in step(advice_of(plan), "quantise the weights").note
