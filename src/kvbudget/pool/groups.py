"""What a pool is made of: KV cache groups that share block tables, and pages of equal size.

Words as in vLLM 0.32 (`v1/kv_cache_interface.py`, `v1/core/kv_cache_utils.py`): layers of one *group* share one
block table; a *block id* belongs to one group at a time and costs `bytes_per_block` whatever the group needs of it.

Values here are NamedTuples, not dataclasses: the planner starts in a few bare interpreters' time, and `dataclasses`
pulls `inspect` in, which alone costs one.
"""

from enum import StrEnum
from typing import NamedTuple

from kvbudget.units import Blocks, Bytes, Tokens, blocks_for


class LayerKind(StrEnum):
    """How a layer's cache grows with the request. Only `FULL` is computed so far; others are refused by name."""

    FULL = "full"
    SLIDING = "sliding"
    CHUNKED = "chunked"
    MLA = "mla"
    MLA_INDEXER = "mla_indexer"
    MAMBA = "mamba"
    SHARED = "shared"


class Group(NamedTuple):
    """Layers that share one block table.

    `block_size` in tokens; `page_size_bytes` is one block of ONE layer; `layers` counts layers on this rank.
    """

    kind: LayerKind
    layers: int
    block_size: Tokens
    page_size_bytes: Bytes

    @property
    def bytes_per_block(self) -> Bytes:
        """Bytes of one block id over all layers of the group."""
        return Bytes(self.layers * self.page_size_bytes)

    def blocks_for(self, tokens: int) -> Blocks:
        """Blocks that one sequence of `tokens` tokens holds in this group."""
        return blocks_for(tokens, self.block_size)


class Layout(NamedTuple):
    """All groups of one model on one rank; they draw from one pool of equal blocks."""

    groups: tuple[Group, ...]

    @property
    def bytes_per_block(self) -> Bytes:
        """Bytes of one block id: that of the widest group (vLLM 0.32 `get_kv_cache_config_from_groups`)."""
        return Bytes(max(group.bytes_per_block for group in self.groups))

    @property
    def bytes_per_token(self) -> Bytes:
        """Logical bytes that one more token costs, over all layers of this rank."""
        return Bytes(sum(g.layers * g.page_size_bytes // g.block_size for g in self.groups))

    def blocks_for(self, tokens: int) -> Blocks:
        """Blocks that one sequence of `tokens` tokens holds, summed over groups."""
        groups = self.groups
        if len(groups) == 1:  # most models; a gate asks this several times per request
            return groups[0].blocks_for(tokens)
        return Blocks(sum([group.blocks_for(tokens) for group in groups]))

    def bytes_for(self, tokens: int) -> Bytes:
        """Logical bytes of one sequence: whole blocks of each group, at that group's own width."""
        return Bytes(sum(g.blocks_for(tokens) * g.bytes_per_block for g in self.groups))

    def tail_waste(self, tokens: int) -> int:
        """Token slots that stay empty in the last block of each group."""
        return sum(g.blocks_for(tokens) * g.block_size - tokens for g in self.groups)

    def largest_length(self, blocks: int) -> Tokens:
        """Longest sequence whose blocks number at most `blocks`; 0 if not even one token fits."""
        if len(self.groups) == 1 and self.groups[0].kind is LayerKind.FULL:
            return Tokens(max(blocks, 0) * self.groups[0].block_size)
        low, high = 0, max(blocks, 0) * max(group.block_size for group in self.groups)
        while low < high:
            middle = (low + high + 1) // 2
            if self.blocks_for(middle) <= blocks:
                low = middle
            else:
                high = middle - 1
        return Tokens(low)


def uniform_layout(block_size: int) -> Layout:
    """One full-attention group: what a gate knows of a pool when only block counts are told (bytes unknown, 1)."""
    return Layout((Group(LayerKind.FULL, 1, Tokens(block_size), Bytes(block_size)),))
