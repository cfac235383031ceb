//! Changes of the origin past the log: marked first, and then told to the log.

use std::rc::Rc;

use voltier_block::{BlockDevice, IoError, IoResult, Payload, SectorRange};

use crate::devices::health::SsdHealth;
use crate::devices::origin::Origin;
use crate::devices::ssd::Ssd;
use crate::ground::Ground;
use crate::log::change::{Change, Source};
use crate::log::commit::Log;
use crate::log::damage::Damage;
use crate::log::intents::Intents;
use crate::map::shared::Map;
use crate::serve::line_changes::LineMerger;
use crate::serve::route::WritePath;

/// The direct way to the origin of one cache.
pub(crate) struct DirectWriter<S, O> {
    map: Rc<Map>,
    ssd: Rc<Ssd<S>>,
    origin: Rc<Origin<O>>,
    log: Rc<Log<S>>,
    health: Rc<SsdHealth>,
    intents: Rc<Intents>,
    damage: Rc<Damage<S>>,
    merger: Rc<LineMerger<S>>,
}

impl<S: BlockDevice, O: BlockDevice> DirectWriter<S, O> {
    pub(crate) fn new(ground: &Ground<S, O>, merger: Rc<LineMerger<S>>) -> Self {
        Self {
            map: ground.map.clone(),
            ssd: ground.ssd.clone(),
            origin: ground.origin.clone(),
            log: ground.log.clone(),
            health: ground.health.clone(),
            intents: ground.intents.clone(),
            damage: ground.damage.clone(),
            merger,
        }
    }

    /// Straight to the origin; the log gets a copy or the news that its old one is void.
    pub(super) async fn write_past(
        &self,
        range: SectorRange,
        data: &Payload,
        path: WritePath,
    ) -> IoResult<()> {
        if self.ssd.failed() {
            return Err(IoError::Gone);
        }
        let (first, last) = self.map.geometry().lines_of(range);
        self.map.void_unloaded(first, last);
        let Ok(_direct) = self.intents.begin(self.ssd.device(), range).await else {
            self.ssd.give_up();
            return Err(IoError::Gone);
        };
        let written = {
            let _order = self.origin.lock(first, last).await;
            self.origin.write(range.start, data.clone()).await
        };
        let changes = if path == WritePath::Through && written.is_ok() {
            self.merger.line_changes(range, data, Source::Write { dirty: false }, false).await
        } else {
            // After an error nobody knows what the origin holds: cached copies are void too.
            Ok(self.drops(first, last))
        };
        match changes {
            Ok(changes) => self.commit(changes).await?,
            Err(_) if self.ssd.failed() => {}
            Err(error) => return Err(error),
        }
        written
    }

    /// Drops of every line that is cached, or that a queued fill may bring in.
    pub(super) fn drops(&self, first: u64, last: u64) -> Vec<Change> {
        let contents = self.map.get();
        let fills_queued = self.log.has_queued();
        (first..=last)
            .filter(|line| fills_queued || contents.index().lookup(*line).is_some())
            .map(|line| Change::Drop { line })
            .collect()
    }

    /// Commits what a direct write changed, and all that was formed before it: an older record that
    /// made one of its lines clean or dropped it must not be lost when this write is acknowledged.
    pub(super) async fn commit(&self, changes: Vec<Change>) -> IoResult<()> {
        let committed =
            if changes.is_empty() { Ok(()) } else { self.log.acked(self.log.queue(changes)).await };
        match committed {
            Ok(()) => drop(self.log.all_acked().await),
            Err(error) if !self.ssd.failed() => return Err(error),
            Err(_) => {}
        }
        Ok(())
    }

    /// The SSD is gone: the origin takes the write, and sectors that were lost have content again.
    pub(super) async fn write_without_ssd(
        &self,
        range: SectorRange,
        data: &Payload,
    ) -> IoResult<()> {
        self.health.past_gate().await;
        let (first, last) = self.map.geometry().lines_of(range);
        // The cleaner may have been writing an older version when the SSD was lost.
        let _order = self.origin.lock(first, last).await;
        self.origin.write(range.start, data.clone()).await?;
        self.map.change().heal(range);
        Ok(())
    }

    /// Zeroes of the origin; the log gets the news that its copies are void.
    pub(super) async fn zero_past(
        &self,
        piece: SectorRange,
        first: u64,
        last: u64,
    ) -> IoResult<()> {
        if self.ssd.failed() {
            return Err(IoError::Gone);
        }
        self.map.void_unloaded(first, last);
        let Ok(_direct) = self.intents.begin(self.ssd.device(), piece).await else {
            self.ssd.give_up();
            return Err(IoError::Gone);
        };
        let zeroed = {
            let _order = self.origin.lock(first, last).await;
            self.origin.write_zeroes(piece).await
        };
        self.commit(self.drops(first, last)).await?;
        zeroed
    }

    /// Discards whole lines, whose locks the caller holds: the cache forgets them, the origin is told.
    pub(super) async fn discard(&self, first: u64, last: u64, whole: SectorRange) -> IoResult<()> {
        if self.ssd.failed() {
            self.health.past_gate().await;
            let _order = self.origin.lock(first, last).await;
            let discarded = self.origin.discard(whole).await;
            discarded?;
            self.map.change().heal(whole);
            return Ok(());
        }
        self.map.void_unloaded(first, last);
        let Ok(_direct) = self.intents.begin(self.ssd.device(), whole).await else {
            self.ssd.give_up();
            return Ok(());
        };
        // The content is given up from now on: dirty lines need not reach the origin any more.
        self.commit(self.drops(first, last)).await?;
        self.damage.forget(first, last);
        let _order = self.origin.lock(first, last).await;
        let discarded = self.origin.discard(whole).await;
        match discarded {
            // A discard is advice; an origin that cannot take it keeps its content.
            Err(IoError::Unsupported) => Ok(()),
            done => done,
        }
    }
}
