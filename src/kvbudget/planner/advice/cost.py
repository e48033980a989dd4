"""Decides what a million tokens cost: price of the cards over what they produce. Kept apart from capacity.

Whether memory is enough is one question; whether a token pays for itself is another, and this file answers no other.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from kvbudget.errors import BadValueError
from kvbudget.planner.advice.roofline import decode_step_s, prefill_s
from kvbudget.planner.nested import document
from kvbudget.planner.request import Plan

if TYPE_CHECKING:
    from kvbudget.planner.workload.mix import WorkloadPlan

UTILISATIONS = (0.1, 0.3, 0.6, 1.0)
LARGEST_PRICE = 1e6
UNKNOWN = "not known: the card's speed is unknown, or nothing fits; give --gpu"


class Rate(NamedTuple):
    """Cost at one utilisation: the share of the hour in which the engine runs at its throughput."""

    utilisation: float
    per_million_output_low: float
    per_million_output_high: float
    per_million_total_low: float
    per_million_total_high: float


class Cost(NamedTuple):
    """In the currency of `price_per_gpu_hour`. `output_tokens_per_s_*`: of all replicas together; `source` is given or
    estimated. `concurrency`: requests at once on each replica that the estimate takes. `lengths`: given, or assumed
    where nobody said how long requests are."""

    price_per_gpu_hour: float
    gpus: int
    price_per_hour: float
    source: str
    concurrency: int
    prompt_tokens: float
    output_tokens: float
    output_tokens_per_s_low: float
    output_tokens_per_s_high: float
    rates: tuple[Rate, ...]
    lengths: str = "given"


def cost_of(
    plan: Plan,
    price_per_gpu_hour: float,
    *,
    prompt_tokens: float,
    output_tokens: float,
    concurrency: int,
    replicas: int = 1,
    output_tokens_per_s: float | None = None,
    utilisations: Sequence[float] = UTILISATIONS,
    lengths: str = "given",
) -> Cost | None:
    """Mean lengths of a request, and how many run at once on each replica. `output_tokens_per_s`: measured, of all
    replicas; without it a roofline says it, and None comes back where the card is not known (or nothing fits).

    Raises BadValueError for a price or a throughput that is none.
    """
    if not 0 < price_per_gpu_hour <= LARGEST_PRICE:
        raise BadValueError(
            f"--price-per-hour: {price_per_gpu_hour} is out of range", fix="the price of one GPU for one hour, above 0"
        )
    if output_tokens_per_s is not None and not 0 < output_tokens_per_s <= 1e12:
        raise BadValueError(f"tokens per second: {output_tokens_per_s} is out of range", fix="more than 0")
    if output_tokens_per_s is not None:
        source, low, high = "given", output_tokens_per_s, output_tokens_per_s
    else:
        found = _throughput(plan, prompt_tokens, output_tokens, concurrency)
        if found is None:
            return None
        source, low, high = "estimated", found[0] * replicas, found[1] * replicas
    gpus = plan.settings.tensor_parallel_size * plan.settings.pipeline_parallel_size * replicas
    hourly = price_per_gpu_hour * gpus
    output_share = output_tokens / (prompt_tokens + output_tokens)
    rates = []
    for utilisation in utilisations:
        dear, cheap = (hourly / (tokens * utilisation * 3600) * 1e6 for tokens in (low, high))
        rates.append(Rate(utilisation, cheap, dear, cheap * output_share, dear * output_share))
    return Cost(
        price_per_gpu_hour, gpus, hourly, source, concurrency, prompt_tokens, output_tokens, low, high, tuple(rates),
        lengths,
    )  # fmt: skip


def cost_for(plan: Plan, price_per_gpu_hour: float, assessed: "WorkloadPlan | None") -> Cost | None:
    """Of requests whose lengths are known, as many at once as fit with 95 %; None: of as many as fit where half of
    max_model_len is prompt and half answer. Raises as `cost_of`, and gives None where it does."""
    length = plan.pool.max_model_len
    return cost_of(
        plan,
        price_per_gpu_hour,
        prompt_tokens=assessed.mean_prompt if assessed else length / 2,
        output_tokens=assessed.mean_output if assessed else length / 2,
        concurrency=assessed.fits_95 if assessed else plan.ceilings.ceiling,
        lengths="given" if assessed else "assumed",
    )


def _throughput(plan: Plan, prompt: float, output: float, concurrency: int) -> tuple[float, float] | None:
    """(slow, fast) output tokens/s of one replica: each request takes its prefill and its share of decode steps."""
    if concurrency < 1:
        return None
    prefill = prefill_s(plan, max(1, round(prompt)))
    step = decode_step_s(plan, concurrency, max(1, round(prompt + output / 2)))
    if prefill is None or step is None:
        return None
    slow, fast = (
        output / (p + output * s / concurrency) for p, s in ((prefill.high, step.high), (prefill.low, step.low))
    )
    return slow, fast


def cost_json(cost: Cost) -> dict[str, object]:
    """Under the key "cost" of kvbudget.plan/1."""
    return document(cost)


def cost_lines(cost: Cost) -> list[str]:
    """For people. The price is printed without a currency: it is that of --price-per-hour."""
    lines = [
        f"{cost.gpus} GPU x {cost.price_per_gpu_hour:g} = {cost.price_per_hour:,.2f} an hour, "
        f"{span_text(cost.output_tokens_per_s_low, cost.output_tokens_per_s_high, 0)} output tokens/s ({cost.source}, "
        f"{cost.concurrency:,} requests at once of {cost.prompt_tokens:,.0f} + {cost.output_tokens:,.0f} tokens)"
    ]
    if cost.lengths == "assumed":
        lines.append(
            "no lengths are given: half of max_model_len as prompt and half as answer is assumed, and what a token "
            "costs follows from that; give --prompt-lengths and --output-lengths, or --trace"
        )
    lines += [
        f"busy {rate.utilisation:.0%} of the time: "
        f"{span_text(rate.per_million_output_low, rate.per_million_output_high, 2)} for a million output tokens, "
        f"{span_text(rate.per_million_total_low, rate.per_million_total_high, 2)} for a million of prompt and output"
        for rate in cost.rates
    ]
    return lines


def span_text(low: float, high: float, digits: int, to: str = " to ") -> str:
    """From `low` to `high`; one number where they are the same."""
    return f"{low:,.{digits}f}" if low == high else f"{low:,.{digits}f}{to}{high:,.{digits}f}"
