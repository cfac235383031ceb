//! The write-intent bitmap in service. Before a write to a region, all members durably call the region
//! written. Where there is no journal, or while a member is out, they also call the region dirty.
//!
//! A write enters its region ([`enter`](Bitmap::enter)). A region that was never written is first made zero
//! on all members, durably. The region becomes dirty if it must; then the write may begin. One task stores
//! the states of regions, everything that came up meanwhile at once.
//!
//! A round every few seconds clears a dirty region when nobody wrote there since the round before and all
//! members were flushed in between. While a member is out no region is cleared.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::{Rc, Weak};

use voltier_block::{DriveControl, Durability, IoError, IoResult, Nanos, SectorRange};
use voltier_ring::{Handle, Round};

use crate::bitmap::matched::{GroupRegion, MatchedRegions};
use crate::bitmap::region_states::{Batch, RegionStates};
use crate::canary::{self, Canary};
use crate::format::bits::Bits;
use crate::format::consistency::Consistency;
use crate::format::region_map::{MapBlock, RegionGrid};
use crate::geometry::chunks::Geometry;
use crate::geometry::numbers::{GroupIndex, Region, StripeNumber};
use crate::members::at_once::together;
use crate::members::clear::Clear;
use crate::members::member_set::MemberSet;
use crate::membership::current::Membership;

/// Between two rounds that clear regions.
const ROUND_NS: Nanos = 5_000_000_000;

/// The write-intent bitmap of an array in service; a bare array has none, and all of it counts as written.
pub(crate) struct Bitmap<D> {
    handle: Handle,
    geometry: Geometry,
    consistency: Consistency,
    members: Rc<MemberSet<D>>,
    membership: Rc<Membership>,
    states: Option<Rc<RegionStates>>,
    /// Regions of members that were filled, and not flushed: a power cut may take them away again.
    filled: RefCell<Vec<Region>>,
    /// Filled regions that a flush under way covers.
    being_flushed: RefCell<Vec<Region>>,
    /// Regions that scrubs found to match, and that were not written since.
    matched: Rc<RefCell<MatchedRegions>>,
}

/// A write that is in its region, until dropped.
pub(crate) struct RegionGuard {
    /// None of a bare array.
    states: Option<(Rc<RegionStates>, Round)>,
    /// The region as scrubs number it; none of a repair.
    matched: Option<(Rc<RefCell<MatchedRegions>>, GroupRegion)>,
}

impl Drop for RegionGuard {
    fn drop(&mut self) {
        if let Some((matched, group_region)) = &self.matched {
            // A check that began beside the write may have seen the stripe before it.
            matched.borrow_mut().note_write(*group_region);
        }
        let Some((states, round)) = &self.states else { return };
        states.leave(*round);
    }
}

impl<D: DriveControl> Bitmap<D> {
    pub(crate) fn new(
        handle: &Handle,
        geometry: &Geometry,
        consistency: Consistency,
        members: &Rc<MemberSet<D>>,
        membership: &Rc<Membership>,
        states: Option<Rc<RegionStates>>,
    ) -> Self {
        let matched = MatchedRegions::new(members.regions().count(), geometry.group_count());
        Self {
            handle: handle.clone(),
            geometry: geometry.clone(),
            consistency,
            members: members.clone(),
            membership: membership.clone(),
            states,
            filled: RefCell::default(),
            being_flushed: RefCell::default(),
            matched: Rc::new(RefCell::new(matched)),
        }
    }

    /// A stripe's region, of the stripe's group.
    fn group_region_of(&self, stripe: StripeNumber) -> GroupRegion {
        self.group_region(self.geometry.group_of(stripe), self.region_of(stripe))
    }

    fn group_region(&self, group: GroupIndex, region: Region) -> GroupRegion {
        GroupRegion::new(group, region, self.geometry.group_count())
    }

    /// A scrub begins to check a region of a group.
    pub(crate) fn begin_check(&self, group: GroupIndex, region: Region) {
        self.matched.borrow_mut().begin(self.group_region(group, region));
    }

    /// The scrub has checked the region, all of it or not.
    pub(crate) fn end_check(&self, group: GroupIndex, region: Region, is_whole: bool) {
        self.matched.borrow_mut().end(self.group_region(group, region), is_whole);
    }

