"""Decides, group by group, which blocks a sequence takes, gives back, leaves to be found and finds itself.

After vLLM 0.32 `v1/core/single_type_kv_cache_manager.py`. Figures of a group come from `pool/groups.py`; here is what a
group does with real blocks: full attention keeps all, a window and a chunk give back what nobody looks at any more.
Recurrent states are in state_rule.py, where there is a prefix cache; without one a state is a block for life.
"""

from collections.abc import Callable, Iterable, Sequence

from kvbudget.pool.groups import Group
from kvbudget.simulate.block_pool import NULL_BLOCK, BlockPool
from kvbudget.units import blocks_for

# A block's key by its place among blocks of the hashes' size.
KeyOf = Callable[[int], int]
# Blocks for each group of a batch (null where none is needed), and the tokens that they stand for.
Found = tuple[list[list[int]], int]


class BlockTable:
    """The blocks of one sequence in one group, by place. `kept` of them are real, the others null.

    `num_cached`: leading places that were dealt with for the prefix cache; `retired`: that were given back.
    `checkpoint`: where a state is put aside while prefill runs past it, in tokens; 0: nowhere.
    """

    __slots__ = ("blocks", "checkpoint", "kept", "num_cached", "retired")

    def __init__(self) -> None:
        self.blocks: list[int] = []
        self.checkpoint = 0
        self.kept = 0
        self.num_cached = 0
        self.retired = 0


