#!/bin/bash
# usage: scripts/check.sh
# What `make check` runs, for the minutes between two commits: format, house rules, lints of everything, and the
# tests of the crates that changed since BASE (HEAD: what is not committed). Each step is timed.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/workspace.sh

step() { scripts/step.sh "$@"; }
rm -f target/steps
trap 'scripts/step.sh --table' EXIT

base=${BASE:-HEAD}
git rev-parse --quiet --verify "$base^{commit}" >/dev/null || { echo "BASE=$base is no commit" >&2; exit 2; }
folders=()
for folder in $( (git diff --name-only "$base"; git ls-files --others --exclude-standard) |
  grep -oE '^((crates|lab)/[^/]+|fuzz|xtask)/' | sort -u); do
  [ -e "$folder/Cargo.toml" ] && folders+=("${folder%/}")
done

step format cargo fmt --all --check
step tidy cargo xtask tidy
step lint cargo clippy "${workspace[@]}" --all-targets -- -D warnings
if [ ${#folders[@]} -eq 0 ]; then
  echo "no crate changed since $base: no tests to run"
  exit 0
fi
echo "changed since $base: ${folders[*]}"
# The same choice of packages and features as in `make test`: what was compiled for one is there for the other.
step build cargo build "${workspace[@]}" --all-targets
step tests cargo test "${workspace[@]}" --tests \
  --config "target.'cfg(all())'.runner = ['$PWD/scripts/run-if-in-folder.sh', '${folders[*]}']"
