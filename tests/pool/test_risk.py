"""What is promised by chances is checked against sampled courses of the same batches."""

import itertools
from math import exp, log
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbudget.pool.groups import Group, LayerKind, Layout, uniform_layout
from kvbudget.pool.growth import Growth
from kvbudget.pool.risk import RISK_STEPS, Outlook, promise, z_of, z_over_time
from kvbudget.pool.share import GRID, Share, share_of
from kvbudget.pool.survival import BINS, EDGES, Survival, bin_of
from kvbudget.units import Blocks, Bytes, Tokens

BLOCK = 16


def lognormal_survival(median: float, sigma: float) -> Survival:
    """The true table of log-normal lengths, by counting 40,000 of them."""
    rng = Random(7)
    lengths = sorted(max(1, round(median * exp(sigma * rng.gauss(0, 1)))) for _ in range(40_000))
    shares, at = [], 0
    for k in range(BINS):
        entered = len(lengths) - at
        while at < len(lengths) and lengths[at] <= EDGES[k + 1] - (k < 1):
            at += 1
        shares.append((len(lengths) - at - entered) / -entered if entered else 0.5)
    return Survival(shares, 0.0)


def outlook_of(survival: Survival, batch: list[tuple[int, int, int]]) -> Outlook:
    """(prompt, made, limit) of each."""
    outlook, growth = Outlook(), Growth(uniform_layout(BLOCK))
    for number, (prompt, made, limit) in enumerate(batch):
        held = growth.blocks(prompt + made, prompt + limit)
        outlook.add(
            str(number),
            share_of(survival, made_tokens=made, limit_tokens=limit, held=held, per_step=1 / BLOCK, sequences=1),
        )
    return outlook


def sums_of(outlook: Outlook) -> list[tuple[float, float, float, float]]:
    """(sequences, mean, spread, doubt) at each moment."""
    found = [outlook.at(g) for g in range(len(GRID))]
    return [(sums.alive, sums.mean, sums.spread, sums.doubt) for sums in found]


