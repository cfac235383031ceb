#!/bin/bash
# usage: scripts/cross-check-md.sh [FOLDER]
# The cross-check of the arrays against md: Linux md, in user-mode Linux, and our array write the same
# requests; then every byte of every member is compared, parity included
# (crates/array/examples/cross_check_md). Works in FOLDER, which is kept then, else in a temporary one.
# Needs no root: packages by scripts/deps.sh.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --quiet --locked --release --package voltier-array --example cross_check_md
target=$(cargo metadata --locked --format-version 1 --no-deps |
  sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
cross_check=$target/release/examples/cross_check_md

scratch=$(mktemp -d -t voltier-cross-check.XXXXXX)
trap 'rm -rf "$scratch" "${guest_memory:-}"' EXIT
folder=${1:-$scratch/arrays}
mkdir -p "$folder"
folder=$(realpath "$folder")
# The guest's memory is a file that code is run from: better in memory, where that is allowed.
if [ -w /dev/shm ] && ! grep -q ' /dev/shm .*noexec' /proc/mounts; then
  guest_memory=$(mktemp -d -p /dev/shm voltier-cross-check.XXXXXX)
fi

"$cross_check" cases >"$folder/cases"
"$cross_check" prepare "$folder"

started=$SECONDS
# The guest sees this machine's files, read only, and writes in the folder alone. It ends by a panic,
# when its first process does: nothing is wrong with that.
(
  export TMPDIR=${guest_memory:-$scratch}
  timeout 600 linux.uml mem=512M root=/dev/root rootfstype=hostfs rootflags=/ ro quiet con=null \
    con0=fd:0,fd:1 uml_dir="$scratch" init="$PWD/scripts/cross-check-md-guest.sh" \
    CROSS_CHECK="$cross_check" FOLDER="$folder" </dev/null >"$folder/console" 2>&1 || true
) 2>/dev/null
if ! grep -q '^done$' "$folder/log" 2>/dev/null; then
  echo "the guest did not get to its end; its last lines:" >&2
  tail -n 20 "$folder/console" "$folder/log" >&2 || true
  exit 1
fi
head -n 1 "$folder/log"
echo "md wrote $(wc -l <"$folder/cases") arrays in $((SECONDS - started)) s"
"$cross_check" compare "$folder"
