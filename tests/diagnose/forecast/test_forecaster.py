"""Forecasts rest on the past alone, say what they do not know, and are scored by what came."""

import time
from collections.abc import Sequence
from math import inf, nan
from statistics import median

import pytest

from kvbudget.diagnose.forecast.forecaster import Forecast, Forecaster
from kvbudget.errors import BadValueError
from made_demand import made_demand


def run(forecaster: Forecaster, values: Sequence[float | None], first: int = 0) -> list[Forecast | None]:
    return [forecaster.observe(first + at, value) for at, value in enumerate(values)]


def told(forecaster: Forecaster, values: list[float], first: int = 0) -> list[Forecast]:
    return [one for one in run(forecaster, values, first) if one is not None]


def test_another_future_changes_nothing_that_was_said_before() -> None:
    values = made_demand(1, 1.6)
    other = values[:2000] + [9e6] * (len(values) - 2000)
    assert told(Forecaster(3e6), values)[:2000] == told(Forecaster(3e6), other)[:2000]


def test_the_same_series_gives_the_same_forecasts() -> None:
    values = made_demand(2, 0.4)
    assert told(Forecaster(3e6), values) == told(Forecaster(3e6), values)


def test_units_do_not_matter() -> None:
    values = made_demand(3, 1.2)
    low = told(Forecaster(2.5e6), values)[-1]
    high = told(Forecaster(2.5e9), [1000 * value for value in values])[-1]
    assert high.probability == pytest.approx(low.probability, abs=0.02)
    assert high.high == pytest.approx(1000 * low.high, rel=0.02)


def test_a_steep_rise_warns_before_the_limit_and_calm_does_not() -> None:
    calm = made_demand(4, 1.0, season=0.0, bursts_a_day=0.0)
    forecaster = Forecaster(3e6)
    quiet = told(forecaster, calm)
    assert not any(one.alarm for one in quiet[30:])
    rise = told(forecaster, [1e6 + 6e4 * at for at in range(35)], len(calm))
    reached = next(at for at, one in enumerate(rise) if one.saturated)
    first = next(at for at, one in enumerate(rise) if one.alarm)
    assert reached - first >= 5
    assert 1 <= rise[reached - 10].minutes_to_limit <= 30


def test_at_the_limit_it_is_certain() -> None:
    now = told(Forecaster(1e6), [9.5e5] * 40)[-1]
    assert (now.saturated, now.alarm, now.probability, now.minutes_to_limit) == (True, True, 1.0, 0)
    below = told(Forecaster(1e6), [9.4e5] * 40)[-1]
    assert not below.saturated


@pytest.mark.parametrize("seed", [5, 6])
def test_the_interval_holds_nine_of_ten_maxima(seed: int) -> None:
    forecaster = Forecaster(3e6)
    told(forecaster, made_demand(seed, 6.0, season=0.3 * seed - 1.0))
    coverage, truths = forecaster.coverage
    assert coverage is not None
    assert truths == 5 * 1440 - 30
    assert abs(coverage - 0.9) < 0.03


def test_it_tells_more_than_a_straight_line_on_a_series_that_nothing_was_learned_from() -> None:
    values = made_demand(12, 5.0, bursts_a_day=3.0)
    forecaster = Forecaster(sorted(values)[int(0.96 * len(values))] / 0.95)
    told(forecaster, values)
    f1 = {name: figures.f1 or 0.0 for name, figures in forecaster.scores().items()}
    assert f1["forecast"] > 0.3
    assert f1["forecast"] > max(f1["predict_linear_15m"], f1["predict_linear_60m"])


def test_it_says_how_little_it_has_seen() -> None:
    forecasts = told(Forecaster(3e6), made_demand(7, 7.2))
    found = {one.maturity: at for at, one in reversed(list(enumerate(forecasts)))}
    assert found == {"cold": 0, "first day": 14, "first week": 1440, "week": 7 * 1440}
    cold, warm = forecasts[2], forecasts[5000]
    assert cold.high / cold.low > 1.2 * (warm.high / warm.low)


