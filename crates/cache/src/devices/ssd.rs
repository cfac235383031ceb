//! Traffic with the two devices: counted, and the few structures outside the log.

use std::rc::Rc;

use voltier_block::{BlockDevice, Buf, Bytes, Durability, IoError, IoResult, Lba, Payload};
use voltier_ring::join_all;

use crate::cache::Inner;
use crate::canary::{self, Canary};
use crate::format::checksum::crc32c;
use crate::format::superblock::{SUPERBLOCK_OFFSETS, Superblock};
use crate::log::change::{Change, Queue};
use crate::log::form::{Formed, Record, State};
use crate::status::add;

/// A slot that is being read.
pub(crate) struct Pinned {
    pub(crate) slot: u32,
    pub(crate) at: Lba,
    segment: u32,
    round: u8,
    crc_bits: u32,
}

impl Pinned {
    /// Whether `data` is what was written to the slot.
    pub(crate) fn holds(&self, data: &[u8]) -> bool {
        crc32c(data) & 0xff_ffff == self.crc_bits || canary::is(Canary::DataChecksumIgnored)
    }
}

impl<S: BlockDevice, O: BlockDevice> Inner<S, O> {
    /// Reads from the SSD into `into`; the segment must be pinned or otherwise kept.
    pub(crate) async fn read_ssd(&self, at: Lba, into: Buf) -> IoResult<Buf> {
        add(&self.counters.ssd_read_bytes, into.len() as u64);
        self.ssd.read(at, into).await
    }

    /// Pins a slot for reading: its place, and the CRC its data must have. The line may leave the
    /// slot while the read is under way; the data stays until the pin is gone.
    pub(crate) fn pin_slot(&self, state: &mut State, slot: u32) -> Pinned {
        let segment = self.geometry.segment_of(slot);
        let round = state.segments.pin(segment);
        let (at, crc_bits) = (state.index.lba_of(slot), state.index.crc_bits(slot));
        Pinned { slot, at, segment, round, crc_bits }
    }

    /// The read is over.
    pub(crate) fn unpin(&self, pinned: &Pinned) {
        if canary::is(Canary::PinLeaked) && pinned.slot % 64 == 1 {
            return;
        }
        let waited_for = self.state.borrow_mut().segments.unpin(pinned.segment, pinned.round);
        if waited_for {
            self.reclaim_work.notify();
        }
    }

    /// Reads a whole slot and checks it against the CRC of when it was written.
    ///
    /// # Errors
    /// The device's, or `Medium` when the data is not what was written.
    pub(crate) async fn read_slot(&self, slot: u32) -> IoResult<Buf> {
        let pinned = self.pin_slot(&mut self.state.borrow_mut(), slot);
        let read = self.read_ssd(pinned.at, Buf::new(self.geometry.line_bytes as usize)).await;
        self.unpin(&pinned);
        let data = read.inspect_err(|error| self.count_ssd_error(*error))?;
        if pinned.holds(&data) { Ok(data) } else { Err(IoError::Medium) }
    }

    pub(crate) async fn read_origin(&self, at: Lba, into: Buf) -> IoResult<Buf> {
        add(&self.counters.origin_read_bytes, into.len() as u64);
        let _at_origin = self.congestion.at_origin();
        self.origin.read(at, into).await.inspect_err(|_| add(&self.counters.origin_errors, 1))
    }

    /// Writes a range of the origin; the caller holds the origin's locks of its lines.
    pub(crate) async fn write_origin(
        &self,
        at: Lba,
        data: Payload,
        durability: Durability,
    ) -> IoResult<()> {
        add(&self.counters.origin_written_bytes, data.len() as u64);
        let _at_origin = self.congestion.at_origin();
        let written = self.origin.write(at, data, durability).await;
        self.note_origin_change();
        written.inspect_err(|_| add(&self.counters.origin_errors, 1))
    }

    /// A change of the origin has completed: only a flush submitted from now on covers it.
    pub(crate) fn note_origin_change(&self) {
        self.origin_changes.set(self.origin_changes.get() + 1);
    }

