//! The stripes of an array: their shape and code, locks, slots that can be read, and reads of them.
//!
//! Parity at an offset depends on data at the same offset of the chunks alone. So two requests to one
//! stripe at different offsets do not wait for each other. The first to come goes first.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::ops::Range;
use std::rc::Rc;
use std::task::{Poll, Waker};

use voltier_block::{BlockDevice, Buf, IoError, IoResult, SectorRange};
use voltier_parity::Code;
use voltier_ring::Handle;

use crate::bitmap::write_intent::Bitmap;
use crate::canary::{self, Canary};
use crate::geometry::chunks::{Geometry, Part, SlotMembers, Span};
use crate::geometry::numbers::{
    GroupIndex, MemberIndex, Row, Section, StripeNumber, StripeSlot, count, each,
};
use crate::geometry::plan::{SlotState, online, unusable};
use crate::members::at_once::{at_once, together};
use crate::members::checksums::checked::Verify;
use crate::members::event::MemberEvent;
use crate::members::member_set::MemberSet;
use crate::stripe::fence::Fence;
use crate::stripe::foreground::Foreground;
use crate::stripe::ground::Ground;
use crate::stripe::reconstruct::Reconstruct;
use crate::stripe::two_shapes::TwoShapes;
use crate::stripe::vouch::{Vouched, Voucher};

/// Plans of reconstruction that are kept: enough for every rotation of a few losses.
const PLANS_MAX: usize = 256;

/// Chunks in a stripe, slots that cannot be used, and those of them that are wanted.
type PlanKey = (usize, Vec<StripeSlot>, Vec<StripeSlot>);

/// The parts that all who read and write stripes share.
pub(crate) struct Stripes<D> {
    handle: Handle,
    geometry: Geometry,
    members: Rc<MemberSet<D>>,
    bitmap: Rc<Bitmap<D>>,
    locks: StripeLocks,
    /// Slots that failed a write and could not be given up: nothing is computed from what they hold.
    half_written: RefCell<BTreeSet<(StripeNumber, StripeSlot)>>,
    /// Set while stripes have two shapes: `geometry` is the one that comes.
    two_shapes: Option<Rc<TwoShapes>>,
    /// None without redundancy.
    code: Option<Code>,
    plans: RefCell<BTreeMap<PlanKey, Reconstruct>>,
    /// Whether a device is filled beside a member in service: then all writes lock their stripes.
    has_successor: Cell<bool>,
    /// Writes under way that did not.
    unlocked: Foreground,
}

