#!/bin/bash
# Every test of the workspace; the last line is the total over all test binaries.
set -euo pipefail
cd "$(dirname "$0")/.."

log=$(mktemp)
trap 'rm -f "$log"' EXIT

# Tests that drive the product as a user does find the binary here.
cargo build --locked --package voltier

status=0
cargo test --locked --workspace --no-fail-fast "$@" 2>&1 | tee "$log" || status=$?

# "test result: ok. 12 passed; 0 failed; 0 ignored; ..."
awk '/^test result:/ { for (i = 2; i <= NF; i++) { if ($i ~ /^passed/) passed += $(i - 1)
       if ($i ~ /^failed/) failed += $(i - 1) } }
     /^test .* \.\.\. FAILED$/ { print "failed: " $2 }
     END { printf "%d passed, %d failed\n", passed, failed }' "$log"
exit "$status"
