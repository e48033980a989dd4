"""When a few answers that go on are the trouble, and when it is the pool or the prompts."""

import pytest

from kvbudget.diagnose.outputs import runaway_output
from kvbudget.diagnose.pool import pool_full
from windows import histogram, pool_of, symptoms

BIG = pool_of(160_000)


@pytest.mark.parametrize(
    ("usage", "running", "found"),
    [
        ((1.0, 1.0), 2, True),
        ((0.97, 0.97), 4, True),
        ((0.97, 0.97), 5, False),
        ((0.82, 0.82), 3, False),
        ((0.86, 0.88), 6, True),
        ((0.84, 0.849), 6, False),
        ((0.94, 0.94), 3, False),
        ((0.90, 0.93), 12, False),
    ],
)
def test_few_hold_it_or_some_grow_into_it(usage: tuple[float, float], running: int, found: bool) -> None:
    s = symptoms(usage=usage, running=running, waiting=0, pool=BIG, generation_tokens=4_000)
    assert (runaway_output(s) is not None) is found


def test_with_others_waiting_the_pool_is_the_verdict_and_the_answers_are_why() -> None:
    s = symptoms(usage=0.99, running=2, waiting=30, pool=BIG, generation_tokens=5_000, prompt_tokens=10)
    assert pool_full(s) is not None
    found = runaway_output(s)
    assert found is not None
    assert "30 wait behind them" in found.message


def test_long_prompts_are_no_runaway() -> None:
    prompts = histogram({float("inf"): 2.0}, 150_000.0)
    assert runaway_output(symptoms(usage=0.97, running=2, waiting=0, pool=BIG, prompt_lengths=prompts)) is None


def test_a_tiny_pool_is_no_runaway() -> None:
    assert runaway_output(symptoms(usage=0.97, running=1, waiting=0, pool=pool_of(1_984))) is None


def test_one_look_is_told_with_little_confidence() -> None:
    found = runaway_output(symptoms(looks=1, usage=1.0, running=2, waiting=0, pool=BIG, since_start=True))
    assert found is not None
    assert found.sure.level == "low"


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, True),
        ({"finished": {"length": 8.0, "stop": 1.0}}, False),
        ({"finished": {"length": 1.0}}, False),
        ({"waiting": 1}, False),
        ({"running": 1}, False),
        ({"max_model_len": 4_096}, False),
        ({"generation_tokens": 4_000.0}, False),
        ({"prompt_tokens": 4_000.0}, False),
        ({"finished": {}}, False),
    ],
)
def test_answers_that_all_run_on_to_the_window_are_told_before_the_pool_is_full(
    changes: dict[str, object], found: bool
) -> None:
    figures: dict[str, object] = {
        "usage": (0.45, 0.19), "running": 2, "waiting": 0, "pool": pool_of(2_048), "max_model_len": 1_024,
        "finished": {"length": 4.0, "stop": 0.0}, "generation_tokens": 4_032.0, "prompt_tokens": 64.0,
    }  # fmt: skip
    changed = {**figures, **changes}
    if "generation_tokens" in changes:
        changed["finished"] = {"length": 10.0}
    assert (runaway_output(symptoms(**changed)) is not None) is found
