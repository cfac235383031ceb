//! What a seed of arrays draws.

use voltier_array::{Geometry, JournalPlace, Layout, Level, journal_sectors_min};
use voltier_block::{Lba, Nanos, Prng, SECTOR_BYTES};

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
/// Sectors of a block of the largest kind: where the stand-in superblock is.
const BLOCK_SECTORS: u64 = 8;

/// What happens to a member while it serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Harm {
    /// Every request fails.
    Gone,
    /// Somebody takes it out of service.
    Failed,
    /// Writes to some sectors of its data fail.
    DataWrites,
    /// Writes to some sectors of its ring fail.
    RingWrites,
    /// Its superblock cannot be written.
    RegisterWrites,
    /// Flushes fail.
    Flushes,
    /// Reads of some sectors of its data fail.
    Reads,
}

const HARMS: [Harm; 7] = [
    Harm::Gone,
    Harm::Failed,
    Harm::DataWrites,
    Harm::RingWrites,
    Harm::RegisterWrites,
    Harm::Flushes,
    Harm::Reads,
];

/// An array, its drives, and what is done with it.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Level, layout, members, chunk, size.
    pub geometry: Geometry,
    /// Length of each ring.
    pub ring_sectors: u64,
    /// Smallest unit of the drives, in bytes.
    pub block_bytes: u32,
    /// Whether what is discarded reads as zeroes.
    pub zeroing_discards: bool,
    /// Shortest time of a request.
    pub latency_ns: Nanos,
    /// Clients at once.
    pub clients: u64,
    /// Requests of each.
    pub steps: u64,
    /// Harm to members, and after how many nanoseconds.
    pub harms: Vec<(usize, Harm, Nanos)>,
    /// One event in so many is a crash point.
    pub one_in: u64,
}

impl Setup {
    /// What a seed draws, with at most so many clients and steps.
    pub fn draw(seed: u64, clients: Option<u64>, steps: Option<u64>) -> Self {
        let mut prng = Prng::new(seed ^ 0x6172_7261_7973);
        let (level, members) = *prng.pick(&SHAPES);
        let layout = *prng.pick(&[Layout::LeftSymmetric, Layout::LeftSymmetricFixedRows]);
        let chunk_bytes = *prng.pick(&[4096, 4096, 8192]);
        let rows = 2 + prng.below(6);
        let sectors = rows * chunk_bytes / SECTOR_BYTES;
        let geometry = Geometry::new(level, layout, members, chunk_bytes, sectors);
        let geometry = geometry.expect("every shape of the list is possible");
        let more_blocks = *prng.pick(&[0, 0, 3, 10, 40]);
        let ring_sectors = journal_sectors_min(&geometry) + more_blocks * BLOCK_SECTORS;
        let mut setup = Self {
            ring_sectors,
            block_bytes: *prng.pick(&[512, 512, 4096]),
            zeroing_discards: prng.one_in(2),
            latency_ns: *prng.pick(&[20_000, 100_000]),
            clients: 1 + prng.below(4),
            steps: 2 + prng.below(10),
            harms: Vec::new(),
            one_in: *prng.pick(&[10, 40, 80]),
            geometry,
        };
        setup.draw_harms(&mut prng);
        setup.clients = setup.clients.min(clients.unwrap_or(u64::MAX)).max(1);
        setup.steps = setup.steps.min(steps.unwrap_or(u64::MAX));
        setup
    }

    /// At most as many members of a group as it can lose.
    fn draw_harms(&mut self, prng: &mut Prng) {
        let rows = self.geometry.parity_chunks();
        if rows == 0 || prng.one_in(2) {
            return;
        }
        for group in 0..self.geometry.group_count() {
            let mut members: Vec<usize> = self.geometry.members_of(group).collect();
            for _ in 0..prng.below(rows as u64 + 1) {
                let member = members.remove(prng.below(members.len() as u64) as usize);
                let at = prng.below(60) * self.latency_ns;
                self.harms.push((member, *prng.pick(&HARMS), at));
            }
        }
    }

    /// Where the stand-in superblock of each drive is.
    pub(crate) fn register_at(&self) -> Lba {
        Lba(self.geometry.member_sectors().next_multiple_of(BLOCK_SECTORS))
    }

    /// Where the ring of each drive is.
    pub(crate) fn ring(&self) -> JournalPlace {
        let start = self.register_at().plus(BLOCK_SECTORS);
        JournalPlace { start, sectors: self.ring_sectors }
    }

    /// The drive of a member.
    pub(crate) fn disk(&self, member: usize) -> DiskSpec {
        DiskSpec {
            number: member as u64 + 3,
            bytes: self.ring().start.plus(self.ring_sectors).bytes(),
            block_bytes: self.block_bytes,
            latency_ns: self.latency_ns,
            model: None,
            lies: false,
            zeroing_discards: self.zeroing_discards,
            stripe: None,
        }
    }

    /// Whether no group misses more of these members than it can lose.
    pub(crate) fn can_lose(&self, lost: u64) -> bool {
        (0..self.geometry.group_count()).all(|group| {
            let members = self.geometry.members_of(group);
            let count = members.filter(|member| lost >> member & 1 == 1).count();
            count <= self.geometry.parity_chunks()
        })
    }

    /// Every choice of members that each group can lose; the groups lose the same, turned.
    pub(crate) fn losses(&self) -> Vec<u64> {
        let (width, groups) = (self.geometry.width(), self.geometry.group_count());
        let most = self.geometry.parity_chunks() as u32;
        let choices = (0_u64..1 << width).filter(|choice| choice.count_ones() <= most);
        let everywhere = |choice: u64| {
            let lost = |group: usize| {
                let members = (0..width).filter(move |member| choice >> member & 1 == 1);
                members.map(move |member| group * width + (member + group) % width)
            };
            (0..groups).flat_map(lost).fold(0, |mask, member| mask | 1 << member)
        };
        choices.map(everywhere).collect()
    }
}
