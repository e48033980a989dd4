"""The gate's own figures, cheap to count on the data path and put into Prometheus form only when scraped.

Own counters instead of prometheus_client's on the hot path: its locked observe() costs about 10x a list increment,
and one request makes five of them. The exposition itself is prometheus_client's.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from kvbudget.gate.refusing.refusals import Outcome, Refusal

_SECONDS = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
)
_TOKENS = (1, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 1048576)


_FRESH: Final = 256


class Histogram:
    """Counts by upper bound (`le`), and the sum."""

    __slots__ = ("_bounds", "_counts", "_fresh", "_sum", "_zeros")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._fresh: list[float] = []  # not counted yet: to append takes a third of the time of counting
        self._zeros = 0  # the same, of nothing at all: how long nearly everybody waits

    def observe(self, value: float) -> None:
        """Count one value."""
        if value == 0:
            self._zeros += 1
            return
        fresh = self._fresh
        fresh.append(value)
        if len(fresh) >= _FRESH:
            self._count()

    def _count(self) -> None:
        fresh, bounds = self._fresh, self._bounds
        self._sum += sum(fresh)
        fresh.sort()
        self._counts[0] += self._zeros
        self._zeros = before = 0
        for index, bound in enumerate(bounds):
            until = bisect_right(fresh, bound, before)
            self._counts[index] += until - before
            before = until
        self._counts[len(bounds)] += len(fresh) - before
        fresh.clear()

    def family(self, name: str, text: str) -> HistogramMetricFamily:
        """As a Prometheus histogram: cumulative buckets."""
        self._count()
        total = 0
        buckets: list[tuple[str, float]] = []
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else str(float(bound)), total))
        return HistogramMetricFamily(name, text, buckets=buckets, sum_value=self._sum)


class GateMetrics(Collector):
    """Everything that `/metrics` tells, named as in the contract. `gauges` are asked for at scrape time."""

    def __init__(self, gauges: Callable[[], Iterable[Metric]] = lambda: ()) -> None:
        self.gauges = gauges
        self.more: Callable[[], Iterable[Metric]] = lambda: ()  # of whatever brings the requests
        # By the member itself: one that is not the key, but like it, is compared with it.
        self.outcomes: dict[str, int] = dict.fromkeys(Outcome, 0)
        self.refusals: dict[str, int] = {refusal.value: 0 for refusal in Refusal}
        self.shadow_refusals: Counter[str] = Counter()
        self.access_log_lost: Callable[[], int] = lambda: 0
        self.spans: Callable[[], tuple[int, int]] = lambda: (0, 0)  # (exported, lost)
        self.queue_seconds = Histogram(_SECONDS)
        self.prompt_tokens = Histogram(_TOKENS)
        self.output_tokens = Histogram(_TOKENS)
        self.count_seconds = Histogram(_SECONDS)
        self.overhead_seconds = Histogram(_SECONDS)
        self.token_drift = 0
        self.retries = 0
        self.ledger_errors = 0
        self.ledger_call_failures = 0  # of those, calls of a shared ledger
        # Blocks that refused requests would have been promised, times the new tokens they asked for
        # (`edge.control.demand`).
        self.refused_block_tokens = 0

    def collect(self) -> Iterator[Metric]:
        """All families, gauges first."""
        yield from self.gauges()
        yield from self.more()
        requests = CounterMetricFamily("kvbudget_requests", "Requests by how they ended.", labels=["outcome"])
        for outcome, count in sorted(self.outcomes.items()):
            requests.add_metric([str(outcome)], count)
        yield requests
        refused = CounterMetricFamily("kvbudget_refusals", "Refused requests by reason.", labels=["reason"])
        for reason, count in sorted(self.refusals.items()):
            refused.add_metric([reason], count)
        yield refused
        shadowed = CounterMetricFamily(
            "kvbudget_shadow_refusals",
            "Requests that were forwarded in shadow mode and would have been refused, by reason.",
            labels=["reason"],
        )
        for reason, count in sorted(self.shadow_refusals.items()):
            shadowed.add_metric([reason], count)
        yield shadowed
        yield CounterMetricFamily(
            "kvbudget_access_log_lost", "Lines of the access log that could not be written.", self.access_log_lost()
        )
        exported, lost = self.spans()
        yield CounterMetricFamily("kvbudget_spans_exported", "Spans that the collector of traces took.", exported)
        yield CounterMetricFamily(
            "kvbudget_spans_lost", "Spans that were lost: the collector was away too long, or did not take them.", lost
        )
        yield self.queue_seconds.family("kvbudget_queue_seconds", "Time that forwarded requests waited for room.")
        yield self.prompt_tokens.family("kvbudget_prompt_tokens", "Prompt tokens of counted requests.")
        yield self.output_tokens.family("kvbudget_output_tokens", "Output tokens of finished requests.")
        yield self.count_seconds.family("kvbudget_count_seconds", "Time to count a prompt's tokens.")
        yield self.overhead_seconds.family(
            "kvbudget_overhead_seconds", "Time from a request's last byte to its forwarding, without the queue."
        )
        yield CounterMetricFamily(
            "kvbudget_token_drift",
            "Prompt tokens by which exact counts and the engine's usage differed.",
            self.token_drift,
        )
        yield CounterMetricFamily(
            "kvbudget_retries",
            "Requests that were tried again, at another instance or from the queue, as their engine gave no answer.",
            self.retries,
        )
        yield CounterMetricFamily(
            "kvbudget_ledger_errors",
            "Calls of a shared ledger that failed; and misuses of our own, each of which is a bug.",
            self.ledger_errors,
        )
        yield CounterMetricFamily(
            "kvbudget_ledger_call_failures",
            "Calls of a shared ledger that failed: not reached, no answer in time, or refused.",
            self.ledger_call_failures,
        )
