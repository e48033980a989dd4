"""When places are full rather than the pool, what may be inferred of a limit, and what is too large."""

import pytest

from kvbudget.diagnose.compute import compute_bound
from kvbudget.diagnose.sequences import over_provisioned, seqs_full
from windows import pool_of, symptoms


@pytest.mark.parametrize(
    ("told", "running", "level"),
    [
        (256, 256, "high"),
        (20, (20, 20), "high"),
        (300, 256, None),
        (None, 256, "medium"),
        (None, 100, "low"),
        (None, (256, 250), "low"),
        (None, (250, 256), "low"),
        (None, (200, 256), "low"),
        (None, (90, 100), None),
    ],
)
def test_a_limit_is_told_usual_or_pinned(told: int | None, running: object, level: str | None) -> None:
    found = seqs_full(symptoms(told, usage=0.35, running=running, waiting=30))
    assert (None if found is None else found.sure.level) == level


@pytest.mark.parametrize(
    "figures",
    [
        {"usage": 0.91, "running": 256, "waiting": 30},
        {"usage": None, "running": 256, "waiting": 30},
        {"usage": 0.35, "running": 256, "waiting": 0},
        {"usage": 0.35, "running": 256, "waiting": 1},
        {"usage": 0.35, "running": 256, "waiting": 30, "deferred": 30},
        {"usage": 0.35, "running": 256, "waiting": 30, "preemptions": 2},
        {"usage": 0.35, "running": 256, "waiting": 30, "engine": "sglang"},
    ],
)
def test_what_is_inferred_needs_a_queue_for_room_and_free_blocks(figures: dict[str, object]) -> None:
    assert seqs_full(symptoms(**figures)) is None


@pytest.mark.parametrize(("waiting", "found"), [((0, 5), True), ((0, 2), False), ((3, 0), False)])
def test_a_queue_that_grows_while_the_same_number_runs_is_inferred_too(waiting: tuple[int, int], found: bool) -> None:
    s = seqs_full(symptoms(usage=0.3, running=10, waiting=waiting))
    assert (s is not None) is found
    assert s is None or s.sure.level == "low"


@pytest.mark.parametrize("running", [(4, 4, 4, 3, 4, 4), (4, 4, 4, 4, 4, 3), (4, 4, 4, 4, 4, 0)])
def test_a_place_that_stood_empty_between_two_steps_is_no_number_that_moves(running: tuple[int, ...]) -> None:
    """Of six looks at a real vLLM, one fell upon the step at whose end a request had left (max_num_seqs 4)."""
    s = symptoms(looks=6, usage=0.25, running=running, waiting=11, prompt_tokens=600.0, generation_tokens=4_000.0)
    found = seqs_full(s)
    assert found is not None
    assert "4 run, which is max_num_seqs" in found.message
    assert "at nearly every look of 6" in found.sure.why
    assert compute_bound(s) is None


def test_a_told_limit_needs_no_usage_and_holds_up_to_a_full_pool() -> None:
    assert seqs_full(symptoms(4, engine="llamacpp", running=4, waiting=3)) is not None
    assert seqs_full(symptoms(64, usage=0.94, running=64, waiting=3)) is not None
    assert seqs_full(symptoms(64, usage=0.96, running=64, waiting=3)) is None


def test_the_new_limit_is_what_the_pool_holds_and_twice_at_most() -> None:
    for usage, value in ((0.35, 512), (0.8, 304), (0.9, 270)):
        found = seqs_full(symptoms(256, usage=usage, running=256, waiting=9))
        assert found is not None
        assert found.actions[0].value == value
    found = seqs_full(symptoms(256, usage=0.945, running=256, waiting=9))
    assert found is not None
    assert found.actions[0].value == 257


@pytest.mark.parametrize(
    ("told", "concurrency", "found"), [(4, 11.2, True), (4, 8.0, True), (4, 7.9, False), (None, 11.2, False)]
)
def test_a_pool_that_no_load_can_fill_is_too_large_by_the_engine_s_own_figures(
    told: int | None, concurrency: float, found: bool
) -> None:
    s = symptoms(told, usage=0.3, running=(1, 3), waiting=0, pool=pool_of(400_000, concurrency=concurrency))
    assert (over_provisioned(s) is not None) is found


@pytest.mark.parametrize(
    ("figures", "found"),
    [
        ({"usage": 0.03, "running": 64, "waiting": 0}, True),
        ({"usage": 0.11, "running": 64, "waiting": 0}, False),
        ({"usage": 0.03, "running": 3, "waiting": 0}, False),
        ({"usage": 0.03, "running": (60, 64), "waiting": 0}, False),
        ({"usage": 0.03, "running": 64, "waiting": 2}, False),
        ({"usage": 0.03, "running": 64, "waiting": 0, "window_s": 5.0}, False),
        ({"usage": 0.03, "running": 64, "waiting": 0, "looks": 1}, False),
        ({"usage": 0.03, "running": 64, "waiting": 0, "preemptions": 3}, False),
    ],
)
def test_hardly_any_use_by_a_steady_number(figures: dict[str, object], found: bool) -> None:
    told = over_provisioned(symptoms(**figures))
    assert (told is not None) is found


def test_how_sure_that_is_hangs_on_whether_any_usual_limit_could_fill_it() -> None:
    for running, usage, level in ((8, 0.05, "low"), (64, 0.03, "medium")):
        found = over_provisioned(symptoms(usage=usage, running=running, waiting=0))
        assert found is not None
        assert found.sure.level == level


def test_a_number_that_stands_still_while_requests_end_is_a_limit() -> None:
    pool = pool_of(180_000, concurrency=11.2)
    steady = {"usage": 0.3, "running": 4, "waiting": 0, "pool": pool, "window_s": 60.0}
    assert over_provisioned(symptoms(**steady, finished={"stop": 40.0})) is not None
    assert over_provisioned(symptoms(**steady, finished={"stop": 2.0})) is None


def test_all_told_places_at_half_of_the_pool_leave_the_rest_for_nobody() -> None:
    assert over_provisioned(symptoms(8, usage=0.2, running=8, waiting=0)) is not None
    assert over_provisioned(symptoms(8, usage=0.6, running=8, waiting=0)) is None


def test_llama_cpp_defers_for_want_of_a_slot_alone() -> None:
    found = seqs_full(symptoms(engine="llamacpp", running=4, waiting=(12, 15)))
    assert found is not None
    assert "--ctx-size" in found.actions[0].what
    assert seqs_full(symptoms(engine="llamacpp", running=4, waiting=(0, 15))) is None
    assert seqs_full(symptoms(engine="llamacpp", running=(3, 4), waiting=9)) is None
