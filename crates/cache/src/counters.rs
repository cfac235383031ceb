//! Exact counters of one cache, shared by its parts.

use std::cell::Cell;

/// Requests of one direction, counted when they complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectionCounts {
    /// All requests.
    pub requests: u64,
    /// Served wholly by the cache (reads), or onto lines that were cached (writes).
    pub hits: u64,
    /// All others that were not bypassed.
    pub misses: u64,
    /// Sent past the cache on purpose: sequential streams, pass-through.
    pub bypassed: u64,
    /// Bytes of all requests.
    pub bytes: u64,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) reads: Cell<DirectionCounts>,
    pub(crate) writes: Cell<DirectionCounts>,
    pub(crate) ssd_read_bytes: Cell<u64>,
    pub(crate) ssd_written_bytes: Cell<u64>,
    pub(crate) origin_read_bytes: Cell<u64>,
    pub(crate) origin_written_bytes: Cell<u64>,
    pub(crate) ssd_errors: Cell<u64>,
    pub(crate) origin_errors: Cell<u64>,
    pub(crate) repaired_lines: Cell<u64>,
    pub(crate) damaged_reads: Cell<u64>,
    pub(crate) damaged_chunks: Cell<u64>,
    pub(crate) destaged_lines: Cell<u64>,
    pub(crate) overwritten_writes: Cell<u64>,
    pub(crate) congested_reads: Cell<u64>,
}

impl Counters {
    /// Requests of clients that have completed.
    pub(crate) fn requests(&self) -> u64 {
        self.reads.get().requests + self.writes.get().requests
    }
}

/// Adds to a counter.
#[inline]
pub(crate) fn add(counter: &Cell<u64>, amount: u64) {
    counter.set(counter.get() + amount);
}

/// How a request was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Served {
    Hit,
    Miss,
    Bypassed,
}

/// Counts one request.
#[inline]
pub(crate) fn count(direction: &Cell<DirectionCounts>, served: Served, bytes: u64) {
    let mut counts = direction.get();
    counts.requests += 1;
    counts.bytes += bytes;
    match served {
        Served::Hit => counts.hits += 1,
        Served::Miss => counts.misses += 1,
        Served::Bypassed => counts.bypassed += 1,
    }
    direction.set(counts);
}
