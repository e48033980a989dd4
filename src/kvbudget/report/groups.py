"""Decides how the KV cache groups of a plan are told: one line a kind, and what a request mostly pays for."""

from typing import NamedTuple

from kvbudget.planner.request import Plan
from kvbudget.pool.groups import Group
from kvbudget.report.verdict import counted
from kvbudget.units import Blocks


class GroupLine(NamedTuple):
    """Groups of one shape taken together. `blocks` are those of one request of max_model_len in all of them.

    `label` says to people what `kind` and `window` (tokens of a window or chunk, 0: none) say to programs.
    """

    groups: int
    label: str
    layers: int
    block_size: int
    page_size_bytes: int
    blocks: Blocks
    kind: str
    window: int


def group_lines(plan: Plan) -> tuple[GroupLine, ...]:
    """In the order of the engine; groups that differ only in how many layers they hold are one line."""
    length = plan.pool.max_model_len
    found: dict[tuple[object, ...], list[Group]] = {}
    for group in plan.stage.layout.groups:
        shape = (group.kind, group.block_size, group.most_tokens, group.extra_blocks, group.fixed_blocks, group.window)
        found.setdefault(shape, []).append(group)
    lines = tuple(
        GroupLine(
            groups=len(groups),
            label=_label(groups[0]),
            layers=sum(group.layers for group in groups),
            block_size=groups[0].block_size,
            page_size_bytes=max(group.page_size_bytes for group in groups),
            blocks=Blocks(sum(group.blocks_for(length) for group in groups)),
            kind=str(groups[0].kind),
            window=groups[0].window,
        )
        for groups in found.values()
    )
    return _told_apart(lines)


def group_words(lines: tuple[GroupLine, ...]) -> str:
    """`1 x full: 512 blocks (84%), 5 x sliding 1,024: 97 blocks (16%)`: what a request mostly pays for comes first."""
    total = sum(line.blocks for line in lines) or 1
    return ", ".join(
        f"{line.groups} x {line.label}: {counted(line.blocks, 'block')} ({line.blocks / total:.0%})"
        for line in sorted(lines, key=lambda line: -line.blocks)
    )


def _told_apart(lines: tuple[GroupLine, ...]) -> tuple[GroupLine, ...]:
    """Lines of one label that differ in their blocks say so."""
    labels = [line.label for line in lines]
    return tuple(
        line._replace(label=f"{line.label} in blocks of {line.block_size:,}") if labels.count(line.label) > 1 else line
        for line in lines
    )


def _label(group: Group) -> str:
    """The kind, and its window or chunk."""
    return f"{group.kind} {group.window:,}" if group.window else str(group.kind)
