"""Who was told to come back, by one instance of several."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kvbudget.gate.events import Arrived, Counted
from kvbudget.gate.fleet.events import Drained
from kvbudget.gate.policies import Policy
from kvbudget.units import Tokens

SECOND = 10**9
Make = Callable[..., Any]
BLOCKS = 4


def asked(name: str, counts: dict[object, Counted] | None = None) -> Arrived:
    return Arrived(name, (Tokens(48),), Tokens(16), Tokens(64), counts=counts)


@pytest.fixture
def told_by_y(make_fleet: Make) -> Any:
    """Two of 20 blocks, of which the second told one of BLOCKS to come by now; nobody else is there."""
    scene = make_fleet(gate={"policy": Policy.LEARNED}, x=(20,), y=(20,))
    returns = scene.at("y").gate.returns
    assert returns.tell(asked("a"), 4 * SECOND, 96 * SECOND, BLOCKS, BLOCKS, 1, 0) == 4 * SECOND
    scene.now = 4 * SECOND
    return scene


def is_expected(scene: Any) -> bool:
    return bool(scene.at("y").expects(asked("again"), scene.now))


def fill(scene: Any, *names: str) -> None:
    """Nothing is left of these."""
    for name in names:
        gate = scene.at(name).gate
        gate.handle(Arrived(f"full-{name}", (Tokens(16 * 19),), Tokens(16), Tokens(64)), scene.now)
        assert gate.free_blocks() == 0


def test_it_goes_where_room_is_kept_for_it_though_another_is_as_empty_and_its_turn(told_by_y: Any) -> None:
    assert is_expected(told_by_y)
    assert told_by_y.push(asked("a.2")) == ["a.2>y"]
    assert not is_expected(told_by_y)
    assert told_by_y.at("y").gate.returns.share.of_all > 0.8


def test_who_is_not_the_one_goes_where_there_is_most_room(told_by_y: Any) -> None:
    assert told_by_y.arrive("other", 32, 16) == ["other>x"]
    assert is_expected(told_by_y)


def test_it_goes_elsewhere_where_only_there_is_room_and_is_expected_no_more(told_by_y: Any) -> None:
    fill(told_by_y, "y")
    assert told_by_y.push(asked("a.2")) == ["a.2>x"]
    assert not is_expected(told_by_y)
    assert told_by_y.at("y").gate.returns.share.of_all > 0.8


def test_where_there_is_no_room_it_waits_at_who_told_it(told_by_y: Any) -> None:
    fill(told_by_y, "x", "y")
    assert told_by_y.push(asked("a.2")) == ["a.2..y"]
    assert not is_expected(told_by_y)


def test_one_that_takes_nobody_any_more_expects_nobody_who_went_elsewhere(told_by_y: Any) -> None:
    told_by_y.push_at("y", Drained(out=True))
    assert told_by_y.push(asked("a.2")) == ["a.2>x"]
    assert not is_expected(told_by_y)


def test_of_two_who_were_told_the_same_one_stays_expected(told_by_y: Any) -> None:
    told_by_y.at("x").gate.returns.tell(asked("b"), 4 * SECOND, 96 * SECOND, BLOCKS, BLOCKS, 1, 0)
    told_by_y.now += 1
    went = told_by_y.push(asked("a.2"))[0][-1]
    expecting = [name for name in "xy" if told_by_y.at(name).expects(asked("again"), told_by_y.now)]
    assert [went, *expecting] in (["x", "y"], ["y", "x"])


def test_one_that_does_not_read_what_was_counted_is_not_asked(told_by_y: Any) -> None:
    told_by_y.at("y").vocabulary = 2
    assert told_by_y.push(
        asked("a.2", counts={told_by_y.at("x").vocabulary: Counted((Tokens(48),), True, False, ())})
    ) == ["a.2>x"]


def test_it_waits_elsewhere_where_who_told_it_has_no_place_in_its_queue(told_by_y: Any) -> None:
    fill(told_by_y, "x", "y")
    gate = told_by_y.at("y").gate
    gate.configure(replace(gate.config, queue_requests=0))
    assert told_by_y.push(asked("a.2")) == ["a.2..x"]
    assert not is_expected(told_by_y)


def test_it_waits_at_who_told_it_however_long_as_it_has_waited_already(told_by_y: Any) -> None:
    fill(told_by_y, "x", "y")
    gate = told_by_y.at("y").gate
    gate.configure(replace(gate.config, worthwhile_wait_ns=1))
    assert told_by_y.push(asked("a.2")) == ["a.2..y"]