impl<D: BlockDevice> Stripes<D> {
    pub(crate) fn new(
        ground: &Ground<D>,
        two_shapes: Option<Rc<TwoShapes>>,
        code: Option<Code>,
    ) -> Self {
        let Ground { handle, geometry, members, bitmap, .. } = ground.clone();
        Self {
            handle,
            geometry,
            members,
            bitmap,
            locks: StripeLocks::default(),
            half_written: RefCell::default(),
            two_shapes,
            code,
            plans: RefCell::default(),
            has_successor: Cell::new(false),
            unlocked: Foreground::default(),
        }
    }

    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }

    pub(super) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    pub(super) fn members(&self) -> &Rc<MemberSet<D>> {
        &self.members
    }

    /// Waits until no earlier request to these sectors is under way.
    pub(crate) async fn lock(
        &self,
        stripe: StripeNumber,
        span: Span,
        access: Access,
    ) -> StripeGuard {
        self.locks.lock(stripe, span, access).await
    }

    /// Whether writes lock their stripes. While a successor is filled, the rebuild must not overtake what is
    /// written beside it.
    pub(crate) fn must_lock(&self) -> bool {
        self.geometry.parity_chunks() > 0 || self.has_successor.get()
    }

    pub(crate) fn set_has_successor(&self, has_successor: bool) {
        self.has_successor.set(has_successor);
    }

    /// Writes under way that hold no lock.
    pub(crate) fn unlocked(&self) -> &Foreground {
        &self.unlocked
    }

    /// Whether a write failed and stands anywhere.
    pub(crate) fn has_any_half_written(&self) -> bool {
        !self.half_written.borrow().is_empty()
    }

    /// The parity code; asked only where there is redundancy.
    pub(crate) fn code(&self) -> &Code {
        self.code.as_ref().expect("a level with parity has a code")
    }

    /// A plan to compute these unusable slots of a stripe, ascending, from the others.
    pub(crate) fn reconstruct(&self, stripe: StripeNumber, unusable: &[StripeSlot]) -> Reconstruct {
        self.reconstruct_some(stripe, unusable, unusable)
    }

    /// A plan to compute some of these unusable slots.
    pub(crate) fn reconstruct_some(
        &self,
        stripe: StripeNumber,
        unusable: &[StripeSlot],
        wanted: &[StripeSlot],
    ) -> Reconstruct {
        let mut plans = self.plans.borrow_mut();
        let key = (self.shape(stripe).width(), unusable.to_vec(), wanted.to_vec());
        if let Some(plan) = plans.get(&key) {
            return plan.clone();
        }
        let numbers =
            |slots: &[StripeSlot]| -> Vec<usize> { slots.iter().map(|slot| slot.0).collect() };
        let decoder = self.code_of(stripe).decoder(&numbers(unusable), &numbers(wanted));
        let decoder = decoder.expect("no more slots are unusable than there are parities");
        if plans.len() == PLANS_MAX {
            plans.clear();
        }
        plans.entry(key).insert_entry(Reconstruct::new(decoder)).get().clone()
    }

    /// The two shapes of the stripes; none while all have one.
    pub(crate) fn two_shapes(&self) -> Option<&Rc<TwoShapes>> {
        self.two_shapes.as_ref()
    }

    /// The fence between requests and a capacity expansion, if there is one.
    pub(crate) fn fence(&self) -> Option<&Rc<Fence>> {
        self.two_shapes.as_ref().map(|two| two.fence())
    }

    /// The shape of a stripe: of one that holds nothing it does not matter.
    pub(crate) fn shape(&self, stripe: StripeNumber) -> &Geometry {
        let Some(moving) = &self.two_shapes else { return &self.geometry };
        let shape =
            moving.shapes().of_row(moving.frontier(), moving.shapes().before.row_of(stripe));
        shape.unwrap_or(&moving.shapes().before)
    }

    /// The members of the slots of a stripe.
    #[inline]
    pub(crate) fn slot_members(&self, stripe: StripeNumber) -> SlotMembers {
        self.shape(stripe).slot_members(stripe)
    }

    /// The code of a stripe; asked only where there is redundancy.
    pub(crate) fn code_of(&self, stripe: StripeNumber) -> &Code {
        match &self.two_shapes {
            Some(moving) if std::ptr::eq(self.shape(stripe), &moving.shapes().before) => {
                moving.code()
            }
            _ => self.code(),
        }
    }

    /// Whether a stripe is none at this moment: its row holds nothing, or is between two shapes.
    pub(crate) fn is_idle(&self, stripe: StripeNumber) -> bool {
        self.two_shapes
            .as_ref()
            .is_some_and(|moving| moving.is_idle_row(self.geometry.row_of(stripe)))
    }

    /// Whether some rows are between two shapes: nothing may be computed from them.
    pub(crate) fn has_rows_between(&self, rows: &Range<Row>) -> bool {
        let Some(moving) = &self.two_shapes else { return false };
        let section = moving.shapes().window(moving.frontier(), 1);
        let between = section.new_rows.start..section.old_rows.end;
        moving.record().is_between() && rows.start < between.end && between.start < rows.end
    }

    /// The parts of a range of the volume, in its order.
    pub(crate) fn parts(&self, range: SectorRange) -> Vec<Part> {
        match &self.two_shapes {
            None => self.geometry.parts(range).collect(),
            Some(moving) => {
                let missed = u64::from(canary::is(Canary::MovedPartMissed));
                let frontier = Section(moving.frontier().0.saturating_sub(missed));
                moving.shapes().parts(frontier, range)
            }
        }
    }

    /// The range as a part of a chunk, if it is known to be in one chunk alone.
    pub(crate) fn only_part(&self, range: SectorRange) -> Option<Part> {
        if self.two_shapes.is_some() { None } else { self.geometry.only_part(range) }
    }

    /// The size of the volume, in sectors.
    pub(crate) fn volume_sectors(&self) -> u64 {
        self.two_shapes.as_ref().map_or(&self.geometry, |moving| &moving.shapes().before).sectors()
    }

    /// A member that could not be given up failed a write to these sectors, and the others have the new
    /// content of their stripes. Nothing that is computed from both is right.
    pub(crate) fn note_half_written(&self, member: MemberIndex, range: SectorRange) {
        if self.geometry.parity_chunks() == 0 {
            return;
        }
        let mut half_written = self.half_written.borrow_mut();
        for piece in range.split_at_multiples(self.geometry.chunk_sectors()) {
            // Two shapes are of one group, whose stripes are its rows.
            let stripe = self.stripe_of(GroupIndex::FIRST, self.geometry.row_at(piece.start));
            if let Some(place) = self.shape(stripe).member_place(member, piece.start) {
                half_written.insert((place.stripe, place.slot));
            }
        }
        drop(half_written);
        self.members.emit(MemberEvent::HalfWritten);
    }

    /// Whether stripes are half written whose members are all there: a resync makes them right when the members
    /// take changes.
    pub(crate) fn has_half_written_and_whole(&self) -> bool {
        self.half_written.borrow().iter().any(|(stripe, _)| self.is_whole(*stripe))
    }

    fn is_whole(&self, stripe: StripeNumber) -> bool {
        self.members.lost_in(self.geometry.group_of(stripe)) == 0
    }

    /// Has stripes resynced that are half written and whose members are all there.
    pub(crate) fn resync_half_written(&self) {
        self.half_written.borrow_mut().retain(|(stripe, _)| {
            let is_whole = self.is_whole(*stripe);
            if is_whole {
                self.bitmap.resync(self.bitmap.region_of(*stripe));
            }
            !is_whole
        });
    }

    /// Whether writes of some rows of a group failed and stand: what is in them is not one thing.
    pub(crate) fn has_half_written(&self, group: GroupIndex, rows: Range<Row>) -> bool {
        let half_written = self.half_written.borrow();
        let is_in = |(stripe, _): &(StripeNumber, StripeSlot)| {
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
        stripe: StripeNumber,
        unreadable: &[StripeSlot],
    ) -> IoResult<Vec<SlotState>> {
        let region = self.bitmap.region_of(stripe);
        let half_written = self.half_written.borrow();
        let is_bad = |slot| unreadable.contains(&slot) || half_written.contains(&(stripe, slot));
        let members = self.slot_members(stripe);
        let state = |slot| match self.members[members.member_of(slot)].slot_state(region) {
            SlotState::Online if is_bad(slot) => SlotState::Unreadable,
            state => state,
        };
        let states: Vec<SlotState> =
            StripeSlot::all(self.shape(stripe).width()).map(state).collect();
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

    /// What reads of a stripe are held against. Nothing vouches for blocks without checksums while the stripe
    /// needs a resync, which gives them some.
    pub(crate) fn verify_of(&self, stripe: StripeNumber) -> Verify {
        let has_checksums = self.members.devices().have_checksums();
        if has_checksums && !self.bitmap.needs_resync(stripe) { Verify::All } else { Verify::Known }
    }

    /// Whether blocks of a slot have no checksums.
    pub(crate) async fn has_unknown(
        &self,
        stripe: StripeNumber,
        slot: StripeSlot,
        span: Span,
    ) -> bool {
        let member = self.slot_members(stripe).member_of(slot);
        let at = self.geometry.member_lba(stripe, span.start);
        let has_checksums = self.members.devices().have_checksums();
        has_checksums && !self.members.knows(member, SectorRange::new(at, span.count())).await
    }

    /// Reads a span of all slots that can be read; none of the others.
    ///
    /// # Errors
    /// As [`read_slots`](Self::read_slots).
    pub(crate) async fn read_online(
        &self,
        stripe: StripeNumber,
        span: Span,
        states: &[SlotState],
    ) -> Result<Vec<Option<Buf>>, Vec<StripeSlot>> {
        let reads: Vec<_> = online(states).map(|slot| (slot, span)).collect();
        let mut read = self.read_slots(stripe, &reads).await?.into_iter();
        let is_read = |state: &SlotState| *state == SlotState::Online;
        Ok(states.iter().map(|state| is_read(state).then(|| read.next()).flatten()).collect())
    }

    /// Computes the slots of which nothing could be read.
    pub(crate) fn compute_rest(
        &self,
        stripe: StripeNumber,
        span: Span,
        states: &[SlotState],
        slots: &mut [Option<Buf>],
    ) {
        let plan = self.reconstruct(stripe, &unusable(states));
        let source = |slot: StripeSlot| &slots[slot.0].as_ref().expect("a source is online")[..];
        for (slot, buf) in plan.blocks(span.bytes(), source) {
            slots[slot.0] = Some(buf);
        }
    }

    /// Reads spans of slots, all at once.
    ///
    /// # Errors
    /// The slots that could not be read. The stripe is locked.
    pub(crate) async fn read_slots(
        &self,
        stripe: StripeNumber,
        reads: &[(StripeSlot, Span)],
    ) -> Result<Vec<Buf>, Vec<StripeSlot>> {
        self.read_slots_vouched(stripe, reads, true).await.map(|(read, _)| read)
    }

    /// The same, held against checksums or not; what is known of blocks that had none.
    pub(crate) async fn read_slots_vouched(
        &self,
        stripe: StripeNumber,
        reads: &[(StripeSlot, Span)],
        are_verified: bool,
    ) -> Result<(Vec<Buf>, Vouched), Vec<StripeSlot>> {
        let verify = if are_verified { self.verify_of(stripe) } else { Verify::Nothing };
        let changes = self.members.changes();
        match self.read_slots_as(stripe, reads, verify).await {
            Ok(read) => Ok((read, Vouched::Right)),
            Err(failed) if verify == Verify::All => {
                Box::pin(self.read_unverified(stripe, reads, failed, changes)).await
            }
            Err(failed) => Err(failed),
        }
    }

    /// Finds out what blocks without checksums are, repairs those that are wrong, and keeps the checksums. The
    /// stripe is locked, and needs no resync.
    pub(crate) async fn vouch(&self, stripe: StripeNumber, span: Span) -> Vouched {
        Voucher(self).vouch(stripe, span).await
    }

    /// Reads slots of which some could not be read, perhaps because blocks of theirs have no checksums. `changes` are
    /// those of the members before they were read.
    async fn read_unverified(
        &self,
        stripe: StripeNumber,
        reads: &[(StripeSlot, Span)],
        failed: Vec<StripeSlot>,
        changes: u64,
    ) -> Result<(Vec<Buf>, Vouched), Vec<StripeSlot>> {
        let mut hull: Option<Span> = None;
        for (slot, span) in reads.iter().filter(|(slot, _)| failed.contains(slot)) {
            if self.has_unknown(stripe, *slot, *span).await {
                hull = Some(hull.map_or(*span, |hull| hull.hull(*span)));
            }
        }
        let Some(hull) = hull else {
            if self.members.changes() == changes {
                return Err(failed);
            }
            // A successor may have taken the place of a member that lacked them, and have them.
            let read = self.read_slots_as(stripe, reads, Verify::All).await?;
            return Ok((read, Vouched::Right));
        };
        let vouched = self.vouch(stripe, hull).await;
        let read = self.read_slots_as(stripe, reads, Verify::Known).await?;
        Ok((read, vouched))
    }

    async fn read_slots_as(
        &self,
        stripe: StripeNumber,
        reads: &[(StripeSlot, Span)],
        verify: Verify,
    ) -> Result<Vec<Buf>, Vec<StripeSlot>> {
        let members = self.slot_members(stripe);
        let read = |(slot, span): &(StripeSlot, Span)| {
            let member = members.member_of(*slot);
            let at = self.geometry.member_lba(stripe, span.start);
            self.members.clone().read_as(member, at, Buf::new(span.bytes()), verify)
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

    /// Holds content of slots that was computed, as they could not be read, against their checksums. Slots that
    /// are lost, or of members that are being filled, have none that count.
    ///
    /// # Errors
    /// When a checksum does not match: a block that was computed from is wrong.
    pub(crate) async fn check_computed<'a>(
        &self,
        stripe: StripeNumber,
        span: Span,
        states: &[SlotState],
        slots: impl Iterator<Item = (StripeSlot, &'a Buf)>,
    ) -> IoResult<()> {
        if !self.members.devices().have_checksums() {
            return Ok(());
        }
        let at = self.geometry.member_lba(stripe, span.start);
        let (members, region) = (self.slot_members(stripe), self.bitmap.region_of(stripe));
        for (slot, bytes) in slots.filter(|(slot, _)| states[slot.0] == SlotState::Unreadable) {
            let member = members.member_of(slot);
            let has_it = self.members[member].has_region(region);
            if has_it && !self.members.accepts(member, at, bytes).await {
                return Err(IoError::Medium);
            }
        }
        Ok(())
    }

    /// These slots of a stripe are known to match: blocks without checksums get them.
    pub(crate) async fn adopt<'a>(
        &self,
        stripe: StripeNumber,
        span: Span,
        slots: impl Iterator<Item = (StripeSlot, &'a [u8])>,
    ) {
        if !self.members.devices().have_checksums() {
            return;
        }
        let at = self.geometry.member_lba(stripe, span.start);
        let members = self.slot_members(stripe);
        for (slot, bytes) in slots {
            self.members.adopt(members.member_of(slot), at, bytes).await;
        }
    }

    /// Has slots of slow members not read, as far as the others have all they hold. Copies are always
    /// avoided so, for it costs nothing. With parity each avoided read costs as many reads as there are
    /// data, so it is done only if asked.
    pub(crate) fn avoid_slow(&self, stripe: StripeNumber, states: &mut [SlotState]) {
        if self.bitmap.needs_resync(stripe) {
            return;
        }
        let mut left = self.geometry.parity_chunks() - unusable(states).len();
        let members = self.slot_members(stripe);
        for (slot, state) in StripeSlot::all(states.len()).zip(states) {
            let member = &self.members[members.member_of(slot)];
            let is_avoided = *state == SlotState::Online && member.vitals().is_avoided();
            if is_avoided && left > 0 {
                *state = SlotState::Lost;
                left -= 1;
            }
        }
    }

    /// The slots that can be read and have checksums of a span: what is read of them is right.
    pub(crate) async fn with_checksums(
        &self,
        stripe: StripeNumber,
        span: Span,
        states: &[SlotState],
    ) -> Vec<StripeSlot> {
        if !self.members.devices().have_checksums() {
            return Vec::new();
        }
        let (members, mut slots) = (self.slot_members(stripe), Vec::new());
        let range = SectorRange::new(self.geometry.member_lba(stripe, span.start), span.count());
        for slot in online(states) {
            if self.members.knows(members.member_of(slot), range).await {
                slots.push(slot);
            }
        }
        slots
    }

    /// Has copies without checksums not read where another copy has some.
    pub(crate) async fn prefer_checksums(
        &self,
        stripe: StripeNumber,
        span: Span,
        states: &mut [SlotState],
    ) {
        if !self.geometry.is_mirror() || self.bitmap.needs_resync(stripe) {
            return;
        }
        let preferred = self.with_checksums(stripe, span, states).await;
        if preferred.is_empty() {
            return;
        }
        for (slot, state) in StripeSlot::all(states.len()).zip(states) {
            if *state == SlotState::Online && !preferred.contains(&slot) {
                *state = SlotState::Lost;
            }
        }
    }

    /// The stripe that is a row of a group's members.
    pub(crate) fn stripe_of(&self, group: GroupIndex, row: Row) -> StripeNumber {
        self.geometry.stripe_of(group, row)
    }

    /// Locks whole stripes, which are rows of a group.
    pub(crate) async fn lock_rows(
        &self,
        group: GroupIndex,
        rows: Range<Row>,
        access: Access,
    ) -> Vec<StripeGuard> {
        let whole = Span { start: 0, end: self.geometry.chunk_sectors() };
        let mut guards = Vec::with_capacity(count(&rows) as usize);
        // Ascending, as everybody does who holds several: no two wait for each other.
        for row in each(rows) {
            guards.push(self.locks.lock(self.stripe_of(group, row), whole, access).await);
        }
        guards
    }

    /// Reads rows of some members, all at once.
    ///
    /// # Errors
    /// The first that came up.
    pub(crate) async fn read_rows(
        &self,
        members: &[MemberIndex],
        rows: &Range<Row>,
    ) -> IoResult<Vec<Buf>> {
        let chunk = Span { start: 0, end: self.geometry.chunk_sectors() };
        let at = self.geometry.lba_of_row(rows.start);
        let bytes = count(rows) as usize * chunk.bytes();
        let read = |member: &MemberIndex| self.members.clone().read(*member, at, Buf::new(bytes));
        let results = together(&self.handle, members.iter().map(read).collect()).await;
        results.into_iter().collect()
    }
}

/// The use that a request makes of its sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Reads what must belong together.
    Shared,
    /// Changes what must belong together.
    Exclusive,
}

/// A request that has its sectors, or waits for those before it.
struct Claim {
    ticket: u64,
    stripe: StripeNumber,
    span: Span,
    access: Access,
    waker: Option<Waker>,
}

impl Claim {
    fn is_in_the_way_of(&self, later: &Claim) -> bool {
        let both_shared = self.access == Access::Shared && later.access == Access::Shared;
        self.stripe == later.stripe && self.span.overlaps(later.span) && !both_shared
    }
}

/// Stripes are dealt to so many lists: a power of two, so that a request meets few strangers and
/// nothing is allocated for it.
const LISTS: usize = 256;

struct Claims {
    next_ticket: u64,
    /// Each in the order of arrival; together as long as the requests in flight.
    lists: Box<[Vec<Claim>]>,
}

impl Claims {
    fn list(&mut self, stripe: StripeNumber) -> &mut Vec<Claim> {
        &mut self.lists[stripe.0 as usize % LISTS]
    }
}

/// The place of a claim in its list.
fn place_of(ticket: u64, list: &[Claim]) -> usize {
    let own = list.iter().position(|claim| claim.ticket == ticket);
    own.expect("a claim is in its list until its guard is dropped")
}

/// The locks of one array.
#[derive(Clone)]
pub(crate) struct StripeLocks(Rc<RefCell<Claims>>);

impl Default for StripeLocks {
    fn default() -> Self {
        let lists = (0..LISTS).map(|_| Vec::new()).collect();
        Self(Rc::new(RefCell::new(Claims { next_ticket: 0, lists })))
    }
}

/// A claim, until dropped.
pub(crate) struct StripeGuard {
    locks: StripeLocks,
    stripe: StripeNumber,
    ticket: u64,
}

impl StripeLocks {
    /// Waits until no earlier request to these sectors is under way.
    pub(crate) async fn lock(
        &self,
        stripe: StripeNumber,
        span: Span,
        access: Access,
    ) -> StripeGuard {
        let ticket = {
            let mut claims = self.0.borrow_mut();
            let ticket = claims.next_ticket;
            claims.next_ticket += 1;
            claims.list(stripe).push(Claim { ticket, stripe, span, access, waker: None });
            ticket
        };
        // Made before the wait: a request dropped while it waits gives its place back.
        let guard = StripeGuard { locks: self.clone(), stripe, ticket };
        poll_fn(|context| {
            let mut claims = self.0.borrow_mut();
            let list = claims.list(stripe);
            let own = place_of(ticket, list);
            let (earlier, rest) = list.split_at_mut(own);
            if earlier.iter().any(|claim| claim.is_in_the_way_of(&rest[0])) {
                rest[0].waker = Some(context.waker().clone());
                return Poll::Pending;
            }
            Poll::Ready(())
        })
        .await;
        guard
    }
}

impl Drop for StripeGuard {
    fn drop(&mut self) {
        let mut claims = self.locks.0.borrow_mut();
        let list = claims.list(self.stripe);
        let own = place_of(self.ticket, list);
        let own = list.remove(own);
        // Each looks again whether its turn has come; few ever wait for one stripe.
        let waiting = list.iter_mut().filter(|claim| own.is_in_the_way_of(claim));
        let wakers: Vec<Waker> = waiting.filter_map(|claim| claim.waker.take()).collect();
        drop(claims);
        wakers.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use voltier_ring::{Executor, NoFiles};

    const fn span(start: u64, end: u64) -> Span {
        Span { start, end }
    }

    #[test]
    fn overlapping_claims_are_served_in_order_and_others_do_not_wait() {
        let mut executor = Executor::in_virtual_time(NoFiles);
        let handle = executor.handle();
        let locks = StripeLocks::default();
        let log = Rc::new(RefCell::new(Vec::new()));
        let (seen, same) = (log.clone(), locks.clone());
        executor.block_on(async move {
            let first = locks.lock(StripeNumber(1), span(0, 8), Access::Shared).await;
            let claims = [
                ("writer", StripeNumber(1), span(4, 12), Access::Exclusive),
                ("reader behind it", StripeNumber(1), span(8, 16), Access::Shared),
                ("reader elsewhere", StripeNumber(1), span(16, 24), Access::Shared),
                ("reader beside the first", StripeNumber(1), span(0, 4), Access::Shared),
                ("another stripe", StripeNumber(2), span(0, 8), Access::Exclusive),
            ];
            let tasks = claims.map(|(name, stripe, span, access)| {
                let (locks, log) = (locks.clone(), log.clone());
                handle.spawn(async move {
                    let _guard = locks.lock(stripe, span, access).await;
                    log.borrow_mut().push(name);
                })
            });
            handle.yield_now().await;
            log.borrow_mut().push("first ends");
            drop(first);
            for task in tasks {
                task.await;
            }
        });
        let expected = [
            "reader elsewhere",
            "reader beside the first",
            "another stripe",
            "first ends",
            "writer",
            "reader behind it",
        ];
        assert_eq!(*seen.borrow(), expected);
        let claims = same.0.borrow();
        assert!(claims.lists.iter().all(Vec::is_empty), "nothing is kept of what is over");
    }
}
