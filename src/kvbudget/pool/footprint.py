"""What one request asks of the pool: now, and at its worst moment."""

from typing import Final

from kvbudget.pool.groups import Layout, blocks_in
from kvbudget.units import Blocks, Tokens


class Footprint:
    """The lengths of one request.

    `prompts`: tokens of each prompt (a completion request may carry several); `max_new_tokens`: the most tokens that
    each sequence can produce; `sequences`: sequences per prompt (`n`, `best_of`, beam width). Shared prompt blocks are
    not credited: each sequence is charged its whole length. `total_sequences`: those that the engine runs for this
    request; each takes one of its `max_num_seqs` places. `prompt_tokens`: of all prompts, each once.

    Written by hand and no NamedTuple: a gate asks each one a dozen times, and what is compiled would have to ask the
    interpreter for a property of a tuple.
    """

    __slots__ = ("max_new_tokens", "prompt_tokens", "prompts", "sequences", "total_sequences")

    def __init__(self, prompts: tuple[Tokens, ...], max_new_tokens: Tokens, sequences: int = 1) -> None:
        self.prompts: Final = prompts
        self.max_new_tokens: Final = max_new_tokens
        self.sequences: Final = sequences
        several = len(prompts)
        self.total_sequences: Final = several * sequences
        self.prompt_tokens: Final[int] = prompts[0] if several == 1 else sum(prompts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Footprint):
            return NotImplemented
        same = self.prompts == other.prompts and self.max_new_tokens == other.max_new_tokens
        return same and self.sequences == other.sequences

    def __hash__(self) -> int:
        return hash((self.prompts, self.max_new_tokens, self.sequences))

    def __repr__(self) -> str:
        return f"Footprint({self.prompts!r}, {self.max_new_tokens!r}, {self.sequences!r})"

    @property
    def total_tokens(self) -> Tokens:
        """Tokens held by all sequences at the worst moment."""
        return Tokens(self.prompt_tokens * self.sequences + self.max_new_tokens * self.total_sequences)

    def peak_blocks(self, layout: Layout) -> Blocks:
        """Blocks held at the worst moment: every sequence at prompt + max_new_tokens."""
        return _peak_blocks(layout, self.prompts, self.max_new_tokens, self.sequences)


def _peak_blocks(layout: Layout, prompts: tuple[Tokens, ...], new_tokens: int, sequences: int) -> Blocks:
    if len(prompts) == 1:
        return Blocks(blocks_in(layout.groups, prompts[0] + new_tokens) * sequences)
    return Blocks(sum([blocks_in(layout.groups, prompt + new_tokens) for prompt in prompts]) * sequences)


def largest_new_tokens(layout: Layout, prompts: tuple[Tokens, ...], sequences: int, blocks: int) -> Tokens:
    """Most new tokens per sequence with which the request's peak still is at most `blocks`; 0 if none."""
    if not prompts or sequences < 1:
        return Tokens(0)
    shortest = min(prompts)
    low, high = 0, max(0, layout.largest_length(blocks) - shortest)
    while low < high:
        middle = (low + high + 1) // 2
        if _peak_blocks(layout, prompts, middle, sequences) <= blocks:
            low = middle
        else:
            high = middle - 1
    return Tokens(low)
