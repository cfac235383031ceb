//! The region map in service: marks are durable before what they speak of is written.
//!
//! A write enters its region ([`mark_region`](Inner::mark_region)). A region that was never written is
//! first made zero on all members, durably; what must be marked is marked; then the write may begin.
//! One task stores marks, everything that came up meanwhile at once.
//!
//! A mark is taken back by a round every few seconds, when nobody wrote to the region since the round
//! before and all members were flushed in between. While a member is out no mark is taken back.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::{Rc, Weak};

use voltier_block::{
    BlockDevice, Bytes, Durability, IoError, IoResult, Lba, Nanos, SECTOR_BYTES, SectorRange,
};
use voltier_ring::Signal;

use crate::array::Inner;
use crate::bits::Bits;
use crate::canary::{self, Canary};
use crate::consistency::Consistency;
use crate::generations::in_service;
use crate::geometry::Stripe;
use crate::member_layout::MAP_START_BYTES;
use crate::members::{Clear, Member, together};
use crate::regions::{BLOCK_PAGES, PAGE_BYTES, RegionMap, region_sectors};

/// Between two rounds that take marks back.
const ROUND_NS: Nanos = 5_000_000_000;
/// Longest stretch of a member that is made zero ahead of a writer that goes on and on, in bytes.
const AHEAD_BYTES_MAX: u64 = 16 << 20;
/// Bytes of a block of the map.
pub(crate) const BLOCK_BYTES: u64 = BLOCK_PAGES * PAGE_BYTES as u64;

/// The map and what is known of it in memory.
pub(crate) struct Marks {
    region_sectors: u64,
    member_sectors: u64,
    /// What is on the members; of the regions in `unstored`, what will be.
    map: RefCell<RegionMap>,
    /// Regions whose marks are on their way, or did not get through.
    unstored: RefCell<BTreeSet<u64>>,
    /// Regions with writes that may not be durable on all members: the marked ones, and in a journal's
    /// care also others.
    recent: RefCell<Bits>,
    /// Regions that were entered since the last round began.
    touched: RefCell<Bits>,
    /// Regions whose parity is to be made anew.
    in_doubt: RefCell<Bits>,
    /// Writes under way by the turn in which they began: a round ends a turn and waits for it.
    in_flight: [Cell<u64>; 2],
    turn: Cell<usize>,
    turn_ended: Signal,
    /// Regions that wait for their marks.
    wanted: RefCell<BTreeSet<u64>>,
    /// Regions whose marks may be taken back.
    unwanted: RefCell<Vec<u64>>,
    /// Regions that no member lacks any more, durably.
    rebuilt: RefCell<Vec<u64>>,
    /// Whether the whole map is to be written, with what members lack.
    is_whole_wanted: Cell<bool>,
    is_storing: Cell<bool>,
    stored: Signal,
    failures: Cell<u64>,
    last_error: Cell<IoError>,
    has_rounds: Cell<bool>,
}

impl Marks {
    /// The marks of a map as it is on all members, some regions of which are in doubt. With `unflushed`
    /// there may be writes anywhere that not all members hold durably.
    pub(crate) fn new(
        map: RegionMap,
        member_sectors: u64,
        in_doubt: Bits,
        unflushed: bool,
    ) -> Self {
        let count = map.count();
        let recent = if unflushed { &map.written } else { &map.dirty };
        Self {
            region_sectors: region_sectors(member_sectors),
            member_sectors,
            recent: RefCell::new(recent.clone()),
            map: RefCell::new(map),
            unstored: RefCell::default(),
            touched: RefCell::new(Bits::new(count)),
            in_doubt: RefCell::new(in_doubt),
            in_flight: Default::default(),
            turn: Cell::new(0),
            turn_ended: Signal::new(),
            wanted: RefCell::default(),
            unwanted: RefCell::default(),
            rebuilt: RefCell::default(),
            is_whole_wanted: Cell::new(false),
            is_storing: Cell::new(false),
            stored: Signal::new(),
            failures: Cell::new(0),
            last_error: Cell::new(IoError::Gone),
            has_rounds: Cell::new(false),
        }
    }

    /// The rounds belong to an array that is superseded; the next one begins its own.
    pub(crate) fn leave_rounds(&self) {
        self.has_rounds.set(false);
    }

    /// Sectors of a region on a member.
    pub(crate) fn region_sectors(&self) -> u64 {
        self.region_sectors
    }

