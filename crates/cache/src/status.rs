//! The status of a cache: a snapshot of its counters and gauges.

use voltier_block::Nanos;

use crate::config::Mode;
use crate::counters::{CacheCounts, DeviceBytes, LineCounts, OriginCounts, RequestCounts};
use crate::devices::health::Health;
use crate::log::ordered::{Age, FlushPoint};
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

/// What the origin lacks: a loss of the SSD now would take it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unshipped {
    /// Bytes, at most: of lines that are cached whole all count.
    pub bytes: u64,
    /// The age of the oldest acknowledged write among them, at most; none if there is none.
    pub age: Option<Age>,
    /// Writes that wait for the origin now, because more would exceed
    /// [`max_unshipped`](crate::Settings::max_unshipped).
    pub waiting_writes: u64,
    /// The newest flush that the origin has, with all before it. None without an order, and before the first.
    pub shipped_flush: Option<FlushPoint>,
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
    /// A flush that the origin failed may have lost writes past the SSD, and the next flush of a client says so.
    pub origin_loss_untold: bool,
    /// For how long the origin has refused all that is written back, if that is half a minute or longer.
    /// Writes that would wait for it fail. The first line that the origin takes ends that.
    pub origin_refuses_ns: Option<Nanos>,
    /// Its lines: those used with those that are still to be loaded.
    pub lines: LineCounts,
    /// What the origin lacks.
    pub unshipped: Unshipped,
    /// Read requests.
    pub reads: RequestCounts,
    /// Write requests.
    pub writes: RequestCounts,
    /// Bytes moved on the drives.
    pub device_bytes: DeviceBytes,
    /// Figures of the cache itself.
    pub counts: CacheCounts,
    /// Figures of the origin.
    pub origin: OriginCounts,
    /// Segments, and how many of them are free.
    pub segments: (u32, u32),
}