    /// A block of the stripe does not match and stays so, or could not be checked.
    pub(crate) fn note_mismatch(&self, stripe: StripeNumber) {
        self.matched.borrow_mut().note_mismatch(self.group_region_of(stripe));
    }

    /// Whether a scrub of this start found the stripe's region to match, and nobody has written there since.
    pub(crate) fn is_unchanged(&self, stripe: StripeNumber) -> bool {
        self.matched.borrow().is_unchanged(self.group_region_of(stripe))
    }

    /// The states of the regions, for a bitmap that takes over: its rounds are its own.
    pub(crate) fn hand_over(&self) -> Option<Rc<RegionStates>> {
        if let Some(states) = &self.states {
            states.leave_rounds();
        }
        self.states.clone()
    }

    /// The parity of a region may not match any more.
    pub(crate) fn resync(&self, region: Region) {
        if let Some(states) = &self.states {
            states.resync(region);
        }
    }

    /// Members that refused a flush may have dropped what they had, each of them something else: regions that
    /// were written since the last flush need a resync.
    pub(crate) fn resync_what_was_not_flushed(&self) {
        if self.geometry.parity_chunks() > 0
            && let Some(states) = &self.states
        {
            states.resync_recent();
        }
    }

    pub(crate) fn is_durable(&self) -> bool {
        self.states.is_some()
    }

    pub(crate) fn consistency(&self) -> Consistency {
        self.consistency
    }

    /// The region of a stripe. A bare array has them too; all of them count as written.
    pub(crate) fn region_of(&self, stripe: StripeNumber) -> Region {
        self.members.region_at(self.geometry.member_lba(stripe, 0))
    }

    /// How members are cut into regions.
    pub(crate) fn regions(&self) -> RegionGrid {
        self.members.regions()
    }

    /// Whether a stripe was never written: it reads as zeroes then.
    pub(crate) fn is_blank(&self, stripe: StripeNumber) -> bool {
        let Some(states) = &self.states else { return false };
        !states.is_written(self.region_of(stripe))
    }

    /// Whether the parity of a stripe may not match.
    pub(crate) fn needs_resync(&self, stripe: StripeNumber) -> bool {
        let Some(states) = &self.states else { return false };
        states.needs_resync(|| self.region_of(stripe))
    }

    pub(crate) fn is_written(&self, region: Region) -> bool {
        self.states.as_ref().is_none_or(|states| states.is_written(region))
    }

    /// The first region that was written and is not below `from`.
    pub(crate) fn next_written(&self, from: Region) -> Option<Region> {
        match &self.states {
            Some(states) => states.next_written(from),
            None => (from.0 < self.regions().count()).then_some(from),
        }
    }

    pub(crate) fn written_count(&self) -> u64 {
        self.states.as_ref().map_or(self.regions().count(), |states| states.written_count())
    }

    /// Bytes of a member that were ever written.
    pub(crate) fn written_bytes(&self) -> u64 {
        let has_last = self.is_written(self.regions().last());
        self.regions().bytes_of(self.written_count(), has_last)
    }

    /// The first region that needs a resync and is not below `from`.
    pub(crate) fn next_to_resync(&self, from: Region) -> Option<Region> {
        self.states.as_ref()?.next_to_resync(from)
    }

    /// The parity of a region is right now; the region is cleared when all members are flushed.
    pub(crate) fn note_resynced(&self, region: Region) {
        if let Some(states) = &self.states {
            states.note_resynced(region);
        }
    }

    /// The regions that a new member lacks: all that were written; for one that comes back the dirty
    /// ones.
    pub(crate) fn lacking(&self, is_back: bool) -> Option<Bits<Region>> {
        self.states.as_ref().map(|states| states.lacking(is_back))
    }

    /// Regions: all, written, dirty, in need of a resync.
    pub(crate) fn counts(&self) -> [u64; 4] {
        self.states.as_ref().map_or([0; 4], |states| states.counts())
    }

    fn must_be_dirty(&self) -> bool {
        let has_parity = self.geometry.parity_chunks() > 0;
        has_parity
            && (self.consistency == Consistency::Bitmap
                || self.members.is_degraded()
                || self.membership.needs_resync())
    }

