//! The memory that an array is going to need, told before anything is written.
//!
//! Little of it grows with the members: an array has a bounded number of regions, whatever its size, and the
//! checksums in memory are bounded for each member.

use voltier_block::DriveControl;

use crate::array::Array;
use crate::bitmap::matched::MatchedRegions;
use crate::bitmap::region_states::RegionStates;
use crate::create::{CreateOptions, plan};
use crate::errors::ArrayError;
use crate::format::integrity::Integrity;
use crate::format::region_map::RegionGrid;
use crate::format::superblock::ArrayRecord;
use crate::members::checksums::table;

/// The parts of an array that its memory depends on.
struct Shape {
    member_sectors: u64,
    members: usize,
    groups: usize,
    integrity: Integrity,
}

impl Shape {
    fn memory_bytes(&self) -> u64 {
        let regions = RegionGrid::new(self.member_sectors).count();
        let sums = match self.integrity {
            Integrity::None => 0,
            Integrity::Crc32c => table::bytes_for(self.member_sectors, regions),
        };
        RegionStates::bytes_for(regions)
            + MatchedRegions::bytes_for(regions, self.groups)
            + sums * self.members as u64
    }
}

/// The memory that the array of a record is going to need, in bytes.
pub fn memory_of(record: &ArrayRecord) -> u64 {
    let shape = Shape {
        member_sectors: record.places.data.count,
        members: record.members.len(),
        groups: record.geometry.group_count(),
        integrity: record.places.integrity(),
    };
    shape.memory_bytes()
}

/// The memory that a new array of these devices is going to need, in bytes.
///
/// # Errors
/// When there can be no such array.
pub fn memory_of_new<D: DriveControl>(
    options: &CreateOptions,
    devices: &[D],
) -> Result<u64, ArrayError> {
    Ok(memory_of(&plan(options, devices)?))
}

/// The memory that an array is going to need with so many more members, in bytes.
pub fn memory_with<D: DriveControl>(array: &Array<D>, further: usize) -> u64 {
    let geometry = array.geometry();
    let members = geometry.member_count() + further;
    let integrity = array.status().map_or(Integrity::None, |status| status.integrity);
    let member_sectors = geometry.member_sectors();
    Shape { member_sectors, members, groups: geometry.group_count(), integrity }.memory_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use voltier_block::SECTOR_BYTES;

    #[test]
    fn the_memory_of_an_array_is_bounded_for_each_member() {
        let bytes = |member_bytes: u64, integrity| {
            let member_sectors = member_bytes / SECTOR_BYTES;
            Shape { member_sectors, members: 10, groups: 2, integrity }.memory_bytes()
        };
        let (small, large) = (64 << 20, 1 << 50);
        assert!(bytes(small, Integrity::None) < 4096);
        assert!(bytes(large, Integrity::None) < 4 << 20);
        assert!(bytes(small, Integrity::Crc32c) < 2 << 20);
        let sums = bytes(large, Integrity::Crc32c) >> 20;
        assert!((320..360).contains(&sums), "{sums} MiB, 32 and a little of each member");
    }
}
