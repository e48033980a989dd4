"""The slow and obvious accounting that the closed forms of this floor are tested against. Not used by the product."""

from collections.abc import Sequence

from kvbudget.pool.groups import Layout
from kvbudget.pool.trajectory import Course


def blocks_by_filling(tokens: int, block_size: int) -> int:
    """Blocks of a sequence, by putting one token after another into blocks."""
    blocks = room = 0
    for _ in range(tokens):
        if room == 0:
            blocks += 1
            room = block_size
        room -= 1
    return blocks


def peak_by_stepping(layout: Layout, courses: Sequence[Course], skew_steps: int) -> int:
    """Most blocks over all steps, by looking at every step of every sequence."""
    if not courses:
        return 0
    last = max(c.peak_tokens - c.held_tokens for c in courses) + skew_steps
    most = 0
    for step in range(last + 1):
        held = 0
        for course in courses:
            if step <= course.peak_tokens - course.held_tokens + skew_steps:
                tokens = min(course.held_tokens + step, course.peak_tokens)
                for group in layout.groups:
                    if group.fixed_blocks or group.most_tokens:  # counted at their peak
                        held += group.blocks_for(course.peak_tokens) * course.sequences
                    else:
                        held += blocks_by_filling(tokens, group.block_size) * course.sequences
                held -= course.shared_blocks
        most = max(most, held)
    return most


def peak_of_real_course(
    layout: Layout, courses: Sequence[Course], ahead_steps: Sequence[int], delays: Sequence[int]
) -> int:
    """Most blocks of a batch that does NOT keep in step: sequence i starts `ahead_steps[i]` tokens further than
    believed, and stands still for `delays[i]` steps first. What `peak_over_time` must never be below."""
    most = 0
    horizon = max((c.peak_tokens - c.held_tokens + d for c, d in zip(courses, delays, strict=True)), default=0)
    for step in range(horizon + 1):
        held = 0
        for course, ahead, delay in zip(courses, ahead_steps, delays, strict=True):
            start = min(course.held_tokens + ahead, course.peak_tokens)
            progress = max(0, step - delay)
            if start + progress <= course.peak_tokens:
                held += layout.blocks_for(start + progress) * course.sequences
        most = max(most, held)
    return most
