//! The command line of the laboratory as clap sees it.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use voltier_lab::twin::Twin;

use crate::trace_args::TraceArgs;

#[derive(Debug, Args)]
pub(crate) struct LabArgs {
    #[command(subcommand)]
    pub(crate) verb: LabVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LabVerb {
    /// List the built-in plans and the modelled drives
    List,
    /// Measure a plan on one or more targets
    Run(LabRun),
    /// Write the report of a run: charts, tables, CSV, JSON
    Report(LabReport),
    /// Compare runs: the ratio of every figure to that of the first
    Compare(LabCompare),
    /// Import results of fio, Orion or elbencho as a run
    Import(LabImport),
    /// Repeat a published test on modelled drives with Voltier instead of the product
    Twin(TwinArgs),
    /// Describe block traces, draw their miss-ratio curves, replay them
    Trace(TraceArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "RUN is the folder or file of a run, a result of another program, or a \
    published table of `voltier lab list`.")]
pub(crate) struct LabCompare {
    /// Runs to compare; the first is the base
    #[arg(value_name = "RUN", num_args = 2.., required = true)]
    pub(crate) runs: Vec<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "RUN and REFERENCE are the folder or file of a run, a result of another \
    program, or a published table\nof `voltier lab list`. The files are report.html, report.md, \
    points.csv and report.json.")]
pub(crate) struct LabReport {
    /// The run
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
    /// Runs to compare it with
    #[arg(value_name = "REFERENCE")]
    pub(crate) references: Vec<String>,
    /// Folder for the report [default: that of the run, else voltier-lab/NAME]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct LabImport {
    /// Results: fio JSON, JSON+ and logs, Orion's summary or tables, elbencho csv
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Folder in which each result gets its own folder
    #[arg(long, value_name = "DIR", default_value = "voltier-lab")]
    pub(crate) out: PathBuf,
}

#[derive(Debug, Args)]
#[command(
    after_help = "TARGET is a file (made when --size says how large), a block device, a folder \
    (hotfiles, database),\nvolume:NAME, an NBD URI, rbd:POOL/IMAGE[@USER], or model:PROFILE[:SIZE] in \
    virtual time.\nA target that holds anything is not written until --destroy names it again.\n\
    Orion's own options follow --: voltier lab run orion --target T -- -run simple -num_disks 8"
)]
pub(crate) struct LabRun {
    /// A built-in plan (`voltier lab list`), or a TOML file
    #[arg(value_name = "PLAN", required_unless_present = "resume", conflicts_with = "resume")]
    pub(crate) plan: Option<String>,
    /// Target to measure; NAME=TARGET gives it a name
    #[arg(short = 't', long = "target", value_name = "TARGET", conflicts_with = "resume")]
    pub(crate) targets: Vec<String>,
    /// Small sizes and short times: shows that everything works, not how good a drive is
    #[arg(long, conflicts_with = "resume")]
    pub(crate) quick: bool,
    /// How much of each target is used, or `whole`
    #[arg(long, value_name = "SIZE", conflicts_with = "resume")]
    pub(crate) size: Option<String>,
    /// Seconds per point
    #[arg(long, value_name = "N", conflicts_with = "resume")]
    pub(crate) seconds: Option<f64>,
    /// Any other key of the plan
    #[arg(long = "set", value_name = "KEY=VALUE", conflicts_with = "resume")]
    pub(crate) settings: Vec<String>,
    /// Folder of the run [default: voltier-lab/PLAN-N]
    #[arg(long, value_name = "DIR", conflicts_with = "resume")]
    pub(crate) out: Option<PathBuf>,
    /// Resume an interrupted run
    #[arg(long, value_name = "DIR")]
    pub(crate) resume: Option<PathBuf>,
    /// Allow this target to be overwritten; named again by its path or serial number
    #[arg(long, value_name = "TARGET")]
    pub(crate) destroy: Vec<String>,
    /// Drives of an Orion run: a file with one path per line
    #[arg(long, value_name = "FILE", conflicts_with = "resume")]
    pub(crate) lun: Option<PathBuf>,
    /// Orion's options
    #[arg(last = true, value_name = "ORION OPTIONS", conflicts_with = "resume")]
    pub(crate) orion: Vec<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "A simulation in virtual time; the error of its models is printed with it.")]
pub(crate) struct TwinArgs {
    /// The test to repeat: maxio, era, maxiq, fusionio, cubefs
    #[arg(value_name = "NAME")]
    pub(crate) name: Twin,
    /// Run only a few cases, for a short time
    #[arg(long)]
    pub(crate) quick: bool,
}
