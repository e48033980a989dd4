"""When the steps are full of prompts, which a queue with free blocks and free places leaves over."""

import pytest

from kvbudget.diagnose.compute import compute_bound
from kvbudget.diagnose.sequences import seqs_full
from windows import histogram, symptoms

LOAD = {"usage": 0.3, "running": (12, 14), "waiting": (40, 50)}


@pytest.mark.parametrize(
    ("prompt", "generated", "running", "level"),
    [
        (600_000, 200, (12, 14), "medium"),
        (600_000, 200, 12, "medium"),
        (600_000, 200, 16, "medium"),
        (60_000, 200, 16, None),  # a usual limit needs 4,000 prompt tokens a place
        (6_900, 200, (12, 14), "low"),
        (600_000, 60_001, (12, 14), "low"),  # as much is decoded: what is left is elimination
        (99_000, 0, 12, None),
    ],
)
def test_prompts_have_to_be_nearly_all_that_is_computed(
    prompt: float, generated: float, running: object, level: str | None
) -> None:
    s = symptoms(**{**LOAD, "running": running}, prompt_tokens=prompt, generation_tokens=generated)
    found = compute_bound(s)
    assert (None if found is None else found.sure.level) == level


def test_steps_as_large_as_they_may_be_are_certain_and_end_the_search_for_a_limit() -> None:
    steps = histogram({2048.0: 100.0, float("inf"): 0.0}, 190_000.0)
    s = symptoms(64, usage=0.4, running=64, waiting=30, step_tokens=steps, max_num_batched_tokens=2048)
    assert seqs_full(s) is None
    found = compute_bound(s)
    assert found is not None
    assert found.sure.level == "high"


@pytest.mark.parametrize(
    "changes",
    [
        {"usage": 0.9},
        {"usage": None},
        {"waiting": 2},
        {"waiting": (0, 50)},
        {"waiting": 40, "deferred": 40},
        {"preemptions": 1},
        {"running": 0},
        {"looks": 1},
        {"engine": "sglang"},
        {"usage": 0.85, "running": (2, 3)},  # the next does not fit: that is the pool
    ],
)
def test_what_else_a_queue_may_be_is_ruled_out_first(changes: dict[str, object]) -> None:
    assert compute_bound(symptoms(**{**LOAD, **changes})) is None


def test_prefill_of_an_engine_that_reserves_is_told_where_it_is_plain() -> None:
    heavy = {**LOAD, "engine": "sglang", "prompt_tokens": 600_000.0, "generation_tokens": 200.0}
    found = compute_bound(symptoms(**heavy))
    assert found is not None
    assert found.evidence["prompt_tokens"] == 600_000


def test_by_elimination_it_is_not_called_prefill() -> None:
    queue = {"usage": 0.3, "running": (9, 7), "waiting": 5}
    plain = compute_bound(symptoms(**queue, prompt_tokens=300_000.0, generation_tokens=300.0))
    assert plain is not None
    assert "prefill takes the steps" in plain.message
    guessed = compute_bound(symptoms(**queue, prompt_tokens=300.0, generation_tokens=3_000.0))
    assert guessed is not None
    assert guessed.sure.level == "low"
    assert "prefill takes" not in guessed.message
    assert guessed.collect


def test_the_rate_is_told_where_the_window_is() -> None:
    found = compute_bound(symptoms(**LOAD, prompt_tokens=600_000, generation_tokens=10, window_s=30.0))
    assert found is not None
    assert found.evidence["prompt_tokens_per_s"] == 20_000
    assert "20,000/s" in found.message
