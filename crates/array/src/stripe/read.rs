//! Reads: each part from its member, those that lie behind one another there as one. Parts that cannot
//! be read are computed from the others, and the result repairs a medium error.

use std::rc::Rc;
use std::slice::from_ref;

use voltier_block::{BlockDevice, Buf, Durability, IoError, IoResult, Lba, SectorRange};
use voltier_ring::Handle;

use crate::bitmap::write_intent::Bitmap;
use crate::format::checksum_page::SUMMED_SECTORS;
use crate::geometry::chunks::{Geometry, Part, Span};
use crate::geometry::numbers::{MemberIndex, StripeNumber, StripeSlot};
use crate::geometry::plan::{SlotState, online, unusable};
use crate::members::at_once::{at_once, together};
use crate::members::checksums::checked::Verify;
use crate::members::long_transfer::longest_run;
use crate::members::member_set::MemberSet;
use crate::stripe::ground::Ground;
use crate::stripe::stripes::{Access, Stripes};

/// A part of a chunk, and where it goes.
struct Wanted {
    /// The part's number among the parts of the request.
    number: usize,
    slot: StripeSlot,
    span: Span,
    into: Buf,
}

/// The parts that are read at once.
enum SubRead {
    /// Never written: nothing is read.
    Blank(Vec<Wanted>),
    /// Parts that lie behind one another on a member, which is online.
    Direct(Vec<(StripeNumber, Wanted)>),
    /// Parts of one stripe that cannot all be had from their members.
    Computed(StripeNumber, Vec<Wanted>),
}

/// The parts of a request that are read where they are.
#[derive(Default)]
struct Runs {
    runs: Vec<Vec<(StripeNumber, Wanted)>>,
    /// For each member its last run, and what of the member that is.
    last: Vec<Option<(usize, SectorRange)>>,
}

impl Runs {
    /// Adds a part at this place of a member to what lies in front of it, if that is not too long then.
    fn add(
        &mut self,
        (MemberIndex(member), at): (MemberIndex, Lba),
        stripe: StripeNumber,
        wanted: Wanted,
        sectors_max: impl FnOnce() -> u64,
    ) {
        if self.last.len() <= member {
            self.last.resize(member + 1, None);
        }
        let count = wanted.span.count();
        let in_front = self.last[member].filter(|(_, before)| before.end() == at);
        let open = in_front.filter(|(_, before)| before.count + count <= sectors_max());
        let (run, range) = match open {
            Some((run, before)) => (run, SectorRange::new(before.start, before.count + count)),
            None => {
                self.runs.push(Vec::new());
                (self.runs.len() - 1, SectorRange::new(at, count))
            }
        };
        self.runs[run].push((stripe, wanted));
        self.last[member] = Some((run, range));
    }
}

/// The content that was read of the slots of a stripe.
struct Chunks {
    states: Vec<SlotState>,
    /// For each slot what is known of it.
    known: Vec<Option<(Span, Buf)>>,
}

/// Reads for requests.
pub(crate) struct Reader<D> {
    handle: Handle,
    geometry: Geometry,
    members: Rc<MemberSet<D>>,
    bitmap: Rc<Bitmap<D>>,
    stripes: Rc<Stripes<D>>,
}

impl<D: BlockDevice> Reader<D> {
    pub(crate) fn new(ground: &Ground<D>, stripes: &Rc<Stripes<D>>) -> Self {
        let Ground { handle, geometry, members, bitmap, .. } = ground.clone();
        Self { handle, geometry, members, bitmap, stripes: stripes.clone() }
    }

    /// Reads a range. When so many members fail that it cannot be computed, and do not answer at all, the cause
    /// may pass: the read waits for that, but not for long.
    pub(crate) async fn read(self: &Rc<Self>, range: SectorRange, into: Buf) -> IoResult<Buf> {
        let mut into = Some(into);
        let request = async || {
            let into = into.take().unwrap_or_else(|| Buf::new(range.bytes() as usize));
            self.read_once(range, into).await
        };
        self.members.with_patience(request).await
    }

