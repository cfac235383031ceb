//! The tests of the laboratory's program, driven through `voltier` as a user does. One program, so that it is
//! linked once; they wait most of their time, and many run at once (scripts/run-tests.sh).

mod browser;
mod command_line;
mod demo;
mod page;
mod report;
mod runs;
#[path = "../../../../crates/cli/tests/it/support/mod.rs"]
#[allow(dead_code, reason = "the product's tests use more of it")]
mod support;
mod trace;
