"""How soon one more may be told to come back."""

from itertools import pairwise
from math import exp, log

import pytest

from kvbudget.gate.refusing.return_pace import (
    AFTER,
    ALONE_NS,
    CROWD,
    CROWD_PART,
    FEW_SHARE,
    MEMORY,
    PART,
    PROBES,
    QUIET_NS,
    RATE_NS,
    START_SHARE,
    ReturnPace,
    ReturnShare,
    _sooner,
)

SECOND = 10**9
WAIT_NS = 4 * SECOND
LONG = 10_000 * SECOND  # an overload that has lasted so long goes on


def known(returns: bool = True) -> ReturnShare:
    share = ReturnShare()
    for _ in range(200):
        share.learn(float(returns))
    return share


def overloaded(share: ReturnShare, per_s: int = 10, blocks: int = 50) -> ReturnPace:
    """Before LONG: so many requests of `blocks` were let in a second, and others refused all the time."""
    pace = ReturnPace(share, 0)
    for tenth in range(LONG // QUIET_NS * 2):
        pace.refused(tenth * QUIET_NS // 2)
    for number in range(60 * per_s):
        pace.let_in(blocks, LONG - 60 * SECOND + number * SECOND // per_s)
    pace.refused(LONG)
    return pace


def test_most_are_thought_to_come_back_until_three_in_a_row_did_not() -> None:
    share = ReturnShare()
    assert share.expected == START_SHARE
    shares = []
    for _ in range(3):
        share.learn(0.0)
        shares.append(share.of_all)
    assert shares == sorted(shares, reverse=True)
    assert shares[1] >= FEW_SHARE > shares[2]
    assert share.expected == 0.0


def test_a_share_is_never_below_none_and_forgets_in_time() -> None:
    share = ReturnShare()
    for _ in range(100):
        share.learn(-1.0)
    assert share.of_all == 0.0
    for _ in range(int(3 * MEMORY)):
        share.learn(1.0)
    assert share.of_all > 0.9


def test_where_nobody_is_to_come_nobody_waits_for_others() -> None:
    assert overloaded(known()).after_others_ns(50, WAIT_NS, LONG) == 0.0


def test_under_a_lasting_overload_each_comes_after_the_others_at_a_part_of_the_pace() -> None:
    pace = overloaded(known())
    assert pace.blocks_per_ns(1, LONG) == pytest.approx(500 / SECOND, rel=0.06)
    pace.coming_blocks = 100
    once = pace.after_others_ns(50, WAIT_NS, LONG)
    assert once == pytest.approx(100 / (PART * 500) * SECOND, rel=0.06)
    pace.coming_blocks = 300
    assert pace.after_others_ns(50, WAIT_NS, LONG) == pytest.approx(3 * once, rel=0.02)


def test_who_is_not_expected_takes_no_room() -> None:
    pace = overloaded(known(returns=False))
    pace.coming_blocks = 10_000
    assert pace.after_others_ns(50, WAIT_NS, LONG) == 0.0


def test_an_overload_that_has_just_begun_is_expected_to_end_sooner() -> None:
    lasting = overloaded(known())
    young = overloaded(known())
    young.refused(LONG + QUIET_NS + 1)  # after a pause
    for pace in (lasting, young):
        pace.let_in(500, LONG + QUIET_NS + 1)
        pace.coming_blocks = 1000
    lasting._refused_ns = young._refused_ns
    now_ns = LONG + QUIET_NS + 2
    sooner, later = (pace.after_others_ns(50, WAIT_NS, now_ns) for pace in (young, lasting))
    assert later / AFTER < sooner < 0.6 * later


def test_the_first_are_told_the_wait_alone() -> None:
    pace = ReturnPace(ReturnShare(), 0)
    pace.coming_blocks = 10**6
    for number in range(PROBES):
        pace.refused(number)
        assert pace.after_others_ns(50, WAIT_NS, number) == 0.0
    pace.refused(PROBES)
    assert pace.after_others_ns(50, WAIT_NS, PROBES) > 100 * WAIT_NS


def test_before_anybody_was_let_in_one_such_as_itself_is_expected_in_a_while() -> None:
    assert ReturnPace(ReturnShare(), 0).blocks_per_ns(50, 100 * SECOND) == pytest.approx(50 / RATE_NS, rel=0.01)


def test_what_fills_an_empty_pool_at_once_is_not_taken_for_what_is_let_in_every_second() -> None:
    pace = ReturnPace(ReturnShare(), 0)
    for _ in range(24):
        pace.let_in(50, 0)
    assert pace.blocks_per_ns(50, 0) < 24 * 50 / (1.3 * SECOND)
    assert pace.blocks_per_ns(50, SECOND) == pytest.approx(exp(-0.1) * pace.blocks_per_ns(50, 0))  # it fades, no more


@pytest.mark.parametrize("age_s", [0.1, 1, 10, 1000])
@pytest.mark.parametrize("pace_s", [0.01, 1, 30, 5000])
def test_as_many_find_room_as_would_at_that_pace(pace_s: float, age_s: float) -> None:
    pace_ns, age = pace_s * 1e9, max(1.0, age_s) * 1e9
    t = _sooner(pace_ns, int(age_s * 1e9))
    assert 0 < t <= pace_ns
    assert t + (AFTER - 1) * (t - age * log(1 + t / age)) == pytest.approx(pace_ns, rel=1e-3)


def crowd(pace: ReturnPace, at_ns: int) -> list[float]:
    """What 60 are told who come at one moment, in s; what is let in in a second is room for one of them."""
    told = []
    for _ in range(60):
        pace.refused(at_ns)
        told.append(pace.after_others_ns(100, WAIT_NS, at_ns) / SECOND)
        pace.coming_blocks += 100
    pace.coming_blocks -= 60 * 100
    return told


def busy(now_ns: int) -> ReturnPace:
    """100 blocks were let in each second for a minute before."""
    pace = ReturnPace(known(), now_ns - 60 * SECOND)
    for second in range(60):
        pace.let_in(100, now_ns + (second - 59) * SECOND)
    return pace


def test_of_a_crowd_half_of_what_is_let_in_is_theirs() -> None:
    told = crowd(busy(LONG), LONG)
    assert told == sorted(told)
    steps = [later - sooner for sooner, later in pairwise(told)]
    assert steps[PROBES] > 1.2 / CROWD_PART  # the first of it go as in any overload
    assert steps[10:] == pytest.approx([1.0 / CROWD_PART] * len(steps[10:]), rel=0.06)


def test_a_crowd_after_another_one_is_told_as_if_more_were_to_come() -> None:
    pace = busy(LONG)
    first = crowd(pace, LONG)
    again_ns = LONG + 2 * QUIET_NS
    for second in range(20):
        pace.let_in(100, LONG + second * SECOND)
    assert crowd(pace, again_ns)[-1] > 1.5 * first[-1]


def test_a_crowd_long_after_another_one_is_told_as_the_first() -> None:
    pace = busy(LONG)
    first = crowd(pace, LONG)
    again_ns = LONG + ALONE_NS + SECOND
    for second in range(122):
        pace.let_in(100, LONG + second * SECOND)
    assert crowd(pace, again_ns)[PROBES:] == pytest.approx(first[PROBES:], rel=0.05)


def test_what_is_to_come_of_a_steady_overload_is_no_crowd() -> None:
    pace = busy(LONG)
    pace.refused(LONG - 5 * SECOND)
    for _ in range(4):
        pace.refused(LONG)
    pace.coming_blocks = int(CROWD * 5 * 100)
    assert pace.after_others_ns(100, WAIT_NS, LONG) >= 0.8 * _sooner(CROWD * 5 * SECOND / PART, 5 * SECOND + WAIT_NS)
