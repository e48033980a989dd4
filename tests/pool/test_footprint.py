from hypothesis import given
from hypothesis import strategies as st

from kvbudget.pool.footprint import Footprint, largest_new_tokens
from kvbudget.pool.groups import uniform_layout
from kvbudget.units import Tokens


def test_n_multiplies_and_every_prompt_of_a_list_counts() -> None:
    footprint = Footprint((Tokens(10), Tokens(30)), Tokens(20), sequences=3)
    assert footprint.total_sequences == 6
    assert footprint.total_tokens == (30 + 50) * 3
    assert footprint.peak_blocks(uniform_layout(16)) == (2 + 4) * 3


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=3),
    st.integers(1, 4),
    st.integers(0, 60),
    st.integers(1, 20),
)
def test_the_largest_new_tokens_is_the_last_that_fits(
    prompts: list[int], sequences: int, blocks: int, block_size: int
) -> None:
    layout = uniform_layout(block_size)
    lengths = tuple(Tokens(prompt) for prompt in prompts)
    largest = largest_new_tokens(layout, lengths, sequences, blocks)
    if largest:
        assert Footprint(lengths, largest, sequences).peak_blocks(layout) <= blocks
    assert Footprint(lengths, Tokens(largest + 1), sequences).peak_blocks(layout) > blocks


def test_nothing_asked_needs_no_answer() -> None:
    assert largest_new_tokens(uniform_layout(16), (), 1, 10) == 0
    assert largest_new_tokens(uniform_layout(16), (Tokens(1),), 0, 10) == 0


def test_two_footprints_are_equal_by_their_lengths_alone() -> None:
    one = Footprint((Tokens(10),), Tokens(20), sequences=3)
    same = Footprint((Tokens(10),), Tokens(20), 3)
    assert one == same
    assert hash(one) == hash(same)
    assert one != Footprint((Tokens(11),), Tokens(20), 3)
    assert one != Footprint((Tokens(10),), Tokens(21), 3)
    assert one != Footprint((Tokens(10),), Tokens(20))
    assert one != ((Tokens(10),), Tokens(20), 3)


def test_a_footprint_tells_its_lengths_in_messages() -> None:
    assert repr(Footprint((Tokens(10), Tokens(30)), Tokens(20))) == "Footprint((10, 30), 20, 1)"
