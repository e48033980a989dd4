import pytest

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


def test_a_block_given_back_twice_is_noticed() -> None:
    pool = BlockPool(5)
    held = pool.take(2)
    pool.give_back(held)
    with pytest.raises(AccountingError, match="block 1 given back but not held"):
        pool.give_back(held)


@pytest.mark.parametrize("block_id", [0, 5, -1])
def test_an_id_that_is_no_block_of_the_pool_is_noticed(block_id: int) -> None:
    with pytest.raises(AccountingError):
        BlockPool(5).give_back([block_id])


@pytest.mark.parametrize("count", [0, -1, 5])
def test_more_than_is_free_or_nothing_cannot_be_taken(count: int) -> None:
    pool = BlockPool(5)
    with pytest.raises(AccountingError):
        pool.take(count)
    assert pool.free_blocks == 4