def sampled_peak(rng: Random, median: float, sigma: float, batch: list[tuple[int, int, int]]) -> int:
    """Most blocks held at any step, with lengths drawn conditional on what was made."""
    ends = []
    for prompt, made, limit in batch:
        while True:
            length = max(1, round(median * exp(sigma * rng.gauss(0, 1))))
            if length > made:
                break
        ends.append((min(length, limit) - made, prompt + made))
    return max(
        sum(-(-(tokens + step) // BLOCK) for left, tokens in ends if left >= step)
        for step in {left for left, _ in ends}
    )


@pytest.mark.parametrize(("median", "sigma", "limit"), [(300.0, 0.8, 2000), (1200.0, 0.76, 6000)])
@pytest.mark.parametrize("size", [20, 60])
def test_what_is_promised_holds_in_all_but_epsilon_of_sampled_courses(
    median: float, sigma: float, limit: int, size: int
) -> None:
    epsilon, rng = 0.05, Random(size)
    survival = lognormal_survival(median, sigma)
    broken = courses = 0
    for _ in range(8):
        batch: list[tuple[int, int, int]] = []
        while len(batch) < size:
            made, length = rng.randint(0, 3 * int(median)), median * exp(sigma * rng.gauss(0, 1))
            if made < min(length, limit):  # it still lives
                batch.append((rng.randint(20, 2000), made, limit))
        outlook = outlook_of(survival, batch)
        promised = promise(outlook.enough(z_over_time(epsilon)), outlook.held_now())
        for _ in range(50):
            courses += 1
            broken += sampled_peak(rng, median, sigma, batch) > promised
    assert broken / courses <= epsilon
    worst = sum(-(-(prompt + end) // BLOCK) for prompt, _, end in batch)
    assert promised < 0.9 * worst  # and it is worth it


def test_z_is_what_a_normal_variable_exceeds_with_that_chance() -> None:
    assert z_of(0.0227501) == pytest.approx(2.0, abs=1e-4)
    assert z_of(0.158655) == pytest.approx(1.0, abs=1e-4)
    assert z_over_time(0.03) == pytest.approx(z_of(0.01))


@given(
    st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 500), st.integers(501, 4000)), min_size=1, max_size=12),
    st.randoms(use_true_random=False),
)
def test_the_sums_are_those_of_whoever_is_left(batch: list[tuple[int, int, int]], rng: Random) -> None:
    survival = Survival([0.05] * BINS, 0.2)
    outlook = outlook_of(survival, batch)
    gone = [number for number in range(len(batch)) if rng.random() < 0.5]
    for number in gone:
        outlook.discard(str(number))
        outlook.discard(str(number))  # once is enough
    rest = outlook_of(survival, [one for number, one in enumerate(batch) if number not in gone])
    for one, other in zip(sums_of(outlook), sums_of(rest), strict=True):
        assert one == pytest.approx(other, abs=1e-3)
    assert outlook.held_now() == pytest.approx(rest.held_now(), abs=1e-6)


def test_one_who_will_make_all_of_its_tokens_is_a_line_without_spread() -> None:
    share = share_of(None, made_tokens=4, limit_tokens=24, held=10.0, per_step=0.5, sequences=2)
    assert share.mean == [14.0, 18.0, 20.0]  # after 8, 16, and the last of its 20 tokens
    assert [share.at(g) for g in range(4)] == [(2.0, 14.0, 0, 0), (2.0, 18.0, 0, 0), (2.0, 20.0, 0, 0), (0, 0, 0, 0)]


def test_at_its_limit_it_counts_until_the_next_moment_of_the_grid_and_no_longer() -> None:
    never_ends = Survival([0.0] * BINS, 0.0)
    share = share_of(never_ends, made_tokens=0, limit_tokens=20, held=1.0, per_step=1.0, sequences=1)
    assert share.mean == [9.0, 17.0, 21.0]
    late = share_of(never_ends, made_tokens=0, limit_tokens=20, held=1.0, per_step=1.0, sequences=1, offset=12)
    assert late.mean == [1.0, 5.0, 13.0, 21.0]  # it joined 12 steps after the grid was set up


def test_one_that_may_outlive_the_grid_is_counted_at_all_of_its_moments() -> None:
    never_ends = Survival([0.0] * BINS, 0.0)
    share = share_of(never_ends, made_tokens=0, limit_tokens=1 << 20, held=1.0, per_step=1.0, sequences=1)
    assert len(share.mean) == len(GRID)


@pytest.mark.parametrize("share_that_ends", [0.0, 0.02, 0.3, 0.9])
@pytest.mark.parametrize("limit", [1, 20, 700, 1 << 20])
@pytest.mark.parametrize("held", [0.5, 40.0])
def test_the_most_that_one_holds_is_that_of_its_worst_moment(share_that_ends: float, limit: int, held: float) -> None:
    for survival in (None, Survival([share_that_ends] * BINS, 0.1)):

        def share(survival: Survival | None = survival) -> Share:
            return share_of(survival, made_tokens=0, limit_tokens=limit, held=held, per_step=0.1, sequences=2, offset=9)

        assert share().most == max(share().mean)


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 500), st.integers(501, 4000)), min_size=1, max_size=12),
    st.lists(st.booleans(), min_size=12, max_size=12),
)
def test_no_later_moment_has_more_than_is_said_of_it_by_an_earlier_one(
    batch: list[tuple[int, int, int]], go: list[bool]
) -> None:
    outlook = outlook_of(Survival([0.1] * BINS, 0.2), batch)
    for number, goes in enumerate(go):
        if goes:
            outlook.discard(str(number))
    for base in range(len(GRID)):
        for g in range(base, len(GRID)):
            mean, variance = outlook.most_at(g, outlook.at(base))
            assert outlook.at(g).mean <= mean + 1e-6
            assert outlook.at(g).spread <= variance + 1e-3


def test_who_has_hardly_a_chance_to_live_is_counted_no_further() -> None:
    share = share_of(Survival([0.9] * BINS, 0.0), made_tokens=0, limit_tokens=4000, held=1.0, per_step=1.0, sequences=1)
    assert len(share.mean) < 3
    other = share_of(Survival([0.9] * BINS, 0.0), made_tokens=0, limit_tokens=4000, held=1.0, per_step=1.0, sequences=1)
    assert other.at(9) == (0.0, 0.0, 0.0, 0.0)  # whichever moment is asked for first
    assert other.mean == share.mean


