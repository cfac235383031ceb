//! Rebuild: fills members that were replaced, or came back, and the successors of members in service that
//! are to be replaced.
//!
//! A member that is filled lacks regions. Such a region is not read from it and counts as lost for the
//! stripes in it. While a region is being filled, it is written like any other. The most exposed regions
//! come first: those that the most members of a group lack. Never-written ones are no work.
//!
//! Every few seconds the rebuild flushes the members that are filled. The rebuild then takes what they
//! have out of the region map on all members, and a restart goes on from there. When nothing is
//! lacking, the member is flushed once more, and the superblocks say that it is in service.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use voltier_block::{BlockDevice, Buf, IoError, IoResult, Lba, Nanos, SectorRange};
use voltier_ring::Handle;

use crate::bitmap::write_intent::Bitmap;
use crate::canary::{self, Canary};
use crate::format::bits::Bits;
use crate::geometry::chunks::{Geometry, Span};
use crate::geometry::numbers::{GroupIndex, MemberIndex, Region, Row, StripeSlot, count, each};
use crate::journal::transaction::Journal;
use crate::members::member::{Member, Missing};
use crate::members::member_set::MemberSet;
use crate::membership::current::Membership;
use crate::stripe::ground::Ground;
use crate::stripe::mend::Mender;
use crate::stripe::stripes::{Access, Stripes};
use crate::tasks::background::{RegionJob, Run, Runner, Work};
use crate::tasks::pace::Progress;

/// Between two moments at which the position is made durable.
const STORE_NS: Nanos = 5_000_000_000;

/// The work of the rebuild, and what it remembers.
pub(crate) struct Rebuild<D> {
    handle: Handle,
    geometry: Geometry,
    members: Rc<MemberSet<D>>,
    membership: Rc<Membership>,
    bitmap: Rc<Bitmap<D>>,
    journal: Rc<Journal<D>>,
    stripes: Rc<Stripes<D>>,
    mender: Rc<Mender<D>>,
    /// For an exposure and a group the region where to go on looking.
    cursors: RefCell<BTreeMap<(usize, GroupIndex), Region>>,
    /// How often members had come or gone when these were right.
    changes: Cell<u64>,
    /// Groups and regions that could not be computed.
    stuck: RefCell<BTreeSet<(GroupIndex, Region)>>,
    last_error: Cell<Option<IoError>>,
    stored_at_ns: Cell<Nanos>,
    rebuilt_members: Cell<u64>,
}

/// A rebuild, as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RebuildStatus {
    /// How far it is. Regions that a member has, from wherever, are done.
    pub progress: Progress,
    /// Regions that could not be computed, because too much of their stripes cannot be read. The
    /// members of such regions stay as they are until a rebuild that is started again gets through.
    pub stuck_regions: u64,
    /// Why the last of these could not be.
    pub last_error: Option<IoError>,
    /// Members that were put in service since the start.
    pub rebuilt_members: u64,
}

/// A part of an array that could not be computed, in whole regions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StuckRange {
    /// The data of the array in it, and of other groups between them.
    pub sectors: SectorRange,
    /// The members of one group that lack it.
    pub members: Vec<MemberIndex>,
}

/// The rebuild of an array.
pub(crate) type RebuildTask<D> = Runner<D, Rebuild<D>>;

impl<D: BlockDevice> Work<D> for Rebuild<D> {
    fn prepare(&self) -> bool {
        let is_wanted = self.is_wanted();
        if is_wanted {
            self.stuck.borrow_mut().clear();
            self.last_error.set(None);
            self.cursors.borrow_mut().clear();
            self.stored_at_ns.set(self.handle.now());
        }
        is_wanted
    }

    /// The next region to fill: of those that the most members of a group lack.
    fn next_job(&self) -> Option<RegionJob<D>> {
        let changes = self.members.changes();
        let mut cursors = self.cursors.borrow_mut();
        if self.changes.replace(changes) != changes {
            cursors.clear();
        }
        // Also past what the parities can compute: such a region is copied, or fails and is stuck. A region
        // that no turn took would be lacking when the task is about to end, and keep it for ever.
        for exposure in (0..=self.geometry.width()).rev() {
            for group in self.geometry.groups() {
                let cursor = cursors.entry((exposure, group)).or_insert(Region(0));
                while let Some(region) = self.next_lacking(group, *cursor) {
                    *cursor = region + 1;
                    let is_stuck = self.stuck.borrow().contains(&(group, region));
                    if self.exposure(group, region) == exposure && !is_stuck {
                        return Some(self.begin_job(group, region));
                    }
                }
                *cursor = Region(self.bitmap.regions().count());
            }
        }
        None
    }

