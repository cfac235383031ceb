//! Discards and zeroes: the cache forgets, the origin is told.
//!
//! Zeroes that are written back go past the log where that costs the origin metadata only. Runs of lines of
//! which the log has the newest copy stay in the log, as data: all rules of dirty lines hold for them. The
//! other runs keep the rules of a write past the log.

use std::pin::pin;
use std::rc::Rc;

use voltier_block::{
    DriveControl, Durability, IoError, IoResult, Lba, SECTOR_BYTES, SectorRange, zero_writes,
};

use crate::canary::{self, Canary};
use crate::devices::health::Health;
use crate::devices::origin::{Origin, Space};
use crate::devices::ssd::Ssd;
use crate::ground::Ground;
use crate::log::commit::Log;
use crate::map::locks::LineLocks;
use crate::map::shared::Map;
use crate::serve::route::{Router, WritePath};
use crate::serve::write::{DirectWriter, Writer};

/// Zeroes written as data go in pieces of this size.
const DATA_BYTES: u64 = 128 << 10;
/// Discards, and zeroes of which a part may go to the origin where zeroes are cheap, go in pieces. A piece is at
/// least as long as this, if the request is, and ends at a multiple of it.
const CHEAP_PIECE_BYTES: u64 = 4 << 20;
/// A longer piece has at most about so many cached lines: its locks stop no client for long.
const CACHED_LINES_MAX: u64 = 1024;
/// On a small cache it is one line in so many.
const CACHED_SHARE: u64 = 16;
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
}

