"""How the blocks of one sequence grow with its tokens, on average over where in a block it stands."""

from kvbudget.pool.groups import Group, Layout
from kvbudget.units import blocks_for


class Growth:
    """How one sequence's blocks grow: `constant` + tokens * `per_token`, on average over where in a block it stands."""

    __slots__ = ("_constant_groups", "_half_open", "layout", "per_token")

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.per_token = sum([1.0 / group.block_size for group in layout.growing], 0.0)
        self._half_open = sum([0.5 * (group.block_size - 1) / group.block_size for group in layout.growing], 0.0)
        self._constant_groups = [group for group in layout.groups if group not in layout.growing]

    def blocks(self, tokens: float, peak_tokens: int) -> float:
        """Expected blocks at `tokens`, none of them in flight; groups that keep only some tokens count as filled."""
        if not self._constant_groups:
            return self._half_open + tokens * self.per_token
        constant = sum([_decoding(group, peak_tokens) for group in self._constant_groups])
        return constant + self._half_open + tokens * self.per_token

    def reading(self, prompt_tokens: int) -> float:
        """Blocks that a prompt may hold beyond `blocks` while it is read: more than a window is in flight then."""
        if not self._constant_groups:
            return 0.0
        return sum(
            [
                max(0, group.blocks_for(prompt_tokens) - _decoding(group, prompt_tokens))
                for group in self._constant_groups
            ]
        )


def _decoding(group: Group, peak_tokens: int) -> int:
    """What a sequence of at most `peak_tokens` holds of this group while it decodes: a window that begins inside a
    block spans one more. Where the window is not told, what it may hold at most."""
    most = group.blocks_for(peak_tokens)
    if not group.window or group.fixed_blocks:
        return most
    return min(most, blocks_for(group.window, group.block_size) + 1 + group.extra_blocks)
