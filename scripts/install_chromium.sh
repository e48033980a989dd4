#!/usr/bin/env bash
# Finds a Chromium for the tests of the pages, or installs Debian's; as root, or with sudo that asks nothing.
set -euo pipefail
for name in chromium chromium-browser google-chrome; do
  if command -v "$name" >/dev/null; then exit 0; fi
done
as_root=()
if [ "$(id -u)" != 0 ]; then as_root=(sudo -n); fi
if ! command -v apt-get >/dev/null; then
  echo "no Chromium is there, and no apt-get to install one: install chromium or google-chrome, then run this again" >&2
  exit 1
fi
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" apt-get install -y -qq --no-install-recommends chromium fonts-noto-cjk >/dev/null
command -v chromium
