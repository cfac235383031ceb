//! Writes of a stripe, or of whole stripes one row behind the other. The writer reads old content, computes
//! parity and writes the journal, then data and parity together.

use std::rc::Rc;

use voltier_block::{BlockDevice, Buf, Bytes, Durability, IoResult, Payload};
use voltier_parity::{ROWS_MAX, Stores};
use voltier_ring::Handle;

use crate::bitmap::write_intent::Bitmap;
use crate::canary::{self, Canary};
use crate::geometry::chunks::{Geometry, Span};
use crate::geometry::numbers::{GroupIndex, StripeNumber, StripeSlot};
use crate::geometry::plan::{Method, Plan, SlotState, plan, unusable};
use crate::journal::ring::{Content, Piece};
use crate::journal::transaction::Journal;
use crate::members::at_once::at_once;
use crate::members::member_set::MemberSet;
use crate::stripe::ground::Ground;
use crate::stripe::new_data::NewData;
use crate::stripe::runs::{MemberWrite, Run, join_writes};
use crate::stripe::stripes::{Access, Stripes};
use crate::stripe::vouch::Vouched;

/// The one write of a slot's member to come.
struct SlotWrite {
    slot: StripeSlot,
    span: Span,
    data: Bytes,
}

/// Old content of the slots of a stripe.
struct OldData {
    states: Vec<SlotState>,
    plan: Plan,
    /// The content that was read, as the plan says.
    read: Vec<Buf>,
}

fn hull_of(parts: &[NewData]) -> Span {
    let hull = parts.iter().map(|part| part.span).reduce(Span::hull);
    hull.expect("something is written")
}

/// The new content of a slot, if that is all of the hull.
fn whole_part(new: &[NewData], slot: StripeSlot, hull: Span) -> Option<&NewData> {
    new.iter().find(|part| part.slot == slot && part.span == hull)
}

/// Writes stripes.
pub(crate) struct StripeWriter<D> {
    handle: Handle,
    geometry: Geometry,
    members: Rc<MemberSet<D>>,
    bitmap: Rc<Bitmap<D>>,
    journal: Rc<Journal<D>>,
    stripes: Rc<Stripes<D>>,
}

impl<D: BlockDevice> StripeWriter<D> {
    pub(crate) fn new(ground: &Ground<D>, stripes: &Rc<Stripes<D>>) -> Self {
        let Ground { handle, geometry, members, bitmap, journal, .. } = ground.clone();
        Self { handle, geometry, members, bitmap, journal, stripes: stripes.clone() }
    }

    pub(crate) async fn write_stripe(
        self: Rc<Self>,
        stripe: StripeNumber,
        new: Vec<NewData>,
        durability: Durability,
    ) -> IoResult<()> {
        let _entered = self.bitmap.enter(stripe).await?;
        let hull = hull_of(&new);
        let must_lock = self.stripes.must_lock();
        let _guard = if must_lock {
            Some(self.stripes.lock(stripe, hull, Access::Exclusive).await)
        } else {
            None
        };
        let _unlocked = (!must_lock).then(|| self.stripes.unlocked().enter());
        let old = self.read_old(stripe, &new, hull).await?;
        let ready = self.with_parity(stripe, new, hull, old);
        // Parity is known and nothing is written.
        self.write_ready(self.geometry.group_of(stripe), ready, durability).await
    }

    /// Whole stripes of one group and region, one row behind the other.
    pub(crate) async fn write_run(
        self: Rc<Self>,
        run: Run,
        durability: Durability,
    ) -> IoResult<()> {
        let first = run[0].0;
        let _entered = self.bitmap.enter(first).await?;
        let must_lock = self.stripes.must_lock();
        let whole = Span { start: 0, end: self.geometry.chunk_sectors() };
        let mut guards = Vec::new();
        // Ascending, as by all who hold several: no two of these wait for each other.
        for (stripe, _) in run.iter().filter(|_| must_lock) {
            guards.push(self.stripes.lock(*stripe, whole, Access::Exclusive).await);
        }
        let _unlocked = (!must_lock).then(|| self.stripes.unlocked().enter());
        let mut ready = Vec::new();
        for (stripe, new) in run {
            let old = self.read_old(stripe, &new, whole).await?;
            ready.extend(self.with_parity(stripe, new, whole, old));
        }
        let group = self.geometry.group_of(first);
        self.write_ready(group, join_writes(ready), durability).await
    }

    /// Into the journal, then in place. The caller has entered the region, and holds the stripes.
    ///
    /// # Errors
    /// When nothing can be journalled, or a member that cannot be lost does not take its write.
    pub(crate) async fn write_ready(
        self: &Rc<Self>,
        group: GroupIndex,
        ready: Vec<MemberWrite>,
        durability: Durability,
    ) -> IoResult<()> {
        let transaction = self.journal.begin(group, self.pieces_of(&ready)).await?;
        let result = self.commit(group, ready, transaction.in_place(durability)).await;
        self.journal.end(transaction, result).await
    }

