"""Decides in which word a plan is judged, which sentence goes with it, and in which order its findings are told."""

from typing import NamedTuple

from kvbudget.planner.curve import whole_requests
from kvbudget.planner.request import Finding, Plan

# Errors that more memory, or less asked of it, would end. Beside any other the engine would not even start.
OUT_OF_MEMORY = frozenset(
    {"max_model_len_too_large", "max_num_seqs_beyond_states", "no_kv_memory", "pool_beyond_memory",
     "below_target_concurrency", "pipeline_start_check", "margin_leaves_nothing", "beyond_the_card"}
)  # fmt: skip
# The weights may be others than were counted: whoever reads of a lack of memory must know that first.
_DOUBTS = ("quantisation_only_in_name", "weights_doubtful")
_LIMITS = {"state": "the states that each request holds"}


class Verdict(NamedTuple):
    """`word` is FITS, DOES NOT FIT or WOULD NOT START; `sentence`: what that amounts to, or the first error."""

    word: str
    good: bool
    sentence: str


def verdict_of(plan: Plan) -> Verdict:
    """FITS unless there is an error; a lack of memory is told from a flag that no memory would help."""
    errors = [finding for finding in findings_told(plan) if finding.severity == "error"]
    if errors:
        word = "DOES NOT FIT" if {e.code for e in errors} <= OUT_OF_MEMORY else "WOULD NOT START"
        more = f" (and {counted(len(errors) - 1, 'more error')})" if len(errors) > 1 else ""
        return Verdict(word, good=False, sentence=f"{errors[0].code}{more}: {errors[0].fix}")
    p95 = ""
    if plan.request.knows_lengths:
        length, count = plan.ceilings.lengths[1], plan.ceilings.p95
        p95 = f" {counted(count, 'request')} of your p95 length ({length:,}){together(plan, count)}."
    return Verdict("FITS", good=True, sentence=f"{full_length(plan)}.{p95}")


def findings_told(plan: Plan) -> tuple[Finding, ...]:
    """All of them. Where the weights are in doubt and memory lacks, the doubt comes first, and the lack says so."""
    doubts = [finding for finding in plan.findings if finding.code in _DOUBTS]
    lacks = any(finding.severity == "error" and finding.code in OUT_OF_MEMORY for finding in plan.findings)
    if not doubts or not lacks:
        return plan.findings
    told = [
        finding._replace(fix=f"first give the true weights ({doubts[0].code}); else: {finding.fix}")
        if finding.severity == "error" and finding.code in OUT_OF_MEMORY
        else finding
        for finding in plan.findings
        if finding not in doubts
    ]
    return (*doubts, *told)


def full_length(plan: Plan) -> str:
    """`2 requests of 131,072 tokens at once (limited by pool); 1 at the low end of the estimate`."""
    ceilings, length = plan.ceilings, plan.pool.max_model_len
    if plan.pool.usable_blocks <= 0:
        return "no request: nothing is left for the cache"
    asked = plan.settings.max_model_len
    cut = f" ({asked:,} were asked for)" if length < asked and not plan.settings.auto_length else ""
    low = least_words(plan)
    least = f"; {low} of the estimate" if low else ""
    return (
        f"{counted(ceilings.ceiling, 'request')} of {length:,} tokens{cut} at once "
        f"(limited by {limit_words(ceilings.limited_by)}){least}{together(plan, ceilings.ceiling)}"
    )


def least_words(plan: Plan) -> str:
    """`1 at the low end`, `1 of 7,192 tokens at the low end` where an engine cuts the length to its pool; "" where the
    low end holds as much."""
    low, length = plan.low_end, plan.pool.max_model_len
    if low is not None and 0 < low.max_model_len < length:
        return f"{at_low_end(plan, low.max_model_len):,} of {low.max_model_len:,} tokens at the low end"
    count = at_low_end(plan, length)
    return f"{count:,} at the low end" if count < plan.ceilings.ceiling else ""


def at_low_end(plan: Plan, length: int) -> int:
    """Whole requests of `length` tokens where the least memory is left that is likely; as planned where none of it is
    estimated."""
    pool = plan.low_end or plan.pool
    kept = plan.request.margin.of(pool.usable_blocks) if plan.request.margin else 0
    usable = max(0, pool.usable_blocks - kept)
    return whole_requests(plan.stage.layout, usable, plan.settings.max_num_seqs, length, pool.most_requests).requests


def limit_words(limited_by: str) -> str:
    """The key of the document, in words where the key says nothing to people."""
    return _LIMITS.get(limited_by, limited_by)


def place_of(plan: Plan) -> str:
    """On what and under which engine: `2 x H100 80GB, vllm 0.32`; `8 engines, each on 1 x H200, vllm 0.32`."""
    ranks = plan.settings.tensor_parallel_size * plan.settings.pipeline_parallel_size
    card = plan.request.gpu.name if plan.request.gpu else "GPU"
    each = f"{plan.engines} engines, each on " if plan.engines > 1 else ""
    return f"{each}{ranks} x {card}, {plan.engine_name} {plan.engine_version}"


def together(plan: Plan, count: int) -> str:
    """`; 96 on 8 engines` for a count of one engine; "" where there is one."""
    return f"; {count * plan.engines:,} on {plan.engines} engines" if plan.engines > 1 else ""


def counted(number: int, noun: str) -> str:
    """`1 request`, `5 requests`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
