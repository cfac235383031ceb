//! The tasks that write to the rings: batches, labels, the watermark.

use std::rc::Rc;

use voltier_block::{DriveControl, Durability, IoResult, Lba, Payload, SECTOR_BYTES};
use voltier_ring::Handle;

use crate::canary::{self, Canary};
use crate::format::journal_record::{
    BatchPlace, Entry, Label, RingIndex, Start, batch_blocks, encode_batch,
};
use crate::journal::ledger::Ledger;
use crate::journal::placement::Placement;
use crate::journal::ring::{Content, Pending};
use crate::members::long_transfer::write_long;
use crate::members::member_set::MemberSet;
use crate::membership::current::Membership;

/// The tasks that write to the rings.
pub(crate) struct JournalWriter<D> {
    handle: Handle,
    members: Rc<MemberSet<D>>,
    membership: Rc<Membership>,
    placement: Rc<Placement<D>>,
}

impl<D: DriveControl> JournalWriter<D> {
    pub(super) fn new(
        handle: &Handle,
        members: &Rc<MemberSet<D>>,
        membership: &Rc<Membership>,
        placement: &Rc<Placement<D>>,
    ) -> Self {
        Self {
            handle: handle.clone(),
            members: members.clone(),
            membership: membership.clone(),
            placement: placement.clone(),
        }
    }

    /// Writes what waits for a ring, batch after batch: what arrives while one is on its way
    /// goes out with the next.
    pub(super) async fn write_queue(self: Rc<Self>, ring: RingIndex) {
        loop {
            let journal = self.placement.in_service();
            let batch = journal.ring_mut(ring).take_batch();
            if batch.is_empty() {
                journal.notify();
                return;
            }
            let device = self.placement.device_of_ring(ring);
            if let Err(error) = self.write_batch(ring, &batch).await {
                // A member without its ring is of no use: the member is lost, or the journal is.
                if let (Ok(device), Ok(())) = (device, journal.check()) {
                    let left = self.placement.lose_ring_on_error(ring, &device, Err(error));
                    left.unwrap_or_else(|error| self.placement.fail(error));
                }
                let waiting = journal.ring_mut(ring).close();
                drop(waiting);
            }
            drop(batch);
        }
    }

    async fn write_batch(self: &Rc<Self>, ring: RingIndex, batch: &[Pending]) -> IoResult<()> {
        let journal = self.placement.in_service();
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
        let watermark = journal.watermark();
        let (place, range, is_half_full) = {
            let mut ring = journal.ring_mut(ring);
            let sequence = ring.append(block, blocks, last_number);
            let place = BatchPlace { block, life: ring.life(), sequence };
            (place, ring.place().range_of(block, blocks), ring.is_half_full(watermark))
        };
        if is_half_full && journal.can_advance() {
            // Early enough that writers seldom wait for it.
            self.handle.spawn(self.clone().advance_watermark());
        }
        let bounds = journal.bounds();
        let payload = encode_batch(journal.owner(ring), place, bounds, &entries, data);
        let durability = if canary::is(Canary::RecordNotDurable) {
            Durability::Cached
        } else {
            Durability::Durable
        };
        self.members.counters().add(|counts| counts.journal_writes += 1);
        self.write_ring(ring, range.start, payload, durability).await
    }

    async fn write_ring(
        self: &Rc<Self>,
        ring: RingIndex,
        at: Lba,
        payload: Payload,
        durability: Durability,
    ) -> IoResult<()> {
        let device = self.placement.device_of_ring(ring)?;
        let write = || write_long(&*device, at, payload.clone(), durability);
        let result = write().await;
        match ring.member() {
            Some(member) if result.is_err() => {
                Box::pin(self.members.again(member, &device, result, write)).await
            }
            // A device of the journal's own is not tried once more: the members take over.
            _ => result,
        }
    }

    /// Waits until so many blocks of a ring may be written over; the first of them.
    async fn make_room(self: &Rc<Self>, ring: RingIndex, blocks: u64) -> IoResult<u64> {
        let journal = self.placement.in_service();
        loop {
            journal.check()?;
            self.placement.device_of_ring(ring)?;
            if let Some(block) = journal.ring(ring).room_for(blocks) {
                return Ok(block);
            }
            let watermark = if canary::is(Canary::RoomReusedEarly) {
                u64::MAX >> 2
            } else {
                journal.watermark()
            };
            let has_dead = journal.ring(ring).has_dead(watermark);
            if has_dead {
                // Durable before the room is used again: else a replay would miss records of some
                // members of transactions that it takes to be needed.
                let start = journal.ring_mut(ring).free_below(watermark);
                if canary::is(Canary::RoomReusedEarly) {
                    continue;
                }
                self.write_label(ring, start).await?;
            } else if journal.can_advance() {
                self.clone().advance_watermark().await;
            } else {
                journal.progress().await;
            }
        }
    }

    pub(super) async fn write_label(
        self: &Rc<Self>,
        ring: RingIndex,
        start: Start,
    ) -> IoResult<()> {
        let journal = self.placement.in_service();
        let label = Label::encode(journal.owner(ring), start);
        let at = journal.ring(ring).place().label_lba(start.number);
        self.members.counters().add(|counts| counts.journal_writes += 1);
        self.write_ring(ring, at, Payload::One(label), Durability::Durable).await
    }

    /// Flushes the members, so that the room of what is in place may be used again.
    async fn advance_watermark(self: Rc<Self>) {
        let journal = self.placement.in_service();
        let Some(candidate) = journal.begin_advance() else { return };
        self.members.counters().add(|counts| counts.watermark_flushes += 1);
        let result = if canary::is(Canary::WatermarkBeforeFlush) {
            Ok(())
        } else {
            self.membership.flush(&self.members).await
        };
        if let Err(error) = journal.end_advance(candidate, result) {
            self.placement.fail(error);
        }
    }

    /// Says in the members' rings that nothing in them, or anywhere else, is needed.
    pub(super) async fn empty_member_rings(
        self: &Rc<Self>,
        journal: &Ledger,
        life: u64,
        watermark: u64,
    ) -> IoResult<()> {
        for member in self.members.indexes() {
            let ring = RingIndex::of(member);
            if !self.members[member].is_online() {
                continue;
            }
            let start = journal.ring_mut(ring).begin_life(life, watermark);
            let written = self.write_label(ring, start).await;
            self.members.lose_on_error_now(member, written)?;
        }
        self.members.check_groups()
    }
}
