//! Scrub: reads everything that was written, on all members, and holds it against its parity.
//!
//! Two or more parities, or three or more copies, have syndromes of a block that does not match. These
//! syndromes name the member that is wrong (`voltier_parity::Verdict`). The scrub rewrites that block, not
//! the parity. With one parity, or two copies, nothing tells data from parity: a mismatch is counted, and
//! made to match only by choice. Blocks that give a medium error are computed and written in any case.
//!
//! Syndromes name the member, not the version. A block of data that goes bad and is then overwritten by
//! read-modify-write leaves the difference in the parity. The block is right, and "repairing" it would give
//! the client's new data up. So the scrub rewrites a block of data only in an unchanged region. Such a
//! region matched in an earlier scrub of this start, and nobody has written there since
//! (`Bitmap::is_unchanged`). Elsewhere the scrub reports the block and leaves it, unless the user asks for
//! the rewriting. Parities are put right everywhere, and so are copies: writes never compute them from old
//! ones.
//!
//! A stripe is checked under its lock, so no write is half done. Regions whose parity is still made anew
//! after a crash, and groups that lack a member, are left out and counted.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use voltier_block::{
    Buf, DriveControl, Durability, Figure, IoError, IoResult, Nanos, SECTOR_BYTES, SectorRange,
    Unit, figures,
};
use voltier_parity::{Stores, Verdict};

use crate::bitmap::write_intent::Bitmap;
use crate::canary::{self, Canary};
use crate::geometry::chunks::{Geometry, Span};
use crate::geometry::numbers::{GroupIndex, MemberIndex, Region, StripeNumber, StripeSlot, each};
use crate::geometry::plan::SlotState;
use crate::members::member_set::MemberSet;
use crate::stripe::ground::Ground;
use crate::stripe::mend::Mender;
use crate::stripe::runs::MemberWrite;
use crate::stripe::stripe_writer::StripeWriter;
use crate::stripe::stripes::{Access, Stripes};
use crate::tasks::background::{RegionJob, Run, Runner, Work};
use crate::tasks::pace::Progress;

/// Findings that are kept for show.
const FINDINGS_MAX: usize = 64;

/// The action of a scrub on blocks that do not match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScrubRepair {
    /// The scrub counts them.
    Nothing,
    /// The scrub rewrites those that are known to be wrong: no data in regions that were written since
    /// they last matched.
    #[default]
    Located,
    /// The scrub rewrites every located block from the others of its stripe, whatever was written since.
    RewriteData,
    /// Where the scrub cannot know, the scrub also takes the data, or the first copy, for right and makes the
    /// parity match.
    Everything,
}

/// A run of blocks of a member that did not match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScrubFinding {
    /// The member that is wrong; none if nothing tells which one.
    pub member: Option<usize>,
    /// Where: sectors of the member's device, or of all members of the group alike.
    pub sectors: SectorRange,
    /// The group.
    pub group: usize,
    /// Whether the stripe matches now.
    pub is_repaired: bool,
}

/// A scrub, as it is now, or the last one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScrubStatus {
    /// How far it is.
    pub progress: Progress,
    /// The scrub's action on what it finds.
    pub repair: ScrubRepair,
    /// How much it found.
    pub counts: ScrubFound,
    /// For each member the blocks that were wrong on it.
    pub blocks_by_member: Vec<u64>,
    /// The first findings.
    pub findings: Vec<ScrubFinding>,
}

figures! {
    /// Figures of the scrub that is running, or of the last one.
    pub struct ScrubFound {
        /// Bytes of a block.
        block_bytes: Figure::gauge(Unit::Bytes),
        /// Blocks that did not match.
        mismatched_blocks: Figure::gauge(Unit::Things),
        /// Blocks among these of which the wrong member is known.
        located_blocks: Figure::gauge(Unit::Things),
        /// Blocks that were repaired and match again.
        repaired_blocks: Figure::gauge(Unit::Things),
        /// Located blocks that were left: data whose regions were written since they last matched.
        left_blocks: Figure::gauge(Unit::Things),
        /// Stripes of which a member gave a medium error.
        unreadable_stripes: Figure::gauge(Unit::Things),
        /// Unreadable stripes that could not be computed either.
        lost_stripes: Figure::gauge(Unit::Things),
        /// Bytes of members that were left out: in need of a resync, or of a group that lacks a member.
        skipped_bytes: Figure::gauge(Unit::Bytes),
    }
}

