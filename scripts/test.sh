#!/bin/bash
# usage: scripts/test.sh
# What `make test` runs, each step timed; the table of times is printed at the end. All steps choose the same
# packages and features, so that each crate is compiled once for them all.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/workspace.sh

step() { scripts/step.sh "$@"; }
rm -f target/steps
trap 'scripts/step.sh --table' EXIT

step format cargo fmt --all --check
step build cargo build "${workspace[@]}" --all-targets
step tidy "$debug/xtask" tidy
step lint cargo clippy "${workspace[@]}" --all-targets -- -D warnings
step docs env RUSTDOCFLAGS="-D warnings" cargo doc "${workspace[@]}" --no-deps
step licences scripts/deny.sh --if-changed
step guide "$debug/voltier-tasks" doc-test
step tests scripts/run-tests.sh
