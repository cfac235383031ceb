//! The counters of an array.

use std::cell::Cell;

/// Counters since the array was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads asked for.
    pub reads: u64,
    /// Writes asked for.
    pub writes: u64,
    /// Reads sent to members.
    pub member_reads: u64,
    /// Writes sent to members.
    pub member_writes: u64,
    /// Writes of superblocks and of the region map.
    pub metadata_writes: u64,
    /// Writes to the journal's rings: batches of records and labels.
    pub journal_writes: u64,
    /// Times that all members were flushed to make room in the journal.
    pub watermark_flushes: u64,
    /// Writes of stripes of which all data were new, copies included: nothing was read.
    pub full_stripe_writes: u64,
    /// Writes that read the data that stayed.
    pub reconstruct_writes: u64,
    /// Writes that read old data and old parity.
    pub modify_writes: u64,
    /// Writes that had to compute lost data.
    pub recover_writes: u64,
    /// Writes of less than a stripe, or parts of writes, that waited for others to go with.
    pub held_writes: u64,
    /// How long the held writes waited, in all, in nanoseconds.
    pub held_ns: u64,
    /// Held writes that went with others.
    pub merged_writes: u64,
    /// Times that several of them went together.
    pub merges: u64,
    /// Reads of a stripe that had to compute data.
    pub degraded_reads: u64,
    /// Chunks, or parts, written again after a medium error.
    pub repairs: u64,
    /// Chunks of parity, and copies, that did not match after a stop that was none.
    pub resynced_chunks: u64,
    /// Members lost since the start.
    pub members_lost: u64,
}

/// The counters in service.
#[derive(Default)]
pub(crate) struct Counters(Cell<Counts>);

impl Counters {
    pub(crate) fn of(counts: Counts) -> Self {
        Self(Cell::new(counts))
    }

    pub(crate) fn get(&self) -> Counts {
        self.0.get()
    }

    pub(crate) fn add(&self, change: impl FnOnce(&mut Counts)) {
        let mut counts = self.0.get();
        change(&mut counts);
        self.0.set(counts);
    }
}
