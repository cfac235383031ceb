#!/bin/bash
# usage: scripts/fuzz.sh smoke|run|shrink [TARGET...]
#   smoke   FUZZ_SECONDS (5) of each target from the corpus in the tree
#   run     FUZZ_SECONDS (600) of each; what it learns is kept in target/fuzz for the next run
#   shrink  FUZZ_FILES (30) files that add the most to what is reached, into the corpus in the tree
# What breaks a target is kept in fuzz/artifacts, and its command is printed. Ends with a line for
# each target: inputs tried, places and features covered, files in its corpus, and what was found.
set -euo pipefail
cd "$(dirname "$0")/.."

mode=${1:-}
case $mode in
  smoke) seconds=${FUZZ_SECONDS:-5} ;;
  run) seconds=${FUZZ_SECONDS:-600} ;;
  shrink) seconds=0 ;;
  *) sed -n 's/^# \{0,1\}//; 2,7p' "$0" >&2; exit 2 ;;
esac
shift
targets=("$@")
[ $# -gt 0 ] || targets=(nbd_negotiation nbd_requests fuse_requests cache_image registry control specs results)

declare -A longest=([nbd_negotiation]=2048 [nbd_requests]=2048 [fuse_requests]=2048
  [cache_image]=256
  [registry]=4096 [control]=4096 [specs]=200 [results]=8192)

RUSTC_WORKSPACE_WRAPPER=$PWD/scripts/fuzz-rustc.sh CARGO_TARGET_DIR=$PWD/target/fuzz/build \
  cargo build --quiet --locked --package voltier-fuzz --features engine --profile fuzz
engine=$PWD/target/fuzz/build/fuzz/voltier-fuzz

# What a target writes goes to memory if there is some, and is removed at the end.
[ -d /dev/shm ] && [ -w /dev/shm ] && TMPDIR=/dev/shm
scratch=$(mktemp -d -p "${TMPDIR:-/tmp}" voltier-fuzz.XXXXXX)
trap 'rm -rf "$scratch"' EXIT
export TMPDIR=$scratch
# Targets allocate much for a moment: giving it back to the kernel each time takes a sixth of a run.
export MALLOC_TRIM_THRESHOLD_=268435456 MALLOC_MMAP_THRESHOLD_=67108864

known() { # what the engine may start from: the tree's corpus and what earlier runs learned
  mkdir -p "target/fuzz/corpus/$1" "fuzz/corpus/$1"
  echo "target/fuzz/corpus/$1 fuzz/corpus/$1"
}

fuzz() {
  local target=$1 log=$scratch/$1.log folders dictionary=() status=0
  read -ra folders <<<"$(known "$target")"
  # A smoke run learns for itself alone: it is the same wherever it runs.
  if [ "$mode" = smoke ]; then
    mkdir "$scratch/$target" && folders=("$scratch/$target" "fuzz/corpus/$target")
  fi
  if [ -e "fuzz/dictionaries/$target" ]; then
    { "$engine-dictionary" "$target" && cat "fuzz/dictionaries/$target"; } >"$scratch/$target.words"
    dictionary=("-dict=$scratch/$target.words")
  fi
  mkdir -p "fuzz/artifacts/$target"
  VOLTIER_FUZZ_TARGET=$target nice "$engine" "${folders[@]}" "${dictionary[@]}" \
    -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len="${longest[$target]}" \
    -artifact_prefix="fuzz/artifacts/$target/" -print_final_stats=1 -use_value_profile=1 \
    >"$log" 2>&1 || status=$?
  awk -v target="$target" '
    /^#[0-9]+/ { for (i = 1; i < NF; i++) { if ($i == "cov:") cov = $(i + 1)
                   if ($i == "ft:") ft = $(i + 1); if ($i == "corp:") corp = $(i + 1) } }
    /stat::number_of_executed_units/ { runs = $2 }
    END { printf "%-16s %10d inputs, %6d places, %7d features, corpus %s", target, runs, cov, ft, corp }
  ' "$log"
  if [ "$status" -eq 0 ]; then
    echo ", nothing found"
    return
  fi
  echo ", FOUND:"
  grep -a -A6 -E "panicked at|ERROR: libFuzzer|SUMMARY" "$log" | cut -c-300 || tail -n 20 "$log"
  echo "to see it again: VOLTIER_FUZZ_TARGET=$target $engine fuzz/artifacts/$target/FILE"
  failed=1
}

shrink() {
  local target=$1 folders control=$scratch/$1.control fresh=$scratch/$1
  read -ra folders <<<"$(known "$target")"
  mkdir "$fresh"
  VOLTIER_FUZZ_TARGET=$target "$engine" -merge=1 -merge_control_file="$control" \
    -max_len="${longest[$target]}" "$fresh" "${folders[@]}" >"$scratch/$target.log" 2>&1
  # The engine tries the files in order of size, and notes behind COV the places that no file before
  # had reached. Those that add the most of them are taken.
  rm -f "$fresh"/*
  awk 'NR == 1 { files = $1 } NR > 2 && NR <= files + 2 { name[NR - 3] = $0 }
       $1 == "COV" && NF > 2 { print NF - 2, name[$2] }' "$control" |
    sort -rn | grep -Ev '/(found|seed)-' | awk -v most="${FUZZ_FILES:-30}" 'NR <= most' |
    while read -r _ file; do cp "$file" "$fresh/"; done
  # Findings stay whatever they reach, and so do the inputs that people wrote to begin with.
  find "fuzz/corpus/$target" -type f ! -name 'found-*' ! -name 'seed-*' -delete
  cp "$fresh"/* "fuzz/corpus/$target/"
  echo "$target: $(find "fuzz/corpus/$target" -type f | wc -l) files"
}

failed=0
for target in "${targets[@]}"; do
  if [ "$mode" = shrink ]; then shrink "$target"; else fuzz "$target"; fi
done
exit "$failed"
