"""Instances of different models count the same text otherwise: each is charged by its own vocabulary."""

from collections.abc import Callable
from typing import Any

from kvbudget.gate.events import Arrived, BackendChanged, Counted, Ended
from kvbudget.gate.fleet.events import HeldElsewhere, Serves
from kvbudget.gate.fleet.options import MemberOptions
from kvbudget.gate.refusing.refusals import Outcome
from kvbudget.units import Tokens

Make = Callable[..., Any]


def by(tokens: int, *, exact: bool = True, prefix: tuple[int, ...] = ()) -> Counted:
    return Counted((Tokens(tokens),), exact, exact, prefix)


def two(make_fleet: Make, own: int = 10, standing_in: int = 10) -> Any:
    """`x` serves m, `y` stands in for it; 32 tokens are 2 blocks at x, and 80 tokens of the same text 5 blocks at y."""
    scene = make_fleet(x=(own,), y=(standing_in, None, MemberOptions(fallback=frozenset({"m"}))))
    scene.push_at("x", Serves(frozenset({"m"})))
    scene.push_at("y", Serves(frozenset({"other"})))
    scene.at("x").vocabulary, scene.at("y").vocabulary = "X", "Y"
    return scene


def arrive(scene: Any, name: str, **counts: Counted) -> list[str]:
    told = counts or {"X": by(32), "Y": by(80)}
    first = told["X"]
    prompt = first.prompts[0]
    return list(scene.arrive(name, prompt, 16, model="m", exact=first.exact, paced=first.paced,
                             prefix=first.prefix, counts=told))  # fmt: skip


def blocks(scene: Any, name: str) -> int:
    return int(scene.at(name).gate.ledger.peak_sum_blocks)


def test_a_stand_in_is_charged_what_its_own_vocabulary_makes_of_the_text(make_fleet: Make) -> None:
    scene = two(make_fleet, own=3)
    assert arrive(scene, "a") == ["a>x"]
    assert arrive(scene, "b") == ["b>y"]
    assert (blocks(scene, "x"), blocks(scene, "y")) == (3, 6)


def test_who_would_not_fit_at_a_stand_in_by_its_vocabulary_does_not_go_there(make_fleet: Make) -> None:
    scene = two(make_fleet, own=3, standing_in=5)
    assert arrive(scene, "a") == ["a>x"]
    assert arrive(scene, "b") == ["b..x"]


def test_who_waits_and_moves_is_counted_anew_each_time(make_fleet: Make) -> None:
    scene = two(make_fleet, own=3, standing_in=6)
    assert arrive(scene, "a") == ["a>x"]
    assert arrive(scene, "b") == ["b>y"]
    assert arrive(scene, "c") == ["c..x"]
    assert scene.push_at("x", BackendChanged(False)) == ["c..y"]
    (waiting,) = scene.at("y").gate.queue
    assert waiting.arrived.prompts == (80,)
    assert scene.push(Ended("b", Outcome.FINISHED, Tokens(1))) == ["c>y"]
    assert blocks(scene, "y") == 6
    scene.push(Ended("a", Outcome.ENGINE_LOST))
    scene.push(Ended("c", Outcome.UPSTREAM_FAILED))
    scene.push_at("x", BackendChanged(True))
    assert scene.told(scene.fleet.again(waiting.arrived, frozenset({"y"}), scene.now)) == ["c>x"]
    assert blocks(scene, "x") == 3


def test_whose_model_cannot_have_it_does_not_get_it(make_fleet: Make) -> None:
    scene = two(make_fleet, own=3)
    assert arrive(scene, "a", X=by(32)) == ["a>x"]
    assert arrive(scene, "b", X=by(32)) == ["b..x"]  # y has room
    assert scene.push_at("y", HeldElsewhere(0)) == []
    scene.at("x").vocabulary = "another model by now"
    assert scene.push_at("y", HeldElsewhere(0)) == []
    assert arrive(scene, "c", X=by(32)) == ["c!no_backend"]


def test_what_prompts_share_is_told_by_the_keys_of_the_own_vocabulary(make_fleet: Make) -> None:
    scene = two(make_fleet)
    event = _event()._replace(counts={"X": by(32, prefix=(1, 2)), "Y": by(80, prefix=(3, 4, 5))})
    assert scene.at("x").own(event).prefix == (1, 2)
    assert scene.at("y").own(event).prefix == (3, 4, 5)
    scene.at("y").prefix_credit = False
    assert scene.at("y").own(event).prefix == ()
    assert scene.at("y").counted(event).prefix == (3, 4, 5)  # where to go is decided by them all the same


def test_a_bound_at_one_and_a_count_at_the_other_stay_what_they_are(make_fleet: Make) -> None:
    scene = two(make_fleet)
    event = _event()._replace(counts={"X": by(32), "Y": by(80, exact=False)})
    assert (scene.at("x").own(event).exact, scene.at("x").own(event).paced) == (True, True)
    assert (scene.at("y").own(event).exact, scene.at("y").own(event).paced) == (False, False)


def _event() -> Arrived:
    return Arrived("a", (Tokens(32),), Tokens(16), Tokens(64), counts={"X": by(32), "Y": by(80)})
