"""Decides what scrapes of TensorRT-LLM tell: of `trtllm-serve` to the gate and a diagnosis, of Triton's backend to a
diagnosis.

Names: TensorRT-LLM 1.x (`tensorrt_llm/metrics/collector.py`, at /prometheus/metrics), Triton's tensorrtllm_backend
(`custom_metrics_reporter.cc`, port 8002). A paused request was thrown out for want of room and waits to go on.
"""

from kvbudget.engines.metrics.span import ROUNDING, Span, share
from kvbudget.engines.readings import EnginePool, EngineReading, Sums, pool_of_tokens
from kvbudget.engines.window import Counts, EngineWindow, Gauges, Limits
from kvbudget.units import Tokens

USAGE = "trtllm_kv_cache_utilization"
MAX_BLOCKS = "trtllm_kv_cache_max_blocks"
USED_BLOCKS = "trtllm_kv_cache_used_blocks"
BLOCK_TOKENS = "trtllm_kv_cache_tokens_per_block"
RUNNING = "trtllm_num_requests_running"
WAITING = "trtllm_num_requests_waiting"
PAUSED = "trtllm_num_paused_requests"
MAX_ACTIVE = "trtllm_max_num_active_requests"
PROMPT_TOKENS = "trtllm_prompt_tokens_total"
GENERATION_TOKENS = "trtllm_generation_tokens_total"
_REUSED, _MISSED = "trtllm_kv_cache_reused_blocks_total", "trtllm_kv_cache_missed_blocks_total"
_SUCCESS, _ERRORS = "trtllm_request_success_total", "trtllm_request_error_total"
_CACHED = "trtllm_prompt_cached_tokens_total"

READ_BY_GATE = (
    USAGE, MAX_BLOCKS, USED_BLOCKS, BLOCK_TOKENS, RUNNING, WAITING, PAUSED, MAX_ACTIVE, PROMPT_TOKENS,
    GENERATION_TOKENS,
)  # fmt: skip
PREFIXES = ("trtllm_",)
CORE = (USAGE, RUNNING, WAITING)
COUNTERS = (PROMPT_TOKENS, GENERATION_TOKENS, _REUSED, _MISSED, _SUCCESS, _ERRORS, _CACHED)
_MISSING = (
    "preemptions are not counted by TensorRT-LLM: paused requests are those that lost their room",
    "what clients ask for (max_tokens) and lengths are not exported by TensorRT-LLM: our gate tells them",
)

TRITON_PREFIXES = ("nv_trt_llm_", "nv_inference_")
_REQUESTS, _BLOCKS = "nv_trt_llm_request_metrics", "nv_trt_llm_kv_cache_block_metrics"
TRITON_CORE = (_REQUESTS, _BLOCKS)
TRITON_WITHIN = ("request_type", "kv_cache_block_type")
TRITON_COUNTERS = ("nv_inference_request_success", "nv_inference_request_failure", "nv_inference_queue_duration_us")
_TRITON_MISSING = (
    "times, lengths, preemptions and prefix hits are not exported by Triton's TensorRT-LLM backend: our gate tells "
    "times and lengths",
)


def reading(sums: Sums) -> EngineReading:
    """Blocks in use are told as such."""
    return EngineReading(
        pool=_pool(sums.least(MAX_BLOCKS), sums.most(BLOCK_TOKENS)),
        usage=_usage(sums),
        running=sums.count(RUNNING),
        waiting=sums.count(WAITING),
        preemptions=None,
        engine="trtllm",
        deferred=None,
        progress=sums.progress(PROMPT_TOKENS, GENERATION_TOKENS),
        max_num_seqs=sums.count(MAX_ACTIVE) or None,
    )


