//! The superblock, in which every member describes the array. Pure.
//!
//! Everything is checked before anything is believed; the tables are in `docs/formats/array.md`.

use std::fmt;
use std::ops::{Index, IndexMut};

use voltier_block::{Feature, Format, LabelPart, Lba, SECTOR_BYTES, SectorRange};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::format::checksum::{COUNTER_MAX, CRC_AT, Head, Rejected, check_head, seal};
use crate::format::checksum_page::area_bytes;
use crate::format::consistency::Consistency;
use crate::format::integrity::Integrity;
use crate::format::journal_place::{JournalOptions, JournalPlace};
use crate::format::member_layout::{
    AREA_ALIGN_BYTES, MAP_START_BYTES, MemberLayout, SUPERBLOCK_BYTES,
};
use crate::format::region_map::RegionGrid;
use crate::format::reshape_record::ReshapeRecord;
use crate::geometry::chunks::Geometry;
use crate::geometry::level::{Layout, Level};
use crate::geometry::numbers::{MemberIndex, Section};
use crate::geometry::shapes::Shapes;

/// First bytes of every member of an array.
pub const SUPERBLOCK_MAGIC: [u8; 8] = LabelPart::Member.magic();

const JOURNAL_DEVICE: Feature = Feature {
    bit: 0,
    name: "journal-device",
    meaning: "a device of its own has, or had, the journal",
};
const ADDED_PARITY: Feature = Feature {
    bit: 1,
    name: "added-parity",
    meaning: "parity rows were added: each is on members of its own",
};
const EXPANSION: Feature = Feature {
    bit: 2,
    name: "expansion",
    meaning: "the array moves to its geometry from the one with a member less",
};
const CHECKSUMS: Feature = Feature {
    bit: 3,
    name: "checksums",
    meaning: "members keep the CRC-32C of their blocks, in pages behind the journal",
};

/// The format of members: of superblock, region map, journal, checksums and backup area.
pub const SUPERBLOCK_FORMAT: Format =
    Format { version: 1, features: &[JOURNAL_DEVICE, ADDED_PARITY, EXPANSION, CHECKSUMS] };
/// Most members of an array with durable state.
pub const MEMBERS_MAX: usize = 64;
/// Longest name of an array, in bytes.
pub const NAME_BYTES_MAX: usize = 64;

const BLOCK_BYTES: usize = SUPERBLOCK_BYTES as usize;
/// The offset of the name of the device that has the journal.
const JOURNAL_AT: usize = 3968;

/// A uuid as people write it.
pub(crate) struct Uuid<'a>(pub(crate) &'a [u8; 16]);

impl fmt::Display for Uuid<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            let dash = if matches!(index, 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(out, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

/// The state of a member in the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// The member holds all that was acknowledged, and is read and written.
    InService,
    /// The member was given up: others went on without it.
    Lost,
    /// The member is written and not read, until a rebuild is through.
    Rebuilding,
    /// Nothing was ever in its place.
    Absent,
}

impl MemberState {
    const ALL: [Self; 4] = [Self::InService, Self::Lost, Self::Rebuilding, Self::Absent];

    fn code(self) -> u32 {
        self as u32 + 1
    }
}

/// A member, as the table of all members has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberRecord {
    /// The member's uuid.
    pub uuid: [u8; 16],
    /// The member's state in the array.
    pub state: MemberState,
    /// The event with which the member came to that state.
    pub since_event: u64,
}

/// The state of a journal device in the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalState {
    /// The device takes the records of all members.
    InService,
    /// The device was given up: the journal is on the members again.
    Lost,
}

impl JournalState {
    const ALL: [Self; 2] = [Self::InService, Self::Lost];

    fn code(self) -> u32 {
        self as u32 + 1
    }
}

/// A device of its own for the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalDeviceRecord {
    /// The device's uuid.
    pub uuid: [u8; 16],
    /// The device's state in the array.
    pub state: JournalState,
    /// The event with which the device came to that state.
    pub since_event: u64,
}

/// Whether an array is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// The array is being made; not all members may have a superblock.
    Making,
    /// The array is in use, or was when the power went.
    InUse,
    /// The array was stopped: nothing needs a resync.
    Clean,
}

impl Usage {
    const ALL: [Self; 3] = [Self::Making, Self::InUse, Self::Clean];

