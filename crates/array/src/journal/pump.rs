//! The tasks behind the rings: batches, labels, the watermark.

use std::rc::Rc;

use voltier_block::{BlockDevice, Durability, IoResult, Lba, Payload, SECTOR_BYTES};

use crate::array::Inner;
use crate::canary::{self, Canary};
use crate::journal::Journal;
use crate::journal::device::write_long;
use crate::journal::format::{BatchPlace, Entry, Label, Start, batch_blocks, encode_batch};
use crate::journal::ring::{Content, Pending};

impl<D: BlockDevice> Inner<D> {
    pub(super) fn journal_in_service(&self) -> &Journal {
        self.journal.get().expect("only an array with a journal has rings")
    }

    /// Writes what waits for a ring, batch after batch: what arrives while one is on its way
    /// goes out with the next.
    pub(super) async fn pump(self: Rc<Self>, ring: usize) {
        loop {
            let journal = self.journal_in_service();
            let batch = journal.ring(ring).borrow_mut().take_batch();
            if batch.is_empty() {
                journal.progress.notify();
                return;
            }
            let device = self.device_of_ring(ring);
            if let Err(error) = self.write_batch(ring, &batch).await {
                // Without its ring a member is of no use: it is lost, or the journal is.
                if let (Ok(device), Ok(())) = (device, journal.check()) {
                    let settled = self.settle_ring(ring, &device, Err(error));
                    settled.unwrap_or_else(|error| journal.fail(error));
                }
                let waiting = journal.ring(ring).borrow_mut().close();
                drop(waiting);
            }
            drop(batch);
        }
    }

    async fn write_batch(self: &Rc<Self>, ring: usize, batch: &[Pending]) -> IoResult<()> {
        let journal = self.journal_in_service();
        let data: Vec<_> = batch
            .iter()
            .flat_map(|pending| match &pending.content {
                Content::Data(data) => data.pieces(),
                Content::Zeroes { .. } => &[],
            })
            .cloned()
            .collect();
        let bytes: usize = data.iter().map(|piece| piece.len()).sum();
        let blocks = batch_blocks(bytes as u64 / SECTOR_BYTES);
        let block = self.make_room(ring, blocks).await?;
        let entries: Vec<Entry> = batch.iter().map(Pending::entry).collect();
        let last_number = batch.last().map_or(0, |last| last.number);
        let watermark = journal.transactions.borrow().watermark;
        let (place, range, is_half_full) = {
            let mut ring = journal.ring(ring).borrow_mut();
            let sequence = ring.append(block, blocks, last_number);
            let place = BatchPlace { block, life: ring.life(), sequence };
            (place, ring.place().range_of(block, blocks), ring.is_half_full(watermark))
        };
        if is_half_full && journal.can_advance() {
            // Early enough that writers seldom wait for it.
            self.handle.spawn(self.clone().advance_watermark());
        }
        let bounds = journal.transactions.borrow().bounds();
        let payload = encode_batch(journal.owner(ring), place, bounds, &entries, data);
        let durability = if canary::is(Canary::RecordNotDurable) {
            Durability::Cached
        } else {
            Durability::Durable
        };
        self.counters.add(|counts| counts.journal_writes += 1);
        self.write_ring(ring, range.start, payload, durability).await
    }

    /// A member is tried once more. A device of the journal's own is not: the members take over.
    async fn write_ring(
        self: &Rc<Self>,
        ring: usize,
        at: Lba,
        payload: Payload,
        durability: Durability,
    ) -> IoResult<()> {
        let device = self.device_of_ring(ring)?;
        let is_of_member = ring < self.members.len();
        match write_long(&*device, at, payload.clone(), durability).await {
            Err(error) if is_of_member && self.may_try_again(ring, &device, error) => {
                Box::pin(write_long(&*device, at, payload, durability)).await
            }
            result => result,
        }
    }

    /// Waits until so many blocks of a ring may be written over; the first of them.
    async fn make_room(self: &Rc<Self>, ring: usize, blocks: u64) -> IoResult<u64> {
        let journal = self.journal_in_service();
        loop {
            journal.check()?;
            self.device_of_ring(ring)?;
            if let Some(block) = journal.ring(ring).borrow().room_for(blocks) {
                return Ok(block);
            }
            let watermark = if canary::is(Canary::RoomReusedEarly) {
                u64::MAX >> 2
            } else {
                journal.transactions.borrow().watermark
            };
            let has_dead = journal.ring(ring).borrow().has_dead(watermark);
            if has_dead {
                // Durable before the room is used again: else a replay would miss records of some
                // members of transactions that it takes to be needed.
                let start = journal.ring(ring).borrow_mut().free_below(watermark);
                if canary::is(Canary::RoomReusedEarly) {
                    continue;
                }
                self.write_label(ring, start).await?;
            } else if journal.can_advance() {
                self.clone().advance_watermark().await;
            } else {
                journal.progress.wait().await;
            }
        }
    }

    pub(super) async fn write_label(self: &Rc<Self>, ring: usize, start: Start) -> IoResult<()> {
        let journal = self.journal_in_service();
        let label = Label::encode(journal.owner(ring), start);
        let at = journal.ring(ring).borrow().place().label_lba(start.number);
        self.counters.add(|counts| counts.journal_writes += 1);
        self.write_ring(ring, at, Payload::One(label), Durability::Durable).await
    }

    /// Flushes the members, so that the room of what is in place may be used again.
    async fn advance_watermark(self: Rc<Self>) {
        let journal = self.journal_in_service();
        if !journal.can_advance() {
            return;
        }
        let candidate = journal.transactions.borrow().candidate();
        journal.is_advancing.set(true);
        self.counters.add(|counts| counts.watermark_flushes += 1);
        let result =
            if canary::is(Canary::WatermarkBeforeFlush) { Ok(()) } else { self.flush_all().await };
        journal.is_advancing.set(false);
        match result {
            Ok(()) => journal.transactions.borrow_mut().raise_watermark(candidate),
            Err(error) => journal.fail(error),
        }
        journal.progress.notify();
    }

    /// Brings all that was acknowledged in place and says so in the labels, so that the next start has
    /// nothing to redo. No request may be under way.
    ///
    /// # Errors
    /// When a member that cannot be lost does not take it.
    pub(crate) async fn settle_journal(self: &Rc<Self>) -> IoResult<()> {
        let Some(journal) = self.journal.get() else { return Ok(()) };
        journal.progress.until(|| journal.check().is_err() || journal.is_at_rest()).await;
        journal.check()?;
        let candidate = journal.transactions.borrow().candidate();
        self.flush_all().await?;
        journal.transactions.borrow_mut().raise_watermark(candidate);
        for ring in self.rings_in_use() {
            let Ok(device) = self.device_of_ring(ring) else { continue };
            let start = journal.ring(ring).borrow_mut().free_below(candidate);
            let written = self.write_label(ring, start).await;
            self.settle_ring(ring, &device, written)?;
        }
        self.losses_recorded().await
    }

    /// A member's device, for its ring: that is no part of the data area.
    ///
    /// # Errors
    /// `Gone` when the member is lost.
    pub(super) fn device_of(&self, member: usize) -> IoResult<Rc<D>> {
        self.members[member].device()
    }
}
