#!/bin/bash
# usage: scripts/run-tests.sh [ARGUMENT OF CARGO TEST]...
# Every test of the workspace; the last line is the total over all test programs. Tests of the real program
# wait most of their time: they run, more of them at once, beside those that keep the processors busy.
# Programs of the product that tests have left behind are named and ended, and are a failure.
# VOLTIER_TEST_LONG=1: tests that make do with a sample otherwise look at everything (docs/proof.md).
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/workspace.sh

program=$(mktemp) rest=$(mktemp)
trap 'rm -f "$program" "$rest"' EXIT

# Tests that drive the product as a user does find both programs here.
cargo build "${workspace[@]}" --all-targets

# Freed memory is kept: tests that cut the power at every step free and take the same megabytes again, and
# half of their time would be the kernel's.
export MALLOC_TRIM_THRESHOLD_=268435456 MALLOC_MMAP_THRESHOLD_=268435456

run() {
  local group=$1
  shift
  cargo test "${workspace[@]}" --no-fail-fast \
    --config "target.'cfg(all())'.runner = ['$PWD/scripts/run-if-in-group.sh', '$group']" "$@"
}

status=0
RUST_TEST_THREADS=${VOLTIER_PROGRAM_TESTS:-6} run program --tests "$@" >"$program" 2>&1 &
tests_of_program=$!
run rest "$@" 2>&1 | tee "$rest" || status=$?
wait "$tests_of_program" || status=$?
cat "$program"

# A daemon that outlives its test was started by a command which the test did not wait for.
folder=$(cd "$debug" && pwd -P)
for link in /proc/[0-9]*/exe; do
  case $(readlink "$link" 2>/dev/null) in "$folder"/voltier*) ;; *) continue ;; esac
  pid=${link#/proc/} pid=${pid%/exe}
  test=$(tr '\0' '\n' <"/proc/$pid/environ" | sed -n 's/^VOLTIER_TEST=//p')
  echo "left behind by ${test:-a test}: $pid $(tr '\0' ' ' <"/proc/$pid/cmdline")"
  kill "$pid" || true
  status=1
done

# "test result: ok. 12 passed; 0 failed; 0 ignored; ..."
awk '/^test result:/ { for (i = 2; i <= NF; i++) { if ($i ~ /^passed/) passed += $(i - 1)
       if ($i ~ /^failed/) failed += $(i - 1) } }
     /^test .* \.\.\. FAILED$/ { print "failed: " $2 }
     END { printf "%d passed, %d failed\n", passed, failed }' "$rest" "$program"
exit "$status"
