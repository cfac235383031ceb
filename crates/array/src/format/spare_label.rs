//! The label of a device that waits to replace a member: whose spare it is. Pure; its copies are written and
//! read by `members::label_copies`, in the places of a superblock. The table is in `docs/formats/array.md`.

use voltier_block::KIB;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::format::checksum::{CRC_AT, Rejected, check_head, seal};
use crate::format::superblock::{NAME_BYTES_MAX, is_name};

/// First bytes of a spare.
pub const SPARE_MAGIC: [u8; 8] = *b"VOLTSPAR";
const VERSION: u32 = 1;
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
    magic: [u8; 8],
    version: U32,
    crc: U32,
    owner: [u8; 16],
    device_sectors: U64,
    copy: U32,
    reserved: U32,
    name: [u8; NAME_BYTES_MAX],
    reserved_end: [u8; BLOCK_BYTES - 112],
}

const _: () = assert!(size_of::<Raw>() == BLOCK_BYTES);

impl SpareLabel {
    pub(crate) fn encode(&self, copy: u32) -> [u8; BLOCK_BYTES] {
        let mut raw = Raw::new_zeroed();
        raw.magic = SPARE_MAGIC;
        raw.version = VERSION.into();
        raw.owner = self.owner;
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
        check_head(block, SPARE_MAGIC, raw.version.get(), VERSION)?;
        let name = std::str::from_utf8(&raw.name).map_err(|_| Rejected::Damaged)?;
        let name = name.trim_end_matches('\0');
        if raw.copy != copy || !is_name(name) {
            return Err(Rejected::Damaged);
        }
        let device_sectors = raw.device_sectors.get();
        Ok(Self { owner: raw.owner, name: name.to_owned(), device_sectors })
    }
}

#[cfg(test)]
mod tests {
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
    fn a_newer_label_is_refused_by_its_version() {
        let mut block =
            SpareLabel { owner: [7; 16], name: "a".into(), device_sectors: 8 }.encode(0);
        block[8] = 9;
        seal(&mut block, CRC_AT);
        assert_eq!(SpareLabel::decode(&block, 0), Err(Rejected::Newer(9)));
    }
}
