//! `cargo xtask sim`: the simulator, built as the product is, run to its end.

use std::process::Command;

use xtask::Failure;

/// Builds and runs it with these arguments; its last line is the summary.
///
/// # Errors
/// When the simulator cannot be built, or a promise was broken.
pub(crate) fn run(arguments: &[&str]) -> Result<(), Failure> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let status = Command::new(cargo)
        .args(["run", "--quiet", "--locked", "--profile", "sim"])
        .args(["--package", "voltier-sim", "--bin", "voltier-sim", "--"])
        .args(arguments)
        .status()?;
    match status.code() {
        Some(0) => Ok(()),
        Some(2) => std::process::exit(2),
        _ => Err("the simulator found a violation, or did not run: see above".into()),
    }
}
