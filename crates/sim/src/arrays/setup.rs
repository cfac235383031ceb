//! What a seed of arrays draws.

use voltier_array::{
    AREA_ALIGN_BYTES, Consistency, CreateOptions, Geometry, Layout, Level, MemberLayout,
    MergePolicy, SUPERBLOCK_BYTES, Stripe,
};
use voltier_block::{Lba, MIB, Nanos, Prng, SECTOR_BYTES, SectorRange};

use crate::disk::DiskSpec;

/// Levels and members, the widest groups small enough that all choices of losses can be tried.
const SHAPES: [(Level, usize); 16] = [
    (Level::Raid0, 3),
    (Level::Raid1, 2),
    (Level::Raid1, 3),
    (Level::Raid10, 4),
    (Level::Raid5, 3),
    (Level::Raid5, 4),
    (Level::Raid6, 4),
    (Level::Raid6, 5),
    (Level::Raid7_3, 5),
    (Level::Raid7_3, 6),
    (Level::Raid50 { group: 3 }, 6),
    (Level::Raid60 { group: 4 }, 8),
    (Level::Raid70 { group: 5 }, 10),
    (Level::NPlusM { data: 2, parity: 1 }, 3),
    (Level::NPlusM { data: 3, parity: 2 }, 5),
    (Level::NPlusM { data: 2, parity: 4 }, 6),
];
/// Drives beside the members: to replace lost ones, as spares, to copy to.
const FRESH: usize = 3;
/// Devices that a journal can be on, behind all others.
const JOURNALS: usize = 2;
/// One seed in so many has its journal on a device of its own, and one in so many adds rows.
const JOURNAL_ONE_IN: u64 = 3;
const GROWS_ONE_IN: u64 = 4;
/// A region of a member of this size, in bytes.
pub(super) const REGION_BYTES: u64 = MIB;
/// Two regions and more are rare: making one zero takes longer than all else of a world.
pub(super) const REGIONS_ONE_IN: u64 = 5;

/// Mixed into the seed for what came later: none of the kept seeds draws any of it.
const LATER: u64 = 0x6c61_7465_7201;

/// What is done beside the clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Care {
    /// Nothing.
    Rest,
    /// Members fail, are replaced, copied, rebuilt, come back.
    Members,
    /// A member returns something else than was written; the scrub is to find it.
    Scrub,
}

/// A drive of the members: the first ones are the members of a new array.
#[derive(Clone, Copy, Debug)]
pub struct Drive {
    /// Its size, in bytes.
    pub bytes: u64,
    /// Its smallest unit, in bytes.
    pub block_bytes: u32,
}

/// An array, its drives, and what is done with it.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Level, layout, members, chunk, size.
    pub geometry: Geometry,
    /// What closes the write hole.
    pub consistency: Consistency,
    /// Members first, devices for journals last.
    pub drives: Vec<Drive>,
    /// Whether the journal is on a device of its own at first.
    pub has_journal_device: bool,
    /// Whether rows are added while it serves.
    pub grows: bool,
    /// How many members are added for room while it serves, one after the other.
    pub rooms: u64,
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
    /// What is done beside.
    pub care: Care,
    /// How much of it.
    pub acts: u64,
    /// One event in so many is a crash point.
    pub one_in: u64,
    /// Whether the events of the making are crash points too.
    pub from_the_start: bool,
}