def test_whoever_is_long_already_is_doubted_as_one_of_that_length() -> None:
    doubts = [0.1] * bin_of(1000) + [0.4] * (BINS - bin_of(1000))
    survival = Survival([0.05] * BINS, doubts)
    for made, doubt in ((0, 0.1), (1000, 0.4)):
        share = share_of(survival, made_tokens=made, limit_tokens=4000, held=9.0, per_step=0.1, sequences=1)
        hazard = survival.hazard_to(made + GRID[5]) - survival.hazard_to(made)
        _, mean, _, off = share.at(5)
        assert off == pytest.approx(mean * hazard * doubt)


def test_doubt_is_shared_and_does_not_average_out() -> None:
    sure, unsure = Survival([0.05] * BINS, 0.0), Survival([0.05] * BINS, 0.3)
    batch = [(500, 10, 2000)] * 100
    extra = [
        unsure_need - sure_need
        for unsure_need, sure_need in zip(
            outlook_of(unsure, batch).enough(2.0), outlook_of(sure, batch).enough(2.0), strict=True
        )
    ]
    of_one = [
        unsure_need - sure_need
        for unsure_need, sure_need in zip(
            outlook_of(unsure, batch[:1]).enough(2.0), outlook_of(sure, batch[:1]).enough(2.0), strict=True
        )
    ]
    assert max(extra) > 20 * max(of_one)


def test_moments_that_have_passed_need_nothing_and_what_is_held_has_grown() -> None:
    outlook = outlook_of(Survival([0.0] * BINS, 0.0), [(160, 0, 1000)])
    before = outlook.held_now()
    outlook.now = 17
    needs = outlook.enough(0.0)
    assert needs[:2] == [0.0, 0.0]
    assert needs[2] > 0
    assert outlook.held_now() == pytest.approx(before + 17 / BLOCK)


def test_one_more_is_counted_with_the_others_without_being_added() -> None:
    survival = Survival([0.05] * BINS, 0.1)
    outlook = outlook_of(survival, [(500, 10, 2000)] * 3)
    growth = Growth(uniform_layout(BLOCK))
    more = share_of(
        survival, made_tokens=10, limit_tokens=2000, held=growth.blocks(510, 2500), per_step=1 / BLOCK, sequences=1
    )
    with_one = outlook.enough(2.0, more)
    outlook.add("more", more)
    assert with_one == pytest.approx(outlook.enough(2.0))


def test_a_promise_is_whole_blocks_and_never_less_than_is_held() -> None:
    assert promise([3.2, 7.9], 1.0) == 8
    assert promise([3.2], 20.5) == 21


