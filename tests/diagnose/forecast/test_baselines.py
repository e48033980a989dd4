"""The rules that a forecast is compared with are the ones that people run."""

import pytest

from kvbudget.diagnose.forecast.baselines import level_rule, line_rule
from kvbudget.diagnose.forecast.history import History


def rising(minutes: int, slope: float) -> History:
    history = History(30)
    for minute in range(minutes):
        history.push(1000.0 + slope * minute)
    return history


def test_a_level_warns_above_its_share_of_capacity() -> None:
    history = rising(1, 0.0)
    assert level_rule(0.75)(history, 1300.0)
    assert not level_rule(0.75)(history, 1000.0 / 0.75)


@pytest.mark.parametrize("minutes", [15, 60])
def test_a_line_is_drawn_to_the_end_of_the_horizon(minutes: int) -> None:
    history = rising(100, 10.0)
    at_the_end = 1000.0 + 10.0 * (99 + 30)
    assert line_rule(minutes)(history, (at_the_end - 1) / 0.95)
    assert not line_rule(minutes)(history, (at_the_end + 1) / 0.95)


def test_a_line_needs_its_minutes() -> None:
    assert not line_rule(60)(rising(59, 1e6), 1e6)
