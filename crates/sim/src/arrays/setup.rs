//! The setup of a seed of arrays.

use std::iter::successors;

use voltier_array::{
    Consistency, CreateOptions, Geometry, GroupIndex, Integrity, MemberIndex, MemberLayout,
    MergeMode, MergePolicy, StripeNumber,
};
use voltier_block::{Lba, MIB, Nanos, SECTOR_BYTES, SectorRange};

use crate::arrays::sets::MemberSet;
use crate::disk_spec::DiskSpec;

/// Devices that a journal can be on, behind all others.
pub(super) const JOURNALS: usize = 2;
/// The identity of the array of a world.
pub(super) const ARRAY_UUID: [u8; 16] = *b"an array of sims";
/// A region of a member of this size, in bytes.
pub(super) const REGION_BYTES: u64 = MIB;
/// The care that members get beside the clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Care {
    /// Nothing.
    Rest,
    /// Members fail, are replaced, copied, rebuilt, come back.
    Members,
    /// A member returns something else than was written; the scrub is to find it.
    Scrub,
}

/// A drive of the fixture: the first ones are the members of a new array.
#[derive(Clone, Copy, Debug)]
pub struct Drive {
    /// The size, in bytes.
    pub bytes: u64,
    /// The smallest unit, in bytes.
    pub block_bytes: u32,
}

/// An array, its drives, and what is done with it.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Level, layout, members, chunk, size.
    pub geometry: Geometry,
    /// The mechanism that closes the write hole.
    pub consistency: Consistency,
    /// The checksums that members keep.
    pub integrity: Integrity,
    /// Members first, devices for journals last.
    pub drives: Vec<Drive>,
    /// Whether the journal is on a device of its own at first.
    pub has_journal_device: bool,
    /// Whether rows are added while it serves.
    pub grows: bool,
    /// How many members are added for capacity while the array serves, one after the other.
    pub expansions: u64,
    /// Whether the drives hold something before.
    pub has_junk: bool,
    /// Whether what is discarded reads as zeroes.
    pub zeroing_discards: bool,
    /// Shortest time of a request.
    pub latency_ns: Nanos,
    /// Clients at once.
    pub clients: u64,
    /// Requests of each.
    pub steps: u64,
    /// Writes before the first crash point: they take the rings round.
    pub aging: u64,
    /// How small writes wait for each other.
    pub merge: MergePolicy,
    /// The care that members get.
    pub care: Care,
    /// How much of it.
    pub acts: u64,
    /// One event in so many is a crash point.
    pub one_in: u64,
    /// Whether the events of the making are crash points too.
    pub from_the_start: bool,
    /// Whether drives hang while members are taken care of.
    pub hangs: bool,
}

impl Setup {
    /// Drives that can be members.
    pub(crate) fn member_drives(&self) -> usize {
        self.drives.len() - if self.has_journal_device { JOURNALS } else { 0 }
    }

    /// The options that the array is made with.
    pub(crate) fn options(&self) -> CreateOptions {
        let members = 0..self.geometry.member_count() as u64;
        CreateOptions {
            name: "sim".to_owned(),
            level: self.geometry.level(),
            layout: self.geometry.layout(),
            chunk_bytes: self.geometry.chunk_sectors() * SECTOR_BYTES,
            consistency: self.consistency,
            integrity: self.integrity,
            uuid: ARRAY_UUID,
            member_uuids: members.map(uuid).collect(),
        }
    }

    /// A drive of the fixture.
    pub(crate) fn disk(&self, number: usize) -> DiskSpec {
        DiskSpec {
            number: number as u64 + 3,
            bytes: self.drives[number].bytes,
            block_bytes: self.drives[number].block_bytes,
            latency_ns: self.latency_ns,
            model: None,
            lies: false,
            zeroing_discards: self.zeroing_discards,
            stripe: None,
        }
    }

    /// Whether what is acknowledged is durable, and nothing ever needs a resync.
    pub(crate) fn has_journal(&self) -> bool {
        self.consistency == Consistency::Journal && self.geometry.parity_chunks() > 0
    }

    /// Whether members keep checksums of their blocks.
    pub(crate) fn has_checksums(&self) -> bool {
        self.integrity != Integrity::None
    }

    /// The smallest unit of the volume, in sectors.
    pub(crate) fn block_sectors(&self) -> u64 {
        let members = &self.drives[..self.geometry.member_count()];
        let largest = members.iter().map(|drive| drive.block_bytes).max();
        let least = if self.has_checksums() { 4096 } else { 0 };
        u64::from(largest.expect("an array has members").max(least)) / SECTOR_BYTES
    }