def test_growth_is_half_a_block_ahead_on_average() -> None:
    growth = Growth(uniform_layout(BLOCK))
    lengths = range(1, 1601)
    real = sum(-(-tokens // BLOCK) for tokens in lengths)
    assert sum(growth.blocks(tokens, 9999) for tokens in lengths) == pytest.approx(real, rel=1e-9)
    assert growth.reading(5000) == 0


def test_a_window_holds_more_while_a_prompt_is_read_than_while_it_decodes() -> None:
    window = Group(
        LayerKind.SLIDING,
        8,
        Tokens(16),
        Bytes(1),
        most_tokens=Tokens(9216),
        extra_blocks=Blocks(1),
        window=Tokens(1024),
    )
    state = Group(LayerKind.MAMBA, 8, Tokens(16), Bytes(1), fixed_blocks=Blocks(2))
    untold = Group(LayerKind.CHUNKED, 8, Tokens(16), Bytes(1), most_tokens=Tokens(64))
    assert Growth(Layout((window,))).blocks(3000, 4000) == 64 + 1 + 1
    assert Growth(Layout((window,))).blocks(100, 160) == 11  # a short one never fills it
    assert Growth(Layout((window,))).reading(3200) == 201 - 66
    assert Growth(Layout((state,))).blocks(3000, 4000) == 2
    assert Growth(Layout((untold,))).blocks(3000, 4000) == 4
    assert Growth(Layout((state, untold))).reading(3200) == 0


def test_a_share_knows_of_nothing_shared_until_it_is_told() -> None:
    assert Share(None, 0, 10, 1.0, 0.1, 1, 0).shared == 0


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 500), st.integers(501, 4000)), min_size=1, max_size=12),
    st.lists(st.integers(0, len(GRID) - 1), max_size=5),
    st.integers(0, 40),
)
def test_in_whichever_order_moments_are_asked_for_the_sums_are_those_of_one_pass(
    batch: list[tuple[int, int, int]], asked: list[int], passed: int
) -> None:
    survival = Survival([0.2] * BINS, 0.2)
    whole, piecewise = outlook_of(survival, batch), outlook_of(survival, batch[:-1])
    for outlook in (whole, piecewise):
        outlook.now = passed
    for g in asked:
        piecewise.at(g)
        piecewise.promise_up_to(g * 100, 1.0, 2.0)
    prompt, made, limit = batch[-1]
    held = Growth(uniform_layout(BLOCK)).blocks(prompt + made, prompt + limit)
    share = share_of(survival, made_tokens=made, limit_tokens=limit, held=held, per_step=1 / BLOCK, sequences=1)
    piecewise.add(str(len(batch) - 1), share)
    assert piecewise.enough(2.0) == whole.enough(2.0)
    assert sums_of(piecewise) == sums_of(whole)


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 500), st.integers(501, 4000)), min_size=1, max_size=12),
    st.integers(1, 2500),
    st.floats(0.0, 1.0),
    st.integers(0, 40),
)
def test_a_promise_up_to_a_limit_is_the_whole_one_or_none(
    batch: list[tuple[int, int, int]], prompt: int, part: float, passed: int
) -> None:
    survival = Survival([0.05] * BINS, 0.2)
    more = share_of(survival, made_tokens=0, limit_tokens=800, held=prompt / BLOCK, per_step=1 / BLOCK, sequences=1)
    for newcomer in (None, more):
        for kept, variance in ((None, 0.0), ([3.0] * len(GRID), 9.0)):
            outlook, reference = outlook_of(survival, batch), outlook_of(survival, batch)
            outlook.now = reference.now = passed
            held = reference.held_now() + (0.0 if newcomer is None else newcomer.held)
            right = promise(reference.enough(2.0, newcomer, kept, variance), held)
            limits = (int(part * right), right - 1, right, 2 * right)
            for limit in limits + limits:  # again, with what is known by then
                found = outlook.promise_up_to(limit, held, 2.0, newcomer, kept, variance)
                assert found == (right if right <= limit else None)


def test_the_grid_rises_and_its_steps_are_at_most_half_of_the_way() -> None:
    assert all(then > here for here, then in itertools.pairwise(GRID))
    assert all(log(then / here) <= log(2) + 1e-9 for here, then in itertools.pairwise(GRID))


def test_what_is_near_may_go_wrong_less_often_than_what_is_far() -> None:
    outlook = Outlook()
    # Of 100 blocks all would be held, if nobody ended; the sums are given.
    outlook.add("a", share_of(None, made_tokens=0, limit_tokens=1 << 40, held=100.0, per_step=0.0, sequences=1))
    for g in range(len(GRID)):
        sums = outlook.at(g)
        sums.mean, sums.spread = 0.0, 1.0
    z = z_over_time(0.02)
    needs = dict(zip(GRID, outlook.enough(z), strict=True))
    assert needs[RISK_STEPS] == needs[4096] == z
    assert needs[16] == pytest.approx(z_over_time(0.02 * 16 / RISK_STEPS), rel=1e-6)
    assert needs[8] > needs[16] > needs[64] > needs[RISK_STEPS]


def test_no_more_is_asked_for_than_if_nobody_ended() -> None:
    likely = Survival([0.3] * BINS, 0.0)  # so near a moment is anything but normal
    outlook = Outlook()
    for number in range(6):
        share = share_of(likely, made_tokens=20, limit_tokens=2048, held=30.0, per_step=1 / 16, sequences=1)
        outlook.add(str(number), share)
    newcomer = share_of(likely, made_tokens=0, limit_tokens=2048, held=20.0, per_step=1 / 16, sequences=1)
    for moment, alone, both in zip(GRID, outlook.enough(9.0), outlook.enough(9.0, newcomer), strict=True):
        assert alone <= 180.0 + 6 * moment / 16
        assert both <= 200.0 + 7 * moment / 16
    assert outlook.enough(9.0)[0] == 180.0 + 6 * GRID[0] / 16
    outlook.now = 4
    assert outlook.enough(9.0, newcomer)[0] == 180.0 + 6 * GRID[0] / 16 + 20.0 + (GRID[0] - 4) / 16
    kept = [7.0] * len(GRID)
    assert outlook.enough(9.0, None, kept, 4.0)[0] == 180.0 + 6 * GRID[0] / 16 + 7.0 + 9.0 * 2.0
