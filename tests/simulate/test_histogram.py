"""Times are kept to a thousandth, whatever their number."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbudget.simulate.histogram import Histogram


@given(st.lists(st.integers(0, 10**13), min_size=1, max_size=60), st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0]))
def test_a_percentile_is_within_a_thousandth_and_never_above(values: list[int], share: float) -> None:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    true = sorted(values)[min(len(values) - 1, int(share * len(values)))]
    told = histogram.percentile(share)
    assert told is not None
    assert true * 1023 / 1024 <= told <= true


@given(st.integers(0, 10**9), st.integers(0, 10**6), st.integers(1, 80), st.integers(1, 5))
def test_a_ramp_is_each_of_its_values(first: int, slope: int, values: int, count: int) -> None:
    ramp, each = Histogram(), Histogram()
    ramp.add_ramp(first, slope, values, count)
    for number in range(values):
        each.add(first + number * slope, count)
    assert (ramp._counts, ramp.total) == (each._counts, each.total)


def test_two_are_added_up() -> None:
    one, other = Histogram(), Histogram()
    one.add(5, 2)
    other.add(5)
    other.add(9)
    one.add_all(other)
    assert (one.total, one.percentiles((0.5, 0.9))) == (4, [5, 9])


def test_nothing_has_no_percentile() -> None:
    assert Histogram().percentiles((0.5, 0.99)) == [None, None]


def test_memory_is_bounded_by_the_range_not_the_number() -> None:
    histogram = Histogram()
    for value in range(10**6, 2 * 10**6, 7):
        histogram.add(value)
    assert len(histogram._counts) <= 2048
    assert histogram.percentile(0.5) == pytest.approx(1.5e6, rel=1e-3)
