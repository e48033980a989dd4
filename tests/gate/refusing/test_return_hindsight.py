"""How told times follow what those find who come unannounced, and those who come when told."""

from kvbudget.gate.refusing.return_hindsight import LEAST, LONGER, MOST_OPEN, SHORTER, TOO_LATE, ReturnHindsight
from kvbudget.gate.refusing.return_pace import PROBES, ReturnPace, ReturnShare

SECOND = 10**9


def test_who_finds_room_long_before_another_was_told_to_come_shortens_what_is_told_next() -> None:
    hindsight = ReturnHindsight()
    hindsight.told(50, 60 * SECOND, 0)
    hindsight.newcomer(50, 10 * SECOND)
    assert hindsight.factor == SHORTER


def test_a_time_that_was_nearly_right_changes_nothing() -> None:
    hindsight = ReturnHindsight()
    hindsight.told(50, int(TOO_LATE * 10 * SECOND), 0)
    hindsight.newcomer(50, 10 * SECOND)
    assert hindsight.factor == 1.0


def test_each_refusal_is_judged_once() -> None:
    hindsight = ReturnHindsight()
    hindsight.told(50, 60 * SECOND, 0)
    for second in (10, 11, 12):
        hindsight.newcomer(50, second * SECOND)
    assert hindsight.factor == SHORTER


def test_a_smaller_one_that_finds_room_says_nothing_of_a_larger_one() -> None:
    hindsight = ReturnHindsight()
    hindsight.told(50, 60 * SECOND, 0)
    hindsight.told(20, 60 * SECOND, SECOND)
    hindsight.newcomer(10, 10 * SECOND)
    assert hindsight.factor == 1.0
    hindsight.newcomer(20, 11 * SECOND)
    hindsight.newcomer(50, 12 * SECOND)
    assert hindsight.factor == SHORTER**2


def test_whose_time_has_passed_could_have_come_already() -> None:
    hindsight = ReturnHindsight()
    hindsight.told(50, 5 * SECOND, 0)
    hindsight.told(50, 60 * SECOND, SECOND)
    hindsight.told(50, 4 * SECOND, 2 * SECOND)  # behind one that is still to come
    hindsight.newcomer(50, 10 * SECOND)
    hindsight.newcomer(50, 11 * SECOND)
    assert hindsight.factor == SHORTER


def test_nothing_is_too_late_within_the_second_that_is_told_at_least() -> None:
    hindsight = ReturnHindsight()
    hindsight.told(50, 60 * SECOND, 0)
    hindsight.newcomer(50, SECOND)
    assert hindsight.factor == 1.0


def test_who_comes_when_told_and_finds_no_room_makes_it_longer_again_but_never_longer_than_the_pace() -> None:
    hindsight = ReturnHindsight()
    for number in range(3):
        hindsight.told(50, 60 * SECOND, number * SECOND)
        hindsight.newcomer(50, (10 + number) * SECOND)
    hindsight.found_no_room()
    assert hindsight.factor == SHORTER**3 * LONGER
    hindsight.found_no_room()
    assert hindsight.factor == 1.0


def test_it_is_bounded_below_and_in_memory() -> None:
    hindsight = ReturnHindsight()
    for number in range(10 * MOST_OPEN):
        hindsight.told(50, 600 * SECOND, number)
    for number in range(10 * MOST_OPEN):
        hindsight.newcomer(50, 10 * SECOND + number)
        assert hindsight.factor >= LEAST
    assert hindsight.factor == LEAST
    hindsight.found_no_room()
    hindsight.newcomer(50, 20 * SECOND)  # all that were kept are judged
    assert hindsight.factor == LEAST * LONGER


def test_what_the_pace_tells_is_shortened_by_it() -> None:
    pace = ReturnPace(ReturnShare(), 0)
    for _ in range(PROBES + 1):
        pace.refused(0)
    pace.let_in(100, 0)
    pace.coming_blocks = 1000
    before_ns = pace.after_others_ns(50, 0, SECOND)
    pace.hindsight.told(50, 60 * SECOND, 0)
    pace.hindsight.newcomer(50, 10 * SECOND)
    assert pace.after_others_ns(50, 0, SECOND) == SHORTER * before_ns
