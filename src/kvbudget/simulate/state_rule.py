"""Decides where a recurrent state stands, which of its past are kept, and when others can go on from one.

After vLLM 0.32 `MambaManager` (`v1/core/single_type_kv_cache_manager.py`, cache mode "align", without speculation). A
state replaces the one before it, so a sequence needs one block, two while it crosses a block's end, and more while
steps are under way; what was is only there where a chunk of prefill ended, which is why `prefill_chunk` ends chunks at
block ends. Some kinds (Mamba-2: `fixed_blocks` 3) put one state aside while prefill runs past it, in another block.
"""

from collections.abc import Sequence

from kvbudget.pool.groups import Group
from kvbudget.simulate.block_pool import NULL_BLOCK, BlockPool
from kvbudget.simulate.engine_request import EngineRequest
from kvbudget.simulate.group_rules import BlockTable, Found, KeyOf, SparseRule
from kvbudget.units import blocks_for

PLAIN_STATE_BLOCKS = 2
CHECKPOINT_STATE_BLOCKS = 3


class StateRule(SparseRule):
    """A recurrent state, remembered at block ends."""

    def __init__(
        self, group: Group, place: int, pool: BlockPool, longest: int, alignment: int, hash_size: int,
        retention: int | None,
    ) -> None:  # fmt: skip
        """As of SparseRule."""
        super().__init__(group, place, pool, longest, alignment, hash_size, retention)
        self._puts_aside = group.fixed_blocks == CHECKPOINT_STATE_BLOCKS
        self._written_now: set[int] = set()

    def begin_step(self) -> None:
        """States of earlier steps are there now."""
        self._written_now.clear()

    def missing(
        self, table: BlockTable, tokens: int, hit: Sequence[int], computed: int, prefill_end: int, *, whole: bool
    ) -> int:
        """One new block at most, and one for a state that is put aside; more than the pool has while the found state is
        only being written in this step."""
        if hit:
            key = self._pool.key_of(hit[-1])
            if key is not None and key[1] in self._written_now:
                return self._pool.num_blocks + 1
        checkpoint = self._checkpoint(table, computed, tokens, prefill_end) if self._puts_aside else 0
        if not whole:
            table.checkpoint = checkpoint
        new = blocks_for(tokens, self.block_size) - len(hit) - len(table.blocks)
        return min(new, 2 if checkpoint else 1) + self._free_among(hit)

    def grow(self, table: BlockTable, tokens: int) -> None:
        """The state moves to the last block; places that it jumped over stay null, but for one that is put aside."""
        needed = blocks_for(tokens, self.block_size)
        jumped = needed - 1 - len(table.blocks) - (table.checkpoint > 0)
        table.blocks += [NULL_BLOCK] * max(0, jumped)
        self._take(table, needed - len(table.blocks))

    def quiet_until(self, table: BlockTable, processed: int, *, caching: bool) -> int:
        """Never: until the state has moved on, each step remembers it as written in that step."""
        return 0

    def retire(self, table: BlockTable, processed: int) -> None:
        """All states before the last token's; between them there are null blocks."""
        end = min(self.group.skipped_tokens(processed) // self.block_size, len(table.blocks))
        if end > table.retired:
            self._give_back(table, table.retired, end)
            table.retired = end

    def remember(self, table: BlockTable, tokens: int, prompt: int, key_of: KeyOf, boundaries: Sequence[int]) -> None:
        """Besides: what is remembered in this step, or is the prompt's last block end once more, cannot be used yet."""
        start = table.num_cached
        super().remember(table, tokens, prompt, key_of, boundaries)
        touched = [block for block in table.blocks[start : table.num_cached] if block != NULL_BLOCK]
        last = (prompt - 1) // self.block_size
        if not table.checkpoint and 0 < tokens == last * self.block_size and table.blocks[last - 1] != NULL_BLOCK:
            touched.append(table.blocks[last - 1])
        for block in touched:
            key = self._pool.key_of(block)
            if key is not None:
                self._written_now.add(key[1])

    def _checkpoint(self, table: BlockTable, computed: int, tokens: int, prefill_end: int) -> int:
        """Where these tokens put a state aside, 0: nowhere. In the last chunk only, where prefixes are kept at ends of
        prompts only; not where there is a state anyway."""
        if self._retention == 0 and tokens < prefill_end:
            return 0
        checkpoint = checkpoint_in(computed, tokens, tokens, self.block_size)
        place = checkpoint // self.block_size - 1
        if not checkpoint or (place < len(table.blocks) and table.blocks[place] != NULL_BLOCK):
            return 0
        return checkpoint

    def find(self, places: Sequence[int], limit: int, key_of: KeyOf) -> Found:
        """The last state at or before `limit`."""
        for index in range(limit // self.block_size - 1, -1, -1):
            blocks = self._pool.find(places, self._key(key_of, index))
            if blocks is not None:
                return [[*[NULL_BLOCK] * index, block] for block in blocks], (index + 1) * self.block_size
        return [[] for _ in places], 0


def checkpoint_in(start: int, end: int, of: int, block_size: int) -> int:
    """The last block end before `of` tokens, if a chunk of prefill from `start` to `end` can put its state aside; 0 if
    it cannot.

    vLLM 0.32 `v1/kv_cache_interface.py: is_mamba_prefill_checkpoint_valid`, with blocks as large as those of hashes.
    """
    position = prompt_checkpoint(of, block_size)
    passes = blocks_for(end, block_size) - 2 > (start - 1) // block_size
    return position if start % block_size == 0 and passes and start + block_size <= position < end else 0


def prompt_checkpoint(tokens: int, block_size: int) -> int:
    """The last block end that a prompt of `tokens` tokens, sent again, could go on from: one token is left."""
    return (tokens - 1) // block_size * block_size


def prefill_chunk(
    request: EngineRequest, start: int, new_tokens: int, block_size: int, most_tokens: int, *, puts_aside: bool = False
) -> int:
    """Of `new_tokens` tokens from `start` on, those that end where a state of `block_size` tokens can be remembered.

    vLLM 0.32 `v1/core/sched/scheduler.py: _mamba_block_aligned_split`, without speculation: chunks end at block ends,
    at the prompt's last one (unless that state is put aside), and where the prompt parts from others. `most_tokens`: of
    one chunk; a block that is larger is crossed in several. 0: not in this step.
    """
    if start >= request.prefill_end:
        return new_tokens
    end = start + new_tokens
    last = prompt_checkpoint(request.num_tokens, block_size)
    if puts_aside and end >= request.prefill_end and checkpoint_in(start, end, request.prefill_end, block_size):
        last = 0
    if end < request.prefill_end:
        aligned = end // block_size * block_size
        if aligned > start or block_size <= most_tokens:
            end = aligned
    stops = [last]
    if start % block_size:
        stops.append((start // block_size + 1) * block_size)
    if start < request.shared_prefix_tokens < end:
        stops.append(start + (request.shared_prefix_tokens - start) // block_size * block_size)
    return max(0, min([stop for stop in stops if start < stop < end], default=end) - start)
