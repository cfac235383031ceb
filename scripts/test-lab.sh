#!/bin/bash
# usage: scripts/test-lab.sh [ARGUMENT OF CARGO TEST]...
# What `make test-lab` runs: the tests of the crates in lab/, compiled as for `make test`.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/workspace.sh

# They drive the product as a user does, and find both programs here.
cargo build "${workspace[@]}" --all-targets
cargo test "${workspace[@]}" --tests \
  --config "target.'cfg(all())'.runner = ['$PWD/scripts/run-if-in-folder.sh', '$(echo lab/*)']" "$@"