/// The findings of the scrub.
#[derive(Clone, Default)]
struct Found {
    checked_bytes: u64,
    counts: ScrubFound,
    blocks_by_member: Vec<u64>,
    findings: Vec<ScrubFinding>,
}

/// The next job of a scrub, which goes group by group in each region.
#[derive(Clone, Copy)]
struct Cursor {
    region: Region,
    group: GroupIndex,
}

impl Cursor {
    const START: Self = Self { region: Region(0), group: GroupIndex::FIRST };

    /// The job behind this one, of so many groups.
    fn next(self, group_count: usize) -> Self {
        let next = self.group.0 + 1;
        if next < group_count {
            return Self { group: GroupIndex(next), ..self };
        }
        self.next_region()
    }

    fn next_region(self) -> Self {
        Self { region: self.region + 1, group: GroupIndex::FIRST }
    }
}

/// The work of the scrub, and what it remembers.
pub(crate) struct Scrub<D> {
    geometry: Geometry,
    block_bytes: u32,
    members: Rc<MemberSet<D>>,
    bitmap: Rc<Bitmap<D>>,
    stripes: Rc<Stripes<D>>,
    stripe_writer: Rc<StripeWriter<D>>,
    mender: Rc<Mender<D>>,
    repair: Cell<ScrubRepair>,
    cursor: Cell<Cursor>,
    found: RefCell<Found>,
}

/// A block of a stripe that does not match.
struct Mismatch<'a> {
    stripe: StripeNumber,
    slots: &'a [&'a [u8]],
    /// Where in the chunk, in bytes.
    place: Range<usize>,
}

impl Mismatch<'_> {
    fn pieces(&self) -> Vec<&[u8]> {
        self.slots.iter().map(|slot| &slot[self.place.clone()]).collect()
    }
}

/// The scrub of an array.
pub(crate) type ScrubTask<D> = Runner<D, Scrub<D>>;

impl<D: DriveControl> Work<D> for Scrub<D> {
    /// Begins with nothing found.
    fn prepare(&self) -> bool {
        self.cursor.set(Cursor::START);
        let blocks_by_member = vec![0; self.members.len()];
        self.found.replace(Found { blocks_by_member, ..Found::default() });
        true
    }

    /// The next region of a group that was written.
    fn next_job(&self) -> Option<RegionJob<D>> {
        let end = Region(self.bitmap.regions().count());
        let mut cursor = self.cursor.get();
        while cursor.region < end && !self.bitmap.is_written(cursor.region) {
            cursor = cursor.next_region();
        }
        self.cursor.set(cursor.next(self.geometry.group_count()));
        let Cursor { region, group } = cursor;
        if region >= end {
            return None;
        }
        self.bitmap.begin_check(group, region);
        Some(RegionJob::new(group, region, Vec::new(), self.members.changes()))
    }

    fn end_job(&self, job: &RegionJob<D>, is_cancelled: bool) {
        let is_whole = job.error().is_none() && !is_cancelled;
        self.bitmap.end_check(job.group, job.region, is_whole);
        let bytes =
            self.bitmap.regions().sectors_of(job.region).bytes() * self.geometry.width() as u64;
        let mut found = self.found.borrow_mut();
        found.checked_bytes += bytes;
        if job.error().is_some() {
            found.counts.skipped_bytes += bytes;
        }
    }

    fn members_of(&self, _run: &Run<D>) -> usize {
        self.geometry.width()
    }

    /// A scrub begins anew after a stop.
    async fn store_if_due(&self, _now: Nanos) -> bool {
        false
    }

    async fn pause(&self) {}

    /// Everything was gone over once: there is no more.
    async fn finish(&self) -> bool {
        false
    }

