//! The figures of a cache: each is declared here, and counted by its parts.

use std::cell::Cell;

use voltier_block::{Figure, Unit, figures};

figures! {
    /// Requests of one direction, counted when they complete.
    pub struct RequestCounts {
        /// All requests of clients; discards and zeroes are not counted.
        requests: Figure::counter(Unit::Things),
        /// Reads served entirely by the SSD; writes all of whose lines were cached already.
        hits: Figure::counter(Unit::Things),
        /// Reads that needed the disk, and may be cached; writes of which some line was not cached.
        misses: Figure::counter(Unit::Things),
        /// Requests past the cache: reads in modes `wo` and `pt`, writes in modes `ro` and `pt`, streams past the
        /// cut-off or longer than the SSD has room for, all requests of a volume without a cache.
        bypassed: Figure::counter(Unit::Things),
        /// Bytes of all requests.
        bytes: Figure::counter(Unit::Bytes),
    }
}

figures! {
    /// Lines of a cache.
    pub struct LineCounts {
        /// Lines that the cache can hold.
        total: Figure::gauge(Unit::Things),
        /// Lines that it holds now.
        used: Figure::gauge(Unit::Things),
        /// Lines that are not on the disk yet; after the loss of an SSD, lines that are lost.
        dirty: Figure::gauge(Unit::Things),
        /// Used lines that are still being loaded after a start; until then the disk serves them.
        loading: Figure::gauge(Unit::Things)
            .row_if_any("loading", "{} still to be loaded; the backing disk serves them until then"),
    }
}

figures! {
    /// Bytes moved on the drives of a volume.
    pub struct DeviceBytes {
        /// Bytes read from the SSD.
        ssd_read: Figure::counter(Unit::Bytes),
        /// Bytes written to the SSD, records and checkpoints included.
        ssd_written: Figure::counter(Unit::Bytes),
        /// Bytes read from the disk.
        origin_read: Figure::counter(Unit::Bytes).named("hdd_read"),
        /// Bytes written to the disk.
        origin_written: Figure::counter(Unit::Bytes).named("hdd_written"),
    }
}

figures! {
    /// What else is counted in a cache.
    pub struct CacheCounts {
        /// Memory of all data structures that grow with the cache, in bytes.
        memory_bytes: Figure::gauge(Unit::Bytes).row("memory", "{}"),
        /// Writes that were replaced by a newer write of the same range while they waited; they cost the SSD
        /// nothing.
        overwritten_writes: Figure::counter(Unit::Things)
            .row_if_any("overwritten", "{} writes, replaced by newer ones of the same range while they waited"),
        /// Hits that the disk served because the SSD was congested (setting `congested`).
        congested_reads: Figure::counter(Unit::Things)
            .row_if_any("congested", "{} hits, read from the idle backing disk because the SSD was busy"),
        /// Failed requests to the SSD.
        ssd_errors: Figure::counter(Unit::Things).unlisted(),
        /// Wrong or unreadable lines: clean ones, read again from the origin, and copies that a client replaced.
        repaired_lines: Figure::counter(Unit::Things).unlisted(),
        /// Reads refused because the only copy of a line is damaged.
        damaged_reads: Figure::counter(Unit::Things).unlisted(),
        /// Chunks of the map that were not whole at a start: each costs the clean lines in it.
        damaged_chunks: Figure::counter(Unit::Things).unlisted(),
        /// Clean lines that a start dropped because the origin may be newer.
        suspect_lines: Figure::counter(Unit::Things).unlisted(),
        /// Lines written to the origin by the cleaner.
        destaged_lines: Figure::counter(Unit::Things).unlisted(),
        /// Lines pushed out by the policy.
        evictions: Figure::counter(Unit::Things).unlisted(),
    }
}

figures! {
    /// What is counted of the origin.
    pub struct OriginCounts {
        /// Flushes that the disk failed since the volume was opened. Dirty lines are written again. If writes past
        /// the SSD (`wt`, `ro`, `pt`, long streams) may be lost, the next flush of a client fails, and `error` says
        /// so until then.
        failed_flushes: Figure::counter(Unit::Things)
            .named("hdd_failed_flushes")
            .row_if_any("disk flushes", "{} failed"),
        /// Failed requests to the origin.
        errors: Figure::counter(Unit::Things).unlisted(),
    }
}

impl RequestCounts {
    /// Hits per hit or miss, from 0 to 1; 0 when there were none.
    pub fn hit_rate(&self) -> f64 {
        let looked_up = self.hits + self.misses;
        if looked_up == 0 { 0.0 } else { self.hits as f64 / looked_up as f64 }
    }
}

/// The figures while they are being counted. Gauges stay 0 here: the status fills them in.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) reads: Cell<RequestCounts>,
    pub(crate) writes: Cell<RequestCounts>,
    pub(crate) device_bytes: DeviceBytes<Cell<u64>>,
    pub(crate) cache: CacheCounts<Cell<u64>>,
    pub(crate) origin: OriginCounts<Cell<u64>>,
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
pub(crate) fn count(direction: &Cell<RequestCounts>, served: Served, bytes: u64) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hit_rate_is_hits_by_lookups_and_zero_before_the_first() {
        assert_eq!(RequestCounts::default().hit_rate(), 0.0);
        let counts = RequestCounts { hits: 3, misses: 1, bypassed: 9, ..Default::default() };
        assert_eq!(counts.hit_rate(), 0.75);
    }
}
