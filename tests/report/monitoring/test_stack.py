"""The stack for who has Docker holds together: what it mounts is written, what it names is there."""

import json
import re
import textwrap
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from kvbudget.cli.engine import add_arguments
from kvbudget.report.monitoring.files import monitoring_files
from kvbudget.report.monitoring.rule_files import RULES_FILE
from prometheus import promtool

ROOT = Path(__file__).resolve().parents[3]
FILES = monitoring_files(checkout="../../..")  # as seen from docs/examples/monitoring
EXAMPLE = ROOT / "docs" / "examples" / "monitoring"
COMPOSE: dict[str, Any] = yaml.safe_load(FILES["compose.yaml"])
# Members of a service by the Compose specification, as far as we use them.
MEMBERS = {"image", "build", "command", "entrypoint", "ports", "volumes", "environment", "profiles", "ipc", "deploy",
           "depends_on"}  # fmt: skip


def test_the_example_in_the_docs_is_what_the_command_writes() -> None:
    there = {str(path.relative_to(EXAMPLE)): path.read_text() for path in EXAMPLE.rglob("*") if path.is_file()}
    there.pop(".kvbudget-dashboards.json")
    assert there == FILES, "run: kvbudget dashboards --out docs/examples/monitoring --force"


def test_a_service_mounts_files_that_are_written_and_volumes_that_are_declared() -> None:
    for name, service in COMPOSE["services"].items():
        assert service.keys() <= MEMBERS, name
        for mount in service.get("volumes", []):
            source = mount.split(":")[0]
            if source.startswith("./"):
                assert any(path.startswith(source[2:]) for path in FILES), source
            else:
                assert source in COMPOSE["volumes"], source
        assert set(service.get("depends_on", [])) <= COMPOSE["services"].keys()


def test_ports_are_open_on_this_machine_alone() -> None:
    ports = [port for service in COMPOSE["services"].values() for port in service.get("ports", [])]
    assert {port.split(":")[2] for port in ports} == {"8800", "8801", "9090", "3000"}
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_without_a_profile_no_card_is_needed() -> None:
    started = {name for name, service in COMPOSE["services"].items() if "profiles" not in service}
    assert started == {"gate", "engine", "prometheus", "grafana"}
    assert "deploy" in COMPOSE["services"]["vllm"]


def test_the_image_is_built_from_files_that_are_there() -> None:
    build = COMPOSE["services"]["gate"]["build"]
    assert (ROOT / build["dockerfile"]).is_file()
    assert build["context"] == "${KVBUDGET_SOURCE:-../../..}"
    assert EXAMPLE.joinpath("../../..").resolve() == ROOT


def test_where_no_checkout_is_known_compose_asks_for_one() -> None:
    build = yaml.safe_load(monitoring_files()["compose.yaml"])["services"]["gate"]["build"]
    assert build["context"].startswith("${KVBUDGET_SOURCE:?set it to a checkout")


def test_the_readme_names_files_that_are_written_and_a_scrape_that_is_the_stack_s() -> None:
    text = FILES["README.md"]
    named = set(re.findall(r"[\w./-]+\.(?:json|yaml|yml)\b", text))
    there = {*FILES, *(path.rpartition("/")[2] for path in FILES)}
    assert {"prometheus.yml", "kvbudget.rules.yaml", "compose.yaml"} <= named <= there
    job = yaml.safe_load(textwrap.dedent(text.partition("```yaml\n")[2].partition("   ```")[0]))[0]
    own = yaml.safe_load(FILES["prometheus.yml"])["scrape_configs"][0]
    assert {**job, "static_configs": []} == {**own, "static_configs": []}


def test_the_flags_of_the_embedded_engine_are_known() -> None:
    import argparse

    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert parser.parse_args(COMPOSE["services"]["engine"]["command"]).num_blocks == 2049


def test_promtool_takes_the_configuration(tmp_path: Path) -> None:
    for name in ("prometheus.yml", RULES_FILE):
        (tmp_path / name).write_text(FILES[name])
    checked = promtool("check", "config", "prometheus.yml", folder=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_gate_s_names_of_engines_survive_the_scrape() -> None:
    jobs = {job["job_name"]: job for job in yaml.safe_load(FILES["prometheus.yml"])["scrape_configs"]}
    assert jobs["kvbudget"]["honor_labels"] is True
    assert jobs["kvbudget"]["relabel_configs"][0]["target_label"] == "gate"


def test_grafana_finds_dashboards_and_prometheus() -> None:
    provider = yaml.safe_load(FILES["provisioning/dashboards/kvbudget.yaml"])["providers"][0]
    mounts = [mount.split(":")[1] for mount in COMPOSE["services"]["grafana"]["volumes"]]
    assert provider["options"]["path"] in mounts
    source = yaml.safe_load(FILES["provisioning/datasources/prometheus.yaml"])["datasources"][0]
    assert source["url"] == "http://prometheus:9090"
    scrape = yaml.safe_load(FILES["prometheus.yml"])["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == scrape  # Grafana makes $__rate_interval of it
    for name in FILES:
        if name.endswith(".json"):
            json.loads(FILES[name])
