//! The label of a device that takes the records of all members: whose it is, and how new. Pure; its
//! copies are written and read by `members::label_copies`. The table is in `docs/formats/array.md`.
//!
//! ```text
//! 0        label, copy 0 (4 KiB)        1 MiB    a ring, up to 512 MiB
//! end      label, copy 1: the last whole 4 KiB of the device
//! ```

use voltier_block::{Format, KIB, LabelPart, Lba, MIB, SECTOR_BYTES};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::format::checksum::{COUNTER_MAX, CRC_AT, Head, Rejected, check_head, seal};
use crate::format::journal_place::JournalPlace;
use crate::format::journal_record::BLOCK_SECTORS;
use crate::format::member_layout::MemberLayout;
use crate::format::superblock::{NAME_BYTES_MAX, is_name};

/// First bytes of a journal device.
pub const JOURNAL_MAGIC: [u8; 8] = LabelPart::Journal.magic();
/// Byte offset of the ring.
const RING_START_BYTES: u64 = MIB;
/// A ring is no longer than this: what is redone at a start is bounded by it.
const RING_BYTES_MAX: u64 = 512 * MIB;
/// The format of the label: no part of it is optional.
pub const JOURNAL_FORMAT: Format = Format { version: 1, features: &[] };
const BLOCK_BYTES: usize = 4 * KIB as usize;

/// The label of a journal device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalLabel {
    /// The uuid of its array.
    pub array: [u8; 16],
    /// The name of its array.
    pub name: String,
    /// The device's own uuid.
    pub uuid: [u8; 16],
    /// The newest event of the array that it knows.
    pub event: u64,
    /// The size of the device when this was written, in sectors.
    pub device_sectors: u64,
    /// The length of its ring, in sectors; more than before a device that has grown does not have.
    pub ring_sectors: u64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Raw {
    head: Head,
    uuid: [u8; 16],
    event: U64,
    device_sectors: U64,
    copy: U32,
    reserved: U32,
    ring_start: U64,
    ring_sectors: U64,
    name: [u8; NAME_BYTES_MAX],
    reserved_end: [u8; BLOCK_BYTES - 160],
}

const _: () = assert!(size_of::<Raw>() == BLOCK_BYTES);

/// The ring of a device of so many sectors; one without room is empty.
pub(crate) fn ring_place(device_sectors: u64) -> JournalPlace {
    let start = Lba::from_bytes(RING_START_BYTES);
    let [_, second_copy] = MemberLayout::superblock_lbas(device_sectors);
    let room = second_copy.0.saturating_sub(start.0) / BLOCK_SECTORS * BLOCK_SECTORS;
    JournalPlace { start, sectors: room.min(RING_BYTES_MAX / SECTOR_BYTES) }
}

impl JournalLabel {
    /// The place of the device's ring.
    pub(crate) fn place(&self) -> JournalPlace {
        JournalPlace { start: Lba::from_bytes(RING_START_BYTES), sectors: self.ring_sectors }
    }

    pub(crate) fn encode(&self, copy: u32) -> [u8; BLOCK_BYTES] {
        let place = self.place();
        let mut raw = Raw::new_zeroed();
        raw.head = Head::new(JOURNAL_MAGIC, &JOURNAL_FORMAT, self.array, 0);
        raw.uuid = self.uuid;
        raw.event = self.event.into();
        raw.device_sectors = self.device_sectors.into();
        raw.copy = copy.into();
        raw.ring_start = place.start.0.into();
        raw.ring_sectors = place.sectors.into();
        raw.name[..self.name.len()].copy_from_slice(self.name.as_bytes());
        let mut block: [u8; BLOCK_BYTES] = zerocopy::transmute!(raw);
        seal(&mut block, CRC_AT);
        block
    }

