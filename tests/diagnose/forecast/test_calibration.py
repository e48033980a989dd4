"""Chances that were learned elsewhere are corrected; the threshold is half of the F1 that can be reached."""

import random
from math import log

import pytest

from kvbudget.diagnose.forecast.calibration import Calibration, Threshold
from kvbudget.diagnose.forecast.features import PLAIN, Situation
from kvbudget.diagnose.forecast.trees import Trees

SITUATION = Situation(log(1e6), (0.0,) * len(PLAIN))


@pytest.mark.parametrize(("often", "way"), [(0.6, 1), (0.02, -1)])
def test_what_happens_more_often_than_told_gets_likelier(often: float, way: int) -> None:
    generator, calibration = random.Random(5), Calibration(Trees("-1.0 =0"), 30)
    before = calibration.probability(SITUATION, SITUATION.level + 0.3)
    for _ in range(3000):
        calibration.imagine(SITUATION)
        calibration.learn(SITUATION.level + (9.0 if generator.random() < often else 0.0), known=True)
    after = calibration.probability(SITUATION, SITUATION.level + 0.3)
    assert (after - before) * way > 0.05
    assert after == pytest.approx(often, abs=0.15)


def test_minutes_that_were_filled_in_teach_nothing() -> None:
    calibration = Calibration(Trees("-1.0 =0"), 30)
    before = calibration.probability(SITUATION, SITUATION.level)
    for _ in range(500):
        calibration.imagine(SITUATION)
        calibration.skip()
        calibration.learn(99.0, known=False)
        calibration.learn(99.0, known=True)  # nothing was foretold then
    assert calibration.probability(SITUATION, SITUATION.level) == before


def prior(chance: float, share: float) -> tuple[tuple[float, float], ...]:
    bins = [(0.0, 0.0)] * 20
    bins[0] = (1 - share, 0.001)
    bins[min(19, int(chance * 20))] = (share, share * chance)
    return tuple(bins)


def test_sure_chances_warn_late_and_unsure_ones_early() -> None:
    assert Threshold(prior(0.95, 0.1)).value > 0.42
    assert 0.1 <= Threshold(prior(0.3, 0.1)).value < 0.3


def test_the_threshold_moves_with_the_chances_that_are_given() -> None:
    threshold = Threshold(prior(0.3, 0.1))
    before = threshold.value
    for at in range(20_000):
        threshold.decided(0.97 if at % 10 == 0 else 0.001)
    assert threshold.value > before
