//! A member that comes into service gets a ring.
//!
//! Transactions stand still meanwhile: those before are in place, durably, on all members, so none of them
//! is redone any more; those behind name the new member. So a replay never takes it for one that lost a
//! record it never had.

use std::rc::Rc;

use voltier_block::{BlockDevice, Durability, IoResult, Payload};

use crate::array::Inner;
use crate::canary::{self, Canary};
use crate::journal::format::{Label, Start};
use crate::journal::ring::Ring;
use crate::journal::{Journal, batch_blocks_max};

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
        let watermark = journal.transactions.borrow().watermark;
        for number in [1, 2] {
            let start = Start { life, number, tail: (0, 1), watermark };
            let owner = journal.options.owner(member, place);
            let label = Payload::One(Label::encode(owner, start));
            self.counters.add(|counts| counts.journal_writes += 1);
            device.write(place.label_lba(number), label, Durability::Durable).await?;
        }
        let blocks = batch_blocks_max(place, device.limits().max_transfer_bytes);
        journal.rings[member].replace(Ring::new(place, blocks, life, 2));
        Ok(())
    }
}
