#!/bin/bash
# usage: scripts/deny.sh [--if-changed]
# Licences, sources, duplicate crates and known vulnerabilities, by cargo-deny and deny.toml.
# With --if-changed only when Cargo.lock or deny.toml differ from those of the last run that found nothing:
# their checksum is in deny.checked, which belongs into the commit that changes them.
# cargo-deny is built once into target/tools. The vulnerability list comes from GitHub: where that
# cannot be reached the other checks still run, and the last line says what was left out.
set -euo pipefail
cd "$(dirname "$0")/.."

checksum=$(cat Cargo.lock deny.toml | sha256sum | cut -d' ' -f1)
if [ "${1:-}" = --if-changed ] && [ "$checksum" = "$(cat deny.checked 2>/dev/null)" ]; then
  echo "checked before: Cargo.lock and deny.toml are those of deny.checked"
  exit 0
fi

version=0.20.2
tools=$PWD/target/tools
deny=$tools/bin/cargo-deny

if [ ! -x "$deny" ] && command -v cargo-deny >/dev/null; then
  deny=$(command -v cargo-deny)
fi
if [ ! -x "$deny" ]; then
  echo "building cargo-deny $version into target/tools (once, about four minutes)"
  mkdir -p "$tools"
  if ! cargo install --quiet --locked --root "$tools" "cargo-deny@$version"; then
    echo "cargo-deny could not be installed: licences and advisories were not checked" >&2
    # On CI a check that did not happen is a failure; on a laptop the tests are worth running.
    [ -z "${CI:-}" ]
    exit
  fi
fi

"$deny" --log-level error check licenses bans sources
echo "$checksum" >deny.checked

if timeout 120 "$deny" fetch db >/dev/null 2>&1; then
  "$deny" --log-level error check --disable-fetch advisories
else
  echo "advisories not checked: the RustSec database cannot be reached from here"
fi
