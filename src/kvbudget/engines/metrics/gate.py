"""Decides what scrapes of our own gate's admin /metrics tell a diagnosis: one window for each of its instances.

The gate names them in `edge/control/admin.py` and `edge/metrics.py`; a test keeps both lists the same.
"""

from collections.abc import Sequence

from kvbudget.engines.metrics.span import Parted, Scrape, Span, identities
from kvbudget.engines.window import GateWindow

PREFIX = "kvbudget_"
POOL = "kvbudget_pool_blocks"
RESERVED = "kvbudget_reserved_blocks"  # by tenant; the sum of them
LEDGER_RESERVED = "kvbudget_ledger_reserved_blocks"  # of all replicas of the gate
HELD, ELSEWHERE, MARGIN = "kvbudget_held_blocks", "kvbudget_elsewhere_blocks", "kvbudget_margin_blocks"
QUEUE_REQUESTS, QUEUE_TOKENS = "kvbudget_queue_requests", "kvbudget_queue_tokens"
OUTCOMES, REFUSALS, DRIFT = "kvbudget_requests_total", "kvbudget_refusals_total", "kvbudget_token_drift_total"
GAUGES = (POOL, RESERVED, LEDGER_RESERVED, HELD, ELSEWHERE, MARGIN, QUEUE_REQUESTS, QUEUE_TOKENS)
_BY_INSTANCE = (POOL, RESERVED, LEDGER_RESERVED, HELD, ELSEWHERE, MARGIN)
COUNTERS = (OUTCOMES, REFUSALS, DRIFT)


def windows(scrapes: Sequence[Scrape]) -> list[GateWindow]:
    """One for each instance of the newest scrape; outcomes, refusals and queue are those of the whole gate."""
    scrapes = [_own_labels(scrape) for scrape in scrapes]
    found = identities(scrapes[-1], (POOL,))
    parted = [Parted(scrape, ("instance",)) for scrape in scrapes]
    instances = dict.fromkeys(one.get("instance", "") for one in found)
    return [_window(instance, [part.of({"instance": instance}) for part in parted]) for instance in instances]


def _own_labels(scrape: Scrape) -> Scrape:
    """A Prometheus server puts its own `instance` on all series, and calls the gate's own `exported_instance`."""
    samples = []
    for sample in scrape.samples:
        labels = dict(sample.labels)
        own = labels.pop("exported_instance", None)
        if own is not None:
            labels["instance"] = own
        elif sample.name not in _BY_INSTANCE:
            labels.pop("instance", None)
        samples.append(sample._replace(labels=labels))
    return scrape._replace(samples=tuple(samples))


def _window(instance: str, scrapes: Sequence[Scrape]) -> GateWindow:
    span = Span(scrapes, COUNTERS)
    sums = span.sums[-1]
    promised = sums.count(LEDGER_RESERVED)
    first, last = scrapes[0].at_s, scrapes[-1].at_s
    return GateWindow(
        instance=instance,
        window_s=None if span.alone or first is None or last is None else last - first,
        pool_blocks=sums.count(POOL),
        promised_blocks=sums.count(RESERVED) if promised is None else promised,
        held_blocks=sums.count(HELD),
        elsewhere_blocks=sums.count(ELSEWHERE),
        margin_blocks=sums.count(MARGIN),
        queue_requests=sums.count(QUEUE_REQUESTS),
        queue_tokens=sums.count(QUEUE_TOKENS),
        outcomes=span.grew_by(OUTCOMES, "outcome"),
        refusals=span.grew_by(REFUSALS, "reason"),
        token_drift=span.grew(DRIFT),
    )
