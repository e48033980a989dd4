"""Decides which block ids a request gets and takes them back: a leak or a double free cannot go unnoticed.

After vLLM 0.32 `v1/core/block_pool.py` without prefix caching: block 0 is the null block and never handed out, ids are
taken from the head of the free queue, and freed ids go back to that head, a request's last block foremost.
"""

from kvbudget.errors import AccountingError

NULL_BLOCK = 0


class BlockPool:
    """Real ids in a free list; every id is either free or held by exactly one owner."""

    __slots__ = ("_free", "_is_free", "num_blocks")

    def __init__(self, num_blocks: int) -> None:
        """`num_blocks` includes the null block, as vLLM's `--num-gpu-blocks-override` does."""
        self.num_blocks = num_blocks
        # The head of vLLM's queue is the end of this list: taking and giving back are then slices at the end.
        self._free = list(range(num_blocks - 1, NULL_BLOCK, -1))
        self._is_free = bytearray(b"\x01") * num_blocks
        self._is_free[NULL_BLOCK] = 0

    @property
    def usable_blocks(self) -> int:
        """Blocks that requests can hold: all but the null block."""
        return self.num_blocks - 1

    @property
    def free_blocks(self) -> int:
        """Blocks that nobody holds; the null block is never counted."""
        return len(self._free)

    @property
    def usage(self) -> float:
        """Share of the usable blocks that is held, 0 to 1 (vLLM 0.32 `BlockPool.get_usage`)."""
        return 1.0 - len(self._free) / self.usable_blocks

    def take(self, count: int) -> list[int]:
        """`count` block ids, now held by the caller. Raises AccountingError when fewer are free: check first."""
        if not 0 < count <= len(self._free):
            raise AccountingError(f"{count} blocks asked for, {len(self._free)} are free")
        taken = self._free[-count:]
        del self._free[-count:]
        taken.reverse()
        for block_id in taken:
            self._is_free[block_id] = 0
        return taken

    def give_back(self, block_ids: list[int]) -> None:
        """End the holding of `block_ids`. Raises AccountingError for an id that is free already or is no block."""
        for block_id in block_ids:
            if not NULL_BLOCK < block_id < self.num_blocks or self._is_free[block_id]:
                raise AccountingError(f"block {block_id} given back but not held")
            self._is_free[block_id] = 1
        self._free.extend(block_ids)