    /// Fills some rows of a region.
    async fn run(&self, run: &Run<D>) -> IoResult<()> {
        let job = &run.job;
        // Degraded readers may go on: nobody reads what is written here.
        let _guards = self.stripes.lock_rows(job.group, run.rows.clone(), Access::Shared).await;
        // Stripe by stripe the data come first, of which a parity that may not match is made anew.
        let needs_resync =
            self.bitmap.needs_resync(self.stripes.stripe_of(job.group, run.rows.start));
        let is_whole = !needs_resync
            && !self.stripes.has_half_written(job.group, run.rows.clone())
            && self.stripes.two_shapes().is_none();
        if is_whole && self.fill_rows(run).await.is_ok() {
            return Ok(());
        }
        self.members.check_group(job.group)?;
        let successors: Vec<_> =
            job.targets.iter().filter(|it| self.is_successor(it)).cloned().collect();
        if self.stripes.has_rows_between(&run.rows) {
            return Err(IoError::Medium);
        }
        let whole = Span { start: 0, end: self.geometry.chunk_sectors() };
        let mut result = Ok(());
        for row in each(run.rows.clone()) {
            let stripe = self.stripes.stripe_of(job.group, row);
            if self.stripes.is_idle(stripe) {
                continue;
            }
            let mended = self.mender.mend_stripe(stripe, whole, &successors).await;
            result = result.and(mended.map(drop));
        }
        result
    }

    fn members_of(&self, run: &Run<D>) -> usize {
        run.job.targets.len()
    }

    fn end_job(&self, job: &RegionJob<D>, is_cancelled: bool) {
        let error = job.error();
        for (member, device) in &job.targets {
            self.members[*member].with_missing(device, |missing| {
                missing.end_filling(job.region, error.is_none());
            });
        }
        if error.is_none() {
            self.bitmap.note_filled(job.region);
        } else if job.changes == self.members.changes() && !is_cancelled {
            self.last_error.set(error);
            self.stuck.borrow_mut().insert((job.group, job.region));
        }
    }

    async fn store_if_due(&self, now: Nanos) -> bool {
        let is_due = now >= self.stored_at_ns.get() + STORE_NS;
        if is_due {
            self.store_progress(Canary::PositionBeforeFlush).await;
        }
        is_due
    }

    async fn pause(&self) {
        self.store_progress(Canary::PositionBeforeFlush).await;
    }

    /// Puts in service what lacks nothing; whether there is more to fill.
    async fn finish(&self) -> bool {
        self.store_progress(Canary::ServiceBeforeFlush).await;
        for member in self.members.indexes() {
            self.put_in_service(member).await;
        }
        let has_successor = self.members.iter().any(|it| it.has_successor());
        self.stripes.set_has_successor(has_successor);
        self.cursors.borrow_mut().clear();
        let stuck = self.stuck.borrow();
        self.geometry.groups().any(|group| {
            let mut from = Region(0);
            while let Some(region) = self.next_lacking(group, from) {
                if !stuck.contains(&(group, region)) {
                    return true;
                }
                from = region + 1;
            }
            false
        })
    }
}

impl<D: BlockDevice> Rebuild<D> {
    pub(crate) fn new(
        ground: &Ground<D>,
        stripes: &Rc<Stripes<D>>,
        mender: &Rc<Mender<D>>,
    ) -> Self {
        let Ground { handle, geometry, members, membership, bitmap, journal, .. } = ground.clone();
        Self {
            handle,
            geometry,
            members,
            membership,
            bitmap,
            journal,
            stripes: stripes.clone(),
            mender: mender.clone(),
            cursors: RefCell::default(),
            changes: Cell::default(),
            stuck: RefCell::default(),
            last_error: Cell::default(),
            stored_at_ns: Cell::default(),
            rebuilt_members: Cell::default(),
        }
    }

    /// Whether there is something to fill.
    pub(crate) fn is_wanted(&self) -> bool {
        self.members.iter().any(|member| member.filling(|_, _| ()).is_some())
    }

    /// The first region not below `from` that a member of a group lacks which is being filled.
    fn next_lacking(&self, group: GroupIndex, from: Region) -> Option<Region> {
        let next = |missing: &Missing| {
            let mut from = from;
            loop {
                let region = missing.regions.next(from)?;
                // A member that comes lacks all regions for a moment. A region that was never written
                // is no work, and may be made zero without a lock at any time.
                if missing.can_fill(region) && self.bitmap.is_written(region) {
                    return Some(region);
                }
                from = region + 1;
            }
        };
        let members = self.geometry.members_of(group).map(|member| &self.members[member]);
        members.filter_map(|member| member.filling(|_, it| next(it)).flatten()).min()
    }

    /// Members of a group that do not have a region.
    fn exposure(&self, group: GroupIndex, region: Region) -> usize {
        let members = self.geometry.members_of(group).map(|member| &self.members[member]);
        members.filter(|member| !member.has_region(region)).count()
    }

