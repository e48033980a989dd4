"""What shared prefixes save."""

import pytest

from kvbudget.planner.workload.sharing import sharing_of
from kvbudget.pool.groups import uniform_layout

LAYOUT = uniform_layout(16)


def test_a_system_prompt_that_all_share_is_held_once() -> None:
    """Each prompt has 1,024 tokens: one hash of 512 that all have, one of its own; 96 blocks with the output."""
    requests = [(1024, 512)] * 4
    found = sharing_of(LAYOUT, requests, [(0, n) for n in (1, 2, 3, 4)], 512, window=4)
    assert found is not None
    assert found.shared_now == found.seen_before == pytest.approx(3 * 512 / 4096)
    assert found.saved_blocks == pytest.approx(3 * 32 / 4)
    assert found.gain == pytest.approx(4 * 96 / (4 * 96 - 96))


def test_only_those_at_the_same_time_share_room() -> None:
    hashes = [(0, 1), (7, 8), (0, 1)]
    found = sharing_of(LAYOUT, [(1024, 16)] * 3, hashes, 512, window=3)
    assert found is not None
    assert found.shared_now == 1024 / 3072
    alone = sharing_of(LAYOUT, [(1024, 16)] * 3, hashes, 512, window=2)  # the first has gone when the third comes
    assert alone is not None
    assert (alone.shared_now, alone.seen_before, alone.gain) == (0.0, 1024 / 3072, 1.0)


def test_sharing_ends_at_the_first_difference_and_at_whole_hashes() -> None:
    found = sharing_of(LAYOUT, [(1600, 1), (1600, 1)], [(0, 1, 2, 3), (0, 9, 2, 3)], 512, window=8)
    assert found is not None
    assert found.shared_now == 512 / 3200


def test_a_trace_without_hashes_tells_nothing() -> None:
    assert sharing_of(LAYOUT, [(10, 1)], [()], 512, window=8) is None
