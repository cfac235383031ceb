//! Stripes of which a part cannot be read: it is computed, and written where it belongs.

use std::rc::Rc;

use voltier_block::{BlockDevice, Buf, Bytes, Durability, IoError, IoResult};

use crate::bitmap::write_intent::Bitmap;
use crate::geometry::chunks::{Geometry, Span};
use crate::geometry::numbers::{MemberIndex, StripeNumber, StripeSlot};
use crate::geometry::plan::SlotState;
use crate::members::member_set::MemberSet;
use crate::stripe::ground::Ground;
use crate::stripe::stripes::Stripes;

/// Sectors of the pieces of a chunk that are computed each for itself when the whole cannot be.
const PIECE_SECTORS: u64 = 8;

/// All slots of a stripe, over a span.
struct Slots {
    states: Vec<SlotState>,
    bytes: Vec<Buf>,
}

/// Mends stripes for tasks.
pub(crate) struct Mender<D> {
    geometry: Geometry,
    members: Rc<MemberSet<D>>,
    bitmap: Rc<Bitmap<D>>,
    stripes: Rc<Stripes<D>>,
}

impl<D: BlockDevice> Mender<D> {
    pub(crate) fn new(ground: &Ground<D>, stripes: &Rc<Stripes<D>>) -> Self {
        let Ground { geometry, members, bitmap, .. } = ground.clone();
        Self { geometry, members, bitmap, stripes: stripes.clone() }
    }

    /// A span of all slots of a stripe, of which some cannot be read. The mender computes and writes these,
    /// to `successors` also those that could be read. The stripe is locked.
    ///
    /// # Errors
    /// When a part of it cannot be computed: what could be is written.
    pub(crate) async fn mend_stripe(
        &self,
        stripe: StripeNumber,
        span: Span,
        successors: &[(MemberIndex, Rc<D>)],
    ) -> IoResult<Vec<Buf>> {
        match self.mend_span(stripe, span, successors).await {
            Err(IoError::Medium) => {}
            result => return result,
        }
        let width = self.stripes.shape(stripe).width();
        let mut slots: Vec<Buf> = (0..width).map(|_| Buf::new(span.bytes())).collect();
        let mut result = Ok(());
        for start in (span.start..span.end).step_by(PIECE_SECTORS as usize) {
            let part = Span { start, end: (start + PIECE_SECTORS).min(span.end) };
            match self.mend_span(stripe, part, successors).await {
                Ok(pieces) => {
                    for (slot, piece) in slots.iter_mut().zip(pieces) {
                        slot[span.place_of(part)].copy_from_slice(&piece);
                    }
                }
                Err(error) => result = Err(error),
            }
        }
        result.map(|()| slots)
    }

    async fn mend_span(
        &self,
        stripe: StripeNumber,
        span: Span,
        successors: &[(MemberIndex, Rc<D>)],
    ) -> IoResult<Vec<Buf>> {
        let Slots { states, bytes } = self.read_or_compute(stripe, span).await?;
        let slots = StripeSlot::all(states.len()).zip(&bytes);
        self.stripes.check_computed(stripe, span, &states, slots).await?;
        let at = self.geometry.member_lba(stripe, span.start);
        let region = self.bitmap.region_of(stripe);
        let members = self.stripes.slot_members(stripe);
        for (slot, (state, bytes)) in StripeSlot::all(states.len()).zip(states.iter().zip(&bytes)) {
            let member = members.member_of(slot);
            let data = || Bytes::copy_of(bytes);
            match state {
                SlotState::Unreadable => {
                    if self.members[member].has_region(region) {
                        self.members.note_repair(member);
                    }
                    let write =
                        self.members.clone().write(member, at, data().into(), Durability::Cached);
                    write.await?;
                }
                SlotState::Online => {
                    for (_, device) in successors.iter().filter(|(of, _)| *of == member) {
                        self.members.write_target(member, device, at, data()).await;
                    }
                }
                SlotState::Lost => {}
            }
        }
        Ok(bytes)
    }

    async fn read_or_compute(&self, stripe: StripeNumber, span: Span) -> IoResult<Slots> {
        let mut unreadable = Vec::new();
        loop {
            let mut states = self.stripes.slot_states(stripe, &unreadable)?;
            if !unreadable.is_empty() {
                self.stripes.prefer_checksums(stripe, span, &mut states).await;
            }
            let mut slots = match self.stripes.read_online(stripe, span, &states).await {
                Ok(slots) => slots,
                Err(failed) if self.geometry.parity_chunks() == 0 => {
                    let is_lost = |slot: &StripeSlot| {
                        !self.members[self.stripes.shape(stripe).member_of(stripe, *slot)]
                            .has_device()
                    };
                    let is_lost = failed.iter().any(is_lost);
                    return Err(if is_lost { IoError::Gone } else { IoError::Medium });
                }
                // Blocks beside those that cannot be read stay what they are.
                Err(_)
                    if self.members.devices().have_checksums() && span.count() > PIECE_SECTORS =>
                {
                    return Err(IoError::Medium);
                }
                Err(failed) => {
                    unreadable.extend(failed);
                    continue;
                }
            };
            if slots.iter().any(Option::is_none) {
                self.stripes.compute_rest(stripe, span, &states, &mut slots);
            }
            return Ok(Slots { states, bytes: slots.into_iter().flatten().collect() });
        }
    }
}
