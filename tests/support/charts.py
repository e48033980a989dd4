"""Decides how the tests get a real helm and kubectl, what they render, and what Kubernetes says of it."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parents[2]
PACKAGING = ROOT / "packaging"
CHART = PACKAGING / "helm" / "kvbudget"
VALUES = sorted(path.name for path in (CHART / "ci").iterdir())
NAMESPACE = "gates"
Manifest = dict[str, Any]


def tool(name: str) -> str:
    """`helm` or `kubectl`. Not having it fails the test: a check that is skipped in silence is none."""
    folder = Path(os.environ.get("KVBUDGET_HELM") or ROOT / ".cache" / "helm")
    if not (folder / name).exists():
        pytest.fail(
            f"no {name} in {folder}; run scripts/install_helm.sh (make test does), or let KVBUDGET_HELM name a folder "
            "that holds helm and kubectl"
        )
    return str(folder / name)


def run(*command: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Without a cluster, and with nothing of the user's own."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "KUBECONFIG": str(home / "none")}
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, env=environment)


def rendered(home: Path, *flags: str, values: str | None = None) -> list[Manifest]:
    """What the chart makes of its values, of a file in `ci`, and of flags."""
    chosen = [] if values is None else ["--values", str(CHART / "ci" / values)]
    done = run(tool("helm"), "template", "kvbudget", str(CHART), "-n", NAMESPACE, *chosen, *flags, home=home)
    assert done.returncode == 0, done.stderr
    return manifests(done.stdout)


def manifests(text: str) -> list[Manifest]:
    """Every document that is one."""
    return [document for document in yaml.safe_load_all(text) if document is not None]


def of_kind(found: list[Manifest], kind: str) -> list[Manifest]:
    """Those of a kind."""
    return [one for one in found if one["kind"] == kind]


def pods(found: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """(Name, pod spec) of all that become pods."""
    for one in found:
        if one["kind"] == "Deployment":
            yield one["metadata"]["name"], one["spec"]["template"]["spec"]
        elif one["kind"] == "Pod":
            yield one["metadata"]["name"], one["spec"]
