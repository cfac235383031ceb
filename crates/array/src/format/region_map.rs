//! The region map: what was ever written, and what may need a resync, in large pieces. Pure.
//!
//! A region is the same run of rows on all members. The map is pages of 512 bytes, each with a
//! sequence number and a CRC of its own; all members hold all of it. A page is one sector, so no power
//! cut tears it, and the map needs no log. The tables are in `docs/formats/array.md`.
//!
//! *Written* makes an array usable at once: writing all of 20 TB takes a day. A third bit has the regions
//! that a rebuild has left, for all members that are filled together. Bits for each would spare a second
//! rebuild some regions after a restart, and cost a map for each member.

use voltier_block::{Lba, MIB, SECTOR_BYTES, SectorRange};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::format::bits::Bits;
use crate::format::checksum::{COUNTER_MAX, crc_without, seal};
use crate::format::member_layout::{BACKUP_START_BYTES, MAP_START_BYTES};
use crate::geometry::numbers::{Region, each, numbers};

/// Smallest region, in bytes of a member.
const REGION_BYTES_MIN: u64 = MIB;
/// Most regions of an array.
const REGIONS_MAX: u64 = 1 << 20;
/// Bytes of a page.
pub(crate) const PAGE_BYTES: usize = 512;
/// Regions of a page.
pub(crate) const PAGE_REGIONS: u64 = FIELD_BYTES as u64 * 8;
/// Pages that are written together: the largest block of a member.
pub(crate) const BLOCK_PAGES: u64 = 8;
/// Bytes of a block of pages.
pub(crate) const MAP_BLOCK_BYTES: u64 = BLOCK_PAGES * PAGE_BYTES as u64;
const FIELD_BYTES: usize = 160;
const CRC_AT: usize = 24;

numbers! { MapBlock }

/// The number of a block of the region map: the pages that are written together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub(crate) struct MapBlock(pub(crate) u64);

impl MapBlock {
    /// Where the block is on a member.
    pub(crate) fn lba(self) -> Lba {
        Lba::from_bytes(MAP_START_BYTES + self.0 * MAP_BLOCK_BYTES)
    }
}

/// Sectors of a region on a member with so many sectors of chunks: a power of two, whole chunks.
fn region_sectors(member_sectors: u64) -> u64 {
    let least = member_sectors.div_ceil(REGIONS_MAX).max(REGION_BYTES_MIN / SECTOR_BYTES);
    least.next_power_of_two()
}

/// How the members of an array are cut into regions, the last of which may be short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegionGrid {
    region_sectors: u64,
    member_sectors: u64,
}

impl RegionGrid {
    /// The regions of members with so many sectors of chunks.
    pub(crate) fn new(member_sectors: u64) -> Self {
        Self { region_sectors: region_sectors(member_sectors), member_sectors }
    }

    /// Sectors of a region on a member.
    pub(crate) fn region_sectors(self) -> u64 {
        self.region_sectors
    }

    pub(crate) fn count(self) -> u64 {
        self.member_sectors.div_ceil(self.region_sectors)
    }

    pub(crate) fn last(self) -> Region {
        Region(self.count() - 1)
    }

    /// The region of a sector of a member.
    #[inline]
    pub(crate) fn region_at(self, at: Lba) -> Region {
        Region(at.0 / self.region_sectors)
    }

    /// The sectors of a region on a member.
    pub(crate) fn sectors_of(self, region: Region) -> SectorRange {
        let start = region.0 * self.region_sectors;
        SectorRange::new(Lba(start), self.region_sectors.min(self.member_sectors - start))
    }

    /// Bytes of a member in so many regions, of which the last one of all may be one.
    pub(crate) fn bytes_of(self, count: u64, has_last: bool) -> u64 {
        let last = self.sectors_of(self.last()).count;
        let short = if has_last { self.region_sectors - last } else { 0 };
        (count * self.region_sectors - short) * SECTOR_BYTES
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Page {
    array_uuid: [u8; 16],
    sequence: U64,
    crc: U32,
    index: U32,
    written: [u8; FIELD_BYTES],
    dirty: [u8; FIELD_BYTES],
    missing: [u8; FIELD_BYTES],
}

const _: () = assert!(size_of::<Page>() == PAGE_BYTES);
/// The longest map ends before what is kept during a move to more members.
const _: () = assert!(
    REGIONS_MAX.div_ceil(PAGE_REGIONS).next_multiple_of(BLOCK_PAGES) * (PAGE_BYTES as u64)
        <= BACKUP_START_BYTES - MAP_START_BYTES
);

/// The maps of the members, taken together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Joined {
    pub(crate) map: RegionMap,
    /// Blocks that are not the same on all members.
    pub(crate) unequal: Vec<MapBlock>,
    /// Regions of which nobody knows anything.
    pub(crate) unknown: Bits<Region>,
}

/// The map on the medium of every member in service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RegionMap {
    array_uuid: [u8; 16],
    count: u64,
    /// The number of the newest writing of each page.
    sequences: Vec<u64>,
    /// Regions that were written since the array was made; all others read as zeroes.
    pub(crate) written: Bits<Region>,
    /// Regions whose parity may not match, or which a member that is away does not have.
    pub(crate) dirty: Bits<Region>,
    /// Regions that a member which is being rebuilt may not have. Says nothing while there is none.
    pub(crate) missing: Bits<Region>,
}

