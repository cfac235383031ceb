#!/bin/bash
# usage: scripts/test-long.sh
# What `make test-long` runs, before a release: everything of `make test`, with every sample whole, and what
# is too long for each change. Each step is timed; the table of times is printed at the end.
set -euo pipefail
cd "$(dirname "$0")/.."

step() { scripts/step.sh "$@"; }

VOLTIER_TEST_LONG=1 scripts/test.sh
rm -f target/steps
trap 'scripts/step.sh --table' EXIT
step licences scripts/deny.sh
step sim make --no-print-directory sim
step fuzz make --no-print-directory fuzz-smoke
step crash make --no-print-directory crash
step md make --no-print-directory cross-check-md
step packages make --no-print-directory test-packages
step vm make --no-print-directory test-vm
step demo make --no-print-directory demo