    /// A region of a member was filled; the next flush of its members makes that durable.
    pub(crate) fn note_filled(&self, region: Region) {
        self.filled.borrow_mut().push(region);
    }

    /// Regions that were filled since the last flush: a power cut may take them away again.
    fn unflushed(&self) -> BTreeSet<Region> {
        let (filled, flushing) = (self.filled.borrow(), self.being_flushed.borrow());
        filled.iter().chain(flushing.iter()).copied().collect()
    }

    /// Makes durable which regions were filled: first what was filled, then that it is; with this bug nothing
    /// is flushed.
    pub(crate) async fn store_filled(self: &Rc<Self>, bug: Canary) {
        let filled = self.filled.take();
        if self.states.is_none() || filled.is_empty() {
            return;
        }
        self.being_flushed.borrow_mut().extend(&filled);
        for member in self.members.indexes() {
            let is_due = !canary::is(bug);
            let own = &self.members[member];
            if is_due && (own.is_rebuilding() || own.succeeding().is_some()) {
                // One that fails is lost, and lacks everything.
                let _ = self.members.clone().flush_one(member).await;
            }
        }
        self.being_flushed.borrow_mut().retain(|region| !filled.contains(region));
        self.store_rebuilt(filled).await;
    }

    /// Writes that are in their regions.
    pub(crate) fn writes_under_way(&self) -> usize {
        self.states.as_ref().map_or(0, |states| states.writes_under_way())
    }

    /// Whether no write is in its region.
    pub(crate) fn is_quiet(&self) -> bool {
        self.states.as_ref().is_none_or(|states| states.is_quiet())
    }

    /// Lets no write enter a region any more: the array is about to be called clean.
    pub(crate) fn seal(&self) {
        if let Some(states) = &self.states {
            states.seal();
        }
    }

    /// Enters the region of a stripe: it is written, and dirty if it must be, durably, until the guard is
    /// dropped. Before the stripe is locked.
    ///
    /// # Errors
    /// When the state of the region cannot be stored.
    pub(crate) async fn enter(self: &Rc<Self>, stripe: StripeNumber) -> IoResult<RegionGuard> {
        let group_region = self.group_region_of(stripe);
        self.matched.borrow_mut().note_write(group_region);
        self.enter_as(stripe, Some((self.matched.clone(), group_region))).await
    }

    /// A repair enters the region of its stripe. A repair makes the stripe what the scrub holds the stripe to
    /// be, so the region counts as unchanged. The scrub has locked the stripe: nothing waits for a lock here.
    ///
    /// # Errors
    /// When the state of the region cannot be stored.
    pub(crate) async fn enter_to_repair(
        self: &Rc<Self>,
        stripe: StripeNumber,
    ) -> IoResult<RegionGuard> {
        self.enter_as(stripe, None).await
    }

    async fn enter_as(
        self: &Rc<Self>,
        stripe: StripeNumber,
        matched: Option<(Rc<RefCell<MatchedRegions>>, GroupRegion)>,
    ) -> IoResult<RegionGuard> {
        let region = self.region_of(stripe);
        let mut guard = RegionGuard { states: None, matched };
        let Some(states) = &self.states else { return Ok(guard) };
        while !states.is_sealed() && !states.is_ready(region, self.must_be_dirty()) {
            self.membership.recorded().await?;
            self.store_region(states, region).await?;
        }
        if states.is_sealed() {
            return Err(IoError::Gone);
        }
        let round = states.enter(region);
        self.begin_rounds();
        guard.states = Some((states.clone(), round));
        Ok(guard)
    }

    /// Calls dirty all that a member which was just lost may not have: what was written and not flushed.
    pub(crate) async fn call_dirty_what_may_be_missing(self: &Rc<Self>) -> IoResult<()> {
        let Some(states) = self.states.as_deref() else { return Ok(()) };
        if self.geometry.parity_chunks() == 0 || canary::is(Canary::DirtyForgotten) {
            return Ok(());
        }
        let missing = states.missing_and_not_dirty();
        // All of them together: the first one takes the others along.
        self.want_stored(missing.iter().copied());
        for region in missing {
            while !states.is_ready(region, true) {
                self.store_region(states, region).await?;
            }
        }
        Ok(())
    }