    /// Reads what the parity needs. The plan avoids chunks that give a medium error.
    async fn read_old(
        self: &Rc<Self>,
        stripe: StripeNumber,
        new: &[NewData],
        hull: Span,
    ) -> IoResult<OldData> {
        let written = new.iter().map(|part| (part.slot, part.span));
        let mut unreadable = Vec::new();
        // Stripes that a replay writes again must match by themselves. The replay may come after the
        // parity was made anew, and nothing needs a resync then.
        let mut may_mismatch = self.journal.is_in_service() && self.bitmap.needs_resync(stripe);
        loop {
            let states = self.stripes.slot_states(stripe, &unreadable)?;
            let data_chunks = self.stripes.shape(stripe).data_chunks();
            let plan = plan(data_chunks, written.clone(), hull, &states, may_mismatch);
            let are_verified = !canary::is(Canary::ModifyUnverified);
            match self.stripes.read_slots_vouched(stripe, &plan.reads, are_verified).await {
                Err(failed) => unreadable.extend(failed),
                // A block is wrong, and nobody knows which: parity that is changed would keep what is wrong.
                Ok((_, Vouched::Mismatched)) if plan.method == Method::Modify => {
                    may_mismatch = true
                }
                Ok((read, _)) => {
                    let mut old = OldData { states, plan, read };
                    if old.plan.method == Method::Recover {
                        Box::pin(self.compute_lost(stripe, hull, &mut old)).await?;
                    }
                    self.members.counters().add(|counts| match old.plan.method {
                        Method::Plain => {}
                        Method::FullStripe => counts.full_stripe_writes += 1,
                        Method::Reconstruct => counts.reconstruct_writes += 1,
                        Method::Modify => counts.modify_writes += 1,
                        Method::Recover => counts.recover_writes += 1,
                    });
                    return Ok(old);
                }
            }
        }
    }

    /// New data and the parity that goes with them.
    fn with_parity(
        &self,
        stripe: StripeNumber,
        mut new: Vec<NewData>,
        hull: Span,
        old: OldData,
    ) -> Vec<MemberWrite> {
        let data_chunks = self.stripes.shape(stripe).data_chunks();
        let parities: Vec<SlotWrite> = match old.plan.method {
            Method::Plain => Vec::new(),
            Method::FullStripe if self.geometry.is_mirror() => {
                let copy = |slot| SlotWrite { slot, span: hull, data: new[0].data.clone() };
                let slots = StripeSlot::all(self.stripes.shape(stripe).width());
                slots.skip(data_chunks).map(copy).collect()
            }
            Method::Modify => self.modified_parity(stripe, &new, hull, old),
            Method::FullStripe | Method::Reconstruct | Method::Recover => {
                self.parity_of_all(stripe, &mut new, hull, old)
            }
        };
        let members = self.stripes.slot_members(stripe);
        let write = |slot, span: Span, data| MemberWrite {
            member: members.member_of(slot),
            at: self.geometry.member_lba(stripe, span.start),
            data: Payload::One(data),
        };
        let mut writes = Vec::with_capacity(new.len() + parities.len());
        writes.extend(new.into_iter().map(|part| write(part.slot, part.span, part.data)));
        writes.extend(
            parities.into_iter().map(|parity| write(parity.slot, parity.span, parity.data)),
        );
        writes
    }

    /// The old parity, changed by what each part of the data changes.
    fn modified_parity(
        &self,
        stripe: StripeNumber,
        new: &[NewData],
        hull: Span,
        mut old: OldData,
    ) -> Vec<SlotWrite> {
        let data_chunks = self.stripes.shape(stripe).data_chunks();
        // The plan reads the parts in their order, then the parities.
        let slots = old.plan.reads[new.len()..].iter().map(|(slot, _)| *slot);
        let (old_data, parities) = old.read.split_at_mut(new.len());
        let count = parities.len();
        for (part, before) in new.iter().zip(old_data) {
            let inside = hull.place_of(part.span);
            let mut changed: [(usize, &mut [u8]); ROWS_MAX] = Default::default();
            for ((one, slot), parity) in
                changed.iter_mut().zip(slots.clone()).zip(parities.iter_mut())
            {
                *one = (slot.0 - data_chunks, &mut parity[inside.clone()]);
            }
            self.stripes.code_of(stripe).update(
                part.slot.0,
                before,
                &part.data,
                &mut changed[..count],
            );
        }
        let parities = old.read.drain(new.len()..).map(Buf::freeze);
        slots.zip(parities).map(|(slot, data)| SlotWrite { slot, span: hull, data }).collect()
    }