    /// First sectors of the places on a member's device.
    pub(crate) fn layout(&self) -> MemberLayout {
        let least = self.drives[0].bytes / SECTOR_BYTES;
        let chunk_bytes = self.geometry.chunk_sectors() * SECTOR_BYTES;
        let journal_bytes = self.journal_bytes(least);
        MemberLayout::plan(least, chunk_bytes, journal_bytes, self.integrity)
            .expect("it was made to fit")
    }

    /// Bytes of a ring on a member of so many sectors.
    pub(super) fn journal_bytes(&self, member_sectors: u64) -> u64 {
        let chunk_bytes = self.geometry.chunk_sectors() * SECTOR_BYTES;
        let bytes = || MemberLayout::journal_bytes_for(member_sectors, chunk_bytes);
        if self.has_journal() { bytes() } else { 0 }
    }

    /// The size that the volume may come to have.
    pub(crate) fn most_sectors(&self) -> u64 {
        self.shapes().iter().map(Geometry::sectors).max().expect("one at least")
    }

    /// The shapes that stripes of the volume may have, as far as their data go, by the members added.
    pub(crate) fn shapes(&self) -> Vec<Geometry> {
        let mut shapes = vec![self.geometry.clone()];
        for before in 0..self.expansions as usize {
            shapes.push(shapes[before].with_member().expect("it was asked"));
        }
        shapes
    }

    /// Whether members are added for capacity.
    pub(crate) fn expands(&self) -> bool {
        self.expansions > 0
    }

    /// The shape that this one comes from while it moves: with rows that were added before.
    pub(crate) fn shape_before(&self, after: &Geometry) -> Geometry {
        let with_parities =
            |shape| successors(Some(shape), |it: &Geometry| it.with_parity().ok()).take(8);
        let mut shapes = self.shapes().into_iter().flat_map(with_parities);
        let found = shapes.find(|shape| shape.with_member().as_ref() == Ok(after));
        found.expect("it came from somewhere")
    }

    /// Whether small writes wait for each other.
    pub(crate) fn merges(&self) -> bool {
        self.merge.mode != MergeMode::Off
    }

    /// The region of a stripe.
    pub(crate) fn region_of(&self, stripe: StripeNumber) -> u64 {
        self.geometry.member_lba(stripe, 0).bytes() / REGION_BYTES
    }

    /// The stripes that are used: some at the start of each region, all of the last one; where they move,
    /// all.
    pub(crate) fn stripes(&self) -> Vec<StripeNumber> {
        let last = self.region_of(StripeNumber(self.geometry.stripe_count() - 1));
        let rows = 3 * self.geometry.group_count() as u64;
        let is_used = |stripe: &StripeNumber| {
            let region = self.region_of(*stripe);
            let before =
                stripe.0.checked_sub(rows).map(|before| self.region_of(StripeNumber(before)));
            self.expands() || region == last || before != Some(region)
        };
        (0..self.geometry.stripe_count()).map(StripeNumber).filter(is_used).collect()
    }

    /// The sectors of a stripe.
    pub(crate) fn sectors_of(&self, stripe: StripeNumber) -> SectorRange {
        let sectors = self.geometry.stripe_sectors();
        SectorRange::new(Lba(stripe.0 * sectors), sectors)
    }
}

/// Whether no group misses more of these members than it can lose.
pub(crate) fn can_lose(geometry: &Geometry, lost: MemberSet) -> bool {
    geometry.groups().all(|group| {
        let members = geometry.members_of(group);
        let count = members.filter(|member| lost.has(member.0)).count();
        count <= geometry.parity_chunks()
    })
}

/// Every choice of members that each group can lose; the groups lose the same, turned.
pub(crate) fn losses(geometry: &Geometry) -> Vec<MemberSet> {
    let (width, groups) = (geometry.width(), geometry.group_count());
    let most = geometry.parity_chunks() as u32;
    let choices = (0_u64..1 << width).map(MemberSet::of_bits);
    let choices = choices.filter(|choice| choice.count() <= most);
    let everywhere = |choice: MemberSet| {
        let lost = |group: usize| {
            let of_group: Vec<MemberIndex> = geometry.members_of(GroupIndex(group)).collect();
            choice.iter().map(move |member| of_group[(member + group) % width].0)
        };
        (0..groups).flat_map(lost).collect()
    };
    choices.map(everywhere).collect()
}

/// A uuid of its own for each number.
pub(crate) fn uuid(number: u64) -> [u8; 16] {
    let mut uuid = *b"member .........";
    uuid[8..].copy_from_slice(&(number + 1).to_be_bytes());
    uuid
}
