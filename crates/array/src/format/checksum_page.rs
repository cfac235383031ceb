//! Pages of checksums of a member's blocks. Pure.
//!
//! Each page has two copies, written in turns: their numbers differ by one. Only both together say something.
//! A copy whose neighbour is damaged may be the older one, and would accuse blocks that were written since.
//! The tables are in `docs/formats/array.md`.

use voltier_block::{Lba, SECTOR_BYTES, SectorRange};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::format::checksum::{COUNTER_MAX, crc_without, seal};

/// Bytes of a page.
pub(crate) const PAGE_BYTES: usize = 4096;
/// Bytes of a block that has a checksum.
pub(crate) const SUMMED_BYTES: usize = 4096;
/// Sectors of such a block.
pub(crate) const SUMMED_SECTORS: u64 = SUMMED_BYTES as u64 / SECTOR_BYTES;
/// Checksums of a page.
pub(crate) const PAGE_SUMS: u64 = 1008;
/// Copies of a page, one behind the other.
const COPIES: u64 = 2;
/// No checksum is known of a block.
pub(crate) const UNKNOWN: u32 = 0;

const MAGIC: [u8; 8] = *b"VOLTSUMS";
const CRC_AT: usize = 12;

/// The checksum of a block: never [`UNKNOWN`].
#[inline]
pub(crate) fn sum_of(block: &[u8]) -> u32 {
    kept(crc_fast::crc32_iscsi(block))
}

/// A CRC as it is kept: the one that means nothing is known has another one in its place.
#[inline]
pub(crate) const fn kept(crc: u32) -> u32 {
    if crc == UNKNOWN { u32::MAX } else { crc }
}

/// Bytes of the list of void pages and of the pages of a data area of so many sectors.
pub(crate) const fn area_bytes(data_sectors: u64) -> u64 {
    let blocks = data_sectors.div_ceil(SUMMED_SECTORS);
    (1 + blocks.div_ceil(PAGE_SUMS)) * COPIES * PAGE_BYTES as u64
}

/// Both copies of a page, in sectors of the device. The list of void pages is in front of the pages.
pub(crate) const fn place_of(area: Lba, page: u64) -> SectorRange {
    let sectors = COPIES * PAGE_BYTES as u64 / SECTOR_BYTES;
    SectorRange::new(area.plus((1 + page) * sectors), sectors)
}

/// Where the writing of this number of a page goes.
pub(crate) const fn copy_lba(area: Lba, page: u64, sequence: u64) -> Lba {
    place_of(area, page).start.plus(sequence % COPIES * (PAGE_BYTES as u64 / SECTOR_BYTES))
}

/// The array and the member whose pages are believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) array: [u8; 16],
    pub(crate) member: [u8; 16],
}

/// The pages of another era are void. A member begins a new era when it does not know which pages are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Era(pub(crate) u32);

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    era: U32,
    crc: U32,
    array_uuid: [u8; 16],
    member_uuid: [u8; 16],
    index: U64,
    sequence: U64,
    sums: [U32; PAGE_SUMS as usize],
}

const _: () = assert!(size_of::<Raw>() == PAGE_BYTES);

/// A copy of a page: its era, the number of the writing, and the checksums.
struct Copy {
    era: Era,
    sequence: u64,
    sums: Box<[u32]>,
}

/// The content of a page, as its copies have it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// The highest number of a writing that was seen; 0 for none.
    pub(crate) sequence: u64,
    /// None if nothing is known.
    pub(crate) sums: Option<Box<[u32]>>,
}

/// The bytes of a copy.
pub(crate) fn encode(owner: Owner, era: Era, index: u64, sequence: u64, sums: &[u32]) -> Vec<u8> {
    let mut raw = Raw {
        magic: MAGIC,
        era: era.0.into(),
        crc: 0.into(),
        array_uuid: owner.array,
        member_uuid: owner.member,
        index: index.into(),
        sequence: sequence.into(),
        sums: [0.into(); PAGE_SUMS as usize],
    };
    for (into, sum) in raw.sums.iter_mut().zip(sums) {
        *into = (*sum).into();
    }
    let mut bytes = raw.as_bytes().to_vec();
    seal(&mut bytes, CRC_AT);
    bytes
}

