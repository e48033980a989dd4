"""Keeps which requests came in the last minutes, in memory and only while somebody wants to know: lengths, no text.

It stands before the access log, if there is one, and passes everything on to it. Its rows are those of that log, so
that what reads a log as a trace reads them as well.
"""

from collections import deque

from kvbudget.edge.access_log import Record, RequestLog, iso_time
from kvbudget.gate.commands import Reject
from kvbudget.gate.refusals import Outcome, Refusal

MOST_ROWS = 20_000
_LONGEST_NS = 600 * 10**9


class Recent:
    """The last ten minutes of requests, at most `MOST_ROWS`. `inner`: the access log that hears everything too."""

    def __init__(self, inner: RequestLog | None) -> None:
        self.inner = inner
        self._rows: deque[tuple[int, dict[str, object]]] = deque(maxlen=MOST_ROWS)

    def refused(self, record: Record, status: int, refusal: Refusal, now_ns: int, reject: Reject | None = None) -> None:
        """It was not forwarded."""
        if self.inner is not None:
            self.inner.refused(record, status, refusal, now_ns, reject)
        self._keep(record, "refused", None, now_ns)

    def ended(
        self, record: Record, outcome: Outcome, status: int | None, now_ns: int, output: int | None, cached: int | None
    ) -> None:
        """It was admitted or waited, and is over."""
        if self.inner is not None:
            self.inner.ended(record, outcome, status, now_ns, output, cached)
        self._keep(record, outcome.value, output, now_ns)

    def rows(self, now_ns: int) -> list[dict[str, object]]:
        """Those that arrived within the last ten minutes, in the order of their ends."""
        return [row for since_ns, row in self._rows if now_ns - since_ns <= _LONGEST_NS]

    def _keep(self, record: Record, outcome: str, output: int | None, now_ns: int) -> None:
        if record.prompt_tokens is None:
            return
        row: dict[str, object] = {
            "time": iso_time(record.since_ns),
            "tenant": record.identity.tenant,
            "priority": record.identity.priority,
            "outcome": outcome,
            "prompt_tokens": record.prompt_tokens,
            "prompt_exact": record.exact,
            "output_tokens": output,
            "max_tokens": None if record.asked is None else record.asked.declared,
            "reserved_new_tokens": None if record.admitted is None else record.admitted.max_new_tokens,
        }
        self._rows.append((record.since_ns, row))
