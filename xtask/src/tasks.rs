//! The tasks that are programs of their own: those that need the laboratory, and the virtual machine.

use std::process::Command;

use xtask::{Failure, workspace};

/// Builds and runs the program of this package with these words: optimised, or as tests are built.
///
/// # Errors
/// When the program cannot be built, or its task fails; the program has printed why.
pub(crate) fn run(package: &str, words: &[&str], optimised: bool) -> Result<(), Failure> {
    let what = format!("{package} {}", words.join(" "));
    if optimised {
        let mut command = workspace::cargo();
        command.args(["run", "--quiet", "--locked", "--release", "--package", package, "--"]);
        return workspace::succeeded(&what, command.args(words).status()?);
    }
    let mut build = workspace::cargo();
    build.args(["build", "--quiet"]).args(workspace::FOR_TESTS).arg("--all-targets");
    workspace::succeeded(&format!("cargo build of {package}"), build.status()?)?;
    let program = workspace::metadata()?.target_directory.join("debug").join(package);
    workspace::succeeded(&what, Command::new(program).args(words).status()?)
}