    /// Reads a range; beside a capacity expansion to its end, whoever waits.
    async fn read_once(self: &Rc<Self>, range: SectorRange, into: Buf) -> IoResult<Buf> {
        let Some(fence) = self.stripes.fence() else { return self.read_inside(range, into).await };
        let (reader, fence) = (self.clone(), fence.clone());
        let read = async move {
            let _pass = fence.pass(range).await?;
            reader.read_inside(range, into).await
        };
        self.handle.finish(read).await
    }

    /// Reads a range of which nothing is being moved.
    async fn read_inside(self: &Rc<Self>, range: SectorRange, mut into: Buf) -> IoResult<Buf> {
        if let Some(mut part) = self.stripes.only_part(range) {
            if self.bitmap.is_blank(part.stripe) {
                into.fill(0);
                return Ok(into);
            }
            if self.geometry.is_mirror() {
                part.slot = self.copy_to_read(part.stripe);
            }
            let wanted = Wanted { number: 0, slot: part.slot, span: part.span, into };
            return self.read_part(part.stripe, wanted).await;
        }
        let mut parts: Vec<Part> = self.stripes.parts(range);
        let mut rest = into;
        let (mut sub_reads, mut runs, mut number) = (Vec::new(), Runs::default(), 0);
        for parts in parts.chunk_by_mut(|one, next| one.stripe == next.stripe) {
            let stripe = parts[0].stripe;
            if self.geometry.is_mirror() {
                parts[0].slot = self.copy_to_read(stripe);
            }
            let wanted = parts.iter().zip(number..).map(|(part, number)| Wanted {
                number,
                slot: part.slot,
                span: part.span,
                into: rest.split_to(part.span.bytes()),
            });
            number += parts.len();
            if self.bitmap.is_blank(stripe) {
                sub_reads.push(SubRead::Blank(wanted.collect()));
            } else if parts.iter().all(|part| self.is_slot_read(stripe, part.slot)) {
                for wanted in wanted {
                    let member = self.stripes.shape(stripe).member_of(stripe, wanted.slot);
                    let at = self.geometry.member_lba(stripe, wanted.span.start);
                    runs.add((member, at), stripe, wanted, || self.run_sectors_max(member));
                }
            } else {
                sub_reads.push(SubRead::Computed(stripe, wanted.collect()));
            }
        }
        sub_reads.extend(runs.runs.into_iter().map(SubRead::Direct));
        let reads = sub_reads.into_iter().map(|sub_read| self.clone().do_sub_read(sub_read));
        let mut pieces = Vec::with_capacity(parts.len());
        for sub_read in at_once(&self.handle, reads).await {
            pieces.extend(sub_read?);
        }
        pieces.sort_unstable_by_key(|(number, _)| *number);
        Ok(Buf::put_together(pieces.into_iter().map(|(_, piece)| piece).collect()))
    }

    /// How much of a member is read at once. Copies are held one by one, against writers.
    fn run_sectors_max(&self, member: MemberIndex) -> u64 {
        if self.geometry.is_mirror() { 0 } else { longest_run(from_ref(&self.members[member])) }
    }

    fn is_slot_online(&self, stripe: StripeNumber, slot: StripeSlot) -> bool {
        self.members[self.stripes.shape(stripe).member_of(stripe, slot)]
            .has_region(self.bitmap.region_of(stripe))
    }

    /// Whether a slot is read where it is: its member has it, and is not avoided.
    fn is_slot_read(&self, stripe: StripeNumber, slot: StripeSlot) -> bool {
        let member = &self.members[self.stripes.shape(stripe).member_of(stripe, slot)];
        // The copy to read was chosen before.
        let is_avoided = !self.geometry.is_mirror() && member.vitals().is_avoided_now();
        member.has_region(self.bitmap.region_of(stripe)) && !is_avoided
    }

