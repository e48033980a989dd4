"""Decides how alerts become Prometheus's rule file, and their scenes the unit tests that promtool runs."""

from collections.abc import Sequence
from typing import Any, Final

import yaml  # type: ignore[import-untyped]

from kvbudget.report.monitoring.alert import Alert, Group, Scene

RULES_FILE: Final = "kvbudget.rules.yaml"
_HEAD: Final = """\
# Made by `kvbudget dashboards`; make it anew rather than edit it. Check: promtool check rules {rules}
# Labels of every alert: severity (critical, warning, info), seen_by (whose metrics tell), code (of kvbudget diagnose).
"""
_TESTS_HEAD: Final = """\
# Made by `kvbudget dashboards`. Run: promtool test rules {tests}
# Every alert fires in its scene and alone, says the right numbers, and keeps silent where it only looks alike.
"""


class _Literal(str):
    """Text that keeps its lines."""

    __slots__ = ()


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    def ignore_aliases(self, data: Any) -> bool:
        """A label set that comes twice is written twice."""
        return True


_Dumper.add_representer(
    _Literal, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", str(text), style="|")
)


def yaml_text(document: Any) -> str:
    """As people write it: keys in their order, no aliases, long lines whole."""
    text: str = yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=4096, allow_unicode=True)
    return text


def rules_text(groups: Sequence[Group], runbooks: str) -> str:
    """The rule file. `runbooks`: where the pages are, without a slash at the end."""
    document = {
        "groups": [
            {
                "name": group.name,
                "rules": [
                    *[{"record": record.name, "expr": _promql(record.promql)} for record in group.records],
                    *[_rule(alert, runbooks) for alert in group.alerts],
                ],
            }
            for group in groups
        ]
    }
    return _HEAD.format(rules=RULES_FILE) + yaml_text(document)


def tests_texts(groups: Sequence[Group], runbooks: str) -> dict[str, str]:
    """The files for `promtool test rules` by name: one for each step of time, as promtool knows one for a file."""
    alerts = [alert for group in groups for alert in group.alerts]
    told = {(alert.name, alert.seen_by): alert for alert in alerts}
    tests: dict[int, list[dict[str, Any]]] = {}
    for alert in alerts:
        own = _test(alert.scene, told)
        own["alert_rule_test"] = [_told(alert, runbooks)]
        own["promql_expr_test"].append(_pended(alert))
        tests.setdefault(alert.scene.step_minutes, []).append(own)
        for scene in alert.near:
            tests.setdefault(scene.step_minutes, []).append(_test(scene, told))
    return {_tests_file(step): _tests_text(step, of_step, groups) for step, of_step in tests.items()}


def _tests_file(step_minutes: int) -> str:
    return "rules.test.yaml" if step_minutes == 1 else f"rules.{step_minutes}m.test.yaml"


def _tests_text(step_minutes: int, tests: list[dict[str, Any]], groups: Sequence[Group]) -> str:
    document = {
        "rule_files": [RULES_FILE],
        "evaluation_interval": f"{step_minutes}m",
        "group_eval_order": [group.name for group in groups],
        "tests": tests,
    }
    return _TESTS_HEAD.format(tests=_tests_file(step_minutes)) + yaml_text(document)


def _rule(alert: Alert, runbooks: str) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": _promql(alert.promql),
        **({"for": f"{alert.minutes}m"} if alert.minutes else {}),
        "labels": alert.added_labels,
        "annotations": _annotations(alert, runbooks),
    }


def _annotations(alert: Alert, runbooks: str) -> dict[str, str]:
    return {
        "summary": alert.summary,
        "description": alert.meaning,
        "action": alert.first,
        "runbook_url": f"{runbooks}/{alert.name}.md",
    }


def _promql(text: str) -> str:
    lines = text.strip("\n")
    return _Literal(lines + "\n") if "\n" in lines else lines


def _test(scene: Scene, told: dict[tuple[str, str], Alert]) -> dict[str, Any]:
    """Which alerts fire, and no other, by the series that Prometheus keeps of them."""
    firing = []
    for word in scene.fired:
        name, _, seen_by = word.partition(" ")
        sides = [alert for alert in told.values() if alert.name == name and seen_by in ("", alert.seen_by)]
        if len(sides) != 1:
            raise ValueError(f"{word!r} in {scene.story!r} names {len(sides)} alerts; write NAME seen_by")
        firing.append({"labels": f'{{alertname="{name}", seen_by="{sides[0].seen_by}"}}', "value": 1})
    return {
        "name": scene.story,
        "interval": f"{scene.step_minutes}m",
        "input_series": [{"series": name, "values": values} for name, values in scene.series.items()],
        "promql_expr_test": [
            {
                "expr": 'max by (alertname, seen_by) (ALERTS{alertstate="firing"})',
                "eval_time": scene.at,
                "exp_samples": firing,
            }
        ],
    }


def _pended(alert: Alert) -> dict[str, Any]:
    """For how long it was true before it fired: as long as the rule says, and no shorter."""
    looks = -(-alert.minutes // alert.scene.step_minutes)
    series = f'ALERTS{{alertname="{alert.name}", seen_by="{alert.seen_by}", alertstate="pending"}}'
    return {
        "expr": f"max(count_over_time({series}[2d]))",
        "eval_time": alert.scene.at,
        "exp_samples": [{"labels": "{}", "value": looks}] if looks else [],
    }


def _told(alert: Alert, runbooks: str) -> dict[str, Any]:
    annotations = _annotations(alert, runbooks) | {"summary": alert.told}
    return {
        "eval_time": alert.scene.at,
        "alertname": alert.name,
        "exp_alerts": [
            {"exp_labels": {**alert.added_labels, **alert.labels}, "exp_annotations": annotations},
        ],
    }
