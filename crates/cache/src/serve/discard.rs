//! Discards and zeroes: the cache forgets, the origin is told.

use voltier_block::{BlockDevice, Buf, Durability, IoError, IoResult, Lba, Payload, SectorRange};

use super::route::WritePath;
use crate::cache::Inner;
use crate::log::change::Change;
use crate::map::locks::Access;

/// Zeroes written as data go in pieces of this size.
const ZERO_PIECE_SECTORS: u64 = 256;

impl<S: BlockDevice, O: BlockDevice> Inner<S, O> {
    /// Whole lines of the range: dropping a part of a line is not worth a merge.
    fn whole_lines(&self, range: SectorRange) -> Option<(u64, u64, SectorRange)> {
        let sectors = self.geometry.line_sectors();
        let first = range.start.0.div_ceil(sectors);
        let to_end = range.end().0 == self.geometry.origin_sectors;
        let end = if to_end { self.geometry.origin_lines() } else { range.end().0 / sectors };
        if first >= end {
            return None;
        }
        let start = Lba(first * sectors);
        let stop = self.line_range(end - 1).end();
        Some((first, end - 1, SectorRange::new(start, stop.0 - start.0)))
    }

    pub(crate) async fn discard(&self, range: SectorRange) -> IoResult<()> {
        if self.limits.read_only {
            return Err(IoError::ReadOnly);
        }
        let Some((first, last, whole)) = self.whole_lines(range) else { return Ok(()) };
        // Ahead of its turn it would break the order; as advice it may be left out.
        let ordered = self.state.borrow().ordered.is_some();
        if ordered && !self.failed() {
            return Ok(());
        }
        let _guard = self.locks.lock(first, last, Access::Exclusive).await;
        if self.failed() {
            self.past_gate().await;
            let _order = self.origin_locks.lock(first, last, Access::Exclusive).await;
            let discarded = self.origin.discard(whole).await;
            self.note_origin_change();
            discarded?;
            self.heal(whole);
            return Ok(());
        }
        self.void_unloaded(first, last);
        let Ok(_direct) = self.intents.begin(&self.ssd, whole).await else {
            self.fail_ssd();
            return Ok(());
        };
        // The content is given up from now on: dirty lines need not reach the origin any more.
        let drops = self.drops(first, last);
        self.commit(drops).await?;
        self.forget_damage(first, last);
        let _order = self.origin_locks.lock(first, last, Access::Exclusive).await;
        let discarded = self.origin.discard(whole).await;
        self.note_origin_change();
        match discarded {
            // A discard is advice; an origin that cannot take it keeps its content.
            Err(IoError::Unsupported) => Ok(()),
            done => done,
        }
    }

    pub(crate) async fn write_zeroes(
        &self,
        range: SectorRange,
        durability: Durability,
    ) -> IoResult<()> {
        if self.limits.read_only {
            return Err(IoError::ReadOnly);
        }
        let piece_sectors = ZERO_PIECE_SECTORS.max(self.geometry.line_sectors());
        let zeroes = Buf::zeroed(piece_sectors as usize * 512).freeze();
        for piece in range.split_at_multiples(piece_sectors) {
            let (first, last) = self.lines_of(piece);
            let _guard = self.locks.lock(first, last, Access::Exclusive).await;
            let data = Payload::One(zeroes.slice(0..piece.bytes() as usize));
            let mut zeroed = match self.write_path(piece) {
                WritePath::Log => self.write_to_log(piece, &data).await,
                WritePath::Through | WritePath::Around => self.zero_past(piece, first, last).await,
            };
            if zeroed == Err(IoError::Gone) && self.failed() {
                zeroed = self.write_without_ssd(piece, &data).await;
            }
            zeroed?;
        }
        match durability {
            Durability::Cached => Ok(()),
            Durability::Durable => self.flush().await,
        }
    }

    async fn zero_past(&self, piece: SectorRange, first: u64, last: u64) -> IoResult<()> {
        if self.failed() {
            return Err(IoError::Gone);
        }
        self.void_unloaded(first, last);
        let Ok(_direct) = self.intents.begin(&self.ssd, piece).await else {
            self.fail_ssd();
            return Err(IoError::Gone);
        };
        let zeroed = {
            let _order = self.origin_locks.lock(first, last, Access::Exclusive).await;
            let zeroed = self.origin.write_zeroes(piece, Durability::Cached).await;
            self.note_origin_change();
            zeroed
        };
        let drops: Vec<Change> = self.drops(first, last);
        self.commit(drops).await?;
        zeroed
    }
}