impl RegionMap {
    /// The map of a new array: nothing written.
    pub(crate) fn new(array_uuid: [u8; 16], member_sectors: u64) -> Self {
        let count = RegionGrid::new(member_sectors).count();
        Self {
            array_uuid,
            count,
            sequences: vec![1; count.div_ceil(PAGE_REGIONS) as usize],
            written: Bits::new(count),
            dirty: Bits::new(count),
            missing: Bits::new(count),
        }
    }

    /// The memory of a map of so many regions.
    pub(crate) fn bytes_for(count: u64) -> u64 {
        3 * Bits::<Region>::bytes_for(count) + 8 * count.div_ceil(PAGE_REGIONS)
    }

    /// Regions.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn page_count(&self) -> u64 {
        self.sequences.len() as u64
    }

    /// Blocks of pages: what is read and written at once.
    pub(crate) fn block_count(&self) -> u64 {
        self.page_count().div_ceil(BLOCK_PAGES)
    }

    /// All blocks, in order.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = MapBlock> + use<> {
        each(MapBlock(0)..MapBlock(self.block_count()))
    }

    /// The block with the page of a region.
    pub(crate) fn block_of(&self, region: Region) -> MapBlock {
        MapBlock(region.0 / PAGE_REGIONS / BLOCK_PAGES)
    }

    fn regions_of(&self, page: u64) -> impl Iterator<Item = Region> + use<> {
        each(Region(page * PAGE_REGIONS)..Region(((page + 1) * PAGE_REGIONS).min(self.count)))
    }

    fn pages_of(&self, MapBlock(block): MapBlock) -> std::ops::Range<u64> {
        block * BLOCK_PAGES..((block + 1) * BLOCK_PAGES).min(self.page_count())
    }

    /// Gives the pages of a block the next number, for the next writing.
    pub(crate) fn count_up(&mut self, block: MapBlock) {
        for page in self.pages_of(block) {
            self.sequences[page as usize] += 1;
        }
    }

    /// The bytes of a block.
    pub(crate) fn encode(&self, block: MapBlock) -> Vec<u8> {
        let mut bytes = vec![0; BLOCK_PAGES as usize * PAGE_BYTES];
        for (page, into) in self.pages_of(block).zip(bytes.chunks_mut(PAGE_BYTES)) {
            into.copy_from_slice(&self.encode_page(page));
        }
        bytes
    }

    fn encode_page(&self, index: u64) -> [u8; PAGE_BYTES] {
        let field = |set: &Bits<Region>| {
            let mut field = [0; FIELD_BYTES];
            for (at, region) in self.regions_of(index).enumerate() {
                field[at / 8] |= u8::from(set.has(region)) << (at % 8);
            }
            field
        };
        let page = Page {
            array_uuid: self.array_uuid,
            sequence: self.sequences[index as usize].into(),
            crc: 0.into(),
            index: (index as u32).into(),
            written: field(&self.written),
            dirty: field(&self.dirty),
            missing: field(&self.missing),
        };
        let mut bytes: [u8; PAGE_BYTES] = zerocopy::transmute!(page);
        seal(&mut bytes, CRC_AT);
        bytes
    }

    fn decode_page(&self, bytes: &[u8], index: u64) -> Option<Page> {
        let page = Page::read_from_bytes(bytes).ok()?;
        let is_ours = page.array_uuid == self.array_uuid
            && u64::from(page.index.get()) == index
            && (1..COUNTER_MAX).contains(&page.sequence.get());
        (is_ours && page.crc == crc_without(bytes, CRC_AT)).then_some(page)
    }

    /// Whether a block of pages has a page of this map.
    pub(crate) fn has_page_in(&self, block: MapBlock, bytes: &[u8]) -> bool {
        let mut pages = self.pages_of(block).zip(bytes.chunks(PAGE_BYTES));
        pages.any(|(index, page)| self.decode_page(page, index).is_some())
    }

    /// The map that these members hold: for each of them all blocks, or `None` where they could not
    /// be read. Of each page the newest counts. A page that nobody has whole says that all of its
    /// regions are written and dirty.
    pub(crate) fn join(
        array_uuid: [u8; 16],
        member_sectors: u64,
        members: &[Option<&[u8]>],
    ) -> Joined {
        let mut map = Self::new(array_uuid, member_sectors);
        let (mut unequal, mut unknown) = (Vec::new(), Bits::new(map.count));
        for index in 0..map.page_count() {
            let bytes_at = index as usize * PAGE_BYTES;
            let page = |member: &Option<&[u8]>| {
                let bytes = (*member)?.get(bytes_at..bytes_at + PAGE_BYTES)?;
                map.decode_page(bytes, index)
            };
            let pages: Vec<Option<Page>> = members.iter().map(page).collect();
            let newest = pages.iter().flatten().map(|page| page.sequence.get()).max();
            let is_newest = |page: &&Page| Some(page.sequence.get()) == newest;
            let best: Vec<&Page> = pages.iter().flatten().filter(is_newest).collect();
            for (at, region) in map.regions_of(index).enumerate() {
                let is_in = |field: &[u8; FIELD_BYTES]| field[at / 8] & (1 << (at % 8)) != 0;
                let is_unknown = best.is_empty();
                unknown.put(region, is_unknown);
                map.written.put(region, is_unknown || best.iter().any(|page| is_in(&page.written)));
                map.dirty.put(region, is_unknown || best.iter().any(|page| is_in(&page.dirty)));
                let is_missing = is_unknown || best.iter().any(|page| is_in(&page.missing));
                map.missing.put(region, is_missing);
            }
            map.sequences[index as usize] = newest.unwrap_or(1);
            let first = best.first();
            let same = |page: &&Page| Some(page.as_bytes()) == first.map(|first| first.as_bytes());
            let block = MapBlock(index / BLOCK_PAGES);
            let all_same = best.len() == members.len() && best.iter().all(same);
            if !all_same && unequal.last() != Some(&block) {
                unequal.push(block);
            }
        }
        Joined { map, unequal, unknown }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: [u8; 16] = [7; 16];
    /// Three pages.
    const SECTORS: u64 = 2048 * (2 * PAGE_REGIONS + 9);

    fn all(map: &RegionMap) -> Vec<u8> {
        map.blocks().flat_map(|block| map.encode(block)).collect()
    }

    #[test]
    fn regions_are_a_mebibyte_until_they_would_be_too_many() {
        assert_eq!(region_sectors(8), 2048);
        assert_eq!(region_sectors(2048 << 20), 2048);
        assert_eq!(region_sectors((2048 << 20) + 1), 4096);
        let largest = RegionMap::new(UUID, u64::MAX / 1024);
        assert!(largest.count() <= REGIONS_MAX);
        // All of it has room between the first copy of the superblock and the first area.
        let bytes = largest.block_count() * BLOCK_PAGES * PAGE_BYTES as u64;
        let room = crate::AREA_ALIGN_BYTES - crate::MAP_START_BYTES;
        assert!(bytes <= room, "{bytes}");
    }

    #[test]
    fn of_each_page_the_newest_counts() {
        let mut old = RegionMap::new(UUID, SECTORS);
        assert_eq!((old.page_count(), old.block_count()), (3, 1));
        old.written.put(Region(0), true);
        old.dirty.put(Region(PAGE_REGIONS), true);
        let mut new = old.clone();
        new.count_up(MapBlock(0));
        new.written.put(Region(2 * PAGE_REGIONS + 8), true);
        new.dirty.put(Region(PAGE_REGIONS), false);
        let (old_bytes, new_bytes) = (all(&old), all(&new));
        let join = |members: &[Option<&[u8]>]| {
            let joined = RegionMap::join(UUID, SECTORS, members);
            assert!(joined.unknown.is_empty());
            (joined.map, joined.unequal)
        };
        assert_eq!(join(&[Some(&new_bytes), Some(&new_bytes)]), (new.clone(), vec![]));
        assert_eq!(join(&[Some(&old_bytes), Some(&new_bytes)]), (new.clone(), vec![MapBlock(0)]));
        assert_eq!(join(&[None, Some(&new_bytes)]), (new, vec![MapBlock(0)]));
    }

    #[test]
    fn every_flipped_bit_of_a_page_is_noticed_and_lost_pages_all_need_a_resync() {
        let map = RegionMap::new(UUID, SECTORS);
        let bytes = all(&map);
        for bit in (0..PAGE_BYTES * 8).step_by(3) {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let joined = RegionMap::join(UUID, SECTORS, &[Some(&flipped), Some(&bytes)]);
            assert_eq!((joined.map, joined.unequal), (map.clone(), vec![MapBlock(0)]), "bit {bit}");
            let joined = RegionMap::join(UUID, SECTORS, &[Some(&flipped)]);
            assert_eq!(joined.unknown.count(), PAGE_REGIONS, "bit {bit}");
            assert_eq!(joined.map.written, joined.unknown);
            assert_eq!(joined.map.dirty.iter().last(), Some(Region(PAGE_REGIONS - 1)));
        }
        // Of another array, cut off, or not there at all.
        for bytes in [Some(&all(&RegionMap::new([8; 16], SECTORS))[..]), Some(&bytes[..512]), None]
        {
            let joined = RegionMap::join(UUID, SECTORS, &[bytes]);
            assert!(joined.map.written.has(Region(map.count() - 1)));
        }
    }
}
