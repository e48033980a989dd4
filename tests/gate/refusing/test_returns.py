"""Who was told when to come back, and what is kept for those who do."""

from collections.abc import Callable

import pytest

from kvbudget.gate.events import Arrived
from kvbudget.gate.refusing.return_pace import FEW_SHARE, PROBES, START_SHARE
from kvbudget.gate.refusing.returns import (
    EARLY_NS,
    FIRSTS_AT_ONCE,
    LATE_NS,
    MOST_ACCOUNTS,
    MOST_BOOKED,
    MOST_KEPT,
    MOST_KEPT_FOR_ONE,
    Returns,
)

Arrive = Callable[..., Arrived]
SECOND = 10**9


def told(returns: Returns, event: Arrived, now_ns: int = 0, wait_ns: int = 4 * SECOND, blocks: int = 40) -> int:
    return returns.tell(event, wait_ns, 96 * SECOND, blocks, blocks, 7, now_ns)


def many_come_back(returns: Returns, arrive: Arrive) -> None:
    for number in range(40):
        wait_ns = told(returns, arrive("a", 100, 20), number * 100 * SECOND)
        assert returns.claim(arrive("a.2", 100, 20), number * 100 * SECOND + wait_ns) is not None
    assert returns.share.of_all > 0.9


def test_who_comes_when_told_is_known_again_once(arrive: Arrive) -> None:
    returns = Returns()
    wait_ns = told(returns, arrive("a", 100, 20))
    booking = returns.claim(arrive("a.2", 100, 20), wait_ns)
    assert booking is not None
    assert booking.number == 7
    assert booking.promised
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
    assert returns.share.of_all < START_SHARE / 2


def test_nobody_is_told_less_than_room_is_expected_in_or_more_than_the_most(arrive: Arrive) -> None:
    returns = Returns()
    many_come_back(returns, arrive)
    now_ns = 10_000 * SECOND
    waits = [returns.tell(arrive("a"), 4 * SECOND, 60 * SECOND, 40, 40, 0, now_ns) for _ in range(300)]
    assert waits[0] == 4 * SECOND
    assert waits == sorted(waits)
    assert waits[-1] == 60 * SECOND


def test_who_is_told_the_most_is_not_expected_as_there_is_no_room_left_to_promise(arrive: Arrive) -> None:
    returns = Returns()
    many_come_back(returns, arrive)
    now_ns = 10_000 * SECOND
    waits = [told(returns, arrive(f"a{number}", 100 + number), now_ns) for number in range(100)]
    last = waits.index(96 * SECOND)
    assert returns.claim(arrive("due", 100 + last - 1), now_ns + waits[last - 1]) is not None
    assert returns.claim(arrive("late", 100 + last), now_ns + waits[last]) is None


def test_tenants_and_classes_do_not_wait_for_those_of_others(arrive: Arrive) -> None:
    returns = Returns()
    many_come_back(returns, arrive)
    now_ns = 10_000 * SECOND
    for number in range(50):
        told(returns, arrive("a", 100 + number), now_ns)
    assert told(returns, arrive("b", tenant="b"), now_ns) == 4 * SECOND
    assert told(returns, arrive("c", priority=1), now_ns) == 4 * SECOND


def test_the_first_are_told_what_is_expected_so_that_it_is_soon_known_whether_anybody_comes_back(
    arrive: Arrive,
) -> None:
    returns = Returns()
    waits = [told(returns, arrive(f"a{n}", 16 + n)) for n in range(300)]
    assert waits[:PROBES] == [4 * SECOND] * PROBES
    assert waits == sorted(waits)
    assert waits[-1] == 96 * SECOND
    when_known_ns = 4 * SECOND + SECOND + LATE_NS + 1
    assert told(returns, arrive("b"), when_known_ns) == 4 * SECOND


def test_who_asks_for_the_same_all_the_time_is_not_taken_for_one_who_comes_back(arrive: Arrive) -> None:
    returns = Returns()
    claimed = []
    for tenth in range(600):  # ten a second, all alike, and all refused
        now_ns = tenth * SECOND // 10
        booking = returns.claim(arrive("a"), now_ns)
        if booking is not None:
            claimed.append(booking)
        waited_ns = told(returns, arrive("a"), now_ns)
    assert len(claimed) > 300
    assert not any(booking.promised for booking in claimed[100:])  # no more than those who wait
    assert returns.share.of_all < FEW_SHARE
    assert waited_ns == 4 * SECOND


