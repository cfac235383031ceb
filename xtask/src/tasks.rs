//! The tasks that are programs of their own: those that need the laboratory, and the virtual machine.

use xtask::{Failure, workspace};

/// Builds and runs the program of this package with these words.
///
/// # Errors
/// When the program cannot be built, or its task fails; the program has printed why.
pub(crate) fn run(package: &str, words: &[&str], profile: &str) -> Result<(), Failure> {
    let status = workspace::cargo()
        .args(["run", "--quiet", "--locked", "--profile", profile, "--package", package, "--"])
        .args(words)
        .status()?;
    workspace::succeeded(&format!("{package} {}", words.join(" ")), status)
}
