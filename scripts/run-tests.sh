#!/bin/bash
# Every test of the workspace; the last line is the total over all test binaries. Tests of the real program
# wait most of their time: they run beside those that keep the processors busy.
set -euo pipefail
cd "$(dirname "$0")/.."

program=$(mktemp) rest=$(mktemp)
trap 'rm -f "$program" "$rest"' EXIT

# One choice of packages for all: another one has other features of libraries, and everything is built again.
# Tests that drive the product as a user does find both programs here.
cargo build --locked --workspace --bin voltier --bin voltier-lab
cargo test --locked --workspace --no-run

# Freed memory is kept: tests that cut the power at every step free and take the same megabytes again, and
# half of their time would be the kernel's.
export MALLOC_TRIM_THRESHOLD_=268435456 MALLOC_MMAP_THRESHOLD_=268435456

run() {
  local group=$1
  shift
  cargo test --locked --workspace --no-fail-fast \
    --config "target.'cfg(all())'.runner = ['$PWD/scripts/run-if-in-group.sh', '$group']" "$@"
}

status=0
run program --tests "$@" >"$program" 2>&1 &
tests_of_program=$!
run rest "$@" 2>&1 | tee "$rest" || status=$?
wait "$tests_of_program" || status=$?
cat "$program"

# "test result: ok. 12 passed; 0 failed; 0 ignored; ..."
awk '/^test result:/ { for (i = 2; i <= NF; i++) { if ($i ~ /^passed/) passed += $(i - 1)
       if ($i ~ /^failed/) failed += $(i - 1) } }
     /^test .* \.\.\. FAILED$/ { print "failed: " $2 }
     END { printf "%d passed, %d failed\n", passed, failed }' "$rest" "$program"
exit "$status"
