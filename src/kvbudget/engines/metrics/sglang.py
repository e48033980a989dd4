"""Decides what scrapes of SGLang tell the gate and a diagnosis: one series for each rank, put together here.

Names: SGLang of 2024 to 2026 (`managers/scheduler_metrics_mixin.py`, `metrics/collector.py`). The ranks of one
data-parallel replica show the same, replicas add up; a series with a priority is part of the one without.
"""

from collections.abc import Mapping, Sequence

from kvbudget.engines.metrics.span import ROUNDING, Labels, Scrape, Span, share
from kvbudget.engines.readings import EngineReading, Sample, Sums, pool_of_tokens, within
from kvbudget.engines.window import Counts, EngineWindow, Gauges, Limits
from kvbudget.units import Tokens, is_digits

USAGE = "sglang:token_usage"  # 0 to 1, evictable tokens are free; the larger of full and sliding
RUNNING = "sglang:num_running_reqs"
QUEUE = "sglang:num_queue_reqs"
GRAMMAR_QUEUE = "sglang:num_grammar_queue_reqs"
MAX_TOKENS = "sglang:max_total_num_tokens"
MAX_RUNNING, PAGE_SIZE = "sglang:max_running_requests", "sglang:page_size"
RETRACTED = "sglang:num_retracted_requests_total"
PROMPT_TOKENS = "sglang:prompt_tokens_total"  # of finished requests
GENERATION_TOKENS = "sglang:generation_tokens_total"
_REALTIME = "sglang:realtime_tokens_total"  # by mode, as they are computed
_CACHED = "sglang:cached_tokens_total"
_RETRACTED_TOKENS = ("sglang:num_retracted_input_tokens_total", "sglang:num_retracted_output_tokens_total")
_RETRACTED_NOW = "sglang:num_retracted_reqs"  # a gauge, the only one before 2026
_ABORTED = "sglang:num_aborted_requests_total"
_FINISHED = "sglang:num_requests_total"
_HIT_RATE = "sglang:cache_hit_rate"
# With disaggregated prefill and decode: who waits here waits for the other side.
_TRANSFER_QUEUES = (
    "sglang:num_decode_prealloc_queue_reqs", "sglang:num_decode_transfer_queue_reqs",
    "sglang:num_prefill_bootstrap_queue_reqs", "sglang:num_prefill_prealloc_queue_reqs",
    "sglang:num_prefill_inflight_queue_reqs",
)  # fmt: skip
_SUB_POOLS = (
    ("full", "sglang:full_token_usage"), ("sliding", "sglang:swa_token_usage"), ("mamba", "sglang:mamba_usage"),
)  # fmt: skip
_USED, _AS_VLLM = "sglang:num_used_tokens", "sglang:kv_cache_usage_perc"
_FREE = ("sglang:kv_available_tokens", "sglang:kv_evictable_tokens")

READ_BY_GATE = (
    USAGE, RUNNING, QUEUE, MAX_TOKENS, RETRACTED, PROMPT_TOKENS, GENERATION_TOKENS, GRAMMAR_QUEUE,
)  # fmt: skip
PREFIXES = ("sglang_",)
CORE = (USAGE, RUNNING, QUEUE)
COUNTERS = (
    RETRACTED, PROMPT_TOKENS, GENERATION_TOKENS, _REALTIME, _CACHED, *_RETRACTED_TOKENS, _ABORTED, _FINISHED,
)  # fmt: skip
REPLICA = "dp_rank"
_RANKS = ("tp_rank", "pp_rank", "moe_ep_rank", "ep_rank", "attn_tp_rank", "attn_cp_rank")
_EXTRA = (
    ("new_token_ratio", "sglang:new_token_ratio"), ("utilization", "sglang:utilization"),
    ("gen_tokens_per_s", "sglang:gen_throughput"), ("pending_prealloc_usage", "sglang:pending_prealloc_token_usage"),
    ("accept_length", "sglang:spec_accept_length"), ("evictable_tokens", "sglang:kv_evictable_tokens"),
    ("used_tokens", _USED),
)  # fmt: skip
_MISSING = (
    "what clients ask for (max_tokens) is not exported by SGLang: our gate tells it",
    "the tokens of a step are not exported by SGLang: its log tells them",
)


