"""Decides which block ids a request gets, which stay findable for others, and takes them back: no leak goes unnoticed.

After vLLM 0.32 `v1/core/block_pool.py`: block 0 is the null block and never handed out; new ids are taken from the head
of one free queue. A block that nobody holds any more goes to the head when nothing can be found in it (a request's last
block foremost), and to the tail when it carries the key of a cached prefix: it is overwritten last. A block with a key
counts as free while nobody holds it, and can be held again by whoever finds it.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from kvbudget.errors import AccountingError

NULL_BLOCK: Final = 0


class BlockPool:
    """Real ids; every id is free or has holders. What is cached is found by a key, in one of `groups` KV cache groups.

    In the free queue blocks without a key are always before those with one: it is a stack, and behind it a list of
    which the first in is the first out.
    """

    __slots__ = ("_blocks_of", "_cached_free", "_holders", "_key_of", "_plain_free", "num_blocks")

    def __init__(self, num_blocks: int, groups: int = 1) -> None:
        """`num_blocks` includes the null block, as vLLM's `--num-gpu-blocks-override` does."""
        self.num_blocks = num_blocks
        # The head of the queue is the end of this list: taking and giving back are then slices at the end.
        self._plain_free = list(range(num_blocks - 1, NULL_BLOCK, -1))
        self._cached_free: OrderedDict[int, None] = OrderedDict()
        self._holders = [0] * num_blocks
        self._blocks_of: tuple[dict[int, list[int]], ...] = tuple({} for _ in range(groups))
        self._key_of: dict[int, tuple[int, int]] = {}

    @property
    def usable_blocks(self) -> int:
        """Blocks that requests can hold: all but the null block."""
        return self.num_blocks - 1

    @property
    def free_blocks(self) -> int:
        """Blocks that nobody holds; the null block is never counted."""
        return len(self._plain_free) + len(self._cached_free)

    @property
    def cached_blocks(self) -> int:
        """Blocks in which a prefix can be found, held or not."""
        return len(self._key_of)

    @property
    def usage(self) -> float:
        """Share of the usable blocks that is held, 0 to 1 (vLLM 0.32 `BlockPool.get_usage`)."""
        return 1.0 - self.free_blocks / self.usable_blocks

    def take(self, count: int) -> list[int]:
        """`count` block ids, now held by the caller; what was cached in them is forgotten.

        Raises AccountingError when fewer are free: check first.
        """
        if not 0 < count <= self.free_blocks:
            raise AccountingError(f"{count} blocks asked for, {self.free_blocks} are free")
        taken = self._plain_free[-count:]
        del self._plain_free[-count:]
        taken.reverse()
        for _ in range(count - len(taken)):
            block_id, _ = self._cached_free.popitem(last=False)
            self._forget(block_id)
            taken.append(block_id)
        for block_id in taken:
            self._holders[block_id] = 1
        return taken

    def hold(self, block_ids: Sequence[int]) -> None:
        """One more holder for each of `block_ids`, which were found just now; null blocks are passed over."""
        for block_id in block_ids:
            if block_id != NULL_BLOCK:
                if not self._holders[block_id]:
                    del self._cached_free[block_id]
                self._holders[block_id] += 1

    def give_back(self, block_ids: Sequence[int]) -> None:
        """End one holding of each of `block_ids`, in the order of a block table; null blocks are passed over.

        Raises AccountingError for an id that nobody holds or that is no block.
        """
        plain: list[int] = []
        cached: list[int] = []
        holders, key_of = self._holders, self._key_of
        for block_id in block_ids:
            if block_id == NULL_BLOCK:
                continue
            if not NULL_BLOCK < block_id < self.num_blocks or not holders[block_id]:
                raise AccountingError(f"block {block_id} given back but not held")
            holders[block_id] -= 1
            if not holders[block_id]:
                (cached if block_id in key_of else plain).append(block_id)
        self._plain_free += plain
        for block_id in reversed(cached):
            self._cached_free[block_id] = None

    def is_free(self, block_id: int) -> bool:
        """Whether holding this block would take it from the free ones."""
        return block_id != NULL_BLOCK and not self._holders[block_id]

    def remember(self, group: int, key: int, block_id: int) -> None:
        """From now on `find` knows `block_id` under `key`, until the block is taken for something else.

        Several blocks may carry one key: what two requests computed at the same time is kept twice.
        """
        if block_id in self._key_of:
            return
        self._key_of[block_id] = group, key
        blocks = self._blocks_of[group].get(key)
        if blocks is None:
            self._blocks_of[group][key] = [block_id]
        else:
            blocks.append(block_id)

    def find(self, groups: Sequence[int], key: int) -> list[int] | None:
        """The first block with `key` in each of `groups`; None unless all of them have one."""
        found = []
        for group in groups:
            blocks = self._blocks_of[group].get(key)
            if blocks is None:
                return None
            found.append(blocks[0])
        return found

    def key_of(self, block_id: int) -> tuple[int, int] | None:
        """(group, key) that the block is found by, or None."""
        return self._key_of.get(block_id)

    def forget(self, block_id: int) -> None:
        """Nobody finds this block any more; its holders keep it. Nothing if it has no key."""
        if block_id in self._key_of:
            self._forget(block_id)

    def _forget(self, block_id: int) -> None:
        group, key = self._key_of.pop(block_id)
        blocks_of = self._blocks_of[group]
        blocks = blocks_of[key]
        if len(blocks) == 1:
            del blocks_of[key]
        else:
            blocks.remove(block_id)
