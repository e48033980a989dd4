"""Decides how the ledger page and its reports tell what a million tokens cost, where somebody named a price."""

from typing import NamedTuple

from kvbudget.errors import InputError
from kvbudget.planner.advice.cost import UNKNOWN, Cost, cost_for, cost_json, cost_lines, span_text
from kvbudget.planner.request import Plan
from kvbudget.planner.workload.assess import assess
from kvbudget.planner.workload.mix import workload_of_lengths
from kvbudget.report.section import Section

Document = dict[str, object]


class Priced(NamedTuple):
    """What tokens cost; None: it is not known, and `why` says why."""

    cost: Cost | None
    why: str = ""


def priced(plan: Plan, price_per_gpu_hour: float) -> Priced:
    """At the lengths that were given, else at those that are assumed, as `kvbudget plan --price-per-hour` does. Raises
    BadValueError for a price that is none."""
    workload = workload_of_lengths(plan)
    try:
        assessed = None if workload is None else assess(plan, workload)
    except InputError as error:  # of such requests the engine would serve none
        return Priced(None, error.message)
    cost = cost_for(plan, price_per_gpu_hour, assessed)
    return Priced(cost) if cost is not None else Priced(None, UNKNOWN)


def priced_json(found: Priced) -> Document:
    """Under the key "cost" of kvbudget.plan/1."""
    return {"known": False, "why": found.why} if found.cost is None else cost_json(found.cost)


def priced_told(found: Priced) -> Document:
    """For the page: the same, `known`, and how each number is written."""
    cost = found.cost
    if cost is None:
        return priced_json(found)
    rates = [
        {
            **rate._asdict(),
            "busy_text": f"{rate.utilisation:.0%}",
            "output_text": span_text(rate.per_million_output_low, rate.per_million_output_high, 2, "–"),
            "total_text": span_text(rate.per_million_total_low, rate.per_million_total_high, 2, "–"),
        }
        for rate in cost.rates
    ]
    return {
        **cost_json(cost),
        "known": True,
        "rates": rates,
        "hour_text": f"{cost.price_per_hour:,.2f}",
        "price_text": f"{cost.gpus:,} GPU × {cost.price_per_gpu_hour:g}",
        "speed_text": span_text(cost.output_tokens_per_s_low, cost.output_tokens_per_s_high, 0, "–"),
        "lengths_text": f"{cost.prompt_tokens:,.0f} + {cost.output_tokens:,.0f}",
    }


def priced_section(found: Priced) -> Section:
    """For a report."""
    lines = (found.why,) if found.cost is None else tuple(cost_lines(found.cost))
    return Section("Cost", lines=lines, numbered=False)