def reading(sums: Sums) -> EngineReading:
    """Ranks of one data-parallel replica show the same; the pool is that of one replica, the smallest. Pages are of one
    token unless `/get_server_info` says otherwise."""
    grammar = sums.over(GRAMMAR_QUEUE, REPLICA)
    waiting = sums.over(QUEUE, REPLICA)
    if waiting is not None and grammar is not None:
        waiting += grammar
    return EngineReading(
        pool=pool_of_tokens(sums.least(MAX_TOKENS), 1),
        usage=sums.most(USAGE, 1.0),
        running=sums.over(RUNNING, REPLICA),
        waiting=waiting,
        preemptions=sums.count(RETRACTED),
        engine="sglang",
        deferred=grammar,
        progress=sums.progress(PROMPT_TOKENS, GENERATION_TOKENS),
    )


def of_all_ranks(scrape: Scrape) -> Scrape:
    """One series for each replica instead of one for each rank, and without those of one priority alone."""
    largest: dict[tuple[str, Labels], Sample] = {}
    for sample in scrape.samples:
        labels = {name: value for name, value in sample.labels.items() if name not in _RANKS and name != "pid"}
        key = sample.name, tuple(sorted(labels.items()))
        if key not in largest or not largest[key].value >= sample.value:
            largest[key] = sample._replace(labels=labels)
    kept = [
        sample
        for sample in largest.values()
        if not sample.labels.get("priority")
        or (sample.name, tuple(sorted({**sample.labels, "priority": ""}.items()))) not in largest
    ]
    return scrape._replace(samples=tuple(kept))


