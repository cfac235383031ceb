//! The journal of an array: begin and end of a transaction, pauses, rings of members that come, and the move
//! to another device.

use std::rc::Rc;

use voltier_block::{DriveControl, Durability, IoError, IoResult, Payload, clear_labels};
use voltier_ring::Handle;

use crate::canary::{self, Canary};
use crate::errors::ArrayError;
use crate::errors::journal::JournalError;
use crate::format::journal_label::JournalLabel;
use crate::format::journal_place::{JournalPlace, batch_blocks_max};
use crate::format::journal_record::{LABEL_COPIES, Label, RingIndex, Start};
use crate::geometry::numbers::{GroupIndex, MemberIndex};
use crate::journal::ledger::{Ledger, Pause};
use crate::journal::placement::{JournalDevice, Placement, label_for, read_label};
use crate::journal::ring::{LIVES_LEFT_OUT, Outstanding, Pending, Piece, Ring};
use crate::journal::writer::JournalWriter;
use crate::members::label_copies::{wipe_superblocks, write_label};
use crate::members::member_set::MemberSet;
use crate::membership::current::Membership;

/// A transaction that is in the journal; it is to be ended.
#[must_use]
pub(crate) struct Transaction(Option<u64>);

impl Transaction {
    /// The durability that in-place writes need: what is in the rings is durable already.
    pub(crate) fn in_place(&self, asked: Durability) -> Durability {
        if self.0.is_some() { Durability::Cached } else { asked }
    }
}

/// The journal of an array. Without redundancy, or when none was asked for, the journal has no rings. The
/// end of a transaction still waits until losses are on record.
pub(crate) struct Journal<D> {
    members: Rc<MemberSet<D>>,
    membership: Rc<Membership>,
    placement: Rc<Placement<D>>,
    writer: Rc<JournalWriter<D>>,
    handle: Handle,
}

impl<D: DriveControl> Journal<D> {
    pub(crate) fn new(
        handle: &Handle,
        members: &Rc<MemberSet<D>>,
        membership: &Rc<Membership>,
    ) -> Self {
        Self::at(handle, members, membership, Placement::new(members, membership))
    }

    /// The journal of an array that takes over, with further members; the first of them may have a ring.
    /// Nothing is under way in this one, and nothing is left of it.
    pub(crate) fn grown(&self, members: &Rc<MemberSet<D>>, ring: Option<Ring>) -> Self {
        let placement = self.placement.grown(members);
        if let Some(ledger) = self.placement.ledger() {
            placement.begin(ledger.grown(members.len(), ring));
        }
        Self::at(&self.handle, members, &self.membership, placement)
    }

    fn at(
        handle: &Handle,
        members: &Rc<MemberSet<D>>,
        membership: &Rc<Membership>,
        placement: Placement<D>,
    ) -> Self {
        let placement = Rc::new(placement);
        Self {
            members: members.clone(),
            membership: membership.clone(),
            writer: Rc::new(JournalWriter::new(handle, members, membership, &placement)),
            placement,
            handle: handle.clone(),
        }
    }

    /// Whether changes are journalled.
    pub(crate) fn is_in_service(&self) -> bool {
        self.placement.ledger().is_some()
    }

    /// The places of the journal's rings.
    pub(crate) fn placement(&self) -> &Rc<Placement<D>> {
        &self.placement
    }

    /// The most sectors that one transaction should bring to each member of a group of so many; none
    /// without a journal.
    pub(crate) fn run_sectors_max(&self, width: usize) -> Option<u64> {
        self.placement.ledger().map(|ledger| ledger.run_sectors_max(width))
    }

    /// # Errors
    /// Why nothing can be journalled any more.
    pub(crate) fn check(&self) -> IoResult<()> {
        self.placement.ledger().map_or(Ok(()), Ledger::check)
    }

    /// Members may have dropped what is in place: the next replay brings it there.
    pub(crate) fn fail(&self, error: IoError) {
        if self.is_in_service() {
            self.placement.fail(error);
        }
    }

    /// A member has come or gone: a task that waits looks again.
    pub(crate) fn notify(&self) {
        if let Some(ledger) = self.placement.ledger() {
            ledger.notify();
        }
    }

    /// How many hold the parts of the journal, in all.
    pub(crate) fn holders(&self) -> usize {
        Rc::strong_count(&self.placement) + Rc::strong_count(&self.writer)
    }