def test_who_is_told_later_comes_later_the_slower_requests_are_let_in(arrive: Arrive) -> None:
    gaps = []
    for per_s in (10, 20):
        returns = Returns()
        many_come_back(returns, arrive)
        now_ns = 10_000 * SECOND
        for number in range(20 * per_s):
            returns.let_in(arrive("x"), 40, now_ns - 20 * SECOND + number * SECOND // per_s)
        for number in range(10):
            told(returns, arrive("a", 100 + number), now_ns)
        first, second = told(returns, arrive("y"), now_ns), told(returns, arrive("z", 17), now_ns)
        gaps.append(second - first)
    assert gaps[0] > 1.5 * gaps[1] > 0


def test_room_is_kept_when_somebody_is_due_and_given_up_when_nobody_came(arrive: Arrive) -> None:
    returns = Returns()
    wait_ns = told(returns, arrive("a"))
    assert returns.kept_blocks(1000, wait_ns - EARLY_NS - 1) == 0
    share = START_SHARE
    assert returns.kept_blocks(1000, wait_ns) == int(40 * share + 40 * (share * (1 - share)) ** 0.5)
    assert returns.kept_blocks(1000, wait_ns + wait_ns // 4 + LATE_NS + 1) == 0


def test_what_is_kept_is_bounded_for_many_and_for_one_that_is_large(arrive: Arrive) -> None:
    returns = Returns()
    for number in range(30):
        wait_ns = returns.tell(arrive("a", 100 + number), 4 * SECOND, 96 * SECOND, 40, 0, number, 0)
    assert returns.kept_blocks(1000, wait_ns) == MOST_KEPT * 1000
    returns = Returns()
    wait_ns = told(returns, arrive("a"), blocks=200)
    assert returns.kept_blocks(1000, wait_ns) == 200
    assert returns.kept_blocks(600, wait_ns) == MOST_KEPT_FOR_ONE * 600


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
    told(returns, arrive("c", 98), both_due_ns)
    assert returns.kept_blocks(10_000, both_due_ns) == 0


def test_where_nobody_comes_back_nothing_is_kept_and_nobody_waits_for_others(arrive: Arrive) -> None:
    returns = Returns()
    for number in range(40):
        told(returns, arrive("a", 16 + number), number * 100 * SECOND)
    now_ns = 40 * 100 * SECOND
    assert returns.claim(arrive("z"), now_ns) is None  # looks at what has passed
    assert returns.share.of_all < FEW_SHARE
    first, second = told(returns, arrive("a"), now_ns), told(returns, arrive("b", 99), now_ns)
    assert second - first < SECOND
    assert returns.kept_blocks(1000, now_ns + first) == 0
    booking = returns.claim(arrive("a"), now_ns + first)
    assert booking is not None
    assert not booking.promised


def test_equal_requests_take_the_first_due_place_each(arrive: Arrive) -> None:
    returns = Returns()
    first = [told(returns, arrive("a")) for _ in range(PROBES + 1)]
    assert first[-1] > first[0] + EARLY_NS
    for _ in range(PROBES):
        assert returns.claim(arrive("a.2"), first[0]) is not None
    assert returns.claim(arrive("a.3"), first[0]) is None
    assert returns.claim(arrive("a.4"), first[-1]) is not None


def test_a_storm_of_refusals_is_not_remembered_without_bound(arrive: Arrive) -> None:
    returns = Returns()
    returns.share.of_all = 0.0  # nobody comes back, so nobody is told to wait for others
    for number in range(MOST_BOOKED + 100):
        told(returns, arrive("a", tenant=f"t{number}"))
    assert returns._booked == MOST_BOOKED
    assert len(returns._paces) == MOST_ACCOUNTS


def test_a_flood_of_one_leaves_others_a_place_among_those_who_are_expected(arrive: Arrive) -> None:
    returns = Returns()
    returns.share.of_all = 0.0
    for number in range(2 * MOST_BOOKED):
        told(returns, arrive("a", 16 + number))
    assert returns._booked == MOST_BOOKED // 2
    wait_ns = told(returns, arrive("b", tenant="b"))
    assert returns.claim(arrive("b.2", tenant="b"), wait_ns) is not None


def test_firsts_of_many_accounts_come_after_one_another_as_those_of_one_do(arrive: Arrive) -> None:
    returns = Returns()
    waits = [told(returns, arrive("a", tenant=f"t{number}")) for number in range(100)]
    assert waits[:FIRSTS_AT_ONCE] == [4 * SECOND] * FIRSTS_AT_ONCE
    assert waits[FIRSTS_AT_ONCE] > 6 * SECOND
    assert waits == sorted(waits)
    assert waits[-1] == 96 * SECOND
    assert told(returns, arrive("b", tenant="b"), 1000 * SECOND) == 4 * SECOND
    assert (returns._firsts_coming, returns._firsts.coming_blocks) == (0, 0)


def test_who_came_is_not_kept_until_it_would_have_been_too_late(arrive: Arrive) -> None:
    returns = Returns()
    returns.share.of_all = 0.0
    for number in range(1000):
        told(returns, arrive("a", 16 + number), 0, wait_ns=90 * SECOND)
    for number in reversed(range(1000)):
        assert returns.claim(arrive("b", 16 + number), 90 * SECOND) is not None
    assert returns._booked == 0
    assert len(returns._until) <= 64
    assert len(returns._largest) <= 64


def test_who_is_new_is_expected_as_others_are(arrive: Arrive) -> None:
    returns = Returns()
    for number in range(40):
        told(returns, arrive("a", 16 + number), number * 100 * SECOND)
    now_ns = 40 * 100 * SECOND
    waits = [told(returns, arrive("b", 16 + number, tenant="b"), now_ns) for number in range(50)]
    assert set(waits) == {4 * SECOND}


def test_what_newcomers_find_and_what_is_promised_in_vain_correct_what_is_told_next(arrive: Arrive) -> None:
    now_ns = 10_000 * SECOND

    def next_after(*tries: bool | None) -> int:
        """True: a newcomer is let in, False: it is not, None: one that was told to come now is not."""
        returns = Returns()
        many_come_back(returns, arrive)
        waits = [told(returns, arrive(f"a{number}", 100 + number), now_ns) for number in range(30)]
        then_ns = now_ns + waits[0] + 2 * SECOND
        booking = returns.claim(arrive("a0.2", 100), then_ns)
        assert booking is not None
        returns.tried(arrive("a0.2", 100), booking, 40, then_ns, at_once=True)
        for at_once in tries:
            came = booking if at_once is None else None
            returns.tried(arrive("new"), came, 40, then_ns, at_once=bool(at_once))
        return returns.tell(arrive("z"), SECOND, 10_000 * SECOND, 40, 40, 0, then_ns)

    assert next_after(False) == next_after(None) == next_after()
    assert next_after(True) < next_after()
    assert next_after(True, True) < next_after(True) == next_after(True, False)
    assert next_after(True, True, None) > next_after(True, True)
