"""When there will be room."""

from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbudget.gate.tenants.kept import Kept
from kvbudget.gate.waiting.queue import Demand
from kvbudget.gate.waiting.wait_forecast import WaitForecast, has_room_by, start_of, steps_until_room
from kvbudget.pool.risk import Outlook
from kvbudget.pool.share import GRID, Share, share_of
from kvbudget.pool.survival import BINS, Survival

NEW = share_of(None, made_tokens=0, limit_tokens=100, held=10.0, per_step=0.0, sequences=1)


def living(*ends: int, blocks: float = 50.0) -> Outlook:
    """One each that surely ends after so many steps."""
    outlook = Outlook()
    for number, end in enumerate(ends):
        share = share_of(None, made_tokens=0, limit_tokens=end, held=blocks, per_step=0.0, sequences=1)
        outlook.add(str(number), share)
    return outlook


def wait(
    outlook: Outlook, blocks: float = 100.0, seats: int = 10, ahead: Demand | None = None, newcomer: Share = NEW
) -> float | None:
    return steps_until_room(outlook, 2.0, newcomer, blocks, seats, ahead, None)


def test_it_goes_in_when_enough_of_those_that_live_have_ended() -> None:
    soon, late = wait(living(40, 300)), wait(living(300, 600))
    assert soon is not None
    assert late is not None
    assert 40 <= soon <= 64 < 300 <= late <= 512  # within a moment of the grid


def test_time_that_has_passed_is_not_waited_for_again() -> None:
    outlook = living(300, 600)
    before = wait(outlook)
    outlook.now = 200
    after = wait(outlook)
    assert before is not None
    assert after is not None
    assert after == pytest.approx(before - 200)


def test_a_seat_is_waited_for_like_blocks() -> None:
    waited = wait(living(300, 600), blocks=10_000.0, seats=1)
    assert waited is not None
    assert 300 <= waited <= 512


def test_those_ahead_come_first_and_what_is_kept_is_not_taken() -> None:
    ahead = Demand(0, 0)
    for g, moment in enumerate(GRID):
        ahead.blocks[g] = 50.0 if moment < 1000 else 0.0
    outlook = living(40, 300)
    first, second = wait(outlook), wait(outlook, ahead=ahead)
    assert first is not None
    assert second is not None
    assert first < second
    kept = Kept()
    kept.blocks = [80.0 if moment < 5000 else 0.0 for moment in GRID]
    third = steps_until_room(outlook, 2.0, NEW, 85.0, 10, None, kept)
    assert third is not None
    assert third > 3000


def test_what_lies_beyond_the_grid_is_not_foreseen() -> None:
    assert wait(living(1 << 40, 1 << 40)) is None


def test_waits_that_turn_out_longer_are_foreseen_longer_but_not_without_end() -> None:
    forecast = WaitForecast()
    forecast.waited(0, 10**12)  # nothing was foreseen
    assert forecast.wait_ns(100.0, 1e6) == 100_000_000
    for _ in range(300):
        forecast.waited(10**9, 10**11)
    assert forecast.wait_ns(100.0, 1e6) == pytest.approx(125_000_000, rel=0.01)


LENGTHS = st.tuples(st.integers(0, 300), st.integers(1, 4000), st.floats(1.0, 60.0))


@given(
    st.lists(LENGTHS, max_size=8), LENGTHS, LENGTHS, st.floats(5.0, 200.0), st.integers(0, 9), st.integers(0, 40),
    st.floats(-5.0, 5.0),
)  # fmt: skip
def test_whether_there_is_room_by_then_with_one_more_is_what_the_whole_reckoning_says(
    batch: list[tuple[int, int, float]],
    first: tuple[int, int, float],
    further: tuple[int, int, float],
    blocks: float,
    seats: int,
    passed: int,
    later: float,
) -> None:
    survival = Survival([0.05] * BINS, 0.2)

    def share(one: tuple[int, int, float]) -> Share:
        made, left, held = one
        return share_of(
            survival, made_tokens=made, limit_tokens=made + left, held=held, per_step=1 / 16, sequences=1, offset=passed
        )

    outlook = Outlook()
    for number, one in enumerate(batch):
        outlook.add(str(number), share(one))
    outlook.now = passed
    newcomer, more, ahead = share(first), share(further), Demand(0, 0)
    start = start_of(outlook, 2.0, newcomer, blocks, seats, ahead, None)
    if start is None:
        return
    if start.is_put_off_by(more, passed):  # told sooner, and the same
        assert not has_room_by(start.steps, outlook, 2.0, newcomer, blocks, seats, ahead, more)
    steps = start.steps + max(0.0, later)
    told = has_room_by(steps, outlook, 2.0, newcomer, blocks, seats, ahead, more)
    for g in range(len(more.mean)):
        ahead.blocks[g] += more.mean[g]
        ahead.sequences[g] += more.alive[g]
    together = steps_until_room(outlook, 2.0, newcomer, blocks, seats, ahead, None)
    assert told == (together is not None and together <= steps)