    /// Puts what will be written to the members of a group into their rings. When the call returns, that is
    /// durable, and in-place writes may begin; they end with [`end`](Self::end).
    ///
    /// The caller holds the sectors of the stripe, so that transactions over the same sectors have
    /// the order of their numbers.
    ///
    /// # Errors
    /// When a ring cannot be written and its member cannot be lost, or too many are lost. In-place
    /// writes must not begin then.
    pub(crate) async fn begin(
        &self,
        group: GroupIndex,
        pieces: Vec<Piece>,
    ) -> IoResult<Transaction> {
        let Some(journal) = self.placement.ledger() else { return Ok(Transaction(None)) };
        let mut pieces = Some(pieces);
        loop {
            self.losses_before_record(journal).await?;
            journal.check()?;
            self.members.check_group(group)?;
            // A device may be lost with the records, the members' rings only with their members.
            let is_on_device = self.placement.is_on_device();
            let moves = journal.moves();
            let own = if is_on_device { pieces.clone() } else { pieces.take() };
            let own = own.expect("records in the members' rings are never given up");
            // Nothing waits from here to the queues: who is in service now has the record, and numbers
            // ascend in every ring.
            let (number, outstanding) = self.queue_pieces(journal, own);
            if !canary::is(Canary::CommitBeforeRecord) {
                outstanding.wait().await;
            }
            match self.losses_before_in_place(journal, group).await {
                Ok(()) if journal.moves() == moves => {
                    journal.begin_commit(number);
                    return Ok(Transaction(Some(number)));
                }
                // Nobody looks any more where it is recorded, and nothing of it is in place.
                Ok(()) => journal.forget(number),
                Err(error) => {
                    self.placement.fail(error);
                    return Err(error);
                }
            }
        }
    }

    /// The barrier before a record. A record names the members that have a part of it. If a record left
    /// out a member that a replay takes to be in service, the replay would leave the member as it was.
    async fn losses_before_record(&self, journal: &Ledger) -> IoResult<()> {
        loop {
            if !canary::is(Canary::LossNotRecorded) {
                self.membership.barrier().await?;
            }
            if !journal.is_paused() {
                return Ok(());
            }
            journal.unpaused().await;
        }
    }

    /// The barrier before writes in place. A member whose ring did not take the record is lost. A replay
    /// that believed it would take the transaction for one that never began.
    async fn losses_before_in_place(&self, journal: &Ledger, group: GroupIndex) -> IoResult<()> {
        self.membership.barrier().await?;
        self.members.check_group(group)?;
        journal.check()
    }

    /// The barrier before a transaction ends. A member that did not take a write in place lacks it. Once the
    /// transaction has ended, the room of its records is used again, and no replay gives the member what it
    /// lacks.
    async fn losses_before_end(&self, result: IoResult<()>) -> IoResult<()> {
        match result {
            Ok(()) => self.membership.barrier().await,
            Err(error) => Err(error),
        }
    }

    /// Hands pieces to the rings of the members in service, or to that of the device.
    fn queue_pieces(&self, journal: &Ledger, mut pieces: Vec<Piece>) -> (u64, Rc<Outstanding>) {
        pieces.retain(|piece| self.members[piece.member].is_online());
        let participants = pieces.iter().fold(0, |mask, piece| mask | 1 << piece.member.0);
        let outstanding = Outstanding::of(pieces.len());
        let number = journal.begin();
        for Piece { member, at, content } in pieces {
            let outstanding = outstanding.clone();
            let is_on_device = self.placement.is_on_device();
            let ring = if is_on_device { RingIndex::DEVICE } else { RingIndex::of(member) };
            let member = is_on_device.then_some(member);
            let pending = Pending { number, member, participants, at, content, outstanding };
            let is_writer_due = journal.ring_mut(ring).push(pending);
            if is_writer_due {
                self.handle.spawn(self.writer.clone().write_queue(ring));
            }
        }
        (number, outstanding)
    }

    /// In-place writes of a transaction are over, with this result; what the client is told. A member
    /// lost in them is on record before.
    pub(crate) async fn end(&self, transaction: Transaction, result: IoResult<()>) -> IoResult<()> {
        let (Some(journal), Some(number)) = (self.placement.ledger(), transaction.0) else {
            return self.losses_before_end(result).await;
        };
        if let Err(error) = result {
            self.placement.fail(error);
        }
        // Writes in place are flushed when the journal leaves its device, which is news: waited for
        // below.
        journal.end_commit();
        let result = self.losses_before_end(result).await;
        match result {
            Ok(()) => journal.end(number),
            Err(error) => self.placement.fail(error),
        }
        result
    }

