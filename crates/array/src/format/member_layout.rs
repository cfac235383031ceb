//! Where everything is on a member of an array with durable state. Pure.
//!
//! ```text
//! 0        superblock, copy A (4 KiB)        64 KiB   region map, up to 512 KiB
//! 512 KiB  kept during a move to more members
//! 1 MiB    journal, if there is one          then     checksums, if the members keep them
//! then     data: the chunks, on whole MiB
//! end      superblock, copy B: the last whole 4 KiB of the device
//! ```
//!
//! Map, journal, checksums and data are at the same place on all members. Copy B is at the end of each,
//! whatever its size. The tables are in `docs/formats/array.md`.

use voltier_block::{KIB, Lba, MIB, SECTOR_BYTES, SectorRange};

use crate::format::checksum_page::area_bytes;
use crate::format::integrity::Integrity;

/// Bytes of a superblock copy: each starts at a multiple of this.
pub const SUPERBLOCK_BYTES: u64 = 4 * KIB;
/// Byte offset of the region map.
pub const MAP_START_BYTES: u64 = 64 * KIB;
/// Byte offset of what members keep of a move to more members: behind the longest region map.
pub(crate) const BACKUP_START_BYTES: u64 = 512 * KIB;
/// Journal and data begin at whole multiples of this, and the map ends before the first.
pub const AREA_ALIGN_BYTES: u64 = MIB;
/// Smallest journal of a member, in bytes.
pub const JOURNAL_BYTES_MIN: u64 = MIB;
/// Largest journal of a member that is made unasked, in bytes.
pub const JOURNAL_BYTES_MAX: u64 = 64 * MIB;
/// A journal has room for so many chunks at least.
const JOURNAL_CHUNKS_MIN: u64 = 8;
/// A journal takes this part of a member, within the limits above.
const JOURNAL_PART: u64 = 128;

/// The places on a member, in sectors of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberLayout {
    /// The region map.
    pub map: SectorRange,
    /// The ring of the journal; empty without one.
    pub journal: SectorRange,
    /// The pages of checksums; empty without them.
    pub checksums: SectorRange,
    /// The chunks: sector 0 of [`Geometry`](crate::Geometry)'s members is the first of these.
    pub data: SectorRange,
}

impl MemberLayout {
    /// The places on members the smallest of which has `device_sectors` sectors. The data are whole
    /// chunks of `chunk_bytes` (a power of two up to 1 MiB) behind a journal and the checksums. The journal
    /// has `journal_bytes`, a multiple of [`AREA_ALIGN_BYTES`] and zero for none. `None` if not one chunk
    /// has room.
    ///
    /// # Panics
    /// If the journal is not a multiple.
    pub fn plan(
        device_sectors: u64,
        chunk_bytes: u64,
        journal_bytes: u64,
        integrity: Integrity,
    ) -> Option<Self> {
        assert!(journal_bytes.is_multiple_of(AREA_ALIGN_BYTES), "the journal has whole areas");
        let sums_start = AREA_ALIGN_BYTES.checked_add(journal_bytes)? / SECTOR_BYTES;
        let chunk_sectors = chunk_bytes / SECTOR_BYTES;
        let room = Self::superblock_lbas(device_sectors)[1].0.checked_sub(sums_start)?;
        // Room for the checksums of all that is there is more than enough: the rest is what the data get.
        let sums_sectors = match integrity {
            Integrity::None => 0,
            Integrity::Crc32c => Self::checksum_sectors(room),
        };
        let room = room.checked_sub(sums_sectors)?;
        let data_sectors = room - room % chunk_sectors;
        (data_sectors > 0).then(|| Self {
            map: SectorRange::from_bytes(MAP_START_BYTES, AREA_ALIGN_BYTES - MAP_START_BYTES),
            journal: SectorRange::from_bytes(AREA_ALIGN_BYTES, journal_bytes),
            checksums: SectorRange::new(Lba(sums_start), sums_sectors),
            data: SectorRange::new(Lba(sums_start + sums_sectors), data_sectors),
        })
    }

    /// Sectors of an area of checksums for so many sectors of data.
    pub(crate) const fn checksum_sectors(data_sectors: u64) -> u64 {
        area_bytes(data_sectors).next_multiple_of(AREA_ALIGN_BYTES) / SECTOR_BYTES
    }