def window(span: Span) -> EngineWindow:
    """Prefix hits are counted in blocks there, and told here in tokens."""
    newest = span.sums[-1]
    size = newest.most(BLOCK_TOKENS)
    reused, missed = span.grew(_REUSED), span.grew(_MISSED)
    in_tokens = None if reused is None or missed is None or not size else (reused * size, (reused + missed) * size)
    rate = share(newest.most("trtllm_kv_cache_hit_rate", 1.0 + ROUNDING))
    host = share(newest.most("trtllm_kv_cache_host_utilization", 1.0 + ROUNDING))
    extra = {"prefix_hit_rate": rate, "host_usage": host, "prompt_tokens_cached": span.grew(_CACHED)}
    return EngineWindow(
        engine="trtllm",
        model=next(
            (one.labels["model_name"][:200] for one in newest.samples(USAGE) if "model_name" in one.labels), None
        ),
        looks=tuple(
            Gauges(
                at_s=scrape.at_s,
                usage=_usage(sums),
                running=sums.count(RUNNING),
                waiting=sums.count(WAITING),
                swapped=sums.count(PAUSED),
            )
            for sums, scrape in zip(span.sums, span.scrapes, strict=True)
        ),
        counts=Counts(
            prompt_tokens=span.grew(PROMPT_TOKENS),
            generation_tokens=span.grew(GENERATION_TOKENS),
            prefix_queries=None if in_tokens is None else in_tokens[1],
            prefix_hits=None if in_tokens is None else in_tokens[0],
            finished=span.grew_by(_SUCCESS, "finished_reason"),
            failed=span.grew(_ERRORS),
        ),
        limits=_limits(_pool(newest.least(MAX_BLOCKS), size), newest.count(MAX_ACTIVE), size),
        queue_s=span.distribution("trtllm_request_queue_time_seconds"),
        ttft_s=span.distribution("trtllm_time_to_first_token_seconds"),
        gap_s=span.distribution("trtllm_time_per_output_token_seconds"),
        e2e_s=span.distribution("trtllm_e2e_request_latency_seconds"),
        missing=_MISSING,
        extra={name: value for name, value in extra.items() if value is not None},
    )


def triton_window(span: Span) -> EngineWindow:
    """Of one model that Triton serves; pre- and post-processing models of the same server have no KV cache."""
    newest = span.sums[-1]
    size = _of_type(newest, _BLOCKS, "tokens_per")
    pool = _pool(_of_type(newest, _BLOCKS, "max"), size)
    most = _of_type(newest, _REQUESTS, "max")
    finished, failed = span.grew("nv_inference_request_success"), span.grew("nv_inference_request_failure")
    queue_us = span.grew("nv_inference_queue_duration_us")
    extra = {} if queue_us is None or not finished else {"queue_mean_s": queue_us / 1e6 / finished}
    return EngineWindow(
        engine="trtllm-triton",
        model=next((one.labels["model"][:200] for one in newest.samples(_BLOCKS) if "model" in one.labels), None),
        looks=tuple(_triton_look(sums, scrape.at_s) for sums, scrape in zip(span.sums, span.scrapes, strict=True)),
        counts=Counts(finished={} if finished is None else {"any": finished}, failed=failed),
        limits=_limits(pool, None if most is None else int(most), size),
        missing=_TRITON_MISSING,
        extra=extra,
    )


def _triton_look(sums: Sums, at_s: float | None) -> Gauges:
    usage = share(_of_type(sums, _BLOCKS, "fraction"))
    used, most = _of_type(sums, _BLOCKS, "used"), _of_type(sums, _BLOCKS, "max")
    if usage is None and used is not None and most:
        usage = share(used / most)
    running, waiting = _of_type(sums, _REQUESTS, "scheduled"), _of_type(sums, _REQUESTS, "waiting")
    return Gauges(
        at_s=at_s,
        usage=usage,
        running=None if running is None else int(running),
        waiting=None if waiting is None else int(waiting),
    )


def _of_type(sums: Sums, name: str, kind: str) -> float | None:
    told = [one for one in sums.samples(name) if kind in (one.labels.get(label) for label in TRITON_WITHIN)]
    return Sums(told).total(name)


def _usage(sums: Sums) -> float | None:
    usage, used = share(sums.most(USAGE, 1.0 + ROUNDING)), sums.most(USED_BLOCKS)
    blocks = sums.least(MAX_BLOCKS)
    return min(1.0, used / blocks) if usage is None and used is not None and blocks else usage


def _pool(blocks: float | None, size: float | None) -> EnginePool | None:
    return None if blocks is None or not size else pool_of_tokens(blocks * size, int(size))


def _limits(pool: EnginePool | None, max_num_seqs: int | None, size: float | None) -> Limits:
    block = Tokens(int(size)) if size else None
    return Limits(pool=pool, max_num_seqs=max_num_seqs or None, smallest_block=block, largest_block=block)