    /// The copy with the fewest reads under way; rows take turns where they are equal. While the
    /// copies may differ it is the one that the others will be made like.
    fn copy_to_read(&self, stripe: StripeNumber) -> StripeSlot {
        let width = self.geometry.width();
        let row = self.geometry.row_of(stripe).0 as usize;
        let mut online = StripeSlot::all(width).filter(|&slot| self.is_slot_online(stripe, slot));
        if self.bitmap.needs_resync(stripe) {
            return online.next().unwrap_or(StripeSlot(0));
        }
        let load = |&slot: &StripeSlot| {
            let member = &self.members[self.stripes.shape(stripe).member_of(stripe, slot)];
            let vitals = member.vitals();
            (vitals.is_avoided_now(), vitals.reads_in_flight(), (slot.0 + row) % width)
        };
        online.min_by_key(load).unwrap_or(StripeSlot(0))
    }

    /// The content that was read, with the numbers of the parts.
    async fn do_sub_read(self: Rc<Self>, sub_read: SubRead) -> IoResult<Vec<(usize, Buf)>> {
        match sub_read {
            SubRead::Blank(wanted) => {
                let zeroes = |mut part: Wanted| {
                    part.into.fill(0);
                    (part.number, part.into)
                };
                Ok(wanted.into_iter().map(zeroes).collect())
            }
            SubRead::Direct(run) => self.read_run(run).await,
            SubRead::Computed(stripe, wanted) => {
                let numbers: Vec<usize> = wanted.iter().map(|part| part.number).collect();
                let computed = self.compute(stripe, wanted, Vec::new()).await?;
                Ok(numbers.into_iter().zip(computed).collect())
            }
        }
    }

    /// Parts that lie behind one another on a member, as one read; if that fails, each for itself.
    async fn read_run(
        self: &Rc<Self>,
        mut run: Vec<(StripeNumber, Wanted)>,
    ) -> IoResult<Vec<(usize, Buf)>> {
        if run.len() > 1 {
            let is_all = |(stripe, _): &(StripeNumber, Wanted)| {
                self.stripes.verify_of(*stripe) == Verify::All
            };
            let has_checksums = self.members.devices().have_checksums();
            let verify =
                if has_checksums && run.iter().any(is_all) { Verify::All } else { Verify::Known };
            let (first, part) = &run[0];
            let member = self.stripes.shape(*first).member_of(*first, part.slot);
            let at = self.geometry.member_lba(*first, part.span.start);
            let taken =
                run.iter_mut().map(|(_, part)| std::mem::replace(&mut part.into, Buf::new(0)));
            let taken = taken.collect();
            let result = self.members.clone().read_run(member, at, taken, verify).await;
            if let Ok(bufs) = result {
                let numbers = run.iter().map(|(_, part)| part.number);
                return Ok(numbers.zip(bufs).collect());
            }
            run.iter_mut().for_each(|(_, part)| part.into = Buf::new(part.span.bytes()));
        }
        let mut read = Vec::with_capacity(run.len());
        for (stripe, part) in run {
            read.push((part.number, self.read_part(stripe, part).await?));
        }
        Ok(read)
    }

    /// Reads one part, from its member if the member has it.
    async fn read_part(self: &Rc<Self>, stripe: StripeNumber, mut wanted: Wanted) -> IoResult<Buf> {
        if self.geometry.is_mirror() && self.members.devices().have_checksums() {
            let chosen = self.copy_with_checksums(stripe, wanted.slot, wanted.span);
            wanted.slot = Box::pin(chosen).await;
        }
        let member = self.stripes.shape(stripe).member_of(stripe, wanted.slot);
        let mut unreadable = Vec::new();
        if self.is_slot_read(stripe, wanted.slot) {
            let at = self.geometry.member_lba(stripe, wanted.span.start);
            // Copies change one after the other. Without a lock a read of one may return what is being
            // written, and a later one of another copy what was there before.
            let guard = if self.geometry.is_mirror() {
                Some(self.stripes.lock(stripe, wanted.span, Access::Shared).await)
            } else {
                None
            };
            let verify = self.stripes.verify_of(stripe);
            let read = self.members.clone().read_as(member, at, wanted.into, verify).await;
            drop(guard);
            match read {
                Ok(buf) => return Ok(buf),
                Err(error) if self.geometry.parity_chunks() == 0 => return Err(error),
                // It can be read, when it was held against the others.
                Err(_)
                    if Box::pin(self.stripes.has_unknown(stripe, wanted.slot, wanted.span))
                        .await => {}
                Err(_) => unreadable.push(wanted.slot),
            }
            wanted.into = Buf::new(wanted.span.bytes());
        }
        let computed = self.compute(stripe, vec![wanted], unreadable).await?;
        Ok(Buf::put_together(computed))
    }

