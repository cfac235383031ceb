//! Writes: to the log, or to the origin and then to the log.

use std::rc::Rc;

use voltier_block::{
    BlockDevice, Durability, IoError, IoResult, Lba, Limits, Payload, SectorRange,
};

use crate::canary::{self, Canary};
use crate::counters::{Counters, Served, add, count};
use crate::devices::ssd::Ssd;
use crate::ground::Ground;
use crate::log::change::Source;
use crate::log::commit::Log;
use crate::log::damage::Damage;
use crate::log::pressure::Pressure;
use crate::map::locks::{Access, LineGuard, LineLocks};
use crate::map::shared::Map;
use crate::serve::coalescing::{self, Answer, Coalescing, Overwritten};
use crate::serve::flush::Flusher;
use crate::serve::line_changes::LineMerger;
use crate::serve::route::{Router, WritePath};
use crate::serve::single_flight::Role;
use crate::serve::write_past::DirectWriter;

/// Share of the cache that may be dirty, in percent. Writers wait above it: what is left keeps the
/// policy able to evict and reclaiming able to find room.
const DIRTY_LIMIT_PERCENT: u64 = 90;

/// How a write's wait for its lines ends.
enum Wait {
    /// The write has its lines, and answers those that came later and wait.
    Leads(LineGuard, Overwritten),
    /// A write of the same range has answered for all.
    Overwritten(Answer),
}

/// The writes of one cache.
pub(crate) struct Writer<S, O> {
    limits: Limits,
    map: Rc<Map>,
    ssd: Rc<Ssd<S>>,
    log: Rc<Log<S>>,
    damage: Rc<Damage<S>>,
    pressure: Rc<Pressure>,
    locks: Rc<LineLocks>,
    router: Rc<Router<S>>,
    coalescing: Coalescing,
    merger: Rc<LineMerger<S>>,
    direct: Rc<DirectWriter<S, O>>,
    flusher: Rc<Flusher<S, O>>,
    counters: Rc<Counters>,
}

impl<S: BlockDevice, O: BlockDevice> Writer<S, O> {
    pub(crate) fn new(
        ground: &Ground<S, O>,
        router: Rc<Router<S>>,
        merger: Rc<LineMerger<S>>,
        direct: Rc<DirectWriter<S, O>>,
        flusher: Rc<Flusher<S, O>>,
    ) -> Self {
        Self {
            limits: ground.limits.clone(),
            map: ground.map.clone(),
            ssd: ground.ssd.clone(),
            log: ground.log.clone(),
            damage: ground.damage.clone(),
            pressure: ground.pressure.clone(),
            locks: ground.locks.clone(),
            router,
            coalescing: Coalescing::new(ground.map.geometry()),
            merger,
            direct,
            flusher,
            counters: ground.counters.clone(),
        }
    }

    pub(crate) async fn write(
        &self,
        at: Lba,
        data: Payload,
        durability: Durability,
    ) -> IoResult<()> {
        let range = SectorRange::from_bytes(at.bytes(), data.len() as u64);
        assert!(self.limits.accepts(range) && !range.is_empty(), "the volume checks ranges");
        if self.limits.read_only {
            return Err(IoError::ReadOnly);
        }
        let served = self.write_coalesced(range, data).await?;
        count(&self.counters.writes, served, range.bytes());
        match durability {
            Durability::Cached => Ok(()),
            // A durable record behind a lost one would not be replayed: flush what is before it.
            Durability::Durable => self.flusher.flush().await,
        }
    }

    async fn write_coalesced(&self, range: SectorRange, mut data: Payload) -> IoResult<Served> {
        let (first, last) = self.map.geometry().lines_of(range);
        let shared = canary::is(Canary::LockShared);
        let access = if shared { Access::Shared } else { Access::Exclusive };
        let free = self
            .coalescing
            .is_next(range)
            .then(|| self.locks.try_lock(first, last, access))
            .flatten();
        let (guard, overwritten) = match free {
            Some(guard) => (guard, Overwritten::default()),
            None => match self.wait_for_lines(range, &mut data, access).await {
                Wait::Leads(guard, overwritten) => (guard, overwritten),
                Wait::Overwritten(answer) => return answer,
            },
        };
        let written = self.write_locked(guard, range, &data).await;
        overwritten.answer(&written);
        written
    }

    /// Waits for the log and for the lines. The newest of the writes of the same range that come
    /// meanwhile goes in the place of the leader.
    async fn wait_for_lines(&self, range: SectorRange, data: &mut Payload, access: Access) -> Wait {
        let (first, last) = self.map.geometry().lines_of(range);
        loop {
            match self.coalescing.join(range, data) {
                Role::Leader(leader) => {
                    self.coalescing.wait_for_log().await;
                    let guard = self.locks.lock(first, last, access).await;
                    let mut overwritten = coalescing::begin(leader);
                    if let Some(newest) = overwritten.given.take() {
                        *data = newest;
                    }
                    return Wait::Leads(guard, overwritten);
                }
                Role::Waiter(answer) => {
                    // Without one the first was dropped: the next try is for the lines themselves.
                    if let Some(answer) = answer.await {
                        add(&self.counters.overwritten_writes, 1);
                        return Wait::Overwritten(answer);
                    }
                }
            }
        }
    }

    async fn write_locked(
        &self,
        guard: LineGuard,
        range: SectorRange,
        data: &Payload,
    ) -> IoResult<Served> {
        let (first, last) = self.map.geometry().lines_of(range);
        let path = self.router.write_path(range);
        let hit = self.map.has_all(first, last);
        let mut written = match path {
            WritePath::Log => self.write_to_log(range, data).await,
            WritePath::Through | WritePath::Around => {
                self.direct.write_past(range, data, path).await
            }
        };
        if written == Err(IoError::Gone) && self.ssd.failed() {
            written = self.direct.write_without_ssd(range, data).await;
        }
        drop(guard);
        written?;
        Ok(match path {
            WritePath::Around => Served::Bypassed,
            _ if hit => Served::Hit,
            _ => Served::Miss,
        })
    }

    /// Write-back: acknowledged when the log has it on the SSD's interface.
    pub(super) async fn write_to_log(&self, range: SectorRange, data: &Payload) -> IoResult<()> {
        if self.ssd.failed() {
            return Err(IoError::Gone);
        }
        self.wait_for_dirty_room().await;
        let changes =
            self.merger.line_changes(range, data, Source::Write { dirty: true }, true).await?;
        let _in_log = self.coalescing.in_log(data.len());
        self.log.acked(self.log.queue(changes)).await?;
        let (first, last) = self.map.geometry().lines_of(range);
        self.damage.forget(first, last);
        Ok(())
    }

    async fn wait_for_dirty_room(&self) {
        let limit = self.map.geometry().capacity_lines() * DIRTY_LIMIT_PERCENT / 100;
        let room = || {
            let waiting = (self.log.queued_bytes() as u64) / self.map.geometry().line_bytes;
            self.map.get().index().dirty_lines() + waiting < limit || self.ssd.failed()
        };
        self.pressure.until(room).await;
    }
}