    /// Makes everything that has completed on the origin durable, if anything has. One flush serves
    /// all who wait for it.
    ///
    /// # Errors
    /// The origin's.
    pub(crate) async fn flush_origin(&self) -> IoResult<()> {
        let wanted = self.origin_changes.get();
        while self.origin_durable.get() < wanted {
            if self.origin_flushing.replace(true) {
                self.origin_flushed.wait().await;
                continue;
            }
            let covers = self.origin_changes.get();
            let flushed = self.origin.flush().await;
            if flushed.is_ok() {
                self.origin_durable.set(covers);
            }
            self.origin_flushing.set(false);
            self.origin_flushed.notify();
            flushed.inspect_err(|_| add(&self.counters.origin_errors, 1))?;
        }
        Ok(())
    }

    /// Queues changes of a client's request; the number to wait for. A log that is given up takes
    /// none: nobody would ever take them out again.
    pub(crate) fn queue(&self, changes: impl IntoIterator<Item = Change>) -> u64 {
        let mut number = 0;
        if !self.failed() {
            let mut state = self.state.borrow_mut();
            for change in changes {
                number = state.user.push(change);
            }
        }
        self.log_work.notify();
        number
    }

    /// Queues changes of the cache's own, in the same way.
    pub(crate) fn queue_internal(&self, changes: impl IntoIterator<Item = Change>) -> u64 {
        let mut number = 0;
        if !self.failed() {
            let mut state = self.state.borrow_mut();
            for change in changes {
                number = state.internal.push(change);
            }
        }
        self.log_work.notify();
        number
    }

    /// Waits until the client's change `number` is on the SSD's interface.
    ///
    /// # Errors
    /// `Gone` when the SSD is given up first.
    pub(crate) async fn acked(&self, number: u64) -> IoResult<()> {
        self.queue_acked(number, |state| &mut state.user).await
    }

    /// The same for a change of the cache's own.
    pub(crate) async fn internal_acked(&self, number: u64) -> IoResult<()> {
        self.queue_acked(number, |state| &mut state.internal).await
    }

    async fn queue_acked(
        &self,
        number: u64,
        queue: impl Fn(&mut State) -> &mut Queue,
    ) -> IoResult<()> {
        std::future::poll_fn(|context| {
            if self.failed() {
                return std::task::Poll::Ready(Err(IoError::Gone));
            }
            let mut state = self.state.borrow_mut();
            let queue = queue(&mut state);
            if queue.acked() >= number {
                return std::task::Poll::Ready(Ok(()));
            }
            queue.wait(number, context.waker());
            std::task::Poll::Pending
        })
        .await
    }

    /// Waits until every record formed so far is on the SSD's interface.
    pub(crate) async fn all_acked(&self) -> IoResult<()> {
        let formed = self.state.borrow().next_sequence;
        self.log_progress
            .until(|| self.failed() || self.state.borrow().acked_sequence >= formed)
            .await;
        if self.failed() { Err(IoError::Gone) } else { Ok(()) }
    }

    /// Waits until every record that is acknowledged now is on the SSD's medium.
    ///
    /// One flush serves all who wait for it.
    ///
    /// # Errors
    /// The SSD's; it is given up then, because what it acknowledged may be lost.
    pub(crate) async fn make_durable(&self) -> IoResult<()> {
        let wanted = self.state.borrow().acked_sequence;
        loop {
            if self.failed() {
                return Err(IoError::Gone);
            }
            if self.state.borrow().durable_sequence >= wanted {
                return Ok(());
            }
            if self.flushing.replace(true) {
                self.flushed.wait().await;
                continue;
            }
            let covers = self.state.borrow().acked_sequence;
            let skipped = canary::is(Canary::FlushSkipped);
            let flushed = if skipped { Ok(()) } else { self.ssd.flush().await };
            self.flushing.set(false);
            if flushed.is_ok() {
                let mut state = self.state.borrow_mut();
                state.durable_sequence = state.durable_sequence.max(covers);
            } else {
                self.fail_ssd();
            }
            self.flushed.notify();
        }
    }

