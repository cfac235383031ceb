//! The command line of `voltier lab trace` as clap sees it.

use std::path::PathBuf;
use std::sync::LazyLock;

use clap::{Args, Subcommand};
use voltier_control::{PolicyKind, Word};
use voltier_results::size::parse_bytes;
use voltier_trace::convert;
use voltier_trace::make::Pattern;
use voltier_trace::mrc::{Method, Mode};
use voltier_trace::{Format, ReadOptions};

#[derive(Debug, Args)]
pub(crate) struct TraceArgs {
    #[command(subcommand)]
    pub(crate) verb: TraceVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TraceVerb {
    /// Describe a trace: requests, sizes, order, rate over time, reuse
    Stats(TraceStats),
    /// Miss-ratio curves: exact, SHARDS, and the policies of the cache
    Mrc(TraceMrc),
    /// Replay a trace on a target (the plan `trace`)
    Replay(TraceReplay),
    /// Write a trace in another format
    Convert(TraceConvert),
    /// Make a trace whose curves are known
    Make(TraceMake),
}

/// The requests, and how they are read.
#[derive(Debug, Args)]
pub(crate) struct TraceFiles {
    /// The files of the trace, merged by time; .gz, .zst and .xz are unpacked
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Format, if it is not recognised (`voltier lab list`)
    #[arg(long, value_name = "NAME")]
    pub(crate) format: Option<Format>,
    /// Only the requests of this volume
    #[arg(long, value_name = "NAME")]
    pub(crate) volume: Option<String>,
    /// Read only the first N requests
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) limit: Option<u64>,
    /// Broken records to tolerate, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0, value_parser = share)]
    pub(crate) max_broken: f64,
    /// Block size, for formats that number blocks
    #[arg(long, value_name = "SIZE", default_value = "4K", value_parser = size)]
    pub(crate) block: u64,
}

