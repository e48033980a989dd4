"""What is remembered is what a plain look through all values finds, also after the oldest were forgotten."""

import random
from math import log

import pytest

from kvbudget.diagnose.forecast.history import DAY_MINUTES, WEEK_MINUTES, History


def test_sums_and_maxima_are_those_of_a_plain_look() -> None:
    generator, history, seen = random.Random(3), History(30), list[float]()
    for minute in range(9 * DAY_MINUTES + 3000):
        seen.append(generator.choice([0.0, generator.expovariate(1e-5), 4e6]))
        history.push(seen[-1])
        if minute % 977 == 0 or minute > 9 * DAY_MINUTES + 2990:
            assert history.count == len(seen)
            assert history.day_highest == max(seen[-DAY_MINUTES:])
            assert history.week_highest == max(seen[-WEEK_MINUTES:])
            assert history.highest[-1] == max(max(seen[-30:]), history.floor())
            for minutes in (1, 5, 180, DAY_MINUTES):
                assert history.mean(minutes) == pytest.approx(sum(seen[-minutes:]) / len(seen[-minutes:]), rel=1e-6)
            assert history.level[-1] == pytest.approx(log(max(history.mean(5), history.floor())))


def test_no_more_than_ten_days_are_kept() -> None:
    history = History(30)
    for _ in range(12 * DAY_MINUTES):
        history.push(5.0)
    assert len(history.tokens) == len(history.level) == len(history.highest) <= 10 * DAY_MINUTES
    assert history.count == 12 * DAY_MINUTES


def test_the_slope_of_a_straight_line_is_its_slope() -> None:
    history = History(30)
    for minute in range(60):
        history.push(1000.0 + 7.0 * minute)
    assert history.slope(30) == pytest.approx(7.0)
    assert History(30).slope(30) == 0.0


def test_roughness_is_the_mean_square_of_changes() -> None:
    history = History(30)
    for minute in range(500):
        history.push(1000.0 if minute % 2 else 1100.0)
    assert history.roughness(1, 100) == pytest.approx(log(1.1), rel=1e-3)
    assert history.roughness(10, 100) == pytest.approx(0.0, abs=1e-6)


def test_an_idle_minute_counts_as_a_hundredth_of_the_day() -> None:
    history = History(30)
    for _ in range(200):
        history.push(1e6)
    for _ in range(10):
        history.push(0.0)
    assert history.level[-1] == pytest.approx(log(0.01 * history.mean(DAY_MINUTES) + 1))
