//! `voltier array ...` as clap sees it.

use clap::{Args, Subcommand};

#[derive(Debug, Args)]
pub(crate) struct ArrayArgs {
    #[command(subcommand)]
    pub(crate) verb: ArrayVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ArrayVerb {
    /// Make an array of drives; what they hold is lost
    Create(CreateArray),
    /// Show state, level, members and what may still be lost
    Show(ShowArrays),
    /// Take a member out of service, as if it had failed
    Fail(FailMember),
    /// Stop an array and forget it; its members keep their data and their labels
    Delete(DeleteArray),
    /// Bring an array into service from its members, given in any order
    Assemble(AssembleArray),
}

#[derive(Debug, Args)]
#[command(after_help = "Levels: 0, 1 and 10 (copies), 5, 6 and 7.3 (one, two, three parities), \
    50, 60 and 70 (groups of these),\nN+M (N chunks of data and M of parity in a stripe). \
    The smallest member counts.")]
pub(crate) struct CreateArray {
    /// Name of the array
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Level: 0, 1, 10, 5, 6, 7.3, 50, 60, 70 or N+M
    #[arg(short = 'l', long, value_name = "LEVEL")]
    pub(crate) level: String,
    /// Members in a group, for levels 50, 60 and 70 [default: half of them]
    #[arg(short = 'g', long, value_name = "N")]
    pub(crate) group: Option<usize>,
    /// Bytes of a chunk, a power of two from 4K to 1M [default: 16K; 1M for level 1]
    #[arg(long, value_name = "SIZE")]
    pub(crate) chunk: Option<String>,
    /// What keeps data and parity together over a crash: journal, bitmap, none [default: journal]
    #[arg(long, value_name = "WORD")]
    pub(crate) consistency: Option<String>,
    /// Overwrite what the members hold now
    #[arg(short = 'f', long)]
    pub(crate) force: bool,
    /// Members, in their order
    #[arg(value_name = "DEV", required = true)]
    pub(crate) members: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ShowArrays {
    /// Name of the array; all without it
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Show again every second, until interrupted
    #[arg(long, short = 'w')]
    pub(crate) watch: bool,
}

#[derive(Debug, Args)]
pub(crate) struct FailMember {
    /// Name of the array
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// The member
    #[arg(value_name = "DEV")]
    pub(crate) member: String,
}

#[derive(Debug, Args)]
pub(crate) struct DeleteArray {
    /// Name of the array
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Erase the labels of its members: the array and its data can never be brought back
    #[arg(long)]
    pub(crate) erase: bool,
}

#[derive(Debug, Args)]
pub(crate) struct AssembleArray {
    /// Members, in any order
    #[arg(value_name = "DEV", required = true)]
    pub(crate) members: Vec<String>,
    /// Also when some of the newest data may be wrong: the message without it says why
    #[arg(short = 'f', long)]
    pub(crate) force: bool,
}
