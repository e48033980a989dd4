"""Dialogues with a fleet whose instances are found, and found no more."""

from collections.abc import Callable
from typing import Any

import pytest

from kvbudget.errors import AccountingError
from kvbudget.gate.events import DrainStarted, Ended, Tick
from kvbudget.gate.fleet.events import Drained, Gone, Heard, Joined, Leaving, Serves
from kvbudget.gate.fleet.options import FleetConfig, MemberOptions
from kvbudget.gate.policies import Policy
from kvbudget.gate.refusing.refusals import Outcome
from kvbudget.gate.tenants.settings import TenantLimits
from kvbudget.units import Blocks, Tokens

Make = Callable[..., Any]


def finished(name: str) -> Ended:
    return Ended(name, Outcome.FINISHED, Tokens(1))


# Nobody is there yet


def test_before_the_first_one_is_found_there_is_no_backend_whatever_the_model(make_fleet: Make) -> None:
    scene = make_fleet(open_to_others=True)
    assert not scene.fleet.backend_up
    assert (scene.fleet.waiting, scene.fleet.next_wake_ns, scene.fleet.key_tokens) == (0, None, 0)
    assert scene.arrive("a") == ["a!no_backend"]
    assert scene.arrive("b", model="m") == ["b!no_backend"]
    with pytest.raises(AccountingError, match="does not live"):
        scene.push(finished("a"))
    assert scene.push(Tick()) == []


def test_one_that_was_found_and_not_looked_at_yet_is_waited_for_by_coming_again(make_fleet: Make) -> None:
    scene = make_fleet(open_to_others=True)
    assert scene.join("x") == []
    assert scene.arrive("a", model="m") == ["a!no_backend"]
    assert scene.up("x", 10) == []
    assert scene.arrive("b", model="m") == ["b>x"]


# It joins


def test_who_waits_goes_to_one_that_joins(make_fleet: Make) -> None:
    scene = make_fleet(open_to_others=True, x=(4,))
    assert scene.arrive("a", 48, 16) == ["a>x"]
    assert scene.arrive("b", 48, 16) == ["b..x"]
    assert scene.join("y") == []
    assert scene.up("y", 10) == ["b>y"]


def test_one_that_joins_others_at_work_starts_slowly_and_the_first_ones_do_not(make_fleet: Make) -> None:
    scene = make_fleet(config=FleetConfig(ramp_ns=80), open_to_others=True)
    scene.join("x")
    scene.up("x", 8)
    assert scene.at("x").taken_blocks(scene.now) == 0
    scene.join("y")
    scene.up("y", 8)
    assert scene.at("y").taken_blocks(scene.now) == 7
    scene.now = 80
    assert scene.at("y").taken_blocks(scene.now) == 0


def test_what_is_common_is_had_by_who_joins(make_fleet: Make) -> None:
    limits = {"acme": TenantLimits(max_blocks=Blocks(3))}
    gate = {"tenants": limits, "policy": Policy.LEARNED}
    scene = make_fleet(gate=gate, open_to_others=True, x=(10,))
    scene.join("y", **gate)
    scene.up("y", 10)
    home, x, y = scene.fleet.home.gate, scene.at("x").gate, scene.at("y").gate
    assert home.learned.lengths is x.learned.lengths is y.learned.lengths
    assert home.fairness.limits is x.fairness.limits is y.fairness.limits
    assert scene.arrive("a", 16, 16, tenant="acme") == ["a>x"]
    assert scene.arrive("b", 16, 16, tenant="acme") == ["b..y"], "there is room, and its tenant may have no more"


def test_a_name_is_had_once(make_fleet: Make) -> None:
    scene = make_fleet(open_to_others=True, x=(4,))
    with pytest.raises(AccountingError, match="the name is taken"):
        scene.join("x")
    assert scene.push_at("x", Joined()) == []


def test_nobody_joins_a_fleet_that_was_made_for_one(make_fleet: Make) -> None:
    scene = make_fleet(x=(4,))
    with pytest.raises(AccountingError, match="made for one"):
        scene.join("y")


def test_nobody_gets_anything_from_one_that_joins_a_fleet_that_drains(make_fleet: Make) -> None:
    scene = make_fleet(open_to_others=True, x=(4,))
    scene.push(DrainStarted())
    scene.join("y")
    scene.up("y", 10)
    assert scene.arrive("a") == ["a!draining"]
    assert scene.at("y").gate.draining


# It leaves


