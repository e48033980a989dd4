"""The dashboards and rules ask for what a real vLLM exports: every name, every label, and data in every panel.

With KVBUDGET_RECORD=FILE the figures of the run are written there: what tests/report/monitoring/data holds came so.
"""

import json
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from kvbudget.report.monitoring.files import GROUPS
from kvbudget.report.monitoring.gate_panels import GATE_BOARD
from kvbudget.report.monitoring.rule_files import RULES_FILE, rules_text
from kvbudget.report.monitoring.stack import scrape_configs
from kvbudget.report.monitoring.vllm_panels import VLLM_BOARD
from prometheus import Series, empty_panels, grouping_in, running_prometheus, series_in

if TYPE_CHECKING:
    from tests.engine.conftest import Engine, EngineFactory, Prompts

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]

CLIENTS = 8
RATE_INTERVAL = "10s"
STEP_S = 2.0
LOOKS = 12
FROM_PROMETHEUS = {"instance", "job"}
FIRING = 'max by (alertname) (ALERTS{alertstate="firing"})'
REMOVED = "vllm:gpu_cache_usage_perc"  # asked for by one rule, to say that the version is too old


@contextmanager
def load(engine: "Engine", prompts: "Prompts", shared_tokens: int = 200) -> Iterator[None]:
    """Clients that come back at once; their prompts begin alike, and together they want more than the pool."""
    over = threading.Event()
    shared = prompts.of(shared_tokens, "shared")

    def client(number: int) -> None:
        with httpx.Client(base_url=engine.url, timeout=60) as http:
            turn = 0
            while not over.is_set():
                turn += 1
                text = shared + prompts.of(40, f"own{number}x{turn}")
                body: dict[str, Any] = {"model": "tiny", "prompt": text, "max_tokens": 200, "ignore_eos": True}
                with http.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
                    for _ in answer.iter_bytes():
                        if over.is_set():
                            break

    clients = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    for one in clients:
        one.start()
    try:
        yield
    finally:
        over.set()
        for one in clients:
            one.join()


def asked() -> list[str]:
    """Every query about vLLM: panels, recorded figures, alerts."""
    panels = [query.promql for board in (VLLM_BOARD, GATE_BOARD) for panel in board.panels for query in panel.queries]
    rules = [rule.promql for group in GROUPS for rule in group.rules]
    return [promql for promql in (*panels, *rules) if "vllm:" in promql]


def test_every_name_and_label_that_is_asked_for_is_exported_by_vllm(vllm: "Engine") -> None:
    exported: dict[str, set[str]] = {}
    for name, labels, _ in vllm.samples(vllm.url):
        exported.setdefault(name, set()).update(labels)
    assert REMOVED not in exported
    wrong: list[tuple[str, object]] = []
    for promql in asked():
        wanted = [series for series in series_in(promql) if series.name.startswith("vllm:") and series.name != REMOVED]
        wrong += [(promql, series) for series in wanted if not _known(series, exported)]
        known = FROM_PROMETHEUS.union(*[exported.get(series.name, set()) for series in wanted])
        if REMOVED not in promql:
            wrong += [(promql, label) for label in grouping_in(promql) - known]
    assert wrong == []
    assert len(asked()) > 50


def _known(series: Series, exported: dict[str, set[str]]) -> bool:
    return series.name in exported and series.labels <= exported[series.name] | FROM_PROMETHEUS


def test_no_panel_of_a_vllm_under_load_is_empty_and_every_rule_can_be_computed(
    vllm: "Engine", prompts: "Prompts", tmp_path: Path, figures: list[str]
) -> None:
    (tmp_path / RULES_FILE).write_text(rules_text(GROUPS, "runbooks"))
    with load(vllm, prompts), running_prometheus(tmp_path, _config(vllm)) as prometheus:
        record = os.environ.get("KVBUDGET_RECORD")
        if record:
            Path(record).write_text(_recorded(vllm))
        prometheus.wait_for("count_over_time(vllm:num_requests_running[1m]) >= 8")
        prometheus.wait_for("sum(rate(vllm:request_success_total[10s])) > 0")
        empty = empty_panels(prometheus, VLLM_BOARD, RATE_INTERVAL)
        broken = [f"{rule['name']}: {rule['lastError']}" for rule in prometheus.rules() if rule["health"] == "err"]
    assert empty == []
    assert broken == []
    figures.append(f"dashboards: {len(VLLM_BOARD.panels)} panels of a real vLLM, none of them empty")


def test_a_real_vllm_with_few_places_is_told_from_a_full_one_and_an_idle_one_is_left_alone(
    start_engine: "EngineFactory", prompts: "Prompts", tmp_path: Path
) -> None:
    """The written rules with all durations cut to seconds: 2 of 8 clients run, in a third of the pool."""
    with start_engine("alerts", "--max-num-seqs=2") as engine:
        (tmp_path / RULES_FILE).write_text(_hurried(rules_text(GROUPS, "runbooks")))
        with running_prometheus(tmp_path, _config(engine)) as prometheus:
            with load(engine, prompts, shared_tokens=10):
                prometheus.wait_for(f"{FIRING} == 1", within_s=90)
                during = {labels["alertname"] for labels, _ in prometheus.ask(FIRING)}
            prometheus.wait_for(f"absent({FIRING})", within_s=90)
            prometheus.wait_for("max_over_time(vllm:num_requests_running[5s]) == 0", within_s=90)
            after = prometheus.ask(FIRING)
    assert "KvbudgetSequencesFull" in during
    assert during <= {"KvbudgetSequencesFull", "KvbudgetQueueSlow"}
    assert after == []


def _config(engine: "Engine") -> dict[str, Any]:
    """Looks every second; the engine alone."""
    targets = {"static_configs": [{"targets": [engine.url.removeprefix("http://")]}]}
    return {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [RULES_FILE],
        "scrape_configs": scrape_configs([], targets),
    }


def _hurried(rules: str) -> str:
    """Windows of minutes become 8 s, of hours and days 60 s, and a condition has to hold for 2 s."""
    minutes = re.sub(r"\[\d+m\]", "[8s]", rules)
    return re.sub(r"for: \d+m", "for: 2s", re.sub(r"\[\d+[hd]\]", "[60s]", minutes))


def _recorded(vllm: "Engine") -> str:
    """One line for each of vLLM's series: its name and labels, a tab, its value at every look."""
    looks: list[dict[str, float]] = []
    begun = time.monotonic()
    for number in range(LOOKS):
        time.sleep(max(0.0, begun + number * STEP_S - time.monotonic()))
        looks.append(
            {
                _written(name, labels): value
                for name, labels, value in vllm.samples(vllm.url)
                if name.startswith("vllm:") and not name.endswith("_created")
            }
        )
    lines = [
        f"{series}\t{' '.join(f'{look[series]:g}' if series in look else '_' for look in looks)}"
        for series in looks[-1]
    ]
    return f"# vLLM 0.32, a look every {STEP_S:g} s, {CLIENTS} clients\n" + "\n".join(lines) + "\n"


def _written(name: str, labels: dict[str, str]) -> str:
    return name + "{" + ",".join(f"{label}={json.dumps(value)}" for label, value in labels.items()) + "}"
