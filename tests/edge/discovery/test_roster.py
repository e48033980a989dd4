"""Who joins and who leaves, answer by answer."""

from kvbudget.edge.discovery.roster import MOST_FOUND, Change, Found, Roster, Standing

UNREADY, GOING = Standing.UNREADY, Standing.GOING


def told(roster: Roster, *found: str | tuple[str, Standing]) -> Change:
    return roster.heard([Found(one) if isinstance(one, str) else Found(*one) for one in found])


def test_who_is_new_joins_and_who_is_missing_leaves() -> None:
    roster = Roster()
    assert told(roster, "b", "a")[:2] == (("a", "b"), ())
    assert told(roster, "a", "b")[:2] == ((), ())
    assert told(roster, "b", "c")[:2] == (("c",), ("a",))
    assert sorted(roster.known) == ["b", "c"]
    assert told(roster, "a", "b", "c")[:2] == (("a",), ())


def test_an_answer_that_names_nobody_sends_nobody_away() -> None:
    roster = Roster()
    told(roster, "a", "b")
    assert told(roster) == Change((), (), empty=True, left_out=0)
    assert sorted(roster.known) == ["a", "b"]
    assert told(roster, "a")[:2] == ((), ("b",))


def test_with_misses_one_leaves_only_after_so_many_answers_without_it() -> None:
    roster = Roster(misses=3)
    told(roster, "a", "b")
    assert told(roster, "a").leaving == ()
    assert told(roster).leaving == (), "an empty answer is no miss"
    assert told(roster, "a").leaving == ()
    assert told(roster, "a", "b").leaving == (), "and one that names it begins anew"
    assert [told(roster, "a").leaving for _ in range(3)] == [(), (), ("b",)]


def test_who_is_not_ready_does_not_join_and_does_not_leave() -> None:
    roster = Roster()
    assert told(roster, "a", ("b", UNREADY)).joining == ("a",)
    assert told(roster, ("a", UNREADY), "b")[:2] == (("b",), ())
    assert told(roster, ("a", UNREADY), ("b", UNREADY)) == Change((), (), empty=False, left_out=0)


def test_who_is_going_leaves_at_once_were_it_the_last() -> None:
    roster = Roster(misses=3)
    told(roster, "a", "b")
    assert told(roster, ("a", GOING), "b").leaving == ("a",)
    assert told(roster, ("b", GOING)) == Change((), ("b",), empty=False, left_out=0)
    assert told(roster, ("b", GOING)) == Change((), (), empty=False, left_out=0)
    assert roster.known == {}


def test_of_one_that_is_named_twice_the_stronger_word_counts() -> None:
    roster = Roster()
    assert told(roster, "a", ("a", UNREADY)).joining == ("a",)
    assert told(roster, ("a", GOING), "a").leaving == ("a",)


def test_no_more_join_than_can_be_looked_at() -> None:
    roster = Roster()
    change = told(roster, *[f"e{number:03}" for number in range(MOST_FOUND + 3)])
    assert (len(change.joining), change.left_out) == (MOST_FOUND, 3)
    change = told(roster, *[f"e{number:03}" for number in range(1, MOST_FOUND + 3)])
    assert (change.leaving, change.joining, change.left_out) == (("e000",), (f"e{MOST_FOUND:03}",), 2)
