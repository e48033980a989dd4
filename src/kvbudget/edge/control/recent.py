"""Keeps which requests came in the last quarter of an hour, in memory: lengths, no text.

It stands before the access log, if there is one, and passes everything on to it. Its rows are those of that log, so
that what reads a log as a trace reads them as well; they are written out only when somebody asks.
"""

from collections import deque
from typing import Final

from kvbudget.edge.access_log import iso_time
from kvbudget.edge.request.record import Record, RequestLog
from kvbudget.gate.commands import Reject
from kvbudget.gate.refusing.refusals import Outcome, Refusal

KEPT_NS: Final = 900 * 10**9
MOST_ROWS: Final = 20_000


class Row:
    """One request that is over; 200 bytes each."""

    __slots__ = (
        "max_tokens", "outcome", "output_tokens", "priority", "prompt_exact", "prompt_tokens", "reserved_new_tokens",
        "since_ns", "tenant",
    )  # fmt: skip

    def __init__(
        self,
        since_ns: int,
        tenant: str,
        priority: int,
        outcome: Outcome,
        prompt_tokens: int,
        prompt_exact: bool,
        output_tokens: int | None,
        max_tokens: int | None,
        reserved_new_tokens: int | None,
    ) -> None:
        self.since_ns = since_ns
        self.tenant = tenant
        self.priority = priority
        self.outcome = outcome  # its word is looked up when it is told
        self.prompt_tokens = prompt_tokens
        self.prompt_exact = prompt_exact
        self.output_tokens = output_tokens
        self.max_tokens = max_tokens
        self.reserved_new_tokens = reserved_new_tokens


class Recent:
    """The last requests, at most `MOST_ROWS`. `inner`: the access log that hears everything too."""

    def __init__(self, inner: RequestLog | None) -> None:
        self.inner = inner
        self._rows: deque[Row] = deque(maxlen=MOST_ROWS)

    def refused(self, record: Record, status: int, refusal: Refusal, now_ns: int, reject: Reject | None = None) -> None:
        """It was not forwarded."""
        if self.inner is not None:
            self.inner.refused(record, status, refusal, now_ns, reject)
        self._keep(record, Outcome.REFUSED, None)

    def ended(
        self, record: Record, outcome: Outcome, status: int | None, now_ns: int, output: int | None, cached: int | None
    ) -> None:
        """It was admitted or waited, and is over."""
        if self.inner is not None:
            self.inner.ended(record, outcome, status, now_ns, output, cached)
        self._keep(record, outcome, output)

    def rows(self, now_ns: int, most: int = MOST_ROWS) -> list[dict[str, object]]:
        """Those that arrived within the last quarter of an hour, in the order of their ends; the last of them if they
        are more than `most`."""
        kept = [row for row in self._rows if now_ns - row.since_ns <= KEPT_NS][-most:]
        return [_told(row) for row in kept]

    def _keep(self, record: Record, outcome: Outcome, output: int | None) -> None:
        if record.prompt_tokens is None:
            return
        asked, admitted, identity = record.asked, record.admitted, record.identity
        declared = None if asked is None else asked.declared
        granted = None if admitted is None else admitted.max_new_tokens
        since_ns, tenant, priority = record.since_ns, identity.tenant, identity.priority
        self._rows.append(
            Row(since_ns, tenant, priority, outcome, record.prompt_tokens, record.exact, output, declared, granted)
        )


def _told(row: Row) -> dict[str, object]:
    return {
        "time": iso_time(row.since_ns),
        "tenant": row.tenant,
        "priority": row.priority,
        "outcome": row.outcome.value,
        "prompt_tokens": row.prompt_tokens,
        "prompt_exact": row.prompt_exact,
        "output_tokens": row.output_tokens,
        "max_tokens": row.max_tokens,
        "reserved_new_tokens": row.reserved_new_tokens,
    }
