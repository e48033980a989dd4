from math import exp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbudget.pool.survival import BIN_OF, BINS, EDGES, MAX_TOKENS, MOST_IN_TABLE, WIDTHS, Survival, bin_of


@given(st.integers(0, 2**22))
def test_a_length_stands_in_the_bin_whose_edges_enclose_it(tokens: int) -> None:
    k = bin_of(tokens)
    assert EDGES[k] <= tokens
    assert tokens < EDGES[k + 1] or tokens > MAX_TOKENS


def test_bins_are_single_tokens_first_and_an_eighth_of_the_length_later() -> None:
    assert EDGES[:16] == list(range(16))
    assert [bin_of(16), bin_of(17), bin_of(18)] == [16, 16, 17]
    assert all(WIDTHS[k] <= EDGES[k] / 8 for k in range(16, BINS))
    assert sum(WIDTHS) == MAX_TOKENS + 1


def test_who_ends_with_an_even_chance_in_a_bin_survives_it_with_the_other() -> None:
    shares = [0.0] * BINS
    shares[bin_of(64)] = 0.5
    survival = Survival(shares, 0.0)
    width = WIDTHS[bin_of(64)]
    assert survival.chance(0, 64) == pytest.approx(1.0)
    assert survival.chance(64, width) == pytest.approx(0.5)
    assert survival.chance(64, 10_000) == pytest.approx(0.5)
    assert survival.chance(64, width // 2) == pytest.approx(0.5**0.5)


@given(st.lists(st.floats(0, 1), min_size=BINS, max_size=BINS), st.integers(0, 10**6), st.integers(0, 10**5))
def test_nobody_becomes_likelier_to_go_on_by_going_further(shares: list[float], tokens: int, more: int) -> None:
    survival = Survival(shares, 0.0)
    assert 0.0 <= survival.chance(tokens, more + 1) <= survival.chance(tokens, more) + 1e-12
    assert survival.chance(tokens, 0) == 1.0


def test_a_bin_that_nobody_survived_leaves_a_little_hope() -> None:
    assert Survival([1.0] * BINS, 0.0).chance(0, 1) == pytest.approx(0.001)


def test_the_mean_of_a_constant_hazard_is_that_of_an_exponential() -> None:
    rate = 1 / 200
    survival = Survival([1 - exp(-rate * width) for width in WIDTHS], 0.0)
    assert survival.mean_further(0, 10**6) == pytest.approx(200, rel=0.03)
    assert survival.mean_further(700, 10**6) == pytest.approx(200, rel=0.03)  # it has no memory
    assert survival.mean_further(0, 200) == pytest.approx(200 * (1 - exp(-1)), rel=0.03)


def test_the_mean_ends_where_the_limit_does() -> None:
    never = Survival([0.0] * BINS, 0.0)
    assert [never.mean_further(10, most) for most in (-1, 0, 1, 77)] == [0, 0, 1, 77]
    assert never.mean_further(MAX_TOKENS - 5, 100) == 100  # beyond the last bin


def test_the_table_of_bins_says_the_same_as_the_formula() -> None:
    assert len(BIN_OF) == MOST_IN_TABLE
    assert all(BIN_OF[tokens] == bin_of(tokens) for tokens in (*range(5000), 40_000, MOST_IN_TABLE - 1))


def test_what_is_asked_for_again_and_again_is_remembered_and_bounded() -> None:
    survival = Survival([0.05] * BINS, 0.0)
    moments = (0, 10, 100)
    assert survival.chances(moments) == [survival.chance(0, moment) for moment in moments]
    assert survival.chances(moments) is survival.chances(moments)
    for limit in range(1, 200):
        assert survival.mean_tokens(limit) == survival.mean_further(0, limit)
    assert survival.mean_tokens(199) == survival.mean_further(0, 199)
    assert len(survival._means) <= 64
