"""The Helm chart, rendered by a real helm: it lints, is valid for Kubernetes, and says what the gate understands."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml  # type: ignore[import-untyped]
from cloudcoil.models.prometheus_operator import v1 as operator

from charts import CHART, NAMESPACE, PACKAGING, ROOT, VALUES, Manifest, of_kind, pods, rendered, run, tool
from kvbudget.cli.main import parser_of
from kvbudget.cli.serving.flags import DEFAULTS
from kvbudget.edge.control.admin import GAUGES
from kvbudget.edge.control.demand import FORECAST_GAUGES
from kvbudget.edge.metrics import GateMetrics
from kvbudget.gate.refusing.refusals import Refusal
from kvbudget.planner.advice.longcontext import Timeouts
from prometheus import promtool, series_in

VERSIONS = ("1.27", "1.31", "1.37")
CRDS: dict[str, Any] = {"ServiceMonitor": operator.ServiceMonitor, "PrometheusRule": operator.PrometheusRule}
EVERYTHING = "everything-values.yaml"
_PROGRAM = "/opt/kvbudget/bin/kvbudget"  # of docs/examples/deploy/Containerfile


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def everything(home: Path) -> list[Manifest]:
    return rendered(home, values=EVERYTHING)


def assert_valid(manifest: Manifest) -> None:
    """By the published schemas of several versions, where an unknown member is an error; of what is not Kubernetes'
    own, by the operator's types, which must take it without dropping anything."""
    kind = manifest["kind"]
    if kind in CRDS:
        read = CRDS[kind].model_validate(manifest)
        again = read.model_dump(mode="json", by_alias=True, exclude_unset=True)
        assert again["spec"] == manifest["spec"], "what the type does not know is dropped"
        return
    for version in VERSIONS:
        kubernetes_validate.validate(manifest, version, strict=True)


# It is a chart, and what it makes is valid


@pytest.mark.parametrize("values", [None, *VALUES])
def test_it_lints_and_what_it_makes_is_valid(home: Path, values: str | None) -> None:
    chosen = [] if values is None else ["--values", str(CHART / "ci" / values)]
    linted = run(tool("helm"), "lint", "--strict", str(CHART), *chosen, home=home)
    assert linted.returncode == 0, linted.stdout + linted.stderr
    found = rendered(home, values=values)
    assert len(found) > 3
    for manifest in found:
        assert_valid(manifest)
    names = [(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in found]
    assert len(names) == len(set(names))


def test_the_check_finds_a_member_that_does_not_exist(everything: list[Manifest]) -> None:
    (deployment, *_) = of_kind(everything, "Deployment")
    wrong = {**deployment, "spec": {**deployment["spec"], "replica": 2}}
    with pytest.raises(kubernetes_validate.ValidationError):
        assert_valid(wrong)
    (monitor,) = of_kind(everything, "ServiceMonitor")
    with pytest.raises(AssertionError, match="is dropped"):
        assert_valid({**monitor, "spec": {**monitor["spec"], "endpointz": []}})


def test_every_part_of_it_is_rendered_by_the_values_with_everything(everything: list[Manifest]) -> None:
    assert {one["kind"] for one in everything} == {
        "Deployment", "Service", "ConfigMap", "ServiceAccount", "Role", "RoleBinding", "PodDisruptionBudget", "Pod",
        "HorizontalPodAutoscaler", "ServiceMonitor", "PrometheusRule", "NetworkPolicy",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--set", "replicas=2"], "2 gates before the same engines need ledger.url"),
        (["--set", "autoscaling.enabled=true"], "6 gates before the same engines need ledger.url"),
        (["--set", "extproc.enabled=true"], "2 gates before the same engines need ledger.url"),
        (["--set", "backends=null"], "backends is empty"),
        (["--set", "replicas=2,ledger.url=redis://r:6379/0,learnedState.existingClaim=c"], "is for one gate"),
        (["--set", "backend=http://a:1"], "additional properties 'backend' not allowed"),
        (["--set", "backends={a:8000}"], "does not match pattern"),
        (["--set", "plan.total_s=soon"], "got string, want integer"),
    ],
)
def test_what_would_promise_a_pool_twice_or_is_no_value_is_refused(home: Path, flags: list[str], told: str) -> None:
    done = run(tool("helm"), "template", "x", str(CHART), *flags, home=home)
    assert done.returncode != 0
    assert told in done.stderr


