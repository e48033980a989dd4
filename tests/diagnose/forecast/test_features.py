"""Features are ratios, and there is one for every name."""

from math import log

import pytest

from kvbudget.diagnose.forecast.features import NAMES, PLAIN, beside, situation_of
from kvbudget.diagnose.forecast.history import History
from made_demand import made_demand


def history_of(values: list[float]) -> History:
    history = History(30)
    for value in values:
        history.push(value)
    return history


@pytest.mark.parametrize("days", [0.001, 0.05, 1.2, 8.0])
def test_there_is_a_value_for_every_name_from_the_first_minute_on(days: float) -> None:
    situation = situation_of(history_of(made_demand(1, days)))
    assert len(situation.values) == len(PLAIN)
    assert len(beside(situation, log(2e6))) == len(NAMES) == len(set(NAMES))


def test_demand_a_thousand_times_as_high_looks_the_same() -> None:
    values = made_demand(2, 2.0)
    low = beside(situation_of(history_of(values)), log(2e6))
    high = beside(situation_of(history_of([1000 * value for value in values])), log(2e9))
    assert high == pytest.approx(low, abs=1e-3)


def test_what_other_days_brought_at_this_time_is_seen() -> None:
    day = [1e6] * 1440
    day[700:730] = [3e6] * 30
    values = dict(zip(PLAIN, situation_of(history_of(day * 3 + day[:690])).values, strict=True))
    assert values["days_growth_1"] == pytest.approx(log(3))
    assert values["days_high_middle"] == pytest.approx(log(3))
    calm = dict(zip(PLAIN, situation_of(history_of(day * 3 + day[:300])).values, strict=True))
    assert calm["days_growth_high"] == pytest.approx(0.0, abs=1e-6)


def test_the_same_time_a_week_ago_is_seen() -> None:
    day = [1e6] * 1440
    busy = [*day[:700], *[2e6] * 30, *day[730:]]
    week = busy + day * 6
    values = dict(zip(PLAIN, situation_of(history_of(week + day[:690])).values, strict=True))
    assert values["days_high_week"] == pytest.approx(log(2))
    assert values["days_high_1"] == pytest.approx(0.0, abs=1e-6)
