//! Discards and zeroes: the cache forgets, the origin is told.

use std::rc::Rc;

use voltier_block::{BlockDevice, Durability, IoError, IoResult, SectorRange, zero_writes};

use crate::devices::health::SsdHealth;
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
const ZERO_PIECE_BYTES: u64 = 128 << 10;

/// The discards and zeroes of one cache.
pub(crate) struct Discarder<S, O> {
    is_read_only: bool,
    map: Rc<Map>,
    ssd: Rc<Ssd<S>>,
    origin: Rc<Origin<O>>,
    health: Rc<SsdHealth>,
    log: Rc<Log<S>>,
    locks: Rc<LineLocks>,
    router: Rc<Router<S>>,
    writer: Rc<Writer<S, O>>,
    direct: Rc<DirectWriter<S, O>>,
    flusher: Rc<Flusher<S, O>>,
}

impl<S: BlockDevice, O: BlockDevice> Discarder<S, O> {
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
            health: ground.health.clone(),
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
        drop(guard);
        if discarded != Err(IoError::Gone) || self.ssd.takes_writes() {
            return discarded;
        }
        // The only copy of a line must not go while it may come back. Without the locks: lines may be read
        // meanwhile.
        self.health.past_gate().await?;
        let _guard = self.locks.lock(first, last, Access::Exclusive).await;
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
        let piece_bytes = ZERO_PIECE_BYTES.max(self.map.geometry().line_bytes);
        for (piece, data) in zero_writes(range, piece_bytes) {
            let (first, last) = self.map.geometry().lines_of(piece);
            let guard = self.locks.lock(first, last, Access::Exclusive).await;
            let mut zeroed = match self.router.write_path(piece) {
                WritePath::Log => self.writer.write_to_log(piece, &data).await,
                WritePath::Through | WritePath::Around => {
                    self.direct.zero_past(piece, first, last).await
                }
            };
            drop(guard);
            if zeroed == Err(IoError::Gone) && !self.ssd.takes_writes() {
                self.health.past_gate().await?;
                let _guard = self.locks.lock(first, last, Access::Exclusive).await;
                zeroed = self.direct.write_without_ssd(piece, &data).await;
            }
            zeroed?;
        }
        Ok(())
    }
}