impl TraceFiles {
    pub(crate) fn options(&self) -> ReadOptions {
        ReadOptions {
            format: self.format,
            volume: self.volume.clone(),
            limit: self.limit,
            broken_max_percent: self.max_broken,
            block_bytes: self.block,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct TraceStats {
    #[command(flatten)]
    pub(crate) trace: TraceFiles,
    /// Line size, for footprint and reuse
    #[arg(long, value_name = "SIZE", default_value = "4K", value_parser = size)]
    pub(crate) line: u64,
}

#[derive(Debug, Args)]
#[command(after_help = curves())]
pub(crate) struct TraceMrc {
    #[command(flatten)]
    pub(crate) trace: TraceFiles,
    /// The curves
    #[arg(
        long = "curve",
        value_name = "CURVE",
        value_delimiter = ',',
        default_value = ALL_CURVES.as_str()
    )]
    pub(crate) curves: Vec<Method>,
    /// Sizes of the cache
    #[arg(long = "size", value_name = "SIZE", value_delimiter = ',', value_parser = size)]
    pub(crate) sizes: Vec<u64>,
    /// Cache line size
    #[arg(long, value_name = "SIZE", default_value = "4K", value_parser = size)]
    pub(crate) line: u64,
    #[arg(long, value_name = "MODE", default_value = "wb", help = modes())]
    pub(crate) mode: Mode,
    /// Ignore writes
    #[arg(long)]
    pub(crate) reads_only: bool,
    /// Seed of rand and SHARDS
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Print the points as CSV
    #[arg(long)]
    pub(crate) csv: bool,
    /// Keep the curves as a run with its report (and mrc.csv) in a new folder, for `lab compare`
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "TARGET as in `voltier lab run`. A target that holds anything is not written until\n\
    --destroy names it again. With model:PROFILE the replay runs in virtual time, and --cache\n\
    model:SSD[:SIZE] puts a cache before the drive."
)]
pub(crate) struct TraceReplay {
    #[command(flatten)]
    pub(crate) trace: TraceFiles,
    /// The target of the requests
    #[arg(short = 't', long, value_name = "TARGET")]
    pub(crate) target: String,
    /// How many times as fast as recorded, or max: each request as soon as possible
    #[arg(long, value_name = "FACTOR", default_value = "1", value_parser = speed)]
    pub(crate) speed: f64,
    /// Addresses beyond the target: refuse, wrap (modulo its size) or scale (all addresses)
    #[arg(long, value_name = "HOW", default_value = "refuse")]
    pub(crate) fit: String,
    /// Most requests in flight
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub(crate) depth: u32,
    /// Ignore writes and discards
    #[arg(long)]
    pub(crate) reads_only: bool,
    /// How much of the target is used, or `whole`
    #[arg(long, value_name = "SIZE")]
    pub(crate) size: Option<String>,
    /// A modelled SSD as the cache of a modelled target: `model:PROFILE[:SIZE]`
    #[arg(long, value_name = "SSD")]
    pub(crate) cache: Option<String>,
    /// Mode of that cache
    #[arg(long, value_name = "MODE", default_value = "wb")]
    pub(crate) mode: String,
    /// Policy of that cache
    #[arg(long, value_name = "POLICY", default_value = "lru")]
    pub(crate) policy: String,
    /// Line size of that cache
    #[arg(long, value_name = "SIZE", default_value = "4K")]
    pub(crate) line: String,
    /// Folder of the run [default: voltier-lab/trace-N]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Allow this target to be overwritten; named again by its path or serial number
    #[arg(long, value_name = "TARGET")]
    pub(crate) destroy: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct TraceConvert {
    #[command(flatten)]
    pub(crate) trace: TraceFiles,
    /// The new format: iolog, alibaba or u32
    #[arg(long, value_name = "FORMAT", default_value = "iolog")]
    pub(crate) to: convert::Target,
    /// The new file
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
}

#[derive(Debug, Args)]
#[command(
    after_help = "PATTERN is uniform, zipf[:ALPHA], loop, scan, or mixed[:ALPHA] (three fifths Zipf,\n\
    a fifth loop, a fifth scan). Each request is 4 KiB."
)]
pub(crate) struct TraceMake {
    /// Order in which blocks are accessed
    #[arg(value_name = "PATTERN")]
    pub(crate) pattern: Pattern,
    /// The new file
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// The format of the output: iolog, alibaba or u32
    #[arg(long, value_name = "FORMAT", default_value = "iolog")]
    pub(crate) to: convert::Target,
    /// Number of requests
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub(crate) requests: u64,
    /// Number of 4 KiB blocks in use
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub(crate) blocks: u64,
    /// Share of writes, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u8).range(..=100))]
    pub(crate) writes: u8,
    /// Requests per second
    #[arg(long, value_name = "N", default_value_t = 1000.0, value_parser = rate)]
    pub(crate) rate: f64,
    /// Random seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
}

fn size(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text).filter(|bytes| *bytes > 0);
    bytes.ok_or_else(|| format!("`{text}` is not a size: write for example 4K, 64M or 2G"))
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse::<f64>().ok().filter(|share| (0.0..=100.0).contains(share));
    share.ok_or_else(|| "give a percentage from 0 to 100".to_owned())
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse::<f64>().ok().filter(|rate| (1e-3..=1e9).contains(rate));
    rate.ok_or_else(|| "give requests a second, from 0.001 to 1e9".to_owned())
}

/// Zero is as fast as possible.
fn speed(text: &str) -> Result<f64, String> {
    if text == "max" {
        return Ok(0.0);
    }
    let factor = text.parse::<f64>().ok().filter(|factor| (1e-3..=1e6).contains(factor));
    factor.ok_or_else(|| "give a factor from 0.001 to 1000000, or max".to_owned())
}

fn curves() -> String {
    format!(
        "CURVE is exact (LRU by stack distances), shards:RATE or shards-max:LINES (LRU by a sample), or a policy \
         of the cache, replayed: {}. Without --size the footprint is halved ten times.",
        PolicyKind::names().join(", ")
    )
}

static ALL_CURVES: LazyLock<String> =
    LazyLock::new(|| format!("exact,shards:0.01,{}", PolicyKind::names().join(",")));

fn modes() -> String {
    format!("Cache mode, which decides what the cache keeps: {}", Mode::names().join(", "))
}
