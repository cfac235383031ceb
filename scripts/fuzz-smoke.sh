#!/bin/bash
# FUZZ_SECONDS (20) of every target in fuzz/. No sanitizer, so that the stable compiler will do:
# what is hunted here is panics and hangs, and safe Rust has little else.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ ! -d fuzz ]; then
  echo "no fuzz targets: there is no fuzz folder"
  exit 0
fi
tools=$PWD/target/tools
if [ ! -x "$tools/bin/cargo-fuzz" ]; then
  cargo install --quiet --locked --root "$tools" cargo-fuzz
fi
PATH="$tools/bin:$PATH"

for target in $(cargo fuzz list); do
  echo "fuzzing $target"
  cargo fuzz run --sanitizer none "$target" -- -max_total_time="${FUZZ_SECONDS:-20}" -timeout=10
done
