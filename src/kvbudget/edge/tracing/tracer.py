"""Hears how every request ends, and makes spans of those that are recorded. It stands before the access log."""

import time
from random import Random
from typing import Final

from kvbudget import __version__
from kvbudget.edge.http.exchange import Exchange
from kvbudget.edge.http.messages import Headers
from kvbudget.edge.request.record import Record, RequestLog
from kvbudget.edge.tracing.context import Contexts, Trace
from kvbudget.edge.tracing.exporter import Exporter
from kvbudget.edge.tracing.otlp import attributes, resource, scope
from kvbudget.edge.tracing.settings import TracingSettings
from kvbudget.edge.tracing.spans import End, spans_of
from kvbudget.gate.commands import Reject
from kvbudget.gate.refusing.refusals import Outcome, Refusal, outcome_of

_SCOPE: Final = "kvbudget"


class Tracer:
    """Traces of one gate. `inner`: the access log that hears everything too, if there is one."""

    def __init__(
        self,
        settings: TracingSettings,
        inner: RequestLog | None = None,
        *,
        instance_id: str = "",
        scheme: str = "http",
        random: Random | None = None,
    ) -> None:
        """`instance_id`: which gate it is. Within a running loop. Raises BadValueError."""
        self.inner = inner
        told = {"service.version": __version__, "service.instance.id": instance_id, **settings.resource}
        self.exporter = Exporter(settings, resource({name: text for name, text in told.items() if text}),
                                 scope(_SCOPE, __version__))  # fmt: skip
        self._contexts = Contexts(settings.sampler, random)
        self._own = attributes([("http.request.method", "POST"), ("url.scheme", scheme)])

    def begin(self, exchange: Exchange) -> Trace | None:
        """The place of a request in its trace; None: it has none that we say anything of."""
        known = exchange.known
        headers: Headers = exchange.headers if known is None else known.head.headers
        route = exchange.target.partition(b"?")[0].decode("latin-1")
        return self._contexts.of(headers, route)

    def refused(self, record: Record, status: int, refusal: Refusal, now_ns: int, reject: Reject | None = None) -> None:
        """It was not forwarded."""
        if self.inner is not None:
            self.inner.refused(record, status, refusal, now_ns, reject)
        self._tell(record, End(outcome_of(refusal), status, now_ns, refusal, reject))

    def ended(
        self, record: Record, outcome: Outcome, status: int | None, now_ns: int, output: int | None, cached: int | None
    ) -> None:
        """It was admitted or waited, and is over."""
        if self.inner is not None:
            self.inner.ended(record, outcome, status, now_ns, output, cached)
        self._tell(record, End(outcome, status, now_ns, output_tokens=output, cached_tokens=cached))

    def _tell(self, record: Record, end: End) -> None:
        trace = record.trace
        if trace is not None and trace.sampled:
            wall_ns = time.time_ns() - time.monotonic_ns()
            self.exporter.put(*spans_of(record, trace, end, wall_ns, self._own))