def test_what_runs_goes_on_who_waits_goes_elsewhere_and_nobody_new_comes(make_fleet: Make) -> None:
    scene = make_fleet(open_to_others=True, x=(4,), y=(4,))
    assert scene.arrive("a", 48, 16) == ["a>x"]
    assert scene.arrive("b", 48, 16) == ["b>y"]
    assert scene.arrive("c", 48, 16) == ["c..x"]
    assert scene.push_at("x", Leaving()) == ["c..y"]
    assert scene.push_at("x", Leaving()) == []
    assert not scene.at("x").in_service
    with pytest.raises(AccountingError, match="somebody lives there"):
        scene.push_at("x", Gone())
    assert scene.push(finished("a")) == []
    assert scene.arrive("d", 16, 16) == ["d..y"]
    assert scene.push_at("x", Gone()) == []
    assert scene.fleet.named("x") is None
    assert [member.name for member in scene.fleet.members] == ["y"]
    assert scene.push(finished("b")) == ["c>y"]
    assert scene.push(finished("c")) == ["d>y"]


def test_who_waits_is_told_when_the_only_one_leaves(make_fleet: Make) -> None:
    scene = make_fleet(open_to_others=True, x=(4,))
    scene.push_at("x", Serves(frozenset("m")))
    assert scene.arrive("a", 48, 16, model="m") == ["a>x"]
    assert scene.arrive("b", 48, 16, model="m") == ["b..x"]
    assert scene.push_at("x", Leaving()) == ["b!no_backend"]
    assert scene.arrive("c", 16, 16, model="m") == ["c!no_backend"], "its model is known still"
    scene.push(finished("a"))
    scene.push_at("x", Gone())
    assert scene.arrive("d", 16, 16, model="m") == ["d!no_backend"]


def test_one_that_is_not_leaving_is_not_taken_away(make_fleet: Make) -> None:
    scene = make_fleet(open_to_others=True, x=(4,))
    with pytest.raises(AccountingError, match="not leaving"):
        scene.push_at("x", Gone())


def test_one_that_was_to_leave_may_stay(make_fleet: Make) -> None:
    scene = make_fleet(open_to_others=True, x=(4,), y=(4,))
    assert scene.arrive("a", 48, 16) == ["a>x"]
    scene.push_at("y", Leaving())
    assert scene.arrive("b", 48, 16) == ["b..x"]
    assert scene.push_at("y", Joined()) == ["b>y"]


def test_what_an_operator_took_out_stays_out_when_it_may_stay(make_fleet: Make) -> None:
    scene = make_fleet(open_to_others=True, x=(4,), y=(4,))
    scene.push_at("y", Drained(True))
    scene.push_at("y", Leaving())
    scene.push_at("y", Joined())
    assert not scene.at("y").in_service
    scene.push_at("y", Drained(False))
    assert scene.at("y").in_service


def test_one_by_its_name_may_come_again_after_it_has_gone(make_fleet: Make) -> None:
    scene = make_fleet(open_to_others=True, x=(4,))
    old = scene.at("x")
    scene.push_at("x", Leaving())
    scene.push_at("x", Gone())
    scene.join("x")
    assert scene.at("x") is not old
    scene.up("x", 4)
    assert scene.arrive("a") == ["a>x"]


def test_what_a_tail_may_still_hold_keeps_it_there(make_fleet: Make) -> None:
    scene = make_fleet(gate={"abort_tail_ns": 50}, open_to_others=True, x=(4,), y=(4,))
    assert scene.arrive("a") == ["a>x"]
    scene.push_at("x", Leaving())
    scene.fleet.heard("a", Heard.NOTHING, scene.now)
    scene.push(Ended("a", Outcome.CLIENT_GONE, None, engine_done=False))
    assert not scene.at("x").empty
    scene.now = 50
    scene.push(Tick())
    assert scene.at("x").empty


def test_loans_of_one_that_leaves_are_given_back(make_fleet: Make) -> None:
    options = MemberOptions(fallback=frozenset("m"), models=frozenset("k"))
    scene = make_fleet(open_to_others=True, x=(4, None, options), y=(4, None, MemberOptions(models=frozenset("k"))))
    assert scene.arrive("a", 16, 16, model="m") == ["a>x"]
    leaving = scene.at("x")
    scene.push_at("x", Leaving())
    scene.push(finished("a"))
    assert (leaving.stand_in_blocks, leaving.empty) == (0, True)
    assert scene.arrive("b", model="m") == ["b!no_backend"]
    scene.push_at("x", Gone())
    assert scene.arrive("c", model="m") == ["c!unknown_model"]
