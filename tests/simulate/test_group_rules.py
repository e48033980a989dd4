"""What one group takes, keeps and gives back while a sequence grows (what is found in it: test_kv_cache.py)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbudget.pool.groups import Group, LayerKind
from kvbudget.simulate.block_pool import NULL_BLOCK, BlockPool
from kvbudget.simulate.group_rules import BlockTable, ChunkedRule, GroupRule, HeldForLife, SlidingRule
from kvbudget.units import Blocks, Bytes, Tokens

LONGEST = 200
STEP = 24  # tokens of the longest chunk of prefill

SIZES, WINDOWS = st.integers(1, 9), st.integers(1, 40)


def full(block_size: int) -> Group:
    return Group(LayerKind.FULL, 1, Tokens(block_size), Bytes(1))


def sliding(block_size: int, window: int) -> Group:
    most = Tokens(window - 1 + STEP)
    return Group(LayerKind.SLIDING, 1, Tokens(block_size), Bytes(1), Bytes(0), most, Blocks(1), window=Tokens(window))


def chunked(block_size: int, window: int) -> Group:
    most = Tokens(window + STEP)
    return Group(LayerKind.CHUNKED, 1, Tokens(block_size), Bytes(1), most_tokens=most, window=Tokens(window))


def rule_of(group: Group) -> tuple[GroupRule, BlockPool]:
    pool = BlockPool(500)
    size = group.block_size
    if group.kind is LayerKind.SLIDING:
        return SlidingRule(group, 0, pool, LONGEST, size, size, 0), pool
    kind = {LayerKind.CHUNKED: ChunkedRule, LayerKind.CROSS: HeldForLife}.get(group.kind, GroupRule)
    return kind(group, 0, pool, LONGEST, size, size), pool


def grow(rule: GroupRule, pool: BlockPool, table: BlockTable, computed: int, tokens: int) -> None:
    """One step as KvCache makes it; what was said to be missing is what is taken."""
    rule.retire(table, computed)
    missing = rule.missing(table, computed + tokens, (), computed, LONGEST, whole=False)
    free = pool.free_blocks
    rule.grow(table, computed + tokens)
    assert free - pool.free_blocks == max(0, missing)


def check(table: BlockTable, pool: BlockPool) -> None:
    real = [block for block in table.blocks if block != NULL_BLOCK]
    assert table.kept == len(real) == len(set(real)) == pool.usable_blocks - pool.free_blocks


# Chunks of whole blocks, as all models have them: vLLM's own bound of others is one block short.
KINDS = st.one_of(
    st.builds(full, SIZES),
    st.builds(sliding, SIZES, WINDOWS),
    SIZES.flatmap(lambda size: st.builds(chunked, st.just(size), st.integers(1, 5).map(size.__mul__))),
)


@given(group=KINDS, steps=st.lists(st.integers(1, STEP), max_size=8))
def test_what_is_looked_at_is_held_and_never_more_than_the_groups_arithmetic_says(
    group: Group, steps: list[int]
) -> None:
    block_size = group.block_size
    rule, pool = rule_of(group)
    table, computed = BlockTable(), 0
    for tokens in steps:
        grow(rule, pool, table, computed, tokens)
        check(table, pool)
        first = group.skipped_tokens(computed)  # the first token of the chunk looks at these, later ones at fewer
        assert all(table.blocks[token // block_size] for token in range(first, computed + tokens))
        assert table.kept <= group.blocks_for(computed + tokens)
        computed += tokens
    pool.give_back(table.blocks)
    assert pool.free_blocks == pool.usable_blocks


def test_a_window_gives_back_what_it_has_passed_when_it_goes_on() -> None:
    rule, pool = rule_of(sliding(4, 8))
    table = BlockTable()
    grow(rule, pool, table, 0, 20)
    assert table.kept == 5
    grow(rule, pool, table, 20, 1)  # position 20 looks at 13 and later: blocks 0 to 2 hold 0 to 11
    assert [block == NULL_BLOCK for block in table.blocks] == [True] * 3 + [False] * 3


def test_a_chunk_is_given_back_whole_when_the_next_begins() -> None:
    rule, pool = rule_of(chunked(4, 12))
    table = BlockTable()
    grow(rule, pool, table, 0, 11)
    grow(rule, pool, table, 11, 1)
    assert table.kept == 3
    grow(rule, pool, table, 12, 1)
    assert (table.kept, len(table.blocks)) == (1, 4)


def test_blocks_held_for_life_are_taken_once_and_never_retired() -> None:
    rule, pool = rule_of(Group(LayerKind.CROSS, 1, Tokens(4), Bytes(1), fixed_blocks=Blocks(3)))
    table = BlockTable()
    assert rule.missing(table, 1, (), 0, 9, whole=True) == 3
    for computed in (0, 50, 150):
        grow(rule, pool, table, computed, 20)
        assert table.kept == 3
    rule.adopt(table, (), 10)
    rule.remember(table, 100, 100, lambda index: index, [99])
    assert (table.kept, pool.cached_blocks) == (3, 0)


def test_before_it_starts_a_sequence_must_find_room_for_the_most_that_a_window_ever_holds() -> None:
    rule, _ = rule_of(sliding(4, 8))
    most = rule.group.blocks_for(LONGEST)
    assert rule.missing(BlockTable(), 150, (), 0, 150, whole=True) == most < 150 // 4
    assert rule.missing(BlockTable(), 24, (), 0, 24, whole=True) == 6


def test_a_hit_is_not_missing_but_for_the_blocks_of_it_that_nobody_holds() -> None:
    rule, pool = rule_of(full(4))
    cached, busy = pool.take(2), pool.take(1)
    for key, block in enumerate([*cached, *busy]):
        pool.remember(0, key, block)
    pool.give_back(cached)
    hit = [*cached, *busy]
    assert rule.missing(BlockTable(), 20, hit, 12, 20, whole=False) == 2 + 2
    table = BlockTable()
    rule.adopt(table, hit, 12)
    rule.grow(table, 20)
    assert (table.kept, table.num_cached, pool.free_blocks) == (5, 3, 499 - 5)


def test_of_a_hit_only_what_the_window_still_looks_at_is_held() -> None:
    rule, pool = rule_of(sliding(4, 8))
    blocks = pool.take(5)
    pool.give_back([])
    table = BlockTable()
    rule.adopt(table, [NULL_BLOCK, NULL_BLOCK, *blocks[2:]], 20)
    assert (table.blocks, table.kept) == ([0, 0, 0, *blocks[3:]], 2)


def test_a_sequence_is_left_alone_while_its_last_block_fills() -> None:
    rule, pool = rule_of(full(4))
    table = BlockTable()
    grow(rule, pool, table, 0, 5)
    assert rule.quiet_until(table, 0, caching=False) == 8
    assert rule.quiet_until(table, 0, caching=True) == 7  # a full block is to be remembered


@pytest.mark.parametrize(
    ("retention", "kept"),
    [
        (None, [2, 3, 6, 7]),  # of each alignment the window's last blocks
        (0, [4, 5]),  # before the boundary
        (32, [4, 5, 6, 7]),
    ],
)
def test_of_a_window_only_blocks_are_kept_from_which_somebody_could_go_on(
    retention: int | None, kept: list[int]
) -> None:
    group = sliding(4, 9)
    pool = BlockPool(50)
    rule = SlidingRule(group, 0, pool, LONGEST, 16 if retention is None else 8, 4, retention)
    table = BlockTable()
    rule.grow(table, 32)
    rule.remember(table, 32, 40, lambda index: index, [26])
    assert [place for place in range(8) if pool.find((0,), place)] == kept
    assert table.num_cached == 8
