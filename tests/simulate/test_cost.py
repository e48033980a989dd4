"""How long a step takes."""

import pytest

from kvbudget.errors import BadValueError
from kvbudget.simulate.cost import DEFAULT_COST, StepCost, parse_step_cost


def test_a_step_is_a_sum_without_rounding() -> None:
    assert StepCost(5, 7, 11, 13).step_ns(2, 3, 4) == 5 + 14 + 33 + 52
    assert DEFAULT_COST.step_ns(8192, 0, 8192) == 5_500_000 + 8192 * 50_044
    assert StepCost(0, 0, 0, 1).step_ns(0, 1, 0) == 1  # or time would stand still


def test_what_is_not_named_keeps_its_default() -> None:
    assert parse_step_cost("base:7000000, context:40") == StepCost(7_000_000, 50_000, 20_000, 40)


@pytest.mark.parametrize(
    "text",
    ["", "base", "base:", "base:-1", "base:1.5", "speed:1", "base:99999999999999", "base:٣", "base:9999999999999"],
)
def test_anything_else_is_an_error_that_says_what_to_write(text: str) -> None:
    with pytest.raises(BadValueError, match="step-cost"):
        parse_step_cost(text)


def test_a_step_that_costs_nothing_at_all_is_an_error() -> None:
    with pytest.raises(BadValueError, match="nothing at all"):
        parse_step_cost("base:0,prefill:0,decode:0,context:0")
