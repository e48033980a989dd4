"""Decides how a dashboard becomes Grafana's JSON (schema 41, of Grafana 11.6): one datasource, core panels only."""

import json
from typing import Any, Final

from kvbudget.report.monitoring.panel import Dashboard, Kind, Panel, Query, Unit, Variable

SCHEMA_VERSION: Final = 41
_COLUMNS: Final = 24
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_GREEN, _YELLOW, _RED = "green", "yellow", "red"


def grafana_json(dashboard: Dashboard) -> str:
    """The file to import or to provision."""
    return json.dumps(_model(dashboard), indent=2, allow_nan=False) + "\n"


def _model(dashboard: Dashboard) -> dict[str, Any]:
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.text,
        "tags": ["kvbudget", "llm", "kv-cache"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,  # one cross-hair over all panels
        "timezone": "browser",
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "10s",
        "annotations": {"list": []},
        "links": [],
        "templating": {"list": [_datasource(), *map(_variable, dashboard.variables)]},
        "panels": _panels(dashboard),
    }


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "refresh": 1}


def _variable(variable: Variable) -> dict[str, Any]:
    query = f"label_values({variable.metric}, {variable.label})"
    return {
        "name": variable.name,
        "label": variable.title,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"qryType": 1, "query": query, "refId": f"values-of-{variable.name}"},
        "refresh": 2,  # with the time range: engines come and go
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",  # also series that lack the label
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _panels(dashboard: Dashboard) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    top = 0
    for row in dashboard.rows:
        place = {"h": 1, "w": _COLUMNS, "x": 0, "y": top}
        made.append({"id": len(made) + 1, "type": "row", "title": row.title, "collapsed": False, "gridPos": place})
        top += 1
        left = tallest = 0
        for panel in row.panels:
            if left + panel.width > _COLUMNS:
                top, left, tallest = top + tallest, 0, 0
            place = {"h": panel.height, "w": panel.width, "x": left, "y": top}
            made.append(_panel(len(made) + 1, panel, place))
            left, tallest = left + panel.width, max(tallest, panel.height)
        top += tallest
    return made


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    return {
        "id": number,
        "type": panel.kind.value,
        "title": panel.title,
        "description": panel.text,
        "datasource": _SOURCE,
        "gridPos": place,
        "targets": [_target(index, query, panel.kind) for index, query in enumerate(panel.queries)],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": _overrides(panel)},
        "options": _options(panel),
        **({"transformations": _TABLE_COLUMNS} if panel.kind is Kind.TABLE else {}),
    }


def _target(index: int, query: Query, kind: Kind) -> dict[str, Any]:
    instant = query.instant or kind is Kind.TABLE
    return {
        "refId": chr(ord("A") + index),
        "datasource": _SOURCE,
        "editorMode": "code",
        "expr": query.promql,
        "legendFormat": query.legend,
        "range": not instant,
        "instant": instant,
        **({"format": "table"} if kind is Kind.TABLE else {}),
    }


def _defaults(panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {
        "unit": panel.unit.value,
        "thresholds": _thresholds(panel.levels),
        "noValue": panel.none,
    }
    if panel.unit is Unit.SHARE or panel.kind is Kind.LINES:
        defaults["min"] = 0
    if panel.most is not None and not _two_axes(panel):
        defaults["max"] = panel.most
    if panel.kind is Kind.LINES:
        defaults["color"] = {"mode": "palette-classic"}
        defaults["custom"] = {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 40 if panel.stacked else 5,
            "showPoints": "never",
            "spanNulls": False,  # a gap is a gap: the target was not there
            "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
            "thresholdsStyle": {"mode": "line" if panel.levels else "off"},
        }
    elif panel.kind is Kind.STATES:
        defaults["color"] = {"mode": "thresholds"}
        defaults["custom"] = {"fillOpacity": 70, "lineWidth": 0}
    else:
        defaults["color"] = {"mode": "thresholds"}
    return defaults


def _thresholds(levels: tuple[float, float] | None) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": _GREEN, "value": None}]
    if levels:
        steps += [{"color": _YELLOW, "value": levels[0]}, {"color": _RED, "value": levels[1]}]
    return {"mode": "absolute", "steps": steps}


def _overrides(panel: Panel) -> list[dict[str, Any]]:
    """By the letter of the query, as legends may hold labels."""
    made = []
    for index, query in enumerate(panel.queries):
        properties: list[dict[str, Any]] = []
        if query.right is not None:
            properties += [
                {"id": "custom.axisPlacement", "value": "right"},
                {"id": "unit", "value": query.right.value},
                {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [6, 4]}},
                {"id": "custom.fillOpacity", "value": 0},
                {"id": "custom.thresholdsStyle", "value": {"mode": "off"}},
            ]
        elif panel.most is not None and _two_axes(panel):
            properties.append({"id": "max", "value": panel.most})
        if query.line:
            properties += [
                {"id": "custom.stacking", "value": {"mode": "none", "group": "A"}},
                {"id": "custom.fillOpacity", "value": 0},
                {"id": "custom.lineWidth", "value": 2},
            ]
        if properties:
            matcher = {"id": "byFrameRefID", "options": chr(ord("A") + index)}
            made.append({"matcher": matcher, "properties": properties})
    return made


def _two_axes(panel: Panel) -> bool:
    """Then the end of the left axis is said query by query: as a default it would hold for the right one."""
    return any(query.right is not None for query in panel.queries)


def _options(panel: Panel) -> dict[str, Any]:
    if panel.kind is Kind.FIGURE:
        return {
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "colorMode": "value",
            "graphMode": "area",
            "textMode": "auto",
        }
    if panel.kind is Kind.STATES:
        return {"showValue": "never", "rowHeight": 0.8, "mergeValues": True, "legend": _LEGEND}
    if panel.kind is Kind.TABLE:
        return {"showHeader": True}
    return {"legend": _LEGEND, "tooltip": {"mode": "multi", "sort": "desc"}}


_LEGEND: Final = {"showLegend": True, "displayMode": "list", "placement": "bottom", "calcs": []}
_TABLE_COLUMNS: Final = [
    {
        "id": "organize",
        "options": {"excludeByName": {"Time": True, "Value": True, "__name__": True, "job": True}, "renameByName": {}},
    }
]
