from hypothesis import given
from hypothesis import strategies as st

from kvbudget.pool.groups import Group, LayerKind, Layout, uniform_layout
from kvbudget.pool.reference import blocks_by_filling
from kvbudget.units import GIB, Blocks, Bytes, Tokens

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


WINDOW = Group(
    LayerKind.SLIDING, 1, Tokens(16), Bytes(1), Bytes(0), Tokens(100 - 1 + 64), Blocks(1), window=Tokens(100)
)
CHUNK = Group(LayerKind.CHUNKED, 1, Tokens(16), Bytes(1), most_tokens=Tokens(96 + 64), window=Tokens(96))
STATE = Group(LayerKind.MAMBA, 1, Tokens(16), Bytes(1), fixed_blocks=Blocks(2))
ALL = Group(LayerKind.FULL, 1, Tokens(16), Bytes(1))


def test_what_must_be_free_for_a_sequence_is_its_blocks_or_the_most_that_it_holds_at_once() -> None:
    assert [ALL.admission_blocks(tokens, 4096) for tokens in (1, 16, 17, 1000)] == [1, 1, 2, 63]
    assert [WINDOW.admission_blocks(tokens, 4096) for tokens in (1, 160, 1000)] == [1, 10, 12]
    assert WINDOW.admission_blocks(64, 64) == 4  # of a short window's model: no more than all of it
    assert [CHUNK.admission_blocks(tokens, 4096) for tokens in (1, 160, 1000)] == [1, 10, 10]
    assert STATE.admission_blocks(1000, 4096) == 2


@given(st.integers(0, 500), st.integers(1, 120), st.integers(1, 40))
def test_the_tokens_that_are_passed_are_those_that_the_next_one_does_not_look_at(
    computed: int, window: int, block_size: int
) -> None:
    sliding = WINDOW._replace(window=Tokens(window), block_size=Tokens(block_size))
    chunk = CHUNK._replace(window=Tokens(window))
    looked_at = [token for token in range(computed + 1) if token > computed - window]
    assert sliding.skipped_tokens(computed) == looked_at[0]
    assert chunk.skipped_tokens(computed) == next(t for t in range(computed + 1) if t // window == computed // window)
    assert STATE.skipped_tokens(computed) == max(0, computed - 1)
    assert ALL.skipped_tokens(computed) == 0
    for group in (sliding, chunk):
        later = range(computed + 1, computed + 2 * window + 2 * group.block_size + 1)
        passed = group.skipped_tokens(computed) // group.block_size
        assert group.passes_at(computed) == next(
            t for t in later if group.skipped_tokens(t) // group.block_size > passed
        )
    assert sliding.reuse_blocks == blocks_by_filling(window - 1, block_size)


def test_one_state_is_enough_to_go_on_and_full_attention_asks_for_no_block_in_particular() -> None:
    assert (STATE.reuse_blocks, ALL.reuse_blocks) == (1, 0)
