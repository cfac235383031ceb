#!/bin/bash
# usage: scripts/coverage.sh
# Lines of crates/cache that the simulator runs: its own tests (crates/sim/tests) and COVERAGE_SEEDS
# (400) swarm seeds; no test of the cache's own.
# Prints lines, covered and percent for each file, then every line that was not run; the same goes
# to target/coverage/report.txt. Needs the llvm-tools of the toolchain, which rustup brings once.
set -euo pipefail
cd "$(dirname "$0")/.."

tools=$(rustc --print target-libdir)/../bin
if [ ! -x "$tools/llvm-cov" ] && ! rustup component add llvm-tools >/dev/null 2>&1; then
  echo "llvm-tools are missing: run: rustup component add llvm-tools" >&2
  exit 1
fi

out=$PWD/target/coverage
export CARGO_TARGET_DIR=$out/build
rm -rf "$out/profiles"
mkdir -p "$out/profiles"

# Sabotaged code is not the product: the canaries stay out.
tests=()
for file in crates/sim/tests/*.rs; do
  name=$(basename "$file" .rs)
  [[ $name = *canaries ]] || tests+=(--test "$name")
done

export RUSTFLAGS="-C instrument-coverage" LLVM_PROFILE_FILE="$out/profiles/%m-%p.profraw"
cargo test --locked --package voltier-sim "${tests[@]}" --no-run
cargo test --locked --package voltier-sim "${tests[@]}" --no-run --quiet --message-format=json |
  sed -n 's/.*"executable":"\([^"]*\/deps\/[^"]*\)".*/\1/p' >"$out/binaries"
cargo build --locked --package voltier-sim --bin voltier-sim
rm -f "$out"/profiles/*
simulator=$CARGO_TARGET_DIR/debug/voltier-sim
# Freed memory is kept: giving it back to the kernel takes as long as the worlds themselves.
export MALLOC_TRIM_THRESHOLD_=268435456 MALLOC_MMAP_THRESHOLD_=268435456
while read -r binary; do
  (cd crates/sim && "$binary" --quiet) >"$out/tests.log" 2>&1 ||
    { tail -30 "$out/tests.log" >&2; exit 1; }
done <"$out/binaries"
found=0
"$simulator" --seeds "${COVERAGE_SEEDS:-400}" --twice 0 || found=$?
echo "$simulator" >>"$out/binaries"

"$tools/llvm-profdata" merge --sparse "$out"/profiles/*.profraw -o "$out/merged.profdata"
objects=()
while read -r binary; do objects+=(--object "$binary"); done <"$out/binaries"
"$tools/llvm-cov" export --format=lcov --instr-profile "$out/merged.profdata" "${objects[@]}" \
  >"$out/lcov.info"

awk -F'[:,]' -v root="$PWD/" '
  /^SF:/ { file = substr($0, 4); sub(root, "", file); wanted = file ~ /^crates\/cache\/src\// }
  /^SF:/ && wanted && !(file in lines) { files[++count] = file; lines[file] = 0 }
  wanted && /^DA:/ {
    key = file ":" $2
    if (!(key in hits)) { hits[key] = 0; lines[file]++; number[file, lines[file]] = $2 }
    hits[key] += $3
  }
  function percent(part, all) { return all ? 100 * part / all : 100 }
  END {
    printf "%-40s %6s %8s %8s\n", "file", "lines", "covered", "percent"
    for (f = 1; f <= count; f++) {
      file = files[f]; covered = 0; missed = ""
      for (n = 1; n <= lines[file]; n++) {
        at = number[file, n]
        if (hits[file ":" at]) covered++; else missed = missed " " at
      }
      printf "%-40s %6d %8d %7.1f%%\n", file, lines[file], covered, percent(covered, lines[file])
      if (missed != "") rest = rest file ":" missed "\n"
      all += lines[file]; all_covered += covered
    }
    printf "%-40s %6d %8d %7.1f%%\n\nnot run:\n%s", "all", all, all_covered, percent(all_covered, all), rest
  }' "$out/lcov.info" | tee "$out/report.txt"
exit "$found"
