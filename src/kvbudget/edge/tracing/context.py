"""Decides of which trace a request is part, whether it is recorded, and what the engine hears of that.

W3C trace context (Level 1; the random flag of Level 2 is passed on): a `traceparent` that is lawful is continued,
anything else begins a trace. The engine gets the id of our span in front of it as its parent, so that its own spans
hang below ours.
"""

import re
from random import Random
from typing import Final, NamedTuple

from kvbudget.edge.http.messages import Headers
from kvbudget.edge.instances.backend import Backend

TRACEPARENT: Final = b"traceparent"
TRACESTATE: Final = b"tracestate"
# Of a version that is not known yet, what version 00 has is read, and what follows is not (W3C, 3.2.4).
_TRACEPARENT: Final = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_NO_TRACE: Final = bytes(16)
_NO_SPAN: Final = bytes(8)
_SAMPLED: Final = 0x01
_RANDOM: Final = 0x02
_LOW_64: Final = (1 << 64) - 1
_LONGEST_STATE: Final = 512  # bytes; W3C asks that so many be passed on, and the client's header is whatever we keep
_PARENT_LINE: Final = b"traceparent: 00-%b-%b-%02x\r\n"


class Sampler(NamedTuple):
    """`ratio` of the traces that begin here are recorded; `by_parent`: of others those that their parent records."""

    ratio: float = 1.0
    by_parent: bool = True


RECORD_ALL: Final = Sampler()


class Attempt:
    """One time that the request was sent to an engine. Times are of the monotonic clock, in ns; None: not so far."""

    __slots__ = ("backend", "failure", "head_ns", "since_ns", "span_id", "status", "until_ns")

    def __init__(self, backend: Backend, span_id: bytes, since_ns: int) -> None:
        self.backend = backend
        self.span_id = span_id
        self.since_ns = since_ns
        self.head_ns: int | None = None
        self.until_ns: int | None = None
        self.status: int | None = None
        self.failure: str | None = None


class Trace:
    """The place of one request in its trace, and what happened to it on the way.

    `parent_id`: empty where the trace begins here. `begins`: what the client said of traces does not reach the engine.
    """

    __slots__ = (
        "_random",
        "attempts",
        "begins",
        "counted_ns",
        "flags",
        "parent_id",
        "prompt_tokens",
        "route",
        "sampled",
        "span_id",
        "state",
        "trace_id",
    )  # fmt: skip

    def __init__(self, random: Random, trace_id: bytes, parent_id: bytes, flags: int, state: bytes, route: str) -> None:
        self.trace_id = trace_id
        self.parent_id = parent_id
        self.begins = not parent_id
        self.flags = flags
        self.sampled = bool(flags & _SAMPLED)
        self.state = state
        self.route = route
        self.span_id = random.getrandbits(64).to_bytes(8)
        self.counted_ns: int | None = None
        self.prompt_tokens: int | None = None  # by the engine's own word
        self.attempts: list[Attempt] = []
        self._random = random

    def new_id(self) -> bytes:
        """An id for a span of this trace."""
        return self._random.getrandbits(64).to_bytes(8)

    def sent(self, backend: Backend, now_ns: int) -> bytes:
        """It goes to an engine; gives the line of its head that tells the engine whose child it is."""
        span_id = self.span_id
        if self.sampled:
            span_id = self.new_id()
            self.attempts.append(Attempt(backend, span_id, now_ns))
        return _PARENT_LINE % (self.trace_id.hex().encode(), span_id.hex().encode(), self.flags)

    def answered(self, now_ns: int) -> None:
        """The head of the engine's answer is here."""
        if self.attempts:
            self.attempts[-1].head_ns = now_ns

    def over(self, now_ns: int, status: int | None, failure: str | None, prompt_tokens: int | None) -> None:
        """The engine's answer is over. `failure`: how it went wrong, if it did."""
        if self.attempts:
            attempt = self.attempts[-1]
            attempt.until_ns, attempt.status, attempt.failure = now_ns, status, failure
            if status is None:
                attempt.head_ns = None  # behind Envoy an answer is taken to begin when a request is sent on
            self.prompt_tokens = prompt_tokens


class Contexts:
    """Gives every request its place in a trace."""

    def __init__(self, sampler: Sampler, random: Random | None = None) -> None:
        self._by_parent = sampler.by_parent
        self._below = round(sampler.ratio * (1 << 64))
        self._random = Random() if random is None else random  # noqa: S311 - ids must be rare, not secret

    def of(self, headers: Headers, route: str) -> Trace | None:
        """None: the request is not recorded, and what it says of its trace reaches the engine as it came."""
        parent = state = None
        for name, value in headers:
            if name == TRACEPARENT:
                parent = value if parent is None else b""  # twice is none
            elif name == TRACESTATE:
                state = value if state is None else b"%b,%b" % (state, value)
        found = None if parent is None else _read(parent)
        if found is None:
            number = self._random.getrandbits(128) or 1
            sampled = (number & _LOW_64) < self._below
            return Trace(self._random, number.to_bytes(16), b"", int(sampled), b"", route)
        trace_id, parent_id, flags = found
        if self._by_parent:
            if not flags & _SAMPLED:
                return None
        else:  # by the lower half, as OpenTelemetry's own TraceIdRatioBased: all who see the trace decide alike
            sampled = int.from_bytes(trace_id[8:]) < self._below
            flags = (flags & _RANDOM) | sampled
        return Trace(self._random, trace_id, parent_id, flags, (state or b"")[:_LONGEST_STATE], route)


def _read(parent: bytes) -> tuple[bytes, bytes, int] | None:
    """(trace id, span id, flags) of a `traceparent`; None where it is not lawful."""
    match = _TRACEPARENT.fullmatch(parent)
    if match is None:
        return None
    version, trace, span, flags, more = match.groups()
    if version == b"ff" or (version == b"00" and more is not None):
        return None
    trace_id, span_id = bytes.fromhex(trace.decode()), bytes.fromhex(span.decode())
    if trace_id == _NO_TRACE or span_id == _NO_SPAN:
        return None
    return trace_id, span_id, int(flags, 16) & (_SAMPLED | _RANDOM)
