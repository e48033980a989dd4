"""Decides what a finding is: a code, what was seen, how sure it is, what would refute it, and what to do first."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

SCHEMA = "kvbudget.diagnose/1"
WINDOW = "window_s"  # of all evidence; None where two files do not tell how far apart they are
Evidence = Mapping[str, float | str | None]


class Severity(StrEnum):
    """How bad: users suffer or will within minutes; something is lost; worth knowing."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


class Cost(StrEnum):
    """What an action takes, in the order in which to try them."""

    FREE = "free"
    QUALITY = "quality"
    MONEY = "money"


class Lever(StrEnum):
    """What an action turns. A planner that knows model and card can say what comes of it (`cli/diagnosing/`)."""

    LOWER_CONCURRENCY = "lower concurrency"
    RAISE_THE_LIMIT = "raise the limit"
    SHORTEN_CONTEXT = "shorten the context"
    EIGHT_BIT_CACHE = "8-bit KV cache"
    EIGHT_BIT_WEIGHTS = "quantise the weights"
    MORE_CARDS = "twice the cards for one engine"
    REPLICA = "one more replica"


class Action(NamedTuple):
    """One thing to do. `expected`: what moves then, and where it is seen. `value`: what to turn the lever to."""

    what: str
    cost: Cost
    expected: str
    lever: Lever | None = None
    value: int | None = None


class Sure(NamedTuple):
    """`level`: low, medium or high; `why`: what it rests on."""

    level: str
    why: str


_LEVELS = ("low", "medium", "high")
CERTAIN = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is so. `evidence`: figures by name, the unit last in the name. `where`: the engines or instances
    that it holds for, empty when there is one alone. `collect`: what would have to be seen to say more. `note`: no
    verdict here, whatever its code."""

    code: str
    severity: Severity
    message: str
    evidence: Evidence
    sure: Sure
    refuted_by: str
    actions: tuple[Action, ...]
    where: tuple[str, ...] = ()
    collect: tuple[str, ...] = ()
    note: bool = False

    @property
    def certainty(self) -> int:
        """0 low, 1 medium, 2 high."""
        return _LEVELS.index(self.sure.level)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`verdict`: the code of the most causal finding, healthy or insufficient_data. `findings` in order of cause."""

    verdict: str
    findings: tuple[Finding, ...]
    sources: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def first(self) -> Finding:
        """The finding that the verdict names."""
        return next(finding for finding in self.findings if finding.code == self.verdict)


def document(diagnosis: Diagnosis) -> dict[str, object]:
    """kvbudget.diagnose/1, plain values only."""
    return {
        "schema": SCHEMA,
        "verdict": diagnosis.verdict,
        "findings": [_finding(finding) for finding in diagnosis.findings],
        "sources": list(diagnosis.sources),
        "notes": list(diagnosis.notes),
        "problems": list(diagnosis.problems),
    }


def _finding(finding: Finding) -> dict[str, object]:
    told: dict[str, object] = {
        "code": finding.code,
        "severity": finding.severity.value,
        "message": finding.message,
        "evidence": {name: value for name, value in finding.evidence.items() if value is not None or name == WINDOW},
        "confidence": finding.sure.level,
        "confidence_why": finding.sure.why,
        "refuted_by": finding.refuted_by,
        "actions": [
            {"what": action.what, "cost": action.cost.value, "expected": action.expected} for action in finding.actions
        ],
    }
    if finding.where:
        told["where"] = list(finding.where)
    if finding.collect:
        told["collect"] = list(finding.collect)
    return told
