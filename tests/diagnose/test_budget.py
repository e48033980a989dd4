"""When promises are full rather than the pool: the gate's, and those of engines that reserve."""

import pytest

from kvbudget.diagnose.budget import budget_full, bypass, gate_budget_full, gate_places_full, gate_pool_full
from kvbudget.engines.window import GateWindow
from windows import symptoms


@pytest.mark.parametrize(
    ("engine", "usage", "waiting", "more", "found"),
    [
        ("sglang", 0.6, 30, {}, True),
        ("sglang", 0.89, 30, {}, True),
        ("sglang", 0.9, 30, {}, False),
        ("sglang", 0.6, 1, {}, False),
        ("sglang", 0.6, 30, {"preemptions": 2}, False),
        ("sglang", 0.6, 30, {"max_num_seqs": 20}, False),
        ("sglang", 0.6, 30, {"max_num_seqs": 21}, True),
        ("sglang", 0.3, 30, {"prompt_tokens": 900_000, "generation_tokens": 100}, False),
        ("trtllm", 0.5, 9, {}, True),
        ("tgi", 0.95, 9, {}, True),
        ("tgi", 0.5, 9, {}, False),
        ("vllm", 0.6, 30, {}, False),
    ],
)
def test_an_engine_that_reserves_has_a_queue_below_its_top(
    engine: str, usage: float, waiting: int, more: dict[str, object], found: bool
) -> None:
    s = symptoms(engine=engine, usage=usage, running=20, waiting=waiting, **more)
    assert (budget_full(s) is not None) is found


def test_a_queue_below_a_told_limit_with_free_blocks_is_held_back_by_the_engine() -> None:
    """--watermark of vLLM, by elimination."""
    load = {"usage": 0.45, "running": 7, "waiting": 17, "generation_tokens": 5_000, "prompt_tokens": 900}
    found = budget_full(symptoms(64, **load))
    assert found is not None
    assert found.sure.level == "low"
    assert budget_full(symptoms(None, **load)) is None
    assert budget_full(symptoms(7, **load)) is None
    assert budget_full(symptoms(64, **{**load, "prompt_tokens": 9_000})) is None
    assert budget_full(symptoms(64, **{**load, "running": (7, 8)})) is None
    assert budget_full(symptoms(64, **{**load, "usage": 0.95})) is None


def test_sglang_s_own_knob_is_named() -> None:
    found = budget_full(symptoms(engine="sglang", usage=0.6, running=20, waiting=30, extra={"new_token_ratio": 0.7}))
    assert found is not None
    assert any("0.3" in action.what for action in found.actions)
    assert found.evidence["new_token_ratio"] == 0.7


def gate(**changes: object) -> GateWindow:
    figures: dict[str, object] = {
        "pool_blocks": 1000, "promised_blocks": 950, "held_blocks": 400, "margin_blocks": 20, "queue_requests": 8,
        "elsewhere_blocks": 0,
    }  # fmt: skip
    return GateWindow("a", **{**figures, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, "budget"),
        ({"held_blocks": None}, "budget"),
        ({"promised_blocks": 690}, "budget"),
        ({"promised_blocks": 600}, "places"),
        ({"promised_blocks": 600, "queue_requests": 2}, ""),
        ({"promised_blocks": 600, "elsewhere_blocks": 200}, "budget"),
        ({"held_blocks": 900}, "pool"),
        ({"held_blocks": 900, "queue_requests": 0}, ""),
        ({"queue_requests": 0}, ""),
        ({"queue_requests": 0, "refusals": {"queue_full": 3.0}}, "budget"),
        ({"queue_requests": 0, "refusals": {"context_exceeded": 3.0}}, ""),
        ({"pool_blocks": None}, ""),
        ({"pool_blocks": 0}, ""),
        ({"promised_blocks": None, "held_blocks": None}, ""),
    ],
)
def test_of_a_gate_with_a_queue_one_thing_holds(changes: dict[str, object], code: str) -> None:
    told = gate(**changes)
    found = {
        "budget": gate_budget_full(told), "pool": gate_pool_full(told), "places": gate_places_full(told),
    }  # fmt: skip
    assert [name for name, finding in found.items() if finding is not None] == ([code] if code else [])


@pytest.mark.parametrize(
    ("changes", "policy", "margin"),
    [
        ({}, "--policy learned (or trajectory in place of worst-case)", True),
        ({"policy": "worst-case"}, "--policy learned (or trajectory in place of worst-case)", True),
        ({"policy": "trajectory", "margin_blocks": None}, "--policy learned: ", True),
        ({"policy": "learned", "margin_blocks": 0}, "", False),
    ],
)
def test_nobody_is_told_to_take_what_runs_already(changes: dict[str, object], policy: str, margin: bool) -> None:
    found = gate_budget_full(gate(**changes))
    assert found is not None
    told = [action.what for action in found.actions]
    assert [what for what in told if "--policy" in what and what.startswith(policy)] == (
        [what for what in told if "--policy" in what] if policy else []
    )
    assert any("--policy" in what for what in told) is bool(policy)
    assert any("margin" in what for what in told) is margin


@pytest.mark.parametrize(("elsewhere", "found"), [(0, False), (19, False), (20, True), (None, False)])
def test_traffic_beside_the_gate_is_told_beyond_what_late_gauges_show(elsewhere: int | None, found: bool) -> None:
    assert (bypass(gate(elsewhere_blocks=elsewhere)) is not None) is found


def test_in_a_small_pool_a_few_blocks_are_no_bypass() -> None:
    assert bypass(gate(pool_blocks=50, elsewhere_blocks=3)) is None
    assert bypass(gate(pool_blocks=50, elsewhere_blocks=4)) is not None
