"""Decides how the KV cache groups of a plan are told: one line a kind, and what a request mostly pays for."""

from typing import NamedTuple

from kvbudget.model.layers import Attention, Latent
from kvbudget.planner.request import Plan
from kvbudget.pool.groups import Group
from kvbudget.units import Blocks


class GroupLine(NamedTuple):
    """Groups of one shape taken together. `blocks` are those of one request of max_model_len in all of them."""

    groups: int
    label: str
    layers: int
    block_size: int
    page_size_bytes: int
    blocks: Blocks


def group_lines(plan: Plan) -> tuple[GroupLine, ...]:
    """In the order of the engine; groups that differ only in how many layers they hold are one line."""
    length = plan.pool.max_model_len
    found: dict[tuple[object, ...], list[Group]] = {}
    for group in plan.stage.layout.groups:
        shape = (group.kind, group.block_size, group.most_tokens, group.extra_blocks, group.fixed_blocks)
        found.setdefault(shape, []).append(group)
    lines = tuple(
        GroupLine(
            groups=len(groups),
            label=_label(plan, groups[0]),
            layers=sum(group.layers for group in groups),
            block_size=groups[0].block_size,
            page_size_bytes=max(group.page_size_bytes for group in groups),
            blocks=Blocks(sum(group.blocks_for(length) for group in groups)),
        )
        for groups in found.values()
    )
    return _told_apart(lines)


def group_words(lines: tuple[GroupLine, ...]) -> str:
    """`1 x full: 512 blocks (84%), 5 x sliding 1,024: 97 blocks (16%)`: what a request mostly pays for comes first."""
    total = sum(line.blocks for line in lines) or 1
    return ", ".join(
        f"{line.groups} x {line.label}: {line.blocks:,} blocks ({line.blocks / total:.0%})"
        for line in sorted(lines, key=lambda line: -line.blocks)
    )


def _told_apart(lines: tuple[GroupLine, ...]) -> tuple[GroupLine, ...]:
    """Lines of one kind that differ in their blocks say so."""
    labels = [line.label for line in lines]
    return tuple(
        line._replace(label=f"{line.label} by {line.block_size:,}") if labels.count(line.label) > 1 else line
        for line in lines
    )


def _label(plan: Plan, group: Group) -> str:
    """The kind, and the window or chunk where all layers of the kind have the same."""
    kind = str(group.kind)
    bounds = set()
    for layer in plan.request.model.layers[plan.stage.first : plan.stage.end]:
        for cache in layer.caches:
            if isinstance(cache, Attention) and cache.kind == kind:
                bounds.add(cache.window or cache.chunk)
            elif isinstance(cache, Latent) and group.most_tokens:
                bounds.add(cache.window)
    bound = bounds.pop() if len(bounds) == 1 else None
    return f"{kind} {bound:,}" if bound and group.most_tokens else kind