    /// The task that forms records and sends them out.
    pub(crate) async fn write_log(self: Rc<Self>) {
        let mut last_segment = self.state.borrow().position.segment;
        loop {
            if self.failed() || (self.log_ending.get() && self.log_is_empty()) {
                self.reclaim_work.notify();
                return;
            }
            let formed = {
                let mut state = self.state.borrow_mut();
                if state.wants_record() { Some(state.form_record()) } else { None }
            };
            match formed {
                Some(Formed::Record(record)) => {
                    self.records_since_checkpoint.set(self.records_since_checkpoint.get() + 1);
                    self.dirty_changed.notify();
                    self.rest_no_longer();
                    drop(self.handle.spawn(self.clone().write_record(record)));
                }
                Some(Formed::Nothing) => self.log_progress.notify(),
                Some(Formed::Blocked) => {
                    self.reclaim_work.notify();
                    self.log_work.wait().await;
                }
                None => self.log_work.wait().await,
            }
            let segment = self.state.borrow().position.segment;
            if segment != last_segment {
                last_segment = segment;
                self.reclaim_work.notify();
                // Bounds what a start must verify, and lets emptied segments go.
                let inner = self.clone();
                // A failure is everybody's to see: the SSD is given up then.
                drop(self.handle.spawn(async move { inner.make_durable().await }));
            }
        }
    }

    pub(crate) fn log_is_empty(&self) -> bool {
        let state = self.state.borrow();
        state.user.is_empty() && state.internal.is_empty() && state.records_in_flight() == 0
    }

    async fn write_record(self: Rc<Self>, record: Record) {
        let sequence = record.sequence;
        let writes = record.runs.into_iter().map(|(at, payload)| {
            add(&self.counters.ssd_written_bytes, payload.len() as u64);
            self.ssd.write(at, payload, Durability::Cached)
        });
        let written: IoResult<()> = join_all(writes).await.into_iter().collect();
        if self.failed() {
            return;
        }
        match written {
            Ok(()) => self.state.borrow_mut().record_done(sequence),
            Err(_) => {
                add(&self.counters.ssd_errors, 1);
                self.fail_ssd();
            }
        }
        self.log_progress.notify();
        self.log_work.notify();
    }

    /// Writes both copies of the superblock, one after the other.
    pub(crate) async fn write_superblock(&self, superblock: Superblock) -> IoResult<()> {
        store_superblock(&self.ssd, superblock).await?;
        add(&self.counters.ssd_written_bytes, 2 * 4096);
        self.superblock.replace(superblock);
        Ok(())
    }
}

/// Writes both copies of a superblock, durably and in turn, so that one is whole at any moment.
pub(crate) async fn store_superblock<S: BlockDevice>(
    ssd: &S,
    superblock: Superblock,
) -> IoResult<()> {
    for (copy, offset) in SUPERBLOCK_OFFSETS.into_iter().enumerate() {
        let block = superblock.encode(copy as u32);
        let payload = Bytes::copy_of(&block).into();
        ssd.write(Lba::from_bytes(offset), payload, Durability::Durable).await?;
        ssd.flush().await?;
    }
    Ok(())
}

/// Copies `from` bytes on of a payload into `into`.
pub(crate) fn gather(payload: &Payload, mut from: usize, into: &mut [u8]) {
    let mut filled = 0;
    for piece in payload.pieces() {
        if from >= piece.len() {
            from -= piece.len();
            continue;
        }
        let count = (piece.len() - from).min(into.len() - filled);
        into[filled..filled + count].copy_from_slice(&piece[from..from + count]);
        (filled, from) = (filled + count, 0);
        if filled == into.len() {
            return;
        }
    }
    panic!("the payload is as long as the request");
}

/// `count` bytes from `from` on of a payload: shared if they lie in one piece, else copied.
pub(crate) fn slice(payload: &Payload, from: usize, count: usize) -> Bytes {
    let mut start = 0;
    for piece in payload.pieces() {
        if from >= start && from + count <= start + piece.len() {
            return piece.slice(from - start..from - start + count);
        }
        start += piece.len();
    }
    let mut copy = Buf::new(count);
    gather(payload, from, &mut copy);
    copy.freeze()
}
