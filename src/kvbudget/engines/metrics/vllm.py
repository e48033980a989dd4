"""Decides what scrapes of vLLM tell the gate and a diagnosis, by the names of 0.32 and by those that it had before.

Names and units: vLLM 0.32 `v1/metrics/loggers.py`, 0.6 to 0.11 `engine/metrics.py` and `v1/metrics/loggers.py`. What is
deprecated in X.Y is hidden in X.Y+1 and removed in X.Y+2.
"""

from collections.abc import Mapping

from kvbudget.engines.metrics.span import ROUNDING, Span, share
from kvbudget.engines.readings import EnginePool, EngineReading, Sums
from kvbudget.engines.vllm_metrics import (
    CACHE_CONFIG_INFO,
    GENERATION_TOKENS,
    KV_CACHE_USAGE,
    NUM_DRAFTS,
    NUM_PREEMPTIONS,
    NUM_REQUESTS_RUNNING,
    NUM_REQUESTS_WAITING,
    NUM_WAITING_BY_REASON,
    OLD_KV_CACHE_USAGE,
    PROMPT_TOKENS,
    labels_of_one,
    pool_from_cache_config,
)
from kvbudget.engines.window import Counts, EngineWindow, Gauges, Limits
from kvbudget.errors import BadValueError
from kvbudget.units import Blocks, Tokens, is_digits

READ_BY_GATE = (
    CACHE_CONFIG_INFO, KV_CACHE_USAGE, OLD_KV_CACHE_USAGE, NUM_DRAFTS, NUM_PREEMPTIONS, NUM_REQUESTS_RUNNING,
    NUM_REQUESTS_WAITING, NUM_WAITING_BY_REASON, PROMPT_TOKENS, GENERATION_TOKENS,
)  # fmt: skip
PREFIXES = ("vllm_",)
CORE = (KV_CACHE_USAGE, OLD_KV_CACHE_USAGE, NUM_REQUESTS_RUNNING, NUM_REQUESTS_WAITING)
COUNTERS = (
    PROMPT_TOKENS, GENERATION_TOKENS, NUM_PREEMPTIONS, NUM_DRAFTS, "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_queries_total", "vllm:gpu_prefix_cache_hits_total",
    "vllm:external_prefix_cache_queries_total", "vllm:external_prefix_cache_hits_total", "vllm:request_success_total",
    "vllm:admission_rejections_total", "vllm:prompt_tokens_by_source_total", "vllm:prompt_tokens_cached_total",
    "kvbudget_engine_aborts_total",
)  # fmt: skip
# extra name: counter; what a finding may quote beside the main figures.
_EXTRA_COUNTERS = (
    ("external_prefix_queries", "vllm:external_prefix_cache_queries_total"),
    ("external_prefix_hits", "vllm:external_prefix_cache_hits_total"),
    ("prompt_tokens_cached", "vllm:prompt_tokens_cached_total"),
    ("drafts", NUM_DRAFTS),
)
_EXTRA_MEANS = (
    ("prefill_mean_s", "vllm:request_prefill_time_seconds"),
    ("decode_mean_s", "vllm:request_decode_time_seconds"),
    ("inference_mean_s", "vllm:request_inference_time_seconds"),
    ("prefill_computed_mean_tokens", "vllm:request_prefill_kv_computed_tokens"),
    ("max_generation_mean_tokens", "vllm:request_max_num_generation_tokens"),
    ("n_mean", "vllm:request_params_n"),
)
_EXTRA_SHARES = (("cpu_usage", "vllm:cpu_cache_usage_perc"), ("prefix_hit_rate", "vllm:gpu_prefix_cache_hit_rate"))
# (the name of 0.32, what it was called before)
_RENAMED = (
    (KV_CACHE_USAGE, OLD_KV_CACHE_USAGE),
    ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    ("vllm:request_queue_time_seconds", "vllm:time_in_queue_requests"),
    ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
)
_BLOCK_LABELS = (
    *("block_size", "effective_attention_block_size", "mamba_block_size", "hash_block_size", "prefix_match_unit"),
    "cache_hit_alignment_tokens",
)
_NO_MAX_NUM_SEQS = "max_num_seqs is not exported by vLLM: give its log or its command as well"