impl<S: DriveControl, O: DriveControl> Discarder<S, O> {
    pub(crate) fn new(
        ground: &Ground<S, O>,
        router: Rc<Router<S>>,
        writer: Rc<Writer<S, O>>,
        direct: Rc<DirectWriter<S, O>>,
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
        }
    }

    pub(crate) async fn discard(&self, range: SectorRange) -> IoResult<()> {
        if self.is_read_only {
            return Err(IoError::ReadOnly);
        }
        // Dropping a part of a line is not worth a merge.
        let Some((_, _, whole)) = self.map.geometry().whole_lines(range) else {
            return Ok(());
        };
        // Ahead of its turn it would break the order; as advice it may be left out.
        if self.log.is_ordered() && !self.ssd.failed() {
            return Ok(());
        }
        let mut rest = whole;
        while !rest.is_empty() {
            let piece = self.piece_of(rest, true);
            self.discard_piece(piece).await?;
            rest = SectorRange::new(piece.end(), rest.count - piece.count);
        }
        Ok(())
    }

    /// The first piece of a range: if it may be long, as long as little of it is cached.
    fn piece_of(&self, range: SectorRange, may_be_long: bool) -> SectorRange {
        let geometry = self.map.geometry();
        let shortest = CHEAP_PIECE_BYTES.max(geometry.line_bytes) / SECTOR_BYTES;
        let mut end = Lba((range.start.0 / shortest + 1) * shortest);
        // In an evacuation each piece waits until its own lines are on the origin.
        if may_be_long && self.ssd.health() != Health::Evacuating {
            let (first, last) = geometry.lines_of(range);
            let cached_max = (geometry.capacity_lines() / CACHED_SHARE).min(CACHED_LINES_MAX);
            let last = self.map.get().index().last_of_piece(first, last, cached_max);
            end = end.max(geometry.line_range(last).end());
        }
        SectorRange::new(range.start, end.min(range.end()).0 - range.start.0)
    }

    /// Discards whole lines.
    async fn discard_piece(&self, piece: SectorRange) -> IoResult<()> {
        let (first, last) = self.map.geometry().lines_of(piece);
        let guard = self.locks.lock_range(first, last).await;
        let discarded = self.origin.judged(pin!(self.direct.discard(first, last, piece))).await;
        if discarded != Err(IoError::Gone) || self.ssd.takes_writes() {
            return discarded;
        }
        // The only copy of a line must not go while it may come back.
        let ticket = self.direct.enter_redo(piece);
        drop(guard);
        for part in self.parts_without_ssd(piece) {
            let _guard = self.direct.lock_part_without_ssd(&ticket, part).await?;
            let (first, last) = self.map.geometry().lines_of(part);
            self.origin.judged(pin!(self.direct.discard_without_ssd(first, last, part))).await?;
        }
        Ok(())
    }

    /// The parts of a piece that are changed one by one without the SSD: in an evacuation short ones, each of
    /// which waits until its own lines are on the origin.
    fn parts_without_ssd(
        &self,
        piece: SectorRange,
    ) -> impl Iterator<Item = SectorRange> + use<S, O> {
        let shortest = CHEAP_PIECE_BYTES.max(self.map.geometry().line_bytes) / SECTOR_BYTES;
        let is_short = self.ssd.health() == Health::Evacuating;
        piece.split_at_multiples(if is_short { shortest } else { u64::MAX })
    }

    pub(crate) async fn write_zeroes(
        &self,
        range: SectorRange,
        durability: Durability,
        space: Space,
    ) -> IoResult<()> {
        if self.is_read_only {
            return Err(IoError::ReadOnly);
        }
        if space == Space::Kept && !self.origin.takes_in_place() {
            return Err(IoError::Unsupported);
        }
        // Before the flush: a durable request is no more durable than its pieces.
        self.origin.judged(pin!(self.zero_pieces(range, space))).await?;
        match durability {
            Durability::Cached => Ok(()),
            Durability::Durable => self.writer.make_durable().await,
        }
    }

    async fn zero_pieces(&self, range: SectorRange, space: Space) -> IoResult<()> {
        let data_bytes = DATA_BYTES.max(self.map.geometry().line_bytes);
        let mut rest = range;
        while !rest.is_empty() {
            let piece = match self.origin.limits().cheap_zeroes {
                true => self.piece_of(rest, self.zeroes_pass()),
                false => first_piece(rest, data_bytes / SECTOR_BYTES),
            };
            self.zero_piece(piece, space).await?;
            rest = SectorRange::new(piece.end(), rest.count - piece.count);
        }
        Ok(())
    }

    /// Whether zeroes that are written back may go past the log.
    fn zeroes_pass(&self) -> bool {
        self.origin.takes_cheap_zeroes() && !self.log.is_ordered()
    }

    async fn zero_piece(&self, piece: SectorRange, space: Space) -> IoResult<()> {
        let (first, last) = self.map.geometry().lines_of(piece);
        let guard = self.locks.lock_range(first, last).await;
        let stream_bytes = self.router.observe_write(piece);
        let zeroed = match self.router.write_path(piece, stream_bytes) {
            WritePath::Log => self.zero_line_runs(piece, space).await,
            // A stream that could be written back.
            WritePath::Around if self.router.writes_back() => {
                self.zero_past_or_in_log(piece, space).await
            }
            WritePath::Through | WritePath::Around => self.direct.zero_past(piece, space).await,
        };
        if zeroed != Err(IoError::Gone) || self.ssd.takes_writes() {
            return zeroed;
        }
        let ticket = self.direct.enter_redo(piece);
        drop(guard);
        for part in self.parts_without_ssd(piece) {
            let _guard = self.direct.lock_part_without_ssd(&ticket, part).await?;
            self.direct.zero_without_ssd(part, space).await?;
        }
        Ok(())
    }

    /// Zeroes runs of lines, each on its way. The caller holds the locks of the lines, so that no other line
    /// becomes dirty meanwhile.
    async fn zero_line_runs(&self, piece: SectorRange, space: Space) -> IoResult<()> {
        let is_passing = self.zeroes_pass() && piece.bytes() >= CHEAP_BYTES_MIN;
        let past = if is_passing { self.runs_past(piece) } else { Vec::new() };
        let mut at = piece.start;
        for run in past {
            self.zero_in_log(SectorRange::new(at, run.start.0 - at.0)).await?;
            self.zero_past_or_in_log(run, space).await?;
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
        let mut at = whole.start;
        if !canary::is(Canary::ZeroesPassDirty) {
            for line in contents.index().dirty_between(first, last) {
                let dirty = self.map.geometry().line_range(line);
                runs.push(SectorRange::new(at, dirty.start.0 - at.0));
                at = dirty.end();
            }
        }
        runs.push(SectorRange::new(at, whole.end().0 - at.0));
        runs.retain(|run| run.bytes() >= CHEAP_BYTES_MIN);
        runs
    }

    /// Zeroes past the log. A run that the origin refuses goes into the log as data.
    async fn zero_past_or_in_log(&self, run: SectorRange, space: Space) -> IoResult<()> {
        match self.direct.zero_past(run, space).await {
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

/// What a range has before the next multiple of so many sectors.
fn first_piece(range: SectorRange, boundary: u64) -> SectorRange {
    range.split_at_multiples(boundary).next().unwrap_or(range)
}