    /// Checks some rows of a group.
    async fn run(&self, run: &Run<D>) -> IoResult<()> {
        let (group, region) = (run.job.group, run.job.region);
        let _guards = self.stripes.lock_rows(group, run.rows.clone(), Access::Exclusive).await;
        let members: Vec<MemberIndex> = self.geometry.members_of(group).collect();
        let is_whole = members.iter().all(|member| self.members[*member].has_region(region));
        let needs_resync = self.bitmap.needs_resync(self.stripes.stripe_of(group, run.rows.start));
        if !is_whole || needs_resync {
            return Err(IoError::Unsupported);
        }
        if self.stripes.has_half_written(group, run.rows.clone()) {
            return self.scrub_rows(run).await;
        }
        let Ok(bufs) = self.stripes.read_rows(&members, &run.rows).await else {
            return self.scrub_rows(run).await;
        };
        let chunk_bytes = (self.geometry.chunk_sectors() * SECTOR_BYTES) as usize;
        for (index, row) in each(run.rows.clone()).enumerate() {
            let stripe = self.stripes.stripe_of(group, row);
            let place = index * chunk_bytes..(index + 1) * chunk_bytes;
            // Members that came with a further parity row do not follow the others of their group.
            let buf_of = |slot| {
                let own = self.geometry.member_of(stripe, slot);
                members.iter().position(|member| *member == own).map(|at| &bufs[at])
            };
            let slots: Vec<&[u8]> = StripeSlot::all(members.len())
                .filter_map(buf_of)
                .map(|buf| &buf[place.clone()])
                .collect();
            self.scrub_stripe(stripe, &slots).await?;
        }
        Ok(())
    }
}

impl<D: DriveControl> Scrub<D> {
    pub(crate) fn new(
        ground: &Ground<D>,
        stripes: &Rc<Stripes<D>>,
        stripe_writer: &Rc<StripeWriter<D>>,
        mender: &Rc<Mender<D>>,
    ) -> Self {
        let Ground { geometry, block_bytes, members, bitmap, .. } = ground.clone();
        Self {
            geometry,
            block_bytes,
            members,
            bitmap,
            stripes: stripes.clone(),
            stripe_writer: stripe_writer.clone(),
            mender: mender.clone(),
            repair: Cell::default(),
            cursor: Cell::new(Cursor::START),
            found: RefCell::default(),
        }
    }

    /// Says what the scrub does about blocks that do not match.
    pub(crate) fn set_repair(&self, repair: ScrubRepair) {
        self.repair.set(repair);
    }

    /// How far the scrub is, and what it found; the runner's progress from bytes done and in all.
    pub(crate) fn status(&self, progress: impl FnOnce(u64, u64) -> Progress) -> ScrubStatus {
        let found = self.found.borrow().clone();
        let total = self.bitmap.written_bytes() * self.members.len() as u64;
        let done = found.checked_bytes;
        ScrubStatus {
            progress: progress(done, total.max(done)),
            repair: self.repair.get(),
            counts: ScrubFound { block_bytes: self.block_bytes.into(), ..found.counts },
            blocks_by_member: found.blocks_by_member,
            findings: found.findings,
        }
    }

    /// The same, stripe by stripe: something cannot be read.
    async fn scrub_rows(&self, run: &Run<D>) -> IoResult<()> {
        let group = run.job.group;
        let whole = Span { start: 0, end: self.geometry.chunk_sectors() };
        for row in each(run.rows.clone()) {
            let stripe = self.stripes.stripe_of(group, row);
            let repairs = self.members.counters().get().repairs;
            self.members.check_group(group)?;
            let mended = self.mender.mend_stripe(stripe, whole, &[]).await;
            let found = &self.found;
            if mended.is_err() || self.members.counters().get().repairs != repairs {
                found.borrow_mut().counts.unreadable_stripes += 1;
            }
            let is_whole = self.members.lost_in(group) == 0;
            match mended {
                Ok(slots) if is_whole && self.geometry.parity_chunks() > 0 => {
                    let slots: Vec<&[u8]> = slots.iter().map(|slot: &Buf| &slot[..]).collect();
                    self.scrub_stripe(stripe, &slots).await?;
                }
                // The stripe was not held against its parity.
                Ok(_) => self.bitmap.note_mismatch(stripe),
                Err(_) => {
                    self.bitmap.note_mismatch(stripe);
                    found.borrow_mut().counts.lost_stripes += 1;
                }
            }
        }
        Ok(())
    }

