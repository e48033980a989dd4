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

from typing import Final, NamedTuple
from urllib.parse import urlsplit

from kvbudget.edge.access_log import Asked, Record
from kvbudget.edge.openai.ask import Surface
from kvbudget.edge.tracing.context import Attempt, Trace
from kvbudget.edge.tracing.otlp import Kind, Value, attributes, span
from kvbudget.gate.commands import Reject
from kvbudget.gate.refusals import Outcome, Refusal

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
    told = own + attributes(_request(record, trace, end, failed=failed))
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


def _request(record: Record, trace: Trace, end: End, *, failed: bool) -> Pairs:
    identity, admitted, reject = record.identity, record.admitted, end.reject
    pairs: Pairs = [
        ("http.route", trace.route),
        ("url.path", trace.route),
        ("http.response.status_code", end.status or None),
        ("client.address", record.peer.rpartition(":")[0].strip("[]")),
        ("error.type", _error_type(end) if failed else None),
        ("kvbudget.request_id", identity.request_id.decode("latin-1")),
        ("kvbudget.tenant", identity.tenant),
        ("kvbudget.priority", identity.priority),
        ("kvbudget.outcome", end.outcome.value),
        ("kvbudget.queue_ms", _waited_ns(record, end) / 1e6),
    ]
    if record.asked is not None:
        pairs += _asked(record.asked)
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
    return pairs


def _asked(asked: Asked) -> Pairs:
    return [
        ("gen_ai.operation.name", _OPERATIONS.get(asked.surface, asked.surface)),
        ("gen_ai.request.model", asked.model),
        ("gen_ai.request.max_tokens", asked.declared),
        ("gen_ai.request.stream", True if asked.stream else None),
        ("gen_ai.request.choice.count", asked.sequences if asked.sequences != 1 else None),
    ]


def _attempt(record: Record, trace: Trace, attempt: Attempt, end: End | None, wall_ns: int, now_ns: int) -> list[bytes]:
    """The span of one try, and those below it. `end`: of the request, where it was the last."""
    backend, asked = attempt.backend, record.asked
    since_ns = wall_ns + attempt.since_ns
    until_ns = wall_ns + (now_ns if attempt.until_ns is None else attempt.until_ns)
    error = attempt.failure or (str(attempt.status) if attempt.status is not None and attempt.status >= 400 else None)
    address, port = _server(backend.url)
    pairs: Pairs = [] if asked is None else _asked(asked)
    pairs += [
        ("gen_ai.provider.name", backend.facts.engine or "unknown"),
        ("server.address", address),
        ("server.port", port),
        ("http.request.method", "POST"),
        ("http.response.status_code", attempt.status),
        ("error.type", error),
        ("kvbudget.instance", backend.name),
    ]
    if end is not None and error is None:
        pairs += [
            ("gen_ai.usage.input_tokens", trace.prompt_tokens),
            ("gen_ai.usage.output_tokens", end.output_tokens),
            ("gen_ai.usage.cache_read.input_tokens", end.cached_tokens),
        ]
        if record.first_ns is not None:
            pairs.append(("gen_ai.response.time_to_first_chunk", (record.first_ns - attempt.since_ns) / 1e9))
    operation = "request" if asked is None else _OPERATIONS.get(asked.surface, asked.surface)
    name = operation if asked is None or asked.model is None else f"{operation} {asked.model}"
    made = [
        span(
            trace.trace_id, attempt.span_id, trace.span_id, name, Kind.CLIENT, since_ns, until_ns, attributes(pairs),
            error=error is not None, flags=trace.flags,
        )
    ]  # fmt: skip
    if attempt.head_ns is not None:
        head_ns = wall_ns + attempt.head_ns
        made.append(_phase(trace, attempt.span_id, "kvbudget.first_byte", since_ns, head_ns))
        made.append(_phase(trace, attempt.span_id, "kvbudget.stream", head_ns, until_ns))
    return made


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


def _server(url: str) -> tuple[str, int | None]:
    """Address and port of an engine; the path of a Unix socket."""
    if url.startswith("unix:"):
        return url.removeprefix("unix:").removeprefix("//"), None
    known = _SERVERS.get(url)
    if known is None:
        parts = urlsplit(url)
        known = _SERVERS[url] = parts.hostname or "", parts.port or _PORTS.get(parts.scheme)
    return known


_SERVERS: dict[str, tuple[str, int | None]] = {}  # of the few engines that there are
