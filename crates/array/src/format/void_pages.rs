//! The list of a member's pages of checksums that are void. Pure.
//!
//! A page that cannot be stored keeps what it said before. The list tells that nothing in it counts. Both
//! copies of the list say the same. The table is in `docs/formats/array.md`.

use std::collections::BTreeSet;

use voltier_block::{Lba, SECTOR_BYTES, SectorRange};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::format::checksum::{COUNTER_MAX, crc_without, seal};
use crate::format::checksum_page::{Era, Owner, PAGE_BYTES};

/// Void pages that a list has room for.
pub(crate) const VOID_PAGES_MAX: usize = 504;

const MAGIC: [u8; 8] = *b"VOLTVOID";
const CRC_AT: usize = 12;

/// The pages of a member that are void, beside those of other eras.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VoidPages {
    pub(crate) era: Era,
    /// Grows with every writing; 0 was never written.
    pub(crate) sequence: u64,
    pub(crate) pages: BTreeSet<u64>,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    era: U32,
    crc: U32,
    array_uuid: [u8; 16],
    member_uuid: [u8; 16],
    sequence: U64,
    count: U32,
    reserved: U32,
    pages: [U64; VOID_PAGES_MAX],
}

const _: () = assert!(size_of::<Raw>() == PAGE_BYTES);

/// Both copies of the list, in sectors of the device.
pub(crate) const fn place_of_list(area: Lba) -> SectorRange {
    SectorRange::new(area, 2 * PAGE_BYTES as u64 / SECTOR_BYTES)
}

impl VoidPages {
    /// Nothing is void in a new era.
    pub(crate) fn of_era(era: Era) -> Self {
        Self { era, sequence: 0, pages: BTreeSet::new() }
    }

    /// The bytes of a copy.
    ///
    /// # Panics
    /// If there are more pages than a list has room for.
    pub(crate) fn encode(&self, owner: Owner) -> Vec<u8> {
        assert!(self.pages.len() <= VOID_PAGES_MAX, "a list has room for its pages");
        let mut raw = Raw {
            magic: MAGIC,
            era: self.era.0.into(),
            crc: 0.into(),
            array_uuid: owner.array,
            member_uuid: owner.member,
            sequence: self.sequence.into(),
            count: (self.pages.len() as u32).into(),
            reserved: 0.into(),
            pages: [0.into(); VOID_PAGES_MAX],
        };
        for (into, page) in raw.pages.iter_mut().zip(&self.pages) {
            *into = (*page).into();
        }
        let mut bytes = raw.as_bytes().to_vec();
        seal(&mut bytes, CRC_AT);
        bytes
    }

    /// The list in a copy, if it is whole and of this owner.
    fn decode(bytes: &[u8], owner: Owner) -> Option<Self> {
        let raw = Raw::ref_from_bytes(bytes).ok()?;
        let is_ours = raw.magic == MAGIC
            && raw.array_uuid == owner.array
            && raw.member_uuid == owner.member
            && raw.count.get() as usize <= VOID_PAGES_MAX
            && (1..COUNTER_MAX).contains(&raw.sequence.get())
            && raw.crc == crc_without(bytes, CRC_AT);
        is_ours.then(|| Self {
            era: Era(raw.era.get()),
            sequence: raw.sequence.get(),
            pages: raw.pages[..raw.count.get() as usize].iter().map(|page| page.get()).collect(),
        })
    }

    /// The newest whole list of two copies.
    pub(crate) fn newest(copies: [Option<&[u8]>; 2], owner: Owner) -> Option<Self> {
        let whole = copies.into_iter().flatten().filter_map(|bytes| Self::decode(bytes, owner));
        whole.max_by_key(|list| list.sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: Owner = Owner { array: [1; 16], member: [2; 16] };

    #[test]
    fn a_list_is_read_as_it_was_written_from_either_copy() {
        let pages = (0..VOID_PAGES_MAX as u64).map(|page| page * 3).collect();
        let list = VoidPages { era: Era(0x200), sequence: 5, pages };
        let older = VoidPages { sequence: 4, ..VoidPages::of_era(Era(0x200)) };
        let (new, old) = (list.encode(OWNER), older.encode(OWNER));
        for copies in
            [[Some(&new[..]), Some(&old[..])], [None, Some(&new)], [Some(&old), Some(&new)]]
        {
            assert_eq!(VoidPages::newest(copies, OWNER), Some(list.clone()));
        }
        let other = Owner { member: [3; 16], ..OWNER };
        assert_eq!(VoidPages::newest([Some(&new), Some(&old)], other), None);
        assert_eq!(VoidPages::newest([Some(&[0; PAGE_BYTES]), None], OWNER), None);
    }

    #[test]
    fn a_list_that_is_damaged_or_longer_than_its_room_is_none() {
        let list = VoidPages { era: Era(1), sequence: 5, pages: [7].into() };
        let good = list.encode(OWNER);
        for byte in (0..PAGE_BYTES).step_by(53) {
            let mut torn = good.clone();
            torn[byte] ^= 4;
            assert_eq!(VoidPages::newest([Some(&torn), None], OWNER), None, "byte {byte}");
        }
        let mut long = good;
        long[56..60].copy_from_slice(&505_u32.to_le_bytes());
        seal(&mut long, CRC_AT);
        assert_eq!(VoidPages::newest([Some(&long), None], OWNER), None);
    }
}
