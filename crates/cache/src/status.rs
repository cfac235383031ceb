//! What a cache tells about itself: exact counters, and a snapshot of them.

use std::cell::Cell;

use voltier_block::{BlockDevice, SectorRange};

use crate::cache::Inner;
use crate::config::Mode;
use crate::devices::health::Health;
use crate::policy::PolicyKind;

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

/// Adds to a counter.
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

/// A snapshot of a cache.
#[derive(Clone, Debug)]
pub struct Status {
    /// How requests pass.
    pub mode: Mode,
    /// Who leaves when it is full.
    pub policy: PolicyKind,
    /// Bytes of a line.
    pub line_bytes: u64,
    /// Names the cache on its SSD.
    pub uuid: [u8; 16],
    /// Grows with every opening.
    pub generation: u64,
    /// Whether the SSD takes part.
    pub health: Health,
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
    /// Wrong or unreadable clean lines that were read again from the origin.
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

impl<S: BlockDevice, O: BlockDevice> Inner<S, O> {
    pub(crate) fn status(&self) -> Status {
        let state = self.state.borrow();
        let memory = state.index.memory_bytes()
            + state.policy.memory_bytes()
            + state.segments.memory_bytes()
            + state.loading.as_ref().map_or(0, |loading| loading.memory_bytes())
            + state.ordered.as_ref().map_or(0, |ordered| ordered.memory_bytes())
            + self.admission.borrow().memory_bytes()
            + self.locks.memory_bytes()
            + self.origin_locks.memory_bytes();
        Status {
            mode: self.settings.borrow().mode,
            policy: state.policy.kind(),
            line_bytes: self.geometry.line_bytes,
            uuid: state.uuid,
            generation: state.generation,
            health: self.health.get(),
            lines_total: self.geometry.capacity_lines(),
            lines_used: state.lines_expected(),
            lines_loading: state.loading.as_ref().map_or(0, |loading| loading.lines_left()),
            lines_dirty: state.index.dirty_lines(),
            memory_bytes: memory as u64,
            reads: self.counters.reads.get(),
            writes: self.counters.writes.get(),
            overwritten_writes: self.counters.overwritten_writes.get(),
            congested_reads: self.counters.congested_reads.get(),
            ssd_read_bytes: self.counters.ssd_read_bytes.get(),
            ssd_written_bytes: self.counters.ssd_written_bytes.get(),
            origin_read_bytes: self.counters.origin_read_bytes.get(),
            origin_written_bytes: self.counters.origin_written_bytes.get(),
            ssd_errors: self.counters.ssd_errors.get(),
            origin_errors: self.counters.origin_errors.get(),
            repaired_lines: self.counters.repaired_lines.get(),
            damaged_reads: self.counters.damaged_reads.get(),
            damaged_chunks: self.counters.damaged_chunks.get(),
            suspect_lines: state.counts.suspect_lines,
            destaged_lines: self.counters.destaged_lines.get(),
            evictions: state.counts.evictions,
            segments: (self.geometry.segment_count, state.segments.free_count() as u32),
        }
    }

    /// Ranges whose newest content was on a lost SSD, at most `count_max` of them, merged.
    pub(crate) fn lost_ranges(&self, count_max: usize) -> Vec<SectorRange> {
        let mut lost: Vec<SectorRange> = Vec::new();
        let state = self.state.borrow();
        let mut stretch = 0;
        while let Some(found) = state.index.next_dirty_stretch(stretch) {
            for (line, slot) in self.dirty_in_stretch(&state, found) {
                for run in self.valid_runs(line, state.index.mask(slot)) {
                    let full = lost.len() == count_max;
                    match lost.last_mut() {
                        Some(last) if last.end() == run.start => last.count += run.count,
                        _ if full => return lost,
                        _ => lost.push(run),
                    }
                }
            }
            stretch = found + 1;
        }
        lost
    }
}