def test_an_external_processor_alone_needs_no_ledger(home: Path) -> None:
    (gate, extproc) = of_kind(rendered(home, values="extproc-alone-values.yaml"), "Deployment")
    assert (gate["spec"]["replicas"], extproc["spec"]["replicas"]) == (0, 1)


# What it says is understood by the gate


def containers(found: list[Manifest]) -> list[tuple[str, Manifest]]:
    """(Command, container) of all that run kvbudget."""
    made = []
    for _, pod in pods(found):
        for container in pod["containers"]:
            if container["command"][0] == _PROGRAM:
                (command,) = container["command"][1:]
                made.append((command, container))
    return made


@pytest.mark.parametrize("values", [None, *VALUES])
def test_every_flag_is_one_of_the_command_and_takes_its_value(home: Path, values: str | None) -> None:
    checked = 0
    for command, container in containers(rendered(home, values=values)):
        parser_of(command).parse_args(container["args"])
        checked += len(container["args"])
    assert checked > 5


def test_ports_are_those_that_the_gate_listens_on_and_services_lead_there(everything: list[Manifest]) -> None:
    ports = {port["name"]: port["containerPort"] for _, one in containers(everything) for port in one["ports"]}
    assert ports == {"http": DEFAULTS["port"], "admin": DEFAULTS["admin_port"], "grpc": 9002}
    for _, container in containers(everything):
        args = dict(argument.partition("=")[::2] for argument in container["args"])
        own = {port["name"]: port["containerPort"] for port in container["ports"]}
        told = {"--port": "http", "--admin-port": "admin", "--grpc-port": "grpc"}
        assert {told[flag]: int(value) for flag, value in args.items() if flag in told} == own
    for service in of_kind(everything, "Service"):
        for port in service["spec"]["ports"]:
            assert port["targetPort"] in ports
    (policy,) = of_kind(everything, "NetworkPolicy")
    allowed = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
    assert allowed == set(ports.values())


def test_selectors_find_the_pods_and_the_monitor_the_service(everything: list[Manifest]) -> None:
    labels = [one["spec"]["template"]["metadata"]["labels"] for one in of_kind(everything, "Deployment")]
    selectors = [one["spec"]["selector"] for one in of_kind(everything, "Service")]
    selectors += [one["spec"]["selector"]["matchLabels"] for one in of_kind(everything, "PodDisruptionBudget")]
    selectors += [one["spec"]["podSelector"]["matchLabels"] for one in of_kind(everything, "NetworkPolicy")]
    selectors += [one["spec"]["selector"]["matchLabels"] for one in of_kind(everything, "Deployment")]
    counts = [sum(selector.items() <= one.items() for one in labels) for selector in selectors]
    assert sorted(counts) == [1, 1, 1, 1, 1, 1, 2, 2], "the admin service and the policy are of both kinds of pods"
    (monitor,) = of_kind(everything, "ServiceMonitor")
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    (service,) = [one for one in of_kind(everything, "Service") if wanted <= one["metadata"]["labels"].items()]
    assert monitor["spec"]["endpoints"][0]["port"] in {port["name"] for port in service["spec"]["ports"]}


def test_variables_are_ones_that_are_read(everything: list[Manifest]) -> None:
    read = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    names = {one["name"] for _, container in containers(everything) for one in container["env"]}
    assert {"KVBUDGET_ADMIN_TOKEN", "KVBUDGET_BACKEND_API_KEY", "KVBUDGET_LEDGER_PASSWORD"} < names
    assert {name for name in names if name not in read} == set()


def test_secrets_stand_in_no_argument(everything: list[Manifest]) -> None:
    for _, container in containers(everything):
        secret = [one for one in container["env"] if "valueFrom" in one]
        assert len(secret) == 3
        assert not [argument for argument in container["args"] if "$(" in argument]