    /// Brings all that was acknowledged in place and says so in the labels, so that the next start has
    /// nothing to redo. No request may be under way.
    ///
    /// # Errors
    /// When a member that cannot be lost does not take it.
    pub(crate) async fn empty(&self) -> IoResult<()> {
        let Some(journal) = self.placement.ledger() else { return Ok(()) };
        let candidate = self.flush_all_at_rest(journal).await?;
        for ring in self.placement.rings_in_use() {
            let Ok(device) = self.placement.device_of_ring(ring) else { continue };
            let start = journal.ring_mut(ring).free_below(candidate);
            let written = self.writer.write_label(ring, start).await;
            self.placement.lose_ring_on_error(ring, &device, written)?;
        }
        self.membership.barrier().await
    }

    /// Keeps transactions from beginning, and waits until all are durable in place.
    ///
    /// # Errors
    /// When the journal has failed, or too many members are lost.
    pub(crate) async fn pause(&self) -> IoResult<Option<Pause<'_>>> {
        let Some(journal) = self.placement.ledger() else { return Ok(None) };
        let pause = journal.pause();
        self.flush_all_at_rest(journal).await?;
        Ok(Some(pause))
    }

    /// Waits until all transactions have ended, and makes them durable in place: those below the result.
    async fn flush_all_at_rest(&self, journal: &Ledger) -> IoResult<u64> {
        journal.at_rest().await?;
        let candidate = journal.candidate();
        self.membership.flush(&self.members).await?;
        journal.raise_watermark(candidate);
        Ok(candidate)
    }

    /// Makes an empty ring on a device that is to come to the array with the next number, in service at
    /// once. Nothing is under way.
    ///
    /// # Errors
    /// The device's.
    pub(crate) async fn make_first_ring(&self, device: &Rc<D>) -> IoResult<Option<Ring>> {
        let Some(journal) = self.placement.ledger() else { return Ok(None) };
        let (ring, place) = journal.next_ring();
        Ok(Some(self.begin_ring_anew(journal, device, ring, place).await?))
    }

    /// Waits until all transactions so far have ended: those behind have this number or a higher one.
    ///
    /// # Errors
    /// When the journal has failed.
    pub(crate) async fn drain(&self) -> IoResult<u64> {
        let Some(journal) = self.placement.ledger() else { return Ok(0) };
        journal.drained().await
    }

    /// All members were flushed since the transactions below a number had ended.
    pub(crate) fn note_flushed(&self, below: u64) {
        if let Some(journal) = self.placement.ledger() {
            journal.raise_watermark(below);
            journal.notify();
        }
    }

    /// Makes an empty ring on a device that is to be a member in service. The journal is paused.
    ///
    /// # Errors
    /// The device's.
    pub(crate) async fn make_ring(&self, member: MemberIndex, device: &Rc<D>) -> IoResult<()> {
        let Some(journal) = self.placement.ledger() else { return Ok(()) };
        if canary::is(Canary::RingNotMade) {
            return Ok(());
        }
        let ring = RingIndex::of(member);
        let place = journal.ring(ring).place();
        let made = self.begin_ring_anew(journal, device, ring, place).await?;
        journal.replace_ring(ring, made);
        Ok(())
    }

    /// Makes an empty ring on a device that may have had one of this array. Batches of that one are there
    /// still, and the numbers of batches begin anew. So the life is above the life on the device, and above
    /// all lives of the other rings. A device that was away may have outlived these.
    async fn begin_ring_anew(
        &self,
        journal: &Ledger,
        device: &Rc<D>,
        ring: RingIndex,
        place: JournalPlace,
    ) -> IoResult<Ring> {
        let (mut life, mut left_out) = (journal.next_life(), 0);
        for copy in 0..LABEL_COPIES {
            let label = read_label(&**device, place, journal.owner_at(ring, place), copy).await;
            match label {
                Ok(label) => life = label.map_or(life, |label| life.max(label.life.get() + 1)),
                // A label that cannot be read is about to be written, which may mend its sector. Nobody
                // knows the life that it named.
                Err(IoError::Medium) => left_out = LIVES_LEFT_OUT,
                Err(error) => return Err(error),
            }
        }
        let begin = (life + left_out, journal.watermark());
        self.write_empty_ring(journal, device, ring, place, begin).await
    }

    /// Makes an empty ring at a place of a device, of a life and with a watermark. Writes both copies of its
    /// label, one after the other.
    async fn write_empty_ring(
        &self,
        journal: &Ledger,
        device: &Rc<D>,
        ring: RingIndex,
        place: JournalPlace,
        (life, watermark): (u64, u64),
    ) -> IoResult<Ring> {
        let owner = journal.owner_at(ring, place);
        for number in [1, 2] {
            let label = Label::encode(owner, Start { life, number, tail: (0, 1), watermark });
            self.members.counters().add(|counts| counts.journal_writes += 1);
            let label = Payload::One(label);
            device.write(place.label_lba(number), label, Durability::Durable).await?;
        }
        let blocks = batch_blocks_max(place, device.limits().max_transfer_bytes);
        Ok(Ring::new(place, blocks, life, 2))
    }

    /// Has the journal leave a device that failed. The device's content is in place and flushed then,
    /// or was never begun; the members are still to be told, which is news.
    ///
    /// # Errors
    /// When what it had cannot be brought in place: it is needed at the next start.
    pub(crate) async fn leave_failing_device(&self) -> IoResult<()> {
        let is_failing = self.placement.is_device_failing();
        let Some(durable) = self.membership.durable().filter(|_| is_failing) else { return Ok(()) };
        match self.placement.ledger() {
            Some(journal) => {
                // Nothing new begins: whoever would waits for the news.
                journal.commits_ended().await;
                journal.check()?;
                self.members.flush().await?;
                // The labels of the rings must be true also if the news is never told, and the device
                // is there at the next start. A member that is lost just now, and not on record, lacks
                // what was flushed here.
                let (life, watermark) = (journal.next_life(), journal.watermark());
                self.writer.empty_member_rings(journal, life, watermark).await?;
                journal.end_all();
                journal.note_move();
            }
            // Before anything was redone only a stop in order leaves nothing on it.
            None if durable.is_replay_due() => return Err(IoError::Gone),
            None => {}
        }
        self.placement.leave_device();
        if let Some(journal) = self.placement.ledger() {
            journal.notify();
        }
        Ok(())
    }

    /// Puts the journal on another device, or back on the members.
    pub(crate) async fn move_to(
        &self,
        new: Option<(D, [u8; 16])>,
        block_bytes: u32,
    ) -> Result<(), ArrayError> {
        let (Some(durable), Some(journal)) = (self.membership.durable(), self.placement.ledger())
        else {
            return Err(JournalError::NoJournal.into());
        };
        self.membership.recorded().await.map_err(ArrayError::Io)?;
        let new = match new {
            Some((device, uuid)) => {
                let label = label_for(&durable.record(), &device, uuid, block_bytes)?;
                // Requests go on meanwhile.
                clear_labels(&device, None).await.map_err(JournalError::Device)?;
                Some((JournalDevice::new(device, &label), label))
            }
            None => None,
        };
        let _pause = self.pause().await.map_err(ArrayError::Io)?;
        let ring = loop {
            let moves = journal.moves();
            let ring = self.begin_life_on(durable, journal, new.as_ref()).await?;
            if journal.moves() == moves && !self.placement.is_device_failing() {
                break ring;
            }
            // The device before has failed meanwhile. That it is left, too, begins a life, and must not
            // take away what comes after it.
            self.membership.recorded().await.map_err(ArrayError::Io)?;
        };
        let is_to_device = new.is_some();
        if let Some(ring) = ring {
            journal.replace_ring(RingIndex::DEVICE, ring);
        }
        journal.note_move();
        let old = self.placement.move_to(new.map(|(new, _)| new));
        self.membership.recorded().await.map_err(ArrayError::Io)?;
        if let Some(old) = old {
            // When the wipe fails, the label is a stale one: nobody takes a stale label for more.
            let _ = wipe_superblocks(&*old.device).await;
        }
        if is_to_device && !self.placement.is_on_device() {
            return Err(JournalError::Device(IoError::Gone).into());
        }
        Ok(())
    }

    /// Makes all rings empty, with that of a new device, if there is one. The life of the rings is above
    /// all lives, so that what is left anywhere of an earlier use is void. Nothing is under way.
    async fn begin_life_on(
        &self,
        durable: &Membership,
        journal: &Ledger,
        new: Option<&(JournalDevice<D>, JournalLabel)>,
    ) -> Result<Option<Ring>, ArrayError> {
        let (life, watermark) = (journal.next_life(), journal.watermark());
        let ring = match new {
            Some((new, label)) => {
                let device_failed = |error| ArrayError::from(JournalError::Device(error));
                let (ring, place, begin) = (RingIndex::DEVICE, new.place, (life, watermark));
                let made = self.write_empty_ring(journal, &new.device, ring, place, begin).await;
                let ring = made.map_err(device_failed)?;
                let label = JournalLabel { event: durable.record().event, ..label.clone() };
                write_label(&*new.device, &label).await.map_err(device_failed)?;
                Some(ring)
            }
            None => None,
        };
        self.writer.empty_member_rings(journal, life, watermark).await.map_err(ArrayError::Io)?;
        Ok(ring)
    }
}
