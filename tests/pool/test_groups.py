from hypothesis import given
from hypothesis import strategies as st

from kvbudget.pool.groups import Group, LayerKind, Layout, uniform_layout
from kvbudget.pool.reference import blocks_by_filling
from kvbudget.units import GIB, Bytes, Tokens

# 32 layers, 8 KV heads, head 128, 2 bytes, blocks of 16: the example of the source documents.
LLAMA_8B = Layout((Group(LayerKind.FULL, 32, Tokens(16), Bytes(8 * 16 * 2 * 128 * 2)),))


def test_one_token_of_the_example_model_costs_128_kib() -> None:
    assert LLAMA_8B.bytes_per_token == 131072


def test_sixteen_requests_of_8192_tokens_cost_16_gib() -> None:
    assert 16 * LLAMA_8B.bytes_for(8192) == 16 * GIB


def test_8001_tokens_take_501_blocks_and_waste_15_slots() -> None:
    assert (LLAMA_8B.blocks_for(8001), LLAMA_8B.tail_waste(8001)) == (501, 15)


def test_the_widest_group_sets_the_price_of_a_block() -> None:
    wide = Group(LayerKind.FULL, 10, Tokens(16), Bytes(160))
    narrow = Group(LayerKind.FULL, 4, Tokens(32), Bytes(320))
    layout = Layout((wide, narrow))
    assert layout.bytes_per_block == 1600
    assert layout.blocks_for(33) == 3 + 2
    assert layout.bytes_for(33) == 33 * (100 + 40)  # what is stored, without the rest of the last blocks


@given(st.integers(0, 400), st.lists(st.integers(1, 40), min_size=1, max_size=3))
def test_the_largest_length_is_the_last_that_fits(blocks: int, block_sizes: list[int]) -> None:
    layout = Layout(tuple(Group(LayerKind.FULL, 1, Tokens(size), Bytes(size)) for size in block_sizes))
    largest = layout.largest_length(blocks)
    needed = sum(blocks_by_filling(largest, size) for size in block_sizes)
    one_more = sum(blocks_by_filling(largest + 1, size) for size in block_sizes)
    assert needed <= blocks < one_more


def test_no_block_holds_no_token() -> None:
    assert uniform_layout(16).largest_length(0) == 0
    assert uniform_layout(16).largest_length(-3) == 0
