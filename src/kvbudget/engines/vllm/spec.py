"""What vLLM knows of one layer's cache before layers are grouped: the page of a block, and how a request fills blocks.

`v1/kv_cache_interface.py`: the classes whose names are the families here.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from kvbudget.pool.groups import Content


class Family(IntEnum):
    """Which of vLLM's classes a spec is of. FULL and MLA may share a group, no other two may."""

    FULL = 1  # FullAttentionSpec
    MLA = 2  # MLAAttentionSpec
    SLIDING = 3  # SlidingWindowSpec
    SLIDING_MLA = 4  # SlidingWindowMLASpec
    CHUNKED = 5  # ChunkedLocalAttentionSpec
    MAMBA = 6  # MambaSpec
    CROSS = 7  # CrossAttentionSpec
    RING = 8  # CircularBufferSpec


_KEEPS_ALL = (Family.FULL, Family.MLA)


class Spec(NamedTuple):
    """One layer's cache on one rank.

    `block_size` in tokens; `page` bytes of one block; `padded` the page it is blown up to, 0 when it is not.
    `identity`: whatever else must be equal for two layers to be alike. `window`: tokens of the window or chunk; on a
    FULL spec the window that only the computation still has. `fixed_blocks`: of a state or an encoder's output.
    `content`: what it really stores. `replicated`: not split by decode context parallelism. `whole`: a recurrent state
    that every tensor-parallel rank has all of. `stride`: blocks that lie side by side with others start at multiples of
    so many bytes.
    """

    family: Family
    block_size: int
    page: int
    content: Content
    identity: tuple[object, ...] = ()
    window: int = 0
    padded: int = 0
    fixed_blocks: int = 0
    replicated: bool = False
    whole: bool = False
    stride: int = 1

    @property
    def page_bytes(self) -> int:
        """Bytes of one block, padding included."""
        return self.padded or self.page

    def with_block_size(self, block_size: int) -> "Spec":
        """The same cache in blocks of another size; recurrent pages do not scale."""
        if self.family is Family.MAMBA:
            return self._replace(block_size=block_size)
        return self._replace(block_size=block_size, page=self.page * block_size // self.block_size)


def are_alike(specs: Sequence[Spec]) -> bool:
    """Whether layers may be one group of equal pages (`merge` of the classes).

    Full layers may differ in a window that only the computation has, as long as there is one such window.
    """
    specs = tuple(dict.fromkeys(specs))  # most models have two or three different ones
    first = specs[0]
    if first.family is not Family.FULL:
        return len(specs) == 1
    bare = first._replace(window=0, content=_NO_CONTENT)
    if any(spec._replace(window=0, content=_NO_CONTENT) != bare for spec in specs):
        return False
    return len({spec.window for spec in specs if spec.window}) <= 1


def are_of_one_type(specs: Sequence[Spec]) -> bool:
    """Whether all need the same number of token slots, whatever their page sizes (`UniformTypeKVCacheSpecs`)."""
    specs = tuple(dict.fromkeys(specs))
    first = specs[0]
    if any(s.block_size != first.block_size or s.replicated != first.replicated for s in specs):
        return False
    if first.family in _KEEPS_ALL:
        return all(spec.family in _KEEPS_ALL for spec in specs)
    if first.family is Family.SLIDING:
        families: tuple[Family, ...] = (Family.SLIDING, Family.SLIDING_MLA)
        return all(spec.family in families and spec.window == first.window for spec in specs)
    if first.family is Family.MAMBA:
        return all(
            spec.family is Family.MAMBA
            and spec.fixed_blocks == first.fixed_blocks
            and spec.page_bytes == first.page_bytes
            and spec.whole == first.whole
            for spec in specs
        )
    return all(spec.family is first.family and spec.window == first.window for spec in specs)


_NO_CONTENT = Content(0)