    /// The label in `block`, if it is copy `copy` of one and everything in it makes sense.
    pub(crate) fn decode(block: &[u8], copy: u32) -> Result<Self, Rejected> {
        let raw = Raw::ref_from_bytes(block).map_err(|_| Rejected::Absent)?;
        check_head(block, JOURNAL_MAGIC, &JOURNAL_FORMAT)?;
        raw.checked(copy).ok_or(Rejected::Damaged)
    }
}

impl Raw {
    fn checked(&self, copy: u32) -> Option<JournalLabel> {
        let name = std::str::from_utf8(&self.name).ok()?.trim_end_matches('\0');
        let device_sectors = self.device_sectors.get();
        let ring_sectors = self.ring_sectors.get();
        let is_whole = self.copy == copy
            && is_name(name)
            && device_sectors <= u64::MAX / SECTOR_BYTES
            && (1..COUNTER_MAX).contains(&self.event.get())
            && self.ring_start.get() == RING_START_BYTES / SECTOR_BYTES
            && ring_sectors.is_multiple_of(BLOCK_SECTORS)
            && ring_sectors <= ring_place(device_sectors).sectors;
        is_whole.then(|| JournalLabel {
            array: self.head.array,
            name: name.to_owned(),
            uuid: self.uuid,
            event: self.event.get(),
            device_sectors,
            ring_sectors,
        })
    }
}

#[cfg(test)]
mod tests {
    use voltier_block::Unsupported;

    use super::*;

    fn label() -> JournalLabel {
        JournalLabel {
            array: [7; 16],
            name: "räume".to_owned(),
            uuid: [8; 16],
            event: 12,
            device_sectors: 64 * MIB / SECTOR_BYTES + 13,
            ring_sectors: 1024,
        }
    }

    #[test]
    fn a_label_is_read_as_it_was_written_and_every_flipped_byte_is_noticed() {
        for copy in 0..2 {
            let block = label().encode(copy);
            assert_eq!(JournalLabel::decode(&block, copy), Ok(label()));
            assert_eq!(JournalLabel::decode(&block, 1 - copy), Err(Rejected::Damaged));
            for at in 0..BLOCK_BYTES {
                let mut flipped = block;
                flipped[at] ^= 1 << (at % 8);
                let expected = if at < 8 { Rejected::Absent } else { Rejected::Damaged };
                assert_eq!(JournalLabel::decode(&flipped, copy), Err(expected), "byte {at}");
            }
        }
    }

    #[test]
    fn what_makes_no_sense_under_a_good_checksum_is_damaged_and_what_is_unknown_is_named() {
        let unsupported = |why| Rejected::Unsupported { array: [7; 16], why };
        let cases: [(usize, u8, Rejected); 7] = [
            (8, 2, unsupported(Unsupported::Version { found: 2, read: 1 })),
            (8, 0, unsupported(Unsupported::Version { found: 0, read: 1 })),
            (33, 4, unsupported(Unsupported::Flags(1 << 10))),
            (63, 0xff, Rejected::Damaged),
            (71, 0xff, Rejected::Damaged),
            (80, 1, Rejected::Damaged),
            (96, 1, Rejected::Damaged),
        ];
        for (at, byte, expected) in cases {
            let mut block = label().encode(0);
            block[at] = byte;
            seal(&mut block, CRC_AT);
            assert_eq!(JournalLabel::decode(&block, 0), Err(expected), "byte {at}");
        }
    }

    #[test]
    fn the_ring_ends_before_the_second_copy_and_is_bounded() {
        let place = |bytes: u64| ring_place(bytes / SECTOR_BYTES);
        assert_eq!(place(MIB).blocks(), 0);
        assert_eq!(place(3 * MIB).sectors * SECTOR_BYTES, 2 * MIB - 4096);
        assert_eq!(place(3 * MIB + 4608).sectors * SECTOR_BYTES, 2 * MIB);
        assert_eq!(place(1 << 44).sectors * SECTOR_BYTES, RING_BYTES_MAX);
    }
}
