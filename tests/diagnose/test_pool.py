"""Where a pool begins to be full, and what is taken for something else."""

import pytest

from kvbudget.diagnose.pool import fixed_footprint, pool_filling, pool_full, sub_pool_full
from windows import histogram, pool_of, symptoms


@pytest.mark.parametrize(
    ("usage", "preemptions", "waiting", "level"),
    [
        (0.99, 5, 10, "high"),
        (0.99, 0, 10, "high"),
        (0.93, 0, 10, "medium"),
        (0.90, 0, 1, "medium"),
        (0.89, 0, 10, None),
        (0.75, 3, 0, "medium"),
        (0.60, 3, 0, None),  # a few, with nobody waiting and room: the moment is over
        (0.60, 5, 0, "medium"),
        (0.60, 1, 4, "medium"),
        (0.99, 0, 0, None),
    ],
)
def test_full_is_a_queue_at_the_top_or_a_preemption(
    usage: float, preemptions: int, waiting: int, level: str | None
) -> None:
    s = symptoms(usage=usage, running=50, waiting=waiting, preemptions=preemptions)
    found = pool_full(s)
    assert (None if found is None else found.sure.level) == level


def test_the_next_that_does_not_fit_makes_a_pool_full_below_its_top() -> None:
    assert pool_full(symptoms(usage=0.86, running=2, waiting=98)) is not None
    assert pool_full(symptoms(usage=0.86, running=40, waiting=98)) is None
    assert pool_full(symptoms(2, usage=0.86, running=2, waiting=98)) is None  # two places, and both are taken


def test_who_is_deferred_does_not_wait_for_room() -> None:
    assert pool_full(symptoms(usage=0.97, running=50, waiting=6, deferred=6)) is None


def test_swapped_out_requests_say_that_it_is_full() -> None:
    assert pool_full(symptoms(usage=0.86, running=9, waiting=0, swapped=3)) is not None


def test_counters_since_the_start_say_nothing_of_now() -> None:
    assert pool_full(symptoms(looks=1, usage=0.5, running=3, waiting=0, preemptions=400, since_start=True)) is None


def test_what_a_router_that_reserves_tells_is_not_what_is_used() -> None:
    assert pool_full(symptoms(engine="tgi", usage=0.99, running=20, waiting=30)) is None


def test_of_many_looks_a_third_is_enough_and_one_is_not() -> None:
    def usage(full: int) -> tuple[float, ...]:
        return (*(0.99 for _ in range(full)), *(0.3 for _ in range(9 - full)), 0.3)

    assert pool_full(symptoms(looks=10, usage=usage(4), running=30, waiting=5)) is not None
    assert pool_full(symptoms(looks=10, usage=usage(2), running=30, waiting=5)) is None


def test_the_limit_that_it_names_is_what_fits_at_the_present_size() -> None:
    found = pool_full(symptoms(usage=1.0, running=72, waiting=184, preemptions=480, pool=pool_of(77_088)))
    assert found is not None
    assert found.actions[0].value == 68
    assert found.evidence["held_per_request_tokens"] == pytest.approx(1070.7, abs=0.1)


def test_several_answers_of_one_request_are_named() -> None:
    found = pool_full(symptoms(usage=0.99, running=20, waiting=9, extra={"n_mean": 4.0}))
    assert found is not None
    assert any("n = 4.0" in action.what for action in found.actions)


def test_frequent_retraction_of_sglang_is_told_with_its_own_knob() -> None:
    found = pool_full(symptoms(engine="sglang", usage=0.97, running=20, waiting=9, preemptions=30))
    assert found is not None
    assert any("1.3" in action.what for action in found.actions)


def test_a_warning_of_the_engine_s_own_log_is_enough() -> None:
    assert pool_full(symptoms(engine="llamacpp", running=4, waiting=0, extra={"no_room": 190})) is not None


@pytest.mark.parametrize(
    ("first", "last", "waiting", "filling"),
    [(0.93, 0.95, 0, True), (0.93, 0.935, 0, False), (0.80, 0.89, 0, False), (0.93, 0.95, 4, False)],
)
def test_filling_is_a_rise_near_the_top_before_anybody_waits(
    first: float, last: float, waiting: int, filling: bool
) -> None:
    s = symptoms(usage=(first, last), running=38, waiting=waiting, window_s=10.0)
    assert (pool_filling(s) is not None) is filling


def test_a_fill_by_decoding_is_told_with_the_seconds_that_are_left() -> None:
    found = pool_filling(symptoms(looks=4, usage=(0.92, 0.93, 0.935, 0.94), running=38, waiting=0, window_s=30.0))
    assert found is not None
    assert found.evidence["full_in_s"] == pytest.approx(90.0)
    assert "those that run grow" in found.message


@pytest.mark.parametrize(("parts", "found"), [((1.0, 0.06), True), ((0.94, 0.06), False), ((1.0, 0.6), False)])
def test_one_part_is_full_while_another_is_empty(parts: tuple[float, float], found: bool) -> None:
    s = symptoms(usage=parts[0], usage_by_kind={"full": parts[0], "sliding": parts[1]}, running=9, waiting=3)
    assert (sub_pool_full(s) is not None) is found


def test_a_footprint_that_no_length_explains_is_fixed() -> None:
    """Twelve tokens hold a third of 457,880, in blocks of 7,808."""
    figures = {
        "usage": 0.329, "running": 1, "waiting": 0, "pool": pool_of(457_880, 7808), "largest_block": 7808,
        "prompt_lengths": histogram({50.0: 4, float("inf"): 0}, 48.0),
        "output_lengths": histogram({50.0: 4, float("inf"): 0}, 100.0),
    }  # fmt: skip
    found = fixed_footprint(symptoms(**figures))
    assert found is not None
    assert found.evidence["prompt_mean_tokens"] == 12
    assert fixed_footprint(symptoms(**{**figures, "usage": (0.2, 0.329)})) is None  # it grows: that is an answer
    assert fixed_footprint(symptoms(**{**figures, "running": 8})) is None
    long = {**figures, "prompt_lengths": histogram({float("inf"): 4.0}, 400_000.0)}
    assert fixed_footprint(symptoms(**long)) is None
