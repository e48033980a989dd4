"""Decides by which numbers a prefix cache knows the blocks of prompts that begin alike.

A trace names what prompts share by ids, each for so many tokens (Mooncake: 512); engines hash blocks of their own size,
each hash over the whole prefix up to the block's end (vLLM 0.32 `v1/core/kv_cache_utils.py: hash_block_tokens`). Two
blocks are equal exactly if they are at the same place and the ids up to their last token are the same, so a chain of
ids gets a number when it is first seen, and a block's key is that number and its place. No hashing: no two collide.
"""

from collections.abc import Sequence
from typing import Final

from kvbudget.errors import BadValueError

_PLACE_BITS: Final = 32


class PrefixKeys:
    """Numbers for the prefixes of one load. Deterministic: they depend on the order of the calls only."""

    def __init__(self, id_tokens: int, block_tokens: int) -> None:
        """`id_tokens`: prompt tokens that an id stands for; `block_tokens`: those of a key, the engine's
        `key_tokens`."""
        if id_tokens < 1 or block_tokens < 1:
            raise BadValueError(f"{id_tokens} tokens for an id, {block_tokens} for a block", fix="give 1 or more")
        self._id_tokens = id_tokens
        self._block_tokens = block_tokens
        self._chains: dict[tuple[int, int], int] = {}  # (chain before, id) -> chain

    def keys(self, prefix_ids: Sequence[int], prompt_tokens: int) -> tuple[int, ...]:
        """Keys of the prompt's full blocks that the ids cover to their end; what follows is the prompt's own."""
        covered = min(len(prefix_ids) * self._id_tokens, prompt_tokens)
        keys: list[int] = []
        chain = known = 0  # the chain's number, and the tokens that it stands for
        ids = iter(prefix_ids)
        for place in range(covered // self._block_tokens):
            end = (place + 1) * self._block_tokens
            while known < end:
                chain = self._chains.setdefault((chain, next(ids)), len(self._chains) + 1)
                known += self._id_tokens
            keys.append(chain << _PLACE_BITS | place)
        return tuple(keys)
