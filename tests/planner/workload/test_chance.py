"""Sums of independent draws: as brute force counts them, and on the careful side where blocks are counted in cells."""

from collections import Counter
from itertools import product
from math import sqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbudget.planner.workload.chance import MOST_CELLS, Sums
from kvbudget.planner.workload.lengths import normal_share

Weights = dict[int, int]


def by_brute_force(weights: Weights, limit: int, count: int) -> float:
    whole = sum(weights.values())
    fitting = 0.0
    for draw in product(weights.items(), repeat=count):
        if sum(blocks for blocks, _ in draw) <= limit:
            share = 1.0
            for _, weight in draw:
                share *= weight / whole
            fitting += share
    return fitting


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.integers(1, 30), st.integers(1, 9), min_size=1, max_size=4),
    st.integers(0, 90),
    st.integers(1, 5),
)
def test_the_chance_is_the_one_that_counting_all_cases_gives(weights: Weights, limit: int, count: int) -> None:
    assert Sums(weights, limit, 8).chance(count) == pytest.approx(by_brute_force(weights, limit, count), abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(st.integers(1, 40), st.integers(1, 9), min_size=1, max_size=4),
    st.integers(0, 120),
    st.sampled_from([0.5, 0.9, 0.95, 0.99]),
)
def test_the_largest_count_is_the_last_whose_chance_suffices(weights: Weights, limit: int, confidence: float) -> None:
    sums = Sums(weights, limit, 12)
    count = sums.largest_count(confidence)
    assert count == 0 or sums.chance(count) >= confidence - 1e-6
    assert count == 12 or sums.chance(count + 1) < confidence + 1e-6


def test_equal_requests_fit_exactly_as_division_says() -> None:
    assert Sums({7: 3}, 100, 1000).largest_count(0.99) == 100 // 7
    assert Sums({7: 3}, 100, 5).largest_count(0.99) == 5
    assert Sums({7: 3}, 6, 5).largest_count(0.99) == 0


def test_a_large_pool_is_counted_in_cells_and_agrees_with_the_normal_law() -> None:
    weights = Counter({10: 5, 100: 3, 1000: 2})
    limit, count = 100_000, 380
    sums = Sums(weights, limit, 1024)
    assert sums.cell_blocks == -(-(limit + 1) // MOST_CELLS) > 1
    mean = sum(b * w for b, w in weights.items()) / 10
    spread = sqrt(sum((b - mean) ** 2 * w for b, w in weights.items()) / 10 * count)
    assert sums.chance(count) == pytest.approx(normal_share((limit + 0.5 - count * mean) / spread), abs=0.01)


def test_cells_do_not_promise_more_than_exact_sums_by_more_than_a_cell() -> None:
    """The same requests, sixteen times finer: whatever is counted in cells must stay within one per cent."""
    coarse = Sums({blocks * 16: 1 for blocks in range(1, 60)}, 3000 * 16, 512).largest_count(0.95)
    exact = Sums(dict.fromkeys(range(1, 60), 1), 3000, 512).largest_count(0.95)
    assert exact - 1 <= coarse <= exact