    async fn scrub_stripe(&self, stripe: StripeNumber, slots: &[&[u8]]) -> IoResult<()> {
        if self.geometry.parity_chunks() == 0 {
            return Ok(());
        }
        let (data, parity) = slots.split_at(self.geometry.data_chunks());
        if self.stripes.code().check(data, parity) {
            let whole = Span { start: 0, end: self.geometry.chunk_sectors() };
            self.stripes
                .adopt(stripe, whole, StripeSlot::all(slots.len()).zip(slots.iter().copied()))
                .await;
            return Ok(());
        }
        let block_bytes = self.block_bytes as usize;
        for start in (0..slots[0].len()).step_by(block_bytes) {
            let mismatch = Mismatch { stripe, slots, place: start..start + block_bytes };
            let pieces = mismatch.pieces();
            let (data, parity) = pieces.split_at(self.geometry.data_chunks());
            let verdict = self.stripes.code().locate(data, parity);
            if !matches!(verdict, Verdict::Consistent)
                && self.mend_without_checksums(&mismatch).await?
            {
                continue;
            }
            match verdict {
                Verdict::Consistent => {}
                Verdict::One { member } => {
                    self.mend_located(&mismatch, StripeSlot(member)).await?;
                }
                Verdict::Unknown => self.mend_unknown(&mismatch).await?,
            }
        }
        Ok(())
    }

    /// Blocks that have no checksums are the wrong ones where those that have some go together, and tell what
    /// belongs there; whether that is so.
    async fn mend_without_checksums(&self, mismatch: &Mismatch<'_>) -> IoResult<bool> {
        let (stripe, pieces) = (mismatch.stripe, mismatch.pieces());
        let start = mismatch.place.start as u64 / SECTOR_BYTES;
        let span = Span { start, end: mismatch.place.end as u64 / SECTOR_BYTES };
        let states = vec![SlotState::Online; pieces.len()];
        let with = self.stripes.with_checksums(stripe, span, &states).await;
        let without = StripeSlot::all(pieces.len()).filter(|slot| !with.contains(slot));
        let without: Vec<StripeSlot> = without.collect();
        if without.is_empty() || without.len() > self.geometry.parity_chunks() {
            return Ok(false);
        }
        let right = self.compute(mismatch, &without);
        let mut together = pieces.clone();
        right.iter().for_each(|(slot, buf)| together[slot.0] = &buf[..]);
        let (data, parity) = together.split_at(self.geometry.data_chunks());
        if !self.stripes.code().check(data, parity) {
            return Ok(false);
        }
        let wrong = right.into_iter().filter(|(slot, buf)| pieces[slot.0] != &buf[..]);
        let wrong: Vec<_> = wrong.collect();
        let is_repaired = self.repair.get() != ScrubRepair::Nothing;
        let slots: Vec<StripeSlot> = wrong.iter().map(|(slot, _)| *slot).collect();
        if is_repaired {
            self.rewrite(mismatch, wrong).await?;
        } else {
            self.bitmap.note_mismatch(stripe);
        }
        for slot in slots {
            self.note(mismatch, Some(self.geometry.member_of(stripe, slot)), is_repaired);
        }
        Ok(true)
    }

    /// What blocks should be, by the others.
    fn compute(&self, mismatch: &Mismatch<'_>, slots: &[StripeSlot]) -> Vec<(StripeSlot, Buf)> {
        let source = |slot: StripeSlot| &mismatch.slots[slot.0][mismatch.place.clone()];
        self.stripes.reconstruct(mismatch.stripe, slots).blocks(mismatch.place.len(), source)
    }

    /// Whether a located block may be rewritten from the others.
    fn may_rewrite(&self, stripe: StripeNumber, slot: StripeSlot) -> bool {
        let is_data = slot.0 < self.geometry.data_chunks() && !self.geometry.is_mirror();
        match self.repair.get() {
            ScrubRepair::Nothing => false,
            ScrubRepair::RewriteData => true,
            ScrubRepair::Located | ScrubRepair::Everything => {
                !is_data || self.bitmap.is_unchanged(stripe)
            }
        }
    }

