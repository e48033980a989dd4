"""What figures come to before any rule judges them."""

from math import inf, nan

import pytest

from kvbudget.diagnose.symptoms import number
from kvbudget.engines.window import Counts
from windows import histogram, pool_of, symptoms


@pytest.mark.parametrize(("value", "told"), [(nan, None), (inf, None), (-1.0, None), (None, None), (0.0, 0.0), (3, 3)])
def test_what_is_no_finite_number_of_0_or_more_is_not_told(value: float | None, told: float | None) -> None:
    assert number(value) == told


def test_the_pool_is_what_the_engine_says_in_tokens() -> None:
    pool = pool_of(1_000_000, 4)._replace(tokens=90_000)
    assert symptoms(pool=pool, usage=0.5).pool_tokens == 90_000
    assert symptoms(pool=pool_of(1_600, 16)._replace(tokens=None), usage=0.5).pool_tokens == 1_600
    several = pool_of(1_600, 4)._replace(tokens=None, single_group=False)
    assert symptoms(pool=several, usage=0.5).pool_tokens is None


def test_usage_is_that_of_the_fullest_part() -> None:
    s = symptoms(usage=0.5, usage_by_kind={"full": 1.0, "sliding": 0.06}, running=1)
    assert s.last.usage == 1.0
    assert symptoms(usage=0.6, usage_by_rank={"0": 0.9, "1": nan}).last.usage == 0.9
    assert symptoms(usage=1.7).last.usage is None


def test_more_deferred_than_waiting_leaves_nobody_for_room() -> None:
    assert symptoms(waiting=3, deferred=5).last.for_room == 0
    assert symptoms(waiting=3).last.for_room == 3
    assert symptoms(deferred=5).last.for_room is None


def test_means_are_those_of_the_window_and_of_all_time_where_nobody_ended_in_it() -> None:
    totals = Counts(prompt_tokens=10_000.0, generation_tokens=4_000.0, finished={"stop": 100.0})
    s = symptoms(usage=0.3, prompt_tokens=500.0, finished={"stop": 0.0}, totals=totals)
    assert (s.prompt_mean, s.output_mean) == (100.0, 40.0)
    s = symptoms(usage=0.3, prompt_tokens=500.0, finished={"stop": 2.0}, totals=totals)
    assert s.prompt_mean == 250.0
    s = symptoms(usage=0.3, prompt_lengths=histogram({inf: 4.0}, 80.0), totals=totals)
    assert s.prompt_mean == 20.0


def test_a_limit_that_is_told_by_a_person_goes_before_the_engine_s_own_word() -> None:
    assert symptoms(12, usage=0.3, max_num_seqs=64).max_num_seqs == 12
    assert symptoms(None, usage=0.3, max_num_seqs=64).max_num_seqs == 64
    assert symptoms(0, usage=0.3).max_num_seqs is None


def test_a_single_look_stands_still_for_nobody() -> None:
    assert not symptoms(looks=1, running=256).pinned
    assert symptoms(looks=2, running=256).pinned
    assert not symptoms(looks=2, running=0).pinned
    assert not symptoms(looks=2, running=(256, 255)).pinned


def test_one_look_of_several_may_fall_between_an_end_and_the_next_step() -> None:
    for running, pinned in (
        ((4, 4, 3, 4, 4, 4), True),
        ((4, 4, 4, 4, 4, 0), True),
        ((4, 3, 4, 4), True),
        ((4, 3, 4, 3, 4, 4), False),
        ((4, 3, 4), False),
        ((5, 4, 4, 4, 4, 4), False),
    ):
        s = symptoms(looks=len(running), running=running)
        assert (s.pinned, s.still) == (pinned, False)
    assert symptoms(looks=6, running=4).still
