#!/bin/bash
# usage: scripts/notices.sh
# Prints names, versions and licences of the libraries in the programs, with the texts that their authors ask to be
# handed on. The texts come from the sources that cargo compiled.
set -euo pipefail
cd "$(dirname "$0")/.."

echo "The programs voltier and voltier-lab contain the libraries below, beside Rust's standard library, which is"
echo "under the Apache License 2.0 or the MIT license."
sources=${CARGO_HOME:-$HOME/.cargo}/registry/src
export CARGO_NET_OFFLINE=true
cargo tree --locked --edges normal --prefix none --no-dedupe --package voltier --package voltier-lab-cli \
  --format '{p}|{l}' | sed -n 's/^\([^ ]*\) v\([^ |]*\)[^|]*|\(.*\)$/\1 \2 \3/p' | sort -u |
  while read -r name version licence; do
    # Our own crates are not in the registry.
    for folder in "$sources"/*/"$name-$version"; do
      [ -d "$folder" ] || continue
      printf '\n%s\n%s %s: %s\n' "$(printf '=%.0s' {1..78})" "$name" "$version" "$licence"
      for text in "$folder"/LICEN[CS]E* "$folder"/COPYING* "$folder"/COPYRIGHT* "$folder"/NOTICE*; do
        # The text of the Apache License is the same for all, and in LICENSE-APACHE.
        if [ -f "$text" ] && ! grep -q 'Version 2.0, January 2004' "$text"; then
          printf '\n%s:\n\n' "$(basename "$text")"
          tr -d '\r' <"$text"
        fi
      done
      break
    done
  done
