"""Decides by which numbers the runs of a prefix cache know prompts that begin alike (see prefix_keys.py: the same, for
ids that end where blocks end)."""

from collections.abc import Sequence

from kvbudget.simulate.gate_prefixes import GatePrefixes
from kvbudget.simulate.prefix_runs import Path


class PrefixChains:
    """The paths of one load's prompts."""

    def __init__(self, id_tokens: int, block_tokens: int, numbers: GatePrefixes) -> None:
        """`id_tokens`: prompt tokens that an id stands for, a multiple of `block_tokens`; `numbers` of chains."""
        self._id_tokens = id_tokens
        self._block_tokens = block_tokens
        self._numbers = numbers

    def path(self, prefix_ids: Sequence[int], prompt_tokens: int, chains: tuple[int, ...] = ()) -> Path:
        """What the full blocks of a prompt are found by. `chains`: its numbers, where they are known already."""
        if not prefix_ids:
            return Path((), 0)
        covered = min(len(prefix_ids) * self._id_tokens, prompt_tokens)
        return Path(chains or self._numbers.of(prefix_ids), covered // self._block_tokens)