    fn begin_job(&self, group: GroupIndex, region: Region) -> RegionJob<D> {
        let target = |member: MemberIndex| {
            let lacks = |device: &Rc<D>, missing: &Missing| {
                missing.can_fill(region).then(|| device.clone())
            };
            Some((member, self.members[member].filling(lacks)??))
        };
        let targets: Vec<_> = self.geometry.members_of(group).filter_map(target).collect();
        for (member, device) in &targets {
            self.members[*member].with_missing(device, |it| it.under_way.insert(region));
        }
        RegionJob::new(group, region, targets, self.members.changes())
    }

    /// Whether a device is filled beside a member in service.
    fn is_successor(&self, (member, device): &(MemberIndex, Rc<D>)) -> bool {
        self.members[*member].succeeding().is_some_and(|own| Rc::ptr_eq(&own, device))
    }

    /// The members to read for rows of a group: those with a successor. If something is to be computed,
    /// also enough of all, which take turns.
    fn sources(
        &self,
        run: &Run<D>,
        with_successor: &[MemberIndex],
        is_computed: bool,
    ) -> IoResult<Vec<MemberIndex>> {
        if !is_computed {
            return Ok(with_successor.to_vec());
        }
        let job = &run.job;
        let members = self.geometry.members_of(job.group);
        let mut usable: Vec<MemberIndex> =
            members.filter(|member| self.members[*member].has_region(job.region)).collect();
        let needed = self.geometry.data_chunks();
        if usable.len() < needed {
            return Err(IoError::Gone);
        }
        let turn = run.rows.start.0 / count(&run.rows) % usable.len() as u64;
        usable.rotate_left(turn as usize);
        usable.sort_by_key(|member| !with_successor.contains(member));
        usable.truncate(needed.max(with_successor.len()));
        Ok(usable)
    }

    /// Reads long runs, computes row by row, writes long runs.
    async fn fill_rows(&self, run: &Run<D>) -> IoResult<()> {
        // One that came back may have turned out to have the region.
        let lacks = |(member, device): &(MemberIndex, Rc<D>)| {
            let region = run.job.region;
            self.members[*member].with_missing(device, |it| it.regions.has(region)).unwrap_or(false)
        };
        let targets: Vec<_> = run.job.targets.iter().filter(|it| lacks(it)).cloned().collect();
        let is_successor = |it: &&(MemberIndex, Rc<D>)| self.is_successor(it);
        let with_successor: Vec<MemberIndex> =
            targets.iter().filter(is_successor).map(|it| it.0).collect();
        let computed: Vec<MemberIndex> =
            targets.iter().filter(|it| !is_successor(it)).map(|it| it.0).collect();
        let reads = self.sources(run, &with_successor, !computed.is_empty())?;
        let bufs = self.stripes.read_rows(&reads, &run.rows).await?;
        let known: BTreeMap<MemberIndex, Buf> = reads.iter().copied().zip(bufs).collect();
        let mut filled = self.compute_rows(run, &known, &computed);
        let at = self.geometry.lba_of_row(run.rows.start);
        for (member, bytes) in
            known.into_iter().filter(|(member, _)| with_successor.contains(member))
        {
            filled.insert(member, bytes);
        }
        let mut writes = Vec::new();
        for (member, device) in targets {
            let Some(bytes) = filled.remove(&member) else { continue };
            let members = self.members.clone();
            writes.push(self.handle.spawn(async move {
                members.write_target(member, &device, at, bytes.freeze()).await;
            }));
        }
        for write in writes {
            write.await;
        }
        Ok(())
    }

    /// The rows of some members from those of others.
    fn compute_rows(
        &self,
        run: &Run<D>,
        known: &BTreeMap<MemberIndex, Buf>,
        computed: &[MemberIndex],
    ) -> BTreeMap<MemberIndex, Buf> {
        if computed.is_empty() {
            return BTreeMap::new();
        }
        let group = run.job.group;
        let chunk_bytes = (self.geometry.chunk_sectors() * voltier_block::SECTOR_BYTES) as usize;
        let count = count(&run.rows) as usize;
        let new = |member: &MemberIndex| (*member, Buf::new(count * chunk_bytes));
        let mut filled: BTreeMap<MemberIndex, Buf> = computed.iter().map(new).collect();
        for (index, row) in each(run.rows.clone()).enumerate() {
            let stripe = self.stripes.stripe_of(group, row);
            let place = index * chunk_bytes..(index + 1) * chunk_bytes;
            let slot = |member| self.geometry.slot_of(stripe, member).expect("of its group");
            let others = self.geometry.members_of(group).filter(|it| !known.contains_key(it));
            let mut lost: Vec<StripeSlot> = others.map(slot).collect();
            lost.sort_unstable();
            let wanted: Vec<StripeSlot> = filled.keys().map(|member| slot(*member)).collect();
            let plan = self.stripes.reconstruct_some(stripe, &lost, &wanted);
            let into = filled.values_mut().map(|buf| &mut buf[place.clone()]);
            plan.fill(into, |slot| &known[&self.geometry.member_of(stripe, slot)][place.clone()]);
        }
        filled
    }

