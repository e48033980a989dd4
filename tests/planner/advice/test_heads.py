"""Budgets of heads: every kept token is dealt out once, and what a shared block table leaves of the gain."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbudget.errors import BadValueError
from kvbudget.planner.advice.heads import head_budgets, heads_lines, heads_of, parse_needs
from kvbudget.planner.build import make_plan
from kvbudget.planner.request import PlanRequest
from kvbudget.units import GIB, Bytes

MakeRequest = Callable[..., PlanRequest]


def plan_of(request_of: MakeRequest, **more: Any) -> Any:
    return make_plan(request_of(**({"kv_cache_memory": Bytes(6 * GIB), "max_model_len": 8192} | more)))


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40), st.integers(0, 10**6), st.floats(0, 1))
def test_head_budgets_spend_exactly_the_total(weights: list[float], tokens: int, least: float) -> None:
    budgets = head_budgets(weights, tokens, least)
    assert sum(budgets) == tokens
    assert min(budgets) >= int(tokens * least / len(weights)) - 1


def test_a_head_that_needs_more_gets_more_and_none_goes_empty() -> None:
    assert head_budgets([3, 1, 0, 0], 1000, 0.2) == (650, 250, 50, 50)
    assert head_budgets([0, 0], 11) == (6, 5)


@pytest.mark.parametrize(
    ("weights", "tokens", "least"), [([], 1, 0.2), ([-1.0], 1, 0.2), ([1.0], -1, 0), ([1.0], 1, 2)]
)
def test_budgets_of_nothing_are_refused(weights: list[float], tokens: int, least: float) -> None:
    with pytest.raises(BadValueError):
        head_budgets(weights, tokens, least)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40), st.integers(0, 10**5), st.integers(1, 10**4))
def test_no_head_keeps_more_than_there_is(weights: list[float], tokens: int, most: int) -> None:
    budgets = head_budgets(weights, tokens, most=most)
    assert max(budgets) <= most
    assert sum(budgets) == min(tokens, most * len(weights))


def test_uneven_heads_free_blocks_only_with_tables_of_their_own(request_of: MakeRequest) -> None:
    """A quarter of 8,192 tokens of eight heads; the first needs most, and a shared table keeps what it keeps."""
    found = heads_of(plan_of(request_of), (8, 1, 1, 1, 1, 1, 1, 1))
    assert sum(found.budgets) == 8 * 2048
    assert max(found.budgets) == found.budgets[0] == 7400
    assert (found.today, found.requests, found.requests_one_table) == (5, 23, 6)
    even = heads_of(plan_of(request_of), (1,) * 8)
    assert even.requests == even.requests_one_table == 23
    assert "23 requests if every head had a block table of its own, 6 with one" in heads_lines(found)[0]


def test_needs_are_given_for_each_head_that_the_model_has(request_of: MakeRequest) -> None:
    assert parse_needs("8,4, 2,1") == (8, 4, 2, 1)
    with pytest.raises(BadValueError, match=r"2 numbers, but .* has 8"):
        heads_of(plan_of(request_of), (1, 2))
    for text in ("", "a", "1,-1", "inf", "nan", ",".join(["1"] * 2000)):
        with pytest.raises(BadValueError, match="--head-needs"):
            parse_needs(text)
