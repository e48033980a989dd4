"""Decides what llama.cpp tells the gate and a diagnosis: no use of its cache since #13660 (2025-05); `/slots` and
`/props` say which slots work and what they can take.

Names: llama.cpp of 2024 to 2026 (`tools/server`). A request waits (is deferred, in its words) for a free slot.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kvbudget.engines.metrics.span import ROUNDING, Span, share
from kvbudget.engines.readings import EngineReading, Sums, pool_of_tokens
from kvbudget.engines.window import Counts, EngineWindow, Gauges, Limits
from kvbudget.units import Tokens

PROCESSING = "llamacpp:requests_processing"
DEFERRED = "llamacpp:requests_deferred"
PROMPT_TOKENS = "llamacpp:prompt_tokens_total"
PREDICTED_TOKENS = "llamacpp:tokens_predicted_total"
_USAGE = "llamacpp:kv_cache_usage_ratio"  # until 2025-05

READ_BY_GATE = (PROCESSING, DEFERRED, PROMPT_TOKENS, PREDICTED_TOKENS)
PREFIXES = ("llamacpp_",)
CORE = (PROCESSING, DEFERRED)
COUNTERS = (
    PROMPT_TOKENS, PREDICTED_TOKENS, "llamacpp:prompt_seconds_total", "llamacpp:tokens_predicted_seconds_total",
    "llamacpp:n_decode_total",
)  # fmt: skip
_EXTRA = (
    ("busy_slots_per_decode", "llamacpp:n_busy_slots_per_decode"), ("most_tokens_seen", "llamacpp:n_tokens_max"),
    ("prompt_tokens_per_s", "llamacpp:prompt_tokens_seconds"),
    ("gen_tokens_per_s", "llamacpp:predicted_tokens_seconds"),
)  # fmt: skip
_NO_USAGE = (
    "llama.cpp exports no use of its KV cache since 2025-05: its /slots (start it with --slots) tell which work, "
    "and its log tells when there was no room"
)
_MISSING = (
    "preemptions: llama.cpp has none; without room it fails requests, which its log tells",
    "times, lengths and prefix hits are not exported by llama.cpp: our gate tells times and lengths",
)
_LARGEST = 10**9


def reading(sums: Sums) -> EngineReading:
    """No pool and no usage: `/props` tells the slots and their context."""
    return EngineReading(
        pool=None,
        usage=None,
        running=sums.count(PROCESSING),
        waiting=sums.count(DEFERRED),
        preemptions=None,
        engine="llamacpp",
        progress=sums.progress(PROMPT_TOKENS, PREDICTED_TOKENS),
    )


def window(span: Span) -> EngineWindow:
    """Requests, tokens and speeds; `with_slots` adds the rest where it can be had."""
    newest = span.sums[-1]
    looks = tuple(
        Gauges(
            at_s=scrape.at_s,
            usage=share(sums.most(_USAGE, 1.0 + ROUNDING)),
            running=sums.count(PROCESSING),
            waiting=sums.count(DEFERRED),
        )
        for sums, scrape in zip(span.sums, span.scrapes, strict=True)
    )
    old = looks[-1].usage is not None
    return EngineWindow(
        engine="llamacpp",
        looks=looks,
        counts=Counts(prompt_tokens=span.grew(PROMPT_TOKENS), generation_tokens=span.grew(PREDICTED_TOKENS)),
        missing=_MISSING if old else (_NO_USAGE, *_MISSING),
        notes=(f"{_USAGE}: read by the name of an older llama.cpp",) if old else (),
        extra={key: value for key, name in _EXTRA if (value := newest.most(name)) is not None},
    )


def with_slots(window: EngineWindow, props: Mapping[str, object], slots: Sequence[object]) -> EngineWindow:
    """The same with what `/props` and `/slots` told at its end; either may be empty.

    `n_ctx` is what one slot can take. Whether the slots have that each or share it (--kv-unified) is not told, so the
    pool is taken to be one that they share: the share of a slot that is fullest is its least use.
    """
    settings = props.get("default_generation_settings")
    told = [slot for slot in slots if isinstance(slot, Mapping)]
    n_ctx = _count(settings.get("n_ctx") if isinstance(settings, Mapping) else None)
    n_ctx = n_ctx or max((_count(slot.get("n_ctx")) or 0 for slot in told), default=0) or None
    number = _count(props.get("total_slots")) or len(told) or None
    busy = [slot for slot in told if slot.get("is_processing") is True or slot.get("state") == 1]
    held = [tokens for slot in busy if (tokens := _held(slot)) is not None]
    usage = share(min(1.0, sum(held) / n_ctx)) if n_ctx and told and len(held) == len(busy) else None
    last = window.last
    if last.usage is None:
        last = last._replace(usage=usage)
    if last.running is None and told:
        last = last._replace(running=len(busy))
    build, model = props.get("build_info"), props.get("model_alias") or props.get("model_path")
    missing = window.missing if usage is None else tuple(line for line in window.missing if line != _NO_USAGE)
    return replace(
        window,
        version=build[:40] if isinstance(build, str) else window.version,
        model=model[:200] if isinstance(model, str) else window.model,
        looks=(*window.looks[:-1], last),
        limits=Limits(
            pool=pool_of_tokens(n_ctx, 1),
            max_num_seqs=number,
            max_model_len=Tokens(n_ctx) if n_ctx else None,
            smallest_block=Tokens(1) if n_ctx else None,
            largest_block=Tokens(1) if n_ctx else None,
        ),
        missing=missing,
        notes=(*window.notes, "pool and use are of /props and /slots, taken as shared by all slots")
        if n_ctx
        else window.notes,
    )


def _held(slot: Mapping[object, object]) -> int | None:
    """Tokens in the cache of one slot, by the names of several builds."""
    past = _count(slot.get("n_past"))
    if past is not None:
        return past
    prompt = _count(slot.get("n_prompt_tokens")) or _count(slot.get("n_prompt_tokens_processed"))
    after = slot.get("next_token")
    after = after[0] if isinstance(after, list) and after else after
    decoded = after.get("n_decoded") if isinstance(after, Mapping) else slot.get("n_decoded")
    if prompt is None and _count(decoded) is None:
        return None
    return (prompt or 0) + (_count(decoded) or 0)


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 < value <= _LARGEST else None
