//! The write-intent bitmap in memory: what is on the members, what is on its way, and who is in which region.
//!
//! The states never wait for a member. `write_intent` stores what they say, and asks them again.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use voltier_block::{Bytes, IoError, IoResult, SECTOR_BYTES};
use voltier_ring::{DrainRounds, Round, Signal};

use crate::format::bits::Bits;
use crate::format::region_map::{MapBlock, RegionGrid, RegionMap};
use crate::geometry::numbers::{Region, each};

/// Longest extent of a member that is made zero ahead of a writer that goes on and on, in bytes.
const AHEAD_BYTES_MAX: u64 = 16 << 20;

/// The map and what is known of it in memory.
pub(crate) struct RegionStates {
    regions: RegionGrid,
    /// The map on the members; for the regions in `unstored`, the map to come.
    map: RefCell<RegionMap>,
    /// Regions whose state is on its way to the members, or did not get through.
    unstored: RefCell<BTreeSet<Region>>,
    /// Regions with writes that may not be durable on all members: the dirty ones, and in a journal's
    /// care also others.
    recent: RefCell<Bits<Region>>,
    /// Regions that were entered since the last round began.
    touched: RefCell<Bits<Region>>,
    /// Regions whose parity is to be made anew.
    to_resync: RefCell<Bits<Region>>,
    /// Writes under way: a round of clearing waits for those that began before it.
    under_way: RefCell<DrainRounds>,
    drained: Signal,
    /// Regions whose state a writer waits for.
    wanted: RefCell<BTreeSet<Region>>,
    /// Dirty regions that may be cleared.
    to_clear: RefCell<Vec<Region>>,
    /// Regions that no member lacks any more, durably.
    rebuilt: RefCell<Vec<Region>>,
    /// Whether the whole map is to be written, with what members lack.
    is_whole_wanted: Cell<bool>,
    is_storing: Cell<bool>,
    /// Batches so far: those on their way or stored, and those of them that are over.
    taken: Cell<u64>,
    ended: Cell<u64>,
    /// Every batch that ends.
    stored: Signal,
    failures: Cell<u64>,
    last_error: Cell<IoError>,
    has_rounds: Cell<bool>,
    /// Whether no write enters a region any more.
    is_sealed: Cell<bool>,
}

/// The news of the map that are stored together.
pub(super) struct Batch {
    pub(super) wanted: BTreeSet<Region>,
    pub(super) to_clear: Vec<Region>,
    pub(super) rebuilt: Vec<Region>,
    pub(super) is_whole: bool,
}

impl RegionStates {
    /// The states of a map as it is on all members, some regions of which need a resync. With `unflushed`
    /// there may be writes anywhere that not all members hold durably.
    pub(crate) fn new(
        map: RegionMap,
        member_sectors: u64,
        to_resync: Bits<Region>,
        unflushed: bool,
    ) -> Self {
        let count = map.count();
        let recent = if unflushed { &map.written } else { &map.dirty };
        Self {
            regions: RegionGrid::new(member_sectors),
            recent: RefCell::new(recent.clone()),
            map: RefCell::new(map),
            unstored: RefCell::default(),
            touched: RefCell::new(Bits::new(count)),
            to_resync: RefCell::new(to_resync),
            under_way: RefCell::default(),
            drained: Signal::new(),
            wanted: RefCell::default(),
            to_clear: RefCell::default(),
            rebuilt: RefCell::default(),
            is_whole_wanted: Cell::new(false),
            is_storing: Cell::new(false),
            taken: Cell::new(0),
            ended: Cell::new(0),
            stored: Signal::new(),
            failures: Cell::new(0),
            last_error: Cell::new(IoError::Gone),
            has_rounds: Cell::new(false),
            is_sealed: Cell::new(false),
        }
    }

