import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvbudget.errors import AccountingError
from kvbudget.simulate.block_pool import BlockPool


def test_the_null_block_is_never_handed_out_nor_counted() -> None:
    pool = BlockPool(5)
    assert pool.usable_blocks == pool.free_blocks == 4
    assert pool.take(4) == [1, 2, 3, 4]
    assert pool.free_blocks == 0
    assert pool.usage == 1.0


def test_freed_blocks_are_reused_first_and_the_last_of_a_request_foremost() -> None:
    pool = BlockPool(9)
    pool.give_back(pool.take(3))
    assert pool.take(4) == [3, 2, 1, 4]


def test_what_can_be_found_is_overwritten_last_and_a_prefix_from_its_end() -> None:
    pool = BlockPool(7)
    first, second = pool.take(3), pool.take(2)
    for key, block in enumerate([*first, *second]):
        pool.remember(0, key, block)
    pool.give_back(second)
    pool.give_back(first)
    assert pool.free_blocks == 6
    assert pool.take(6) == [6, 5, 4, 3, 2, 1]  # what nobody can find, then who was given back first
    assert pool.cached_blocks == 0
    assert pool.find((0,), 0) is None


def test_a_cached_block_counts_as_free_until_somebody_who_found_it_holds_it() -> None:
    pool = BlockPool(4)
    held = pool.take(2)
    pool.remember(0, 7, held[0])
    pool.give_back(held)
    assert pool.free_blocks == 3
    found = pool.find((0,), 7)
    assert found == [held[0]]
    assert pool.is_free(held[0])
    pool.hold([0, *found])  # null blocks stand for what is not needed
    assert (pool.free_blocks, pool.is_free(held[0]), pool.is_free(0)) == (2, False, False)
    pool.hold(found)
    pool.give_back(found)
    assert not pool.is_free(held[0])
    assert pool.take(2) == [2, 3]


def test_a_key_is_one_groups_and_counts_where_all_groups_that_are_asked_have_it() -> None:
    pool = BlockPool(4, groups=2)
    one, two = pool.take(2)
    pool.remember(0, 7, one)
    assert pool.find((0,), 7) == [one]
    assert pool.find((0, 1), 7) is None
    pool.remember(1, 7, two)
    assert pool.find((0, 1), 7) == [one, two]
    assert pool.key_of(two) == (1, 7)


def test_of_two_blocks_with_one_key_the_first_is_found_and_the_second_when_that_is_gone() -> None:
    pool = BlockPool(4)
    one, two = pool.take(2)
    pool.remember(0, 7, one)
    pool.remember(0, 7, two)
    pool.remember(0, 8, one)  # has a key
    assert (pool.find((0,), 7), pool.find((0,), 8)) == ([one], None)
    pool.forget(one)
    pool.forget(one)
    assert (pool.find((0,), 7), pool.key_of(one), pool.cached_blocks) == ([two], None, 1)


def test_a_block_given_back_twice_is_noticed() -> None:
    pool = BlockPool(5)
    held = pool.take(2)
    pool.give_back(held)
    with pytest.raises(AccountingError, match="block 1 given back but not held"):
        pool.give_back(held)


@pytest.mark.parametrize("block_id", [5, -1])
def test_an_id_that_is_no_block_of_the_pool_is_noticed(block_id: int) -> None:
    with pytest.raises(AccountingError):
        BlockPool(5).give_back([block_id])


@pytest.mark.parametrize("count", [0, -1, 5])
def test_more_than_is_free_or_nothing_cannot_be_taken(count: int) -> None:
    pool = BlockPool(5)
    with pytest.raises(AccountingError):
        pool.take(count)
    assert pool.free_blocks == 4


class Machine(RuleBasedStateMachine):
    """Beside a plain model: one list of free blocks in the order in which they are used, and a count of holders."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(8)
        self.queue = list(range(1, 8))
        self.holdings: list[list[int]] = []
        self.keys: dict[int, int] = {}

    @rule(count=st.integers(1, 4))
    def take(self, count: int) -> None:
        if count > len(self.queue):
            return
        taken, self.queue = self.queue[:count], self.queue[count:]
        for block in taken:
            self.keys.pop(block, None)
        assert self.pool.take(count) == taken
        self.holdings.append(taken)

    @rule(key=st.integers(0, 3), data=st.data())
    def remember(self, key: int, data: st.DataObject) -> None:
        if self.holdings:
            block = data.draw(st.sampled_from(data.draw(st.sampled_from(self.holdings))))
            self.pool.remember(0, key, block)
            self.keys.setdefault(block, key)

    @rule(key=st.integers(0, 3))
    def hold(self, key: int) -> None:
        found = self.pool.find((0,), key)
        assert (found is not None) == (key in self.keys.values())
        if found:
            assert self.keys[found[0]] == key
            if found[0] in self.queue:
                self.queue.remove(found[0])
            self.pool.hold(found)
            self.holdings.append(found)

    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        if self.holdings:
            ended = self.holdings.pop(data.draw(st.integers(0, len(self.holdings) - 1)))
            self.pool.give_back(ended)
            for block in reversed(ended):
                if any(block in others for others in self.holdings):
                    continue
                if block in self.keys:
                    self.queue.append(block)
            free = [block for block in ended if block not in self.keys and not self.is_held(block)]
            self.queue = free[::-1] + self.queue

    def is_held(self, block: int) -> bool:
        return any(block in holding for holding in self.holdings)

    @invariant()
    def every_block_is_held_or_free_and_none_is_both(self) -> None:
        assert self.pool.free_blocks == len(self.queue)
        for block in range(1, 8):
            assert self.pool.is_free(block) == (block in self.queue) == (not self.is_held(block))
        assert self.pool.cached_blocks == len(self.keys)


TestBlockPool = Machine.TestCase
TestBlockPool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
