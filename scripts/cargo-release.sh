#!/bin/bash
# cargo for the programs as they are shipped (usage: scripts/cargo-release.sh build|run ...). All crates keep
# their bitcode, from which the link of a program optimises the data path once more (docs/benchmarks.md:
# building).
set -euo pipefail
scripts=$(cd "$(dirname "$0")" && pwd)
export RUSTFLAGS="-C embed-bitcode=yes" RUSTC_WORKSPACE_WRAPPER="$scripts/rustc-release.sh"
exec cargo "$@"