    /// Waits for the next batch that is stored, and has this region in it or in the one behind it.
    async fn store_region(self: &Rc<Self>, states: &RegionStates, region: Region) -> IoResult<()> {
        let stored = states.stored_with(region);
        self.want_stored([region]);
        stored.await
    }

    fn want_stored(self: &Rc<Self>, regions: impl IntoIterator<Item = Region>) {
        let Some(states) = self.states.as_deref() else { return };
        if states.want(regions) {
            let inner = self.clone();
            drop(self.handle.spawn(async move { inner.store_wanted().await }));
        }
    }

    async fn store_wanted(self: Rc<Self>) {
        let Some(states) = self.states.as_deref() else { return };
        while let Some(batch) = states.take_batch() {
            states.end_batch(self.store_batch(states, batch).await);
        }
    }

    /// Stores a batch: regions are zero before the map calls them written, and the map is on all members
    /// before anybody relies on it.
    async fn store_batch(self: &Rc<Self>, states: &RegionStates, batch: Batch) -> IoResult<()> {
        let Batch { mut wanted, to_clear, rebuilt, is_whole } = batch;
        // Writers asked again for regions on their way. To store such regions once more would have those
        // writers wait who are about to see that the regions are ready.
        wanted.retain(|region| !states.is_ready(*region, self.must_be_dirty()));
        let mut zeroed = states.to_zero(&wanted);
        if !zeroed.is_empty() {
            self.zero_regions(&zeroed).await?;
        }
        if self.membership.has_unrecorded_loss(&self.members) {
            // A member that came back now would be believed, and does not have the zeroes. Callers that
            // wait for these regions have the loss recorded, and ask again.
            wanted.retain(|region| !zeroed.contains(region));
            zeroed.clear();
        }
        let is_degraded = self.members.is_degraded();
        let mut blocks = states.call_written(&zeroed, &wanted, self.must_be_dirty(), is_degraded);
        if !is_degraded {
            blocks.extend(states.call_cleared(&to_clear, &wanted));
        }
        blocks.extend(self.call_missing(states, &rebuilt, is_whole));
        self.write_map_blocks(states, blocks).await?;
        states.note_stored(&zeroed, &wanted);
        Ok(())
    }

    /// Puts into the map what members lack, or takes out what they have now; the blocks to write.
    fn call_missing(
        &self,
        states: &RegionStates,
        rebuilt: &[Region],
        is_whole: bool,
    ) -> BTreeSet<MapBlock> {
        // A member that was lost while it was filled may be on record as one that is. The map keeps what
        // the member lacks until the record tells the loss.
        let is_kept = self.membership.has_unrecorded_loss(&self.members);
        let is_missing = |region| self.members.iter().any(|member| member.lacks(region));
        if !is_whole {
            return states.call_rebuilt(rebuilt, |region| !is_kept && !is_missing(region));
        }
        // A successor that takes the place of a device was not on record. A power cut takes what the
        // successor was given since the last flush.
        let unflushed = self.unflushed();
        states.call_missing(|region, was_missing| {
            (is_kept && was_missing) || unflushed.contains(&region) || is_missing(region)
        })
    }

    /// Writes the whole map to all members, with what those lack that are being rebuilt.
    pub(crate) async fn store_whole_map(self: &Rc<Self>) -> IoResult<()> {
        let Some(states) = self.states.as_deref() else { return Ok(()) };
        let stored = states.whole_stored();
        self.want_stored([]);
        stored.await
    }

    /// Takes out of the map what no member lacks any more, durably.
    pub(crate) async fn store_rebuilt(self: &Rc<Self>, regions: Vec<Region>) {
        let Some(states) = self.states.as_deref() else { return };
        states.want_rebuilt(regions);
        let wait = states.next_batch();
        self.want_stored([]);
        wait.await;
    }

    /// Waits until regions that are being made zero now are: without a member that came meanwhile.
    pub(crate) async fn zeroing_ended(&self) {
        if let Some(states) = &self.states {
            states.batch_ended().await;
        }
    }

