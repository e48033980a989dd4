"""Recordings are put into a real Prometheus: no panel of the engines' dashboards is empty on a fresh import.

`vllm-0.32.series` is of a real vLLM (tests/engine/test_dashboards.py wrote it). `sglang.series` is made: no SGLang runs
without a card. Its names and labels are those of `srt/observability/metrics_collector.py` on main in 2026, its values
are ours.
"""

from pathlib import Path

import pytest
from prometheus import filled_in, grouping_in, promtool, running_prometheus, series_in

from kvbudget.report.monitoring.files import GROUPS
from kvbudget.report.monitoring.panel import Dashboard
from kvbudget.report.monitoring.sglang_panels import SGLANG_BOARD
from kvbudget.report.monitoring.vllm_panels import VLLM_BOARD

DATA = Path(__file__).parent / "data"
RECORDINGS = {"vllm-0.32.series": VLLM_BOARD, "sglang.series": SGLANG_BOARD}
BEGUN_S = 1_750_000_000
STEP_S = 5
FROM_PROMETHEUS = {"instance", "job"}
REMOVED = "vllm:gpu_cache_usage_perc"


def recorded(name: str) -> dict[str, list[str]]:
    """Values by series; `_` where there was none yet."""
    lines = (DATA / name).read_text().splitlines()
    return {line.split("\t")[0]: line.split("\t")[1].split() for line in lines if not line.startswith("#")}


def openmetrics(series: dict[str, list[str]]) -> str:
    """As promtool takes it, with what a scrape adds."""
    lines = []
    for name, values in series.items():
        scraped = name.replace("{", '{instance="e1:8000",job="engine",', 1)
        lines += [f"{scraped} {value} {BEGUN_S + i * STEP_S}" for i, value in enumerate(values) if value != "_"]
    return "\n".join([*lines, "# EOF", ""])


@pytest.mark.timeout(120)
def test_no_panel_of_the_engines_is_empty_on_recorded_data(tmp_path: Path) -> None:
    for name in RECORDINGS:
        (tmp_path / name).write_text(openmetrics(recorded(name)))
        made = promtool("tsdb", "create-blocks-from", "openmetrics", name, "data", folder=tmp_path)
        assert made.returncode == 0, made.stderr
    with running_prometheus(tmp_path, {"scrape_configs": []}) as prometheus:
        for name, board in RECORDINGS.items():
            looks = max(len(values) for values in recorded(name).values())
            at_s = BEGUN_S + (looks - 1) * STEP_S
            empty = [
                f"{panel.title}: {query.promql}"
                for panel in board.panels
                for query in panel.queries
                if prometheus.empty(filled_in(query.promql, "30s"), at_s)
            ]
            assert empty == [], name


@pytest.mark.parametrize("name", RECORDINGS)
def test_every_name_and_label_is_one_that_was_recorded(name: str) -> None:
    exported: dict[str, set[str]] = {}
    for series in recorded(name):
        metric, _, labels = series.partition("{")
        exported.setdefault(metric, set()).update(pair.split("=")[0] for pair in labels.rstrip("}").split('",'))
    prefix = name.partition("-")[0].partition(".")[0] + ":"
    wrong: list[tuple[str, object]] = []
    for promql in [*_of(RECORDINGS[name]), *_rules()]:
        wanted = [series for series in series_in(promql) if series.name.startswith(prefix)]
        if not wanted or REMOVED in promql:
            continue
        wrong += [
            (promql, one) for one in wanted if not one.labels <= exported.get(one.name, set()) | FROM_PROMETHEUS
        ]
        known = FROM_PROMETHEUS.union(*[exported.get(one.name, set()) for one in wanted])
        wrong += [(promql, label) for label in grouping_in(promql) - known]
        wrong += [(promql, one.name) for one in wanted if one.name not in exported]
    assert wrong == []


def _of(board: Dashboard) -> list[str]:
    return [query.promql for panel in board.panels for query in panel.queries]


def _rules() -> list[str]:
    return [rule.promql for group in GROUPS for rule in (*group.records, *group.alerts)]
