"""Decides what the spans of one request say: never a prompt, an answer or a key.

    POST /v1/chat/completions   SERVER    the request as the client sees it: what was promised, how it ended
      kvbudget.count            INTERNAL  until its tokens were counted
      kvbudget.queue            INTERNAL  it waited for room
      chat MODEL                CLIENT    at an engine, once for each try: OpenTelemetry's GenAI inference span
        kvbudget.first_byte     INTERNAL  until the head of the engine's answer
        kvbudget.stream         INTERNAL  from there to its last byte

Names by the semantic conventions for HTTP (1.37) and GenAI (development, read at 0.66b2 of the Python package); what
they do not have begins with `kvbudget.`. How many tokens a request took stands in the CLIENT span alone, so that nobody
who adds up finds them twice.
"""

from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from kvbudget.edge.openai.ask import Surface
from kvbudget.edge.request.record import Asked, Record
from kvbudget.edge.tracing.context import Attempt, Trace
from kvbudget.edge.tracing.otlp import Kind, Value, attributes, span
from kvbudget.gate.commands import Reject
from kvbudget.gate.refusing.refusals import Outcome, Refusal

_OPERATIONS: Final[dict[str, str]] = {
    Surface.CHAT: "chat",
    Surface.RESPONSES: "chat",
    Surface.MESSAGES: "chat",
    Surface.COMPLETIONS: "text_completion",
    Surface.TGI_GENERATE: "text_completion",
    Surface.TGI_GENERATE_STREAM: "text_completion",
    Surface.EMBEDDINGS: "embeddings",
}
_FAILED: Final = frozenset({Outcome.UPSTREAM_FAILED, Outcome.TIMED_OUT, Outcome.ENGINE_LOST})
_PORTS: Final = {"http": 80, "https": 443}

Pairs = list[tuple[str, Value | None]]


class End(NamedTuple):
    """How a request ended. Token numbers are the engine's own; None: it did not tell."""

    outcome: Outcome
    status: int | None
    now_ns: int
    refusal: Refusal | None = None
    reject: Reject | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None


def spans_of(record: Record, trace: Trace, end: End, wall_ns: int, own: bytes) -> tuple[bytes, int]:
    """(the spans of one request, how many). `wall_ns`: wall clock less monotonic clock; `own`: attributes of ours."""
    since_ns = wall_ns + record.since_ns
    until_ns = wall_ns + end.now_ns
    failed = end.outcome in _FAILED or (end.status is not None and end.status >= 500)
    told = own + _request(record, trace, end, failed=failed)
    made = [
        span(
            trace.trace_id, trace.span_id, trace.parent_id, f"POST {trace.route}", Kind.SERVER, since_ns, until_ns,
            told, error=failed, flags=trace.flags, remote=not trace.begins, state=trace.state,
        )
    ]  # fmt: skip
    if trace.counted_ns is not None:
        counted_ns = wall_ns + trace.counted_ns
        made.append(_phase(trace, trace.span_id, "kvbudget.count", since_ns, counted_ns))
        waited_ns = _waited_ns(record, end)
        if waited_ns:
            made.append(_phase(trace, trace.span_id, "kvbudget.queue", counted_ns, counted_ns + waited_ns))
    for attempt in trace.attempts:
        last = attempt is trace.attempts[-1]
        made += _attempt(record, trace, attempt, end if last else None, wall_ns, end.now_ns)
    return b"".join(made), len(made)


def _request(record: Record, trace: Trace, end: End, *, failed: bool) -> bytes:
    identity, admitted, reject, asked = record.identity, record.admitted, end.reject, record.asked
    pairs: Pairs = [
        ("http.response.status_code", end.status or None),
        ("client.address", record.peer.rpartition(":")[0].strip("[]")),
        ("error.type", _error_type(end) if failed else None),
        ("kvbudget.request_id", identity.request_id.decode("latin-1")),
        ("kvbudget.queue_ms", _waited_ns(record, end) / 1e6),
    ]
    told = _routed(trace.route) + _sender(identity.tenant, identity.priority, end.outcome.value)
    if asked is not None:
        told += _asked(asked)
        pairs += [("kvbudget.prompt_tokens", record.prompt_tokens), ("kvbudget.prompt_exact", record.exact)]
    if admitted is not None:
        pairs += [
            ("kvbudget.reserved_blocks", admitted.reserved_blocks),
            ("kvbudget.reserved_new_tokens", admitted.max_new_tokens),
            ("kvbudget.instance", record.instance),
        ]
    if end.refusal is not None:
        pairs.append(("kvbudget.refusal", end.refusal.value))
    if reject is not None:
        pairs += [("kvbudget.needed_blocks", reject.needed_blocks), ("kvbudget.free_blocks", reject.free_blocks)]
    if len(trace.attempts) > 1:
        pairs.append(("kvbudget.tries", len(trace.attempts)))
    return told + attributes(pairs)


