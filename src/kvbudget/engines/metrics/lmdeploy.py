"""Decides what scrapes of LMDeploy tell a diagnosis.

Names: LMDeploy 0.10 to 0.13 (`lmdeploy/metrics/loggers.py`), adapted there from vLLM's; `gpu_cache_usage_perc` is a
share of 0 to 1. Requests that wait for a handle of the API server have not reached the engine yet.
"""

from kvbudget.engines.metrics.span import ROUNDING, Span, share
from kvbudget.engines.readings import Sums
from kvbudget.engines.window import Counts, EngineWindow, Gauges

_USAGE = "lmdeploy:gpu_cache_usage_perc"
_RUNNING, _WAITING = "lmdeploy:num_requests_running", "lmdeploy:num_requests_waiting"
_API_WAITING = "lmdeploy:num_api_requests_waiting"
_PROMPT, _GENERATION = "lmdeploy:prompt_tokens_total", "lmdeploy:generation_tokens_total"
_SUCCESS, _CACHED = "lmdeploy:request_success_total", "lmdeploy:cached_tokens_total"

PREFIXES = ("lmdeploy_",)
CORE = (_USAGE, _RUNNING, _WAITING)
COUNTERS = (_PROMPT, _GENERATION, _SUCCESS, _CACHED)
_MISSING = (
    "the size of the pool is not exported by LMDeploy: its log tells the number of blocks",
    "preemptions and why requests wait are not exported by LMDeploy",
    "what clients ask for (max_tokens) is not exported by LMDeploy: our gate tells it",
)


def window(span: Span) -> EngineWindow:
    """What waits counts those that wait for a handle as well; `extra` has them apart."""
    newest = span.sums[-1]
    prompts, cached = span.grew(_PROMPT), span.grew(_CACHED)
    extra = {
        "prefix_hit_rate": share(newest.most("lmdeploy:prefix_cache_hit_rate", 1.0 + ROUNDING)),
        "api_waiting": newest.total(_API_WAITING),
    }
    return EngineWindow(
        engine="lmdeploy",
        model=next(
            (one.labels["model_name"][:200] for one in newest.samples(_USAGE) if "model_name" in one.labels), None
        ),
        looks=tuple(_look(sums, scrape.at_s) for sums, scrape in zip(span.sums, span.scrapes, strict=True)),
        counts=Counts(
            prompt_tokens=prompts,
            generation_tokens=span.grew(_GENERATION),
            prefix_queries=prompts if cached is not None else None,
            prefix_hits=cached,
            finished=span.grew_by(_SUCCESS, "finished_reason"),
        ),
        queue_s=span.distribution("lmdeploy:request_queue_time_seconds"),
        ttft_s=span.distribution("lmdeploy:time_to_first_token_seconds"),
        gap_s=span.distribution("lmdeploy:time_per_output_token_seconds", "lmdeploy:iter_token_latency"),
        e2e_s=span.distribution("lmdeploy:e2e_request_latency_seconds"),
        prompt_lengths=span.distribution("lmdeploy:request_prompt_tokens"),
        output_lengths=span.distribution("lmdeploy:request_generation_tokens"),
        step_tokens=span.distribution("lmdeploy:iteration_tokens_total"),
        missing=_MISSING,
        extra={name: value for name, value in extra.items() if value is not None},
    )


def _look(sums: Sums, at_s: float | None) -> Gauges:
    waiting, before = sums.count(_WAITING), sums.count(_API_WAITING)
    return Gauges(
        at_s=at_s,
        usage=share(sums.mean(_USAGE, 1.0 + ROUNDING)),
        running=sums.count(_RUNNING),
        waiting=None if waiting is None else waiting + (before or 0),
    )
