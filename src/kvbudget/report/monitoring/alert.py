"""Decides what an alert is: a question with a duration, words with numbers, and the scenes that prove it.

An alert without a scene in which it fires, and one that looks alike and in which it does not, cannot be written down.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple


class Severity(StrEnum):
    """CRITICAL: requests fail now. WARNING: they wait, are refused, or soon will be. INFO: money or a blind spot."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


class Scene(NamedTuple):
    """What Prometheus has seen, and which alerts fire then. `series`: values `step_minutes` apart, in promtool's form.

    `at`: when it is looked. `fired`: every alert that fires, as "NAME" or "NAME seen_by", in any order.
    """

    story: str
    series: Mapping[str, str]
    at: str
    fired: tuple[str, ...] = ()
    step_minutes: int = 1


class Alert(NamedTuple):
    """`seen_by`: whose metrics tell of it (the same trouble may be seen from several sides, under one name and one
    runbook). `code`: the finding of `kvbudget diagnose` that it is, "" if it is none. `minutes`: for how long.

    `summary` holds Prometheus's templates; `told` is what it says in `scene`, where the alert has `labels` beside those
    of the rule. `near`: scenes that look alike, and the other ways to it.
    """

    name: str
    seen_by: str
    severity: Severity
    promql: str
    minutes: int
    summary: str
    meaning: str
    first: str
    scene: Scene
    told: str
    labels: Mapping[str, str]
    near: tuple[Scene, ...]
    code: str = ""

    @property
    def added_labels(self) -> dict[str, str]:
        """What Alertmanager routes by, beside the labels of the series."""
        labels = {"severity": self.severity.value, "seen_by": self.seen_by}
        return labels | ({"code": self.code} if self.code else {})


class Record(NamedTuple):
    """A figure that is computed once and asked for by several: `name` is LABELS:WHAT:HOW, as Prometheus advises."""

    name: str
    promql: str


class Group(NamedTuple):
    """Rules that are computed together, in this order."""

    name: str
    records: tuple[Record, ...]
    alerts: tuple[Alert, ...]

    @property
    def rules(self) -> list[Record | Alert]:
        """All of them, in the order in which they are computed."""
        return [*self.records, *self.alerts]
