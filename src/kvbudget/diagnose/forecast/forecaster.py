"""Decides every minute how likely demand is to reach the limit within the horizon, whether to warn, and keeps score.

Rules:
1. It learns of a forecast only what has come since: each rests on the past alone.
2. What is known of traffic in general was learned beforehand from made series (`forecast.learned`); of this series it
   knows its own level, trend, roughness, days and week, and how far its interval and its probabilities missed.
3. It warns where the probability is above a threshold that it finds by itself (`forecast.calibration`), and at the
   limit itself.
4. A minute without value is filled in, and no forecast that looked at mostly such minutes is scored. After more than a
   week without values everything starts anew.
5. Minutes at the limit are no decisions: there is nothing left to warn of.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import exp, isfinite, log
from typing import Final, NamedTuple

from kvbudget.diagnose.forecast.baselines import BESIDE, SATURATED, Rule
from kvbudget.diagnose.forecast.calibration import Calibration, Threshold
from kvbudget.diagnose.forecast.features import beside, situation_of
from kvbudget.diagnose.forecast.history import DAY_MINUTES, WEEK_MINUTES, History
from kvbudget.diagnose.forecast.interval import Interval, Stretch
from kvbudget.diagnose.forecast.score import Figures, Score
from kvbudget.diagnose.forecast.trees import Trees
from kvbudget.errors import BadValueError

SHORTEST_MINUTES: Final = 10
LONGEST_MINUTES: Final = 120
COLD_MINUTES: Final = 15
_HELD_MINUTES: Final = 30  # a gap up to this long is bridged with its last value, a longer one with the day before
_MOST_TOKENS: Final = 1e15
_NAME: Final = "forecast"


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is expected after `minute`. Tokens are demand: what would have to be in flight to serve everybody.

    `probability`: that demand reaches `limit_tokens` (95 % of capacity) within the horizon; 1 where it has.
    `alarm_above`: the probability from which on it warns. `minutes_to_limit`: when the limit is reached, if it is; 0
    where it has been. `expected`, `low` and `high`: of the maximum within the horizon; the interval holds it in
    `interval.NOMINAL` of the cases. `maturity`: "cold" (under 15 minutes seen), "first day" (no season yet), "first
    week" or "week". `filled`: of the last horizon's minutes, those without a value.
    """

    minute: int
    tokens: float
    capacity_tokens: float
    limit_tokens: float
    horizon_minutes: int
    saturated: bool
    alarm: bool
    probability: float
    alarm_above: float
    minutes_to_limit: int
    expected: float
    low: float
    high: float
    maturity: str
    filled: int


class _Told(NamedTuple):
    """A forecast until it is known what came."""

    limit: float
    interval: Interval
    decision: bool
    warned: tuple[bool, ...]
    counts: bool


@dataclass(slots=True)
class _Learned:
    chance: Trees
    low: Trees
    middle: Trees
    high: Trees
    when: Trees
    prior: tuple[tuple[float, float], ...]


