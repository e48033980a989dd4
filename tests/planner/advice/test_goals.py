"""Questions by name: what each goal answers, and how it is told."""

from collections.abc import Callable

import pytest

from kvbudget.errors import BadValueError
from kvbudget.planner.advice.goals import (
    GOALS,
    answers_json,
    answers_lines,
    answers_to,
    goals_named,
    solved,
    wish_of,
)
from kvbudget.planner.advice.solve import Wish, carries
from kvbudget.planner.build import make_plan
from kvbudget.planner.hardware.gpus import gpu_named
from kvbudget.planner.request import Plan, PlanRequest
from kvbudget.planner.workload.lengths import Lengths
from kvbudget.units import GIB, Bytes, Tokens

MakeRequest = Callable[..., PlanRequest]


def card(request_of: MakeRequest) -> Plan:
    """24 GiB: 16 weights, 2 overhead, 6 for the cache: 3,071 usable blocks of 16 tokens."""
    return make_plan(
        request_of(
            weights=16 * GIB, gpu_memory=Bytes(24 * GIB), overhead=Bytes(2 * GIB), activation=Bytes(0),
            gpu_memory_utilization=1.0, max_model_len=8192,
        )
    )  # fmt: skip


def test_goals_are_named_alone_together_or_all() -> None:
    assert goals_named("gpus") == ("gpus",)
    assert goals_named("gpus, concurrency,gpus") == ("gpus", "concurrency")
    assert goals_named("all") == tuple(GOALS)
    for text in ("", "gpu", "gpus,,"):
        with pytest.raises(BadValueError, match="no goal"):
            goals_named(text)


def test_every_answer_is_carried_by_the_plan_that_it_names(request_of: MakeRequest) -> None:
    plan = card(request_of)
    found = {answer.goal: answer for answer in answers_to(plan, tuple(GOALS), Wish(4))}
    assert found["max-model-len"].value == 3071 // 4 * 16
    assert (found["concurrency"].value, found["max-num-seqs"].value) == (5, 5)
    assert found["gpus"].value == 1
    needed = found["kv-cache-memory-bytes"].value
    assert needed == (4 * 512 + 1) * 16 * 131072
    again = make_plan(plan.request._replace(kv_cache_memory=Bytes(int(needed))))
    assert carries(again, Wish(4))
    document = answers_json(answers_to(plan, ("gpus",), Wish(4)))
    assert document["gpus"] == {
        "goal": "gpus", "value": 1, "concurrency": 4, "length": 8192, "note": "-tp 1 -pp 1", "plans": 1,
        "said": "fewest GPUs",
    }  # fmt: skip


def test_a_pool_beyond_the_card_is_answered_and_said(request_of: MakeRequest) -> None:
    answers = answers_to(card(request_of), ("kv-cache-memory-bytes", "gpu-memory-utilization"), Wish(40))
    assert answers[0].value == (40 * 512 + 1) * 16 * 131072
    assert answers_lines(answers) == [
        "smallest --kv-cache-memory-bytes: 42,951,770,112 (40.00 GiB per GPU) (40 requests of 8,192 tokens; more than "
        "the card has beside the weights)",
        "smallest --gpu-memory-utilization: none (40 requests of 8,192 tokens; no value in the range will do)",
    ]


def test_the_engine_s_own_flags_stand_in_the_questions(request_of: MakeRequest) -> None:
    plan = make_plan(request_of(gpu=gpu_named("l40s"), max_model_len=16384)._replace(engine="sglang"))
    said = [line.partition(":")[0] for line in answers_lines(answers_to(plan, tuple(GOALS), Wish()))]
    assert said == [
        "largest --context-length", "largest --max-running-requests that the pool carries", "most requests at once",
        "smallest --mem-fraction-static", "smallest pool in bytes", "fewest GPUs",
    ]  # fmt: skip


def test_a_length_that_the_engine_cuts_is_not_carried(request_of: MakeRequest) -> None:
    """SGLang starts with a pool that is smaller than one request, and cuts the length."""
    plan = make_plan(request_of(gpu=gpu_named("rtx-4090"), max_model_len=131072)._replace(engine="sglang"))
    assert plan.pool.max_model_len < 131072
    answer = answers_to(plan, ("max-model-len",), Wish())[0]
    assert answer.value is not None
    assert answer.value <= plan.pool.max_model_len + 1