    /// Makes the position durable; with this bug nothing is flushed before.
    async fn store_progress(&self, bug: Canary) {
        self.bitmap.store_filled(bug).await;
        self.stored_at_ns.set(self.handle.now());
    }

    async fn put_in_service(&self, member: MemberIndex) {
        let is_full =
            |device: &Rc<D>, missing: &Missing| missing.regions.is_empty().then(|| device.clone());
        let Some(device) = self.members[member].filling(is_full).flatten() else { return };
        // Without a journal nothing else flushes what was written beside the rebuild. With a journal
        // the pause below flushes all members again: transactions may have ended since.
        let is_due = !canary::is(Canary::ServiceBeforeFlush);
        if is_due && self.members.devices().flush(&device).await.is_err() {
            return self.members.give_successor_up(member, &device);
        }
        // A journal that has failed puts nothing in service: the next start replays it.
        let Ok(_pause) = self.journal.pause().await else { return };
        if self.journal.make_ring(member, &device).await.is_err() {
            return self.members.give_successor_up(member, &device);
        }
        let own = &self.members[member];
        let is_still = own.filling(is_full).flatten().is_some_and(|it| Rc::ptr_eq(&it, &device));
        if !is_still {
            // The ring is that of the member as it is: one in service begins anew like its successor.
            if own.is_online()
                && let Ok(device) = own.device()
                && self.journal.make_ring(member, &device).await.is_err()
            {
                self.members.lose(member);
            }
            return;
        }
        own.put_in_service();
        self.rebuilt_members.set(self.rebuilt_members.get() + 1);
        self.members.change();
        self.membership.note_change();
        // A member that does not take the news is lost, or the array is; requests will tell.
        let _ = self.membership.recorded().await;
        if self.membership.has_failed() {
            // A stripe that was half written without the member can be made right now.
            self.membership.note_failure();
        }
        self.bitmap.begin_rounds();
    }

    /// Bytes done and in all: what a member has, from wherever, is done.
    fn bytes(&self) -> (u64, u64) {
        let bytes_of = |lacking: &Bits<Region>| {
            let has_last = lacking.has(self.bitmap.regions().last());
            self.bitmap.regions().bytes_of(lacking.count(), has_last)
        };
        let lacks = |member: &Member<D>| member.filling(|_, it| bytes_of(&it.regions));
        let lacking: Vec<u64> = self.members.iter().filter_map(lacks).collect();
        let total = self.bitmap.written_bytes() * lacking.len() as u64;
        (total.saturating_sub(lacking.iter().sum()), total)
    }

    /// What could not be computed, in the order of the data; at most so many ranges.
    pub(crate) fn stuck_ranges(&self, most: usize) -> Vec<StuckRange> {
        let mut ranges: Vec<StuckRange> = Vec::new();
        for (group, region) in self.stuck.borrow().iter().copied() {
            let StuckRange { sectors, members } = self.stuck_range(group, region);
            let is_full = ranges.len() == most;
            match ranges.last_mut() {
                Some(last) if last.members == members && last.sectors.end() == sectors.start => {
                    last.sectors.count += sectors.count;
                }
                Some(_) if is_full => break,
                _ => ranges.push(StuckRange { sectors, members }),
            }
        }
        ranges.sort_by_key(|range| range.sectors.start);
        ranges
    }

    fn stuck_range(&self, group: GroupIndex, region: Region) -> StuckRange {
        let of_member = self.bitmap.regions().sectors_of(region);
        let row = |sector: u64| Row(sector / self.geometry.chunk_sectors());
        let first = self.stripes.stripe_of(group, row(of_member.start.0));
        let last = self.stripes.stripe_of(group, row(of_member.end().0 - 1));
        let stripe = self.geometry.stripe_sectors();
        let (start, end) = (first.0 * stripe, (last.0 + 1) * stripe);
        let lacks = |member: &MemberIndex| !self.members[*member].has_region(region);
        StuckRange {
            sectors: SectorRange::new(Lba(start), end.min(self.geometry.sectors()) - start),
            members: self.geometry.members_of(group).filter(lacks).collect(),
        }
    }

    /// How far the rebuild is; the runner's progress from bytes done and in all.
    pub(crate) fn status(&self, progress: impl FnOnce(u64, u64) -> Progress) -> RebuildStatus {
        let (done, total) = self.bytes();
        RebuildStatus {
            progress: progress(done, total),
            stuck_regions: self.stuck.borrow().len() as u64,
            last_error: self.last_error.get(),
            rebuilt_members: self.rebuilt_members.get(),
        }
    }
}
