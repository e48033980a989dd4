"""Decides how many whole requests of one length run at once, for any length up to the longest."""

from typing import TYPE_CHECKING, NamedTuple

from kvbudget.pool.groups import Layout
from kvbudget.units import Tokens

if TYPE_CHECKING:
    from kvbudget.engines.rule import Pool
    from kvbudget.planner.request import Ceilings, Plan

_SHORTEST = 1024
_SHORT_CONTEXT = 4096  # below it the curve begins at an eighth of the context


class Point(NamedTuple):
    """`requests` of `length` tokens at once; `limited_by` is "pool", "max_num_seqs", or "state".

    "state": most blocks of such a request are constant, so that shorter ones would hardly let more in.
    """

    length: Tokens
    requests: int
    limited_by: str


def whole_requests(layout: Layout, usable_blocks: int, max_num_seqs: int, length: int, most_requests: int = 0) -> Point:
    """Requests of `length` tokens that `usable_blocks` hold, every one at its worst moment.

    `most_requests`: what pools of states or slots beside it hold at most, 0 for no such bound.
    """
    need = max(1, layout.blocks_for(length))
    by_pool = usable_blocks // need
    if most_requests and most_requests < min(by_pool, max_num_seqs):
        return Point(Tokens(length), most_requests, "state")
    if by_pool > max_num_seqs:
        return Point(Tokens(length), max_num_seqs, "max_num_seqs")
    constant = sum(group.fixed_blocks for group in layout.groups)
    return Point(Tokens(length), by_pool, "state" if 2 * constant > need else "pool")


def usable_of(pool: "Pool", ceilings: "Ceilings") -> int:
    """Blocks that requests may hold, the margin kept back."""
    return max(0, pool.usable_blocks - ceilings.margin_blocks)


def requests_at(plan: "Plan", length: int) -> Point:
    """Whole requests of `length` tokens in the plan's pool, its margin kept back."""
    usable = usable_of(plan.pool, plan.ceilings)
    return whole_requests(plan.stage.layout, usable, plan.settings.max_num_seqs, length, plan.pool.most_requests)


def concurrency_curve(plan: "Plan", *, per_doubling: int = 1) -> tuple[Point, ...]:
    """Points from 1k tokens to max_model_len, `per_doubling` of them to each doubling of the length; both ends are in.

    The lengths that the plan was asked for (p50, p95, p99) and the longest that fits are among them.
    """
    longest = plan.pool.max_model_len
    shortest = _SHORTEST if longest >= _SHORT_CONTEXT else max(1, longest // 8)
    lengths, step = {longest, *plan.ceilings.lengths, min(longest, plan.pool.largest_max_model_len)} - {0}, 0
    while (length := round(shortest * 2 ** (step / per_doubling))) < longest:
        lengths.add(Tokens(length))
        step += 1
    return tuple(requests_at(plan, length) for length in sorted(lengths))