    /// Parity from all data of the stripe. Data that gave a medium error are written as well.
    fn parity_of_all(
        &self,
        stripe: StripeNumber,
        new: &mut Vec<NewData>,
        hull: Span,
        old: OldData,
    ) -> Vec<SlotWrite> {
        let columns = self.columns(stripe, new, hull, &old);
        self.write_unreadable(stripe, new, hull, &old.states, &columns);
        self.encoded_parity(stripe, hull, &columns)
    }

    /// Adds what could not be read to what was.
    ///
    /// # Errors
    /// When that is not what checksums say.
    async fn compute_lost(
        &self,
        stripe: StripeNumber,
        hull: Span,
        old: &mut OldData,
    ) -> IoResult<()> {
        let plan = self.stripes.reconstruct(stripe, &unusable(&old.states));
        // What was read is what is needed, in the same order.
        let mut read = old.read.iter();
        let lost = plan.blocks(hull.bytes(), |_| read.next().expect("every source was read"));
        let slots = lost.iter().map(|(slot, buf)| (*slot, buf));
        self.stripes.check_computed(stripe, hull, &old.states, slots).await?;
        for (slot, buf) in lost {
            old.plan.reads.push((slot, hull));
            old.read.push(buf);
        }
        Ok(())
    }

    /// The data of the stripe as they are to be, slot by slot: the old content, and the new over it.
    fn columns(
        &self,
        stripe: StripeNumber,
        new: &[NewData],
        hull: Span,
        old: &OldData,
    ) -> Vec<Bytes> {
        let column = |slot| {
            if let Some(part) = whole_part(new, slot, hull) {
                return part.data.clone();
            }
            let mut whole = Buf::new(hull.bytes());
            let known = old.plan.reads.iter().zip(&old.read).filter(|((at, _), _)| *at == slot);
            let known = known.map(|((_, span), buf)| (*span, &buf[..]));
            let parts = new.iter().filter(|part| part.slot == slot);
            for (span, bytes) in known.chain(parts.map(|part| (part.span, &part.data[..]))) {
                whole[hull.place_of(span)].copy_from_slice(bytes);
            }
            whole.freeze()
        };
        StripeSlot::all(self.stripes.shape(stripe).data_chunks()).map(column).collect()
    }

    /// Has data that gave a medium error written whole.
    fn write_unreadable(
        &self,
        stripe: StripeNumber,
        new: &mut Vec<NewData>,
        hull: Span,
        states: &[SlotState],
        columns: &[Bytes],
    ) {
        for (slot, column) in StripeSlot::all(columns.len()).zip(columns) {
            if states[slot.0] == SlotState::Unreadable && whole_part(new, slot, hull).is_none() {
                self.members.note_repair(self.stripes.shape(stripe).member_of(stripe, slot));
                new.retain(|part| part.slot != slot);
                new.push(NewData { slot, span: hull, data: column.clone() });
            }
        }
    }

    fn encoded_parity(
        &self,
        stripe: StripeNumber,
        hull: Span,
        columns: &[Bytes],
    ) -> Vec<SlotWrite> {
        let data: Vec<&[u8]> = columns.iter().map(|column| &column[..]).collect();
        let parity_count = self.geometry.parity_chunks();
        let mut parities: Vec<Buf> = (0..parity_count).map(|_| Buf::new(hull.bytes())).collect();
        let mut slices: Vec<&mut [u8]> = parities.iter_mut().map(|buf| &mut buf[..]).collect();
        self.stripes.code_of(stripe).encode(&data, &mut slices, Stores::Cached);
        let slots = StripeSlot::all(self.stripes.shape(stripe).width()).skip(columns.len());
        let parities = slots.zip(parities.into_iter().map(Buf::freeze));
        parities.map(|(slot, data)| SlotWrite { slot, span: hull, data }).collect()
    }

    /// The pieces that the journal takes of these writes.
    fn pieces_of(&self, ready: &[MemberWrite]) -> Vec<Piece> {
        if !self.journal.is_in_service() {
            return Vec::new();
        }
        let piece = |write: &MemberWrite| Piece {
            member: write.member,
            at: write.at,
            content: Content::Data(write.data.clone()),
        };
        ready.iter().map(piece).collect()
    }

    /// Writes members of a group, all at once.
    async fn commit(
        self: &Rc<Self>,
        group: GroupIndex,
        ready: Vec<MemberWrite>,
        durability: Durability,
    ) -> IoResult<()> {
        let places: Vec<_> = ready.iter().map(|write| (write.member, write.range())).collect();
        let write = |MemberWrite { member, at, data }| {
            self.members.clone().write(member, at, data, durability)
        };
        let results = at_once(&self.handle, ready.into_iter().map(write)).await;
        for ((member, range), result) in places.into_iter().zip(&results) {
            if result.is_err() {
                self.stripes.note_half_written(member, range);
            }
        }
        results.into_iter().collect::<IoResult<()>>()?;
        self.members.check_group(group)
    }
}
