import pytest

from kvbudget.gate.learning.margin import EPISODE_NS, HIGHEST, MEMORY, RISE, Margin
from kvbudget.pool.risk import z_over_time


def test_without_an_overflow_it_is_what_the_risk_asks_for() -> None:
    assert Margin(0.02).z == z_over_time(0.02)
    assert Margin(0.001).z > Margin(0.02).z


def test_overflows_that_follow_one_another_are_one_mistake() -> None:
    margin = Margin(0.02)
    for number in range(5):
        margin.overflowed(number * (EPISODE_NS - 1))
    assert margin.added == RISE
    margin.overflowed(6 * EPISODE_NS)
    assert margin.added == 2 * RISE


def test_it_rises_to_a_bound_and_comes_back_with_requests_that_end() -> None:
    margin = Margin(0.02)
    for number in range(50):
        margin.overflowed(2 * number * EPISODE_NS)
    assert margin.added == HIGHEST
    for _ in range(int(MEMORY)):
        margin.ended()
    assert margin.added == pytest.approx(HIGHEST / 2.718, rel=0.01)
