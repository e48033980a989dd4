"""Questions by name: what each goal answers, and how it is told."""

from collections.abc import Callable

import pytest

from kvbudget.errors import BadValueError
from kvbudget.planner.advice.goals import GOALS, answers_json, answers_lines, answers_to, goals_named
from kvbudget.planner.advice.solve import Wish, carries
from kvbudget.planner.build import make_plan
from kvbudget.planner.request import Plan, PlanRequest
from kvbudget.units import GIB, Bytes

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
        "goal": "gpus", "value": 1, "concurrency": 4, "length": 8192, "note": "-tp 1 -pp 1", "plans": 1
    }  # fmt: skip


def test_a_pool_beyond_the_card_is_answered_and_said(request_of: MakeRequest) -> None:
    answers = answers_to(card(request_of), ("kv-cache-memory-bytes", "gpu-memory-utilization"), Wish(40))
    assert answers[0].value == (40 * 512 + 1) * 16 * 131072
    assert answers_lines(answers) == [
        "smallest --kv-cache-memory-bytes: 42,951,770,112 (40.00 GiB per GPU) (40 requests of 8,192 tokens; more than "
        "the card has beside the weights)",
        "smallest --gpu-memory-utilization: none (40 requests of 8,192 tokens; no value in the range will do)",
    ]