def test_slots_keep_their_length_while_their_number_is_looked_for(request_of: MakeRequest) -> None:
    request = request_of(weights=5 * 10**9, gpu=gpu_named("l40s"), max_model_len=8 * 8192, max_num_seqs=8)
    plan = make_plan(request._replace(engine="llamacpp"))
    found = {answer.goal: answer for answer in answers_to(plan, tuple(GOALS), Wish(8))}
    assert (found["max-num-seqs"].length, found["max-model-len"].said) == (8192, "longest context of a slot")
    seqs = found["max-num-seqs"].value
    assert seqs is not None
    assert 8 < seqs < 256
    length = found["max-model-len"].value
    assert length is not None
    assert 8192 < length < 131072
    assert (found["gpus"].value, found["gpus"].note) == (1, "")
    assert found["kv-cache-memory-bytes"].value is None
    assert "context" in found["kv-cache-memory-bytes"].note


def test_a_limit_that_is_larger_than_what_runs_now_says_why(request_of: MakeRequest) -> None:
    plan = make_plan(request_of(gpu=gpu_named("l40s"), max_model_len=1024, max_num_seqs=1024))
    found = {answer.goal: answer for answer in answers_to(plan, ("max-num-seqs", "concurrency"), Wish())}
    largest, now = found["max-num-seqs"].value, found["concurrency"].value
    assert largest is not None
    assert now is not None
    assert (largest > now) is ("as planned, with 1,024" in found["max-num-seqs"].note)
    assert largest > now


def test_a_mig_slice_is_never_several_cards(request_of: MakeRequest) -> None:
    plan = make_plan(request_of(gpu=gpu_named("h100:1g.10gb"), max_model_len=8192))
    answer = answers_to(plan, ("gpus",), Wish())[0]
    assert answer.value is None
    assert "larger slice" in answer.note


def test_the_longest_length_of_the_model_is_said_to_be_that(request_of: MakeRequest) -> None:
    plan = make_plan(request_of(gpu=gpu_named("h100"), max_model_len=8192))
    answer = answers_to(plan, ("max-model-len",), Wish())[0]
    assert (answer.value, answer.note) == (131072, "the model takes no longer one")


def test_the_wish_is_what_the_plan_is_judged_by_and_of_all_engines_together(request_of: MakeRequest) -> None:
    given = {"kv_cache_memory": Bytes(6 * GIB), "max_model_len": 8192, "target_concurrency": 10}
    one, two = make_plan(request_of(**given)), make_plan(request_of(**given, data_parallel_size=2))
    assert solved(one, "concurrency", wish_of(one)).value == one.ceilings.ceiling == 5
    assert solved(two, "concurrency", wish_of(two)).value == 10
    assert two.fits
    assert solved(two, "max-model-len", wish_of(two)).value == solved(one, "max-model-len", wish_of(one, 5)).value
    assert solved(two, "gpus", wish_of(two)).note == "-tp 1 -pp 1 -dp 2"
    lengths = {
        "prompt_lengths": Lengths(Tokens(700), Tokens(900), Tokens(950)),
        "output_lengths": Lengths(Tokens(100), Tokens(124), Tokens(150)),
    }
    short = make_plan(request_of(**given, **lengths))
    assert short.fits
    assert wish_of(short).length == 1024
    smallest = solved(short, "kv-cache-memory-bytes", wish_of(short)).value
    assert smallest == (10 * 64 + 1) * 16 * 131072 or smallest == 513 * 16 * 131072


def test_an_answer_says_what_else_it_needs(request_of: MakeRequest) -> None:
    """Fewer states than the default number of sequences: the engine would not start with the answer alone."""
    config = {
        "model_type": "qwen3_5_text", "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 8,
        "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "mamba_ssm_dtype": "float32", "head_dim": 128,
    }  # fmt: skip
    asked = make_plan(request_of(config=config, gpu=gpu_named("h100"), max_model_len=8192))
    found = solved(asked, "kv-cache-memory-bytes", wish_of(asked))
    assert found.plan is not None
    seqs = found.plan.request.flags.max_num_seqs
    assert seqs is not None
    assert found.note == f"with --max-num-seqs {seqs}"
    with_both = asked.request._replace(
        kv_cache_memory=Bytes(int(found.value or 0)), flags=asked.request.flags._replace(max_num_seqs=seqs)
    )
    assert make_plan(with_both).fits
