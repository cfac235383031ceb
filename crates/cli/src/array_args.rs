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
    /// Put a drive in the place of a member: of a lost one, or of one that is to go
    Replace(ReplaceMember),
    /// Give an array a drive that takes the place of the next lost member
    AddSpare(AddSpare),
    /// Add a parity (5 to 6, 6 to 7.3, ...), a copy (level 1) or members (`--capacity`), while serving
    Grow(GrowArray),
    /// Go on with a rebuild that was cut off, and follow it; follow one that is running
    Rebuild(Follow),
    /// Read everything, hold it against its parity, and repair what is wrong
    Scrub(Scrub),
    /// Change paces, limits of errors and slowness, merging, the spare pool, or where the journal is
    Set(SetArray),
    /// Spares that several arrays share
    SparePool(SparePool),
    /// Stop an array and forget it; its members keep their data and their labels
    Delete(DeleteArray),
    /// Bring an array into service from its members, given in any order
    Assemble(AssembleArray),
    /// Assemble an array that waits for a member or failed, now, of the members that are there
    Start(StartArray),
    /// Stop an array, until it is started
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
    /// The way to keep data and parity together over a crash: journal, bitmap, none [default: journal]
    #[arg(long, value_name = "WORD")]
    pub(crate) consistency: Option<String>,
    /// Checksums of the blocks of members: crc32c, none [default: none]
    #[arg(long, value_name = "WORD")]
    pub(crate) integrity: Option<String>,
    /// A fast drive for the journal, which is on the members without it
    #[arg(long, value_name = "DEV")]
    pub(crate) journal: Option<String>,
    /// A drive that takes the place of the next lost member; may be given again
    #[arg(long, value_name = "DEV")]
    pub(crate) spare: Vec<String>,
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
    /// The member, or its number
    #[arg(value_name = "DEV")]
    pub(crate) member: String,
}

#[derive(Debug, Args)]
pub(crate) struct ReplaceMember {
    /// Name of the array
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// The member, or its number
    #[arg(value_name = "OLD")]
    pub(crate) old: String,
    /// The drive in its place; the same one when it is back
    #[arg(value_name = "NEW")]
    pub(crate) new: String,
    /// Overwrite what NEW holds now
    #[arg(short = 'f', long)]
    pub(crate) force: bool,
    /// Do not wait until it is filled
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
    /// Overwrite what it holds now
    #[arg(short = 'f', long)]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("by").required(true).args(["parity", "member"])))]
pub(crate) struct GrowArray {
    /// Name of the array
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Add a parity row on this drive; of levels 50 and 60, one drive for each group
    #[arg(long, value_name = "DEV", num_args = 1..)]
    pub(crate) parity: Vec<String>,
    /// Add this drive as one more copy (level 1), or with --capacity to expand the array
    #[arg(long, value_name = "DEV")]
    pub(crate) member: Option<String>,
    /// Expand the capacity by this member: all data move, while the array serves (levels 5, 6, 7.3, N+M)
    #[arg(long, requires = "member", conflicts_with = "parity")]
    pub(crate) capacity: bool,
    /// Overwrite what the drives hold now
    #[arg(short = 'f', long)]
    pub(crate) force: bool,
    /// Do not wait until they are filled, or the data are moved
    #[arg(long)]
    pub(crate) no_wait: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Follow {
    /// Name of the array
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Do not wait for its end
    #[arg(long)]
    pub(crate) no_wait: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Scrub {
    #[command(flatten)]
    pub(crate) follow: Follow,
    /// Only count what does not match
    #[arg(long, conflicts_with_all = ["all", "rewrite_data"])]
    pub(crate) check: bool,
    /// Rewrite located blocks of data also where clients wrote since they last matched: a block
    /// overwritten after it went bad gets older, wrong content
    #[arg(long, conflicts_with = "all")]
    pub(crate) rewrite_data: bool,
    /// Where nothing tells which member is wrong, take the data for right
    #[arg(long)]
    pub(crate) all: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Keys: rebuild_priority=idle|low|normal|high, rebuild_floor=SIZE (bytes of a \
    member per second),\nscrub_priority=idle|low|normal|high, scrub_floor=SIZE,\n\
    max_errors=N, error_window=TIME (a member with more errors in about that time is failed; \
    0 for never),\nslow_factor=N, slow_window=TIME, slow_action=show|avoid|fail (a member that \
    takes so many times as long\nas the others for that time; 0 for never), \
    deadline=TIME|off (a member that answers nothing for that time is failed),\n\
    spare_pool=POOL|none. TIME is 90s, 15m, 1h, 7d.\n\
    merge=off|adaptive|always, merge_wait=50us, merge_max=5ms (which small writes wait for others \
    to fill a stripe,\nhow long for the next one and in all; 1us to 100ms)\n\
    journal=DEV|members (the journal on a device of its own, or on the members)."
)]
pub(crate) struct SetArray {
    /// Name of the array
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// The settings to change
    #[arg(value_name = "KEY=VALUE", required = true)]
    pub(crate) changes: Vec<String>,
    /// Overwrite what the device of journal=DEV holds now
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
    /// Put drives into a pool, which is made if there is none of the name
    Add(PoolAdd),
    /// Take drives out of a pool; without any, forget the pool
    Remove(PoolRemove),
    /// Show pools, what waits in them, and the arrays that take from them
    Show(PoolShow),
}

#[derive(Debug, Args)]
#[command(
    after_help = "An array takes from a pool after `voltier array set NAME spare_pool=POOL`."
)]
pub(crate) struct PoolAdd {
    /// Name of the pool
    #[arg(value_name = "POOL")]
    pub(crate) pool: String,
    /// Overwrite what the drives hold, when they are taken
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
    /// Name of the pool; all without it
    #[arg(value_name = "POOL")]
    pub(crate) pool: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct DeleteArray {
    /// Name of the array
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Erase the labels of its members and its journal: the array and its data can never be brought back
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