impl Setup {
    /// What a seed draws, with at most so many clients and steps.
    pub fn draw(seed: u64, clients: Option<u64>, steps: Option<u64>) -> Self {
        let mut prng = Prng::new(seed ^ 0x6172_7261_7973);
        let (level, members) = *prng.pick(&SHAPES);
        let layout = *prng.pick(&[Layout::LeftSymmetric, Layout::LeftSymmetricFixedRows]);
        let chunk_bytes = *prng.pick(&[4096, 4096, 4096, 8192, 8192, 32768]);
        let rows = 2 + prng.below(6);
        let more_regions =
            if prng.one_in(REGIONS_ONE_IN) { 1 + prng.below(2) } else { 0 } * REGION_BYTES;
        let data_bytes = more_regions + rows * chunk_bytes;
        let sectors = data_bytes / SECTOR_BYTES;
        let geometry = Geometry::new(level, layout, members, chunk_bytes, sectors);
        let geometry = geometry.expect("every shape of the list is possible");
        let modes =
            [Consistency::Journal, Consistency::Journal, Consistency::Bitmap, Consistency::None];
        let consistency = *prng.pick(&modes);
        let has_journal = consistency == Consistency::Journal && geometry.parity_chunks() > 0;
        // The shortest rings.
        let journal_bytes = if has_journal { AREA_ALIGN_BYTES } else { 0 };
        let least_bytes = AREA_ALIGN_BYTES + journal_bytes + data_bytes + SUPERBLOCK_BYTES;
        let block_bytes = *prng.pick(&[512, 512, 4096]);
        let drive = |number: usize| Drive {
            bytes: least_bytes + if number == 0 { 0 } else { prng.below(3) * 4096 },
            block_bytes: if number == 1 || prng.one_in(2) { block_bytes } else { 512 },
        };
        let drives = (0..members + FRESH).map(drive).collect();
        let aging = match prng.below(4) {
            _ if !has_journal => prng.below(8),
            // To where a ring is half full, and to where it begins again.
            0 => 50 + prng.below(30),
            1 => 110 + prng.below(30),
            _ => prng.below(12),
        };
        let care = *prng.pick(&[Care::Rest, Care::Members, Care::Members, Care::Scrub]);
        let setup = Self {
            consistency,
            drives,
            has_journal_device: false,
            grows: false,
            rooms: 0,
            has_junk: prng.one_in(2),
            zeroing_discards: prng.one_in(2),
            latency_ns: *prng.pick(&[20_000, 100_000]),
            clients: 1 + prng.below(4),
            steps: 2 + prng.below(10),
            aging,
            merge: MergePolicy::default(),
            care,
            acts: 1 + prng.below(6),
            one_in: *prng.pick(&[15, 40, 80]),
            from_the_start: prng.one_in(4),
            geometry,
        };
        let most_clients = setup.clients.min(clients.unwrap_or(u64::MAX)).max(1);
        let most_steps = setup.steps.min(steps.unwrap_or(u64::MAX));
        let drawn = Self { clients: most_clients, steps: most_steps, ..setup };
        drawn.with_what_came_later(seed).with_room(seed, steps).with_merging(seed)
    }

    /// Draws with dice of their own what worlds had not at first: seeds without it are as they were.
    fn with_what_came_later(mut self, seed: u64) -> Self {
        let mut prng = Prng::new(seed ^ LATER);
        if self.has_journal() && prng.one_in(JOURNAL_ONE_IN) {
            self.has_journal_device = true;
            let block_bytes = (self.block_sectors() * SECTOR_BYTES) as u32;
            for _ in 0..JOURNALS {
                // The shortest rings: all records of all members go to one of them.
                let bytes = AREA_ALIGN_BYTES + MIB + SUPERBLOCK_BYTES + prng.below(3) * 4096;
                let block_bytes = if prng.one_in(2) { block_bytes } else { 512 };
                self.drives.push(Drive { bytes, block_bytes });
            }
        }
        if self.geometry.with_row().is_ok() && prng.one_in(GROWS_ONE_IN) {
            (self.grows, self.care) = (true, Care::Members);
        }
        self
    }

    /// Drives that can be members.
    pub(crate) fn member_drives(&self) -> usize {
        self.drives.len() - if self.has_journal_device { JOURNALS } else { 0 }
    }

    /// What the array is made with.
    pub(crate) fn options(&self) -> CreateOptions {
        let members = 0..self.geometry.member_count() as u64;
        CreateOptions {
            name: "sim".to_owned(),
            level: self.geometry.level(),
            layout: self.geometry.layout(),
            chunk_bytes: self.geometry.chunk_sectors() * SECTOR_BYTES,
            consistency: self.consistency,
            uuid: *b"an array of sims",
            member_uuids: members.map(uuid).collect(),
        }
    }

