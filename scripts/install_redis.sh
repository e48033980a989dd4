#!/usr/bin/env bash
# Decides how a real redis-server gets onto this machine for the tests of the shared ledger: Debian's program.
#
#     scripts/install_redis.sh [DIR]             DIR is .cache/redis unless given
#
# One that is installed is used as it is. Else Debian's redis-tools is installed, which holds the program and starts no
# service, as root or with sudo that asks nothing; DIR gets a link to it. Who has neither sets KVBUDGET_REDIS to a folder
# that holds redis-server (6.2 or newer, with TLS). A second run costs nothing. (Valkey comes as a wheel.)
set -euo pipefail

fail() {
  echo "install_redis.sh: $1" >&2
  echo "next: set KVBUDGET_REDIS to a folder that holds redis-server (6.2 or newer)" >&2
  exit "${2:-1}"
}

case "${1:-}" in
  -h | --help) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
  -*) fail "unknown option $1; the only argument is the directory, see --help" 2 ;;
esac
[ $# -le 1 ] || fail "one directory at most, got $#: $*" 2

runs() { [ -x "$1/redis-server" ] && "$1/redis-server" --version >/dev/null 2>&1; }

if [ -n "${KVBUDGET_REDIS:-}" ]; then
  runs "$KVBUDGET_REDIS" || fail "KVBUDGET_REDIS=$KVBUDGET_REDIS holds no redis-server that runs"
  exit 0
fi

readonly DIR=${1:-.cache/redis}
runs "$DIR" && exit 0
mkdir -p "$DIR"
if found=$(command -v redis-server); then
  ln -sfn "$found" "$DIR/redis-server"
  runs "$DIR" || fail "$found does not run"
  exit 0
fi

command -v apt-get >/dev/null || fail "this is no Debian or Ubuntu (apt-get is missing), and no redis-server is installed"
as_root=()
if [ "$(id -u)" != 0 ]; then as_root=(sudo -n); fi
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
readonly log
trap 'rm -f "$log"' EXIT
install() { "${as_root[@]}" apt-get install -y -qq --no-install-recommends redis-tools >"$log" 2>&1; }
if ! install; then
  "${as_root[@]}" apt-get update -qq >"$log" 2>&1 || fail "apt-get update: $(tail -1 "$log")"
  install || fail "apt-get cannot install redis-tools: $(tail -1 "$log")"
fi
# Server and check-rdb are one program, which goes by its name; the package of the service would add only the link.
ln -sfn "$(command -v redis-check-rdb)" "$DIR/redis-server"
runs "$DIR" || fail "the program of Debian's package does not run here"
"$DIR/redis-server" --version