    /// The memory of the states of so many regions: three sets, and those of the map.
    pub(crate) fn bytes_for(count: u64) -> u64 {
        3 * Bits::<Region>::bytes_for(count) + RegionMap::bytes_for(count)
    }

    /// The rounds belong to an array that is superseded; the next one begins its own.
    pub(crate) fn leave_rounds(&self) {
        self.has_rounds.set(false);
    }

    /// Takes the right to clear regions by rounds; false if somebody has it.
    #[inline]
    pub(super) fn claim_rounds(&self) -> bool {
        !self.has_rounds.replace(true)
    }

    /// Whether there are writes that may not be durable on all members.
    #[inline]
    pub(super) fn has_recent(&self) -> bool {
        !self.recent.borrow().is_empty()
    }

    pub(crate) fn is_written(&self, region: Region) -> bool {
        self.map.borrow().written.has(region)
    }

    /// The regions that a new member lacks: all that were written; for one that comes back the dirty
    /// ones.
    pub(crate) fn lacking(&self, is_back: bool) -> Bits<Region> {
        let map = self.map.borrow();
        if is_back {
            let mut lacking = map.dirty.clone();
            self.unstored.borrow().iter().for_each(|region| lacking.put(*region, true));
            lacking
        } else {
            map.written.clone()
        }
    }

    /// The first region that was written and is not below `from`.
    pub(crate) fn next_written(&self, from: Region) -> Option<Region> {
        self.map.borrow().written.next(from)
    }

    pub(crate) fn written_count(&self) -> u64 {
        self.map.borrow().written.count()
    }

    /// The first region that needs a resync and is not below `from`.
    pub(crate) fn next_to_resync(&self, from: Region) -> Option<Region> {
        self.to_resync.borrow().iter().find(|region| *region >= from)
    }

    /// A region needs a resync.
    pub(crate) fn resync(&self, region: Region) {
        self.to_resync.borrow_mut().put(region, true);
    }

    /// All that may not be durable on all members needs a resync.
    pub(crate) fn resync_recent(&self) {
        let (recent, mut to_resync) = (self.recent.borrow(), self.to_resync.borrow_mut());
        recent.iter().for_each(|region| to_resync.put(region, true));
    }

    /// The parity of a region is right now; the region is cleared when all members are flushed.
    pub(crate) fn note_resynced(&self, region: Region) {
        self.to_resync.borrow_mut().put(region, false);
        self.recent.borrow_mut().put(region, true);
        self.touched.borrow_mut().put(region, true);
    }

    /// Whether a region needs a resync; which region it is, is asked only while any does.
    pub(super) fn needs_resync(&self, region: impl FnOnce() -> Region) -> bool {
        let to_resync = self.to_resync.borrow();
        !to_resync.is_empty() && to_resync.has(region())
    }

    /// Regions: all, written, dirty, in need of a resync.
    pub(crate) fn counts(&self) -> [u64; 4] {
        let map = self.map.borrow();
        [map.count(), map.written.count(), map.dirty.count(), self.to_resync.borrow().count()]
    }

    /// Whether a region may be written: zeroed or written before, and dirty if it must be, durably.
    pub(super) fn is_ready(&self, region: Region, must_be_dirty: bool) -> bool {
        let map = self.map.borrow();
        map.written.has(region)
            && (!must_be_dirty || map.dirty.has(region))
            && !self.unstored.borrow().contains(&region)
    }

    /// A write enters a region that is ready; its round, to be given back to [`leave`](Self::leave).
    pub(super) fn enter(&self, region: Region) -> Round {
        self.touched.borrow_mut().put(region, true);
        self.recent.borrow_mut().put(region, true);
        self.under_way.borrow_mut().begin()
    }

    /// Writes that are in their regions.
    pub(super) fn writes_under_way(&self) -> usize {
        self.under_way.borrow().count()
    }

    /// Whether no write is in its region.
    pub(super) fn is_quiet(&self) -> bool {
        self.under_way.borrow().is_empty()
    }