def test_the_config_is_read_by_the_gate(everything: list[Manifest], tmp_path: Path) -> None:
    from kvbudget.edge.budget.file import read_budget

    (config,) = [one for one in of_kind(everything, "ConfigMap") if one["metadata"]["name"].endswith("-config")]
    path = tmp_path / "kvbudget.toml"
    path.write_text(config["data"]["kvbudget.toml"])
    assert read_budget(str(path))["gate"]["tenants"]["batch"]["weight"] == 0.25  # type: ignore[index]
    for _, container in containers(everything):
        assert "--config=/etc/kvbudget/kvbudget.toml" in container["args"]
        assert {"name": "config", "mountPath": "/etc/kvbudget", "readOnly": True} in container["volumeMounts"]


# Time


def test_time_outs_come_from_the_plan(home: Path, everything: list[Manifest]) -> None:
    values: Any = yaml.safe_load((CHART / "values.yaml").read_text())
    assert values["plan"].keys() == set(Timeouts._fields), "`kvbudget plan --long-context` tells them under these names"
    # 30 s in the queue, 30 to the first token, 19 s for 1,024 tokens: 152 for 8,192.
    for name, pod in pods(everything):
        if name.endswith("-ready"):
            continue
        (container,) = pod["containers"]
        assert "--queue-seconds=30" in container["args"]
        assert "--drain-seconds=212" in container["args"]
        assert pod["terminationGracePeriodSeconds"] == 5 + 212 + 10
        assert container["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", "5"]
    longer = ["--set-json", 'plan={"first_token_s": 30, "total_s": 49, "output_tokens": 1024}', "--set"]
    ((_, pod), *_) = pods(rendered(home, *longer, "longestAnswerTokens=1,queueSeconds=0"))
    assert "--drain-seconds=31" in pod["containers"][0]["args"], "parts of a second are rounded up"
    ((_, pod), *_) = pods(rendered(home, values="named-values.yaml"))
    assert pod["terminationGracePeriodSeconds"] == 300


def test_probes_ask_what_the_admin_port_answers(everything: list[Manifest]) -> None:
    source = (ROOT / "src" / "kvbudget" / "edge" / "control" / "admin.py").read_text()
    for _, container in containers(everything):
        names = {port["name"] for port in container["ports"]}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            if "grpc" in container[probe]:
                assert container[probe]["grpc"]["port"] in {port["containerPort"] for port in container["ports"]}
                continue
            asked = container[probe]["httpGet"]
            assert asked["port"] in names
            assert f'Route("{asked["path"]}"' in source
        assert container["livenessProbe"]["httpGet"]["path"] == "/health", "an engine that is away kills no gate"


def test_a_rollout_takes_nobody_away_before_another_is_ready(everything: list[Manifest]) -> None:
    for one in of_kind(everything, "Deployment"):
        assert one["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    assert len(of_kind(everything, "PodDisruptionBudget")) == 2


# What it may do


def test_the_gate_may_read_endpoint_slices_where_its_services_are_and_nothing_else(
    home: Path, everything: list[Manifest]
) -> None:
    rules = [{"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list", "watch"]}]
    roles = of_kind(everything, "Role")
    assert {one["metadata"]["namespace"] for one in roles} == {"llm", "batch"}
    assert all(one["rules"] == rules for one in roles)
    for binding in of_kind(everything, "RoleBinding"):
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "gate", "namespace": NAMESPACE}]
        assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) == ("Role", roles[0]["metadata"]["name"])
    named = rendered(home, values="named-values.yaml")
    assert not of_kind(named, "Role")
    assert {pod["automountServiceAccountToken"] for _, pod in pods(named)} == {False}
    in_config = rendered(home, "--set", "backends=null", "--set", 'config=[[backend]]\nurl = "k8s://llm/vllm"')
    assert [one["metadata"]["namespace"] for one in of_kind(in_config, "Role")] == ["llm"]


@pytest.mark.parametrize("values", VALUES)
def test_no_pod_has_more_rights_than_it_needs(home: Path, values: str) -> None:
    for name, pod in pods(rendered(home, values=values)):
        assert pod["securityContext"]["runAsNonRoot"], name
        assert pod["securityContext"]["runAsUser"] == 10001
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
        for container in pod["containers"]:
            own = container["securityContext"]
            assert own["allowPrivilegeEscalation"] is False
            assert own["readOnlyRootFilesystem"] is True
            assert own["capabilities"] == {"drop": ["ALL"]}
    containerfile = (ROOT / "docs" / "examples" / "deploy" / "Containerfile").read_text()
    assert "USER 10001" in containerfile
    assert _PROGRAM in containerfile


