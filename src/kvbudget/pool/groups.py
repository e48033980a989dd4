"""What a pool is made of: KV cache groups that share block tables, and pages of equal size.

Words as in vLLM 0.32 (`v1/kv_cache_interface.py`, `v1/core/kv_cache_utils.py`): layers of one *group* share one
block table; a *block id* belongs to one group at a time and costs `bytes_per_block` whatever the group needs of it.

Values here are NamedTuples, not dataclasses: the planner starts in a few bare interpreters' time, and `dataclasses`
pulls `inspect` in, which alone costs one.
"""

from enum import StrEnum
from math import lcm
from typing import NamedTuple

from kvbudget.units import Blocks, Bytes, Tokens, blocks_for


class LayerKind(StrEnum):
    """How a group's cache grows with the request."""

    FULL = "full"
    SLIDING = "sliding"
    CHUNKED = "chunked"
    MLA = "mla"
    MLA_INDEXER = "mla_indexer"
    COMPRESSED = "compressed"  # one vector for several tokens
    COMPRESSOR = "compressor"  # tokens that are not compressed yet: bounded, whatever the length
    MAMBA = "mamba"
    CROSS = "cross"


class Group(NamedTuple):
    """Layers that share one block table.

    `block_size` in tokens; `page_size_bytes` is one block of ONE layer, of the widest where they differ, and then
    `mixed_block_bytes` is one block of all of them. `layers` counts layer caches on this rank.
    What a sequence holds: blocks of all its tokens, or of at most `most_tokens` of them (a window, a chunk, and what
    is in flight), and `extra_blocks` more; or `fixed_blocks` whatever its length (a recurrent state, an encoder's
    output). 0: no such bound. `window`: tokens of the window or chunk itself, to call it by; 0: it has none.
    `sharing_ranks`: so many context-parallel ranks share the tokens of a block; its bytes are those of one of them.
    """

    kind: LayerKind
    layers: int
    block_size: Tokens
    page_size_bytes: Bytes
    mixed_block_bytes: Bytes = Bytes(0)
    most_tokens: Tokens = Tokens(0)
    extra_blocks: Blocks = Blocks(0)
    fixed_blocks: Blocks = Blocks(0)
    window: Tokens = Tokens(0)
    sharing_ranks: int = 1

    @property
    def bytes_per_block(self) -> Bytes:
        """Bytes of one block id over all layers of the group."""
        return self.mixed_block_bytes or Bytes(self.layers * self.page_size_bytes)

    def blocks_for(self, tokens: int) -> Blocks:
        """Blocks that one sequence of `tokens` tokens holds in this group at its worst moment."""
        return blocks_in((self,), tokens)

    def admission_blocks(self, tokens: int, longest: int) -> Blocks:
        """Blocks that must be free before a sequence of `tokens` tokens may start, none of it computed yet: those of
        all its tokens, or of the most that one of `longest` tokens ever holds at once.

        vLLM 0.32 `v1/core/single_type_kv_cache_manager.py: get_num_blocks_to_allocate`, with its admission cap. Less
        than `blocks_for` for a short sequence with a window: that one counts a window that begins inside a block.
        """
        blocks = self.fixed_blocks or blocks_for(tokens, self.block_size)
        return min(blocks, self.blocks_for(longest)) if self.most_tokens else blocks

    def skipped_tokens(self, computed: int) -> int:
        """Leading tokens that the next one no longer looks at, once `computed` are computed; whole blocks of them are
        given back (vLLM 0.32 `get_num_skipped_tokens`). A state needs only that of the last token."""
        if self.kind is LayerKind.MAMBA:
            return max(0, computed - 1)
        if not self.window:
            return 0
        if self.kind is LayerKind.CHUNKED:
            return computed // self.window * self.window
        return max(0, computed - self.window + 1)

    def passes_at(self, computed: int) -> int:
        """The first length after `computed` at which a window or chunk has passed one more whole block."""
        start = (self.skipped_tokens(computed) // self.block_size + 1) * self.block_size
        if self.kind is LayerKind.CHUNKED:
            return -(-start // self.window) * self.window
        return start + self.window - 1

    @property
    def reuse_blocks(self) -> Blocks:
        """Blocks before a position that must be there to go on from it: those of a window, the one state, or none
        in particular because all are kept (0)."""
        if self.kind is LayerKind.MAMBA:
            return Blocks(1)
        return blocks_for(self.window - 1, self.block_size) if self.window else Blocks(0)


class Content(NamedTuple):
    """What layers really store, without whole blocks: `size` bytes for every `per_tokens` tokens (more than one where
    tokens are compressed) of at most `window` tokens (0: of all), and `constant_bytes` whatever the length."""

    size: int
    window: int = 0
    constant_bytes: int = 0
    per_tokens: int = 1

    def bytes_for(self, tokens: int) -> int:
        """Bytes of one sequence of `tokens` tokens, rounded up."""
        kept = min(tokens, self.window) if self.window else tokens
        return -(-kept * self.size // self.per_tokens) + self.constant_bytes


class Layout(NamedTuple):
    """All groups of one model on one rank; they draw from one pool of equal blocks.

    `contents` is what is stored logically, one entry for each kind of layer; empty: whatever the groups' pages hold.
    `block_alignment`: a block of the pool is a multiple of so many bytes.
    """

    groups: tuple[Group, ...]
    contents: tuple[Content, ...] = ()
    block_alignment: int = 1

    @property
    def bytes_per_block(self) -> Bytes:
        """Bytes of one block id: that of the widest group (vLLM 0.32 `_get_kv_cache_bytes_per_block`)."""
        widest = max(group.bytes_per_block for group in self.groups)
        return Bytes(-(-widest // self.block_alignment) * self.block_alignment)

    @property
    def stored(self) -> tuple[Content, ...]:
        """`contents`, or those of plain full-attention groups."""
        return self.contents or tuple(Content(g.layers * g.page_size_bytes // g.block_size) for g in self.groups)

    @property
    def bytes_per_token(self) -> Bytes:
        """Logical bytes that one more token costs once all windows are full, over all layers of this rank."""
        growing = [content for content in self.stored if not content.window]
        common = lcm(*(content.per_tokens for content in growing))
        return Bytes(sum(content.size * (common // content.per_tokens) for content in growing) // common)

    def blocks_for(self, tokens: int) -> Blocks:
        """Blocks that one sequence of `tokens` tokens holds, summed over groups."""
        return blocks_in(self.groups, tokens)

    def bytes_for(self, tokens: int) -> Bytes:
        """Logical bytes of one sequence: what its kept tokens and its states need, without padding."""
        return Bytes(sum(content.bytes_for(tokens) for content in self.stored))

    def tail_waste(self, tokens: int) -> int:
        """Token slots that stay empty in the last block of each group that keeps all tokens."""
        return sum(g.blocks_for(tokens) * g.block_size - tokens for g in self.growing)

    @property
    def growing(self) -> tuple[Group, ...]:
        """The groups that keep every token."""
        return tuple(g for g in self.groups if not (g.most_tokens or g.fixed_blocks))

    def largest_length(self, blocks: int, at_most: int = 0) -> Tokens:
        """Longest sequence whose blocks number at most `blocks`, and `at_most` where given; 0 if not even one token.

        Where no group keeps every token, any length fits, and `at_most` (or all blocks' slots) is the answer.
        """
        if len(self.groups) == 1 and self.growing and not self.groups[0].extra_blocks:
            slots = max(blocks, 0) * self.groups[0].block_size
            return Tokens(min(slots, at_most) if at_most else slots)
        low, high = 0, at_most or max(blocks, 0) * max(group.block_size for group in self.groups)
        while low < high:
            middle = (low + high + 1) // 2
            if self.blocks_for(middle) <= blocks:
                low = middle
            else:
                high = middle - 1
        return Tokens(low)


def blocks_in(groups: tuple[Group, ...], tokens: int) -> Blocks:
    """Blocks that one sequence of `tokens` tokens holds at its worst moment, summed over these groups.

    A function, as a gate asks it with every request: compiled, a method of a NamedTuple is the interpreter's.
    """
    blocks = 0
    for group in groups:
        if group.fixed_blocks:
            blocks += group.fixed_blocks
        else:
            most = group.most_tokens
            held = most if most and tokens > most else tokens
            blocks += blocks_for(held, group.block_size) + group.extra_blocks
    return Blocks(blocks)


def uniform_layout(block_size: int) -> Layout:
    """One full-attention group: what a gate knows of a pool when only block counts are told (bytes unknown, 1)."""
    return Layout((Group(LayerKind.FULL, 1, Tokens(block_size), Bytes(block_size)),))
