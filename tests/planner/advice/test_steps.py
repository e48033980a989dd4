"""Advice: each step's numbers are those of a plan with that change."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvbudget.planner.advice.steps import Advice, advice_json, advice_lines, advice_of
from kvbudget.planner.build import make_plan
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


def _again(request: PlanRequest, joined: str) -> PlanRequest:
    """As if `joined` stood on the command line, behind what was there."""
    words = joined.split()
    changes: dict[str, Any] = {}
    for flag, value in zip(words[::2], words[1::2], strict=True):
        if flag == "--weights":
            request = request._replace(weights=Amount(Bytes(int(value)), "given", "--weights"))
        else:
            changes[flag[2:].replace("-", "_")] = int(value) if value.isdigit() else value
    return request._replace(flags=request.flags._replace(**changes))


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
        found = make_plan(_again(request, one.joined)._replace(gpus=None))
        assert found.ceilings.ceiling * engines == one.together.ceiling, one
        assert found.pool.tokens * engines == one.together.pool_tokens, one
        assert one.enough is found.fits, one


def test_once_the_limit_is_lowered_every_later_step_says_where_it_is_by_then(request_of: MakeRequest) -> None:
    request = wide(request_of, max_model_len=16384, target_concurrency=3)
    advice = advice_of(make_plan(request))
    lowered, shorter, eight_bit = advice.retreat[:3]
    assert (lowered.flag, lowered.enough) == ("--max-num-seqs 1", False)
    for one in (shorter, eight_bit):
        assert one.together is not None
        assert f"--max-num-seqs {one.together.ceiling} " in one.joined  # not the 1 of the first step
        assert f"({one.joined})" in "\n".join(advice_lines(advice))
    assert shorter.enough is True