class Forecaster:
    """State of one series. `observe` every minute; a value costs the same however long it has been running."""

    def __init__(
        self,
        capacity_tokens: float,
        horizon_minutes: int = 30,
        *,
        scored_after_minutes: int = DAY_MINUTES,
        rules: Mapping[str, Rule] = BESIDE,
    ) -> None:
        """`rules` are scored beside it. Raises BadValueError where a number is outside of what it can work with."""
        if not SHORTEST_MINUTES <= horizon_minutes <= LONGEST_MINUTES:
            raise BadValueError(
                f"the horizon is {horizon_minutes} minutes; it can be {SHORTEST_MINUTES} to {LONGEST_MINUTES}",
                fix="30 is what it was tried with most",
            )
        self.horizon = horizon_minutes
        self._capacity = _checked_capacity(capacity_tokens)
        self._scored_after = scored_after_minutes
        self._rules = dict(rules)
        self._learned = _learned()
        self._calibration = Calibration(self._learned.chance, horizon_minutes)
        self._threshold = Threshold(self._learned.prior)
        self._stretch = Stretch()
        self._scores = {name: Score(horizon_minutes) for name in (_NAME, *self._rules)}
        self._history = History(horizon_minutes)
        self._told: deque[_Told] = deque()
        self._filled: deque[bool] = deque(maxlen=horizon_minutes)
        self._minute: int | None = None
        self._first_minute = 0

    @property
    def capacity_tokens(self) -> float:
        """What the pool holds."""
        return self._capacity

    def resize(self, capacity_tokens: float) -> None:
        """The pool holds another number of tokens from now on; what was told before is judged by what held then."""
        self._capacity = _checked_capacity(capacity_tokens)

    def observe(self, minute: int, tokens: float | None) -> Forecast | None:
        """Demand of one minute; None: unknown. Returns what is expected now; None until the first value.

        Minutes that were left out are filled in. Raises BadValueError for one that is not after the last, and for
        tokens that are negative, no number, or above 1e15.
        """
        if tokens is not None and not (isfinite(tokens) and 0 <= tokens <= _MOST_TOKENS):
            raise BadValueError(f"demand of {tokens} tokens", fix="it is a number from 0 to 1e15, empty where unknown")
        last = self._minute
        if last is not None and minute <= last:
            raise BadValueError(f"minute {minute} comes after minute {last}", fix="sort them, each once")
        if last is None or minute - last > WEEK_MINUTES:
            if tokens is None:
                return None
            self._start_anew(minute)
        else:
            for between in range(last + 1, minute):
                self._take(between, None, look=False)
        return self._take(minute, tokens, look=True)

    def scores(self) -> dict[str, Figures]:
        """By name: its own is "forecast", then the rules beside it. Of the time after the first `scored_after`."""
        return {name: score.figures() for name, score in self._scores.items()}

    @property
    def coverage(self) -> tuple[float | None, int]:
        """Share of maxima that were inside their interval, and of how many."""
        return self._stretch.coverage, self._stretch.truths

    def _start_anew(self, minute: int) -> None:
        self._history = History(self.horizon)
        self._told.clear()
        self._calibration.restart()
        self._filled.clear()
        self._first_minute = minute

    def _take(self, minute: int, tokens: float | None, *, look: bool) -> Forecast | None:
        history = self._history
        known = tokens is not None
        history.push(self._stand_in() if tokens is None else tokens)
        self._minute = minute
        self._filled.append(not known)
        if len(self._told) == self.horizon:
            self._judge(self._told.popleft())
        limit = SATURATED * self._capacity
        scored = minute - self._first_minute >= self._scored_after
        if not look:  # nobody asked at this minute
            self._told.append(_Told(limit, Interval(0.0, 0.0, 0.0), False, (), False))
            self._calibration.skip()
            return None
        forecast, interval = self._look(minute, limit)
        warned = (forecast.alarm, *[rule(history, self._capacity) for rule in self._rules.values()])
        self._told.append(_Told(limit, interval, scored and known and not forecast.saturated, warned, scored and known))
        if scored and known:
            for score, warns in zip(self._scores.values(), warned, strict=True):
                score.minute(minute, saturated=forecast.saturated, warns=warns)
        return forecast

    def _look(self, minute: int, limit: float) -> tuple[Forecast, Interval]:
        history, learned = self._history, self._learned
        situation = situation_of(history)
        looked_at = beside(situation, log(limit))
        plain = list(situation.values)
        middle = learned.middle.value(plain)
        interval = self._stretch.around(
            situation.level + min(middle, learned.low.value(plain)),
            situation.level + middle,
            situation.level + max(middle, learned.high.value(plain)),
        )
        tokens = history.tokens[-1]
        saturated = tokens >= limit
        probability = 1.0 if saturated else self._calibration.probability(situation, log(limit))
        self._calibration.imagine(situation)
        if not saturated and history.count > COLD_MINUTES:
            self._threshold.decided(probability)
        share = min(1.0, max(0.0, learned.when.value(looked_at)))
        forecast = Forecast(
            minute=minute,
            tokens=tokens,
            capacity_tokens=self._capacity,
            limit_tokens=limit,
            horizon_minutes=self.horizon,
            saturated=saturated,
            alarm=saturated or probability > self._threshold.value,
            probability=probability,
            alarm_above=self._threshold.value,
            minutes_to_limit=0 if saturated else max(1, round(share * self.horizon)),
            expected=exp(interval.middle),
            low=exp(interval.low),
            high=exp(interval.high),
            maturity=self._maturity(),
            filled=sum(self._filled),
        )
        return forecast, interval

    def _judge(self, told: _Told) -> None:
        """The horizon of a forecast has passed."""
        known = 2 * sum(self._filled) <= self.horizon
        highest = max(self._history.tokens[-self.horizon :])
        highest_log = log(max(highest, self._history.floor()))
        self._calibration.learn(highest_log, known=known)
        if not told.warned or not known:
            return
        self._stretch.learn(told.interval, highest_log, count=told.counts)
        if told.decision:
            for score, warned in zip(self._scores.values(), told.warned, strict=True):
                score.decided(warned=warned, reached=highest >= told.limit)

    def _stand_in(self) -> float:
        tokens = self._history.tokens
        gap = 0
        for filled in reversed(self._filled):
            if not filled:
                break
            gap += 1
        return tokens[-DAY_MINUTES] if gap >= _HELD_MINUTES and len(tokens) >= DAY_MINUTES else tokens[-1]

    def _maturity(self) -> str:
        seen = self._history.count
        if seen < COLD_MINUTES:
            return "cold"
        if seen <= DAY_MINUTES:
            return "first day"
        return "first week" if seen <= WEEK_MINUTES else "week"


def _checked_capacity(tokens: float) -> float:
    if not (isfinite(tokens) and 1 <= tokens <= _MOST_TOKENS):
        raise BadValueError(f"a capacity of {tokens} tokens", fix="give what the pool holds: a number from 1 to 1e15")
    return float(tokens)


@cache
def _learned() -> _Learned:
    """Read when the first forecaster is made: nothing else needs it."""
    from kvbudget.diagnose.forecast.learned.chance import CHANCE, PRIOR
    from kvbudget.diagnose.forecast.learned.growth import HIGH, LOW, MIDDLE, WHEN

    return _Learned(Trees(CHANCE), Trees(LOW), Trees(MIDDLE), Trees(HIGH), Trees(WHEN), PRIOR)
