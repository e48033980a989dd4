"""Decides what scrapes of Dynamo tell a diagnosis beside the metrics of its engines, which it passes through.

Names: Dynamo 0.4 to 1.x (`lib/runtime/src/metrics/prometheus_names.rs`). `gpu_cache_usage_percent` is a share of 0 to
1 despite its name; `kvstats` was part of the names until 2025. Queued ones of the frontend include those in prefill.
"""

from dataclasses import replace

from kvbudget.engines.metrics.span import ROUNDING, Span, share
from kvbudget.engines.readings import Sums, pool_of_tokens
from kvbudget.engines.window import Counts, EngineWindow, Gauges, Limits
from kvbudget.units import Tokens

_USAGE = ("dynamo_component_gpu_cache_usage_percent", "dynamo_component_kvstats_gpu_cache_usage_percent")
_BLOCKS = ("dynamo_component_total_blocks", "dynamo_component_kvstats_total_blocks")
_ACTIVE = ("dynamo_component_active_blocks", "dynamo_component_kvstats_active_blocks")
_INFLIGHT = ("dynamo_frontend_inflight_requests", "dynamo_component_inflight_requests")
_QUEUED = "dynamo_frontend_queued_requests"
_REQUESTS = "dynamo_frontend_requests_total"
_MODEL = "dynamo_frontend_model_"

PREFIXES = ("dynamo_frontend_", "dynamo_component_")
CORE = (*_USAGE, *_INFLIGHT)
WITHIN = ("dp_rank", "dynamo_endpoint", "dynamo_component", "model", "endpoint")
COUNTERS = (_REQUESTS, "dynamo_component_requests_total")
_APART = 0.1
_MISSING = (
    "preemptions, prefix hits and why requests wait are the engine's: scrape its own port (DYN_SYSTEM_PORT) as well",
)


def window(span: Span) -> EngineWindow:
    """What Dynamo itself tells; `beside` puts it to what its engine tells."""
    newest = span.sums[-1]
    size = _first(newest, (f"{_MODEL}kv_cache_block_size",))
    blocks = _first(newest, (*_BLOCKS, f"{_MODEL}total_kv_blocks"))
    length, most = _first(newest, (f"{_MODEL}context_length",)), _first(newest, (f"{_MODEL}max_num_seqs",))
    done = {status or "any": count for status, count in span.grew_by(_REQUESTS, "status").items()}
    rate = share(newest.most("dynamo_component_kvstats_gpu_prefix_cache_hit_rate", 1.0 + ROUNDING))
    block = Tokens(int(size)) if size else None
    return EngineWindow(
        engine="dynamo",
        model=next((one.labels["model"][:200] for one in newest.samples(_INFLIGHT[0]) if "model" in one.labels), None),
        looks=tuple(_look(sums, scrape.at_s) for sums, scrape in zip(span.sums, span.scrapes, strict=True)),
        counts=Counts(
            prompt_tokens=span.grew("dynamo_frontend_input_sequence_tokens_sum"),
            generation_tokens=span.grew("dynamo_frontend_output_sequence_tokens_sum"),
            finished={status: count for status, count in done.items() if status != "error"},
            failed=done.get("error"),
        ),
        limits=Limits(
            pool=pool_of_tokens(blocks * size, int(size)) if blocks and size else None,
            max_num_seqs=int(most) if most else None,
            max_model_len=Tokens(int(length)) if length else None,
            smallest_block=block,
            largest_block=block,
        ),
        ttft_s=span.distribution("dynamo_frontend_time_to_first_token_seconds"),
        gap_s=span.distribution("dynamo_frontend_inter_token_latency_seconds"),
        e2e_s=span.distribution("dynamo_frontend_request_duration_seconds"),
        prompt_lengths=span.distribution("dynamo_frontend_input_sequence_tokens"),
        output_lengths=span.distribution("dynamo_frontend_output_sequence_tokens"),
        missing=_MISSING,
        notes=_contradiction(newest),
        extra={} if rate is None else {"prefix_hit_rate": rate},
    )


def _contradiction(sums: Sums) -> tuple[str, ...]:
    told, counted = _usages(sums)
    if told is None or counted is None or abs(told - counted) < _APART:
        return ()
    return (f"the usage gauge says {told:.1%}, active blocks {counted:.1%} of all: the count is taken",)


def beside(engine: EngineWindow, dynamo: EngineWindow) -> EngineWindow:
    """The engine's own word, with the limits that only Dynamo tells and the frontend's queue as `dynamo_queued`."""
    limits, told = engine.limits, dynamo.limits
    queued = dynamo.last.waiting
    return replace(
        engine,
        limits=replace(
            limits,
            pool=limits.pool or told.pool,
            max_num_seqs=limits.max_num_seqs or told.max_num_seqs,
            max_model_len=limits.max_model_len or told.max_model_len,
        ),
        extra=engine.extra if queued is None else {**engine.extra, "dynamo_queued": float(queued)},
    )


def _look(sums: Sums, at_s: float | None) -> Gauges:
    told, counted = _usages(sums)
    inflight, queued = _first(sums, _INFLIGHT), sums.count(_QUEUED)
    running = None if inflight is None else max(0, int(inflight) - (queued or 0))
    return Gauges(at_s=at_s, usage=told if counted is None else counted, running=running, waiting=queued)


def _usages(sums: Sums) -> tuple[float | None, float | None]:
    """(by the gauge, by the count of blocks): two publishers have written the gauge in turn (dynamo#7753)."""
    told = next((share(sums.mean(name, 1.0 + ROUNDING)) for name in _USAGE if name in sums), None)
    active, blocks = _first(sums, _ACTIVE), _first(sums, _BLOCKS)
    return told, None if active is None or not blocks else share(active / blocks)


def _first(sums: Sums, names: tuple[str, ...]) -> float | None:
    return next((sums.total(name) for name in names if name in sums), None)
