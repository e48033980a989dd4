"""What dashboards and rules ask of the gate is what it exports: every name, every label."""

import asyncio
from collections.abc import Iterable

import httpx
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from kvbudget.edge.control.admin import GAUGES
from kvbudget.edge.discovery.sources import Sought, source_of
from kvbudget.edge.engine.server import start_engine
from kvbudget.edge.engine.settings import EngineSettings
from kvbudget.edge.instances.settings import InstanceSettings
from kvbudget.edge.service import ServiceSettings, start_service
from kvbudget.edge.workers.expositions import exposition, worker_families
from kvbudget.gate.refusing.refusals import Outcome, Refusal
from kvbudget.report.monitoring.files import DASHBOARDS, GROUPS
from kvbudget.report.monitoring.gate_panels import NO_ROOM
from prometheus import grouping_in, series_in

# From the scrape: `gate` is set by the prometheus.yml that comes with it.
FROM_PROMETHEUS = {"instance", "job", "gate", "exported_instance"}


def exported() -> dict[str, set[str]]:
    """Names as scraped, and their labels, of a gate before an embedded engine that it has found."""

    async def families() -> list[Metric]:
        engine = await start_engine(EngineSettings(num_blocks=65, max_model_len=512))
        url = engine.url.replace("http://127.0.0.1", "dns://localhost")
        found = Sought(source_of(url), InstanceSettings(url))
        service = await start_service(ServiceSettings("", sources=(found,), port=0, admin_port=0))
        try:
            service.gateway.metrics.shadow_refusals["pool_full"] += 1
            service.demand.look()
            service.demand._minute -= 1  # a minute is over, and with it there is a forecast
            service.demand.look()
            async with httpx.AsyncClient(base_url=service.admin_url, timeout=20) as admin:
                text = (await admin.get("/metrics")).text
            workers = exposition(worker_families([(0, True, 0)], ledger_calls=1)).decode()  # what a parent adds
            return [*text_string_to_metric_families(text), *text_string_to_metric_families(workers)]
        finally:
            await service.close()
            await engine.close()

    return _names(asyncio.run(families()))


def _names(families: Iterable[Metric]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for family in families:
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def asked() -> list[str]:
    panels = [query.promql for board in DASHBOARDS for panel in board.panels for query in panel.queries]
    return [*panels, *[rule.promql for group in GROUPS for rule in group.rules]]


def test_every_name_and_label_that_is_asked_for_is_exported_by_the_gate() -> None:
    known = exported()
    wrong: list[tuple[str, object]] = []
    checked = 0
    for promql in asked():
        wanted = [series for series in series_in(promql) if series.name.startswith("kvbudget_")]
        checked += len(wanted)
        wrong += [(promql, one.name) for one in wanted if one.name not in known]
        wrong += [(promql, one) for one in wanted if not one.labels <= known.get(one.name, set()) | FROM_PROMETHEUS]
        labels = FROM_PROMETHEUS.union(*[known.get(one.name, set()) for one in wanted])
        if wanted:
            wrong += [(promql, label) for label in grouping_in(promql) - labels]
    assert wrong == []
    assert checked > 80


def test_every_variable_of_a_dashboard_is_a_label_of_what_it_is_read_from() -> None:
    known = exported()
    for board in DASHBOARDS:
        for variable in board.variables:
            if variable.metric.startswith("kvbudget_"):
                assert variable.label in known[variable.metric] | FROM_PROMETHEUS, variable


def test_reasons_and_outcomes_in_queries_are_those_of_the_gate() -> None:
    assert set(NO_ROOM.split("|")) <= {reason.value for reason in Refusal}
    text = "\n".join(asked())
    for outcome in ("upstream_failed", "engine_lost", "timed_out", "expired"):
        assert outcome in text
        assert outcome in {one.value for one in Outcome}


def test_the_gauges_that_are_watched_most_are_told_of_in_the_reference() -> None:
    assert {"kvbudget_sequences", "kvbudget_sequence_limit"} <= GAUGES.keys()
