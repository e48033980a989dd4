"""Every alert fires on its scene, alone and with the right numbers, and keeps silent where it only looks alike."""

import re
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from kvbudget.diagnose.verdict import CODES
from kvbudget.report.monitoring.alert import Alert, Severity
from kvbudget.report.monitoring.files import GROUPS, monitoring_files
from kvbudget.report.monitoring.rule_files import RULES_FILE, rules_text
from prometheus import promtool

ROOT = Path(__file__).resolve().parents[3]
FILES = monitoring_files()
TESTS = [name for name in FILES if name.endswith(".test.yaml")]
ALERTS = [alert for group in GROUPS for alert in group.alerts]
PAGES = ROOT / "docs" / "runbooks"
# Of kvbudget diagnose, and of `forecast`.
CAUSES = {"", "forecast", *CODES}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (RULES_FILE, *TESTS):
        (tmp_path / name).write_text(FILES[name])
    return tmp_path


def test_promtool_takes_the_rules(folder: Path) -> None:
    checked = promtool("check", "rules", RULES_FILE, folder=folder)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    rules = sum(len(group.records) + len(group.alerts) for group in GROUPS)
    assert f"{rules} rules found" in checked.stdout


def test_the_readme_counts_the_alerts_and_their_scenes() -> None:
    scenes = sum(len(yaml.safe_load(FILES[name])["tests"]) for name in TESTS)
    assert scenes == sum(1 + len(alert.near) for alert in ALERTS)
    told = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"| {len(ALERTS)} of {len(ALERTS)}, {scenes} scenes |" in told
    assert f"{len(ALERTS)} Prometheus alerts with their tests" in told


@pytest.mark.timeout(400)  # 6 s of CPU, on a machine that may be busy with much else
@pytest.mark.parametrize("name", TESTS)
def test_promtool_sees_every_alert_fire_on_its_scene_and_no_other(folder: Path, name: str) -> None:
    tested = promtool("test", "rules", name, folder=folder)
    assert tested.returncode == 0, tested.stdout + tested.stderr


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("gate_instance:kvbudget_held:ratio < 0.8", "gate_instance:kvbudget_held:ratio < 0.99"),
        ("(rate(vllm:num_preemptions_total[5m]))", "(vllm:num_preemptions_total)"),
    ],
    ids=["budget full beside a full pool", "preemptions of last week"],
)
def test_promtool_sees_a_rule_that_was_damaged(folder: Path, right: str, wrong: str) -> None:
    text = FILES[RULES_FILE]
    assert right in text
    (folder / RULES_FILE).write_text(text.replace(right, wrong))
    few = yaml.safe_load(FILES["rules.test.yaml"])
    wanted = ("all is promised and all is used", "480 preemptions of last week, idle since")
    few["tests"] = [test for test in few["tests"] if test["name"] in wanted]
    assert len(few["tests"]) == 2
    (folder / "few.test.yaml").write_text(yaml.safe_dump(few))
    assert promtool("test", "rules", "few.test.yaml", folder=folder).returncode == 1


def test_every_alert_has_a_page_and_every_page_an_alert() -> None:
    assert {page.stem for page in PAGES.glob("*.md")} - {"README"} == {alert.name for alert in ALERTS}


def test_the_index_of_the_pages_tells_severity_and_who_sees_it() -> None:
    listed = re.findall(
        r"^\| \[(\w+)\]\((\w+)\.md\) \| (\w+) \| ([\w, ]+) \|$", (PAGES / "README.md").read_text(), re.M
    )
    names = dict.fromkeys(alert.name for alert in ALERTS)
    assert sorted(listed) == sorted(
        (name, name, same[0].severity.value, ", ".join(alert.seen_by for alert in same))
        for name in names
        for same in ([alert for alert in ALERTS if alert.name == name],)
    )


@pytest.mark.parametrize("page", sorted(PAGES.glob("Kvbudget*.md")), ids=lambda page: page.stem)
def test_a_page_says_what_it_means_how_to_confirm_it_and_what_to_do_by_cost(page: Path) -> None:
    text = page.read_text()
    assert text.startswith(f"# {page.stem}\n")
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert headings == ["What it means", "Confirm", "Do first"]
    assert "**Free**" in text
    assert len(text.split()) < 400


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: f"{alert.name}-{alert.seen_by}")
def test_an_alert_can_be_routed_and_says_what_to_do(alert: Alert) -> None:
    assert alert.name.startswith("Kvbudget")
    assert alert.near, "a scene that looks alike is missing"
    assert alert.code in CAUSES
    assert alert.first.split(":")[0] in ("Free", "Money")
    assert "$value" in alert.summary or "$labels" in alert.summary
    assert alert.severity is not Severity.CRITICAL or alert.minutes <= 5


def test_one_name_and_side_stand_once() -> None:
    sides = [(alert.name, alert.seen_by) for alert in ALERTS]
    assert len(sides) == len(set(sides))


def test_runbooks_may_be_served_elsewhere() -> None:
    text = rules_text(GROUPS, "https://git.example.org/runbooks")
    assert "runbook_url: https://git.example.org/runbooks/KvbudgetPoolFull.md" in text


def test_counters_are_never_read_as_they_stand() -> None:
    for group in GROUPS:
        for rule in group.rules:
            for counter in re.finditer(r"[\w:]+_total\b(?:\{[^}]*\})?(\[\w+\])?", rule.promql):
                assert counter[1], f"{rule.name}: {counter[0]} is since the start; take its rate or increase"
