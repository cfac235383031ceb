//! The label of a device that waits to replace a member: whose spare it is. Pure; its copies are written and
//! read by `members::label_copies`, in the places of a superblock. The table is in `docs/formats/array.md`.

use voltier_block::{Format, KIB, LabelPart};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::format::checksum::{CRC_AT, Head, Rejected, check_head, seal};
use crate::format::superblock::{NAME_BYTES_MAX, is_name};

/// First bytes of a spare.
pub const SPARE_MAGIC: [u8; 8] = LabelPart::Spare.magic();
/// The format of the label: no part of it is optional.
pub const SPARE_FORMAT: Format = Format { version: 1, features: &[] };
const BLOCK_BYTES: usize = 4 * KIB as usize;

/// The facts that a spare states.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpareLabel {
    /// Identity of what the spare waits for: the uuid of an array, or what a pool gave to the spare.
    pub owner: [u8; 16],
    /// The name of the array or pool.
    pub name: String,
    /// The size of the device when the label was written, in sectors.
    pub device_sectors: u64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Raw {
    head: Head,
    device_sectors: U64,
    copy: U32,
    reserved: U32,
    name: [u8; NAME_BYTES_MAX],
    reserved_end: [u8; BLOCK_BYTES - 120],
}

const _: () = assert!(size_of::<Raw>() == BLOCK_BYTES);

impl SpareLabel {
    pub(crate) fn encode(&self, copy: u32) -> [u8; BLOCK_BYTES] {
        let mut raw = Raw::new_zeroed();
        raw.head = Head::new(SPARE_MAGIC, &SPARE_FORMAT, self.owner, 0);
        raw.device_sectors = self.device_sectors.into();
        raw.copy = copy.into();
        raw.name[..self.name.len()].copy_from_slice(self.name.as_bytes());
        let mut block: [u8; BLOCK_BYTES] = zerocopy::transmute!(raw);
        seal(&mut block, CRC_AT);
        block
    }

    /// The label in `block`, if it is copy `copy` of one and everything in it makes sense.
    pub(crate) fn decode(block: &[u8], copy: u32) -> Result<Self, Rejected> {
        let raw = Raw::ref_from_bytes(block).map_err(|_| Rejected::Absent)?;
        check_head(block, SPARE_MAGIC, &SPARE_FORMAT)?;
        let name = std::str::from_utf8(&raw.name).map_err(|_| Rejected::Damaged)?;
        let name = name.trim_end_matches('\0');
        if raw.copy != copy || !is_name(name) {
            return Err(Rejected::Damaged);
        }
        let device_sectors = raw.device_sectors.get();
        Ok(Self { owner: raw.head.array, name: name.to_owned(), device_sectors })
    }
}

#[cfg(test)]
mod tests {
    use voltier_block::Unsupported;

    use super::*;

    #[test]
    fn a_label_comes_back_from_its_own_copy_and_from_no_other_and_no_flipped_byte() {
        let label = SpareLabel { owner: [7; 16], name: "shelf".into(), device_sectors: 4096 };
        for copy in [0, 1] {
            let block = label.encode(copy);
            assert_eq!(SpareLabel::decode(&block, copy), Ok(label.clone()));
            assert_eq!(SpareLabel::decode(&block, 1 - copy), Err(Rejected::Damaged));
            for at in 0..BLOCK_BYTES {
                let mut flipped = block;
                flipped[at] ^= 1;
                assert!(SpareLabel::decode(&flipped, copy).is_err(), "byte {at}");
            }
        }
        assert_eq!(SpareLabel::decode(&[0; BLOCK_BYTES], 0), Err(Rejected::Absent));
    }

    #[test]
    fn an_unknown_version_or_feature_is_refused_by_name_whatever_comes_behind_it() {
        let label = SpareLabel { owner: [7; 16], name: "a".into(), device_sectors: 8 };
        let cases = [
            (8, Unsupported::Version { found: 9, read: 1 }),
            (32, Unsupported::Flags(9)),
            (39, Unsupported::Flags(9 << 56)),
        ];
        for (at, why) in cases {
            let mut block = label.encode(0);
            block[at] = 9;
            block[40..].fill(0xff);
            seal(&mut block, CRC_AT);
            let refused = Err(Rejected::Unsupported { array: [7; 16], why });
            assert_eq!(SpareLabel::decode(&block, 0), refused);
        }
    }
}
