//! The arrays that are compared, and what is written to them.

use std::fmt;

use voltier_array::{Layout, Level};
use voltier_block::{KIB, MIB, Prng, SECTOR_BYTES};

/// The bytes of each member in front of its data: md's superblock and room.
pub(crate) const DATA_OFFSET_BYTES: u64 = MIB;
/// The bytes of each member that are used: 12 rows of the longest chunk, so that parity goes round.
pub(crate) const DATA_BYTES: u64 = 6 * MIB;
/// Requests written to each array.
const REQUESTS: usize = 96;

/// How md came to consistent parity before anything was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// Members of zeroes, taken as they are.
    AssumeClean,
    /// Members of noise, brought into line by md.
    Resync,
}

/// One array.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) level: Level,
    pub(crate) layout: Layout,
    pub(crate) members: usize,
    pub(crate) chunk_bytes: u64,
    pub(crate) start: Start,
}

/// One write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) offset_bytes: u64,
    bytes: u64,
    seed: u64,
}

impl Request {
    pub(crate) fn data(self) -> Vec<u8> {
        let mut data = vec![0; self.bytes as usize];
        Prng::new(self.seed).fill(&mut data);
        data
    }
}

/// The name of the case, a file's name as well.
impl fmt::Display for Case {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let start = match self.start {
            Start::AssumeClean => "",
            Start::Resync => "-resync",
        };
        let (level, layout) = self.md_names();
        write!(out, "raid{level}-{layout}-{}-{}k{start}", self.members, self.chunk_bytes / KIB)
    }
}

impl Case {
    /// The names that mdadm has for level and layout.
    pub(crate) fn md_names(&self) -> (&'static str, &'static str) {
        match (self.level, self.layout) {
            (Level::Raid0, _) => ("0", "original"),
            (Level::Raid1, _) => ("1", "none"),
            (Level::Raid5, _) => ("5", "left-symmetric"),
            (Level::Raid6, Layout::LeftSymmetric) => ("6", "left-symmetric"),
            (Level::Raid6, Layout::LeftSymmetricFixedParityRows) => ("6", "left-symmetric-6"),
            (Level::Raid10, _) => ("10", "n2"),
            (other, _) => unreachable!("md has no level {other}"),
        }
    }

    /// The case's number among all, from which its dice follow.
    fn seed(&self) -> u64 {
        self.to_string().bytes().fold(7, |sum, byte| sum * 31 % (1 << 40) + u64::from(byte))
    }

    /// Noise for a member that is to be brought into line.
    pub(crate) fn noise(&self, member: usize) -> Vec<u8> {
        let mut noise = vec![0; DATA_BYTES as usize];
        Prng::new(self.seed() ^ (member as u64 + 1) << 48).fill(&mut noise);
        noise
    }

    /// The writes, in this order: sectors, blocks, pieces over the ends of chunks, whole stripes. Some
    /// stripes are alone and some in a row, all over a volume of so many bytes.
    pub(crate) fn requests(&self, data_chunks: usize, volume_bytes: u64) -> Vec<Request> {
        let mut dice = Prng::new(self.seed());
        let stripe_bytes = self.chunk_bytes * data_chunks as u64;
        let request = |number| {
            let (unit, longest) = match number % 6 {
                0 => (SECTOR_BYTES, 4 * KIB),
                1 => (4 * KIB, 4 * KIB),
                2 => (SECTOR_BYTES, 2 * self.chunk_bytes),
                3 => (self.chunk_bytes, stripe_bytes),
                4 => (stripe_bytes, stripe_bytes),
                _ => (stripe_bytes, 3 * stripe_bytes),
            };
            let units = (volume_bytes / unit).max(1);
            let count = (1 + dice.below((longest / unit).max(1))).min(units);
            let first = dice.below(units - count + 1);
            Request { offset_bytes: first * unit, bytes: count * unit, seed: dice.next_u64() }
        };
        (0..REQUESTS).map(request).collect()
    }
}

/// Every case.
pub(crate) fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |level, layout, members, chunk_kib: u64, start| {
        cases.push(Case { level, layout, members, chunk_bytes: chunk_kib * KIB, start });
    };
    let (left, fixed) = (Layout::LeftSymmetric, Layout::LeftSymmetricFixedParityRows);
    for chunk in [4, 64, 512] {
        for members in [3, 4, 5, 8] {
            add(Level::Raid5, left, members, chunk, Start::AssumeClean);
        }
        for members in [4, 5, 6, 8, 10] {
            add(Level::Raid6, left, members, chunk, Start::AssumeClean);
        }
        for members in [4, 6] {
            add(Level::Raid6, fixed, members, chunk, Start::AssumeClean);
        }
        for members in [4, 6] {
            add(Level::Raid10, left, members, chunk, Start::AssumeClean);
        }
    }
    add(Level::Raid5, left, 4, 64, Start::Resync);
    add(Level::Raid6, left, 6, 64, Start::Resync);
    add(Level::Raid6, fixed, 5, 64, Start::Resync);
    add(Level::Raid10, left, 4, 64, Start::Resync);
    add(Level::Raid0, left, 4, 64, Start::AssumeClean);
    cases
}
