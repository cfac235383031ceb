//! The command line as clap sees it: the verbs of `voltier` that are the laboratory's.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use voltier_cli::manual::Manual;

use crate::lab_args::LabArgs;

/// Measures drives and volumes: the laboratory of `voltier`, which runs this program.
#[derive(Debug, Parser)]
#[command(name = "voltier", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = "Exit codes: 0 success, 1 failure, 2 wrong usage.")]
pub(crate) struct Cli {
    /// Folder of the instance: registry, control socket, daemon.pid, default export sockets
    /// [default: /var/lib/voltier for root, else the user's state folder]
    #[arg(long, value_name = "DIR", env = "VOLTIER_STATE", global = true, hide_env_values = true)]
    pub(crate) state: Option<PathBuf>,
    /// Print state as JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Measure drives and volumes and compare results
    Lab(Box<LabArgs>),
    /// Measure a disk, an SSD and the cached volume on modelled drives, and write a report
    Demo(Demo),
    /// Write the manual pages, for packages
    #[command(hide = true)]
    Manual(Manual),
    /// Print the words of this command line, for the completions of `voltier`
    #[command(hide = true)]
    Words,
}

#[derive(Debug, Args)]
#[command(
    after_help = "DEMO_SIZE, DEMO_SECONDS and DEMO_SSD=sata|pcie scale it; see demo/README.md."
)]
pub(crate) struct Demo {
    /// Folder for result.json and report.html [default: demo]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}
