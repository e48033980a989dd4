"""Writes what the packages for Kubernetes take from elsewhere: alerts and dashboards of the chart, plain manifests.

`python scripts/make_packaging.py` rewrites the files, `--check` only says which are not current (exit 1). Needs helm
(scripts/install_helm.sh; KVBUDGET_HELM names another folder). Tests run the check.
"""

import os
import subprocess
import sys
from pathlib import Path

from kvbudget.report.monitoring.files import monitoring_files
from kvbudget.report.monitoring.rule_files import RULES_FILE

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "packaging" / "helm" / "kvbudget"
PLAIN = ROOT / "packaging" / "kubernetes" / "kvbudget.yaml"
HEAD = """# Made by scripts/make_packaging.py out of the chart (packaging/helm/kvbudget, ci/plain-values.yaml): one gate in the
# namespace of the engines, llm. `kubectl apply -k` this folder, or an overlay of it; docs/how-to/kubernetes.md.
"""


def helm() -> Path:
    """The program."""
    return Path(os.environ.get("KVBUDGET_HELM") or ROOT / ".cache" / "helm") / "helm"


def rendered(values: str) -> str:
    """What the chart makes of a file of values in its folder `ci`, in namespace llm; tests left out."""
    command = [str(helm()), "template", "kvbudget", str(CHART), "--namespace", "llm", "--skip-tests"]
    done = subprocess.run(
        [*command, "--values", str(CHART / "ci" / values)], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout


def plain(text: str) -> str:
    """Rendered manifests without what only helm uses."""
    lines = [line.rstrip() for line in text.splitlines()]
    ours = ("helm.sh/chart:", "app.kubernetes.io/managed-by:", "# Source:")
    kept = [line for line in lines if line and not line.strip().startswith(ours)]
    return HEAD + "\n".join(kept) + "\n"


def files() -> dict[Path, str]:
    """Text of every file that is made."""
    made = monitoring_files()
    wanted = {
        CHART / "files" / path: text
        for path, text in made.items()
        if path == RULES_FILE or path.startswith("dashboards/")
    }
    wanted[PLAIN] = plain(rendered("plain-values.yaml"))
    return wanted


def main() -> int:
    """Write or check."""
    stale = {path: text for path, text in files().items() if not path.exists() or path.read_text() != text}
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is not current; run: python scripts/make_packaging.py", file=sys.stderr)
        return 1 if stale else 0
    for path, text in stale.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
