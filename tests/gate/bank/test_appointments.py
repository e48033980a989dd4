"""A client that is told by one gate when to come back is known at all others, and who told it learns that it came."""

from collections.abc import Callable

import pytest

from kvbudget.gate.bank.appointments import AHEAD_NS, MOST_CAME, MOST_DUE, MOST_LIVES, Appointments, Came, Due, Word
from kvbudget.gate.events import Arrived
from kvbudget.gate.refusing.returns import EARLY_NS, MOST_BOOKED, Returns, key_of, name_of

Arrive = Callable[..., Arrived]
SECOND = 10**9
LATER = 10_000 * SECOND


class Gates:
    """Each has told some clients and hears what the others say."""

    def __init__(self, count: int) -> None:
        self.returns = [Returns() for _ in range(count)]
        self.all = [Appointments(one, f"gate {number}") for number, one in enumerate(self.returns)]

    def tell(self, at: int, event: Arrived, now_ns: int, wait_ns: int = 4 * SECOND) -> int:
        return self.returns[at].tell(event, wait_ns, 96 * SECOND, 40, 50, 7, now_ns)

    def know_that_they_come_back(self, arrive: Arrive) -> None:
        for one in self.returns:
            for number in range(20):
                due_ns = number * 100 * SECOND + one.tell(
                    arrive("a"), 4 * SECOND, 96 * SECOND, 1, 1, 0, number * 100 * SECOND
                )
                assert one.claim(arrive("a.2"), due_ns) is not None

    def all_hear(self, now_ns: int) -> None:
        words = [one.word(now_ns) for one in self.all]
        for at, one in enumerate(self.all):
            for other, word in enumerate(words):
                if other != at:
                    one.hear(f"gate {other}", word, now_ns)


def test_whom_another_has_told_goes_before_those_who_wait_into_room_that_is_kept(arrive: Arrive) -> None:
    gates = Gates(3)
    gates.know_that_they_come_back(arrive)
    due_ns = LATER + gates.tell(0, arrive("a", 100, 20), LATER)
    gates.all_hear(LATER + SECOND)
    assert [one.kept_blocks(1000, due_ns - SECOND) for one in gates.returns] == [0, 0, 0]
    assert gates.returns[1].claim(arrive("early", 100, 20), due_ns - SECOND) is None
    kept = [one.kept_blocks(1000, due_ns) for one in gates.returns]
    assert min(kept) >= 40  # what is expected and a standard deviation
    assert max(kept) - min(kept) <= 2  # it is said in percent
    assert gates.returns[1].claim(arrive("other", 101, 20), due_ns) is None
    booking = gates.returns[1].claim(arrive("a.2", 100, 20), due_ns)
    assert booking is not None
    assert booking.promised
    assert booking.number < 0  # nobody who waits here came before it
    assert gates.returns[1].claim(arrive("a.3", 100, 20), due_ns) is None
    assert gates.returns[1].kept_blocks(1000, due_ns) == 0


def test_who_came_elsewhere_is_expected_nowhere_and_counts_as_one_who_came(arrive: Arrive) -> None:
    gates = Gates(3)
    shares = []
    for number in range(30):
        now_ns = LATER + number * 100 * SECOND
        due_ns = now_ns + gates.tell(0, arrive("a", 100, 20), now_ns)
        for moment_ns in (now_ns, due_ns - 2 * SECOND):
            gates.all_hear(moment_ns)
        assert gates.returns[1].claim(arrive("a.2", 100, 20), due_ns) is not None
        assert gates.returns[0].state[1] == gates.returns[2].state[1] == 1
        gates.all_hear(due_ns + SECOND)
        assert [one.state[1] for one in gates.returns] == [0, 0, 0]
        gates.all_hear(due_ns + SECOND)  # it is said again, and counts once
        shares.append(gates.returns[0].share.of_all)
    assert shares[-1] > 0.9
    assert gates.returns[1].share.known == gates.returns[2].share.known == 0  # who told it learns that


