#!/bin/bash
# Instructions a request by case, counted by callgrind (Debian package valgrind). The count needs no quiet
# machine: the same program counts the same twice. Vector kernels are those that valgrind's processor has.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v valgrind >/dev/null; then
  echo "valgrind is missing: install it (apt-get install valgrind), then run this again" >&2
  exit 1
fi
scripts/cargo-release.sh build --quiet --locked --release --package voltier-bench --bin instructions

collected() {
  valgrind --tool=callgrind --callgrind-out-file=/dev/null target/release/instructions "$1" "$2" 2>&1 |
    awk '/Collected/ { print $4 }'
}

cases="hit_read volume_hit_read write_back volume_write_back"
cases="$cases write_back_and_destage miss_read write_through write_around write_around_part"
cases="$cases hit_read_128k hit_read_128k_scattered write_back_128k"
cases="$cases small_write full_stripe small_write_bitmap small_write_journal"
for case in $cases; do
  few=320 many=3520
  if [[ "$case" = full_stripe || "$case" = *_128k* ]]; then few=160 many=960; fi
  if [ "$case" = write_back_and_destage ]; then few=6400 many=19200; fi
  echo "$case $((($(collected "$case" "$many") - $(collected "$case" "$few")) / (many - few)))"
done
