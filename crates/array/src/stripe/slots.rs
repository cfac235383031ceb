//! The slots of a stripe: which of them can be read, and reads of them.

use std::rc::Rc;

use voltier_block::{BlockDevice, Buf, IoError, IoResult, SectorRange};

use crate::array::Inner;
use crate::geometry::chunks::{Span, Stripe};
use crate::geometry::plan::{SlotState, unusable};
use crate::members::at_once::at_once;

impl<D: BlockDevice> Inner<D> {
    /// A member that could not be given up failed a write to these sectors, and the others have the new
    /// content of their stripes: nothing that is computed from both is right.
    pub(crate) fn note_half_written(&self, member: usize, range: SectorRange) {
        let mut half_written = self.half_written.borrow_mut();
        for piece in range.split_at_multiples(self.geometry.chunk_sectors()) {
            // Two shapes are of one group, whose stripes are its rows.
            let row = Stripe(piece.start.0 / self.geometry.chunk_sectors());
            if let Some(place) = self.shape(row).member_place(member, piece.start) {
                half_written.insert((place.stripe, place.slot));
            }
        }
    }

    /// Whether writes of some rows of a group failed and stand: what is in them is not one thing.
    pub(crate) fn has_half_written(&self, group: usize, rows: std::ops::Range<u64>) -> bool {
        let half_written = self.half_written.borrow();
        let is_in = |(stripe, _): &(Stripe, usize)| {
            self.geometry.group_of(*stripe) == group
                && rows.contains(&self.geometry.row_of(*stripe))
        };
        half_written.iter().any(is_in)
    }

    /// The slots of a stripe, some of which gave medium errors.
    ///
    /// # Errors
    /// When more of them cannot be read than there are parities.
    pub(crate) fn slot_states(
        &self,
        stripe: Stripe,
        unreadable: &[usize],
    ) -> IoResult<Vec<SlotState>> {
        let region = self.bitmap.region_of(stripe);
        let half_written = self.half_written.borrow();
        let is_bad = |slot| unreadable.contains(&slot) || half_written.contains(&(stripe, slot));
        let state = |slot| match self.members[self.shape(stripe).member_of(stripe, slot)]
            .slot_state(region)
        {
            SlotState::Online if is_bad(slot) => SlotState::Unreadable,
            state => state,
        };
        let states: Vec<SlotState> = (0..self.shape(stripe).width()).map(state).collect();
        let count = |wanted| states.iter().filter(|state| **state == wanted).count();
        let (lost, unreadable) = (count(SlotState::Lost), count(SlotState::Unreadable));
        if lost > self.geometry.parity_chunks() {
            Err(IoError::Gone)
        } else if lost + unreadable > self.geometry.parity_chunks() {
            Err(IoError::Medium)
        } else {
            Ok(states)
        }
    }

    /// Reads spans of slots, all at once. The slots that could not be read, if there are any.
    pub(crate) async fn read_slots(
        self: &Rc<Self>,
        stripe: Stripe,
        reads: &[(usize, Span)],
    ) -> Result<Vec<Buf>, Vec<usize>> {
        let read = |(slot, span): &(usize, Span)| {
            let member = self.shape(stripe).member_of(stripe, *slot);
            let at = self.geometry.member_lba(stripe, span.start);
            self.members.clone().read(member, at, Buf::new(span.bytes()))
        };
        let results = at_once(&self.handle, reads.iter().map(read)).await;
        let mut failed = Vec::new();
        let mut read = Vec::with_capacity(results.len());
        for ((slot, _), result) in reads.iter().zip(results) {
            match result {
                Ok(buf) => read.push(buf),
                Err(_) => failed.push(*slot),
            }
        }
        if failed.is_empty() { Ok(read) } else { Err(failed) }
    }

    /// Has slots of slow members not read, as far as the others have all they hold.
    pub(crate) fn avoid_slow(&self, stripe: Stripe, states: &mut [SlotState]) {
        if self.bitmap.is_in_doubt(stripe) {
            return;
        }
        let mut left = self.geometry.parity_chunks() - unusable(states).len();
        for (slot, state) in states.iter_mut().enumerate() {
            let member = &self.members[self.shape(stripe).member_of(stripe, slot)];
            let is_avoided = *state == SlotState::Online && member.watch().is_avoided();
            if is_avoided && left > 0 {
                *state = SlotState::Lost;
                left -= 1;
            }
        }
    }
}
