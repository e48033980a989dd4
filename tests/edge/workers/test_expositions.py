"""Several workers' expositions as one: counters and histograms are summed, gauges go by their own rule."""

import math

from prometheus_client.core import CounterMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from kvbudget.edge.control.admin import GAUGES, MERGED
from kvbudget.edge.control.demand import FORECAST_GAUGES
from kvbudget.edge.metrics import GateMetrics
from kvbudget.edge.workers.expositions import exposition, merged, worker_families


def own(gauges: str = "", finished: int = 0, waits: tuple[float, ...] = ()) -> str:
    metrics = GateMetrics()
    metrics.outcomes["finished"] += finished
    for wait_s in waits:
        metrics.queue_seconds.observe(wait_s)
    return gauges + exposition(metrics.collect()).decode()


def samples(*expositions: str) -> dict[str, float]:
    text = exposition(merged(expositions)).decode()
    return {
        sample.name + "".join(f"|{value}" for _, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def gauge(name: str, *values: tuple[str, float]) -> str:
    lines = [f'{name}{{instance="a",tenant="{tenant}"}} {value}\n' for tenant, value in values]
    return f"# HELP {name} Something.\n# TYPE {name} gauge\n" + "".join(lines)


def test_every_gauge_has_a_rule_by_which_those_of_several_workers_are_one() -> None:
    assert GAUGES.keys() == MERGED.keys()
    assert set(MERGED.values()) <= {"sum", "max", "min"}


def test_what_single_workers_foretell_is_left_out() -> None:
    for name in FORECAST_GAUGES:
        assert samples(gauge(name, ("", 1)), gauge(name, ("", 3))) == {}


def test_counters_and_histograms_are_summed() -> None:
    found = samples(own(finished=3, waits=(0.002, 7.0)), own(finished=4, waits=(0.002,)))
    assert found["kvbudget_requests_total|finished"] == 7
    assert found["kvbudget_queue_seconds_count"] == 3
    assert math.isclose(found["kvbudget_queue_seconds_sum"], 7.004)
    assert found["kvbudget_queue_seconds_bucket|0.0025"] == 2
    assert found["kvbudget_queue_seconds_bucket|+Inf"] == 3


def test_gauges_go_by_their_rule_and_series_that_only_one_has_are_kept() -> None:
    one = gauge("kvbudget_reserved_blocks", ("t", 10), ("u", 1)) + gauge("kvbudget_pool_blocks", ("", 64))
    other = gauge("kvbudget_reserved_blocks", ("t", 5), ("v", 2)) + gauge("kvbudget_pool_blocks", ("", 60))
    one += gauge("kvbudget_backend_up", ("", 1))
    other += gauge("kvbudget_backend_up", ("", 0))
    found = samples(one, other)
    assert found["kvbudget_reserved_blocks|a|t"] == 15
    assert found["kvbudget_reserved_blocks|a|u"] == 1
    assert found["kvbudget_reserved_blocks|a|v"] == 2
    assert found["kvbudget_pool_blocks|a|"] == 64
    assert found["kvbudget_backend_up|a|"] == 0


def test_what_no_rule_is_known_of_is_told_by_its_largest() -> None:
    assert samples(gauge("something_new", ("", 1)), gauge("something_new", ("", 3))) == {"something_new|a|": 3}


def test_text_types_and_help_stay_those_of_one() -> None:
    alone = own(finished=3)
    families = {family.name: family for family in text_string_to_metric_families(alone)}
    for family in merged([alone]):
        assert family.documentation == families[family.name].documentation
        assert family.type == families[family.name].type
        assert family.samples == families[family.name].samples


def test_which_workers_serve_is_told_beside() -> None:
    text = exposition(worker_families([(0, True, 0), (1, False, 3)], 7)).decode()
    assert "kvbudget_ledger_calls_total 7.0" in text
    assert 'kvbudget_worker_up{worker="0"} 1.0' in text
    assert 'kvbudget_worker_up{worker="1"} 0.0' in text
    assert 'kvbudget_worker_restarts_total{worker="1"} 3.0' in text


def test_no_worker_at_all_is_an_empty_exposition() -> None:
    assert exposition(merged([])) == b""
    assert isinstance(next(iter(worker_families([])[1:])), CounterMetricFamily)
