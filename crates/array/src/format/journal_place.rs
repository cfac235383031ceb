//! Where the rings of a journal are on their devices, and how long records and batches in them can be.

use voltier_block::{Lba, SECTOR_BYTES, SectorRange};

use crate::format::journal_record::{
    BLOCK_BYTES, BLOCK_SECTORS, LABEL_COPIES, Owner, RingIndex, batch_blocks,
};
use crate::geometry::chunks::Geometry;

/// Members that a transaction can name: the bits of its mask.
pub(crate) const JOURNAL_MEMBERS_MAX: usize = 64;
/// Longest batch of several records, in blocks: 1 MiB, as a drive writes it in one go.
pub(crate) const BATCH_BLOCKS_MAX: u64 = 256;

/// Where the ring of a member is on its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JournalPlace {
    /// First sector, a multiple of 8.
    pub start: Lba,
    /// Length in sectors; at least [`journal_sectors_min`].
    pub sectors: u64,
}

/// The shortest ring that an array of this geometry works with, in sectors: room for four of its
/// longest records.
pub(crate) fn journal_sectors_min(geometry: &Geometry) -> u64 {
    (LABEL_COPIES + 4 * batch_blocks(geometry.chunk_sectors())) * BLOCK_SECTORS
}

/// The shortest ring of a device that takes the records of all members, in sectors: room for four of
/// the longest transactions.
pub(crate) fn device_ring_sectors_min(geometry: &Geometry) -> u64 {
    let transaction = geometry.width() as u64 * geometry.chunk_sectors();
    (LABEL_COPIES + 4 * batch_blocks(transaction)) * BLOCK_SECTORS
}

/// Where the journal is, and whose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JournalOptions {
    /// Identity of the array: records of another one are not taken.
    pub array: [u8; 16],
    /// A place for each member, lost ones included.
    pub places: Vec<JournalPlace>,
}

impl JournalPlace {
    /// No room at all.
    pub(crate) const NONE: Self = Self { start: Lba(0), sectors: 0 };

    /// Blocks behind the labels.
    pub(crate) const fn blocks(self) -> u64 {
        (self.sectors / BLOCK_SECTORS).saturating_sub(LABEL_COPIES)
    }

    /// The owner that a ring at this place names.
    pub(crate) const fn owner(self, array: [u8; 16], ring: RingIndex) -> Owner {
        Owner { array, ring, blocks: self.blocks() }
    }

    /// Where the label of this number goes.
    pub(crate) const fn label_lba(self, number: u64) -> Lba {
        self.start.plus(number % LABEL_COPIES * BLOCK_SECTORS)
    }

    /// Some blocks behind the labels.
    pub(crate) const fn range_of(self, block: u64, blocks: u64) -> SectorRange {
        let start = self.start.plus((LABEL_COPIES + block) * BLOCK_SECTORS);
        SectorRange::new(start, blocks * BLOCK_SECTORS)
    }
}

/// The longest batch of several records in a ring of this place on a device with this limit.
pub(crate) fn batch_blocks_max(place: JournalPlace, max_transfer_bytes: u32) -> u64 {
    let transfer = u64::from(max_transfer_bytes) / BLOCK_BYTES as u64;
    BATCH_BLOCKS_MAX.min(place.blocks() / 4).min(transfer)
}

/// The longest single write to a ring, in bytes: a chunk and its head.
pub(crate) const fn longest_record_bytes(geometry: &Geometry) -> u64 {
    batch_blocks(geometry.chunk_sectors()) * BLOCK_SECTORS * SECTOR_BYTES
}