class GroupRule:
    """Full attention: every block stays until the sequence ends. The others differ where their names say."""

    def __init__(self, group: Group, place: int, pool: BlockPool, longest: int, alignment: int, hash_size: int) -> None:
        """`place`: of the group in its layout; `longest`: max_model_len; `alignment`: prefix hits are multiples of so
        many tokens; `hash_size`: tokens of a block that has a key of its own."""
        self.group = group
        self.place = place
        self.block_size = int(group.block_size)
        self.alignment = alignment
        self.hash_size = hash_size
        self._pool = pool
        self._longest = longest

    def begin_step(self) -> None:
        """A new step begins."""

    def missing(
        self, table: BlockTable, tokens: int, hit: Sequence[int], computed: int, prefill_end: int, *, whole: bool
    ) -> int:
        """Free blocks that it takes to hold `tokens` tokens after `computed`, of which `hit` are found in the cache.

        `whole`: the question is for all of a sequence before it starts, however many steps it will take.
        """
        needed = self.group.admission_blocks(tokens, self._longest) if whole else blocks_for(tokens, self.block_size)
        if not hit:
            return max(needed - len(table.blocks), 0)
        skipped = self.group.skipped_tokens(computed) // self.block_size
        return max(needed - max(skipped, len(hit)), 0) + self._free_among(hit[skipped:])

    def adopt(self, table: BlockTable, hit: Sequence[int], computed: int) -> None:
        """Begin with what was found, as far as it is still looked at."""
        skipped = self.group.skipped_tokens(computed) // self.block_size
        used = hit[skipped:]
        self._pool.hold(used)
        table.blocks = [NULL_BLOCK] * skipped + list(used)
        table.num_cached = len(table.blocks)
        table.kept = len(used) - used.count(NULL_BLOCK)

    def grow(self, table: BlockTable, tokens: int) -> None:
        """Take blocks so that `tokens` tokens have a place."""
        self._take(table, blocks_for(tokens, self.block_size) - len(table.blocks))

    def retire(self, table: BlockTable, processed: int) -> None:
        """Give back what is no longer looked at once `processed` tokens are computed, down to the next null block."""
        end = min(self.group.skipped_tokens(processed) // self.block_size, len(table.blocks))
        start = end
        while start > table.retired and table.blocks[start - 1] != NULL_BLOCK:
            start -= 1
        self._give_back(table, start, end)

    def quiet_until(self, table: BlockTable, processed: int, *, caching: bool) -> int:
        """The longest that the sequence can grow to without any of this being done: while its last block fills.

        `processed`: as it was retired last.
        """
        return len(table.blocks) * self.block_size - caching

    def remember(self, table: BlockTable, tokens: int, prompt: int, key_of: KeyOf, boundaries: Sequence[int]) -> None:
        """Let the full blocks of the first `tokens` tokens be found by others, as far as anybody could use them.

        `boundaries`: where other requests are expected to go on from.
        """
        end = tokens // self.block_size
        start = table.num_cached
        if start >= end:
            return
        for place in self._worth_keeping(start, end, boundaries):
            if table.blocks[place] != NULL_BLOCK:
                self._pool.remember(self.place, self._key(key_of, place), table.blocks[place])
        table.num_cached = end

    def find(self, places: Sequence[int], limit: int, key_of: KeyOf) -> Found:
        """The longest prefix of at most `limit` tokens that each of the groups `places`, all like this one, has."""
        found: list[list[int]] = [[] for _ in places]
        for index in range(limit // self.block_size):
            blocks = self._pool.find(places, self._key(key_of, index))
            if blocks is None:
                break
            for one, block in zip(found, blocks, strict=True):
                one.append(block)
        tokens = len(found[0]) * self.block_size
        tokens -= tokens % self.alignment
        for one in found:
            del one[blocks_for(tokens, self.block_size) :]
        return found, tokens

    def _worth_keeping(self, start: int, end: int, boundaries: Sequence[int]) -> Iterable[int]:
        """Places in start..end that somebody could go on from."""
        return range(start, end)

    def _key(self, key_of: KeyOf, index: int) -> int:
        """Key of the group's own block `index`: that of the prefix up to its end."""
        return key_of((index + 1) * self.block_size // self.hash_size - 1)

    def _free_among(self, blocks: Sequence[int]) -> int:
        """Cached blocks that nobody holds count as free until they are used."""
        return sum(map(self._pool.is_free, blocks))

    def _take(self, table: BlockTable, count: int) -> None:
        if count > 0:
            table.blocks += self._pool.take(count)
            table.kept += count

    def _give_back(self, table: BlockTable, start: int, end: int) -> None:
        blocks = [block for block in table.blocks[start:end] if block != NULL_BLOCK]
        if blocks:
            self._pool.give_back(blocks)
            table.blocks[start:end] = [NULL_BLOCK] * (end - start)
            table.kept -= len(blocks)


class HeldForLife(GroupRule):
    """The same blocks from the first step to the last: states without a prefix cache, an encoder's output, a ring."""

    def missing(
        self, table: BlockTable, tokens: int, hit: Sequence[int], computed: int, prefill_end: int, *, whole: bool
    ) -> int:
        """All of them, once."""
        return self.group.fixed_blocks - len(table.blocks)

    def adopt(self, table: BlockTable, hit: Sequence[int], computed: int) -> None:
        """Nothing of it can be shared."""

    def grow(self, table: BlockTable, tokens: int) -> None:
        """Take them."""
        self._take(table, self.group.fixed_blocks - len(table.blocks))

    def retire(self, table: BlockTable, processed: int) -> None:
        """Never before the end."""

    def quiet_until(self, table: BlockTable, processed: int, *, caching: bool) -> int:
        """For ever."""
        return self._longest

    def remember(self, table: BlockTable, tokens: int, prompt: int, key_of: KeyOf, boundaries: Sequence[int]) -> None:
        """Nothing of it can be shared."""


class SparseRule(GroupRule):
    """A group that goes on from the last tokens before a position: only there blocks are worth keeping.

    `retention`: None keeps everything, 0 what leads to an expected boundary, N that and what leads to each multiple of
    N tokens (vLLM 0.32 `prefix_cache_retention_interval`).
    """

    def __init__(
        self, group: Group, place: int, pool: BlockPool, longest: int, alignment: int, hash_size: int,
        retention: int | None,
    ) -> None:  # fmt: skip
        """As of GroupRule."""
        super().__init__(group, place, pool, longest, alignment, hash_size)
        self._retention = retention

    def _worth_keeping(self, start: int, end: int, boundaries: Sequence[int]) -> Iterable[int]:
        needed = self.group.reuse_blocks
        kept: set[int] = set()
        segment = (self.alignment if self._retention is None else self._retention) // self.block_size
        if segment:
            kept.update(place for place in range(start, end) if place % segment >= segment - needed)
        if self._retention is not None:
            for boundary in boundaries:
                stop = boundary // self.alignment * self.alignment // self.block_size
                kept.update(range(max(start, stop - needed), min(end, stop)))
        return sorted(kept)


class SlidingRule(SparseRule):
    """Only the last `window` tokens are looked at."""

    def quiet_until(self, table: BlockTable, processed: int, *, caching: bool) -> int:
        """Until its last block is full, or the window has passed another one."""
        return min(super().quiet_until(table, processed, caching=caching), self.group.passes_at(processed))

    def find(self, places: Sequence[int], limit: int, key_of: KeyOf) -> Found:
        """From the end: the last run of blocks that fills a window; failing that, a run from the very beginning."""
        needed = self.group.reuse_blocks
        count = limit // self.block_size
        found = [[NULL_BLOCK] * count for _ in places]
        run = 0
        for index in range(count - 1, -1, -1):
            blocks = self._pool.find(places, self._key(key_of, index))
            if blocks is None:
                run = 0
                continue
            if run == 0 and (index + 1) * self.block_size % self.alignment:
                continue
            for one, block in zip(found, blocks, strict=True):
                one[index] = block
            run += 1
            if run >= needed:
                end = index + run
                break
        else:
            end = run
        for one in found:
            del one[end:]
        return found, end * self.block_size


class ChunkedRule(GroupRule):
    """Only tokens of the chunk that the next token is in are looked at."""

    def quiet_until(self, table: BlockTable, processed: int, *, caching: bool) -> int:
        """Until its last block is full, or the next chunk begins."""
        return min(super().quiet_until(table, processed, caching=caching), self.group.passes_at(processed))

    def find(self, places: Sequence[int], limit: int, key_of: KeyOf) -> Found:
        """Chunks before the last position's count as found without a look; then a run of blocks from its beginning."""
        first = self.group.skipped_tokens(limit) // self.block_size
        found = [[NULL_BLOCK] * first for _ in places]
        for index in range(first, limit // self.block_size):
            blocks = self._pool.find(places, self._key(key_of, index))
            if blocks is None:
                break
            for one, block in zip(found, blocks, strict=True):
                one.append(block)
        return found, len(found[0]) * self.block_size
