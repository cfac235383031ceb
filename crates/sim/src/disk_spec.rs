//! The kind of a simulated drive.

use voltier_block::{AfterDiscard, Limits, Nanos, StripeShape};

/// The kind of a drive.
#[derive(Clone, Debug)]
pub struct DiskSpec {
    /// Number of the drive in the trace: 1 is the SSD, 2 the origin, members of arrays from 3 on.
    pub number: u64,
    /// Size, in bytes.
    pub bytes: u64,
    /// Bytes that are written whole or not at all: 512 or 4096.
    pub block_bytes: u32,
    /// Shortest time of a request; most take up to five times as long.
    pub latency_ns: Nanos,
    /// A drive model by its name. The model's mechanism (a disk's seeks, rotation and queue) says how
    /// long requests take, and `latency_ns` only how long a spike is.
    pub model: Option<&'static str>,
    /// Flushes complete without making anything durable: a fault that the oracle must find.
    pub lies: bool,
    /// Discarded sectors read as zeroes; else as anything.
    pub zeroing_discards: bool,
    /// The stripes that the drive tells of.
    pub stripe: Option<StripeShape>,
}

impl DiskSpec {
    /// The limits of such a drive.
    pub(crate) fn limits(&self) -> Limits {
        let zeroes = self.zeroing_discards;
        Limits {
            block_bytes: self.block_bytes,
            after_discard: if zeroes { AfterDiscard::Zeroes } else { AfterDiscard::Anything },
            cheap_zeroes: zeroes,
            volatile_cache: true,
            stripe: self.stripe,
            ..Limits::plain(self.bytes)
        }
    }
}