def test_minutes_that_are_missing_are_filled_in_and_told() -> None:
    values = made_demand(8, 1.5)
    forecaster = Forecaster(3e6)
    told(forecaster, values[:1500])
    assert forecaster.observe(1510, 1e6) is not None
    after = forecaster.observe(1511, 1e6)
    assert after is not None
    assert after.filled == 10
    unknown = forecaster.observe(1512, None)
    assert unknown is not None
    assert (unknown.filled, unknown.tokens) == (11, 1e6)


def test_nothing_is_scored_of_minutes_that_are_not_known() -> None:
    forecaster = Forecaster(3e6)
    told(forecaster, made_demand(8, 1.2))
    before = forecaster.scores()["forecast"].decisions
    run(forecaster, [None] * 200, 1728)
    assert forecaster.scores()["forecast"].decisions - before <= 16


def test_a_long_gap_is_filled_with_the_day_before() -> None:
    forecaster = Forecaster(9e6)
    run(forecaster, [1e6] * 1000 + [5e6] * 440)
    forecaster.observe(1440, 1e6)
    late = forecaster.observe(1440 + 1100, None)
    assert late is not None
    assert late.tokens == 5e6


def test_after_more_than_a_week_it_starts_anew() -> None:
    forecaster = Forecaster(3e6)
    told(forecaster, made_demand(9, 1.1))
    again = forecaster.observe(30_000, 1e6)
    assert again is not None
    assert again.maturity == "cold"
    told(forecaster, made_demand(9, 0.2), 30_001)


def test_nothing_is_said_before_the_first_value() -> None:
    forecaster = Forecaster(3e6)
    assert run(forecaster, [None, None]) == [None, None]
    assert forecaster.observe(7, 1e6) is not None


def test_another_capacity_holds_from_the_next_minute_on() -> None:
    forecaster = Forecaster(3e6)
    told(forecaster, [1e6] * 50)
    forecaster.resize(1e6)
    now = forecaster.observe(50, 1e6)
    assert now is not None
    assert (now.saturated, now.limit_tokens) == (True, 0.95e6)
    assert forecaster.scores()["forecast"].decisions == 0


@pytest.mark.parametrize("tokens", [-1.0, nan, inf, 1e16])
def test_damaged_demand_is_refused(tokens: float) -> None:
    forecaster = Forecaster(3e6)
    forecaster.observe(0, 1.0)
    with pytest.raises(BadValueError, match="demand of"):
        forecaster.observe(1, tokens)
    assert forecaster.observe(1, 1.0) is not None


@pytest.mark.parametrize("minute", [5, 4])
def test_a_minute_comes_once_and_in_order(minute: int) -> None:
    forecaster = Forecaster(3e6)
    forecaster.observe(5, 1.0)
    with pytest.raises(BadValueError, match=f"minute {minute} comes after minute 5"):
        forecaster.observe(minute, 1.0)


@pytest.mark.parametrize("capacity", [0.0, -5.0, nan, inf])
def test_a_capacity_is_a_number_of_tokens(capacity: float) -> None:
    with pytest.raises(BadValueError, match="a capacity of"):
        Forecaster(capacity)
    with pytest.raises(BadValueError, match="a capacity of"):
        Forecaster(1e6).resize(capacity)


@pytest.mark.parametrize("horizon", [9, 121])
def test_a_horizon_is_bounded(horizon: int) -> None:
    with pytest.raises(BadValueError, match="10 to 120"):
        Forecaster(1e6, horizon)


@pytest.mark.parametrize("horizon", [10, 120])
def test_other_horizons_work(horizon: int) -> None:
    forecaster = Forecaster(3e6, horizon)
    last = told(forecaster, made_demand(10, 2.0))[-1]
    assert last.low <= last.expected <= last.high
    assert 0.0 <= last.probability <= 1.0


def test_idle_demand_is_no_division_by_zero() -> None:
    forecaster = Forecaster(3e6)
    last = told(forecaster, [0.0] * 1500)[-1]
    assert not last.alarm
    assert last.high < 100


def test_a_decision_costs_less_than_five_milliseconds() -> None:
    forecaster, values = Forecaster(3e6), made_demand(11, 1.3)
    told(forecaster, values[:-200])
    spent = []
    for at, value in enumerate(values[-200:], len(values) - 200):
        began = time.process_time_ns()
        forecaster.observe(at, value)
        spent.append(time.process_time_ns() - began)
    assert median(spent) < 5_000_000