    /// The block of one member is wrong.
    async fn mend_located(&self, mismatch: &Mismatch<'_>, slot: StripeSlot) -> IoResult<()> {
        let is_repaired = self.may_rewrite(mismatch.stripe, slot);
        if !is_repaired {
            self.bitmap.note_mismatch(mismatch.stripe);
            let is_left = self.repair.get() != ScrubRepair::Nothing;
            self.found.borrow_mut().counts.left_blocks += u64::from(is_left);
        }
        if is_repaired && canary::is(Canary::ScrubRewritesParity) {
            self.match_parity(mismatch).await?;
        } else if is_repaired {
            self.rewrite(mismatch, self.compute(mismatch, &[slot])).await?;
        }
        let member = self.geometry.member_of(mismatch.stripe, slot);
        self.note(mismatch, Some(member), is_repaired);
        Ok(())
    }

    /// Nothing tells which block is wrong.
    async fn mend_unknown(&self, mismatch: &Mismatch<'_>) -> IoResult<()> {
        let is_repaired = self.repair.get() == ScrubRepair::Everything;
        if is_repaired {
            self.match_parity(mismatch).await?;
        } else {
            self.bitmap.note_mismatch(mismatch.stripe);
        }
        self.note(mismatch, None, is_repaired);
        Ok(())
    }

    /// Makes the parity of a block what the data are.
    async fn match_parity(&self, mismatch: &Mismatch<'_>) -> IoResult<()> {
        let pieces = mismatch.pieces();
        let (data, parity) = pieces.split_at(self.geometry.data_chunks());
        let mut right: Vec<Buf> = parity.iter().map(|_| Buf::new(mismatch.place.len())).collect();
        let mut slices: Vec<&mut [u8]> = right.iter_mut().map(|buf| &mut buf[..]).collect();
        self.stripes.code().encode(data, &mut slices, Stores::Cached);
        let wrong = right.into_iter().enumerate().filter(|(index, buf)| parity[*index] != &buf[..]);
        let wrong = wrong.map(|(index, buf)| (StripeSlot(data.len() + index), buf));
        self.rewrite(mismatch, wrong.collect()).await
    }

    fn place_on_member(&self, mismatch: &Mismatch<'_>) -> SectorRange {
        let offset = mismatch.place.start as u64 / SECTOR_BYTES;
        let at = self.geometry.member_lba(mismatch.stripe, offset);
        SectorRange::new(at, mismatch.place.len() as u64 / SECTOR_BYTES)
    }

    /// Rewrites a block in these slots, as a transaction like that of any write. The rings may still have a
    /// record of the block as it was. A replay redoes that record, and after it the one of the repair.
    async fn rewrite(
        &self,
        mismatch: &Mismatch<'_>,
        right: Vec<(StripeSlot, Buf)>,
    ) -> IoResult<()> {
        let stripe = mismatch.stripe;
        let _entered = self.bitmap.enter_to_repair(stripe).await?;
        let at = self.place_on_member(mismatch).start;
        let write = |(slot, data): (StripeSlot, Buf)| {
            let member = self.geometry.member_of(stripe, slot);
            MemberWrite { member, at, data: data.into() }
        };
        let (group, ready) = (self.geometry.group_of(stripe), right.into_iter().map(write));
        self.stripe_writer.write_ready(group, ready.collect(), Durability::Cached).await
    }

    fn note(&self, mismatch: &Mismatch<'_>, member: Option<MemberIndex>, is_repaired: bool) {
        let SectorRange { start, count } = self.place_on_member(mismatch);
        let sectors = SectorRange::new(self.members.on_device(start), count);
        let group = self.geometry.group_of(mismatch.stripe).0;
        let mut found = self.found.borrow_mut();
        found.counts.mismatched_blocks += 1;
        found.counts.repaired_blocks += u64::from(is_repaired);
        if let Some(member) = member {
            found.counts.located_blocks += 1;
            found.blocks_by_member[member.0] += 1;
        }
        let member = member.map(|member| member.0);
        let is_next = |last: &&mut ScrubFinding| {
            (last.member, last.group, last.is_repaired) == (member, group, is_repaired)
                && last.sectors.end() == sectors.start
        };
        if let Some(last) = found.findings.last_mut().filter(is_next) {
            last.sectors.count += sectors.count;
        } else if found.findings.len() < FINDINGS_MAX {
            found.findings.push(ScrubFinding { member, sectors, group, is_repaired });
        }
    }
}
