//! `voltier array ...` as clap sees it.

use clap::{Args, Subcommand};
use voltier_control::{ARRAY_KEYS, ArrayLevel, Consistency, Integrity, Word, keys_help};

use crate::args::NewExport;

#[derive(Debug, Args)]
pub(crate) struct ArrayArgs {
    #[command(subcommand)]
    pub(crate) verb: ArrayVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ArrayVerb {
    /// Create an array; the content of its drives is lost
    Create(CreateArray),
    /// Show state, level, members and remaining redundancy
    #[command(aliases = ["status", "list", "ls", "info"])]
    Show(ShowArrays),
    /// Take a member out of service, as if it had failed
    Fail(FailMember),
    /// Replace a member, lost or in service, by another drive
    Replace(ReplaceMember),
    /// Add a spare, which replaces the next lost member
    AddSpare(AddSpare),
    /// Take a spare back: the drive is a plain one again
    RemoveSpare(RemoveSpare),
    /// Add a parity (5 to 6, 6 to 7.3, ...), a copy (level 1) or capacity, while serving
    Grow(GrowArray),
    /// Resume an interrupted rebuild, or follow a running one
    Rebuild(Follow),
    /// Check all data against their parity and repair what is wrong
    Scrub(Scrub),
    /// Change rate limits, error and latency limits, merging, the spare pool or the journal
    Set(SetArray),
    /// Manage spares that several arrays share
    SparePool(SparePool),
    /// Stop and forget an array; its members keep their data and labels
    Delete(DeleteArray),
    /// Assemble an array from its members, given in any order
    Assemble(AssembleArray),
    /// Assemble a stopped, waiting or failed array now, from the members that are there
    Start(StartArray),
    /// Stop an array until it is started again
    Stop(StartArray),
}

#[derive(Debug, Args)]
pub(crate) struct StartArray {
    /// Name of the array
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
}

#[derive(Debug, Args)]
#[command(after_help = "Levels: 0, 1 and 10 (copies), 5, 6 and 7.3 (one, two, three parities), \
    50, 60 and 70 (groups of these),\nN+M (N chunks of data and M of parity in a stripe). \
    All members are used up to the size of the smallest.")]
pub(crate) struct CreateArray {
    /// Name of the array
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    #[arg(short = 'l', long, value_name = "LEVEL", help = levels())]
    pub(crate) level: String,
    /// Members per group, for levels 50, 60 and 70 [default: half of them]
    #[arg(short = 'g', long, value_name = "N")]
    pub(crate) group: Option<usize>,
    /// Chunk size, a power of two from 4K to 1M [default: 16K; 1M for level 1]
    #[arg(long, value_name = "SIZE")]
    pub(crate) chunk: Option<String>,
    #[arg(long, value_name = "WORD", help = consistencies())]
    pub(crate) consistency: Option<String>,
    #[arg(long, value_name = "WORD", help = integrities())]
    pub(crate) integrity: Option<String>,
    /// A fast drive for the journal [default: on the members]
    #[arg(long, value_name = "DEV")]
    pub(crate) journal: Option<String>,
    /// A spare, which replaces the next lost member; may be repeated
    #[arg(long, value_name = "DEV")]
    pub(crate) spare: Vec<String>,
    /// Overwrite what is on the members
    #[arg(short = 'f', long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) export: NewExport,
    /// Members, in order
    #[arg(value_name = "DEV", required = true)]
    pub(crate) members: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ShowArrays {
    /// Name of the array; without it, all arrays
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Repeat every second until interrupted
    #[arg(long, short = 'w')]
    pub(crate) watch: bool,
}

#[derive(Debug, Args)]
pub(crate) struct FailMember {
    /// Name of the array
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Path or number of the member
    #[arg(value_name = "DEV")]
    pub(crate) member: String,
}

#[derive(Debug, Args)]
pub(crate) struct ReplaceMember {
    /// Name of the array
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Path or number of the member
    #[arg(value_name = "OLD")]
    pub(crate) old: String,
    /// The new drive, or the same one when it is back
    #[arg(value_name = "NEW")]
    pub(crate) new: String,
    /// Overwrite what is on NEW
    #[arg(short = 'f', long)]
    pub(crate) force: bool,
    /// Return at once instead of waiting for the rebuild
    #[arg(long)]
    pub(crate) no_wait: bool,
}

#[derive(Debug, Args)]
pub(crate) struct AddSpare {
    /// Name of the array
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// The drive
    #[arg(value_name = "DEV")]
    pub(crate) spare: String,
    /// Overwrite what is on it
    #[arg(short = 'f', long)]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RemoveSpare {
    /// Name of the array
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// The drive
    #[arg(value_name = "DEV")]
    pub(crate) spare: String,
}

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("by").required(true).args(["parity", "member"])))]
pub(crate) struct GrowArray {
    /// Name of the array
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Add a parity on this drive; for levels 50 and 60, one drive per group
    #[arg(long, value_name = "DEV", num_args = 1..)]
    pub(crate) parity: Vec<String>,
    /// Add this drive as one more copy (level 1), or with --capacity to expand the array
    #[arg(long, value_name = "DEV")]
    pub(crate) member: Option<String>,
    /// Expand the capacity by this member; moves all data while the array serves (levels 5, 6, 7.3, N+M)
    #[arg(long, requires = "member", conflicts_with = "parity")]
    pub(crate) capacity: bool,
    /// Overwrite what is on the drives
    #[arg(short = 'f', long)]
    pub(crate) force: bool,
    /// Return at once instead of waiting for the end
    #[arg(long)]
    pub(crate) no_wait: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Follow {
    /// Name of the array
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Return at once instead of waiting for the end
    #[arg(long)]
    pub(crate) no_wait: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Scrub {
    #[command(flatten)]
    pub(crate) follow: Follow,
    /// Only count mismatches
    #[arg(long, conflicts_with_all = ["all", "rewrite_data"])]
    pub(crate) check: bool,
    /// Rewrite bad data blocks even where clients have written since the last match: a block that was
    /// overwritten after it went bad then gets older, wrong content
    #[arg(long, conflicts_with = "all")]
    pub(crate) rewrite_data: bool,
    /// Where it is unknown which member is wrong, assume the data are correct and rewrite the parity
    #[arg(long)]
    pub(crate) all: bool,
}

#[derive(Debug, Args)]
#[command(after_help = keys())]
pub(crate) struct SetArray {
    /// Name of the array
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// The settings to change
    #[arg(value_name = "KEY=VALUE", required = true)]
    pub(crate) changes: Vec<String>,
    /// Overwrite what is on the device of journal=DEV
    #[arg(short = 'f', long)]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SparePool {
    #[command(subcommand)]
    pub(crate) verb: PoolVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PoolVerb {
    /// Add drives to a pool, which is created if it does not exist
    Add(PoolAdd),
    /// Remove drives from a pool; without drives, remove the pool
    Remove(PoolRemove),
    /// Show pools, their spares, and the arrays that use them
    #[command(aliases = ["status", "list", "ls", "info"])]
    Show(PoolShow),
}

#[derive(Debug, Args)]
#[command(
    after_help = "`voltier array set NAME spare_pool=POOL` lets an array take spares from a pool."
)]
pub(crate) struct PoolAdd {
    /// Name of the pool
    #[arg(value_name = "POOL")]
    pub(crate) pool: String,
    /// Overwrite what is on the drives
    #[arg(short = 'f', long)]
    pub(crate) force: bool,
    /// Drives
    #[arg(value_name = "DEV", required = true)]
    pub(crate) devices: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct PoolRemove {
    /// Name of the pool
    #[arg(value_name = "POOL")]
    pub(crate) pool: String,
    /// Drives
    #[arg(value_name = "DEV")]
    pub(crate) devices: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct PoolShow {
    /// Name of the pool; without it, all pools
    #[arg(value_name = "POOL")]
    pub(crate) pool: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct DeleteArray {
    /// Name of the array
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Erase the labels of its members and journal: the array and its data cannot be recovered
    #[arg(long)]
    pub(crate) erase: bool,
}

#[derive(Debug, Args)]
pub(crate) struct AssembleArray {
    /// Write nothing to the members; the array and the volumes on it take no changes
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Members, in any order
    #[arg(value_name = "DEV", required = true)]
    pub(crate) members: Vec<String>,
    /// Assemble even if some of the newest data may be wrong; without -f the message says why
    #[arg(short = 'f', long)]
    pub(crate) force: bool,
}

fn levels() -> String {
    format!("Level: {} or N+M", ArrayLevel::words().join(", "))
}

fn consistencies() -> String {
    let what = "How data and parity stay consistent after a crash";
    words_help(what, Consistency::default())
}

fn integrities() -> String {
    words_help("Checksums of all blocks", Integrity::default())
}

fn words_help<T: Word>(what: &str, default: T) -> String {
    format!("{what}: {} [default: {}]", T::names().join(", "), default.name())
}

fn keys() -> String {
    format!(
        "Keys:{}\n  {:<37}  the journal on a device of its own, or on the members\n\
         A floor is in bytes of a member per second. TIME is 90s, 15m, 1h, 7d; of merging 50us, 5ms.",
        keys_help(ARRAY_KEYS),
        "journal=DEV|members"
    )
}