    /// The sectors of a region.
    pub(crate) fn sectors_of(&self, region: u64) -> SectorRange {
        let start = region * self.region_sectors;
        SectorRange::new(Lba(start), self.region_sectors.min(self.member_sectors - start))
    }

    pub(crate) fn is_written(&self, region: u64) -> bool {
        self.map.borrow().written.has(region)
    }

    /// What a new member lacks: all that was written; of one that comes back what is marked.
    pub(crate) fn lacking(&self, is_back: bool) -> Bits {
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
    pub(crate) fn next_written(&self, from: u64) -> Option<u64> {
        self.map.borrow().written.next(from)
    }

    pub(crate) fn written_count(&self) -> u64 {
        self.map.borrow().written.count()
    }

    pub(crate) fn is_in_doubt(&self, region: u64) -> bool {
        let in_doubt = self.in_doubt.borrow();
        !in_doubt.is_empty() && in_doubt.has(region)
    }

    /// The first region in doubt that is not below `from`.
    pub(crate) fn next_in_doubt(&self, from: u64) -> Option<u64> {
        self.in_doubt.borrow().iter().find(|region| *region >= from)
    }

    /// The parity of a region is right now; its mark goes when all members are flushed.
    pub(crate) fn end_doubt(&self, region: u64) {
        self.in_doubt.borrow_mut().put(region, false);
        self.recent.borrow_mut().put(region, true);
        self.touched.borrow_mut().put(region, true);
    }

    /// Regions: all, written, marked, in doubt.
    pub(crate) fn counts(&self) -> [u64; 4] {
        let map = self.map.borrow();
        [map.count(), map.written.count(), map.dirty.count(), self.in_doubt.borrow().count()]
    }

    fn is_ready(&self, region: u64, must_be_dirty: bool) -> bool {
        let map = self.map.borrow();
        map.written.has(region)
            && (!must_be_dirty || map.dirty.has(region))
            && !self.unstored.borrow().contains(&region)
    }

    /// Regions that these need to be zero and are not, and some ahead of those that follow a row of
    /// written ones.
    fn to_zero(&self, wanted: &BTreeSet<u64>) -> BTreeSet<u64> {
        let map = self.map.borrow();
        let ahead_max = (AHEAD_BYTES_MAX / (self.region_sectors * SECTOR_BYTES)).max(1);
        let ahead = |&region: &u64| {
            let before = (0..region).rev().take(ahead_max as usize);
            let written = before.take_while(|before| map.written.has(*before)).count() as u64;
            region..(region + written.max(1)).min(map.count())
        };
        let missing = wanted.iter().filter(|region| !map.written.has(**region));
        missing.flat_map(ahead).filter(|region| !map.written.has(*region)).collect()
    }
}

/// A write that is in its region, until dropped.
pub(crate) struct Mark<D>(Option<(Rc<Inner<D>>, usize)>);

impl<D> Drop for Mark<D> {
    fn drop(&mut self) {
        let Some((inner, turn)) = &self.0 else { return };
        let Some(durable) = &inner.durable else { return };
        let in_flight = &durable.marks.in_flight[*turn];
        in_flight.set(in_flight.get() - 1);
        if in_flight.get() == 0 {
            durable.marks.turn_ended.notify();
        }
    }
}

impl<D: BlockDevice> Inner<D> {
    /// Whether a stripe was never written: it reads as zeroes then.
    pub(crate) fn is_blank(&self, stripe: Stripe) -> bool {
        let Some(durable) = &self.durable else { return false };
        !durable.marks.is_written(self.region_of(stripe))
    }

    /// Whether the parity of a stripe may not match.
    pub(crate) fn is_in_doubt(&self, stripe: Stripe) -> bool {
        let Some(durable) = &self.durable else { return false };
        durable.marks.is_in_doubt(self.region_of(stripe))
    }

    fn must_be_dirty(&self) -> bool {
        let has_parity = self.geometry.parity_chunks() > 0;
        has_parity && (self.consistency == Consistency::Bitmap || self.is_degraded())
    }

    /// Enters the region of a stripe: what is to be marked of it is, durably, until the mark is
    /// dropped. Before the stripe is locked.
    ///
    /// # Errors
    /// When the marks cannot be stored.
    pub(crate) async fn mark_region(self: &Rc<Self>, stripe: Stripe) -> IoResult<Mark<D>> {
        let Some(durable) = &self.durable else { return Ok(Mark(None)) };
        let marks = &durable.marks;
        let region = self.region_of(stripe);
        while !marks.is_ready(region, self.must_be_dirty()) {
            self.settled().await?;
            self.store_mark_of(marks, region).await?;
        }
        marks.touched.borrow_mut().put(region, true);
        marks.recent.borrow_mut().put(region, true);
        let turn = marks.turn.get();
        marks.in_flight[turn].set(marks.in_flight[turn].get() + 1);
        self.begin_rounds();
        Ok(Mark(Some((self.clone(), turn))))
    }

