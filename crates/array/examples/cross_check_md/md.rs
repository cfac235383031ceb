//! The superblock of Linux md, version 1.2, as `include/uapi/linux/raid/md_p.h` describes it. Read are
//! the fields that say where a member's data are, and that the array is the one that was asked for.

use voltier_array::Layout;
use voltier_block::SECTOR_BYTES;

use crate::cases::Case;

const SUPERBLOCK_BYTES: usize = 4096;
const MAGIC: u32 = 0xa92b_4efc;
const MAJOR_VERSION: u32 = 1;
/// The first of the roles, one of 16 bits for each device.
const ROLES: usize = 256;

/// The superblock of a member: the member and its array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    level: i32,
    layout: u32,
    /// Used of each member.
    pub(crate) sectors: u64,
    chunk_sectors: u32,
    members: u32,
    pub(crate) data_offset_bytes: u64,
    /// The number of the member.
    role: u16,
}

fn bytes_at<const N: usize>(member: &[u8], at: usize) -> [u8; N] {
    member[SUPERBLOCK_BYTES + at..][..N].try_into().expect("as many bytes")
}

impl Superblock {
    /// The superblock of a member's file.
    pub(crate) fn of(member: &[u8]) -> Result<Self, String> {
        let word = |at| u32::from_le_bytes(bytes_at(member, at));
        let long = |at| u64::from_le_bytes(bytes_at(member, at));
        if word(0) != MAGIC || word(4) != MAJOR_VERSION {
            return Err("there is no superblock of md, version 1.2, on it".to_owned());
        }
        let device = word(160) as usize;
        Ok(Self {
            level: word(72) as i32,
            layout: word(76),
            sectors: long(80),
            chunk_sectors: word(88),
            members: word(92),
            data_offset_bytes: long(128) * SECTOR_BYTES,
            role: u16::from_le_bytes(bytes_at(member, ROLES + 2 * device)),
        })
    }

    /// Whether the superblock is that of a member of this case.
    pub(crate) fn check(&self, case: &Case, member: usize) -> Result<(), String> {
        let (level, _) = case.md_names();
        // ALGORITHM_LEFT_SYMMETRIC, ALGORITHM_LEFT_SYMMETRIC_6, two near copies.
        let layout = match (level, case.layout) {
            ("5" | "6", Layout::LeftSymmetric) => 2,
            ("6", Layout::LeftSymmetricFixedParityRows) => 18,
            ("10", _) => 0x102,
            _ => self.layout,
        };
        let expected = Self {
            level: level.parse().expect("a number"),
            layout,
            sectors: self.sectors,
            chunk_sectors: (case.chunk_bytes / SECTOR_BYTES) as u32,
            members: case.members as u32,
            data_offset_bytes: self.data_offset_bytes,
            role: member as u16,
        };
        if *self == expected { Ok(()) } else { Err(format!("md made {self:?}, not {expected:?}")) }
    }
}
