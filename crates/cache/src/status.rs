//! The status of a cache: a snapshot of its counters and gauges.

use voltier_block::Nanos;

use crate::config::Mode;
use crate::counters::DirectionCounts;
use crate::devices::health::Health;
use crate::policy::PolicyKind;

/// A drive of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The fast one.
    Ssd,
    /// The slow one.
    Origin,
}

/// A drive that does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SilentDrive {
    /// The drive.
    pub side: Side,
    /// For how long it has answered nothing.
    pub silent_ns: Nanos,
    /// Lines the origin does not have yet.
    pub lines_dirty: u64,
}

/// A snapshot of a cache.
#[derive(Clone, Debug)]
pub struct Status {
    /// How requests pass.
    pub mode: Mode,
    /// The replacement policy: it chooses the line that leaves a full cache.
    pub policy: PolicyKind,
    /// Bytes of a line.
    pub line_bytes: u64,
    /// Names the cache on its SSD.
    pub uuid: [u8; 16],
    /// Grows with every opening.
    pub generation: u64,
    /// Whether the SSD takes part.
    pub health: Health,
    /// The SSD is evacuated, and lines are left of which none could be read for some time; the cleaner goes
    /// on trying.
    pub evacuation_stalls: bool,
    /// For how long the SSD has answered nothing, if that is the deadline or longer. Of an SSD that was given
    /// up for that: how long it had.
    pub ssd_silent_ns: Option<Nanos>,
    /// The same of the origin.
    pub origin_silent_ns: Option<Nanos>,
    /// Flushes that the origin failed.
    pub origin_failed_flushes: u64,
    /// Such a flush may have lost writes past the SSD, and the next flush of a client says so.
    pub origin_loss_untold: bool,
    /// For how long the origin has refused all that is written back, if that is half a minute or longer.
    /// Writes that would wait for it fail. The first line that the origin takes ends that.
    pub origin_refuses_ns: Option<Nanos>,
    /// Lines it holds when full.
    pub lines_total: u64,
    /// Lines it holds, with those that are still to be loaded.
    pub lines_used: u64,
    /// Lines whose places are still to be loaded, at most: after a start, until the map of the cache
    /// is in memory. Requests for them are served from the origin until then.
    pub lines_loading: u64,
    /// Lines the origin does not have yet; after a failure, lines that are lost.
    pub lines_dirty: u64,
    /// Bytes of memory for all structures that grow with the cache.
    pub memory_bytes: u64,
    /// Read requests.
    pub reads: DirectionCounts,
    /// Write requests.
    pub writes: DirectionCounts,
    /// Writes among them in whose place a newer one of the same range went, both under way at once.
    pub overwritten_writes: u64,
    /// Clean hits that a resting origin served because the SSD was congested.
    pub congested_reads: u64,
    /// Bytes read from the SSD.
    pub ssd_read_bytes: u64,
    /// Bytes written to the SSD, by whatever cause.
    pub ssd_written_bytes: u64,
    /// Bytes read from the origin.
    pub origin_read_bytes: u64,
    /// Bytes written to the origin.
    pub origin_written_bytes: u64,
    /// Failed requests to the SSD.
    pub ssd_errors: u64,
    /// Failed requests to the origin.
    pub origin_errors: u64,
    /// Wrong or unreadable lines: clean ones, read again from the origin, and copies that a client replaced.
    pub repaired_lines: u64,
    /// Reads refused because the only copy of a line is damaged.
    pub damaged_reads: u64,
    /// Chunks of the map that were not whole at a start: each costs the clean lines in it.
    pub damaged_chunks: u64,
    /// Clean lines that a start dropped because the origin may be newer.
    pub suspect_lines: u64,
    /// Lines written to the origin by the cleaner.
    pub destaged_lines: u64,
    /// Lines pushed out by the policy.
    pub evictions: u64,
    /// Segments, and how many of them are free.
    pub segments: (u32, u32),
}