def test_who_asks_for_the_same_all_the_time_elsewhere_is_not_taken_for_one_who_comes_back(arrive: Arrive) -> None:
    gates = Gates(2)
    for number in range(30):
        now_ns = LATER + number * 100 * SECOND
        due_ns = now_ns + gates.tell(0, arrive("a", 100, 20), now_ns)
        gates.all_hear(now_ns)
        for tenth in range(1, 41):
            gates.returns[1].claim(arrive("b", 100, 20), now_ns + tenth * SECOND // 10)
        gates.all_hear(due_ns + SECOND)
    assert gates.returns[0].share.of_all < 0.1


def test_whom_nobody_sees_again_is_forgotten_by_all_and_did_not_come(arrive: Arrive) -> None:
    gates = Gates(2)
    gates.tell(0, arrive("a", 100, 20), 0)
    gates.all_hear(SECOND)
    gates.all_hear(60 * SECOND)
    assert [one.state[1] for one in gates.returns] == [0, 0]
    assert gates.returns[0].share.of_all < 0.5
    assert gates.all[1]._known == {}
    assert not gates.returns[1]._of
    assert not gates.returns[1]._asked


def test_before_it_is_known_that_they_come_back_no_other_gate_keeps_room(arrive: Arrive) -> None:
    gates = Gates(2)
    due_ns = LATER + gates.tell(0, arrive("a", 100, 20), LATER)
    gates.all_hear(LATER + SECOND)
    assert gates.returns[0].kept_blocks(1000, due_ns) > 40
    assert gates.returns[1].kept_blocks(1000, due_ns) == 0


def test_what_is_said_of_one_is_heard_anew_until_it_is_due() -> None:
    returns = Returns()
    one = Appointments(returns, "one")
    due = Due(1, "a name", 0, 4 * SECOND, 0, 40, 50)
    for percent, now_s in ((0, 1), (90, 2), (0, 4)):  # the last comes too late
        one.hear("other", Word((due._replace(percent=percent),)), now_s * SECOND)
        if now_s == 2:
            assert returns.kept_blocks(1000, 3 * SECOND) == 0
    assert returns.kept_blocks(1000, 4 * SECOND) == 48


def test_whom_nobody_expects_where_it_was_told_is_expected_nowhere(arrive: Arrive) -> None:
    gates = Gates(2)
    for number in range(10):  # nobody comes back
        gates.tell(0, arrive(f"a{number}", 100 + number, 20), number * 100 * SECOND)
    due_ns = LATER + gates.tell(0, arrive("a", 100, 20), LATER)
    gates.all_hear(LATER)
    assert [one.kept_blocks(1000, due_ns) for one in gates.returns] == [0, 0]
    booking = gates.returns[1].claim(arrive("a.2", 100, 20), due_ns)
    assert booking is not None
    assert not booking.promised


def test_what_comes_to_the_gate_that_told_it_is_dropped_by_the_others(arrive: Arrive) -> None:
    gates = Gates(2)
    gates.know_that_they_come_back(arrive)
    due_ns = LATER + gates.tell(0, arrive("a", 100, 20), LATER)
    gates.all_hear(LATER + SECOND)
    assert gates.returns[0].claim(arrive("a.2", 100, 20), due_ns) is not None
    assert gates.returns[1].kept_blocks(1000, due_ns) >= 40
    gates.all_hear(due_ns)
    assert gates.returns[1].kept_blocks(1000, due_ns) == 0
    assert gates.all[1].word(due_ns).came == ()


def test_of_two_who_asked_for_the_same_the_one_told_here_comes_first(arrive: Arrive) -> None:
    gates = Gates(2)
    for at in (0, 1):
        gates.tell(at, arrive("a", 100, 20), 0)
    gates.all_hear(SECOND)
    numbers = [one.number for one in [gates.returns[0].claim(arrive("b", 100, 20), 5 * SECOND)] if one is not None]
    assert numbers == [7]
    second = gates.returns[0].claim(arrive("c", 100, 20), 5 * SECOND)
    assert second is not None
    assert second.number < 0


def test_only_those_who_come_soon_are_told_of_and_not_too_many(arrive: Arrive) -> None:
    returns = Returns()
    one = Appointments(returns, "one")
    for number in range(2 * MOST_DUE):
        returns.tell(arrive(f"a{number}", 100 + number), 4 * SECOND, 96 * SECOND, 1, 1, 0, LATER)
        returns.let_in(arrive("in"), 10_000, LATER)  # so that they are told to come soon after one another
    due = one.word(LATER).due
    assert len(due) == MOST_DUE
    assert [told.due_ns for told in due] == sorted(told.due_ns for told in due)
    returns = Returns()
    returns.tell(arrive("late"), 2 * AHEAD_NS, 96 * SECOND, 1, 1, 0, LATER)
    late = Appointments(returns, "late")
    assert late.word(LATER).due == ()
    assert len(late.word(LATER + AHEAD_NS + 1).due) == 1


def test_foreign_words_have_bounds(arrive: Arrive) -> None:
    returns = Returns()
    one = Appointments(returns, "one")
    passed = Due(1, "x", 0, SECOND, 80, 10, 10)
    one.hear("old", Word((passed,)), 60 * SECOND)
    assert one._known == {}
    for life in range(MOST_LIVES + 5):
        due = [Due(number, f"{life} {number}", 0, 4 * SECOND, 80, 10, 10) for number in range(40)]
        one.hear(f"gate {life}", Word(tuple(due), (Came("one", 3, 1), Came("nobody", 3, 1))), SECOND)
    assert len(one._known) <= MOST_LIVES
    assert returns.state[1] == MOST_BOOKED
    assert returns.kept_blocks(1000, 4 * SECOND) <= 100
    assert returns.kept_blocks(1000, 60 * SECOND) == 0


def test_who_came_is_said_of_so_many(arrive: Arrive) -> None:
    returns = Returns()
    one = Appointments(returns, "one")
    events = [arrive(f"a{number}", 100 + number) for number in range(MOST_CAME + 8)]
    due = [Due(number, name_of(key_of(event)), 0, 4 * SECOND, 80, 1, 1) for number, event in enumerate(events)]
    one.hear("other", Word(tuple(due)), SECOND)
    for event in events:
        assert returns.claim(event, 4 * SECOND) is not None
    assert len(one.word(4 * SECOND).came) == MOST_CAME


@pytest.mark.parametrize("early_ns", [0, EARLY_NS + 1])
def test_who_told_is_told_only_after_it_is_due(arrive: Arrive, early_ns: int) -> None:
    """By another clock it may have come before."""
    returns = Returns()
    one = Appointments(returns, "one")
    due_ns = returns.tell(arrive("a", 100, 20), 4 * SECOND, 96 * SECOND, 40, 40, 7, 0)
    number = one.word(SECOND).due[0].number
    one.hear("other", Word((), (Came("one", number, 0),)), due_ns - early_ns)
    assert returns.state[1] == (1 if early_ns else 0)
    one.hear("other", Word((), (Came("one", number, 0),)), due_ns)
    assert returns.state[1] == 0


def test_who_is_due_much_later_or_is_larger_than_any_pool_is_not_believed() -> None:
    """A wall clock that is hours ahead, or somebody else's note: what is told so could not be dropped for as long."""
    due_ns = LATER + 4 * SECOND
    sound = Due(1, "a", LATER, due_ns, 100, 40, 50)
    for wrong in (
        sound._replace(due_ns=due_ns + 3600 * SECOND, told_ns=LATER + 3600 * SECOND),
        sound._replace(told_ns=due_ns - 151 * SECOND),
        sound._replace(blocks=2**53 - 1),
        sound._replace(peak_blocks=2**53 - 1),
    ):
        gates = Gates(1)
        gates.all[0].hear("gate 1", Word((wrong,)), LATER)
        assert gates.returns[0].state == (0, 0, 0.0)
        gates.all[0].hear("gate 1", Word((sound,)), LATER)
        assert gates.returns[0].state[1] == 1
