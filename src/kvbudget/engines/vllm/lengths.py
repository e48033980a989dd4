"""Decides the longest max_model_len that starts: what a request holds grows with it, and so do the batches in flight.

`v1/core/kv_cache_utils.py: _check_enough_kv_cache_memory` checks one request of full length against the pool.
"""

from collections.abc import Callable
from typing import NamedTuple

from kvbudget.engines.flags import Settings
from kvbudget.engines.vllm.batches import at_length, batch_at
from kvbudget.engines.vllm.versions import Traits
from kvbudget.model.read import Model
from kvbudget.pool.groups import Group, LayerKind, Layout
from kvbudget.units import Tokens

_ANY_LENGTH = 10**12  # nothing beyond is asked for


class Need(NamedTuple):
    """Blocks that a request of full length holds, for another max_model_len than that of `settings`.

    `rebuild` gives the layout of other settings; it is asked where more than the windows follows the length.
    """

    traits: Traits
    model: Model
    settings: Settings
    layout: Layout
    rebuild: Callable[[Settings], Layout]

    def blocks(self, length: int) -> int:
        """Blocks of one request of `length` tokens, with the batches that this length as max_model_len gives."""
        settings = self.settings
        if self._rebuilt():
            return self.rebuild(at_length(self.traits, self.model, settings, length)).blocks_for(length)
        more = self._in_flight(length) - settings.max_in_flight_tokens
        if not more:
            return self.layout.blocks_for(length)
        return sum(_widened(group, more).blocks_for(length) for group in self.layout.groups)

    def _in_flight(self, length: int) -> int:
        batching = self.settings.batching
        if batching is None or batching.asked_tokens:
            return self.settings.max_in_flight_tokens
        tokens, _, _ = batch_at(self.traits, self.model, self.settings.speculation, batching, length)
        return batching.batches * tokens

    def _rebuilt(self) -> bool:
        """An encoder's output takes the blocks of a batch; before 0.15 a state took those of the longest request."""
        kinds = {group.kind for group in self.layout.groups}
        return LayerKind.CROSS in kinds or (LayerKind.MAMBA in kinds and not self.traits.aligned_states)


def largest_length(need: Need, blocks: int) -> Tokens:
    """Longest max_model_len, with all other flags as they are, whose one request takes at most `blocks` and that
    `longest` of the settings allows; 0 if not even one token fits."""
    settings, layout = need.settings, need.layout
    limit = settings.longest or _limit(need, blocks)
    batching = settings.batching
    beyond = need.traits.chunked_beyond
    if not beyond or batching is None or batching.asked_chunks is not None:
        if batching is not None and batching.asked_tokens and not settings.chunked_prefill:
            limit = min(limit, batching.asked_tokens)
        if len(layout.groups) == 1 and layout.growing and not layout.groups[0].extra_blocks:
            return layout.largest_length(blocks, limit)  # at once: most models
        return _search(need, blocks, 0, limit)
    # Before 0.8 a batch takes whole prompts up to `beyond` and parts of longer ones, which hold less.
    if limit > beyond and batch_at(need.traits, need.model, settings.speculation, batching, beyond + 1)[2]:
        found = _search(need, blocks, beyond, limit)
        if found > beyond:
            return found
        limit = beyond
    return _search(need, blocks, 0, min(limit, batching.asked_tokens or limit))


def _search(need: Need, blocks: int, low: int, high: int) -> Tokens:
    """The longest in low + 1..high, `low` where none of them fits: what a request needs only grows there."""
    while low < high:
        middle = (low + high + 1) // 2
        if need.blocks(middle) <= blocks:
            low = middle
        else:
            high = middle - 1
    return Tokens(low)


def _limit(need: Need, blocks: int) -> int:
    """No length beyond it fits, where the model has no limit: all blocks' slots in the group with the largest."""
    growing = [group.block_size for group in need.layout.growing]
    if growing:
        return min(_ANY_LENGTH, max(blocks, 0) * max(growing))
    return max(need.settings.max_model_len, blocks * need.settings.block_size)


def _widened(group: Group, more: int) -> Group:
    return group._replace(most_tokens=Tokens(group.most_tokens + more)) if group.most_tokens else group