def test_one_who_stays_longer_than_those_in_the_way_puts_off_for_sure() -> None:
    outlook = living(40, 300, 600)
    start = start_of(outlook, 2.0, NEW, 150.0, 10, None, None)
    assert start is not None
    long = share_of(None, made_tokens=0, limit_tokens=700, held=2.0, per_step=0.0, sequences=1)
    short = share_of(None, made_tokens=0, limit_tokens=8, held=2.0, per_step=0.0, sequences=1)
    assert start.is_put_off_by(long, 0)
    assert not has_room_by(start.steps, outlook, 2.0, NEW, 150.0, 10, None, long)
    assert not start.is_put_off_by(short, 0)
    assert has_room_by(start.steps, outlook, 2.0, NEW, 150.0, 10, None, short)


def test_where_nothing_is_ever_free_there_is_no_room_by_any_time() -> None:
    outlook = living(1 << 30, 1 << 30)
    assert not has_room_by(1e9, outlook, 2.0, NEW, 100.0, 10, Demand(0, 0), NEW)


def reckoned(
    outlook: Outlook, z: float, newcomer: Share, blocks: float, seats: int, ahead: Demand | None, kept: Kept | None
) -> float | None:
    """What `steps_until_room` is to say: every moment summed, and all of them looked at."""
    passed, last = outlook.now - outlook.epoch, len(GRID) - 1
    sums = [outlook.at(g) for g in range(len(GRID))]
    mean, spread, sequences = [one.mean for one in sums], [one.spread for one in sums], [one.alive for one in sums]
    if ahead is not None:
        mean = [one + more for one, more in zip(mean, ahead.blocks, strict=True)]
        sequences = [one + more for one, more in zip(sequences, ahead.sequences, strict=True)]
    if kept is not None:
        mean = [one + more for one, more in zip(mean, kept.blocks, strict=True)]
        seats -= int(kept.slots)
    variance = 0.0 if kept is None else kept.variance
    room, worst, before = blocks - max(newcomer.mean), 0, 1.0
    for g in range(last):
        if GRID[g] < passed:
            worst = g + 1
            continue
        missing = (sequences[g] - seats) * room / max(1.0, float(seats))
        for later in [max(worst, g), *range(g, last)]:
            left = spread[later] - spread[g] + variance
            short = mean[later] + (z * sqrt(left) if left > 0.0 else 0.0) - room
            worst = later
            if short > 0.0:
                missing = short
                break
        if missing <= 0.0:
            start = GRID[g - 1] if g else 0
            share = before / (before - min(missing, -1e-9)) if g else 0.5
            return start + (GRID[g] - start) * share - passed
        before = missing
    return None


@given(
    st.lists(LENGTHS, max_size=8), LENGTHS, st.none() | LENGTHS, st.none() | st.floats(0.0, 80.0),
    st.floats(5.0, 300.0), st.integers(0, 9), st.integers(0, 40),
)  # fmt: skip
def test_what_is_not_summed_would_have_changed_nothing(
    batch: list[tuple[int, int, float]],
    first: tuple[int, int, float],
    before: tuple[int, int, float] | None,
    free: float | None,
    blocks: float,
    seats: int,
    passed: int,
) -> None:
    survival = Survival([0.05] * BINS, 0.2)

    def share(one: tuple[int, int, float]) -> Share:
        made, left, held = one
        return share_of(
            survival, made_tokens=made, limit_tokens=made + left, held=held, per_step=1 / 16, sequences=1, offset=passed
        )

    def outlook() -> Outlook:
        found = Outlook()
        for number, one in enumerate(batch):
            found.add(str(number), share(one))
        found.now = passed
        return found

    ahead = kept = None
    if before is not None:
        ahead, one = Demand(0, 0), share(before)
        for g, mean in enumerate(one.mean):
            ahead.blocks[g], ahead.sequences[g] = mean, one.alive[g]
    if free is not None:
        kept = Kept()
        kept.blocks, kept.variance, kept.slots = [free] * len(GRID), free / 4, 1.0
    told = steps_until_room(outlook(), 2.0, share(first), blocks, seats, ahead, kept)
    assert told == reckoned(outlook(), 2.0, share(first), blocks, seats, ahead, kept)