    /// Makes regions read as zeroes on all members, whatever happens to them then.
    async fn zero_regions(self: &Rc<Self>, zero: &BTreeSet<Region>) -> IoResult<()> {
        let mut ranges: Vec<SectorRange> = Vec::new();
        for range in zero.iter().map(|region| self.regions().sectors_of(*region)) {
            match ranges.last_mut().filter(|last| last.end() == range.start) {
                Some(last) => last.count += range.count,
                None => ranges.push(range),
            }
        }
        let all = self.members.indexes();
        for range in ranges {
            let clear = Clear::Zeroes(Durability::Cached);
            let clears = all.clone().map(|member| self.members.clone().clear(member, range, clear));
            let results = together(&self.handle, clears.collect()).await;
            results.into_iter().collect::<IoResult<()>>()?;
        }
        self.members.flush().await
    }

    /// Writes blocks of the map to all members.
    ///
    /// # Errors
    /// When too many members do not take them.
    pub(crate) async fn write_blocks(self: &Rc<Self>, blocks: &[MapBlock]) -> IoResult<()> {
        match &self.states {
            Some(states) => self.write_map_blocks(states, blocks.iter().copied()).await,
            None => Ok(()),
        }
    }

    async fn write_map_blocks(
        self: &Rc<Self>,
        states: &RegionStates,
        blocks: impl IntoIterator<Item = MapBlock>,
    ) -> IoResult<()> {
        let mut writes = Vec::new();
        for block in blocks {
            let bytes = states.next_version(block);
            let at = block.lba();
            let all = self.members.indexes();
            writes.extend(
                all.map(|member| self.members.clone().write_meta(member, at, bytes.clone())),
            );
        }
        let results = together(&self.handle, writes).await;
        results.into_iter().collect::<IoResult<()>>()?;
        self.members.check_groups()
    }

    /// Starts the rounds that clear regions, unless there are some or nothing is to be cleared.
    pub(crate) fn begin_rounds(self: &Rc<Self>) {
        let Some(states) = self.states.as_deref() else { return };
        if !states.has_recent() || self.members.is_degraded() || !states.claim_rounds() {
            return;
        }
        let (handle, inner) = (self.handle.clone(), Rc::downgrade(self));
        drop(self.handle.spawn(async move {
            let round = |inner: Weak<Self>| async move {
                let inner = inner.upgrade().filter(|it| !it.members.is_superseded());
                let Some(inner) = inner else { return false };
                inner.clear_idle().await
            };
            loop {
                handle.sleep(ROUND_NS).await;
                if !round(inner.clone()).await {
                    return;
                }
            }
        }));
    }

    /// Clears all dirty regions; none while a member is out. In the array nothing is under way or needs a
    /// resync, and all members are flushed.
    pub(crate) async fn clear_dirty(self: &Rc<Self>) -> IoResult<()> {
        let Some(states) = self.states.as_deref() else { return Ok(()) };
        if self.members.is_degraded() {
            return Ok(());
        }
        states.storing_ended().await;
        self.write_map_blocks(states, states.call_all_cleared()).await
    }

    /// Has regions from one on called never written, durably. Nothing is under way.
    pub(crate) async fn forget_written_from(self: &Rc<Self>, first: Region) -> IoResult<()> {
        let Some(states) = self.states.as_deref() else { return Ok(()) };
        states.storing_ended().await;
        self.write_map_blocks(states, states.call_blank_from(first)).await
    }

    /// One round; whether there is to be another one.
    pub(crate) async fn clear_idle(self: &Rc<Self>) -> bool {
        let Some(states) = self.states.as_deref() else { return false };
        let is_over = || {
            let membership = &self.membership;
            self.members.is_degraded() || membership.is_closed() || membership.has_failed()
        };
        if is_over() {
            states.leave_rounds();
            return false;
        }
        let idle = states.begin_round();
        states.writes_before_ended().await;
        if self.members.flush().await.is_ok() && !idle.is_empty() && !is_over() {
            states.want_cleared(idle);
            let wait = states.next_batch();
            self.want_stored([]);
            wait.await;
        }
        states.end_round()
    }
}
