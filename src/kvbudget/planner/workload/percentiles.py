"""Decides what length stands at a percentile: the given one, else that of the distribution that is drawn through the
given ones, so that ceilings, charts and the answers for a workload all have the same three lengths."""

from kvbudget.planner.request import PlanRequest
from kvbudget.planner.workload.lengths import SHARES, Lengths, drawn_through
from kvbudget.units import Tokens


def totals_of(prompts: Lengths, outputs: Lengths) -> tuple[Tokens, Tokens, Tokens]:
    """Tokens of a whole request at p50, p95 and p99, as if long prompts had long outputs; each at least 1."""
    p50, p95, p99 = (Tokens(max(1, _at(prompts, name) + _at(outputs, name))) for name in SHARES)
    return p50, p95, p99


def derived_names(request: PlanRequest) -> tuple[str, ...]:
    """Percentiles of which the prompt's or the output's was not given; none where real requests are known."""
    prompts, outputs = request.prompt_lengths, request.output_lengths
    if request.requests or prompts is None or outputs is None:
        return ()
    return tuple(name for name in SHARES if prompts.at(name) is None or outputs.at(name) is None)


def _at(lengths: Lengths, name: str) -> int:
    given = lengths.at(name)
    if given is not None:
        return given
    # The last of so many equally likely lengths stands in the middle of its part: at exactly this share.
    return drawn_through(lengths, round(0.5 / (1 - SHARES[name])))[-1]