    /// Lets no write enter a region any more.
    pub(super) fn seal(&self) {
        self.is_sealed.set(true);
    }

    pub(super) fn is_sealed(&self) -> bool {
        self.is_sealed.get()
    }

    pub(super) fn leave(&self, round: Round) {
        let is_drained = self.under_way.borrow_mut().end(round);
        if is_drained {
            self.drained.notify();
        }
    }

    /// Regions that a member which was just lost may lack, and that are not dirty, durably. With a journal
    /// that are all since the last flush: a replay makes stripes whole, so regions become dirty only now, for
    /// a member that comes back is filled by the dirty ones alone.
    pub(super) fn missing_and_not_dirty(&self) -> Vec<Region> {
        let (recent, to_resync) = (self.recent.borrow(), self.to_resync.borrow());
        let may_be_missing = recent.iter().chain(to_resync.iter());
        may_be_missing.filter(|region| !self.is_ready(*region, true)).collect()
    }

    /// Asks for regions to be stored; whether a task has to be started that does it.
    #[must_use]
    pub(super) fn want(&self, regions: impl IntoIterator<Item = Region>) -> bool {
        self.wanted.borrow_mut().extend(regions);
        !self.is_storing.replace(true)
    }

    /// Has regions cleared with the next batch.
    pub(super) fn want_cleared(&self, regions: Vec<Region>) {
        self.to_clear.borrow_mut().extend(regions);
    }

    /// Has regions taken out of what members lack with the next batch.
    pub(super) fn want_rebuilt(&self, regions: Vec<Region>) {
        self.rebuilt.borrow_mut().extend(regions);
    }

    /// Takes what is stored together next; with nothing left the task ends.
    pub(super) fn take_batch(&self) -> Option<Batch> {
        let (wanted, to_clear) = (self.wanted.take(), self.to_clear.take());
        let (rebuilt, is_whole) = (self.rebuilt.take(), self.is_whole_wanted.replace(false));
        if wanted.is_empty() && to_clear.is_empty() && rebuilt.is_empty() && !is_whole {
            self.is_storing.set(false);
            self.stored.notify();
            return None;
        }
        self.taken.set(self.taken.get() + 1);
        Some(Batch { wanted, to_clear, rebuilt, is_whole })
    }

    /// Tells all who wait what became of a batch.
    pub(super) fn end_batch(&self, result: IoResult<()>) {
        if let Err(error) = result {
            self.last_error.set(error);
            self.failures.set(self.failures.get() + 1);
        }
        self.ended.set(self.taken.get());
        self.stored.notify();
    }