    /// The copy that was chosen if it has checksums, or one that has, if there is any.
    async fn copy_with_checksums(
        &self,
        stripe: StripeNumber,
        chosen: StripeSlot,
        span: Span,
    ) -> StripeSlot {
        let Ok(mut states) = self.stripes.slot_states(stripe, &[]) else { return chosen };
        let member = self.stripes.shape(stripe).member_of(stripe, chosen);
        let at = self.geometry.member_lba(stripe, span.start);
        let range = SectorRange::new(at, span.count());
        if self.members.knows(member, range).await {
            return chosen;
        }
        if self.stripes.verify_of(stripe) == Verify::All {
            self.members.note_unverified(member, range);
        }
        self.stripes.prefer_checksums(stripe, span, &mut states).await;
        let is_readable = states[chosen.0] == SlotState::Online;
        let other = online(&states).next().filter(|_| !is_readable);
        other.unwrap_or(chosen)
    }

    async fn compute(
        self: &Rc<Self>,
        stripe: StripeNumber,
        wanted: Vec<Wanted>,
        unreadable: Vec<StripeSlot>,
    ) -> IoResult<Vec<Buf>> {
        if self.geometry.parity_chunks() == 0 {
            return Err(IoError::Gone);
        }
        let places: Vec<(StripeSlot, Span)> = wanted.iter().map(|it| (it.slot, it.span)).collect();
        let has_checksums = self.members.devices().have_checksums();
        let is_long = |(_, span): &(StripeSlot, Span)| span.count() > SUMMED_SECTORS;
        let has_pieces = has_checksums && (places.len() > 1 || places.iter().any(is_long));
        if has_pieces && !unreadable.is_empty() {
            return self.compute_in_pieces(stripe, places).await;
        }
        // A repair is finished also when nobody waits for the read any more.
        let computed =
            self.handle.finish(self.clone().reconstruct(stripe, wanted, unreadable)).await;
        match computed {
            Err(IoError::Medium) if has_pieces => self.compute_in_pieces(stripe, places).await,
            result => result,
        }
    }

    /// The same, block by block: different blocks of several chunks may be wrong, and those beside them are
    /// what their members return.
    async fn compute_in_pieces(
        self: &Rc<Self>,
        stripe: StripeNumber,
        places: Vec<(StripeSlot, Span)>,
    ) -> IoResult<Vec<Buf>> {
        let mut parts = Vec::with_capacity(places.len());
        for (slot, whole) in places {
            let mut into = Buf::new(whole.bytes());
            for start in (whole.start..whole.end).step_by(SUMMED_SECTORS as usize) {
                let span = Span { start, end: (start + SUMMED_SECTORS).min(whole.end) };
                let piece = Wanted { number: 0, slot, span, into: Buf::new(span.bytes()) };
                let found = self.clone().reconstruct(stripe, vec![piece], Vec::new());
                let found = self.handle.finish(found).await?;
                into[whole.place_of(span)].copy_from_slice(&found[0]);
            }
            parts.push(into);
        }
        Ok(parts)
    }

    /// Reads parts of a stripe, some of which cannot be had from their members.
    async fn reconstruct(
        self: Rc<Self>,
        stripe: StripeNumber,
        wanted: Vec<Wanted>,
        mut unreadable: Vec<StripeSlot>,
    ) -> IoResult<Vec<Buf>> {
        self.members.counters().add(|counts| counts.degraded_reads += 1);
        let hull = wanted.iter().map(|part| part.span).reduce(Span::hull);
        let hull = hull.expect("something is wanted");
        let mut may_avoid = true;
        loop {
            let access = if unreadable.is_empty() { Access::Shared } else { Access::Exclusive };
            let _guard = self.stripes.lock(stripe, hull, access).await;
            match self.read_chunks(stripe, &wanted, &unreadable, may_avoid).await? {
                Err(_)
                    if self.members.devices().have_checksums() && hull.count() > SUMMED_SECTORS =>
                {
                    return Err(IoError::Medium);
                }
                Err(failed) => {
                    unreadable.extend(failed);
                    may_avoid = false;
                }
                Ok(chunks) => {
                    let fill = |mut part: Wanted| {
                        let (span, buf) =
                            chunks.known[part.slot.0].as_ref().expect("it was wanted");
                        part.into.copy_from_slice(&buf[span.place_of(part.span)]);
                        part.into
                    };
                    let filled = wanted.into_iter().map(fill).collect();
                    self.repair(stripe, chunks).await;
                    return Ok(filled);
                }
            }
        }
    }

