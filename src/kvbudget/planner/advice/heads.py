"""What if every KV head kept its own number of tokens? Decides the budgets of heads (a la Ada-KV), and what they save.

A what-if beside the plan: nothing here changes a ceiling.
"""

from collections.abc import Sequence
from math import floor
from typing import NamedTuple

from kvbudget.errors import BadValueError
from kvbudget.model.layers import Attention
from kvbudget.planner.request import Plan
from kvbudget.units import decimal_number

_KEPT = 0.25  # of the tokens of all heads together, as the eviction what-if has it
_MOST_HEADS = 1024


class HeadBudgets(NamedTuple):
    """Tokens that each head of a layer keeps, dealt out by need; `kept`: share of what all heads have.

    `requests`: as many of max_model_len as the pool would hold if every head had a block table of its own;
    `requests_one_table`: with today's engines, where the heads of a layer share one, so that a block is free only when
    no head keeps anything of it: at best what the head with the largest budget keeps. `today`: without eviction.
    """

    kept: float
    budgets: tuple[int, ...]
    requests: int
    requests_one_table: int
    today: int


def parse_needs(text: str) -> tuple[float, ...]:
    """`8,4,2,1`: how much each KV head needs, in any unit. Raises BadValueError."""
    fix = "one number of at least 0 for each KV head, such as 8,4,2,1"
    parts = text.split(",")
    if len(parts) > _MOST_HEADS:
        raise BadValueError(f"--head-needs: {len(parts)} numbers, more than {_MOST_HEADS}", fix=fix)
    try:
        needs = tuple(decimal_number(part.strip()) for part in parts)
    except ValueError:
        raise BadValueError(f"--head-needs: {text[:40]!r} is no list of numbers", fix=fix) from None
    if not all(need >= 0 for need in needs):
        raise BadValueError(f"--head-needs: {text[:40]!r} has a number out of range", fix=fix)
    return needs


def heads_of(plan: Plan, needs: Sequence[float], kept: float = _KEPT) -> HeadBudgets:
    """`kept`: share of all heads' tokens. Raises BadValueError where the model has other KV heads than `needs`."""
    heads = {cache.kv_heads for layer in plan.request.model.layers for cache in layer.caches
             if isinstance(cache, Attention) and not cache.window and not cache.chunk}  # fmt: skip
    if len(needs) not in heads:
        has = f"{plan.request.model.name[:60]} has {', '.join(map(str, sorted(heads)))}" if heads else (
            f"{plan.request.model.name[:60]} keeps nothing by head (MLA, states or windows only)")  # fmt: skip
        raise BadValueError(
            f"--head-needs: {len(needs)} numbers, but {has}", fix="give one number for each KV head of a full layer"
        )
    length = plan.pool.max_model_len
    budgets = head_budgets(needs, int(length * kept) * len(needs), most=length)
    layout, usable = plan.stage.layout, plan.pool.usable_blocks
    mean = sum(budgets) // len(budgets)
    return HeadBudgets(
        kept,
        budgets,
        usable // max(1, layout.blocks_for(max(1, mean))),
        usable // max(1, layout.blocks_for(max(1, *budgets))),
        usable // max(1, layout.blocks_for(length)),
    )


def head_budgets(weights: Sequence[float], tokens: int, least_share: float = 0.2, most: int = 0) -> tuple[int, ...]:
    """Share `tokens` kept tokens (of one layer, all heads together) out over heads by how much they need.

    Heads whose attention is spread widely need more than heads that look at few places; equal shares waste on the
    second what the first lack (Ada-KV, arXiv 2407.11550). `weights`: need of each head, any unit, at least 0.
    `least_share`: part of the total that is dealt equally first, so that no head goes empty. `most`: no head keeps more
    (0: no bound), and what it would goes to the others. The sum is exactly `tokens`, or `most` for every head; what
    rounding leaves goes to the largest remainders. Raises BadValueError.
    """
    if not weights or min(weights) < 0 or tokens < 0 or not 0 <= least_share <= 1:
        raise BadValueError(
            "head budgets: a negative need or number of tokens, or a share beyond 1",
            fix="give needs and tokens of at least 0, and a share from 0 to 1",
        )
    whole = max(weights)
    weights = [weight / whole if whole else 1.0 for weight in weights]  # so that no sum overflows
    equal = tokens * least_share / len(weights)
    budgets = _dealt([equal + tokens * (1 - least_share) * weight / sum(weights) for weight in weights], tokens)
    if most:
        budgets = _bounded(budgets, weights, min(tokens, most * len(weights)), most)
    return tuple(budgets)


def _dealt(wanted: Sequence[float], tokens: int) -> list[int]:
    budgets = [floor(share) for share in wanted]
    order = sorted(range(len(wanted)), key=lambda head: (budgets[head] - wanted[head], head))
    for place in range(tokens - sum(budgets)):  # fewer than heads, but for the rounding of very large numbers
        budgets[order[place % len(order)]] += 1
    return budgets


def _bounded(budgets: list[int], weights: Sequence[float], tokens: int, most: int) -> list[int]:
    """What is beyond `most` goes to the heads below it, by need, until none is beyond."""
    while any(budget > most for budget in budgets):
        budgets = [min(budget, most) for budget in budgets]
        below = [head for head, budget in enumerate(budgets) if budget < most]
        left, needs = tokens - sum(budgets), sum(weights[head] for head in below)
        more = [left * weights[head] / needs if needs else left / len(below) for head in below]
        for head, extra in zip(below, _dealt(more, left), strict=True):
            budgets[head] += extra
    return budgets


def heads_lines(found: HeadBudgets) -> list[str]:
    """For people."""
    shown = ", ".join(f"{budget:,}" for budget in found.budgets)
    return [
        f"heads keep {found.kept:.0%} of the tokens by need: {shown}; {found.requests:,} requests if every head had a "
        f"block table of its own, {found.requests_one_table:,} with one for all heads (today's engines), "
        f"{found.today:,} without eviction"
    ]
