//! How a trace is read.

use super::format::Format;

/// How a trace is read.
#[derive(Clone, Debug)]
pub struct ReadOptions {
    /// The format; recognised by the content without it.
    pub format: Option<Format>,
    /// Only the requests of this volume.
    pub volume: Option<String>,
    /// Only so many requests from the start.
    pub limit: Option<u64>,
    /// More broken records than this, in percent, and the trace is refused.
    pub broken_max_percent: f64,
    /// Bytes of a block in the formats that number blocks (`lis`, `u32`, `oracle-general`).
    pub block_bytes: u64,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self { format: None, volume: None, limit: None, broken_max_percent: 1.0, block_bytes: 4096 }
    }
}