    /// Whether the members keep checksums.
    pub const fn integrity(&self) -> Integrity {
        if self.checksums.is_empty() { Integrity::None } else { Integrity::Crc32c }
    }

    /// The journal that members of this size get unasked, in bytes: 1/128 of the smallest, from 1 to
    /// 64 MiB, and room for eight chunks in any case.
    pub fn journal_bytes_for(device_sectors: u64, chunk_bytes: u64) -> u64 {
        let part = device_sectors.saturating_mul(SECTOR_BYTES) / JOURNAL_PART;
        let least = JOURNAL_BYTES_MIN.max(JOURNAL_CHUNKS_MIN * chunk_bytes);
        part.clamp(least, JOURNAL_BYTES_MAX).next_multiple_of(AREA_ALIGN_BYTES)
    }

    /// Where the two copies of the superblock are on a device of so many sectors. On a device that is too
    /// small for two, both are at the same place.
    pub const fn superblock_lbas(device_sectors: u64) -> [Lba; 2] {
        let copy_sectors = SUPERBLOCK_BYTES / SECTOR_BYTES;
        [Lba(0), Lba((device_sectors / copy_sectors).saturating_sub(1) * copy_sectors)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_follow_each_other_and_end_before_the_second_copy() {
        for device_bytes in [3 * MIB, 3 * MIB + 4097, 64 * MIB, 20_000_000 * MIB + 512] {
            for chunk_bytes in [4 * KIB, 64 * KIB] {
                let sectors = device_bytes / SECTOR_BYTES;
                let journal_bytes = MemberLayout::journal_bytes_for(sectors, chunk_bytes);
                let kinds = Integrity::ALL;
                let all =
                    [0, journal_bytes].into_iter().flat_map(|it| kinds.map(|kind| (it, kind)));
                for (journal_bytes, integrity) in all {
                    let layout = MemberLayout::plan(sectors, chunk_bytes, journal_bytes, integrity);
                    if device_bytes < 4 * MIB && integrity == Integrity::Crc32c {
                        continue;
                    }
                    let layout = layout.unwrap();
                    assert_eq!(layout.integrity(), integrity);
                    assert_eq!(layout.map.start.bytes(), 64 * KIB);
                    assert_eq!(layout.map.end(), layout.journal.start);
                    assert_eq!(layout.journal.end(), layout.checksums.start);
                    assert_eq!(layout.checksums.end(), layout.data.start);
                    let sums_bytes = layout.checksums.bytes();
                    let least = area_bytes(layout.data.count);
                    assert!(integrity == Integrity::None || sums_bytes >= least);
                    assert!(layout.data.start.bytes().is_multiple_of(MIB));
                    let [_, second] = MemberLayout::superblock_lbas(sectors);
                    let rest = second.0 - layout.data.end().0;
                    assert!(rest * SECTOR_BYTES < chunk_bytes);
                    assert!(SectorRange::new(second, 8).fits(sectors));
                }
            }
        }
    }

    #[test]
    fn what_has_no_room_for_a_chunk_has_no_layout() {
        let least = MIB + 64 * KIB + SUPERBLOCK_BYTES;
        assert!(MemberLayout::plan(least / SECTOR_BYTES, 64 * KIB, 0, Integrity::None).is_some());
        for bytes in [0, 512, 4096, MIB, least - 512] {
            assert_eq!(
                MemberLayout::plan(bytes / SECTOR_BYTES, 64 * KIB, 0, Integrity::None),
                None
            );
        }
        assert_eq!(MemberLayout::plan(least / SECTOR_BYTES, 64 * KIB, MIB, Integrity::None), None);
    }

    #[test]
    fn a_journal_is_a_part_of_the_member_within_limits() {
        let journal = |bytes: u64, chunk| MemberLayout::journal_bytes_for(bytes / 512, chunk) / MIB;
        assert_eq!(journal(8 * MIB, 64 * KIB), 1);
        assert_eq!(journal(8 * MIB, MIB), 8);
        assert_eq!(journal(1000 * MIB, 64 * KIB), 8);
        assert_eq!(journal(1 << 44, 64 * KIB), 64);
    }
}
