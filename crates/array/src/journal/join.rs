//! A member that comes into service gets a ring.
//!
//! Transactions stand still meanwhile: those before are in place, durably, on all members, so none of them
//! is redone any more; those behind name the new member. So a replay never takes it for one that lost a
//! record it never had.

use std::rc::Rc;

use voltier_block::{BlockDevice, Durability, IoResult, Payload};

use crate::array::Inner;
use crate::canary::{self, Canary};
use crate::journal::format::{Label, Owner, Start};
use crate::journal::ring::Ring;
use crate::journal::{Journal, JournalPlace, batch_blocks_max};

/// Transactions stand still until this is dropped.
pub(crate) struct Pause<'a>(Option<&'a Journal>);

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        if let Some(journal) = self.0 {
            journal.pauses.set(journal.pauses.get() - 1);
            journal.notify();
        }
    }
}

impl Journal {
    /// The journal of an array that takes over, with further members; the first of them may have a ring.
    /// Nothing is under way in this one, and nothing is left of it.
    pub(crate) fn grown(&self, members: usize, added: Option<Ring>) -> Self {
        let mut options = self.options.clone();
        let place = options.places[0];
        options.places.resize(members, place);
        let life = self.rings[0].borrow().life();
        let empty = || Ring::new(place, 1, life, 0);
        let mut rings: Vec<Ring> = self.rings.iter().map(|ring| ring.replace(empty())).collect();
        rings.extend(added);
        rings.resize_with(members, empty);
        let next_number = self.transactions.borrow().next_number;
        let grown = Self::new(options, rings, next_number);
        grown.transactions.swap(&self.transactions);
        grown.failed.set(self.failed.get());
        grown
    }
}

impl<D: BlockDevice> Inner<D> {
    /// Keeps transactions from beginning, and waits until all are durable in place.
    ///
    /// # Errors
    /// When the journal has failed, or too many members are lost.
    pub(crate) async fn pause_journal(self: &Rc<Self>) -> IoResult<Pause<'_>> {
        let Some(journal) = self.journal.get() else { return Ok(Pause(None)) };
        journal.pauses.set(journal.pauses.get() + 1);
        let pause = Pause(Some(journal));
        journal.progress.until(|| journal.check().is_err() || journal.is_at_rest()).await;
        journal.check()?;
        let candidate = journal.transactions.borrow().candidate();
        self.flush_all().await?;
        journal.transactions.borrow_mut().raise_watermark(candidate);
        Ok(pause)
    }

    /// Makes an empty ring on a device that is to come to the array with the next number, in service at
    /// once. Nothing is under way.
    ///
    /// # Errors
    /// The device's.
    pub(crate) async fn make_first_ring(&self, device: &Rc<D>) -> IoResult<Option<Ring>> {
        let Some(journal) = self.journal.get() else { return Ok(None) };
        let (member, place) = (journal.rings.len(), journal.options.places[0]);
        let life = journal.rings[0].borrow().life();
        Ok(Some(self.write_ring_labels(journal, device, member, place, life).await?))
    }

    /// Waits until all transactions so far have ended: those behind have this number or a higher one.
    ///
    /// # Errors
    /// When the journal has failed.
    pub(crate) async fn drain_transactions(&self) -> IoResult<u64> {
        let Some(journal) = self.journal.get() else { return Ok(0) };
        let next_number = journal.transactions.borrow().next_number;
        let is_drained = || journal.transactions.borrow().candidate() >= next_number;
        journal.progress.until(|| journal.check().is_err() || is_drained()).await;
        journal.check().map(|()| next_number)
    }

    /// All members were flushed since the transactions below a number had ended.
    pub(crate) fn note_settled(&self, below: u64) {
        if let Some(journal) = self.journal.get() {
            journal.transactions.borrow_mut().raise_watermark(below);
            journal.notify();
        }
    }

    /// Makes an empty ring on a device that is to be a member in service. The journal is paused.
    ///
    /// # Errors
    /// The device's.
    pub(crate) async fn make_ring(&self, member: usize, device: &Rc<D>) -> IoResult<()> {
        let Some(journal) = self.journal.get() else { return Ok(()) };
        if canary::is(Canary::RingNotMade) {
            return Ok(());
        }
        let place = journal.options.places[member];
        let life = journal.rings[member].borrow().life();
        let ring = self.write_ring_labels(journal, device, member, place, life).await?;
        journal.rings[member].replace(ring);
        Ok(())
    }

    async fn write_ring_labels(
        &self,
        journal: &Journal,
        device: &Rc<D>,
        member: usize,
        place: JournalPlace,
        life: u64,
    ) -> IoResult<Ring> {
        let watermark = journal.transactions.borrow().watermark;
        for number in [1, 2] {
            let start = Start { life, number, tail: (0, 1), watermark };
            let owner = Owner { array: journal.options.array, member, blocks: place.blocks() };
            let label = Payload::One(Label::encode(owner, start));
            self.counters.add(|counts| counts.journal_writes += 1);
            device.write(place.label_lba(number), label, Durability::Durable).await?;
        }
        let blocks = batch_blocks_max(place, device.limits().max_transfer_bytes);
        Ok(Ring::new(place, blocks, life, 2))
    }
}
