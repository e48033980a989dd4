import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbudget.errors import BadValueError
from kvbudget.simulate.prefix_keys import PrefixKeys

IDS = st.lists(st.integers(0, 2), max_size=6)


def tokens_of(ids: list[int], each: int, prompt: int) -> list[int]:
    """The prompt spelled out, as far as ids cover it."""
    return [one for one in ids for _ in range(each)][:prompt]


@given(first=IDS, second=IDS, each=st.integers(1, 9), block=st.integers(1, 9), prompt=st.integers(1, 60))
def test_two_blocks_have_one_key_exactly_if_the_prompts_are_equal_up_to_their_end(
    first: list[int], second: list[int], each: int, block: int, prompt: int
) -> None:
    keys = PrefixKeys(each, block)
    one, two = keys.keys(first, prompt), keys.keys(second, prompt + 3)
    spelled, other = tokens_of(first, each, prompt), tokens_of(second, each, prompt + 3)
    assert len(one) == len(spelled) // block
    assert len(two) == len(other) // block
    for i, mine in enumerate(one):
        for j, theirs in enumerate(two):
            assert (mine == theirs) == (spelled[: (i + 1) * block] == other[: (j + 1) * block])


def test_keys_are_no_numbers_that_a_private_block_has_and_asking_again_changes_nothing() -> None:
    keys = PrefixKeys(512, 16)
    assert min(keys.keys([4, 5], 1000)) >= 0
    assert keys.keys([4, 5], 1000) == keys.keys([4, 5], 1000)
    assert keys.keys([4, 5], 1000)[:32] == keys.keys([4], 600)
    assert keys.keys([], 600) == ()


def test_ids_beyond_the_prompt_do_not_count() -> None:
    assert len(PrefixKeys(10, 4).keys([1, 2, 3], 11)) == 2


@pytest.mark.parametrize("sizes", [(0, 16), (512, 0)])
def test_sizes_of_nothing_are_refused(sizes: tuple[int, int]) -> None:
    with pytest.raises(BadValueError, match="give 1 or more"):
        PrefixKeys(*sizes)