    fn code(self) -> u32 {
        self as u32 + 1
    }
}

/// The part of the superblock that is the same on all members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayRecord {
    /// The uuid of the array.
    pub uuid: [u8; 16],
    /// The array's name: 1 to 64 bytes.
    pub name: String,
    /// Where the chunks are.
    pub geometry: Geometry,
    /// Where everything is on a member.
    pub places: MemberLayout,
    /// The way to close the write hole.
    pub consistency: Consistency,
    /// Raised whenever a member comes or goes, and when the array is taken into use or stopped.
    pub event: u64,
    /// Whether the array is in use.
    pub usage: Usage,
    /// All members, in the order of their numbers.
    pub members: Vec<MemberRecord>,
    /// The device that has the journal; none while it is on the members.
    pub journal_device: Option<JournalDeviceRecord>,
    /// Whether the parity of what is dirty may not match although there is a journal: it was started
    /// without its device.
    pub needs_resync: bool,
    /// Set while the array moves to this geometry from one with a member less.
    pub reshape: Option<ReshapeRecord>,
}

/// A superblock: what is said of the array, and by whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The part that is the same on all members.
    pub array: ArrayRecord,
    /// The member it is on.
    pub member: MemberIndex,
    /// The size of its device, in sectors.
    pub device_sectors: u64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Entry {
    uuid: [u8; 16],
    state: U32,
    reserved: U32,
    since_event: U64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Raw {
    head: Head,
    member_uuid: [u8; 16],
    event: U64,
    device_sectors: U64,
    copy: U32,
    usage: U32,
    consistency: U32,
    level: U32,
    /// Members of a group, or chunks of data, for levels that have them.
    level_first: U32,
    /// Chunks of parity, for the level that has them.
    level_second: U32,
    layout: U32,
    chunk_bytes: U32,
    member_count: U32,
    member: U32,
    map_start: U64,
    map_sectors: U64,
    journal_start: U64,
    journal_sectors: U64,
    data_start: U64,
    data_sectors: U64,
    region_sectors: U64,
    name: [u8; NAME_BYTES_MAX],
    table: [Entry; MEMBERS_MAX],
    reserved: [u8; JOURNAL_AT - 2280],
    journal_uuid: [u8; 16],
    journal_since: U64,
    journal_state: U32,
    needs_resync: U32,
    /// With the feature `expansion`, and zero without it.
    reshape_frontier: U64,
    reshape_moved: U64,
    reshape_backed_up: U64,
    reshape_redo_from: U64,
    /// With the feature `checksums`, and zero without it.
    checksums_start: U64,
    checksums_sectors: U64,
    reserved_end: [u8; BLOCK_BYTES - JOURNAL_AT - 80],
}

const _: () = assert!(size_of::<Raw>() == BLOCK_BYTES);

/// The code of a level, and its numbers.
fn level_code(level: Level) -> (u32, usize, usize) {
    match level {
        Level::Raid0 => (0, 0, 0),
        Level::Raid1 => (1, 0, 0),
        Level::Raid10 => (10, 0, 0),
        Level::Raid5 => (5, 0, 0),
        Level::Raid6 => (6, 0, 0),
        Level::Raid7_3 => (7, 0, 0),
        Level::Raid50 { group } => (50, group, 0),
        Level::Raid60 { group } => (60, group, 0),
        Level::Raid70 { group } => (70, group, 0),
        Level::NPlusM { data, parity } => (100, data, parity),
    }
}

fn level_of((code, first, second): (u32, usize, usize)) -> Option<Level> {
    let level = match code {
        0 => Level::Raid0,
        1 => Level::Raid1,
        10 => Level::Raid10,
        5 => Level::Raid5,
        6 => Level::Raid6,
        7 => Level::Raid7_3,
        50 => Level::Raid50 { group: first },
        60 => Level::Raid60 { group: first },
        70 => Level::Raid70 { group: first },
        100 => Level::NPlusM { data: first, parity: second },
        _ => return None,
    };
    // Numbers that a level does not have are zero.
    (level_code(level) == (code, first, second)).then_some(level)
}

/// The one of `all` with this code: they are numbered from 1.
fn coded<T: Copy>(all: &[T], code: U32) -> Option<T> {
    all.get((code.get() as usize).checked_sub(1)?).copied()
}

/// The features of an array in this state, as bits.
fn features_of(array: &ArrayRecord) -> u64 {
    let has_added_parity = matches!(array.geometry.layout(), Layout::AddedParityRows { .. });
    let features = [
        (JOURNAL_DEVICE, array.journal_device.is_some()),
        (ADDED_PARITY, has_added_parity),
        (EXPANSION, array.reshape.is_some()),
        (CHECKSUMS, array.places.integrity() != Integrity::None),
    ];
    features.into_iter().filter(|(_, has)| *has).fold(0, |word, (feature, _)| word | feature.flag())
}

/// Whether the name is one that an array can have.
pub(crate) fn is_name(name: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.contains(|letter: char| letter.is_control())
}

impl Index<MemberIndex> for ArrayRecord {
    type Output = MemberRecord;

    fn index(&self, member: MemberIndex) -> &MemberRecord {
        &self.members[member.0]
    }
}

impl IndexMut<MemberIndex> for ArrayRecord {
    fn index_mut(&mut self, member: MemberIndex) -> &mut MemberRecord {
        &mut self.members[member.0]
    }
}

impl ArrayRecord {
    /// The indexes of all members, in order.
    pub(crate) fn indexes(
        &self,
    ) -> impl DoubleEndedIterator<Item = MemberIndex> + ExactSizeIterator + Clone + use<> {
        MemberIndex::all(self.members.len())
    }

    /// The record of a member; none if there is no such member.
    pub(crate) fn get(&self, member: MemberIndex) -> Option<&MemberRecord> {
        self.members.get(member.0)
    }

    /// The journal's rings, if there are any.
    pub(crate) fn journal(&self) -> Option<JournalOptions> {
        let MemberLayout { journal, .. } = self.places;
        let place = JournalPlace { start: journal.start, sectors: journal.count };
        let places = vec![place; self.members.len()];
        (!journal.is_empty()).then_some(JournalOptions { array: self.uuid, places })
    }

    /// The size of the volume, in sectors: while it moves to more members what it was before.
    pub fn sectors(&self) -> u64 {
        let before = self.reshape.and_then(|_| self.geometry.without_member());
        before.as_ref().unwrap_or(&self.geometry).sectors()
    }

    /// Whether a member is in service.
    pub fn is_in_service(&self, member: MemberIndex) -> bool {
        self[member].state == MemberState::InService
    }

    /// Whether a member is being rebuilt.
    pub fn is_rebuilding(&self, member: MemberIndex) -> bool {
        self[member].state == MemberState::Rebuilding
    }
}

impl Superblock {
    /// The block for copy `copy`, 0 or 1.
    pub(crate) fn encode(&self, copy: u32) -> [u8; BLOCK_BYTES] {
        let array = &self.array;
        let geometry = &array.geometry;
        let (level, first, second) = level_code(geometry.level());
        let position = |found: Option<usize>| found.map_or(0, |index| index as u32 + 1).into();
        let mut raw = Raw::new_zeroed();
        let features = features_of(array);
        raw.head = Head::new(SUPERBLOCK_MAGIC, &SUPERBLOCK_FORMAT, array.uuid, features);
        raw.member_uuid = array[self.member].uuid;
        raw.event = array.event.into();
        raw.device_sectors = self.device_sectors.into();
        raw.copy = copy.into();
        raw.usage = array.usage.code().into();
        raw.consistency = position(Consistency::ALL.iter().position(|it| *it == array.consistency));
        raw.level = level.into();
        raw.level_first = (first as u32).into();
        raw.level_second = (second as u32).into();
        raw.layout = geometry.layout().code().into();
        raw.chunk_bytes = ((geometry.chunk_sectors() * SECTOR_BYTES) as u32).into();
        raw.member_count = (array.members.len() as u32).into();
        raw.member = (self.member.0 as u32).into();
        let MemberLayout { map, journal, checksums, data } = array.places;
        raw.map_start = map.start.0.into();
        raw.map_sectors = map.count.into();
        raw.journal_start = journal.start.0.into();
        raw.journal_sectors = journal.count.into();
        raw.data_start = data.start.0.into();
        raw.data_sectors = data.count.into();
        raw.region_sectors = RegionGrid::new(data.count).region_sectors().into();
        raw.name[..array.name.len()].copy_from_slice(array.name.as_bytes());
        for (entry, member) in raw.table.iter_mut().zip(&array.members) {
            entry.uuid = member.uuid;
            entry.state = member.state.code().into();
            entry.since_event = member.since_event.into();
        }
        if let Some(journal) = &array.journal_device {
            raw.journal_uuid = journal.uuid;
            raw.journal_since = journal.since_event.into();
            raw.journal_state = journal.state.code().into();
        }
        raw.needs_resync = u32::from(array.needs_resync).into();
        if let Some(reshape) = array.reshape {
            raw.reshape_frontier = reshape.frontier.0.into();
            raw.reshape_moved = reshape.moved_sectors.into();
            raw.reshape_backed_up = reshape.backed_up_sectors.into();
            raw.reshape_redo_from = reshape.redo_from.into();
        }
        if array.places.integrity() != Integrity::None {
            raw.checksums_start = checksums.start.0.into();
            raw.checksums_sectors = checksums.count.into();
        }
        let mut block: [u8; BLOCK_BYTES] = zerocopy::transmute!(raw);
        seal(&mut block, CRC_AT);
        block
    }

    /// The superblock in `block`, if it is copy `copy` of one and everything in it makes sense.
    ///
    /// # Errors
    /// The reason why the block is none.
    pub(crate) fn decode(block: &[u8], copy: u32) -> Result<Self, Rejected> {
        let raw = Raw::ref_from_bytes(block).map_err(|_| Rejected::Absent)?;
        check_head(block, SUPERBLOCK_MAGIC, &SUPERBLOCK_FORMAT)?;
        let says_so = |read: &Self| features_of(&read.array) == raw.head.features.get();
        raw.checked(copy).filter(says_so).ok_or(Rejected::Damaged)
    }
}

impl Raw {
    fn has(&self, feature: Feature) -> bool {
        self.head.features.get() & feature.flag() != 0
    }

    fn checked(&self, copy: u32) -> Option<Superblock> {
        let count = self.member_count.get() as usize;
        let member = MemberIndex(self.member.get() as usize);
        let event = self.event.get();
        let is_possible = self.copy == copy
            && (1..=MEMBERS_MAX).contains(&count)
            && member.0 < count
            && (1..COUNTER_MAX).contains(&event);
        if !is_possible {
            return None;
        }
        let members = self.members(count, event)?;
        if members[member.0].uuid != self.member_uuid {
            return None;
        }
        let places = self.places()?;
        let numbers = [self.level_first, self.level_second].map(|number| number.get() as usize);
        let level = level_of((self.level.get(), numbers[0], numbers[1]))?;
        let layout = Layout::of_code(self.layout.get())?;
        let chunk_bytes = self.chunk_bytes.get().into();
        let geometry = Geometry::new(level, layout, count, chunk_bytes, places.data.count).ok()?;
        let name = std::str::from_utf8(&self.name).ok()?.trim_end_matches('\0');
        let consistency = coded(&Consistency::ALL, self.consistency)?;
        let has_ring = !places.journal.is_empty();
        let (journal_device, needs_resync) = self
            .journal()
            .filter(|(device, needs_resync)| has_ring || (device.is_none() && !needs_resync))?;
        let usage = coded(&Usage::ALL, self.usage)?;
        let reshape = self.reshape(&geometry)?;
        let is_whole = geometry.member_sectors() == places.data.count && is_name(name);
        is_whole.then(|| Superblock {
            array: ArrayRecord {
                uuid: self.head.array,
                name: name.to_owned(),
                geometry,
                places,
                consistency,
                event,
                usage,
                members,
                journal_device,
                needs_resync,
                reshape,
            },
            member,
            device_sectors: self.device_sectors.get(),
        })
    }

    /// The members, of which no two have the same uuid, and of which nothing is newer than the record.
    fn members(&self, count: usize, event: u64) -> Option<Vec<MemberRecord>> {
        let member = |entry: &Entry| {
            let since_event = entry.since_event.get();
            let state = coded(&MemberState::ALL, entry.state)?;
            let is_possible = since_event <= event;
            is_possible.then_some(MemberRecord { uuid: entry.uuid, state, since_event })
        };
        let members: Vec<MemberRecord> =
            self.table[..count].iter().map(member).collect::<Option<_>>()?;
        let mut uuids: Vec<&[u8; 16]> = members.iter().map(|member| &member.uuid).collect();
        uuids.sort();
        let are_all_different = uuids.windows(2).all(|pair| pair[0] != pair[1]);
        are_all_different.then_some(members)
    }

    /// The device that has the journal, and whether parity needs a resync nevertheless.
    fn journal(&self) -> Option<(Option<JournalDeviceRecord>, bool)> {
        let needs_resync = match self.needs_resync.get() {
            0 => false,
            1 => true,
            _ => return None,
        };
        let since_event = self.journal_since.get();
        let is_none = self.journal_state.get() == 0;
        if is_none && (since_event, self.journal_uuid) == (0, [0; 16]) {
            return Some((None, needs_resync));
        }
        let state = coded(&JournalState::ALL, self.journal_state)?;
        let uuid = self.journal_uuid;
        (since_event <= self.event.get())
            .then_some((Some(JournalDeviceRecord { uuid, state, since_event }), needs_resync))
    }

    /// Where a move to this geometry is; none inside if there is none.
    fn reshape(&self, geometry: &Geometry) -> Option<Option<ReshapeRecord>> {
        let fields = [
            self.reshape_frontier,
            self.reshape_moved,
            self.reshape_backed_up,
            self.reshape_redo_from,
        ];
        if !self.has(EXPANSION) {
            return fields.iter().all(|field| field.get() == 0).then_some(None);
        }
        let record = ReshapeRecord {
            frontier: Section(self.reshape_frontier.get()),
            moved_sectors: self.reshape_moved.get(),
            backed_up_sectors: self.reshape_backed_up.get(),
            redo_from: self.reshape_redo_from.get(),
        };
        let shapes = Shapes::of(geometry)?;
        let is_possible = record.is_possible(&shapes) && record.redo_from < COUNTER_MAX;
        is_possible.then_some(Some(record))
    }

    /// The places, if they are where they belong and the device has room for them.
    fn places(&self) -> Option<MemberLayout> {
        let area_sectors = AREA_ALIGN_BYTES / SECTOR_BYTES;
        let journal_sectors = self.journal_sectors.get();
        let checksums = self.checksums(area_sectors.checked_add(journal_sectors)?)?;
        let data_start = checksums.end().0;
        let data_sectors = self.data_sectors.get();
        let [_, second_copy] = MemberLayout::superblock_lbas(self.device_sectors.get());
        let fits = data_start.checked_add(data_sectors)? <= second_copy.0;
        let map = SectorRange::from_bytes(MAP_START_BYTES, AREA_ALIGN_BYTES - MAP_START_BYTES);
        let journal = SectorRange::new(Lba(area_sectors), journal_sectors);
        let data = SectorRange::new(Lba(data_start), data_sectors);
        let same = |range: SectorRange, start: U64, sectors: U64| {
            (range.start.0, range.count) == (start.get(), sectors.get())
        };
        let are_ours = same(map, self.map_start, self.map_sectors)
            && same(journal, self.journal_start, self.journal_sectors)
            && same(data, self.data_start, self.data_sectors)
            && journal_sectors.is_multiple_of(area_sectors)
            && self.device_sectors.get() <= u64::MAX / SECTOR_BYTES
            && data_sectors > 0
            && self.region_sectors.get() == RegionGrid::new(data_sectors).region_sectors();
        let have_room = || checksums.is_empty() || area_bytes(data_sectors) <= checksums.bytes();
        (fits && are_ours && have_room()).then_some(MemberLayout { map, journal, checksums, data })
    }

    /// The pages of checksums, which begin where this says if there are any.
    fn checksums(&self, start: u64) -> Option<SectorRange> {
        let none = SectorRange::new(Lba(start), 0);
        if !self.has(CHECKSUMS) {
            let is_zero = self.checksums_start.get() == 0 && self.checksums_sectors.get() == 0;
            return is_zero.then_some(none);
        }
        let count = self.checksums_sectors.get();
        let is_possible = self.checksums_start.get() == start
            && count > 0
            && count.is_multiple_of(AREA_ALIGN_BYTES / SECTOR_BYTES)
            && start.checked_add(count)? <= self.device_sectors.get();
        is_possible.then_some(SectorRange::new(Lba(start), count))
    }
}

#[cfg(test)]
mod tests;
