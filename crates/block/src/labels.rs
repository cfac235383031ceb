//! The labels by which devices are known, as far as every part of the program has to know those of the others.
//!
//! A cache and an array label their devices at different places. What takes a device clears all of these
//! places, and what reads a label looks who else has left one. Else a device would count by a label of an
//! earlier use that its newer use did not overwrite.

use std::fmt;

use crate::buf::Buf;
use crate::device::{BlockDevice, Durability};
use crate::error::IoResult;
use crate::range::{Lba, SECTOR_BYTES};

/// Bytes of a label: every copy starts at a multiple of this.
pub const LABEL_BYTES: u64 = 4096;
/// Byte offset of the second copy of a cache's label; the first is at 0.
pub const SECOND_CACHE_LABEL: u64 = 64 << 10;

/// The part that a label says its device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabelPart {
    /// A member of an array.
    Member,
    /// The journal of an array.
    Journal,
    /// A spare of an array or a pool.
    Spare,
    /// The SSD of a cache.
    Cache,
}

impl LabelPart {
    const ALL: [Self; 4] = [Self::Member, Self::Journal, Self::Spare, Self::Cache];

    /// First bytes of every label of this part.
    pub const fn magic(self) -> [u8; 8] {
        match self {
            Self::Member => *b"VOLTARRY",
            Self::Journal => *b"VOLTJRNL",
            Self::Spare => *b"VOLTSPAR",
            Self::Cache => *b"VOLTIERC",
        }
    }

    /// The part that a block names by its first bytes, whole or not.
    pub fn named_by(block: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|part| block.starts_with(&part.magic()))
    }
}

impl fmt::Display for LabelPart {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Member => "a member of an array",
            Self::Journal => "the journal of an array",
            Self::Spare => "a spare",
            Self::Cache => "the SSD of a cache",
        })
    }
}

/// Where labels are on a device of so many sectors: of an array at both ends, of a cache at two places near
/// the start. Only places that are on the device, each once, the last one first.
pub fn label_places(device_sectors: u64) -> impl Iterator<Item = Lba> {
    let whole = device_sectors / (LABEL_BYTES / SECTOR_BYTES);
    let last = whole.saturating_sub(1) * LABEL_BYTES;
    let others = [SECOND_CACHE_LABEL, 0].into_iter().filter(move |place| *place < last);
    [last].into_iter().filter(move |_| whole > 0).chain(others).map(Lba::from_bytes)
}

/// Clears, durably, the labels of all parts but `kept` from a device that gets another part. Blocks that are
/// no label stay as they are. To be done before anything else is written: a power cut in between leaves a
/// device with fewer labels, and none with two.
///
/// # Errors
/// When the device does not take the writes.
pub async fn clear_labels<D: BlockDevice>(device: &D, kept: Option<LabelPart>) -> IoResult<()> {
    for place in label_places(device.limits().sectors) {
        let is_other = match device.read(place, Buf::new(LABEL_BYTES as usize)).await {
            Ok(block) => LabelPart::named_by(&block).is_some_and(|part| Some(part) != kept),
            // A label may be there, and be readable again later.
            Err(_) => true,
        };
        if is_other {
            let zeroes = Buf::zeroed(LABEL_BYTES as usize).freeze().into();
            device.write(place, zeroes, Durability::Durable).await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_both_ends_and_that_of_a_second_cache_label() {
        let places =
            |bytes: u64| label_places(bytes / SECTOR_BYTES).map(Lba::bytes).collect::<Vec<u64>>();
        assert_eq!(places(0), []);
        assert_eq!(places(4095), []);
        assert_eq!(places(4096), [0]);
        assert_eq!(places(64 << 10), [60 << 10, 0]);
        assert_eq!(places(68 << 10), [64 << 10, 0]);
        assert_eq!(places((1 << 20) + 512), [(1 << 20) - 4096, 64 << 10, 0]);
    }

    #[test]
    fn a_block_names_its_part_by_its_first_bytes() {
        for part in LabelPart::ALL {
            let mut block = [0; 4096];
            block[..8].copy_from_slice(&part.magic());
            assert_eq!(LabelPart::named_by(&block), Some(part));
            assert_eq!(LabelPart::named_by(&block[1..]), None);
        }
        assert_eq!(LabelPart::named_by(b"VOLT"), None);
    }
}