    /// Marks all that a member which was just lost may not have: what was written and not flushed.
    pub(crate) async fn mark_what_may_be_missing(self: &Rc<Self>) -> IoResult<()> {
        let Some(durable) = &self.durable else { return Ok(()) };
        let marks = &durable.marks;
        if self.geometry.parity_chunks() == 0 || canary::is(Canary::MarksForgotten) {
            return Ok(());
        }
        let missing: Vec<u64> = {
            let (recent, in_doubt) = (marks.recent.borrow(), marks.in_doubt.borrow());
            recent.iter().chain(in_doubt.iter()).filter(|it| !marks.is_ready(*it, true)).collect()
        };
        // All of them together: the first one takes the others along.
        self.want_marks(missing.iter().copied());
        for region in missing {
            while !marks.is_ready(region, true) {
                self.store_mark_of(marks, region).await?;
            }
        }
        Ok(())
    }

    /// Waits for the next batch of marks, and has this region in it or in the one behind it.
    async fn store_mark_of(self: &Rc<Self>, marks: &Marks, region: u64) -> IoResult<()> {
        let failures = marks.failures.get();
        let wait = marks.stored.wait();
        self.want_marks([region]);
        wait.await;
        let was_tried = !marks.wanted.borrow().contains(&region);
        let has_failed = marks.failures.get() != failures && was_tried;
        if has_failed { Err(marks.last_error.get()) } else { Ok(()) }
    }

    fn want_marks(self: &Rc<Self>, regions: impl IntoIterator<Item = u64>) {
        let Some(durable) = &self.durable else { return };
        durable.marks.wanted.borrow_mut().extend(regions);
        if !durable.marks.is_storing.replace(true) {
            let inner = self.clone();
            drop(self.handle.spawn(async move { inner.store_marks().await }));
        }
    }

    async fn store_marks(self: Rc<Self>) {
        let Some(durable) = &self.durable else { return };
        let marks = &durable.marks;
        loop {
            let wanted = marks.wanted.take();
            let unwanted = marks.unwanted.take();
            let is_whole = marks.is_whole_wanted.replace(false);
            let is_more = is_whole || !marks.rebuilt.borrow().is_empty();
            if wanted.is_empty() && unwanted.is_empty() && !is_more {
                break;
            }
            if let Err(error) = self.store_batch(marks, wanted, unwanted, is_whole).await {
                marks.last_error.set(error);
                marks.failures.set(marks.failures.get() + 1);
            }
            marks.stored.notify();
        }
        marks.is_storing.set(false);
        marks.stored.notify();
    }

    async fn store_batch(
        self: &Rc<Self>,
        marks: &Marks,
        mut wanted: BTreeSet<u64>,
        unwanted: Vec<u64>,
        is_whole: bool,
    ) -> IoResult<()> {
        // Asked for again while they were on their way. Storing them once more would have those wait
        // who are about to see that they are there.
        wanted.retain(|region| !marks.is_ready(*region, self.must_be_dirty()));
        let mut zeroed = marks.to_zero(&wanted);
        if !zeroed.is_empty() {
            self.zero_regions(marks, &zeroed).await?;
        }
        if self.has_unrecorded_loss() {
            // A member that came back now would be believed, and does not have the zeroes. Who waits
            // for these regions has the loss recorded, and asks again.
            wanted.retain(|region| !zeroed.contains(region));
            zeroed.clear();
        }
        let is_degraded = self.is_degraded();
        let must_be_dirty = self.must_be_dirty();
        let mut blocks = BTreeSet::new();
        {
            let mut map = marks.map.borrow_mut();
            for &region in zeroed.iter().chain(&wanted) {
                map.written.put(region, true);
                // A member that is out does not have the zeroes either.
                let is_dirty = if wanted.contains(&region) { must_be_dirty } else { is_degraded };
                if is_dirty {
                    map.dirty.put(region, true);
                }
                marks.unstored.borrow_mut().insert(region);
                blocks.insert(map.block_of(region));
            }
            let touched = marks.touched.borrow();
            let may_go = |region: &&u64| !is_degraded && !touched.has(**region);
            for &region in unwanted.iter().filter(may_go) {
                marks.recent.borrow_mut().put(region, false);
                if map.dirty.has(region) && !wanted.contains(&region) {
                    map.dirty.put(region, false);
                    blocks.insert(map.block_of(region));
                }
            }
        }
        blocks.extend(self.change_missing(marks, is_whole));
        self.write_map_blocks(marks, blocks).await?;
        marks.unstored.borrow_mut().retain(|it| !zeroed.contains(it) && !wanted.contains(it));
        Ok(())
    }

