"""What one request asks of the pool: now, and at its worst moment."""

from typing import NamedTuple

from kvbudget.pool.groups import Layout
from kvbudget.units import Blocks, Tokens


class Footprint(NamedTuple):
    """The lengths of one request.

    `prompts`: tokens of each prompt (a completion request may carry several); `max_new_tokens`: the most tokens that
    each sequence can produce; `sequences`: sequences per prompt (`n`, `best_of`, beam width). Shared prompt blocks are
    not credited: each sequence is charged its whole length.
    """

    prompts: tuple[Tokens, ...]
    max_new_tokens: Tokens
    sequences: int = 1

    @property
    def total_sequences(self) -> int:
        """Sequences that the engine runs for this request; each takes one of its `max_num_seqs` places."""
        return len(self.prompts) * self.sequences

    @property
    def total_tokens(self) -> Tokens:
        """Tokens held by all sequences at the worst moment."""
        return Tokens((sum(self.prompts) + len(self.prompts) * self.max_new_tokens) * self.sequences)

    def peak_blocks(self, layout: Layout) -> Blocks:
        """Blocks held at the worst moment: every sequence at prompt + max_new_tokens."""
        if len(self.prompts) == 1:
            return Blocks(layout.blocks_for(self.prompts[0] + self.max_new_tokens) * self.sequences)
        return Blocks(sum(layout.blocks_for(p + self.max_new_tokens) for p in self.prompts) * self.sequences)


def largest_new_tokens(layout: Layout, prompts: tuple[Tokens, ...], sequences: int, blocks: int) -> Tokens:
    """Most new tokens per sequence with which the request's peak still is at most `blocks`; 0 if none."""
    if not prompts or sequences < 1:
        return Tokens(0)
    shortest = min(prompts)
    low, high = 0, max(0, layout.largest_length(blocks) - shortest)
    while low < high:
        middle = (low + high + 1) // 2
        if Footprint(prompts, Tokens(middle), sequences).peak_blocks(layout) <= blocks:
            low = middle
        else:
            high = middle - 1
    return Tokens(low)