def reading(sums: Sums) -> EngineReading:
    """Data-parallel engines each have a series and a pool: usage is their mean, requests add up.

    Raises BadValueError for a pool that is not sized yet, or told in a form that we do not know.
    """
    told = sums.samples(CACHE_CONFIG_INFO)
    pool = _pool_of_all(told[-1].labels, len(told)) if told else None
    if pool is not None and (len(told) > 1 or NUM_DRAFTS in sums):
        # Data-parallel engines do not use one another's blocks; with EAGLE or MTP a request computes the last block
        # that it finds again (vLLM 0.32 v1/core/kv_cache_coordinator.py: drop_eagle_block).
        pool = pool._replace(prefix_caching=False)
    return EngineReading(
        pool=pool,
        usage=sums.mean(KV_CACHE_USAGE if KV_CACHE_USAGE in sums else OLD_KV_CACHE_USAGE, 1.0),
        running=sums.count(NUM_REQUESTS_RUNNING),
        waiting=sums.count(NUM_REQUESTS_WAITING),
        preemptions=sums.count(NUM_PREEMPTIONS),
        deferred=_deferred(sums),
        progress=sums.progress(PROMPT_TOKENS, GENERATION_TOKENS),
    )


def _pool_of_all(labels: Mapping[str, str], engines: int) -> EnginePool:
    """Where vLLM tells the blocks of all its engines, what follows from one engine's figures is of one engine."""
    one = labels_of_one(labels, engines)
    pool = pool_from_cache_config(one)
    if one is labels:
        return pool
    return pool._replace(
        num_blocks=Blocks(pool.num_blocks * engines), usable_blocks=Blocks(pool.usable_blocks * engines)
    )


