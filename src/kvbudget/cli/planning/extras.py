"""Decides which answers beside the plan are asked for, and makes them: workload, advice, long context, offload, cost.

Each is a key of the JSON document and a section of every report.
"""

import argparse
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from kvbudget.errors import BadValueError
from kvbudget.planner.request import Plan
from kvbudget.units import parse_length

if TYPE_CHECKING:
    from kvbudget.planner.workload.mix import Workload

_SHORTEST = 2  # one token of the prompt and one of the answer
_LONGEST = 2**30


class Extra(NamedTuple):
    """One answer: its key in the document, its title for people, and both forms of it."""

    key: str
    title: str
    document: Mapping[str, object]
    lines: tuple[str, ...]


def extras_of(args: argparse.Namespace, plan: Plan, trace: "Workload | None" = None) -> tuple[Extra, ...]:
    """Those that the flags ask for; nothing is imported for the others. Raises InputError for unusable values.

    `trace`: what --trace holds.
    """
    from kvbudget.planner.workload.margin import NO_MARGIN

    margin = plan.request.margin or NO_MARGIN
    extras = []
    workload = trace or _percentiles(plan)
    assessed = None
    if workload is not None:
        from kvbudget.planner.workload.assess import Speed, assess
        from kvbudget.planner.workload.mix import workload_json, workload_lines

        speed = Speed(args.arrival_rate, args.seconds_per_token, args.prefill_tokens_per_s)
        assessed = assess(plan, workload, margin, speed)
        lines = tuple(workload_lines(assessed))
        extras.append(Extra("workload", "Your requests", workload_json(assessed), lines))
    if args.advise:
        from kvbudget.planner.advice.steps import advice_json, advice_of
        from kvbudget.planner.advice.told import advice_lines

        advice = advice_of(plan, workload, margin, assessed.sharing if assessed else None)
        extras.append(
            Extra("advice", "What to change, cheapest first", advice_json(advice), tuple(advice_lines(advice)))
        )
    if args.solve is not None:
        from kvbudget.planner.advice.goals import answers_json, answers_lines, answers_to, goals_named, wish_of

        answers = answers_to(plan, goals_named(args.solve), wish_of(plan, margin=margin))
        extras.append(Extra("solved", "What would be enough", answers_json(answers), tuple(answers_lines(answers))))
    if args.long_context is not None:
        from kvbudget.planner.advice.longcontext import long_context_json, long_context_lines, long_context_of

        tokens = parse_length(args.long_context, "--long-context")
        if not _SHORTEST <= tokens <= _LONGEST:
            raise BadValueError(
                f"--long-context: {tokens} tokens are out of range", fix=f"from {_SHORTEST} to {_LONGEST}, such as 1m"
            )
        kept = margin.of(plan.pool.usable_blocks)
        found = long_context_of(plan, tokens, min(1024, max(1, tokens // 2)), workload, kept)
        extras.append(
            Extra("long_context", "Long requests", long_context_json(found), tuple(long_context_lines(found)))
        )
    if args.offload is not None or args.head_needs is not None:
        from kvbudget.planner.advice.heads import parse_needs
        from kvbudget.planner.advice.offload import offload_json, offload_lines, offload_of, parse_media

        needs = () if args.head_needs is None else parse_needs(args.head_needs)
        offload = offload_of(plan, media=parse_media(args.offload or "usual"), needs=needs)
        title = "What if: other tiers and compression (not in the budget)"
        extras.append(Extra("offload", title, offload_json(offload), tuple(offload_lines(offload))))
    if args.price_per_hour is not None:
        from kvbudget.planner.advice.cost import UNKNOWN, cost_for, cost_json, cost_lines

        cost = cost_for(plan, args.price_per_hour, assessed)
        if cost is None:
            extras.append(Extra("cost", "Cost", {"known": False, "why": UNKNOWN}, (UNKNOWN,)))
        else:
            extras.append(Extra("cost", "Cost", cost_json(cost), tuple(cost_lines(cost))))
    return tuple(extras)


def workload_facts(extras: tuple[Extra, ...], args: argparse.Namespace) -> Mapping[str, object] | None:
    """What the budget file keeps of the workload, so that a later check can tell that it moved."""
    found = next((extra.document for extra in extras if extra.key == "workload"), None)
    if found is None or args.trace is None:
        return None
    facts = {key: value for key, value in found.items() if isinstance(value, int | float | str)}
    # A budget is also checked from another folder, where the same trace has another path.
    return facts | {"name": os.path.basename(args.trace)}


def _percentiles(plan: Plan) -> "Workload | None":
    if not plan.request.knows_lengths:
        return None  # nothing is imported for that
    from kvbudget.planner.workload.mix import workload_of_lengths

    return workload_of_lengths(plan)