    /// One try: the slots that turned out to be unreadable, or all that is wanted.
    async fn read_chunks(
        self: &Rc<Self>,
        stripe: StripeNumber,
        wanted: &[Wanted],
        unreadable: &[StripeSlot],
        may_avoid: bool,
    ) -> IoResult<Result<Chunks, Vec<StripeSlot>>> {
        let mut states = self.stripes.slot_states(stripe, unreadable)?;
        if may_avoid && unreadable.is_empty() {
            self.stripes.avoid_slow(stripe, &mut states);
        }
        if !unreadable.is_empty() {
            let hull = wanted.iter().map(|part| part.span).reduce(Span::hull);
            self.stripes.prefer_checksums(stripe, hull.expect("wanted"), &mut states).await;
        }
        let unusable = unusable(&states);
        let own_span = |slot| wanted.iter().find(|part| part.slot == slot).map(|part| part.span);
        // Every unusable slot is computed over what is wanted of any of them.
        let computed = unusable.iter().filter_map(|&slot| own_span(slot)).reduce(Span::hull);
        let plan = computed.map(|span| (span, self.stripes.reconstruct(stripe, &unusable)));
        let mut reads = Vec::new();
        for slot in online(&states) {
            let is_source = |span| {
                let (_, plan) = plan.as_ref()?;
                plan.needs(slot).then_some(span)
            };
            let spans = [own_span(slot), computed.and_then(is_source)];
            let span = spans.into_iter().flatten().reduce(Span::hull);
            reads.extend(span.map(|span| (slot, span)));
        }
        let read = match self.stripes.read_slots(stripe, &reads).await {
            Ok(read) => read,
            Err(failed) => return Ok(Err(failed)),
        };
        let mut known: Vec<Option<(Span, Buf)>> = states.iter().map(|_| None).collect();
        for ((slot, span), buf) in reads.into_iter().zip(read) {
            known[slot.0] = Some((span, buf));
        }
        if let Some((computed, plan)) = plan {
            let found = plan.blocks(computed.bytes(), |slot| {
                let (span, buf) = known[slot.0].as_ref().expect("every source was read");
                &buf[span.place_of(computed)]
            });
            let slots = found.iter().map(|(slot, buf)| (*slot, buf));
            self.stripes.check_computed(stripe, computed, &states, slots).await?;
            for (slot, buf) in found {
                known[slot.0] = Some((computed, buf));
            }
        }
        Ok(Ok(Chunks { states, known }))
    }

    /// Writes what was computed in place of medium errors where it belongs.
    async fn repair(self: &Rc<Self>, stripe: StripeNumber, chunks: Chunks) {
        let mut writes = Vec::new();
        let slots = StripeSlot::all(chunks.states.len());
        for (slot, (state, known)) in slots.zip(chunks.states.into_iter().zip(chunks.known)) {
            let (SlotState::Unreadable, Some((span, buf))) = (state, known) else { continue };
            if !self.is_slot_online(stripe, slot) {
                // Of a member that is being rebuilt.
                continue;
            }
            let member = self.stripes.shape(stripe).member_of(stripe, slot);
            self.members.note_repair(member);
            let at = self.geometry.member_lba(stripe, span.start);
            writes.push(self.members.clone().write(member, at, buf.into(), Durability::Cached));
        }
        // The data are right whether the member takes them or not; it is lost if it does not.
        together(&self.handle, writes).await;
    }
}