    /// Puts into the map what members lack, or takes out what they have now; the blocks to write.
    fn change_missing(&self, marks: &Marks, is_whole: bool) -> BTreeSet<u64> {
        let (mut map, rebuilt) = (marks.map.borrow_mut(), marks.rebuilt.take());
        // A member that was lost while it was filled may be on record as one that is: what it lacks
        // stays in the map until it is not.
        let is_kept = self.has_unrecorded_loss();
        let is_missing = |region| {
            let lacks = |member: &Member<D>| {
                member.missing().borrow().as_ref().is_some_and(|it| it.regions.has(region))
            };
            self.members.iter().any(lacks)
        };
        if is_whole {
            // One that takes the place of the member it was a copy of was not on record, and what it was
            // given since the last flush goes with the power.
            let unflushed = self.unflushed();
            for region in 0..map.count() {
                let is_in_map = is_kept && map.missing.has(region);
                let may_go = unflushed.contains(&region);
                map.missing.put(region, is_in_map || may_go || is_missing(region));
            }
            return (0..map.block_count()).collect();
        }
        let is_there = |region: &u64| !is_kept && !is_missing(*region);
        let gone: Vec<u64> = rebuilt.into_iter().filter(is_there).collect();
        gone.iter().for_each(|region| map.missing.put(*region, false));
        gone.iter().map(|region| map.block_of(*region)).collect()
    }

    /// Writes the whole map to all members, with what those lack that are being rebuilt.
    pub(crate) async fn store_whole_map(self: &Rc<Self>) -> IoResult<()> {
        let Some(durable) = &self.durable else { return Ok(()) };
        let marks = &durable.marks;
        let failures = marks.failures.get();
        marks.is_whole_wanted.set(true);
        let mut wait = marks.stored.wait();
        self.want_marks([]);
        loop {
            wait.await;
            if !marks.is_whole_wanted.get() {
                break;
            }
            wait = marks.stored.wait();
        }
        if marks.failures.get() == failures { Ok(()) } else { Err(marks.last_error.get()) }
    }

    /// Takes out of the map what no member lacks any more, durably.
    pub(crate) async fn store_rebuilt(self: &Rc<Self>, regions: Vec<u64>) {
        let Some(durable) = &self.durable else { return };
        let marks = &durable.marks;
        marks.rebuilt.borrow_mut().extend(regions);
        let wait = marks.stored.wait();
        self.want_marks([]);
        wait.await;
    }

    /// Waits until regions that are being made zero now are: without a member that came meanwhile.
    pub(crate) async fn zeroing_ended(&self) {
        let Some(durable) = &self.durable else { return };
        if durable.marks.is_storing.get() {
            durable.marks.stored.wait().await;
        }
    }

    /// Makes regions read as zeroes on all members, whatever happens to them then.
    async fn zero_regions(self: &Rc<Self>, marks: &Marks, zero: &BTreeSet<u64>) -> IoResult<()> {
        let mut ranges: Vec<SectorRange> = Vec::new();
        for range in zero.iter().map(|region| marks.sectors_of(*region)) {
            match ranges.last_mut().filter(|last| last.end() == range.start) {
                Some(last) => last.count += range.count,
                None => ranges.push(range),
            }
        }
        let all = 0..self.members.len();
        for range in ranges {
            let clear = Clear::Zeroes(Durability::Cached);
            let clears = all.clone().map(|member| self.clone().clear_member(member, range, clear));
            let results = together(&self.handle, clears.collect()).await;
            results.into_iter().collect::<IoResult<()>>()?;
        }
        self.flush_members().await
    }

    /// Writes blocks of the map to all members.
    pub(crate) async fn write_map_blocks(
        self: &Rc<Self>,
        marks: &Marks,
        blocks: impl IntoIterator<Item = u64>,
    ) -> IoResult<()> {
        let mut writes = Vec::new();
        for block in blocks {
            let bytes = {
                let mut map = marks.map.borrow_mut();
                map.count_up(block);
                Bytes::copy_of(&map.encode(block))
            };
            let at = Lba::from_bytes(MAP_START_BYTES + block * BLOCK_BYTES);
            let all = 0..self.members.len();
            writes.extend(all.map(|member| self.clone().write_meta(member, at, bytes.clone())));
        }
        let results = together(&self.handle, writes).await;
        results.into_iter().collect::<IoResult<()>>()?;
        self.check_groups()
    }

