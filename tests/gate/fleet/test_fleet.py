"""Dialogues with a fleet: event in, where whom goes."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kvbudget.errors import AccountingError
from kvbudget.gate.commands import Forward, Reject
from kvbudget.gate.events import (
    Arrived,
    BackendChanged,
    CapacityChanged,
    DrainStarted,
    Ended,
    EngineBusy,
    PaceLost,
    Progressed,
    Tick,
)
from kvbudget.gate.fleet.events import Drained, Heard, HeldElsewhere, Restarted, Serves
from kvbudget.gate.fleet.options import FleetConfig, MemberOptions
from kvbudget.gate.policies import Policy
from kvbudget.gate.refusing.refusals import Outcome
from kvbudget.gate.tenants.settings import TenantLimits
from kvbudget.pool.groups import uniform_layout
from kvbudget.pool.prefix import Sharing
from kvbudget.units import Blocks, Tokens

SECOND = 10**9
Make = Callable[..., Any]


def finished(name: str) -> Ended:
    return Ended(name, Outcome.FINISHED, Tokens(1))


# Who takes it


def test_the_least_full_one_takes_it(make_fleet: Make) -> None:
    scene = make_fleet(x=(10,), y=(10,))
    assert scene.arrive("a", 32, 16) == ["a>x"]
    assert scene.arrive("b", 16, 16) == ["b>y"]
    assert scene.arrive("c", 16, 16) == ["c>y"]  # 3 of x, 2 of y
    assert scene.arrive("d", 16, 16) == ["d>x"]


def test_one_that_is_full_is_no_candidate_however_empty_the_others_are(make_fleet: Make) -> None:
    scene = make_fleet(x=(4,), y=(4,), z=(4,), w=(4,))
    assert [scene.arrive(name, 48, 16)[0][-1] for name in "abc"] == ["x", "y", "z"]
    assert scene.arrive("d", 16, 16) == ["d>w"]
    assert scene.arrive("e", 16, 16) == ["e>w"]
    assert scene.arrive("f", 16, 16) == ["f..x"]


def test_weights_share_the_work(make_fleet: Make) -> None:
    scene = make_fleet(x=(40, None, MemberOptions(weight=3.0)), y=(40,))
    went = [scene.arrive(f"r{n}", 16, 16)[0][-1] for n in range(12)]
    assert went.count("x") == 9


def test_who_begins_like_another_goes_where_that_was(make_fleet: Make) -> None:
    scene = make_fleet(x=(40,), y=(40,))
    keys = tuple(range(1, 9))
    assert scene.arrive("a", 128, 16, prefix=keys) == ["a>x"]
    assert scene.arrive("b", 128, 16, prefix=keys) == ["b>x"]
    assert scene.arrive("c", 128, 16, prefix=(99, 98)) == ["c>y"]
    assert scene.arrive("d", 128, 16, prefix=(99, 98)) == ["d>y"]


def test_who_begins_like_one_that_waited_first_goes_where_that_was(make_fleet: Make) -> None:
    scene = make_fleet(x=(20,), y=(20,))
    keys = tuple(range(1, 9))
    assert [scene.arrive(name, 256, 32) for name in "ab"] == [["a>x"], ["b>y"]]
    assert scene.arrive("c", 128, 16, prefix=keys) == ["c..x"]
    assert scene.push(finished("a")) == ["c>x"]
    scene.push(finished("b"))
    assert scene.arrive("d", 128, 16, prefix=keys) == ["d>x"], "y is empty, but x has computed that"


def test_after_a_restart_nothing_is_thought_to_be_there(make_fleet: Make) -> None:
    scene = make_fleet(x=(40,), y=(40,))
    keys = tuple(range(1, 9))
    assert scene.arrive("a", 128, 16, prefix=keys) == ["a>x"]
    scene.push_at("x", Restarted())
    assert scene.arrive("b", 128, 16, prefix=keys) == ["b>y"]


def test_an_engine_that_shares_nothing_is_not_credited(make_fleet: Make) -> None:
    scene = make_fleet(gate={"sharing": Sharing.SCHEDULED}, x=(40,))
    scene.fleet.only = None
    scene.at("x").prefix_credit = False
    scene.arrive("a", 128, 16, prefix=tuple(range(1, 9)))
    scene.arrive("b", 128, 16, prefix=tuple(range(1, 9)))
    assert scene.at("x").gate.promised_blocks() == 18


# Lengths


def test_the_shortest_that_fits_is_asked_first_and_longer_ones_lend(make_fleet: Make) -> None:
    scene = make_fleet(long=(20, 320), short=(4, 64))
    assert scene.arrive("a", 32, 32) == ["a>short"]
    assert scene.arrive("b", 64, 64) == ["b>long"], "over the short one's context"
    assert scene.arrive("c", 32, 16) == ["c>long"], "no room at the short one"


def test_what_is_lent_is_bounded(make_fleet: Make) -> None:
    scene = make_fleet(long=(20, 320, MemberOptions(borrow=0.2)), short=(4, 64))
    assert scene.arrive("a", 32, 32) == ["a>short"]
    assert scene.arrive("b", 32, 32) == ["b>long"]
    assert scene.arrive("c", 16, 16) == ["c..short"]
    assert scene.push(finished("b")) == ["c>long"]
    assert scene.push(finished("c")) == []
    assert scene.at("long").lent_blocks == 0


def test_what_is_lent_is_bounded_where_its_own_are_away_as_well(make_fleet: Make) -> None:
    scene = make_fleet(long=(20, 320, MemberOptions(borrow=0.2)), short=(4, 64))
    scene.push_at("short", BackendChanged(False))
    assert scene.arrive("a", 32, 32) == ["a>long"]
    assert scene.arrive("b", 16, 16) == ["b!no_backend"], "there is room, but not for shorter ones"
    assert scene.arrive("c", 64, 16) == ["c>long"], "its own"


def test_who_waits_to_be_lent_to_is_counted_already(make_fleet: Make) -> None:
    scene = make_fleet(long=(20, 320, MemberOptions(borrow=0.4)), short=(4, 64))
    scene.push_at("short", BackendChanged(False))
    assert scene.arrive("a", 32, 32) == ["a>long"]
    assert scene.arrive("own", 64, 192) == ["own>long"]
    assert scene.arrive("b", 32, 16) == ["b..long"], "of 8 blocks, 4 are lent"
    assert scene.arrive("c", 16, 16) == ["c!no_backend"], "and 3 more will be"
    assert scene.push(finished("own")) == ["b>long"]
    assert scene.arrive("c", 16, 16) == ["c!no_backend"]
    assert scene.push(finished("a")) == []
    assert scene.arrive("d", 64, 208) == ["d>long"]
    assert scene.arrive("e", 16, 16) == ["e..long"]
    assert scene.up("short", 4, 64) == ["e>short"], "what goes elsewhere borrows no more"
    assert scene.at("long").lent_blocks == 3
    scene.push(finished("b"))
    assert scene.at("long").lent_blocks == 0


def test_who_borrowed_and_is_refused_borrows_no_more(make_fleet: Make) -> None:
    scene = make_fleet(gate={"queue_requests": 0}, long=(20, 320, MemberOptions(borrow=0.4)), short=(4, 64))
    scene.push_at("short", BackendChanged(False))
    scene.arrive("own", 64, 240)
    assert scene.arrive("a", 32, 32) == ["a!pool_full"]
    assert scene.at("long").lent_blocks == 0


def test_where_all_of_a_pool_may_be_lent_more_may_wait_than_it_holds(make_fleet: Make) -> None:
    scene = make_fleet(long=(20, 320), short=(4, 64))
    scene.push_at("short", BackendChanged(False))
    told = [scene.arrive(f"r{number}", 32, 32)[0] for number in range(8)]
    assert told == [f"r{number}{'>' if number < 5 else '..'}long" for number in range(8)]


def test_a_tier_can_be_set(make_fleet: Make) -> None:
    scene = make_fleet(x=(20, 320, MemberOptions(tier=1)), y=(20, 320, MemberOptions(tier=0)))
    assert [scene.arrive(f"r{n}", 16, 16) for n in range(3)] == [[f"r{n}>y"] for n in range(3)]


def test_whom_nobody_grants_all_gets_most_from_the_longest(make_fleet: Make) -> None:
    scene = make_fleet(short=(4, 64), long=(20, 320))
    commands = scene.fleet.handle(Arrived("a", (Tokens(100),), Tokens(1000), Tokens(64)), 0)
    assert [(type(c), c.max_new_tokens) for c in commands] == [(Forward, 220)]
    assert scene.fleet.placed("a").name == "long"


def test_too_long_for_all_is_refused_by_the_limits_of_the_longest(make_fleet: Make) -> None:
    scene = make_fleet(short=(4, 64), long=(20, 320))
    (told,) = scene.fleet.handle(Arrived("a", (Tokens(400),), Tokens(1), Tokens(64)), 0)
    assert isinstance(told, Reject)
    assert (told.refusal.value, told.max_context) == ("context_exceeded", 320)


def test_too_long_for_all_that_are_up_is_no_reason_to_refuse_for_good(make_fleet: Make) -> None:
    scene = make_fleet(short=(4, 64), long=(0,))
    assert scene.arrive("a", 400, 1) == ["a!no_backend"]  # never seen: it may take that
    scene.up("long", 20, 320)
    assert scene.arrive("b", 200, 1) == ["b>long"]
    scene.push_at("long", BackendChanged(False))
    assert scene.arrive("c", 200, 1) == ["c!no_backend"]
    assert scene.arrive("d", 400, 1) == ["d!context_exceeded"]
    scene.push_at("short", BackendChanged(False))
    assert scene.arrive("e", 400, 1) == ["e!no_backend"]


# Names


def test_models_go_to_who_serves_them_and_unknown_ones_to_nobody(make_fleet: Make) -> None:
    scene = make_fleet(x=(10, None, MemberOptions(models=frozenset({"a"}))), y=(10,))
    scene.push_at("y", Serves(frozenset({"b", "b-lora"})))
    assert scene.arrive("r1", model="a") == ["r1>x"]
    assert scene.arrive("r2", model="b-lora") == ["r2>y"]
    assert scene.arrive("r3", model=None) == ["r3>x"]
    assert scene.arrive("r4", model="c") == ["r4!unknown_model"]
    assert (scene.fleet.serves("b"), scene.fleet.serves("c")) == (True, False)


def test_one_instance_with_names_refuses_others(make_fleet: Make) -> None:
    scene = make_fleet(x=(10, None, MemberOptions(models=frozenset({"a"}))))
    assert (scene.arrive("r1", model="a"), scene.arrive("r2", model="b")) == (["r1>x"], ["r2!unknown_model"])


def test_one_instance_alone_lets_in_who_waits_when_its_pool_grows(make_fleet: Make) -> None:
    scene = make_fleet(x=(4,))
    assert scene.arrive("a", 48, 16) == ["a>x"]
    assert scene.arrive("b", 48, 16) == ["b..x"]
    assert scene.up("x", 8) == ["b>x"]


def test_who_told_no_names_yet_may_serve_any(make_fleet: Make) -> None:
    scene = make_fleet(x=(10, None, MemberOptions(models=frozenset({"a"}))), y=(0,))
    assert scene.arrive("r", model="b") == ["r!no_backend"]


def test_a_stand_in_helps_out_within_its_budget(make_fleet: Make) -> None:
    small = MemberOptions(models=frozenset({"small"}), fallback=frozenset({"big"}), fallback_share=0.2)
    scene = make_fleet(big=(4, None, MemberOptions(models=frozenset({"big"}))), small=(20, None, small))
    assert scene.arrive("a", 32, 32, model="big") == ["a>big"]
    assert scene.arrive("b", 32, 32, model="big") == ["b>small"]
    assert scene.arrive("c", 16, 16, model="big") == ["c..big"]
    assert scene.push(finished("b")) == ["c>small"]
    assert scene.arrive("d", 16, 16, model="small") == ["d>small"]
    scene.push(finished("c"))
    assert scene.at("small").stand_in_blocks == 0


def test_a_stand_in_alone_keeps_to_its_budget(make_fleet: Make) -> None:
    small = MemberOptions(models=frozenset({"small"}), fallback=frozenset({"big"}), fallback_share=0.2)
    scene = make_fleet(big=(4, None, MemberOptions(models=frozenset({"big"}))), small=(20, None, small))
    assert scene.arrive("a", 32, 32, model="big") == ["a>big"]
    assert scene.arrive("b", 32, 16, model="big") == ["b>small"]
    assert scene.arrive("c", 16, 16, model="big") == ["c..big"]
    assert scene.push_at("big", BackendChanged(False)) == ["c!no_backend"]
    scene.push(finished("b"))
    assert scene.arrive("d", 32, 32, model="big") == ["d>small"]
    assert scene.at("small").stand_in_blocks == 4


def test_a_stand_in_alone_serves_it(make_fleet: Make) -> None:
    small = MemberOptions(models=frozenset({"small"}), fallback=frozenset({"big"}))
    scene = make_fleet(small=(20, None, small), other=(4, None, MemberOptions(models=frozenset({"o"}))))
    assert scene.arrive("a", 32, 32, model="big") == ["a>small"]


# Nobody waits where another has room


def test_who_waits_goes_to_whoever_has_room_first(make_fleet: Make) -> None:
    scene = make_fleet(x=(4,), y=(4,))
    scene.arrive("a", 48, 16)
    scene.arrive("b", 48, 16)
    assert scene.arrive("c", 48, 16) == ["c..x"]
    scene.now = 7
    (told,) = scene.fleet.handle(finished("b"), 7)
    assert isinstance(told, Forward)
    assert (told.request_id, told.waited_ns, scene.fleet.placed("c").name) == ("c", 7, "y")
    assert scene.fleet.waiting == 0


def test_room_goes_to_who_waits_there_then_to_who_waits_longest_elsewhere(make_fleet: Make) -> None:
    scene = make_fleet(x=(4,), y=(4,))
    told = []
    for number, name in enumerate("abcde"):
        scene.now = number
        told += scene.arrive(name, 48, 16)
    assert told[2:] == ["c..x", "d..y", "e..x"]
    assert scene.push(finished("b")) == ["d>y"]
    assert scene.push(finished("d")) == ["c>y"]
    assert scene.push(finished("a")) == ["e>x"]


def test_it_waits_where_room_is_expected_soonest(make_fleet: Make) -> None:
    scene = make_fleet(x=(4,), y=(4,))
    scene.arrive("a", 16, 48)
    scene.arrive("b", 48, 16)
    assert scene.arrive("c", 16, 16) == ["c..y"]


def test_it_waits_where_it_may(make_fleet: Make) -> None:
    scene = make_fleet(gate={"queue_requests": 1}, x=(4,), y=(4,))
    scene.arrive("a", 48, 16)
    scene.arrive("b", 48, 16)
    assert {scene.arrive("c", 16, 16)[0], scene.arrive("d", 16, 16)[0]} == {"c..x", "d..y"}
    assert scene.arrive("e", 16, 16)[0] == "e!queue_full"


def test_progress_makes_room_for_who_waits_elsewhere(make_fleet: Make) -> None:
    scene = make_fleet(gate={"policy": Policy.TRAJECTORY}, x=(9, 144), y=(4, 64))
    assert scene.arrive("a", 96, 48, paced=True) == ["a>x"]
    assert scene.arrive("b", 16, 48, paced=True) == ["b>y"]
    assert scene.arrive("c", 32, 16, paced=True) == ["c..y"]
    scene.push(Progressed("a", 1))
    assert scene.fleet.next_wake_ns is not None
    scene.push(PaceLost("a"))
    scene.now = scene.fleet.next_wake_ns
    scene.push(Tick())
    assert scene.fleet.next_wake_ns > scene.now


def test_who_waits_is_told_when_its_time_is_up(make_fleet: Make) -> None:
    scene = make_fleet(x=(4,), y=(4,))
    scene.arrive("a", 48, 16)
    scene.arrive("b", 48, 16)
    scene.arrive("c", 48, 16, deadline_ns=50)
    while scene.fleet.waiting:
        scene.now = scene.fleet.next_wake_ns
        told = scene.push(Tick())
    assert (told, scene.now) == (["c!deadline"], 50)
    assert scene.push(finished("a")) + scene.push(finished("b")) == []


def test_a_tenants_own_limit_is_of_all_instances(make_fleet: Make) -> None:
    scene = make_fleet(gate={"tenants": {"t": TenantLimits(max_blocks=Blocks(4))}}, x=(8,), y=(8,))
    assert scene.arrive("a", 48, 16, tenant="t") == ["a>x"]
    assert scene.arrive("b", 48, 16, tenant="t") == ["b..y"], "where nobody is expected to end first"
    assert scene.arrive("c", 48, 16, tenant="t") == ["c..y"]
    assert scene.push(finished("a")) == ["b>y"]
    assert scene.push(finished("b")) == ["c>y"]


def test_who_is_at_its_own_limit_does_not_go_where_others_made_room(make_fleet: Make) -> None:
    scene = make_fleet(gate={"tenants": {"t": TenantLimits(max_blocks=Blocks(4))}}, x=(8,), y=(8,))
    assert scene.arrive("a", 48, 16, tenant="t") == ["a>x"]
    for name in "bcd":
        scene.arrive(name, 48, 16)
    scene.arrive("e", 48, 16, tenant="t")
    for name in "bcd":
        assert scene.push(finished(name)) == []
    assert scene.push(finished("a"))[0].startswith("e>")


def test_who_waited_for_its_own_limit_goes_to_any_that_has_room(make_fleet: Make) -> None:
    """What ends at one instance leaves room within the limit, not only there and where the other one waits."""
    a, b = MemberOptions(models=frozenset("a")), MemberOptions(models=frozenset("b"))
    gate = {"tenants": {"t": TenantLimits(max_blocks=Blocks(4))}}
    scene = make_fleet(gate=gate, x=(8, None, a), y=(4, None, b), z=(0, None, b))
    assert scene.arrive("first", 48, 16, tenant="t", model="a") == ["first>x"]
    assert scene.arrive("other", 48, 16, model="b") == ["other>y"]
    assert scene.arrive("waits", 48, 16, tenant="t", model="b") == ["waits..y"]
    assert scene.up("z", 8) == []
    assert scene.push(finished("first")) == ["waits>z"]


def test_many_go_at_once_and_the_rest_soon_after(make_fleet: Make) -> None:
    scene = make_fleet(gate={"queue_tokens": 10**6}, x=(4,), y=(0,))
    scene.arrive("a", 48, 16)
    for number in range(70):
        assert scene.arrive(f"r{number}", 16, 16) == [f"r{number}..x"]
    assert len(scene.up("y", 1000)) == 64
    scene.now = scene.fleet.next_wake_ns
    assert len(scene.push(Tick())) == 6


def test_an_arrival_does_first_what_was_due(make_fleet: Make) -> None:
    scene = make_fleet(x=(4,), y=(4,))
    scene.arrive("a", 48, 16)
    scene.arrive("b", 48, 16)
    scene.arrive("c", 48, 16, deadline_ns=50)
    scene.now = 60
    assert scene.arrive("d", 48, 16)[0] == "c!deadline"


def test_whose_time_is_up_when_its_instance_goes_is_told_that(make_fleet: Make) -> None:
    scene = make_fleet(x=(4,), y=(0,))
    scene.arrive("a", 48, 16)
    for name in "bc":
        scene.arrive(name, 48, 16, deadline_ns=50)
    scene.now = 60
    assert set(scene.push_at("x", BackendChanged(False))) >= {"c!deadline"}
    assert scene.fleet.waiting == 0


def test_one_key_of_a_prompt_means_the_same_at_all_or_there_are_none(make_fleet: Make) -> None:
    scene = make_fleet(x=(4,), y=(4,))
    assert scene.fleet.key_tokens == 16
    scene.push_at("y", CapacityChanged(uniform_layout(32), Blocks(4), None))
    assert scene.fleet.key_tokens == 0


def test_progress_with_nobody_waiting_leads_to_nothing(make_fleet: Make) -> None:
    scene = make_fleet(x=(4,), y=(4,))
    scene.arrive("a", 16, 16, paced=True)
    assert scene.push(Progressed("a", 1)) == []
    assert scene.fleet.next_wake_ns is None


def test_a_look_at_those_who_wait_is_bounded(make_fleet: Make) -> None:
    scene = make_fleet(gate={"queue_tokens": 10**6}, x=(8,), y=(8,), z=(8,))
    scene.arrive("a", 100, 28)
    scene.arrive("b", 100, 12)
    scene.arrive("c", 100, 28)
    assert scene.arrive("s", 8, 8) == ["s>y"]
    large = [scene.arrive(f"r{number}", 100, 28)[0] for number in range(27)]
    assert {told.partition("..")[0] for told in large} == {f"r{number}" for number in range(27)}
    assert scene.push(finished("s")) == [], "no room for any of them"


# They come and go


def test_who_waits_at_one_that_goes_away_waits_elsewhere(make_fleet: Make) -> None:
    scene = make_fleet(x=(4,), y=(4,))
    for name in "ab":
        scene.arrive(name, 48, 16)
    assert scene.arrive("c", 48, 16) == ["c..x"]
    assert scene.push_at("x", BackendChanged(False)) == ["c..y"]
    assert scene.push_at("x", BackendChanged(False)) == []
    assert scene.push(finished("a")) == []
    assert scene.push_at("y", BackendChanged(False)) == ["c!no_backend"]
    assert scene.arrive("d") == ["d!no_backend"]
    assert not scene.fleet.backend_up


def test_who_waits_goes_to_one_that_comes_back(make_fleet: Make) -> None:
    scene = make_fleet(x=(4,), y=(4,))
    scene.push_at("x", BackendChanged(False))
    assert scene.arrive("a", 48, 16) == ["a>y"]
    assert scene.arrive("b", 48, 16) == ["b..y"]
    assert scene.push_at("x", BackendChanged(True)) == ["b>x"]


def test_one_that_comes_back_is_filled_slowly(make_fleet: Make) -> None:
    scene = make_fleet(FleetConfig(ramp_ns=8 * SECOND), x=(16,), y=(16,))
    scene.push_at("x", BackendChanged(False))
    scene.push_at("x", BackendChanged(True))
    assert scene.arrive("a", 64, 64) == ["a>y"]
    assert scene.arrive("b", 64, 64) == ["b>y"]
    assert scene.arrive("c", 64, 64) == ["c>x"], "the only one there goes, whatever it takes"
    assert scene.arrive("d", 16, 16) == ["d..y"]
    assert scene.at("x").gate.promises.taken_blocks == 14
    while scene.fleet.waiting:
        scene.now = scene.fleet.next_wake_ns
        told = scene.push(Tick())
    assert (told, scene.now) == (["d>x"], 4 * SECOND)
    scene.now = 9 * SECOND
    scene.push(Tick())
    assert scene.at("x").gate.promises.taken_blocks == 0


def test_one_is_taken_out_and_put_back(make_fleet: Make) -> None:
    scene = make_fleet(x=(4,), y=(4,))
    scene.arrive("a", 48, 16)
    scene.arrive("b", 48, 16)
    assert scene.arrive("c", 16, 16) == ["c..x"]
    assert scene.push_at("x", Drained(True)) == ["c..y"]
    assert scene.push_at("x", Drained(True)) == []
    assert scene.push(finished("a")) == []
    assert scene.push_at("x", Drained(False)) == ["c>x"]


def test_the_only_one_that_is_taken_out_leaves_nobody(make_fleet: Make) -> None:
    scene = make_fleet(x=(4,))
    assert scene.arrive("a", 48, 16) == ["a>x"]
    scene.push_at("x", Drained(True))
    assert scene.arrive("b") == ["b!draining"]
    scene.push_at("x", Drained(False))
    assert scene.arrive("c", 32, 32) == ["c..x"]
    assert scene.fleet.heard("a", Heard.FAILED, 0) == []
    assert scene.push_at("x", HeldElsewhere(1)) == []
    assert scene.push(finished("a")) == ["c>x"]
    assert scene.fleet.placed("c").name == "x"
    assert scene.fleet.next_wake_ns is None
    event = Arrived("d", (Tokens(16),), Tokens(16), Tokens(64))
    assert scene.told(scene.fleet.again(event, frozenset({"x"}), 0)) == ["d..x"], "there is no other"


def test_a_gate_that_drains_takes_nobody(make_fleet: Make) -> None:
    scene = make_fleet(x=(4,), y=(4,))
    scene.arrive("a", 48, 16)
    assert scene.push(DrainStarted()) == []
    assert scene.arrive("b") == ["b!draining"]
    assert scene.push(finished("a")) == []


# Failures


def test_failures_in_a_row_take_one_out_until_one_on_trial_does_well(make_fleet: Make) -> None:
    scene = make_fleet(x=(8,), y=(8,))
    for number in range(2):
        scene.at("y").turn = 10**6  # so that x is asked first
        assert scene.arrive(f"a{number}", 16, 16) == [f"a{number}>x"]
        assert scene.fleet.heard(f"a{number}", Heard.FAILED, 0) == []
        scene.push(Ended(f"a{number}", Outcome.UPSTREAM_FAILED))
    assert scene.at("x").circuit.is_open
    assert [scene.arrive(f"b{n}", 16, 16) for n in range(4)] == [[f"b{n}>y"] for n in range(4)]
    assert scene.arrive("c", 16, 16) == ["c..y"]
    scene.now = scene.fleet.next_wake_ns
    assert (scene.push(Tick()), scene.now) == (["c>x"], 100), "one on trial"
    assert scene.arrive("d", 16, 16) == ["d..y"]
    assert scene.fleet.heard("c", Heard.WELL, 101) == []
    assert scene.push(finished("c")) == ["d>x"]


def test_who_fails_on_trial_is_out_for_longer(make_fleet: Make) -> None:
    scene = make_fleet(x=(8,), y=(8,))
    circuit = scene.at("x").circuit
    for expected in (100, 200, 300, 300):
        for _ in range(2):
            name = f"a{scene.now}-{_}"
            scene.push_at("y", Drained(True))
            scene.arrive(name, 16, 16)
            scene.push_at("y", Drained(False))
            scene.fleet.heard(name, Heard.FAILED, scene.now)
            scene.push(Ended(name, Outcome.UPSTREAM_FAILED))
            if circuit.is_open and circuit.due_ns(scene.now):
                break
        assert circuit.until_ns == scene.now + expected
        scene.now = circuit.until_ns


def test_who_was_on_trial_and_never_sent_there_keeps_nobody_else_from_it(make_fleet: Make) -> None:
    scene = make_fleet(x=(8,), y=(8,))
    circuit = scene.at("x").circuit
    circuit.until_ns = 0
    assert scene.arrive("a") == ["a>x"]
    assert scene.fleet.heard("a", Heard.WELL, 0, scene.at("y")) == []
    assert not circuit.takes(0)
    scene.push(finished("a"))
    assert circuit.takes(0)


def test_who_leaves_while_on_trial_tells_nothing(make_fleet: Make) -> None:
    scene = make_fleet(x=(8,), y=(8,))
    circuit = scene.at("x").circuit
    circuit.until_ns = 0
    assert scene.arrive("a") == ["a>x"]
    assert not circuit.takes(0)
    assert scene.fleet.heard("a", Heard.NOTHING, 0) == []
    assert circuit.takes(0)


def test_the_last_one_is_never_taken_out_for_failures(make_fleet: Make) -> None:
    scene = make_fleet(x=(8,), y=(8,), z=(8,))
    scene.push_at("y", BackendChanged(False))
    scene.push_at("z", Drained(True))
    for number in range(5):
        assert scene.arrive(f"a{number}") == [f"a{number}>x"]
        scene.fleet.heard(f"a{number}", Heard.FAILED, 0)
        scene.push(Ended(f"a{number}", Outcome.UPSTREAM_FAILED))


def test_no_more_are_out_at_once_than_may_be(make_fleet: Make) -> None:
    scene = make_fleet(x=(8,), y=(8,), z=(8,))
    scene.at("y").circuit.until_ns = 10**6
    for number in range(3):
        name = f"a{number}"
        scene.at("z").turn = 10**6
        assert scene.arrive(name) == [f"{name}>x"]
        scene.fleet.heard(name, Heard.FAILED, 0)
        scene.push(Ended(name, Outcome.UPSTREAM_FAILED))
    assert not scene.at("x").circuit.is_open


def test_who_waits_at_one_that_is_taken_out_goes_elsewhere(make_fleet: Make) -> None:
    scene = make_fleet(x=(4,), y=(4,))
    scene.arrive("a", 32, 16)
    scene.arrive("b", 32, 16)
    assert scene.arrive("c", 48, 16) == ["c..x"]
    assert scene.fleet.heard("a", Heard.FAILED, 0) == []
    assert scene.told(scene.fleet.heard("a", Heard.FAILED, 0)) == ["c..y"]


def test_who_is_tried_again_goes_to_another_and_keeps_its_time(make_fleet: Make) -> None:
    scene = make_fleet(x=(8,), y=(8,))
    assert scene.arrive("a") == ["a>x"]
    scene.push(Ended("a", Outcome.UPSTREAM_FAILED))
    event = Arrived("a2", (Tokens(16),), Tokens(16), Tokens(64))
    (told,) = scene.fleet.again(event, frozenset({"x"}), 9, since_ns=2)
    assert (scene.fleet.placed("a2").name, told.waited_ns) == ("y", 7)
    event = event._replace(request_id="a3")
    assert scene.told(scene.fleet.again(event, frozenset({"x", "y"}), 9)) == ["a3!no_backend"]


def test_an_engine_that_says_it_is_busy_gets_nobody_for_a_while(make_fleet: Make) -> None:
    scene = make_fleet(x=(8,), y=(8,))
    scene.push_at("x", EngineBusy(50))
    assert scene.arrive("b", 112, 16) == ["b>y"]
    assert scene.arrive("c") == ["c..x"], "sooner than what y has ends"
    while scene.fleet.waiting and scene.now <= 50:
        scene.now = scene.fleet.next_wake_ns
        told = scene.push(Tick())
    assert (told, scene.now) == (["c>x"], 50)


def test_what_others_hold_there_is_not_promised(make_fleet: Make) -> None:
    scene = make_fleet(x=(8,), y=(8,))
    scene.push_at("x", HeldElsewhere(7))
    assert scene.arrive("a", 16, 16) == ["a>y"]
    assert scene.arrive("b", 64, 16) == ["b>y"]
    assert scene.arrive("c", 64, 16) == ["c>x"], "alone there: it is for the engine to say"
    assert scene.arrive("d", 16, 16)[0].startswith("d..")
    assert scene.push_at("x", HeldElsewhere(0)) == ["d>x"]


# Misuse


def test_an_event_of_one_who_does_not_live_is_an_error(make_fleet: Make) -> None:
    scene = make_fleet(x=(8,), y=(8,))
    scene.arrive("a")
    with pytest.raises(AccountingError, match="does not live"):
        scene.push(finished("nobody"))
    with pytest.raises(AccountingError, match="already lives"):
        scene.arrive("a")
    scene.push(finished("a"))
    with pytest.raises(AccountingError, match="does not live"):
        scene.push(finished("a"))
    with pytest.raises(KeyError):
        scene.fleet.placed("a")


def test_what_ends_at_a_restarted_engine_holds_nothing_there(make_fleet: Make) -> None:
    scene = make_fleet(gate={"abort_tail_ns": 1000}, x=(4,), y=(4,))
    scene.arrive("a", 48, 16)
    scene.arrive("b", 48, 16)
    scene.arrive("c", 48, 16)
    assert scene.push(Ended("a", Outcome.CLIENT_GONE, engine_done=False)) == []
    assert scene.push_at("x", Restarted()) == ["c>x"]


def test_limits_that_are_set_while_requests_live_count_those_of_all_instances(make_fleet: Make) -> None:
    scene = make_fleet(x=(8,), y=(8,))
    assert scene.arrive("a", 48, 16, tenant="t") == ["a>x"]
    assert scene.arrive("b", 48, 16, tenant="t") == ["b>y"]
    for member in scene.fleet.members:
        member.gate.configure(replace(member.gate.config, tenants={"t": TenantLimits(max_blocks=Blocks(9))}))
    scene.fleet.share()
    assert scene.arrive("c", 16, 16, tenant="t")[0].startswith("c.."), "8 of 9 blocks are reserved"
    assert scene.push(finished("b"))[0].startswith("c>")


def test_who_moves_keeps_the_tokens_that_it_was_let_in_with(make_fleet: Make) -> None:
    limits = {"t": TenantLimits(tokens_per_minute=Tokens(64))}
    scene = make_fleet(gate={"tenants": limits}, x=(4,), y=(4,))
    assert scene.arrive("a", 48, 16) == ["a>x"]
    assert scene.arrive("b", 48, 16) == ["b>y"]
    (waits,) = scene.arrive("c", 48, 16, tenant="t")
    other = "b" if waits == "c..x" else "a"
    told = scene.fleet.members[0].gate.fairness.limits
    told.accepted("more", "t", 50, scene.now)
    told.used("more", 80, scene.now)  # its tenant owes tokens by now
    assert scene.push(finished(other))[0].startswith("c>")
    assert scene.push(finished("c")) == []
    assert not told._taken


def test_who_finds_nobody_after_its_instance_went_gets_its_tokens_back(make_fleet: Make) -> None:
    scene = make_fleet(gate={"tenants": {"t": TenantLimits(tokens_per_minute=Tokens(64))}}, x=(4,), y=(4,))
    scene.push_at("y", Drained(True))
    assert scene.arrive("a", 48, 16) == ["a>x"]
    assert scene.arrive("b", 48, 16, tenant="t") == ["b..x"]
    assert scene.push_at("x", BackendChanged(False)) == ["b!no_backend"]
    assert scene.at("x").gate.fairness.limits.tokens_left("t", 0) == (64, 64)


def test_time_that_goes_back_stands_still(make_fleet: Make) -> None:
    scene = make_fleet(x=(4,), y=(4,))
    scene.now = 10 * SECOND
    assert [scene.arrive(name, 48, 16) for name in "abc"] == [["a>x"], ["b>y"], ["c..x"]]
    scene.now = 0
    (forward,) = scene.fleet.handle(finished("a"), 0)
    assert isinstance(forward, Forward)
    assert forward.waited_ns == 0
    assert scene.push_at("y", HeldElsewhere(1)) == []
    assert scene.fleet.next_wake_ns is None or scene.fleet.next_wake_ns >= 10 * SECOND
