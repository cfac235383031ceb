//! Writes: to the log, or to the origin and then to the log.

use voltier_block::{
    BlockDevice, Buf, Bytes, Durability, IoError, IoResult, Lba, Payload, SectorRange,
};

use super::route::WritePath;
use crate::cache::{Inner, mask_of};
use crate::canary::{self, Canary};
use crate::devices::ssd::{gather, slice};
use crate::log::change::{Change, Source};
use crate::map::locks::{Access, LineGuard};
use crate::serve::coalescing::{Answer, Overwritten};
use crate::serve::single_flight::Place;
use crate::status::{Served, add, count};

/// Share of the cache that may be dirty, in percent. Writers wait above it: what is left keeps the
/// policy able to evict and reclaiming able to find room.
const DIRTY_LIMIT_PERCENT: u64 = 90;

/// How a write's wait for its lines ends.
enum Turn {
    /// They are its, and those answer to it whose place it takes.
    Begins(LineGuard, Overwritten),
    /// Another one was written in its place.
    Ended(Answer),
}

impl<S: BlockDevice, O: BlockDevice> Inner<S, O> {
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
        let served = self.write_in_turn(range, data).await?;
        count(&self.counters.writes, served, range.bytes());
        match durability {
            Durability::Cached => Ok(()),
            // A durable record behind a lost one would not be replayed: flush what is before it.
            Durability::Durable => self.flush().await,
        }
    }

    async fn write_in_turn(&self, range: SectorRange, mut data: Payload) -> IoResult<Served> {
        let (first, last) = self.lines_of(range);
        let shared = canary::is(Canary::LockShared);
        let access = if shared { Access::Shared } else { Access::Exclusive };
        let free =
            self.turns.is_next(range).then(|| self.locks.try_lock(first, last, access)).flatten();
        let (guard, overwritten) = match free {
            Some(guard) => (guard, Overwritten::default()),
            None => match self.wait_for_turn(range, &mut data, access).await {
                Turn::Begins(guard, overwritten) => (guard, overwritten),
                Turn::Ended(answer) => return answer,
            },
        };
        let written = self.write_locked(guard, range, &data).await;
        overwritten.answer(&written);
        written
    }

    /// Waits for the log and for the lines. Newer writes of the same range that come meanwhile go in
    /// this one's place, as this one does for an older one that waits.
    async fn wait_for_turn(&self, range: SectorRange, data: &mut Payload, access: Access) -> Turn {
        let (first, last) = self.lines_of(range);
        loop {
            match self.turns.join(range, data) {
                Place::Leads(place) => {
                    self.turns.wait_for_log().await;
                    let guard = self.locks.lock(first, last, access).await;
                    let mut overwritten = place.begin();
                    if let Some(newest) = overwritten.left.take() {
                        *data = newest;
                    }
                    return Turn::Begins(guard, overwritten);
                }
                Place::Follows(answer) => {
                    // Without one the first was dropped: the next try is for the lines themselves.
                    if let Some(answer) = answer.await {
                        add(&self.counters.overwritten_writes, 1);
                        return Turn::Ended(answer);
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
        let (first, last) = self.lines_of(range);
        let path = self.write_path(range);
        let hit = self.all_cached(first, last);
        let mut written = match path {
            WritePath::Log => self.write_to_log(range, data).await,
            WritePath::Through | WritePath::Around => self.write_past(range, data, path).await,
        };
        if written == Err(IoError::Gone) && self.failed() {
            written = self.write_without_ssd(range, data).await;
        }
        drop(guard);
        written?;
        Ok(match path {
            WritePath::Around => Served::Bypassed,
            _ if hit => Served::Hit,
            _ => Served::Miss,
        })
    }

    fn all_cached(&self, first: u64, last: u64) -> bool {
        let state = self.state.borrow();
        (first..=last).all(|line| state.index.lookup(line).is_some())
    }

    /// Write-back: acknowledged when the log has it on the SSD's interface.
    pub(super) async fn write_to_log(&self, range: SectorRange, data: &Payload) -> IoResult<()> {
        if self.failed() {
            return Err(IoError::Gone);
        }
        self.wait_for_dirty_room().await;
        let changes = self.line_changes(range, data, Source::Write { dirty: true }, true).await?;
        let _in_log = self.turns.in_log(data.len());
        self.acked(self.queue(changes)).await?;
        let (first, last) = self.lines_of(range);
        self.forget_damage(first, last);
        Ok(())
    }

    async fn wait_for_dirty_room(&self) {
        let limit = self.geometry.capacity_lines() * DIRTY_LIMIT_PERCENT / 100;
        let room = || {
            let state = self.state.borrow();
            let waiting = (state.user.bytes() as u64) / self.geometry.line_bytes;
            state.index.dirty_lines() + waiting < limit || self.failed()
        };
        self.dirty_changed.until(room).await;
    }

    /// The changes that put a write's data into the log, line by line. Parts of lines that are not
    /// cached stay uncached unless `partial` lines may be made of them.
    async fn line_changes(
        &self,
        range: SectorRange,
        data: &Payload,
        source: Source,
        partial: bool,
    ) -> IoResult<Vec<Change>> {
        let line_sectors = self.geometry.line_sectors();
        let mut changes = Vec::with_capacity(1);
        for piece in range.split_at_multiples(line_sectors) {
            let line = piece.start.0 / line_sectors;
            let from = (piece.start.0 - range.start.0) as usize * 512;
            if piece.count == line_sectors {
                let data = slice(data, from, piece.bytes() as usize);
                changes.push(Change::Data { line, data, mask: None, source });
            } else {
                changes.push(match self.merge_line(line, piece, data, from, partial).await? {
                    Some((data, mask)) => Change::Data { line, data, mask, source },
                    // A fill that is still queued would bring the old content in.
                    None => Change::Drop { line },
                });
            }
        }
        Ok(changes)
    }

    /// A line with a part overwritten: what is cached of it is read and merged, the origin is not
    /// asked. `None` when nothing of it is cached and no partial line may be made.
    async fn merge_line(
        &self,
        line: u64,
        piece: SectorRange,
        payload: &Payload,
        from: usize,
        partial: bool,
    ) -> IoResult<Option<(Bytes, Option<u128>)>> {
        let all = self.line_mask(line);
        let in_line = piece.start.0 - self.line_range(line).start.0;
        let written = mask_of(in_line, piece.count);
        // The whole of a short last line needs nothing merged.
        let base = if written == all { None } else { self.cached_line(line).await? };
        if base.is_none() && !partial && written != all {
            return Ok(None);
        }
        let (mut buf, valid) = match base {
            Some((buf, mask)) => (buf, mask.unwrap_or(all)),
            None => (Buf::zeroed(self.geometry.line_bytes as usize), 0),
        };
        let at = in_line as usize * 512;
        gather(payload, from, &mut buf[at..at + piece.bytes() as usize]);
        let mask = if canary::is(Canary::MergeTorn) { all } else { valid | written };
        Ok(Some((buf.freeze(), if mask == all { None } else { Some(mask) })))
    }

    /// The cached copy of a line and its mask, verified; `None` if there is none worth having.
    ///
    /// # Errors
    /// `Medium` when the copy is dirty and damaged; `Gone` when the SSD is.
    async fn cached_line(&self, line: u64) -> IoResult<Option<(Buf, Option<u128>)>> {
        let found = || self.state.borrow().index.lookup(line);
        let pending = |slot: u32| self.state.borrow().index.is_pending(slot);
        self.log_progress.until(|| self.failed() || !found().is_some_and(pending)).await;
        if self.failed() {
            return Err(IoError::Gone);
        }
        let Some(slot) = found() else { return Ok(None) };
        let mask = self.state.borrow().index.mask(slot);
        match self.read_slot(slot).await {
            Ok(data) => Ok(Some((data, mask))),
            Err(_) if self.failed() => Err(IoError::Gone),
            Err(_) => self.give_up_line(line, slot).map(|()| None),
        }
    }

    /// Straight to the origin; the log gets a copy or the news that its old one is void.
    async fn write_past(
        &self,
        range: SectorRange,
        data: &Payload,
        path: WritePath,
    ) -> IoResult<()> {
        if self.failed() {
            return Err(IoError::Gone);
        }
        let (first, last) = self.lines_of(range);
        self.void_unloaded(first, last);
        let Ok(_direct) = self.intents.begin(&self.ssd, range).await else {
            self.fail_ssd();
            return Err(IoError::Gone);
        };
        let written = {
            let _order = self.origin_locks.lock(first, last, Access::Exclusive).await;
            self.write_origin(range.start, data.clone(), Durability::Cached).await
        };
        let changes = if path == WritePath::Through && written.is_ok() {
            self.line_changes(range, data, Source::Write { dirty: false }, false).await
        } else {
            // After an error nobody knows what the origin holds: cached copies are void too.
            Ok(self.drops(first, last))
        };
        match changes {
            Ok(changes) => self.commit(changes).await?,
            Err(_) if self.failed() => {}
            Err(error) => return Err(error),
        }
        written
    }

    /// Drops of every line that is cached, or that a queued fill may bring in.
    pub(super) fn drops(&self, first: u64, last: u64) -> Vec<Change> {
        let state = self.state.borrow();
        let fills_queued = !state.user.is_empty();
        (first..=last)
            .filter(|line| fills_queued || state.index.lookup(*line).is_some())
            .map(|line| Change::Drop { line })
            .collect()
    }

    /// Commits what a direct write changed, and all that was formed before it: an older record that
    /// made one of its lines clean or dropped it must not be lost when this write is acknowledged.
    pub(super) async fn commit(&self, changes: Vec<Change>) -> IoResult<()> {
        let committed =
            if changes.is_empty() { Ok(()) } else { self.acked(self.queue(changes)).await };
        match committed {
            Ok(()) => drop(self.all_acked().await),
            Err(error) if !self.failed() => return Err(error),
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
        self.past_gate().await;
        let (first, last) = self.lines_of(range);
        // The cleaner may have been writing an older version when the SSD was lost.
        let _order = self.origin_locks.lock(first, last, Access::Exclusive).await;
        self.write_origin(range.start, data.clone(), Durability::Cached).await?;
        self.heal(range);
        Ok(())
    }

    /// Lines of `range` are whole on the origin again.
    pub(super) fn heal(&self, range: SectorRange) {
        let line_sectors = self.geometry.line_sectors();
        let mut state = self.state.borrow_mut();
        for piece in range.split_at_multiples(line_sectors) {
            let line = piece.start.0 / line_sectors;
            let Some(slot) = state.index.lookup(line) else { continue };
            if state.index.is_dirty(slot) {
                let written = mask_of(piece.start.0 % line_sectors, piece.count);
                state.index.heal(slot, written, self.line_mask(line));
            } else {
                state.index.remove(slot);
            }
        }
    }
}