    /// A durable write of something that is not a chunk, at its sector of the device.
    pub(crate) async fn write_meta(
        self: Rc<Self>,
        member: usize,
        at: Lba,
        data: Bytes,
    ) -> IoResult<()> {
        let Ok(device) = self.members[member].device() else { return Ok(()) };
        self.counters.add(|counts| counts.metadata_writes += 1);
        let durability = Durability::Durable;
        let result = self.write_device(member, &device, at, data.into(), durability).await;
        self.settle(member, &device, result)
    }

    /// Starts the rounds that take marks back, unless there are some or nothing is to be taken back.
    pub(crate) fn begin_rounds(self: &Rc<Self>) {
        let Some(durable) = &self.durable else { return };
        let marks = &durable.marks;
        if marks.recent.borrow().is_empty() || self.is_degraded() || marks.has_rounds.replace(true)
        {
            return;
        }
        let (handle, inner) = (self.handle.clone(), Rc::downgrade(self));
        drop(self.handle.spawn(async move {
            let round = |inner: Weak<Inner<D>>| async move {
                let Some(inner) = in_service(&inner) else { return false };
                inner.take_marks_back().await
            };
            loop {
                handle.sleep(ROUND_NS).await;
                if !round(inner.clone()).await {
                    return;
                }
            }
        }));
    }

    /// Takes all marks back, of an array in which nothing is under way or in doubt and all members are
    /// flushed; none while a member is out.
    pub(crate) async fn take_all_marks_back(self: &Rc<Self>) -> IoResult<()> {
        let Some(durable) = &self.durable else { return Ok(()) };
        let marks = &durable.marks;
        if self.is_degraded() {
            return Ok(());
        }
        marks.stored.until(|| !marks.is_storing.get()).await;
        let blocks: BTreeSet<u64> = {
            let mut map = marks.map.borrow_mut();
            let blocks = map.dirty.iter().map(|region| map.block_of(region)).collect();
            map.dirty.clear();
            blocks
        };
        marks.recent.borrow_mut().clear();
        self.write_map_blocks(marks, blocks).await
    }

    /// Has regions from one on called never written, durably. Nothing is under way.
    pub(crate) async fn forget_written_from(self: &Rc<Self>, first: u64) -> IoResult<()> {
        let Some(durable) = &self.durable else { return Ok(()) };
        let marks = &durable.marks;
        marks.stored.until(|| !marks.is_storing.get()).await;
        let blocks: BTreeSet<u64> = {
            let mut map = marks.map.borrow_mut();
            let written: Vec<u64> = map.written.iter().filter(|it| *it >= first).collect();
            for &region in &written {
                map.written.put(region, false);
                map.dirty.put(region, false);
                marks.recent.borrow_mut().put(region, false);
                marks.touched.borrow_mut().put(region, false);
            }
            written.into_iter().map(|region| map.block_of(region)).collect()
        };
        self.write_map_blocks(marks, blocks).await
    }

    /// One round; whether there is to be another one.
    pub(crate) async fn take_marks_back(self: &Rc<Self>) -> bool {
        let Some(durable) = &self.durable else { return false };
        let marks = &durable.marks;
        if self.is_degraded() || durable.is_closed() {
            marks.has_rounds.set(false);
            return false;
        }
        let idle: Vec<u64> = {
            let (recent, mut touched) = (marks.recent.borrow(), marks.touched.borrow_mut());
            let in_doubt = marks.in_doubt.borrow();
            let is_idle = |region: &u64| !touched.has(*region) && !in_doubt.has(*region);
            let idle = recent.iter().filter(is_idle).collect();
            touched.clear();
            idle
        };
        let turn = marks.turn.replace(1 - marks.turn.get());
        marks.turn_ended.until(|| marks.in_flight[turn].get() == 0).await;
        if self.flush_members().await.is_ok() && !idle.is_empty() {
            marks.unwanted.borrow_mut().extend(idle);
            let wait = marks.stored.wait();
            self.want_marks([]);
            wait.await;
        }
        let is_more = !marks.recent.borrow().is_empty();
        marks.has_rounds.set(is_more);
        is_more
    }
}