# Watching and scaling


def exported() -> set[str]:
    names = set(GAUGES) | set(FORECAST_GAUGES)
    for family in GateMetrics().collect():
        names |= {sample.name for sample in family.samples} | {family.name}
    return names


def test_engines_are_scaled_by_metrics_that_the_adapter_makes_of_what_the_gate_tells(
    everything: list[Manifest],
) -> None:
    rules = yaml.safe_load((PACKAGING / "kubernetes" / "prometheus-adapter-values.yaml").read_text())["rules"]
    made = {rule["name"]["as"] for rule in rules["external"]}
    (engines,) = [one for one in of_kind(everything, "HorizontalPodAutoscaler") if "engines" in one["metadata"]["name"]]
    metrics = [metric["external"] for metric in engines["spec"]["metrics"]]
    assert {metric["metric"]["name"] for metric in metrics} == made
    assert metrics[0]["target"] == {"type": "AverageValue", "averageValue": "353000"}
    assert engines["metadata"]["namespace"] == "llm"
    known = exported() | {"kvbudget_refusals_total"}
    for rule in rules["external"]:
        query = rule["metricsQuery"].replace(",<<.LabelMatchers>>", "").replace("<<.LabelMatchers>>", "")
        assert {one.name for one in series_in(query)} == {rule["seriesQuery"]}
        assert rule["seriesQuery"] in known
    reasons = re.findall(r'reason=~"([^"]+)"', str(rules))[0].split("|")
    assert set(reasons) <= {reason.value for reason in Refusal}
    assert 'bound="expected"' in str(rules)
    assert 'bound="' not in "".join(GAUGES.values())


def test_alerts_and_dashboards_are_those_of_the_command(everything: list[Manifest], tmp_path: Path, home: Path) -> None:
    (rule,) = of_kind(everything, "PrometheusRule")
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rule["spec"]))
    checked = promtool("check", "rules", "rules.yaml", folder=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    boards = [one for one in of_kind(everything, "ConfigMap") if "grafana_dashboard" in one["metadata"]["labels"]]
    for board in boards:
        ((name, text),) = board["data"].items()
        assert text.rstrip() == (ROOT / "docs" / "examples" / "monitoring" / "dashboards" / name).read_text().rstrip()
    assert len(boards) == 3
    (monitor,) = of_kind(everything, "ServiceMonitor")
    assert monitor["spec"]["endpoints"][0]["honorLabels"] is True
    assert "gate" in {one["targetLabel"] for one in monitor["spec"]["endpoints"][0]["relabelings"]}
    served = rendered(
        home, "--set", "prometheusRule.enabled=true,prometheusRule.runbooks=https://git.example.org/runbooks/"
    )
    (rule,) = of_kind(served, "PrometheusRule")
    urls = [
        one["annotations"]["runbook_url"]
        for group in rule["spec"]["groups"]
        for one in group["rules"]
        if "alert" in one
    ]
    assert urls
    assert all(url.startswith("https://git.example.org/runbooks/Kvbudget") for url in urls)


# Without helm


def test_plain_manifests_are_what_the_chart_makes_and_kustomize_takes_them(home: Path) -> None:
    made = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "make_packaging.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    built = run(tool("kubectl"), "kustomize", str(PACKAGING / "kubernetes"), home=home)
    assert built.returncode == 0, built.stderr
    found = [one for one in yaml.safe_load_all(built.stdout) if one]
    assert {one["metadata"]["namespace"] for one in found} == {"llm"}
    assert {one["kind"] for one in found} == {
        "Deployment", "Service", "ServiceAccount", "Role", "RoleBinding", "NetworkPolicy",
    }  # fmt: skip
    for one in found:
        assert_valid(one)
    (binding,) = of_kind(found, "RoleBinding")
    assert binding["subjects"][0]["namespace"] == "llm"
