"""What a batch was said to hold is compared with what it came to hold."""

import pytest

from kvbudget.gate.learning.hindsight import HORIZON_STEPS, Hindsight
from kvbudget.pool.risk import Outlook
from kvbudget.pool.share import share_of
from kvbudget.pool.survival import BINS, Survival

HALF_LIFE = Survival([0.05] * BINS, 0.0)


def outlook_of(sequences: int) -> Outlook:
    outlook = Outlook()
    for number in range(sequences):
        share = share_of(HALF_LIFE, made_tokens=1, limit_tokens=4096, held=40.0, per_step=1 / 16, sequences=1)
        outlook.add(str(number), share)
    return outlook


def said(outlook: Outlook) -> float:
    return outlook.mean[5]


def test_who_holds_what_was_said_leaves_no_trace() -> None:
    hindsight, outlook = Hindsight(), outlook_of(10)
    hindsight.foretell(0, outlook, 10)
    assert not hindsight.due(HORIZON_STEPS - 1)
    assert hindsight.due(HORIZON_STEPS)
    hindsight.judge(HORIZON_STEPS, said(outlook))
    assert hindsight.bias == pytest.approx(0.0)
    assert not hindsight.due(10**6)


def test_more_than_was_said_asks_for_caution_and_less_for_nothing() -> None:
    more, less, outlook = Hindsight(), Hindsight(), outlook_of(10)
    for start in range(0, 5 * HORIZON_STEPS, HORIZON_STEPS):
        for hindsight, held in ((more, 400.0), (less, 0.0)):
            hindsight.foretell(start, outlook, 10)
            hindsight.judge(start + HORIZON_STEPS, held)
    assert more.excess > 0.5
    assert less.bias < -0.5
    assert less.excess == 0.0


def test_one_error_however_large_is_not_the_whole_truth() -> None:
    hindsight, outlook = Hindsight(), outlook_of(10)
    hindsight.foretell(0, outlook, 10)
    hindsight.judge(HORIZON_STEPS, 1e9)
    assert hindsight.bias == pytest.approx(0.6)


def test_who_looks_late_is_told_what_was_said_for_then() -> None:
    early, late, outlook = Hindsight(), Hindsight(), outlook_of(10)
    for hindsight in (early, late):
        hindsight.foretell(0, outlook, 10)
    early.judge(HORIZON_STEPS, outlook.mean[6])
    late.judge(96, outlook.mean[6])
    assert early.bias < -0.01
    assert late.bias == pytest.approx(0.0)


def test_a_forecast_that_is_out_stands_until_it_is_judged_or_forgotten() -> None:
    hindsight = Hindsight()
    hindsight.foretell(0, outlook_of(10), 10)
    hindsight.foretell(30, outlook_of(20), 20)
    assert hindsight.newest == 10
    hindsight.forget()
    assert not hindsight.due(10**6)
    hindsight.judge(10**6, 5.0)  # nothing is out
    assert hindsight.bias == 0.0
    hindsight.foretell(60, outlook_of(20), 20)
    assert hindsight.newest == 20


def test_a_few_or_those_of_known_length_tell_nothing() -> None:
    hindsight = Hindsight()
    hindsight.foretell(0, outlook_of(3), 3)
    assert not hindsight.due(10**6)
    known = Outlook()
    for number in range(9):
        share = share_of(None, made_tokens=0, limit_tokens=4096, held=4.0, per_step=1 / 16, sequences=1)
        known.add(str(number), share)
    hindsight.foretell(0, known, 9)
    assert not hindsight.due(10**6)
