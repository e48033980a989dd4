from math import exp, isclose

from kvbudget.gate.learning.level import FADE_NS, HAPPENED_FADE_NS, Fading, Level


def test_before_time_has_passed_it_is_what_it_is_now() -> None:
    level = Level(5)
    level.change(3.0, 5)
    assert level.measure(5) == (3.0, 0.0)


def test_what_stays_the_same_has_that_mean_from_the_start_and_no_variance() -> None:
    level = Level(0)
    level.change(7.0, 0)
    mean, variance = level.measure(FADE_NS // 100)
    assert isclose(mean, 7.0)
    assert variance < 1e-9


def test_half_the_time_up_and_half_down_varies_by_half_the_height() -> None:
    level, up = Level(0), True
    for beat in range(4000):
        level.change(10.0 if up else -10.0, beat * FADE_NS // 400)
        up = not up
    mean, variance = level.measure(4000 * FADE_NS // 400)
    assert abs(mean - 5.0) < 0.1
    assert abs(variance - 25.0) < 0.1


def test_of_what_happened_a_third_counts_after_the_fade_time() -> None:
    happened = Fading(0)
    happened.add(100, 0)
    assert happened.measure(0) == 100
    assert 36 < happened.measure(HAPPENED_FADE_NS) < 37


def test_what_was_fades() -> None:
    level = Level(0)
    level.change(8.0, 0)
    level.change(-8.0, 100 * FADE_NS)
    assert isclose(level.measure(101 * FADE_NS)[0], 8.0 * exp(-1), rel_tol=1e-6)


def test_a_short_peak_counts_two_thirds_until_it_lasts() -> None:
    level = Level(0)
    level.change(1.0, 0)
    level.measure(10 * FADE_NS)
    level.change(8.0, 10 * FADE_NS)
    assert level.lasting(10 * FADE_NS) == 6.0
    assert level.lasting(30 * FADE_NS) > 8.9