def window(span: Span) -> EngineWindow:
    """What this engine tells over the span. Usage counts blocks of requests alone: evictable cached ones are free."""
    pool, block_labels, notes = _pool(span)
    finished, rejected = _finished(span), span.grew_by("vllm:admission_rejections_total", "reason")
    queries, hits, notes_of_hits = _prefix(span, pool)
    aborted = finished.get("abort")
    ours = span.grew("kvbudget_engine_aborts_total")
    blocks = sorted(block_labels.values())
    old = [before for now, before in _RENAMED if not _told(span, now) and _told(span, before)]
    return EngineWindow(
        engine="vllm",
        model=_model(span),
        looks=tuple(_look(sums, scrape.at_s) for sums, scrape in zip(span.sums, span.scrapes, strict=True)),
        counts=Counts(
            prompt_tokens=span.grew(PROMPT_TOKENS),
            generation_tokens=span.grew(GENERATION_TOKENS),
            prefix_queries=queries,
            prefix_hits=hits,
            preemptions=span.grew(NUM_PREEMPTIONS),
            finished=finished,
            rejected=rejected,
            failed=finished.get("error"),
            aborted=aborted if ours is None else ours + (aborted or 0.0),
        ),
        limits=Limits(
            pool=pool,
            max_model_len=None if pool is None else pool.max_model_len,
            prefix_caching=None if pool is None else pool.prefix_caching,
            smallest_block=Tokens(blocks[0]) if blocks else None,
            largest_block=Tokens(blocks[-1]) if blocks else None,
        ),
        queue_s=span.distribution("vllm:request_queue_time_seconds", "vllm:time_in_queue_requests"),
        ttft_s=span.distribution("vllm:time_to_first_token_seconds"),
        gap_s=span.distribution("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
        e2e_s=span.distribution("vllm:e2e_request_latency_seconds"),
        prompt_lengths=span.distribution("vllm:request_prompt_tokens"),
        output_lengths=span.distribution("vllm:request_generation_tokens"),
        computed_lengths=span.distribution("vllm:request_prefill_kv_computed_tokens"),
        max_tokens=span.distribution("vllm:request_params_max_tokens"),
        step_tokens=span.distribution("vllm:iteration_tokens_total"),
        missing=_missing(span),
        notes=(*notes, *notes_of_hits, *(f"{name}: read by the name of an older vLLM" for name in old)),
        # Our own embedded engine writes vLLM's names, and has no prefix cache that could be turned on.
        extra=_extra(span, block_labels) | ({} if ours is None else {"embedded_engine": 1.0}),
    )


def _look(sums: Sums, at_s: float | None) -> Gauges:
    usage = sums.mean(KV_CACHE_USAGE if KV_CACHE_USAGE in sums else OLD_KV_CACHE_USAGE, 1.0 + ROUNDING)
    waiting = sums.count(NUM_REQUESTS_WAITING)
    return Gauges(
        at_s=at_s,
        usage=share(usage),
        running=sums.count(NUM_REQUESTS_RUNNING),
        waiting=sums.count(NUM_WAITING_BY_REASON) if waiting is None else waiting,
        deferred=_deferred(sums),
        swapped=sums.count("vllm:num_requests_swapped"),
    )


def _deferred(sums: Sums) -> int | None:
    told = Sums(one for one in sums.samples(NUM_WAITING_BY_REASON) if one.labels.get("reason") == "deferred")
    return told.count(NUM_WAITING_BY_REASON)


def _pool(span: Span) -> tuple[EnginePool | None, dict[str, int], list[str]]:
    """(the pool, block sizes by label, notes). An engine that is not ready yet tells a pool without blocks."""
    found: EnginePool | None = None
    blocks: dict[str, int] = {}
    notes: list[str] = []
    for sample in span.sums[-1].samples(CACHE_CONFIG_INFO):
        try:
            found = pool_from_cache_config(labels_of_one(sample.labels, span.siblings))
        except BadValueError as error:
            notes.append(error.message)
            continue
        told = {name: sample.labels.get(name, "") for name in _BLOCK_LABELS}
        sizes = {name: int(text) for name, text in told.items() if is_digits(text) and len(text) < 10}
        blocks = {name: size for name, size in sizes.items() if size}
    return found, blocks, notes if found is None else []


def _finished(span: Span) -> dict[str, float]:
    return span.grew_by("vllm:request_success_total", "finished_reason")


def _prefix(span: Span, pool: EnginePool | None) -> tuple[float | None, float | None, tuple[str, ...]]:
    """(queries, hits) in tokens. Up to 0.9 they were counted in blocks, which only the HELP line tells."""
    for name in ("prefix_cache", "gpu_prefix_cache"):
        queries, hits = span.grew(f"vllm:{name}_queries_total"), span.grew(f"vllm:{name}_hits_total")
        if queries is None and hits is None:
            continue
        words = next((words for told, words in span.helps.items() if told.startswith(f"vllm_{name}_queries")), "")
        in_blocks = "blocks" in words or (name == "gpu_prefix_cache" and "tokens" not in words)
        if not in_blocks:
            return queries, hits, ()
        if pool is None:
            return queries, hits, ("prefix cache hits are counted in blocks, and the block size is not told",)
        size = pool.block_size
        note = f"prefix cache hits were counted in blocks, taken as {size} tokens each"
        return (
            None if queries is None else queries * size,
            None if hits is None else hits * size,
            (note,),
        )
    return None, None, ()


def _told(span: Span, name: str) -> bool:
    base = name.removesuffix("_total")
    spellings = (name, base, *(f"{base}_{end}" for end in ("total", "count", "bucket")))
    return any(spelling in span.sums[-1] for spelling in spellings)


def _missing(span: Span) -> tuple[str, ...]:
    missing = [_NO_MAX_NUM_SEQS]
    if not _told(span, KV_CACHE_USAGE) and not _told(span, OLD_KV_CACHE_USAGE):
        missing.append("the use of the pool is not exported here: scrape the engine itself, not a router")
    if not _told(span, NUM_WAITING_BY_REASON):
        missing.append("why requests wait is not exported before vLLM 0.19 (num_requests_waiting_by_reason)")
    if not _told(span, CACHE_CONFIG_INFO):
        missing.append("the size of the pool is not told (cache_config_info): give the engine's log as well")
    return tuple(missing)


def _extra(span: Span, blocks: dict[str, int]) -> dict[str, float]:
    extra: dict[str, float] = dict(blocks)
    for name, counter in _EXTRA_COUNTERS:
        if (grown := span.grew(counter)) is not None:
            extra[name] = grown
    for source, grown in span.grew_by("vllm:prompt_tokens_by_source_total", "source").items():
        if source:
            extra[f"prompt_tokens_{source}"] = grown
    for name, histogram in _EXTRA_MEANS:
        told = span.distribution(histogram)
        if told is not None and told.mean is not None:
            extra[name] = told.mean
    # Its first bucket holds those preempted once as well as never (v1/metrics/buckets.py): only the sum tells.
    preempted = span.grew("vllm:request_num_preemptions_sum")
    if preempted is not None:
        extra["preemptions_of_finished"] = preempted
    for name, gauge in _EXTRA_SHARES:
        rate = share(span.sums[-1].mean(gauge, 1.0 + ROUNDING))
        if rate is not None:
            extra[name] = rate
    return extra


def _model(span: Span) -> str | None:
    for name in CORE:
        for sample in span.sums[-1].samples(name):
            if model := sample.labels.get("model_name"):
                return model[:200]
    return None
