"""How fast the engine is."""

import pytest

from kvbudget.gate.learning.pace import LEAST_NS_PER_STEP, MOST_NS_PER_STEP, Pace

STEP_NS = 10_000_000


def test_the_pace_is_learned_from_steps_that_are_seen() -> None:
    pace = Pace()
    pace.begin(5)
    for number in range(1, 400):
        pace.advance(1, 5 + number * STEP_NS)
    assert pace.step == 399
    assert pace.ns_per_step == pytest.approx(STEP_NS, rel=0.01)


def test_many_steps_at_once_tell_as_much_as_each_of_them() -> None:
    pace = Pace()
    pace.begin(0)
    pace.advance(1000, 1000 * STEP_NS)
    assert pace.ns_per_step == STEP_NS


def test_where_nobody_is_watched_time_makes_the_steps_and_loses_no_part_of_one() -> None:
    pace = Pace()  # 20 ms a step until one was seen
    pace.begin(0)
    for now_ns in range(0, 2_000_000_001, 7_000_000):
        pace.go_on(now_ns)
    assert pace.step == 99


def test_a_clock_that_stands_still_or_leaps_leaves_a_pace_to_divide_by() -> None:
    pace = Pace()
    pace.begin(0)
    pace.advance(100, 0)
    assert pace.ns_per_step == LEAST_NS_PER_STEP
    pace.go_on(50)
    assert pace.step == 150
    pace.advance(1000, 10**30)
    assert pace.ns_per_step == MOST_NS_PER_STEP
