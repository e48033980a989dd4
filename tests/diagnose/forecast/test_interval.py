"""An interval holds the share of truths that it promises, however wrong the bounds that it began with."""

import random

import pytest

from kvbudget.diagnose.forecast.interval import NOMINAL, Stretch


@pytest.mark.parametrize("width", [0.02, 0.3, 5.0])
def test_the_share_inside_tends_to_what_is_promised(width: float) -> None:
    generator, stretch = random.Random(7), Stretch()
    for at in range(8000):
        told = stretch.around(-width, 0.0, width)
        heavy = generator.gauss(0, 0.2) * (4 if generator.random() < 0.05 else 1) * (3 if at > 4000 else 1)
        stretch.learn(told, heavy, count=at >= 300)
    coverage = stretch.coverage
    assert coverage is not None
    assert abs(coverage - NOMINAL) < 0.02


def test_truths_that_do_not_count_are_learned_from() -> None:
    stretch = Stretch()
    before = stretch.around(-1.0, 0.0, 1.0)
    stretch.learn(before, 9.0, count=False)
    assert stretch.around(-1.0, 0.0, 1.0).high > before.high
    assert (stretch.coverage, stretch.truths) == (None, 0)


def test_bounds_that_touch_the_middle_are_kept_apart() -> None:
    told = Stretch().around(2.0, 2.0, 2.0)
    assert told.low < told.middle < told.high
