"""Decides what scrapes of TGI tell the gate and a diagnosis. It reserves prompt and max_new_tokens of what it runs, and
tells that, not what is held.

Names: TGI 1.0 to 3.3 (2026-01, `router/src/infer`, docs/source/reference/metrics.md). Its counters have no `_total`.
"""

from kvbudget.engines.metrics.span import Span
from kvbudget.engines.readings import EngineReading, Sums, pool_of_tokens
from kvbudget.engines.window import Counts, EngineWindow, Gauges, Limits

BATCH_TOKENS = "tgi_batch_current_max_tokens"
MAX_BATCH_TOKENS = "tgi_batch_max_total_tokens"  # since 3.0
BATCH = "tgi_batch_current_size"
QUEUE = "tgi_queue_size"
INPUT = "tgi_request_input_length"
OUTPUT = "tgi_request_generated_tokens"
_SUCCESS, _FAILURE = "tgi_request_success", "tgi_request_failure"
_OVERLOADED, _VALIDATION = "overloaded", "validation"

READ_BY_GATE = (BATCH_TOKENS, MAX_BATCH_TOKENS, BATCH, QUEUE, f"{OUTPUT}_sum", f"{INPUT}_sum")
PREFIXES = ("tgi_",)
CORE = (QUEUE, BATCH)
COUNTERS = (_SUCCESS, _FAILURE, "tgi_request_count", "tgi_batch_inference_count", "tgi_batch_inference_success")
_MISSING = (
    "what is held is not exported by TGI: usage is what it has reserved (prompt and max_new_tokens)",
    "the time to the first token is not exported by TGI: queue time and a prefill",
    "TGI never preempts: what does not fit waits in its queue",
    "why requests wait is not exported by TGI",
)


def reading(sums: Sums) -> EngineReading:
    """It never preempts."""
    return EngineReading(
        pool=pool_of_tokens(sums.least(MAX_BATCH_TOKENS), 1),
        usage=_reserved(sums),
        running=sums.count(BATCH),
        waiting=sums.count(QUEUE),
        preemptions=0,
        engine="tgi",
        progress=sums.progress(f"{INPUT}_sum", f"{OUTPUT}_sum"),
        usage_is_reserved=True,
    )


def window(span: Span) -> EngineWindow:
    """Failures are told by kind; a prefix that was found again counts as skipped tokens."""
    failures = span.grew_by(_FAILURE, "err")
    others = [count for kind, count in failures.items() if kind not in (_OVERLOADED, _VALIDATION)]
    finished = {reason or "any": count for reason, count in span.grew_by(_SUCCESS, "stop_reason").items()}
    skipped = span.distribution("tgi_request_skipped_tokens")
    inputs = span.distribution(INPUT)
    extra = {"usage_is_reserved": 1.0}
    if _VALIDATION in failures:
        extra["validation_failures"] = failures[_VALIDATION]
    return EngineWindow(
        engine="tgi",
        looks=tuple(
            Gauges(at_s=scrape.at_s, usage=_reserved(sums), running=sums.count(BATCH), waiting=sums.count(QUEUE))
            for sums, scrape in zip(span.sums, span.scrapes, strict=True)
        ),
        counts=Counts(
            prompt_tokens=None if inputs is None else inputs.total,
            generation_tokens=span.grew(f"{OUTPUT}_sum"),
            prefix_queries=None if skipped is None or inputs is None else inputs.total,
            prefix_hits=None if skipped is None else skipped.total,
            preemptions=0.0,
            finished=finished,
            rejected={_OVERLOADED: failures[_OVERLOADED]} if _OVERLOADED in failures else {},
            failed=sum(others) if failures else None,
        ),
        limits=Limits(pool=pool_of_tokens(span.sums[-1].least(MAX_BATCH_TOKENS), 1)),
        queue_s=span.distribution("tgi_request_queue_duration"),
        gap_s=span.distribution("tgi_request_mean_time_per_token_duration"),
        e2e_s=span.distribution("tgi_request_duration"),
        prompt_lengths=inputs,
        output_lengths=span.distribution(OUTPUT),
        max_tokens=span.distribution("tgi_request_max_new_tokens"),
        missing=_MISSING,
        notes=("usage is of reserved tokens, not of held ones",),
        extra=extra,
    )


def _reserved(sums: Sums) -> float | None:
    most, current = sums.least(MAX_BATCH_TOKENS), sums.total(BATCH_TOKENS)
    return None if not most or current is None else min(1.0, current / most)
