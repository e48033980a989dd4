"""How many blocks a running batch needs at its worst common moment, when its sequences advance together.

An engine with continuous batching gives every decoding sequence one token per step, so sequences do not reach their
longest at the same time: what one frees on ending, another may grow into. With `held` tokens now and `peak` tokens at
the end, a sequence holds `held + t` after t steps and nothing once it ended, at t = peak - held =: r.

Sequences do not advance in perfect lockstep: a new one waits for its prefill, a report comes late, a token is merged
into another's event. Let `skew_steps` bound how many steps any one can be ahead of another, compared with what we
believe. Then letting each sequence stay at its peak for `skew_steps` more steps covers every such course:

    contribution of i at t:   blocks(min(held_i + t, peak_i))   for t <= r_i + skew,   0 afterwards

Proof sketch: let every sequence truly be e_i in [0, skew] ahead of belief and measure time as t' = t + skew. What i
truly holds, held_i + e_i + t, is at most held_i + t'; and it ends at r_i - e_i, so no later than t' = r_i + skew.
A start delayed by d in [0, skew] is the same with the sign reversed. skew = 0 is exact; skew = infinity is the sum of
peaks, the worst case.

Groups that keep only some tokens (windows, chunks) or a constant (recurrent states) are counted at their peak for as
long as the sequence lives: while a prompt is being read they hold more than a window, so their course is not a matter
of length alone. `blocks` above is the growing groups' part plus that constant.

Blocks of a common prefix are charged to whoever of its holders lives longest by this reckoning, and are taken off the
courses of the others (`shared_blocks`). So at any t the contributions of those that still live hold every such block
once. That bounds the real course for the same reason: real holders are among those that still live at t', and the
distinct blocks of a set of holders are never more than those of a larger one.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from kvbudget.pool.groups import Layout
from kvbudget.units import Blocks

_UNLIMITED: Final = 1 << 60


class Course(NamedTuple):
    """One or more equal sequences on their way from `held_tokens` to `peak_tokens`; `shared_blocks` of all that they
    hold together are charged to others, who live at least as long."""

    held_tokens: int
    peak_tokens: int
    sequences: int = 1
    shared_blocks: int = 0


def peak_over_time(layout: Layout, courses: Sequence[Course], skew_steps: int, limit: int = _UNLIMITED) -> Blocks:
    """Most blocks held at any one moment by all `courses` together; just something above `limit` if that is more.

    Between two endings the sum only grows, so it suffices to look at the last moment of each sequence. O(n log n)
    in the number of courses plus O(n * block_size).
    """
    total, _ = _peak(layout, courses, skew_steps, limit)
    return Blocks(total)


def shares_at_peak(layout: Layout, courses: Sequence[Course], skew_steps: int) -> list[Blocks]:
    """What each of `courses` holds at the batch's worst moment; the sum is `peak_over_time`."""
    _, moment = _peak(layout, courses, skew_steps, _UNLIMITED)
    return [Blocks(held_at(layout, course, moment, skew_steps)) for course in courses]


def held_at(layout: Layout, course: Course, step: int, skew_steps: int) -> int:
    """Blocks that `course` may hold `step` steps from now."""
    if step > course.peak_tokens - course.held_tokens + skew_steps:
        return 0
    tokens = min(course.held_tokens + step, course.peak_tokens)
    growing = sum([group.blocks_for(tokens) for group in layout.growing])
    return (growing + _constant(layout, course)) * course.sequences - course.shared_blocks


def _constant(layout: Layout, course: Course) -> int:
    """Blocks of one sequence in groups that do not grow with every token."""
    if len(layout.groups) == len(layout.growing):
        return 0
    return sum([group.blocks_for(course.peak_tokens) for group in layout.groups if group not in layout.growing])


def _peak(layout: Layout, courses: Sequence[Course], skew_steps: int, limit: int) -> tuple[int, int]:
    """(most blocks, the step at which they are held); the first that is above `limit`. Shortest remaining first: it is
    early, while nearly everybody lives, that most is held."""
    order = sorted(courses, key=_remaining)
    groups = layout.growing
    keeps_all = len(groups) == len(layout.groups)
    sums = [_GrowingSum(group.block_size) for group in groups]
    lasts = [_remaining(course) + skew_steps for course in order]
    for growing_sum in sums:
        growing_sum.add_all(order)
    best = best_step = 0
    others = -sum([course.shared_blocks for course in order])  # all but what grows
    if not keeps_all:
        others += sum([_constant(layout, course) * course.sequences for course in order])
    gone = grown = 0  # order[:gone] have ended, and order[gone:grown] are at their peaks
    for step in lasts:
        while lasts[gone] < step:
            ended = order[gone]
            others -= layout.blocks_for(ended.peak_tokens) * ended.sequences - ended.shared_blocks
            gone += 1
        while grown < len(order) and lasts[grown] - skew_steps <= step:
            course = order[grown]
            constant = 0 if keeps_all else _constant(layout, course)
            others += (layout.blocks_for(course.peak_tokens) - constant) * course.sequences
            for growing_sum in sums:
                growing_sum.take_off(course)
            grown += 1
        total = others + sum([growing_sum.blocks_after(step) for growing_sum in sums])
        if total and total >= best:
            best, best_step = total, step
            if total > limit:
                break
    return best, best_step


def _remaining(course: Course) -> int:
    return course.peak_tokens - course.held_tokens


class _GrowingSum:
    """Sum of ceil((held_i + t) / block) over sequences, in O(block) for any t instead of O(n).

    With h_i = held_i + block - 1 and t = q * block + r the term is h_i // block + q + [h_i % block >= block - r].
    """

    __slots__ = ("_block", "_by_residue", "_count", "_whole")

    def __init__(self, block_size: int) -> None:
        self._block = block_size
        self._by_residue = [0] * block_size
        self._count = 0
        self._whole = 0

    def add_all(self, courses: Sequence[Course]) -> None:
        block, by_residue = self._block, self._by_residue
        for held_tokens, _, sequences, _ in courses:
            tokens = held_tokens + block - 1
            self._whole += tokens // block * sequences
            by_residue[tokens % block] += sequences
            self._count += sequences

    def take_off(self, course: Course) -> None:
        tokens, sequences = course.held_tokens + self._block - 1, course.sequences
        self._whole -= tokens // self._block * sequences
        self._by_residue[tokens % self._block] -= sequences
        self._count -= sequences

    def blocks_after(self, steps: int) -> int:
        if not self._count:
            return 0
        whole, rest = divmod(steps, self._block)
        return self._whole + self._count * whole + (sum(self._by_residue[self._block - rest :]) if rest else 0)
