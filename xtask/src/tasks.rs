//! The tasks that need the laboratory: the program `voltier-tasks` runs them.

use xtask::{Failure, workspace};

/// Builds and runs the program with these words, which name the task.
///
/// # Errors
/// When the program cannot be built, or its task fails; the program has printed why.
pub(crate) fn run(words: &[&str], profile: &str) -> Result<(), Failure> {
    let status = workspace::cargo()
        .args([
            "run",
            "--quiet",
            "--locked",
            "--profile",
            profile,
            "--package",
            "voltier-tasks",
            "--",
        ])
        .args(words)
        .status()?;
    workspace::succeeded(&words.join(" "), status)
}