/// A copy, if it is whole and this page of this owner.
fn decode(bytes: &[u8], owner: Owner, index: u64) -> Option<Copy> {
    let raw = Raw::ref_from_bytes(bytes).ok()?;
    let is_ours = raw.magic == MAGIC
        && raw.array_uuid == owner.array
        && raw.member_uuid == owner.member
        && raw.index.get() == index
        && (1..COUNTER_MAX).contains(&raw.sequence.get())
        && raw.crc == crc_without(bytes, CRC_AT);
    is_ours.then(|| Copy {
        era: Era(raw.era.get()),
        sequence: raw.sequence.get(),
        sums: raw.sums.iter().map(|sum| sum.get()).collect(),
    })
}

/// The content of a page whose copies are each in their place. The copies say nothing of the blocks unless
/// both are whole, of this era, and of two writings one after the other.
pub(crate) fn found_in(copies: [Option<&[u8]>; 2], owner: Owner, era: Era, index: u64) -> Found {
    let in_place = |(place, bytes): (u64, Option<&[u8]>)| {
        decode(bytes?, owner, index).filter(|copy| copy.sequence % COPIES == place)
    };
    let [first, second] = copies;
    let pair = [in_place((0, first)), in_place((1, second))];
    let sequence = pair.iter().flatten().map(|copy| copy.sequence).max().unwrap_or(0);
    let sums = match pair {
        [Some(one), Some(other)] if one.sequence.abs_diff(other.sequence) == 1 => {
            let are_of_era = one.era == era && other.era == era;
            let newest = if one.sequence == sequence { one } else { other };
            are_of_era.then_some(newest.sums)
        }
        _ => None,
    };
    Found { sequence, sums }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: Owner = Owner { array: [1; 16], member: [2; 16] };
    const ERA: Era = Era(9);

    fn page(sequence: u64, sum: u32) -> Vec<u8> {
        encode(OWNER, ERA, 3, sequence, &[sum; PAGE_SUMS as usize])
    }

    fn sum_in(first: Option<&[u8]>, second: Option<&[u8]>) -> (u64, Option<u32>) {
        let found = found_in([first, second], OWNER, ERA, 3);
        (found.sequence, found.sums.map(|sums| sums[1007]))
    }

    #[test]
    fn of_two_whole_copies_the_newest_counts_and_one_alone_says_nothing() {
        let (old, new) = (page(7, 5), page(8, 6));
        assert_eq!(sum_in(Some(&new), Some(&old)), (8, Some(6)));
        assert_eq!(sum_in(Some(&page(6, 4)), Some(&old)), (7, Some(5)));
        for byte in (0..PAGE_BYTES).step_by(61) {
            let mut torn = new.clone();
            torn[byte] ^= 4;
            assert_eq!(sum_in(Some(&torn), Some(&old)), (7, None), "byte {byte}");
        }
        assert_eq!(sum_in(Some(&new), None), (8, None), "the other one may be newer");
        assert_eq!(sum_in(None, None), (0, None));
        assert_eq!(sum_in(Some(&page(10, 6)), Some(&old)), (10, None), "no pair");
        assert_eq!(sum_in(Some(&old), Some(&new)), (0, None), "not in their places");
    }

    #[test]
    fn copies_of_others_say_nothing() {
        let (old, new) = (page(7, 5), page(8, 6));
        let copies = || [Some(&new[..]), Some(&old[..])];
        let other = Owner { member: [3; 16], ..OWNER };
        assert_eq!(found_in(copies(), other, ERA, 3), Found::default(), "of another member");
        assert_eq!(found_in(copies(), OWNER, ERA, 4), Found::default(), "of another page");
        let of_other_era = found_in(copies(), OWNER, Era(8), 3);
        assert_eq!((of_other_era.sequence, of_other_era.sums), (8, None));
        let mixed = encode(OWNER, Era(8), 3, 8, &[6; PAGE_SUMS as usize]);
        assert_eq!(sum_in(Some(&mixed), Some(&old)), (8, None));
        assert_eq!(sum_in(Some(&[0; PAGE_BYTES]), Some(&old)), (7, None));
    }

    #[test]
    fn copies_take_turns_and_pages_do_not_overlap() {
        let area = Lba(2048);
        assert_eq!(copy_lba(area, 0, 2), Lba(2064));
        assert_eq!(copy_lba(area, 0, 3), Lba(2072));
        assert_eq!(copy_lba(area, 1, 4), Lba(2080));
        assert_eq!(area_bytes(8), 16384);
        assert_eq!(area_bytes(8 * PAGE_SUMS + 1), 24576);
        assert_ne!(sum_of(&[0; SUMMED_BYTES]), UNKNOWN);
    }
}
