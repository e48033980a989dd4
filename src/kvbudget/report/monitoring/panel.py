"""Decides what a dashboard is made of: rows of panels, each with the questions that it puts to Prometheus.

Nothing here knows Grafana's JSON, `grafana` makes that of it; the tests put the same questions to a real Prometheus.
"""

from enum import StrEnum
from typing import Final, NamedTuple


class Kind(StrEnum):
    """How a panel is drawn; all of them come with Grafana itself."""

    LINES = "timeseries"
    FIGURE = "stat"
    STATES = "state-timeline"
    TABLE = "table"


class Unit(StrEnum):
    """Grafana's names of units."""

    SHARE = "percentunit"  # 0 to 1
    WHOLE = "locale"  # blocks, tokens, requests: with thousands separators
    NUMBER = "short"  # 12.3 k
    SECONDS = "s"
    PER_SECOND = "cps"


class Query(NamedTuple):
    """One question. `promql` may hold dashboard variables and $__rate_interval. `legend`: Grafana's template.

    `right`: drawn on the right axis, which has the unit `right` then; `line`: over a stack, as a line of its own.
    `instant`: only the newest value is asked for.
    """

    promql: str
    legend: str
    right: Unit | None = None
    line: bool = False
    instant: bool = False


class Panel(NamedTuple):
    """`text` says in plain words what to read from it. `levels`: from where it is yellow, and red.

    `most`: the upper end of the axis, where there is one. `stacked`: the parts of a whole. `width` of 24, `height` in
    Grafana's rows of 30 pixels. `none`: what stands there when Prometheus has nothing.
    """

    title: str
    text: str
    unit: Unit
    queries: tuple[Query, ...]
    kind: Kind = Kind.LINES
    levels: tuple[float, float] | None = None
    most: float | None = None
    stacked: bool = False
    width: int = 8
    height: int = 8
    none: str = "No data"


def figure(
    title: str, text: str, unit: Unit, promql: str, levels: tuple[float, float] | None = None, width: int = 4
) -> Panel:
    """One number, read at a glance."""
    return Panel(title, text, unit, (Query(promql, ""),), Kind.FIGURE, levels, width=width, height=4)


class Row(NamedTuple):
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


class Variable(NamedTuple):
    """What can be chosen above a dashboard: the values of `label` in `metric`; all of them unless some are chosen."""

    name: str
    title: str
    metric: str
    label: str


class Dashboard(NamedTuple):
    """`uid` stays the same over versions, so that links to it do."""

    uid: str
    title: str
    text: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]

    @property
    def panels(self) -> list[Panel]:
        """All of them, in reading order."""
        return [panel for row in self.rows for panel in row.panels]


QUANTILES: Final = (0.5, 0.95, 0.99)


def quantiles(histogram: str, selector: str, by: str = "") -> tuple[Query, ...]:
    """p50, p95 and p99 of what was observed lately: buckets of every process are added up before the quantile is taken
    (a mean of quantiles, or a mean since the start, says nothing)."""
    within = f"{by}, le" if by else "le"
    prefix = " ".join(f"{{{{{label.strip()}}}}}" for label in by.split(",")) + " " if by else ""
    return tuple(
        [
            Query(
                f"histogram_quantile({share}, sum by ({within}) "
                f"(rate({histogram}_bucket{{{selector}}}[$__rate_interval])))",
                f"{prefix}p{round(share * 100)}",
            )
            for share in QUANTILES
        ]
    )


def per_second(counter: str, selector: str, by: str = "") -> str:
    """How fast a counter grows: the rate of every series first, then their sum, so that a restart of one is no dip."""
    over = f" by ({by})" if by else ""
    return f"sum{over} (rate({counter}{{{selector}}}[$__rate_interval]))"


def share_of(part: str, whole: str) -> str:
    """`part` / `whole`; 0 where the whole is nothing, rather than a gap."""
    return f"{part} / ({whole} > 0) or vector(0)"
