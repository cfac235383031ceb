//! Pages of checksums of a member's blocks. Pure.
//!
//! Each page has two copies, written in turns. A write that a power cut tears leaves the other copy, which
//! lacks only checksums of regions that are dirty. The tables are in `docs/formats/array.md`.

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

/// Bytes of the pages of a data area of so many sectors.
pub(crate) const fn area_bytes(data_sectors: u64) -> u64 {
    let blocks = data_sectors.div_ceil(SUMMED_SECTORS);
    blocks.div_ceil(PAGE_SUMS) * COPIES * PAGE_BYTES as u64
}

/// Both copies of a page, in sectors of the device.
pub(crate) const fn place_of(area: Lba, page: u64) -> SectorRange {
    let sectors = COPIES * PAGE_BYTES as u64 / SECTOR_BYTES;
    SectorRange::new(area.plus(page * sectors), sectors)
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

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    reserved: U32,
    crc: U32,
    array_uuid: [u8; 16],
    member_uuid: [u8; 16],
    index: U64,
    sequence: U64,
    sums: [U32; PAGE_SUMS as usize],
}

const _: () = assert!(size_of::<Raw>() == PAGE_BYTES);

/// A page as a copy of it has it: the number of the writing, and the checksums.
pub(crate) struct Copy {
    pub(crate) sequence: u64,
    pub(crate) sums: Box<[u32]>,
}

/// The bytes of a copy.
pub(crate) fn encode(owner: Owner, index: u64, sequence: u64, sums: &[u32]) -> Vec<u8> {
    let mut raw = Raw {
        magic: MAGIC,
        reserved: 0.into(),
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
        sequence: raw.sequence.get(),
        sums: raw.sums.iter().map(|sum| sum.get()).collect(),
    })
}

/// The newest whole copy of a page among these.
pub(crate) fn newest(copies: &[Option<&[u8]>], owner: Owner, index: u64) -> Option<Copy> {
    let whole = copies.iter().flatten().filter_map(|bytes| decode(bytes, owner, index));
    whole.max_by_key(|copy| copy.sequence)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: Owner = Owner { array: [1; 16], member: [2; 16] };

    #[test]
    fn of_two_copies_the_newest_whole_one_counts() {
        let old = encode(OWNER, 3, 7, &[5; PAGE_SUMS as usize]);
        let new = encode(OWNER, 3, 8, &[6; PAGE_SUMS as usize]);
        let sum = |copies: &[Option<&[u8]>]| newest(copies, OWNER, 3).map(|copy| copy.sums[1007]);
        assert_eq!(sum(&[Some(&new), Some(&old)]), Some(6));
        for byte in (0..PAGE_BYTES).step_by(61) {
            let mut torn = new.clone();
            torn[byte] ^= 4;
            assert_eq!(sum(&[Some(&torn), Some(&old)]), Some(5), "byte {byte}");
        }
        assert_eq!(sum(&[None, Some(&new)]), Some(6));
        assert_eq!(sum(&[None, None]), None);
        let other = Owner { member: [3; 16], ..OWNER };
        assert!(newest(&[Some(&new)], other, 3).is_none(), "of another member");
        assert!(newest(&[Some(&new)], OWNER, 4).is_none(), "of another page");
        assert!(newest(&[Some(&[0; PAGE_BYTES])], OWNER, 3).is_none());
    }

    #[test]
    fn copies_take_turns_and_pages_do_not_overlap() {
        let area = Lba(2048);
        assert_eq!(copy_lba(area, 0, 2), Lba(2048));
        assert_eq!(copy_lba(area, 0, 3), Lba(2056));
        assert_eq!(copy_lba(area, 1, 4), Lba(2064));
        assert_eq!(area_bytes(8), 8192);
        assert_eq!(area_bytes(8 * PAGE_SUMS + 1), 16384);
        assert_ne!(sum_of(&[0; SUMMED_BYTES]), UNKNOWN);
    }
}