def window(span: Span) -> EngineWindow:
    """What the replicas of one server tell together; each one's use is in `usage_by_rank`."""
    kinds = _kinds(span)
    looks = tuple(_look(sums, scrape.at_s, kinds) for sums, scrape in zip(span.sums, span.scrapes, strict=True))
    newest = span.sums[-1]
    retracted, notes = _retracted(span)
    prompts, generated = span.grew_by(_REALTIME, "mode"), span.grew(GENERATION_TOKENS)
    computed, found = prompts.get("prefill_compute"), prompts.get("prefill_cache")
    if computed is None or found is None:
        queries, hits = span.grew(PROMPT_TOKENS), span.grew(_CACHED)
    else:
        queries, hits = computed + found, found
    recomputed = [tokens for name in _RETRACTED_TOKENS if (tokens := span.grew(name)) is not None]
    page = _whole(newest.most(PAGE_SIZE)) or _page_size(newest)
    finished = span.grew(_FINISHED)
    rate, rate_notes = _hit_rate(newest)
    return EngineWindow(
        engine="sglang",
        model=_model(newest),
        looks=looks,
        counts=Counts(
            prompt_tokens=span.grew(PROMPT_TOKENS) if computed is None or found is None else computed + found,
            generation_tokens=prompts.get("decode", generated),
            prefix_queries=queries if hits is not None else None,
            prefix_hits=hits,
            preemptions=retracted,
            recomputed_tokens=sum(recomputed) if recomputed else None,
            finished={} if finished is None else {"any": finished},
            aborted=span.grew(_ABORTED),
        ),
        limits=Limits(
            pool=pool_of_tokens(newest.over(MAX_TOKENS, REPLICA), page or 1),
            max_num_seqs=newest.over(MAX_RUNNING, REPLICA),
            max_model_len=None if not (length := _whole(newest.most("sglang:context_len"))) else Tokens(length),
            smallest_block=Tokens(page) if page else None,
            largest_block=Tokens(page) if page else None,
        ),
        queue_s=span.distribution("sglang:queue_time_seconds"),
        ttft_s=span.distribution("sglang:time_to_first_token_seconds"),
        gap_s=span.distribution("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
        e2e_s=span.distribution("sglang:e2e_request_latency_seconds"),
        prompt_lengths=span.distribution("sglang:prompt_tokens_histogram"),
        output_lengths=span.distribution("sglang:generation_tokens_histogram"),
        missing=_MISSING,
        notes=(*notes, *rate_notes),
        extra={**_extra(span, newest), **rate},
    )


def _look(sums: Sums, at_s: float | None, kinds: Mapping[str, str]) -> Gauges:
    replicas = _replicas(sums)
    by_rank = {rank: used for rank, part in replicas.items() if (used := _usage(part, bool(kinds))) is not None}
    sizes = {rank: replicas[rank].most(MAX_TOKENS) or 1.0 for rank in by_rank}
    deferred = [count for name in (GRAMMAR_QUEUE, *_TRANSFER_QUEUES) if (count := sums.over(name, REPLICA)) is not None]
    running, waiting = sums.over(RUNNING, REPLICA), sums.over(QUEUE, REPLICA)
    if _nobody_there(running, waiting, deferred):
        by_rank = dict.fromkeys(by_rank, 0.0)
    return Gauges(
        at_s=at_s,
        usage=share(
            sum(used * sizes[rank] for rank, used in by_rank.items()) / sum(sizes.values()) if by_rank else None
        ),
        usage_by_kind={kind: used for kind, name in kinds.items() if (used := share(sums.most(name))) is not None},
        running=running,
        waiting=None if waiting is None else waiting + sum(deferred),
        deferred=sum(deferred) if deferred else None,
        swapped=sums.over("sglang:num_paused_reqs", REPLICA),
        usage_by_rank=by_rank if len(by_rank) > 1 else {},
    )


def _nobody_there(running: int | None, waiting: int | None, deferred: Sequence[int]) -> bool:
    """Whatever is in use then is the radix cache's, and evictable; versions that do not export it count it as used."""
    return running == 0 and waiting == 0 and not any(deferred)


def _replicas(sums: Sums) -> dict[str, Sums]:
    names = (USAGE, MAX_TOKENS, _USED, _AS_VLLM, *_FREE)
    samples = [sample for name in names for sample in sums.samples(name)]
    ranks = dict.fromkeys(sample.labels.get(REPLICA, "") for sample in samples)
    return {rank: Sums(one for one in samples if one.labels.get(REPLICA, "") == rank) for rank in ranks}


def _usage(sums: Sums, has_sub_pools: bool) -> float | None:
    """Used is what is neither free nor evictable: some versions counted what the radix cache keeps (sglang#6778).

    With sub-pools `token_usage` is that of the fullest one, and the free tokens are those of the full one alone.
    """
    most, free, evictable = sums.most(MAX_TOKENS), *(sums.most(name) for name in _FREE)
    usage = share(sums.most(USAGE, 1.0 + ROUNDING))
    if most and free is not None and evictable is not None and not (has_sub_pools and usage is not None):
        return max(0.0, 1.0 - (free + evictable) / most)
    used = sums.most(_USED)
    if usage is None and most and used is not None:
        return share(used / most)
    return share(sums.most(_AS_VLLM, 1.0 + ROUNDING)) if usage is None else usage


def _kinds(span: Span) -> dict[str, str]:
    """The sub-pools that this model has: SGLang exports those that it has not as 0."""
    used = {kind: name for kind, name in _SUB_POOLS if any(sums.most(name) for sums in span.sums)}
    if "sliding" not in used and "mamba" not in used:
        return {}
    told = {kind: name for kind, name in _SUB_POOLS if kind in used or (kind == "full" and name in span.sums[-1])}
    return told if "full" in told else {"full": USAGE, **told}


def _retracted(span: Span) -> tuple[float | None, tuple[str, ...]]:
    counted = span.grew(RETRACTED)
    if counted is not None:
        return counted, ()
    now = [told for sums in span.sums if (told := sums.over(_RETRACTED_NOW, REPLICA)) is not None]
    note = "retractions are told by a gauge (num_retracted_reqs): at least so many"
    return (float(max(now)), (note,)) if now else (None, ())


def _hit_rate(sums: Sums) -> tuple[dict[str, float], tuple[str, ...]]:
    """A gauge of the last prefill batches, 0 while nothing but decoding goes on; the first draft had it in percent."""
    rate = sums.most(_HIT_RATE, 100.0)
    if rate is None:
        return {}, ()
    if rate > 1:
        return {"cache_hit_rate": rate / 100}, ("cache_hit_rate was told in percent",)
    return {"cache_hit_rate": rate}, ()


def _extra(span: Span, newest: Sums) -> dict[str, float]:
    extra = {key: value for key, name in _EXTRA if (value := newest.most(name)) is not None}
    ranks = len(_replicas(newest))
    if ranks > 1:
        extra["replicas"] = float(ranks)
    for source, grown in span.grew_by(_CACHED, "cache_source").items():
        if source:
            extra[f"cached_tokens_{source}"] = grown
    evicted = span.grew("sglang:evicted_tokens_total")
    return extra if evicted is None else {**extra, "evicted_tokens": evicted}


def _page_size(sums: Sums) -> int | None:
    """`sglang:cache_config_info` of 2026 has it as a label."""
    for sample in sums.samples("sglang:cache_config_info"):
        text = sample.labels.get("page_size", "")
        if is_digits(text) and 0 < len(text) < 10:
            return int(text) or None
    return None


def _whole(value: float | None) -> int | None:
    told = None if value is None else within(value, 1e12)
    return None if told is None or told < 1 else int(told)


def _model(sums: Sums) -> str | None:
    for name in CORE:
        for sample in sums.samples(name):
            if model := sample.labels.get("model_name"):
                return model[:200]
    return None