    /// A drive of the members.
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

    /// Whether what is acknowledged is durable, and nothing ever in doubt.
    pub(crate) fn has_journal(&self) -> bool {
        self.consistency == Consistency::Journal && self.geometry.parity_chunks() > 0
    }

    /// The smallest unit of the volume, in sectors.
    pub(crate) fn block_sectors(&self) -> u64 {
        let members = &self.drives[..self.geometry.member_count()];
        let largest = members.iter().map(|drive| drive.block_bytes).max();
        u64::from(largest.expect("an array has members")) / SECTOR_BYTES
    }

    /// First sectors of the places on a member's device.
    pub(crate) fn layout(&self) -> MemberLayout {
        let least = self.drives[0].bytes / SECTOR_BYTES;
        let chunk_bytes = self.geometry.chunk_sectors() * SECTOR_BYTES;
        let journal_bytes = self.journal_bytes(least);
        MemberLayout::plan(least, chunk_bytes, journal_bytes).expect("it was made to fit")
    }

    /// Bytes of a ring on a member of so many sectors.
    pub(super) fn journal_bytes(&self, member_sectors: u64) -> u64 {
        let chunk_bytes = self.geometry.chunk_sectors() * SECTOR_BYTES;
        let bytes = || MemberLayout::journal_bytes_for(member_sectors, chunk_bytes);
        if self.has_journal() { bytes() } else { 0 }
    }

    /// The region of a stripe.
    pub(crate) fn region_of(&self, stripe: Stripe) -> u64 {
        self.geometry.member_lba(stripe, 0).bytes() / REGION_BYTES
    }

    /// The stripes that are used: some at the start of each region, all of the last one; where they move,
    /// all.
    pub(crate) fn stripes(&self) -> Vec<Stripe> {
        let last = self.region_of(Stripe(self.geometry.stripe_count() - 1));
        let rows = 3 * self.geometry.group_count() as u64;
        let is_used = |stripe: &Stripe| {
            let region = self.region_of(*stripe);
            let before = stripe.0.checked_sub(rows).map(|before| self.region_of(Stripe(before)));
            self.gains_room() || region == last || before != Some(region)
        };
        (0..self.geometry.stripe_count()).map(Stripe).filter(is_used).collect()
    }

    /// The sectors of a stripe.
    pub(crate) fn sectors_of(&self, stripe: Stripe) -> SectorRange {
        let sectors = self.geometry.stripe_sectors();
        SectorRange::new(Lba(stripe.0 * sectors), sectors)
    }
}

/// Whether no group misses more of these members than it can lose.
pub(crate) fn can_lose(geometry: &Geometry, lost: u64) -> bool {
    (0..geometry.group_count()).all(|group| {
        let members = geometry.members_of(group);
        let count = members.filter(|member| lost >> member & 1 == 1).count();
        count <= geometry.parity_chunks()
    })
}

/// Every choice of members that each group can lose; the groups lose the same, turned.
pub(crate) fn losses(geometry: &Geometry) -> Vec<u64> {
    let (width, groups) = (geometry.width(), geometry.group_count());
    let most = geometry.parity_chunks() as u32;
    let choices = (0_u64..1 << width).filter(|choice| choice.count_ones() <= most);
    let everywhere = |choice: u64| {
        let lost = |group: usize| {
            let of_group: Vec<usize> = geometry.members_of(group).collect();
            let chosen = (0..width).filter(move |member| choice >> member & 1 == 1);
            chosen.map(move |member| of_group[(member + group) % width])
        };
        (0..groups).flat_map(lost).fold(0, |mask, member| mask | 1 << member)
    };
    choices.map(everywhere).collect()
}

/// A uuid of its own for each number.
pub(crate) fn uuid(number: u64) -> [u8; 16] {
    let mut uuid = *b"member .........";
    uuid[8..].copy_from_slice(&(number + 1).to_be_bytes());
    uuid
}
