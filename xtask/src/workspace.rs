//! The workspace as cargo sees it.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use serde::Deserialize;

use crate::Failure;

/// The crates of the workspace as `cargo metadata` gives them.
#[derive(Deserialize)]
pub struct Metadata {
    /// One for each crate of the workspace.
    pub packages: Vec<Package>,
    /// The `id` of each crate that cargo takes without a choice of packages.
    pub workspace_default_members: Vec<String>,
    /// Where cargo builds.
    pub target_directory: PathBuf,
}

/// One crate.
#[derive(Deserialize)]
pub struct Package {
    /// What cargo knows the crate by.
    pub id: String,
    /// The name of the crate.
    pub name: String,
    /// The path of the crate's `Cargo.toml`.
    pub manifest_path: PathBuf,
    /// The crates that the crate depends on.
    pub dependencies: Vec<Dependency>,
}

/// One line of a crate's dependencies.
#[derive(Deserialize)]
pub struct Dependency {
    /// The crate's name.
    pub name: String,
    /// None, `dev` or `build`.
    pub kind: Option<String>,
    /// The folder, for crates of the workspace.
    pub path: Option<PathBuf>,
}

/// The folder of the workspace.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a folder of the workspace")
}

/// The cargo that runs this, or the one on PATH.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()));
    command.current_dir(root());
    command
}

/// The cargo that builds programs as they are shipped, with link-time optimisation.
pub fn cargo_release() -> Command {
    let mut command = Command::new(root().join("scripts/cargo-release.sh"));
    command.current_dir(root());
    command
}

/// What is compiled for tests: one choice of packages and features (also in scripts/workspace.sh). Another
/// choice has other features of libraries, and everything is compiled again.
pub const FOR_TESTS: [&str; 4] = ["--locked", "--workspace", "--features", "voltier-sim/canaries"];

/// Asks cargo about the workspace; no network.
pub fn metadata() -> Result<Metadata, Failure> {
    let output = cargo()
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .stderr(std::process::Stdio::inherit())
        .output()?;
    succeeded("cargo metadata", output.status)?;
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Builds the programs `voltier` and, beside it, `voltier-lab`; returns the path of the first.
pub fn build_voltier(release: bool) -> Result<PathBuf, Failure> {
    let mut command = if release { cargo_release() } else { cargo() };
    command.args(["build", "--quiet"]);
    if release {
        command.args(["--locked", "--release"]);
        command.args(["--package", "voltier", "--package", "voltier-lab-cli"]);
    } else {
        command.args(FOR_TESTS).arg("--all-targets");
    }
    succeeded("cargo build of voltier and voltier-lab", command.status()?)?;
    let profile = if release { "release" } else { "debug" };
    Ok(metadata()?.target_directory.join(profile).join("voltier"))
}

/// An error that names the command when it did not succeed.
pub fn succeeded(what: &str, status: ExitStatus) -> Result<(), Failure> {
    if status.success() { Ok(()) } else { Err(format!("{what} failed ({status})").into()) }
}
