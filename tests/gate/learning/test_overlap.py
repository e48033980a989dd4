"""What the engine's own word tells of shared prompts."""

import pytest

from kvbudget.gate.learning.overlap import Overlap

SECOND = 10**9


def test_an_engine_that_holds_less_than_is_believed_shares_prompts() -> None:
    overlap = Overlap()
    for _ in range(60):
        overlap.engine_holds(600, 1000.0, 500.0)
    assert overlap.share == pytest.approx((970 - 600) / 500, rel=0.001)
    assert overlap.own == pytest.approx(1 - overlap.share)


def test_it_is_believed_slowly_and_given_up_fast() -> None:
    overlap = Overlap()
    overlap.engine_holds(0, 1000.0, 1000.0)
    assert overlap.share == pytest.approx(0.2 * 0.9)
    overlap.engine_holds(1000, 1000.0, 1000.0)
    assert overlap.share == pytest.approx(0.5 * 0.2 * 0.9)


def test_a_few_blocks_tell_nothing() -> None:
    overlap = Overlap()
    overlap.engine_holds(0, 60.0, 60.0)
    assert overlap.share == 0


def test_after_an_overflow_less_is_believed_and_the_engine_is_not_listened_to_for_a_while() -> None:
    overlap = Overlap()
    overlap.engine_holds(0, 1000.0, 1000.0)
    before = overlap.share
    overlap.overflowed(SECOND)
    assert overlap.share == before / 2
    assert not overlap.listens(4 * SECOND - 1)
    assert overlap.listens(4 * SECOND)
