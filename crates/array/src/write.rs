//! Writes: stripe by stripe, what to read, parity, then data and parity together.

use std::rc::Rc;

use voltier_block::{
    BlockDevice, Buf, Bytes, Durability, IoResult, Payload, SECTOR_BYTES, SectorRange,
};
use voltier_parity::Stores;

use crate::array::Inner;
use crate::geometry::{Part, Span, Stripe};
use crate::locks::Access;
use crate::members::together;
use crate::pieces::Pieces;
use crate::plan::{Method, Plan, SlotState, plan, unusable};

/// Two parts of neighbouring chunks share one change of parity up to this distance between their
/// offsets: reading and writing 32 KiB in vain costs less than further I/Os.
const GAP_SECTORS_MAX: u64 = 64;

/// New data of a slot.
struct NewData {
    slot: usize,
    span: Span,
    data: Bytes,
}

/// What one write of a slot's member will be.
struct SlotWrite {
    slot: usize,
    span: Span,
    data: Bytes,
}

/// All that a stripe's members will be written: data and their parity.
struct StripeWrite {
    stripe: Stripe,
    writes: Vec<SlotWrite>,
}

/// Old content of the slots of a stripe.
struct OldData {
    states: Vec<SlotState>,
    plan: Plan,
    /// What was read, as the plan says.
    read: Vec<Buf>,
}

fn hull_of(parts: &[NewData]) -> Span {
    let hull = parts.iter().map(|part| part.span).reduce(Span::hull);
    hull.expect("something is written")
}

/// Whether two parts of a stripe are better written one after the other: the end of a chunk and the
/// start of the next, with much between them.
fn are_far_apart(parts: &[Part]) -> bool {
    matches!(parts, [end, start] if start.span.end + GAP_SECTORS_MAX < end.span.start)
}

impl<D: BlockDevice> Inner<D> {
    pub(crate) async fn write(
        self: &Rc<Self>,
        range: SectorRange,
        data: Payload,
        durability: Durability,
    ) -> IoResult<()> {
        let parts: Vec<Part> = self.geometry.parts(range).collect();
        let mut pieces = Pieces::of(data);
        let mut new_data = |part: &Part| NewData {
            slot: part.slot,
            span: part.span,
            data: pieces.take(part.span.bytes()),
        };
        let mut tasks = Vec::new();
        for parts in parts.chunk_by(|one, next| one.stripe == next.stripe) {
            let at_once = if are_far_apart(parts) { 1 } else { parts.len() };
            for parts in parts.chunks(at_once) {
                let new = parts.iter().map(&mut new_data).collect();
                // A task of its own: a stripe once begun is finished also when nobody waits.
                let write = self.clone().write_stripe(parts[0].stripe, new, durability);
                tasks.push(self.handle.spawn(write));
            }
        }
        let mut result = Ok(());
        for task in tasks {
            result = result.and(task.await);
        }
        result
    }

    async fn write_stripe(
        self: Rc<Self>,
        stripe: Stripe,
        new: Vec<NewData>,
        durability: Durability,
    ) -> IoResult<()> {
        let _mark = self.mark_region(stripe).await?;
        let hull = hull_of(&new);
        let has_parity = self.geometry.parity_chunks() > 0;
        // While a member is copied, a copy must not overtake what is written beside it.
        let must_lock = has_parity || self.background.is_copying.get();
        let _guard = if must_lock {
            Some(self.locks.lock(stripe, hull, Access::Exclusive).await)
        } else {
            None
        };
        let _unlocked = (!must_lock).then(|| self.background.unlocked.enter());
        let old = self.read_old(stripe, &new, hull).await?;
        let ready = self.with_parity(stripe, new, hull, old);
        // Here parity is known and nothing is written: the place of a journal.
        self.commit(ready, durability).await
    }

    /// Reads what the parity needs. What gives a medium error is planned around.
    async fn read_old(
        self: &Rc<Self>,
        stripe: Stripe,
        new: &[NewData],
        hull: Span,
    ) -> IoResult<OldData> {
        let written: Vec<(usize, Span)> = new.iter().map(|part| (part.slot, part.span)).collect();
        let mut unreadable = Vec::new();
        loop {
            let states = self.slot_states(stripe, &unreadable)?;
            let plan = plan(self.geometry.data_chunks(), &written, hull, &states);
            match self.read_slots(stripe, &plan.reads).await {
                Err(failed) => unreadable.extend(failed),
                Ok(read) => {
                    self.counters.add(|counts| match plan.method {
                        Method::Plain => {}
                        Method::FullStripe => counts.full_stripe_writes += 1,
                        Method::Reconstruct => counts.reconstruct_writes += 1,
                        Method::Modify => counts.modify_writes += 1,
                        Method::Recover => counts.recover_writes += 1,
                    });
                    return Ok(OldData { states, plan, read });
                }
            }
        }
    }

    /// New data and the parity that goes with them.
    fn with_parity(
        &self,
        stripe: Stripe,
        mut new: Vec<NewData>,
        hull: Span,
        old: OldData,
    ) -> StripeWrite {
        let data_chunks = self.geometry.data_chunks();
        let parities: Vec<(usize, Bytes)> = match old.plan.method {
            Method::Plain => Vec::new(),
            Method::FullStripe if self.geometry.is_mirror() => {
                (0..self.geometry.parity_chunks()).map(|row| (row, new[0].data.clone())).collect()
            }
            Method::Modify => self.modified_parity(&new, hull, old),
            Method::FullStripe | Method::Reconstruct | Method::Recover => {
                self.parity_of_all(&mut new, hull, old)
            }
        };
        let parities = parities.into_iter().map(|(row, data)| SlotWrite {
            slot: data_chunks + row,
            span: hull,
            data,
        });
        let data = new.into_iter().map(|part| SlotWrite {
            slot: part.slot,
            span: part.span,
            data: part.data,
        });
        StripeWrite { stripe, writes: data.chain(parities).collect() }
    }

