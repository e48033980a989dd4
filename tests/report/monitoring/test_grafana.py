"""Dashboards read as Grafana's own types, need no plugin, and compute rates and quantiles in the right order."""

import json
import re
from itertools import combinations
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard as GrafanaDashboard

from kvbudget.report.monitoring.files import DASHBOARDS
from kvbudget.report.monitoring.grafana import SCHEMA_VERSION, grafana_json
from kvbudget.report.monitoring.panel import Dashboard

CORE = {"row", "timeseries", "stat", "state-timeline", "table"}
boards = pytest.mark.parametrize("board", DASHBOARDS, ids=lambda board: board.uid)


def model(board: Dashboard) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(grafana_json(board))
    return made


def asked(board: Dashboard) -> list[str]:
    return [query.promql for panel in board.panels for query in panel.queries]


@boards
def test_grafana_s_own_types_take_it_and_lose_nothing(board: Dashboard) -> None:
    made = model(board)
    read = json.loads(JSONEncoder(sort_keys=True).encode(GrafanaDashboard.from_json(made)))
    assert _missing(made, read) == []
    assert made["schemaVersion"] == SCHEMA_VERSION == GrafanaDashboard().schema_version


def _missing(made: Any, read: Any, path: str = "") -> list[str]:
    """Members of ours that Grafana's types do not know, or read in another way."""
    if isinstance(made, dict) and isinstance(read, dict):
        return [
            wrong
            for key, value in made.items()
            for wrong in ([f"{path}.{key}"] if key not in read else _missing(value, read[key], f"{path}.{key}"))
        ]
    if isinstance(made, list) and isinstance(read, list) and len(made) == len(read):
        return [wrong for i, (one, other) in enumerate(zip(made, read, strict=True)) for wrong in
                _missing(one, other, f"{path}[{i}]")]  # fmt: skip
    return [] if made == read else [f"{path}: {made!r} is read as {read!r}"]


@boards
def test_it_needs_no_plugin_and_no_data_source_of_a_certain_name(board: Dashboard) -> None:
    made = model(board)
    assert {panel["type"] for panel in made["panels"]} <= CORE
    sources = re.findall(r'"uid": "([^"]*)"', grafana_json(board))
    assert set(sources) == {board.uid, "${datasource}"}
    assert made["templating"]["list"][0]["type"] == "datasource"


@boards
def test_panels_have_ids_of_their_own_and_do_not_lie_on_one_another(board: Dashboard) -> None:
    panels = model(board)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)


@boards
def test_every_panel_says_what_to_read_from_it(board: Dashboard) -> None:
    for panel in board.panels:
        assert panel.text.endswith("."), panel.title
        assert len(panel.queries) <= 26
    titles = [(row.title, panel.title) for row in board.rows for panel in row.panels]
    assert len(titles) == len(set(titles))


@boards
def test_every_variable_in_a_query_is_one_of_the_dashboard(board: Dashboard) -> None:
    named = {variable.name for variable in board.variables}
    used = {name for promql in asked(board) for name in re.findall(r"\$([a-z]+)", promql)}
    assert used <= named
    assert named <= used


@boards
def test_counters_are_asked_for_by_their_rate_and_quantiles_over_added_buckets(board: Dashboard) -> None:
    for promql in asked(board):
        for counter in re.finditer(r"[\w:]+_(?:total|sum|count|bucket)\{[^}]*\}(\[[^\]]+\])?", promql):
            assert counter[1], f"since the start: {promql}"
        assert "rate(sum" not in promql, f"the rate of a sum sees restarts as dips: {promql}"
        assert "avg(" not in promql, f"a mean over engines of different load: {promql}"
        if "histogram_quantile" in promql:
            assert re.search(r"sum by \((?:[\w, ]+, )?le\) \(rate\(", promql), promql


@boards
def test_nothing_was_lost_on_the_way(board: Dashboard) -> None:
    drawn = [panel for panel in model(board)["panels"] if panel["type"] != "row"]
    assert len(drawn) == len(board.panels) > 10
    assert [target["expr"] for panel in drawn for target in panel["targets"]] == asked(board)
