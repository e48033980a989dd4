"""Decides what `/metrics` says of several workers together: one exposition made out of theirs."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from kvbudget.edge.control.admin import MERGED
from kvbudget.edge.control.demand import FORECAST_GAUGES

_REDUCE: Final[Mapping[str, Callable[[Sequence[float]], float]]] = {"sum": math.fsum, "max": max, "min": min}
_Key = tuple[str, tuple[tuple[str, str], ...]]

WORKER_METRICS: Final = {
    "kvbudget_worker_up": "With --workers: 1 while this worker process serves, else 0.",
    "kvbudget_worker_restarts_total": "With --workers: how often another process took this worker's place.",
    "kvbudget_ledger_calls_total": "With --workers and their own ledger: how often a worker called it.",
}


def merged(expositions: Iterable[str]) -> list[Metric]:
    """Counters and histograms are summed, gauges by their own rule; families and samples in the order of the first.
    Without forecasts: what one worker foretells of its part of the traffic is none (`edge.workers.demand`).
    """
    families: dict[str, Metric] = {}
    values: dict[str, dict[_Key, list[float]]] = {}
    for text in expositions:
        for family in text_string_to_metric_families(text):
            if family.name in FORECAST_GAUGES:
                continue
            families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            found = values.setdefault(family.name, {})
            for sample in family.samples:
                found.setdefault((sample.name, tuple(sorted(sample.labels.items()))), []).append(sample.value)
    for name, family in families.items():
        rule = MERGED.get(name, "max") if family.type == "gauge" else "sum"
        family.samples = [
            Sample(sample_name, dict(labels), _REDUCE[rule](seen))
            for (sample_name, labels), seen in values[name].items()
        ]
    return list(families.values())


def worker_families(stands: Iterable[tuple[int, bool, int]], ledger_calls: int | None = None) -> list[Metric]:
    """`stands`: number, whether it serves, and restarts of each. `ledger_calls`: None where the ledger is elsewhere."""
    up_name, restarts_name, calls_name = WORKER_METRICS
    up = GaugeMetricFamily(up_name, WORKER_METRICS[up_name], labels=["worker"])
    restarts = CounterMetricFamily(
        restarts_name.removesuffix("_total"), WORKER_METRICS[restarts_name], labels=["worker"]
    )
    for number, is_up, count in stands:
        up.add_metric([str(number)], float(is_up))
        restarts.add_metric([str(number)], count)
    if ledger_calls is None:
        return [up, restarts]
    return [
        up,
        restarts,
        CounterMetricFamily(calls_name.removesuffix("_total"), WORKER_METRICS[calls_name], ledger_calls),
    ]


def exposition(families: Iterable[Metric]) -> bytes:
    """As Prometheus reads it."""
    registry = CollectorRegistry()
    registry.register(_Given(list(families)))
    return generate_latest(registry)


class _Given(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families
