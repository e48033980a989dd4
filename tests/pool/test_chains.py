import random
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbudget.pool.chains import MOST_AGREED, CachedKeys, agreed_keys_of, chain_keys

TOKENS = st.lists(st.integers(0, 3), max_size=40)


@given(TOKENS, TOKENS, st.integers(1, 7))
def test_keys_are_equal_exactly_as_far_as_prompts_begin_alike(one: list[int], other: list[int], block: int) -> None:
    mine, theirs = chain_keys(one, block), chain_keys(other, block)
    for place in range(min(len(mine), len(theirs))):
        end = (place + 1) * block
        assert (mine[place] == theirs[place]) == (one[:end] == other[:end])


@given(TOKENS, st.integers(1, 7))
def test_the_block_of_the_last_token_has_no_key(tokens: list[int], block: int) -> None:
    assert len(chain_keys(tokens, block)) == max(0, len(tokens) - 1) // block


def test_another_seed_shares_nothing() -> None:
    tokens = [random.Random(1).randrange(150_000) for _ in range(100)]
    assert not set(chain_keys(tokens, 16)) & set(chain_keys(tokens, 16, seed=7))
    assert not set(chain_keys(tokens, 16, 8)) & set(chain_keys(tokens, 16, 7))


def test_what_is_no_token_id_is_refused() -> None:
    with pytest.raises(OverflowError):
        chain_keys([-1] * 17, 16)


def test_what_the_engine_tells_to_have_counts_from_the_first_key_on() -> None:
    cached = CachedKeys(most=4)
    assert cached.longest((1, 2)) == 0
    cached.stored((1, 2, 3))
    assert (cached.longest((1, 2, 9)), cached.longest((2, 3)), cached.longest((9,))) == (2, 2, 0)
    cached.removed((2, 17))
    assert (cached.longest((1, 2, 3)), len(cached)) == (1, 2)
    cached.stored((4, 5, 6))  # more than an engine can hold
    assert len(cached) == 2
    cached.cleared()
    assert (cached.longest((1,)), len(cached)) == (0, 0)


@given(*[st.lists(st.integers(0, 2), max_size=12)] * 2, st.integers(1, 3))
def test_agreed_keys_are_equal_exactly_as_far_as_prompts_begin_alike(
    one: list[int], other: list[int], block: int
) -> None:
    mine, theirs = [agreed_keys_of(array("I", ids).tobytes(), block, b"secret") for ids in (one, other)]
    assert len(mine) == len(chain_keys(one, block))
    for place, (left, right) in enumerate(zip(mine, theirs, strict=False)):
        assert (left == right) == (one[: (place + 1) * block] == other[: (place + 1) * block])


def test_behind_the_agreed_ones_come_keys_of_this_process() -> None:
    ids = list(range(MOST_AGREED + 4))
    lengths = [len(agreed_keys_of(array("I", ids[:count]).tobytes(), 1, b"s")) for count in range(len(ids) + 1)]
    assert lengths == [0, *range(len(ids))]
    keys = agreed_keys_of(array("I", ids).tobytes(), 1, b"s")
    assert len(set(keys)) == MOST_AGREED + 3
    changed = agreed_keys_of(array("I", [*ids[:-3], 7, *ids[-2:]]).tobytes(), 1, b"s")
    assert changed[: MOST_AGREED + 1] == keys[: MOST_AGREED + 1]
    assert changed[MOST_AGREED + 1] != keys[MOST_AGREED + 1]
