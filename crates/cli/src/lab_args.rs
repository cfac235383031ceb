//! The arguments of `voltier lab`.

use clap::{Args, Subcommand};
use voltier_lab::twin::Twin;

#[derive(Debug, Args)]
pub(crate) struct LabArgs {
    #[command(subcommand)]
    pub(crate) verb: LabVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LabVerb {
    /// Repeat a published test on modelled drives, with Voltier in the product's place
    Twin(TwinArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "A simulation in virtual time; the error of its models is printed with it.")]
pub(crate) struct TwinArgs {
    /// Whose test: maxio, era, maxiq, fusionio, cubefs
    #[arg(value_name = "NAME")]
    pub(crate) name: Twin,
    /// A few cases for a short time
    #[arg(long)]
    pub(crate) quick: bool,
}