def _attempt(record: Record, trace: Trace, attempt: Attempt, end: End | None, wall_ns: int, now_ns: int) -> list[bytes]:
    """The span of one try, and those below it. `end`: of the request, where it was the last."""
    backend, asked, status = attempt.backend, record.asked, attempt.status
    since_ns = wall_ns + attempt.since_ns
    until_ns = wall_ns + (now_ns if attempt.until_ns is None else attempt.until_ns)
    error = attempt.failure or (str(status) if status is not None and status >= 400 else None)
    told = _served(backend.name, backend.url, backend.facts.engine)
    if asked is not None:
        told += _asked(asked)
    pairs: Pairs = [("http.response.status_code", status), ("error.type", error)]
    if end is not None and error is None:
        pairs += [
            ("gen_ai.usage.input_tokens", trace.prompt_tokens),
            ("gen_ai.usage.output_tokens", end.output_tokens),
            ("gen_ai.usage.cache_read.input_tokens", end.cached_tokens),
        ]
        if record.first_ns is not None:
            pairs.append(("gen_ai.response.time_to_first_chunk", (record.first_ns - attempt.since_ns) / 1e9))
    made = [
        span(
            trace.trace_id, attempt.span_id, trace.span_id, _name(asked), Kind.CLIENT, since_ns, until_ns,
            told + attributes(pairs), error=error is not None, flags=trace.flags,
        )
    ]  # fmt: skip
    if attempt.head_ns is not None:
        head_ns = wall_ns + attempt.head_ns
        made.append(_phase(trace, attempt.span_id, "kvbudget.first_byte", since_ns, head_ns))
        made.append(_phase(trace, attempt.span_id, "kvbudget.stream", head_ns, until_ns))
    return made


# What comes again and again is put into bytes once.


@lru_cache(64)
def _routed(route: str) -> bytes:
    return attributes([("http.route", route), ("url.path", route)])


@lru_cache(1024)
def _sender(tenant: str, priority: int, outcome: str) -> bytes:
    return attributes([("kvbudget.tenant", tenant), ("kvbudget.priority", priority), ("kvbudget.outcome", outcome)])


@lru_cache(1024)
def _asked(asked: Asked) -> bytes:
    return attributes(
        [
            ("gen_ai.operation.name", _OPERATIONS.get(asked.surface, asked.surface)),
            ("gen_ai.request.model", asked.model),
            ("gen_ai.request.max_tokens", asked.declared),
            ("gen_ai.request.stream", True if asked.stream else None),
            ("gen_ai.request.choice.count", asked.sequences if asked.sequences != 1 else None),
        ]
    )


@lru_cache(256)
def _served(name: str, url: str, engine: str) -> bytes:
    address: str
    if url.startswith("unix:"):
        address, port = url.removeprefix("unix:").removeprefix("//"), None
    else:
        parts = urlsplit(url)
        address, port = parts.hostname or "", parts.port or _PORTS.get(parts.scheme)
    return attributes(
        [
            ("gen_ai.provider.name", engine or "unknown"),
            ("server.address", address),
            ("server.port", port),
            ("http.request.method", "POST"),
            ("kvbudget.instance", name),
        ]
    )


def _name(asked: Asked | None) -> str:
    if asked is None:
        return "request"
    operation = _OPERATIONS.get(asked.surface, asked.surface)
    return operation if asked.model is None else f"{operation} {asked.model}"


def _phase(trace: Trace, parent_id: bytes, name: str, since_ns: int, until_ns: int) -> bytes:
    return span(trace.trace_id, trace.new_id(), parent_id, name, Kind.INTERNAL, since_ns, until_ns, flags=trace.flags)


def _waited_ns(record: Record, end: End) -> int:
    if record.admitted is not None:
        return record.admitted.waited_ns
    return 0 if end.reject is None else end.reject.waited_ns


def _error_type(end: End) -> str:
    if end.refusal is not None:
        return end.refusal.value
    return end.outcome.value if end.outcome in _FAILED else str(end.status)
