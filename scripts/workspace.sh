# Sourced by the scripts that compile for tests. All of them choose the same packages and features: another choice
# has other features of libraries, and everything is compiled again. So product and laboratory are chosen together:
# the laboratory asks for more features of libraries that both use (serde, serde_json, syn), and after a step with the
# product alone, as `cargo test` chooses it, these and all that stands on them would be compiled again. The deliberate
# bugs are compiled in and chosen by the tests that look for them; nothing else turns them on
# (crates/sim/tests/it/canary_hunt.rs).
# shellcheck shell=bash
workspace=(--locked --workspace --features voltier-sim/canaries)
debug=${CARGO_TARGET_DIR:-target}/debug

# Everything is compiled once here, so nothing is prepared for a second time: that, one unit of code a crate and no
# line tables halve the compiler's time. For a backtrace with lines: CARGO_PROFILE_DEV_DEBUG=line-tables-only.
export CARGO_INCREMENTAL=${CARGO_INCREMENTAL:-0}
export CARGO_PROFILE_DEV_CODEGEN_UNITS=${CARGO_PROFILE_DEV_CODEGEN_UNITS:-1}
export CARGO_PROFILE_DEV_DEBUG=${CARGO_PROFILE_DEV_DEBUG:-0}
