"""The Compose file: every flag, port, path and variable of it is there, and nothing has more rights than it needs."""

from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from charts import PACKAGING, ROOT
from kvbudget.cli.main import parser_of
from kvbudget.cli.serving.backends import divided, instances_of
from kvbudget.cli.serving.flags import DEFAULTS
from kvbudget.edge.discovery.sources import DnsName

COMPOSE: dict[str, Any] = yaml.safe_load((PACKAGING / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
# Members of a service by the Compose specification, as far as we use them.
MEMBERS = {"image", "build", "command", "environment", "ports", "volumes", "read_only", "tmpfs", "cap_drop", "deploy",
           "security_opt", "stop_grace_period", "restart", "healthcheck", "ipc", "profiles", "depends_on"}  # fmt: skip


def test_every_member_is_one_of_the_specification() -> None:
    assert COMPOSE.keys() == {"name", "services", "volumes"}
    for name, service in SERVICES.items():
        assert service.keys() <= MEMBERS, name


def test_the_gates_flags_are_those_of_serve_and_it_finds_the_engines_by_name() -> None:
    command = [argument.replace("${KVBUDGET_LEDGER:-memory}", "memory") for argument in SERVICES["gate"]["command"]]
    args = parser_of("serve").parse_args(command)
    (_, (engines,)) = divided(instances_of(args.backend, None))
    assert isinstance(engines.source, DnsName)
    assert engines.source.host in SERVICES
    assert str(engines.source.port) in SERVICES[engines.source.host]["command"]


def test_what_is_mounted_and_built_is_there() -> None:
    for service in SERVICES.values():
        for mount in service.get("volumes", []):
            source = mount.split(":")[0]
            assert (PACKAGING / source).exists() if source.startswith("..") else source in COMPOSE["volumes"]
    build = SERVICES["gate"]["build"]
    context = Path(PACKAGING, build["context"]).resolve()
    assert context == ROOT
    assert (context / build["dockerfile"]).is_file()


def test_ports_are_open_on_this_machine_alone() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert {port.rpartition(":")[2] for port in ports} == {str(DEFAULTS[name]) for name in ("port", "admin_port")} | {
        "9090", "3000",
    }  # fmt: skip
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_docker_waits_for_the_drain() -> None:
    (drain,) = [argument for argument in SERVICES["gate"]["command"] if argument.startswith("--drain-seconds=")]
    assert int(SERVICES["gate"]["stop_grace_period"].removesuffix("s")) == int(drain.partition("=")[2]) + 10


@pytest.mark.parametrize("name", ["gate", "valkey"])
def test_what_is_ours_has_no_more_rights_than_it_needs(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]


def test_the_ledger_is_there_where_its_address_leads() -> None:
    text = (PACKAGING / "compose.yaml").read_text()
    assert "KVBUDGET_LEDGER=valkey://valkey:6379/0" in text
    assert SERVICES["valkey"]["profiles"] == ["ledger"]
    assert "noeviction" in SERVICES["valkey"]["command"]


def test_prometheus_asks_the_services_that_there_are() -> None:
    jobs = yaml.safe_load((ROOT / "docs" / "examples" / "monitoring" / "prometheus.yml").read_text())["scrape_configs"]
    gate, engine = jobs
    assert gate["static_configs"][0]["targets"] == [f"gate:{DEFAULTS['admin_port']}"]
    assert "gate" in SERVICES
    assert "vllm" in engine["dns_sd_configs"][0]["names"]