    /// The old parity, changed by what each part of the data changes.
    fn modified_parity(&self, new: &[NewData], hull: Span, old: OldData) -> Vec<(usize, Bytes)> {
        let data_chunks = self.geometry.data_chunks();
        let mut old_data = old.read;
        // The plan reads the parts in their order, then the parities.
        let mut parities = old_data.split_off(new.len());
        let rows = old.plan.reads[new.len()..].iter().map(|(slot, _)| slot - data_chunks);
        let rows: Vec<usize> = rows.collect();
        for (part, before) in new.iter().zip(&old_data) {
            let inside = hull.place_of(part.span);
            let slices = parities.iter_mut().map(|parity| &mut parity[inside.clone()]);
            let mut parity: Vec<(usize, &mut [u8])> = rows.iter().copied().zip(slices).collect();
            self.code().update(part.slot, before, &part.data, &mut parity);
        }
        rows.into_iter().zip(parities.into_iter().map(Buf::freeze)).collect()
    }

    /// Parity from all data of the stripe. Data that gave a medium error are written as well.
    fn parity_of_all(
        &self,
        new: &mut Vec<NewData>,
        hull: Span,
        old: OldData,
    ) -> Vec<(usize, Bytes)> {
        let data_chunks = self.geometry.data_chunks();
        let OldData { states, plan, mut read } = old;
        let mut reads = plan.reads;
        if plan.method == Method::Recover {
            let decoder = self.decoder(&unusable(&states));
            let sources: Vec<&[u8]> = read.iter().map(|buf| &buf[..]).collect();
            let mut lost: Vec<Buf> =
                decoder.targets().iter().map(|_| Buf::new(hull.bytes())).collect();
            let mut targets: Vec<&mut [u8]> = lost.iter_mut().map(|buf| &mut buf[..]).collect();
            decoder.decode(&sources, &mut targets);
            reads.extend(decoder.targets().iter().map(|slot| (*slot, hull)));
            read.extend(lost);
        }
        let mut columns: Vec<Option<Bytes>> = (0..data_chunks).map(|_| None).collect();
        for part in new.iter().filter(|part| part.span == hull) {
            columns[part.slot] = Some(part.data.clone());
        }
        for (slot, column) in columns.iter_mut().enumerate().filter(|(_, it)| it.is_none()) {
            let mut whole = Buf::new(hull.bytes());
            let known = reads.iter().zip(&read).filter(|((at, _), _)| *at == slot);
            let known = known.map(|((_, span), buf)| (*span, &buf[..]));
            let parts = new.iter().filter(|part| part.slot == slot);
            for (span, bytes) in known.chain(parts.map(|part| (part.span, &part.data[..]))) {
                whole[hull.place_of(span)].copy_from_slice(bytes);
            }
            let whole = column.insert(whole.freeze());
            if states[slot] == SlotState::Unreadable {
                self.counters.add(|counts| counts.repairs += 1);
                new.retain(|part| part.slot != slot);
                new.push(NewData { slot, span: hull, data: whole.clone() });
            }
        }
        let columns: Vec<Bytes> = columns.into_iter().flatten().collect();
        let data: Vec<&[u8]> = columns.iter().map(|column| &column[..]).collect();
        let rows = self.geometry.parity_chunks();
        let mut parities: Vec<Buf> = (0..rows).map(|_| Buf::new(hull.bytes())).collect();
        let mut slices: Vec<&mut [u8]> = parities.iter_mut().map(|buf| &mut buf[..]).collect();
        self.code().encode(&data, &mut slices, Stores::Cached);
        parities.into_iter().map(Buf::freeze).enumerate().collect()
    }

    /// Writes a stripe's members, all at once.
    async fn commit(self: &Rc<Self>, ready: StripeWrite, durability: Durability) -> IoResult<()> {
        let stripe = ready.stripe;
        let write = |write: SlotWrite| {
            let member = self.geometry.member_of(stripe, write.slot);
            let at = self.geometry.member_lba(stripe, write.span.start);
            self.clone().write_member(member, at, write.data, durability)
        };
        let writes = ready.writes.into_iter().map(write).collect();
        let results = together(&self.handle, writes).await;
        results.into_iter().collect::<IoResult<()>>()?;
        self.check_group(self.geometry.group_of(stripe))
    }
}

/// Zeroes as a payload of so many sectors, one piece for all.
pub(crate) fn zeroes(sectors: u64, longest_bytes: u64) -> Payload {
    let bytes = sectors * SECTOR_BYTES;
    let piece = Buf::zeroed(bytes.min(longest_bytes) as usize).freeze();
    let whole = std::iter::repeat_n(piece.clone(), (bytes / longest_bytes) as usize);
    let rest = Some(piece.slice(0..(bytes % longest_bytes) as usize));
    Payload::Many(whole.chain(rest.filter(|rest| !rest.is_empty())).collect())
}
