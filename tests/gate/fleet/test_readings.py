from collections.abc import Callable

import pytest

from kvbudget.gate.events import Arrived, Progressed
from kvbudget.gate.fleet.readings import (
    LOOKS_AGREE,
    LOOKS_STUCK,
    Elsewhere,
    Look,
    Restarts,
    Stuckness,
    most_held,
)
from kvbudget.gate.gate import Gate

MakeGate = Callable[..., Gate]
Arrive = Callable[..., Arrived]


@pytest.fixture
def gate(make_gate: MakeGate, arrive: Arrive) -> Gate:
    """One that streams: 10 blocks at its peak of 100, 1 + 3 by now at most."""
    gate = make_gate(100, lag_steps=32)
    gate.handle(arrive("a", 16, 144, paced=True), 0)
    gate.handle(Progressed("a", 1), 0)
    return gate


def test_what_our_requests_hold_is_what_was_seen_and_is_under_way(gate: Gate, arrive: Arrive) -> None:
    assert (most_held(gate, by_peak=False), most_held(gate, by_peak=True)) == (5, 10)  # 16 + 1 + 48 tokens
    gate.handle(arrive("b", 16, 144), 0)
    assert most_held(gate, by_peak=False) == 15


def test_what_is_held_beyond_ours_is_of_others_when_all_looks_agree(gate: Gate) -> None:
    elsewhere = Elsewhere()
    look = Look(held_blocks=50, running=3, waiting=0)
    assert [elsewhere.looked(look, gate) for _ in range(LOOKS_AGREE)] == [0] * (LOOKS_AGREE - 1) + [43]
    assert elsewhere.looked(Look(held_blocks=30, running=3), gate) == 23
    assert elsewhere.looked(look, gate) == 23
    elsewhere.forget()
    assert elsewhere.looked(look, gate) == 0


def test_one_look_without_others_ends_it(gate: Gate) -> None:
    elsewhere = Elsewhere()
    for _ in range(LOOKS_AGREE):
        elsewhere.looked(Look(held_blocks=50, running=3), gate)
    for look in (Look(held_blocks=50, running=0), Look(held_blocks=4, running=1), Look(running=3), Look(50)):
        assert elsewhere.looked(look, gate) == 0


def test_with_nobody_else_there_only_what_is_beyond_all_promises_counts(gate: Gate) -> None:
    elsewhere = Elsewhere()
    for held, beyond in ((12, 0), (20, 8)):
        elsewhere.forget()
        told = [elsewhere.looked(Look(held_blocks=held, running=1), gate) for _ in range(LOOKS_AGREE)]
        assert told[-1] == beyond


def test_who_has_just_ended_may_still_be_in_the_gauges(gate: Gate, make_gate: MakeGate) -> None:
    elsewhere, idle = Elsewhere(), make_gate(100)
    elsewhere.looked(Look(held_blocks=5, running=1), gate)
    told = [elsewhere.looked(Look(held_blocks=5, running=1), idle) for _ in range(LOOKS_AGREE)]
    assert told == [0, 0, 0]
    assert elsewhere.looked(Look(held_blocks=5, running=1), idle) == 3


def test_what_an_engine_reserves_is_beside_what_we_reserve(gate: Gate) -> None:
    elsewhere = Elsewhere()
    for _ in range(LOOKS_AGREE):
        told = elsewhere.looked(Look(held_blocks=12, running=2, by_peak=True), gate)
    assert told == 0


# Stuck


def test_who_runs_nobody_while_some_wait_is_stuck_after_some_looks() -> None:
    stuck = Stuckness()
    look = Look(running=0, waiting=3, progress=100.0)
    assert [stuck.looked(look, 8, moved=False) for _ in range(LOOKS_STUCK)] == [False] * (LOOKS_STUCK - 1) + [True]
    assert stuck.looked(Look(), 8, moved=False), "a scrape that fails says nothing"
    assert not stuck.looked(Look(running=1, waiting=2, progress=101.0), 8, moved=False)


def test_requests_that_wait_for_something_else_in_all_its_places_are_as_bad() -> None:
    stuck = Stuckness()
    look = Look(running=3, waiting=6, deferred=5, progress=100.0)
    assert [stuck.looked(look, 8, moved=False) for _ in range(LOOKS_STUCK)][-1]
    stuck = Stuckness()
    assert not any(stuck.looked(look, 9, moved=False) for _ in range(20))
    unknown = Look(running=3, waiting=6, deferred=5)
    assert not any(stuck.looked(unknown, 8, moved=False) for _ in range(20)), "progress is not told"


@pytest.mark.parametrize("look", [
    Look(running=0, waiting=0, progress=1.0),  # idle, or cold gauges
    Look(running=4, waiting=9, progress=1.0),  # slow
    Look(running=0),
])  # fmt: skip
def test_an_engine_that_is_idle_or_slow_is_not_stuck(look: Look) -> None:
    stuck = Stuckness()
    assert not any(stuck.looked(look, 8, moved=False) for _ in range(20))


def test_tokens_that_we_see_outweigh_its_gauges() -> None:
    stuck = Stuckness()
    look = Look(running=0, waiting=3)
    assert not any(stuck.looked(look, 8, moved=True) for _ in range(20))


def test_one_that_emptied_itself_is_not_stuck_any_more() -> None:
    stuck = Stuckness()
    for _ in range(LOOKS_STUCK):
        stuck.looked(Look(running=0, waiting=3), 8, moved=False)
    assert stuck.is_stuck
    assert stuck.looked(Look(running=1, waiting=2), 8, moved=False), "nothing shows that it goes on"
    assert not stuck.looked(Look(running=0, waiting=0), 8, moved=False)


# Another process


def test_a_start_time_that_changed_is_another_process() -> None:
    restarts = Restarts()
    told = [restarts.looked(Look(started=at, progress=5.0)) for at in (None, 1.0, 1.0, None, 2.0, 2.0)]
    assert told == [False, False, False, False, True, False]


def test_counters_that_fell_are_another_process() -> None:
    restarts = Restarts()
    told = [restarts.looked(Look(progress=at)) for at in (None, 5.0, 7.0, None, 1.0, 1.0)]
    assert told == [False, False, False, False, True, False]
