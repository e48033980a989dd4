"""Decides in which word a plan is judged, and which sentence goes with it."""

from typing import NamedTuple

from kvbudget.planner.request import Plan

# Errors that more memory, or less asked of it, would end. Beside any other the engine would not even start.
OUT_OF_MEMORY = frozenset(
    {"max_model_len_too_large", "max_num_seqs_beyond_states", "no_kv_memory", "pool_beyond_memory",
     "below_target_concurrency", "pipeline_start_check", "margin_leaves_nothing", "beyond_the_card"}
)  # fmt: skip


class Verdict(NamedTuple):
    """`word` is FITS, DOES NOT FIT or WOULD NOT START; `sentence`: what that amounts to, or the first error."""

    word: str
    good: bool
    sentence: str


def verdict_of(plan: Plan) -> Verdict:
    """FITS unless there is an error; a lack of memory is told from a flag that no memory would help."""
    errors = [finding for finding in plan.findings if finding.severity == "error"]
    if errors:
        word = "DOES NOT FIT" if {e.code for e in errors} <= OUT_OF_MEMORY else "WOULD NOT START"
        more = f" (and {counted(len(errors) - 1, 'more error')})" if len(errors) > 1 else ""
        return Verdict(word, good=False, sentence=f"{errors[0].code}{more}: {errors[0].fix}")
    ceilings, length = plan.ceilings, plan.pool.max_model_len
    return Verdict(
        "FITS",
        good=True,
        sentence=f"{counted(ceilings.ceiling, 'request')} of {length:,} tokens at once (limited by "
        f"{ceilings.limited_by}), {plan.pool.tokens:,} tokens in the pool{together(plan, ceilings.ceiling)}.",
    )


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
