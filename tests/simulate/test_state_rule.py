"""Where a recurrent state stands and what can be found of its past (courses: test_paged_engine_against_vllm.py)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbudget.pool.groups import Group, LayerKind
from kvbudget.simulate.block_pool import NULL_BLOCK, BlockPool
from kvbudget.simulate.engine_request import EngineRequest
from kvbudget.simulate.group_rules import BlockTable
from kvbudget.simulate.state_rule import StateRule, checkpoint_in, prefill_chunk
from kvbudget.units import Blocks, Bytes, Tokens

BLOCK = 16


def request(prompt: int, output: int = 0) -> EngineRequest:
    return EngineRequest("r", 1, prompt, 9, None, 0, 1, (), num_output_tokens=output)


def rule_of(blocks: int = 2, retention: int | None = 0) -> tuple[StateRule, BlockPool]:
    pool = BlockPool(20)
    group = Group(LayerKind.MAMBA, 1, Tokens(BLOCK), Bytes(1), fixed_blocks=Blocks(blocks))
    return StateRule(group, 0, pool, 256, BLOCK, BLOCK, retention), pool


def step(rule: StateRule, table: BlockTable, computed: int, tokens: int, prompt: int) -> int:
    """As KvCache makes it; blocks that were missing."""
    rule.begin_step()
    rule.retire(table, computed)
    missing = rule.missing(table, computed + tokens, (), computed, prompt, whole=False)
    rule.grow(table, computed + tokens)
    rule.remember(table, (computed + tokens) // BLOCK * BLOCK, prompt, key_of, [prompt - 1])
    return max(0, missing)


def key_of(index: int) -> int:
    return 100 + index


def test_a_state_is_one_block_whatever_the_chunk_and_two_while_it_crosses_a_blocks_end() -> None:
    rule, pool = rule_of()
    table = BlockTable()
    assert step(rule, table, 0, 64, 80) == 1
    assert [block == NULL_BLOCK for block in table.blocks] == [True, True, True, False]
    assert step(rule, table, 64, 16, 80) == 1
    assert table.kept == 2
    assert step(rule, table, 80, 1, 80) == 1  # the state of token 63 is passed, that of token 79 is read
    assert step(rule, table, 81, 1, 80) == 0
    assert table.kept == 1
    assert pool.usable_blocks - pool.free_blocks == 1


def test_only_the_state_at_the_prompts_last_block_end_is_kept_unless_all_are() -> None:
    for retention, found in ((0, [1]), (None, [0, 1, 2]), (2 * BLOCK, [1])):
        rule, pool = rule_of(retention=retention)
        table = BlockTable()
        for computed in (0, 16, 32):
            step(rule, table, computed, 16, 33 if retention else 40)
        assert [index for index in range(3) if pool.find((0,), key_of(index))] == found


def test_a_state_that_is_put_aside_takes_a_block_of_its_own_and_can_be_found() -> None:
    rule, pool = rule_of(blocks=3)
    table = BlockTable()
    assert step(rule, table, 0, 70, 70) == 2
    assert (table.checkpoint, table.kept) == (64, 2)
    assert pool.find((0,), key_of(3)) == [table.blocks[3]]


def test_a_state_is_put_aside_in_the_last_chunk_of_prefill_only_and_a_plain_one_never() -> None:
    rule, _ = rule_of(blocks=3)
    table = BlockTable()
    assert step(rule, table, 0, 70, 200) == 1
    assert table.checkpoint == 0
    rule, _ = rule_of(blocks=2)
    assert step(rule, BlockTable(), 0, 70, 70) == 1


def test_a_state_that_is_written_in_this_step_is_more_than_missing() -> None:
    rule, pool = rule_of()
    step(rule, BlockTable(), 0, 32, 40)
    found, tokens = rule.find((0,), 39, key_of)
    assert (tokens, found[0][:1]) == (32, [NULL_BLOCK])
    assert rule.missing(BlockTable(), 40, found[0], 32, 40, whole=True) > pool.num_blocks
    rule.begin_step()
    assert rule.missing(BlockTable(), 40, found[0], 32, 40, whole=True) == 1


def test_the_last_state_at_or_before_the_limit_is_found() -> None:
    rule, _ = rule_of(retention=None)
    table = BlockTable()
    for computed in (0, 16, 32):
        step(rule, table, computed, 16, 60)
    assert [rule.find((0,), limit, key_of)[1] for limit in (60, 48, 47, 31, 15)] == [48, 48, 32, 16, 0]


@given(start=st.integers(0, 100), length=st.integers(1, 100), of=st.integers(1, 220))
def test_a_state_is_put_aside_at_a_block_end_inside_the_chunk_at_least_one_block_after_its_start(
    start: int, length: int, of: int
) -> None:
    end = start + length
    position = checkpoint_in(start, end, of, BLOCK)
    if position:
        assert start % BLOCK == position % BLOCK == 0
        assert start + BLOCK <= position < min(end, of)
    elif start % BLOCK == 0 and of == end:
        assert length <= BLOCK


@pytest.mark.parametrize(
    ("start", "new", "prompt", "parted_at", "chunk"),
    [
        (0, 40, 50, 0, 32),  # to a block's end
        (0, 50, 50, 0, 48),  # to the prompt's last block end, then the rest
        (48, 2, 50, 0, 2),
        (0, 40, 50, 20, 16),  # where it parts from others, on a block's end
        (20, 30, 50, 0, 12),  # from inside a block to its end
        (0, 10, 50, 0, 0),  # less than a block, and a block would fit a chunk: wait for more
        (50, 1, 50, 0, 1),  # not prefill any more
    ],
)
def test_prefill_with_states_stops_where_a_state_can_be_kept(
    start: int, new: int, prompt: int, parted_at: int, chunk: int
) -> None:
    one = request(prompt)
    one.shared_prefix_tokens = parted_at
    assert prefill_chunk(one, start, new, BLOCK, 64) == chunk


def test_a_state_that_can_be_put_aside_needs_no_stop_at_the_prompts_last_block_end() -> None:
    assert prefill_chunk(request(50), 0, 50, BLOCK, 64, puts_aside=True) == 50
    assert prefill_chunk(request(50), 40, 10, BLOCK, 64, puts_aside=True) == 8  # from inside a block it cannot


def test_who_returns_after_a_preemption_computes_its_output_as_prefill_too() -> None:
    assert prefill_chunk(request(50, output=20), 0, 70, BLOCK, 128) == 64
    assert prefill_chunk(request(50, output=20), 64, 6, BLOCK, 128) == 6


def test_a_block_that_is_wider_than_any_chunk_is_crossed_in_several() -> None:
    assert prefill_chunk(request(50), 0, 10, BLOCK, 10) == 10
    assert prefill_chunk(request(50), 10, 10, BLOCK, 10) == 6