    /// Waits for the end of the next batch to be taken, which has all that is asked for before this call. A
    /// batch that is on its way has nothing of that, and its end is not waited for.
    pub(super) fn next_batch(&self) -> impl Future<Output = ()> + '_ {
        let next = self.taken.get() + 1;
        self.stored.until(move || self.ended.get() >= next)
    }

    /// Waits for any batch to end, and fails if that was to bring a region and did not.
    pub(super) fn stored_with(&self, region: Region) -> impl Future<Output = IoResult<()>> + '_ {
        let (failures, wait) = (self.failures.get(), self.stored.wait());
        async move {
            wait.await;
            let was_tried = !self.wanted.borrow().contains(&region);
            if was_tried { self.outcome_since(failures) } else { Ok(()) }
        }
    }

    /// Asks for the whole map, and waits for the batch that brings it.
    pub(super) fn whole_stored(&self) -> impl Future<Output = IoResult<()>> + '_ {
        let failures = self.failures.get();
        self.is_whole_wanted.set(true);
        let ended = self.next_batch();
        async move {
            ended.await;
            self.outcome_since(failures)
        }
    }

    fn outcome_since(&self, failures: u64) -> IoResult<()> {
        if self.failures.get() == failures { Ok(()) } else { Err(self.last_error.get()) }
    }

    /// Waits for the batch that is on its way, if there is one.
    pub(super) async fn batch_ended(&self) {
        if self.is_storing.get() {
            self.stored.wait().await;
        }
    }

    /// Waits until no batch is on its way and none is asked for.
    pub(super) async fn storing_ended(&self) {
        self.stored.until(|| !self.is_storing.get()).await;
    }

    /// Calls regions written that are zero now or wanted, and those dirty that must be; the blocks of the map
    /// to write. A member that is out does not have the zeroes either.
    pub(super) fn call_written(
        &self,
        zeroed: &BTreeSet<Region>,
        wanted: &BTreeSet<Region>,
        must_be_dirty: bool,
        is_degraded: bool,
    ) -> BTreeSet<MapBlock> {
        let (mut map, mut unstored) = (self.map.borrow_mut(), self.unstored.borrow_mut());
        let mut blocks = BTreeSet::new();
        for &region in zeroed.iter().chain(wanted) {
            map.written.put(region, true);
            let is_dirty = if wanted.contains(&region) { must_be_dirty } else { is_degraded };
            if is_dirty {
                map.dirty.put(region, true);
            }
            unstored.insert(region);
            blocks.insert(map.block_of(region));
        }
        blocks
    }

    /// Clears regions that nobody has entered since and nobody wants; the blocks of the map to write.
    pub(super) fn call_cleared(
        &self,
        to_clear: &[Region],
        wanted: &BTreeSet<Region>,
    ) -> BTreeSet<MapBlock> {
        let (mut map, touched) = (self.map.borrow_mut(), self.touched.borrow());
        let mut blocks = BTreeSet::new();
        for &region in to_clear.iter().filter(|region| !touched.has(**region)) {
            self.recent.borrow_mut().put(region, false);
            if map.dirty.has(region) && !wanted.contains(&region) {
                map.dirty.put(region, false);
                blocks.insert(map.block_of(region));
            }
        }
        blocks
    }

    /// Says of every region whether a member lacks it; all blocks of the map are to be written.
    pub(super) fn call_missing(
        &self,
        is_missing: impl Fn(Region, bool) -> bool,
    ) -> BTreeSet<MapBlock> {
        let mut map = self.map.borrow_mut();
        for region in each(Region(0)..Region(map.count())) {
            let was_missing = map.missing.has(region);
            map.missing.put(region, is_missing(region, was_missing));
        }
        map.blocks().collect()
    }

    /// Takes out of what members lack those of the rebuilt regions that are there; the blocks of the map to
    /// write.
    pub(super) fn call_rebuilt(
        &self,
        rebuilt: &[Region],
        is_there: impl Fn(Region) -> bool,
    ) -> BTreeSet<MapBlock> {
        let mut map = self.map.borrow_mut();
        let gone: Vec<Region> =
            rebuilt.iter().copied().filter(|region| is_there(*region)).collect();
        gone.iter().for_each(|region| map.missing.put(*region, false));
        gone.iter().map(|region| map.block_of(*region)).collect()
    }

    /// All members have these regions as the map says.
    pub(super) fn note_stored(&self, zeroed: &BTreeSet<Region>, wanted: &BTreeSet<Region>) {
        let is_stored = |region: &Region| zeroed.contains(region) || wanted.contains(region);
        self.unstored.borrow_mut().retain(|region| !is_stored(region));
    }

    /// A block of the map as it is now, as the next version of the block.
    pub(super) fn next_version(&self, block: MapBlock) -> Bytes {
        let mut map = self.map.borrow_mut();
        map.count_up(block);
        Bytes::copy_of(&map.encode(block))
    }

    /// Clears all dirty regions; the blocks of the map to write.
    pub(super) fn call_all_cleared(&self) -> BTreeSet<MapBlock> {
        let mut map = self.map.borrow_mut();
        let blocks = map.dirty.iter().map(|region| map.block_of(region)).collect();
        map.dirty.clear();
        self.recent.borrow_mut().clear();
        blocks
    }

    /// Calls regions from one on never written; the blocks of the map to write.
    pub(super) fn call_blank_from(&self, first: Region) -> BTreeSet<MapBlock> {
        let mut map = self.map.borrow_mut();
        let written: Vec<Region> = map.written.iter().filter(|it| *it >= first).collect();
        for &region in &written {
            map.written.put(region, false);
            map.dirty.put(region, false);
            self.recent.borrow_mut().put(region, false);
            self.touched.borrow_mut().put(region, false);
        }
        written.into_iter().map(|region| map.block_of(region)).collect()
    }

    /// Begins a round: the regions that nobody entered in the one before.
    pub(super) fn begin_round(&self) -> Vec<Region> {
        let (recent, mut touched) = (self.recent.borrow(), self.touched.borrow_mut());
        let to_resync = self.to_resync.borrow();
        let is_idle = |region: &Region| !touched.has(*region) && !to_resync.has(*region);
        let idle = recent.iter().filter(is_idle).collect();
        touched.clear();
        self.under_way.borrow_mut().advance();
        idle
    }

    /// Waits for the writes that began before the round.
    pub(super) async fn writes_before_ended(&self) {
        self.drained.until(|| self.under_way.borrow().is_drained()).await;
    }

    /// The round is over; whether there is to be another one.
    pub(super) fn end_round(&self) -> bool {
        let is_more = self.has_recent();
        self.has_rounds.set(is_more);
        is_more
    }

    /// Regions that these need to be zero and are not, and some ahead of those that follow a run of
    /// written ones.
    pub(super) fn to_zero(&self, wanted: &BTreeSet<Region>) -> BTreeSet<Region> {
        let map = self.map.borrow();
        let ahead_max = (AHEAD_BYTES_MAX / (self.regions.region_sectors() * SECTOR_BYTES)).max(1);
        let ahead = |&region: &Region| {
            let before = each(Region(0)..region).rev().take(ahead_max as usize);
            let written = before.take_while(|before| map.written.has(*before)).count() as u64;
            each(region..(region + written.max(1)).min(Region(map.count())))
        };
        let missing = wanted.iter().filter(|region| !map.written.has(**region));
        missing.flat_map(ahead).filter(|region| !map.written.has(*region)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn the_whole_map_is_stored_with_the_batch_that_has_it_and_not_with_the_one_before() {
        let map = RegionMap::new([1; 16], 1 << 16);
        let to_resync = Bits::new(map.count());
        let states = RegionStates::new(map, 1 << 16, to_resync, false);
        let mut context = Context::from_waker(Waker::noop());
        assert!(states.want([Region(0)]), "nobody stores yet");
        let before = states.take_batch().expect("a region is wanted");
        assert!(!before.is_whole);
        let mut whole = pin!(states.whole_stored());
        let mut cleared = pin!(states.next_batch());
        states.want_rebuilt(vec![Region(1)]);
        let mut rebuilt = pin!(states.next_batch());
        // The task that stores goes on with the next batch before those who wait are asked.
        states.end_batch(Ok(()));
        let next = states.take_batch().expect("the whole map is wanted");
        assert!(next.is_whole && next.rebuilt == [Region(1)]);
        assert!(whole.as_mut().poll(&mut context).is_pending(), "it is on its way");
        assert!(cleared.as_mut().poll(&mut context).is_pending());
        assert!(rebuilt.as_mut().poll(&mut context).is_pending());
        states.end_batch(Err(IoError::Gone));
        assert_eq!(whole.as_mut().poll(&mut context), Poll::Ready(Err(IoError::Gone)));
        assert!(cleared.as_mut().poll(&mut context).is_ready());
        assert!(rebuilt.as_mut().poll(&mut context).is_ready());
        assert!(states.take_batch().is_none());
    }
}
