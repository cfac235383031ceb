//! The figures of an array and of its members: each is declared here.

use std::cell::Cell;

use voltier_block::{Figure, Unit, figures};

figures! {
    /// Counters since the array was assembled.
    pub struct Counts {
        /// Reads of the array.
        reads: Figure::counter(Unit::Things),
        /// Writes to the array.
        writes: Figure::counter(Unit::Things),
        /// Reads of members, without journal and superblocks.
        member_reads: Figure::counter(Unit::Things),
        /// Writes to members, without journal and superblocks.
        member_writes: Figure::counter(Unit::Things),
        /// Writes of superblocks and of the region map.
        metadata_writes: Figure::counter(Unit::Things).unlisted(),
        /// Writes to the journal's rings: batches of records and labels.
        journal_writes: Figure::counter(Unit::Things).unlisted(),
        /// Times that all members were flushed to make room in the journal.
        watermark_flushes: Figure::counter(Unit::Things).unlisted(),
        /// Stripes of which all data were written, so nothing was read.
        full_stripe_writes: Figure::counter(Unit::Things),
        /// Stripes written after reading the unchanged data.
        reconstruct_writes: Figure::counter(Unit::Things),
        /// Stripes written after reading old data and old parity.
        modify_writes: Figure::counter(Unit::Things),
        /// Stripes written after computing lost data.
        recover_writes: Figure::counter(Unit::Things),
        /// Writes of less than a stripe, or parts of writes, that waited to be merged with others.
        held_writes: Figure::counter(Unit::Things),
        /// How long these waited in all, in microseconds.
        held_ns: Figure::counter(Unit::Time).named("held_us"),
        /// How many of these were merged.
        merged_writes: Figure::counter(Unit::Things),
        /// How many merged writes there were.
        merges: Figure::counter(Unit::Things),
        /// Reads for which data had to be computed.
        degraded_reads: Figure::counter(Unit::Things),
        /// Chunks, or parts of chunks, rewritten after a medium error.
        repairs: Figure::counter(Unit::Things).row("repairs", "{}"),
        /// Chunks of parity, and copies, that did not match after an unclean shutdown.
        resynced_chunks: Figure::counter(Unit::Things).unlisted(),
        /// Members lost since the start.
        members_lost: Figure::counter(Unit::Things).unlisted(),
    }
}

figures! {
    /// Figures of a member, since it was added or the array was assembled.
    pub struct MemberCounts {
        /// Failed reads.
        errors_read: Figure::counter(Unit::Things),
        /// Failed writes and flushes.
        errors_write: Figure::counter(Unit::Things),
        /// Parts rewritten after a failed read.
        repaired: Figure::counter(Unit::Things),
        /// Recent errors: each counts half after every `error_window`.
        errors_recent: Figure::gauge(Unit::Things),
        /// Blocks that did not match their checksums.
        checksum_errors: Figure::counter(Unit::Things),
        /// How many of these were repaired.
        checksum_mended: Figure::counter(Unit::Things),
        /// Pages of checksums, each for 3.9 MiB, that the drive refuses to store (unknown to the next start), or
        /// that could not be read and are not complete yet.
        unprotected_pages: Figure::gauge(Unit::Things).row_if_any("", "{} pages of checksums missing"),
        /// For how many seconds it has not answered, if that is longer than the `deadline`; otherwise 0.
        unanswered_s: Figure::gauge(Unit::Seconds).row_if_any("", "no answer for {} s"),
        /// Requests in flight on a drive that was this member and was failed; it cannot come back until they end.
        undrained_requests: Figure::gauge(Unit::Things).row_if_any("", "{} old requests still in flight"),
    }
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
