# Sourced by the scripts that compile for tests: one choice of packages and features for all of them. Another
# choice has other features of libraries, and everything is compiled again. The deliberate bugs are compiled in
# and chosen by the tests that look for them; nothing else turns them on (crates/sim/tests/it/canary_hunt.rs).
# shellcheck shell=bash
workspace=(--locked --workspace --features voltier-sim/canaries)
debug=${CARGO_TARGET_DIR:-target}/debug
