//! Discards and zeroes: the cache forgets, the origin is told.
//!
//! Zeroes that are written back go past the log where that costs the origin metadata only. Runs of lines of
//! which the log has the newest copy stay in the log, as data: all rules of dirty lines hold for them. The
//! other runs keep the rules of a write past the log.

use std::rc::Rc;

use voltier_block::{
    DriveControl, Durability, IoError, IoResult, SECTOR_BYTES, SectorRange, zero_writes,
};

use crate::canary::{self, Canary};
use crate::devices::origin::Origin;
use crate::devices::ssd::Ssd;
use crate::ground::Ground;
use crate::log::commit::Log;
use crate::map::locks::{Access, LineLocks};
use crate::map::shared::Map;
use crate::serve::flush::Flusher;
use crate::serve::route::{Router, WritePath};
use crate::serve::write::{DirectWriter, Writer};

/// Zeroes written as data go in pieces of this size.
const DATA_BYTES: u64 = 128 << 10;
/// Zeroes of which a part may go to the origin, where zeroes are cheap, go in pieces of this size. The piece
/// is so short that its locks stop no client for long.
const CHEAP_PIECE_BYTES: u64 = 4 << 20;
/// Shorter runs of zeroes are data for the log wherever they are. A run past the log may cost a write of an
/// intent bit, and costs the next flush a flush of the origin.
const CHEAP_BYTES_MIN: u64 = 64 << 10;

/// The discards and zeroes of one cache.
pub(crate) struct Discarder<S, O> {
    is_read_only: bool,
    map: Rc<Map>,
    ssd: Rc<Ssd<S>>,
    origin: Rc<Origin<O>>,
    log: Rc<Log<S>>,
    locks: Rc<LineLocks>,
    router: Rc<Router<S>>,
    writer: Rc<Writer<S, O>>,
    direct: Rc<DirectWriter<S, O>>,
    flusher: Rc<Flusher<S, O>>,
}

impl<S: DriveControl, O: DriveControl> Discarder<S, O> {
    pub(crate) fn new(
        ground: &Ground<S, O>,
        router: Rc<Router<S>>,
        writer: Rc<Writer<S, O>>,
        direct: Rc<DirectWriter<S, O>>,
        flusher: Rc<Flusher<S, O>>,
    ) -> Self {
        Self {
            is_read_only: ground.limits.read_only,
            map: ground.map.clone(),
            ssd: ground.ssd.clone(),
            origin: ground.origin.clone(),
            log: ground.log.clone(),
            locks: ground.locks.clone(),
            router,
            writer,
            direct,
            flusher,
        }
    }

    pub(crate) async fn discard(&self, range: SectorRange) -> IoResult<()> {
        if self.is_read_only {
            return Err(IoError::ReadOnly);
        }
        // Dropping a part of a line is not worth a merge.
        let Some((first, last, whole)) = self.map.geometry().whole_lines(range) else {
            return Ok(());
        };
        // Ahead of its turn it would break the order; as advice it may be left out.
        if self.log.is_ordered() && !self.ssd.failed() {
            return Ok(());
        }
        let guard = self.locks.lock(first, last, Access::Exclusive).await;
        let discarded = self.origin.judged(self.direct.discard(first, last, whole)).await;
        if discarded != Err(IoError::Gone) || self.ssd.takes_writes() {
            return discarded;
        }
        // The only copy of a line must not go while it may come back.
        let _guard = self.direct.lock_without_ssd(guard, whole).await?;
        self.origin.judged(self.direct.discard_without_ssd(first, last, whole)).await
    }

    pub(crate) async fn write_zeroes(
        &self,
        range: SectorRange,
        durability: Durability,
    ) -> IoResult<()> {
        if self.is_read_only {
            return Err(IoError::ReadOnly);
        }
        // Before the flush: a durable request is no more durable than its pieces.
        self.origin.judged(self.zero_pieces(range)).await?;
        match durability {
            Durability::Cached => Ok(()),
            Durability::Durable => self.flusher.flush().await,
        }
    }

    async fn zero_pieces(&self, range: SectorRange) -> IoResult<()> {
        let longest =
            if self.origin.limits().cheap_zeroes { CHEAP_PIECE_BYTES } else { DATA_BYTES };
        let piece_bytes = longest.max(self.map.geometry().line_bytes);
        for piece in range.split_at_multiples(piece_bytes / SECTOR_BYTES) {
            self.zero_piece(piece).await?;
        }
        Ok(())
    }

    async fn zero_piece(&self, piece: SectorRange) -> IoResult<()> {
        let (first, last) = self.map.geometry().lines_of(piece);
        let guard = self.locks.lock(first, last, Access::Exclusive).await;
        let zeroed = match self.router.write_path(piece) {
            WritePath::Log => self.zero_line_runs(piece).await,
            WritePath::Through | WritePath::Around => {
                self.direct.zero_past(piece, first, last).await
            }
        };
        if zeroed != Err(IoError::Gone) || self.ssd.takes_writes() {
            return zeroed;
        }
        let _guard = self.direct.lock_without_ssd(guard, piece).await?;
        self.direct.zero_without_ssd(piece).await
    }

    /// Zeroes runs of lines, each on its way. The caller holds the locks of the lines, so that no other line
    /// becomes dirty meanwhile.
    async fn zero_line_runs(&self, piece: SectorRange) -> IoResult<()> {
        let is_passing = self.origin.takes_cheap_zeroes()
            && !self.log.is_ordered()
            && piece.bytes() >= CHEAP_BYTES_MIN;
        let past = if is_passing { self.runs_past(piece) } else { Vec::new() };
        let mut at = piece.start;
        for run in past {
            self.zero_in_log(SectorRange::new(at, run.start.0 - at.0)).await?;
            self.zero_past_or_in_log(run).await?;
            at = run.end();
        }
        self.zero_in_log(SectorRange::new(at, piece.end().0 - at.0)).await
    }

    /// The runs of whole lines that may go past the log: long ones, of which the origin has the newest copy.
    fn runs_past(&self, piece: SectorRange) -> Vec<SectorRange> {
        let Some((first, last, whole)) = self.map.geometry().whole_lines(piece) else {
            return Vec::new();
        };
        let contents = self.map.get();
        let mut runs: Vec<SectorRange> = Vec::new();
        if contents.index().dirty_lines() == 0 || canary::is(Canary::ZeroesPassDirty) {
            runs.push(whole);
        } else {
            for line in first.through(last).filter(|line| !contents.is_dirty(*line)) {
                let range = self.map.geometry().line_range(line);
                match runs.last_mut() {
                    Some(run) if run.end() == range.start => run.count += range.count,
                    _ => runs.push(range),
                }
            }
        }
        runs.retain(|run| run.bytes() >= CHEAP_BYTES_MIN);
        runs
    }

    /// Zeroes past the log. A run that the origin refuses goes into the log as data.
    async fn zero_past_or_in_log(&self, run: SectorRange) -> IoResult<()> {
        let (first, last) = self.map.geometry().lines_of(run);
        match self.direct.zero_past(run, first, last).await {
            Err(_) if self.ssd.takes_writes() => self.zero_in_log(run).await,
            zeroed => zeroed,
        }
    }

    /// Zeroes as data.
    async fn zero_in_log(&self, range: SectorRange) -> IoResult<()> {
        if range.is_empty() {
            return Ok(());
        }
        let data_bytes = DATA_BYTES.max(self.map.geometry().line_bytes);
        for (part, data) in zero_writes(range, data_bytes) {
            self.writer.write_to_log(part, &data).await?;
        }
        Ok(())
    }
}
