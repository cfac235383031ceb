//! Stripes of which a part cannot be read: it is computed, and written where it belongs.

use std::rc::Rc;

use voltier_block::{Buf, Bytes, DriveControl, Durability, IoError, IoResult};

use crate::bitmap::write_intent::Bitmap;
use crate::geometry::chunks::{Geometry, Span};
use crate::geometry::numbers::{MemberIndex, StripeNumber, StripeSlot};
use crate::geometry::plan::{SlotState, online, unusable};
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

impl<D: DriveControl> Mender<D> {
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
        let is_unreadable = |slot: &usize| states[*slot] == SlotState::Unreadable;
        let computed =
            (0..states.len()).filter(is_unreadable).map(|at| (StripeSlot(at), &bytes[at][..]));
        self.stripes.check_computed(stripe, span, &computed.collect::<Vec<_>>()).await?;
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
            let reads: Vec<_> = online(&states).map(|slot| (slot, span)).collect();
            let read = match self.stripes.read_slots(stripe, &reads, true).await {
                Ok(read) => read,
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
            let mut slots: Vec<Option<Buf>> = states.iter().map(|_| None).collect();
            for ((slot, _), buf) in reads.into_iter().zip(read) {
                slots[slot.0] = Some(buf);
            }
            let unusable = unusable(&states);
            if !unusable.is_empty() {
                let decoder = self.stripes.decoder(stripe, &unusable);
                let source = |slot: &usize| &slots[*slot].as_ref().expect("it is online")[..];
                let sources: Vec<&[u8]> = decoder.sources().iter().map(source).collect();
                let mut targets: Vec<Buf> =
                    unusable.iter().map(|_| Buf::new(span.bytes())).collect();
                let mut slices: Vec<&mut [u8]> =
                    targets.iter_mut().map(|buf| &mut buf[..]).collect();
                decoder.decode(&sources, &mut slices);
                for (slot, buf) in unusable.iter().zip(targets) {
                    slots[slot.0] = Some(buf);
                }
            }
            return Ok(Slots { states, bytes: slots.into_iter().flatten().collect() });
        }
    }
}
