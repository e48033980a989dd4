#!/usr/bin/env bash
# Decides how a real Prometheus and its promtool get onto this machine for the tests: Debian's package, without root.
#
#     scripts/install_prometheus.sh [DIR]        DIR is .cache/prometheus unless given
#
# The two programs are taken out of the package and need nothing else of it (Go, only libc). Where the package lists are
# missing, root may load them; who is neither root nor on Debian or Ubuntu sets KVBUDGET_PROMETHEUS to a folder that holds
# both programs (from prometheus.io), and this script only looks whether they run. A second run costs nothing.
set -euo pipefail

fail() {
  echo "install_prometheus.sh: $1" >&2
  echo "next: set KVBUDGET_PROMETHEUS to a folder that holds prometheus and promtool (2.42 or newer)" >&2
  exit "${2:-1}"
}

case "${1:-}" in
  -h | --help) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 0 ;;
  -*) fail "unknown option $1; the only argument is the directory, see --help" 2 ;;
esac
[ $# -le 1 ] || fail "one directory at most, got $#: $*" 2

runs() { [ -x "$1/prometheus" ] && [ -x "$1/promtool" ] && "$1/promtool" --version >/dev/null 2>&1; }

if [ -n "${KVBUDGET_PROMETHEUS:-}" ]; then
  runs "$KVBUDGET_PROMETHEUS" || fail "KVBUDGET_PROMETHEUS=$KVBUDGET_PROMETHEUS holds no prometheus and promtool that run"
  exit 0
fi

readonly DIR=${1:-.cache/prometheus}
runs "$DIR" && exit 0

for program in apt-get dpkg-deb; do
  command -v "$program" >/dev/null || fail "this is no Debian or Ubuntu ($program is missing)"
done
WORK=$(mktemp -d)
readonly WORK
trap 'rm -rf "$WORK"' EXIT

download() { (cd "$WORK" && apt-get download prometheus) >"$WORK/log" 2>&1; }
if ! download; then
  [ "$(id -u)" = 0 ] || fail "apt-get cannot download prometheus: $(tail -1 "$WORK/log"); root's apt-get update may help"
  apt-get update >"$WORK/log" 2>&1 || fail "apt-get update: $(tail -1 "$WORK/log")"
  download || fail "apt-get cannot download prometheus: $(tail -1 "$WORK/log")"
fi
dpkg-deb -x "$WORK"/prometheus_*.deb "$WORK/root"
mkdir -p "$DIR"
for program in promtool prometheus; do
  mv "$WORK/root/usr/bin/$program" "$DIR/$program"
done
runs "$DIR" || fail "the programs of Debian's package do not run here: $("$DIR/promtool" --version 2>&1 | head -1)"
"$DIR/promtool" --version | head -1
