#!/bin/bash
# Stands before rustc while scripts/fuzz.sh builds: counters at every edge and traced comparisons in
# this workspace's crates, and in no others. The flags are LLVM's and work with a stable compiler.
set -euo pipefail
exec "$@" \
  -C passes=sancov-module \
  -C llvm-args=-sanitizer-coverage-level=4 \
  -C llvm-args=-sanitizer-coverage-inline-8bit-counters \
  -C llvm-args=-sanitizer-coverage-pc-table \
  -C llvm-args=-sanitizer-coverage-trace-compares
