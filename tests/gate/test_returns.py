"""Who was told when to come back, and what is kept for those who do."""

from collections.abc import Callable

import pytest

from kvbudget.gate.events import Arrived
from kvbudget.gate.returns import (
    EARLY_NS,
    FEW_SHARE,
    LATE_NS,
    MOST_BOOKED,
    MOST_UNKNOWN,
    PART,
    START_SHARE,
    Returns,
)

Arrive = Callable[..., Arrived]
SECOND = 10**9


def told(returns: Returns, event: Arrived, now_ns: int = 0, wait_ns: int = 4 * SECOND, blocks: int = 40) -> int:
    return returns.tell(event, wait_ns, 96 * SECOND, blocks, 7, now_ns)


def many_come_back(returns: Returns, arrive: Arrive) -> None:
    for number in range(40):
        wait_ns = told(returns, arrive("a", 100, 20), number * 10 * SECOND)
        assert returns.claim(arrive("a.2", 100, 20), number * 10 * SECOND + wait_ns) is not None
    assert returns.share > 0.9


def test_who_comes_when_told_is_known_again_once(arrive: Arrive) -> None:
    returns = Returns()
    wait_ns = told(returns, arrive("a", 100, 20))
    booking = returns.claim(arrive("a.2", 100, 20), wait_ns)
    assert booking is not None
    assert booking.number == 7
    assert returns.claim(arrive("a.3", 100, 20), wait_ns) is None


@pytest.mark.parametrize("other", [{"prompt": 101}, {"new": 21}, {"tenant": "b"}, {"route": "x"}, {"priority": 1}])
def test_who_asks_for_something_else_is_somebody_else(arrive: Arrive, other: dict[str, object]) -> None:
    returns = Returns()
    wait_ns = told(returns, arrive("a", 100, 20))
    assert returns.claim(arrive("b", **{"prompt": 100, "new": 20, **other}), wait_ns) is None


def test_too_early_is_no_return_and_too_late_is_none_either(arrive: Arrive) -> None:
    returns = Returns()
    wait_ns = told(returns, arrive("a", 100, 20))
    assert returns.claim(arrive("b", 100, 20), wait_ns - EARLY_NS - 1) is None
    assert returns.claim(arrive("c", 100, 20), wait_ns + wait_ns // 4 + LATE_NS + 1) is None
    assert returns.share < START_SHARE * 15 / 16  # and the two who came early say that it was chance


def test_nobody_is_told_less_than_room_is_expected_in_or_more_than_the_most(arrive: Arrive) -> None:
    returns = Returns()
    many_come_back(returns, arrive)
    now_ns = 1000 * SECOND
    waits = [returns.tell(arrive("a"), 4 * SECOND, 60 * SECOND, 1, 0, now_ns) for _ in range(300)]
    assert waits[0] == 4 * SECOND
    assert waits == sorted(waits)
    assert waits[-1] == 60 * SECOND


def test_before_it_is_known_whether_anybody_comes_back_nobody_is_told_much_more_than_is_expected(
    arrive: Arrive,
) -> None:
    returns = Returns()
    waits = [returns.tell(arrive(f"a{n}", 16 + n), 4 * SECOND, 60 * SECOND, 1, 0, 0) for n in range(300)]
    assert max(waits) == MOST_UNKNOWN * 4 * SECOND


def test_who_asks_for_the_same_all_the_time_is_not_taken_for_one_who_comes_back(arrive: Arrive) -> None:
    returns = Returns()
    claimed = 0
    for tenth in range(600):  # ten a second, all alike, and all refused
        now_ns = tenth * SECOND // 10
        claimed += returns.claim(arrive("a"), now_ns) is not None
        waited_ns = returns.tell(arrive("a"), 4 * SECOND, 60 * SECOND, 1, 0, now_ns)
    assert claimed > 300
    assert returns.share < FEW_SHARE
    assert waited_ns == 4 * SECOND


def test_who_is_told_later_comes_later_at_a_part_of_the_pace_at_which_requests_are_let_in(arrive: Arrive) -> None:
    returns = Returns()
    for number in range(400):
        returns.let_in(number * SECOND // 10)  # ten a second
    now_ns = 40 * SECOND
    assert returns.pace_ns(now_ns) == pytest.approx(SECOND / 10, rel=0.05)
    first, second = told(returns, arrive("a"), now_ns), told(returns, arrive("b"), now_ns)
    assert second - first == pytest.approx(START_SHARE * SECOND / 10 / PART, rel=0.05)


def test_before_anybody_was_let_in_the_pace_is_a_second() -> None:
    assert Returns().pace_ns(0) == pytest.approx(SECOND, rel=0.06)


def test_room_is_kept_when_somebody_is_due_and_given_up_when_nobody_came(arrive: Arrive) -> None:
    returns = Returns()
    wait_ns = told(returns, arrive("a"))
    assert returns.kept_blocks(1000, wait_ns - EARLY_NS - 1) == 0
    share = START_SHARE
    assert returns.kept_blocks(1000, wait_ns) == int(40 * share + 40 * (share * (1 - share)) ** 0.5)
    assert returns.kept_blocks(100, wait_ns) == 10  # a tenth of the pool at most
    assert returns.kept_blocks(1000, wait_ns + wait_ns // 4 + LATE_NS + 1) == 0


def test_who_came_needs_no_room_kept_any_more(arrive: Arrive) -> None:
    returns = Returns()
    wait_ns = told(returns, arrive("a"))
    told(returns, arrive("b", 99), 0)
    both_due_ns = wait_ns + 2 * SECOND
    for_both = returns.kept_blocks(10_000, both_due_ns)
    assert returns.claim(arrive("a.2"), both_due_ns) is not None
    assert 0 < returns.kept_blocks(10_000, both_due_ns) < for_both
    assert returns.claim(arrive("b.2", 99), both_due_ns) is not None
    assert returns.kept_blocks(10_000, both_due_ns) == 0


def test_where_nobody_comes_back_nothing_is_kept_and_nobody_waits_for_others(arrive: Arrive) -> None:
    returns = Returns()
    for number in range(40):
        told(returns, arrive("a", 16 + number), number * 100 * SECOND)
    now_ns = 40 * 100 * SECOND
    assert returns.claim(arrive("z"), now_ns) is None  # looks at what has passed
    assert returns.share < FEW_SHARE
    first, second = told(returns, arrive("a"), now_ns), told(returns, arrive("b", 99), now_ns)
    assert second - first < SECOND
    assert returns.kept_blocks(1000, now_ns + first) == 0


def test_equal_requests_take_the_first_due_place_each(arrive: Arrive) -> None:
    returns = Returns()
    first, second = told(returns, arrive("a")), told(returns, arrive("a"))
    assert second > first + EARLY_NS
    assert returns.claim(arrive("a.2"), first) is not None
    assert returns.claim(arrive("a.3"), first) is None
    assert returns.claim(arrive("a.4"), second) is not None


def test_who_came_early_for_its_room_is_not_given_more_later(arrive: Arrive) -> None:
    returns = Returns()
    wait_ns = told(returns, arrive("a"))
    assert returns.claim(arrive("a.2"), wait_ns - EARLY_NS) is not None
    told(returns, arrive("b", 99), wait_ns)
    assert returns.kept_blocks(1000, wait_ns + SECOND) == 0


def test_a_storm_of_refusals_is_not_remembered_without_bound(arrive: Arrive) -> None:
    returns = Returns()
    for _ in range(MOST_BOOKED + 100):
        told(returns, arrive("a"))
    assert returns._booked == MOST_BOOKED
