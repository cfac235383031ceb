//! Labels on devices that are not open: of members, journals, spares and caches.

use voltier_array::{
    Consistency, Integrity, JournalState, MemberIndex, MemberRecord, MemberState, Superblock,
};
use voltier_block::SECTOR_BYTES;
use voltier_cache::policy::PolicyKind;
use voltier_cache::{Label, Owner};

use crate::array_settings::ArraySettings;
use crate::array_spec::ArrayLevel;
use crate::error::ControlResult;
use crate::name::ArrayName;
use crate::records::{Identity, RegisteredArray};
use crate::spec::DeviceSpec;

/// The superblock of an array's member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberLabel {
    /// Identity of the array.
    pub array: Identity,
    /// Name of the array, as it was made.
    pub name: String,
    /// Level of the array.
    pub level: ArrayLevel,
    /// Bytes of a chunk.
    pub chunk_bytes: u32,
    /// Protection of parity against a crash.
    pub consistency: Consistency,
    /// The checksums that the members keep.
    pub integrity: Integrity,
    /// Identity of the member: a copy of its drive has the same.
    pub member: Identity,
    /// The place of the member in the array.
    pub place: u32,
    /// Changes of membership that the label knows: of several labels the highest is the newest.
    pub event: u64,
    /// Members that each group can lose.
    pub redundancy: u32,
    /// All places of the array, in their order.
    pub places: Vec<LabelledPlace>,
    /// Whether the journal has a device of its own that is in service.
    pub has_journal_device: bool,
}

/// A place of an array, as the label of a member tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LabelledPlace {
    /// The group of members that protect each other.
    pub group: u32,
    /// The state of the member in it.
    pub state: MemberState,
    /// The identity of that member.
    pub member: Identity,
}

impl MemberLabel {
    /// The record of the array under a name, without its devices.
    pub(crate) fn record(&self, name: ArrayName) -> RegisteredArray {
        RegisteredArray {
            name,
            uuid: self.array,
            level: self.level,
            chunk_bytes: self.chunk_bytes,
            consistency: self.consistency,
            integrity: self.integrity,
            size_bytes: 0,
            events: 0,
            members: Vec::new(),
            spares: Vec::new(),
            incoming: Vec::new(),
            journal: None,
            stopped: false,
            read_only: false,
            failed_drives: Vec::new(),
            settings: ArraySettings::default(),
        }
    }

    /// Whether another label is of the same member.
    pub(crate) fn is_twin_of(&self, other: &Self) -> bool {
        self.member == other.member && self.place == other.place
    }

    /// Whether a newer label says that another member has this one's place: this one was replaced.
    pub fn is_replaced_by(&self, newer: &Self) -> bool {
        let place = newer.places.get(self.place as usize);
        newer.event > self.event && place.is_some_and(|place| place.member != self.member)
    }
}

impl From<Superblock> for MemberLabel {
    fn from(superblock: Superblock) -> Self {
        let Superblock { array, member, .. } = superblock;
        let geometry = &array.geometry;
        let place = |(at, member): (usize, &MemberRecord)| LabelledPlace {
            group: geometry.group_of_member(MemberIndex(at)).0 as u32,
            state: member.state,
            member: Identity(member.uuid),
        };
        let in_service = JournalState::InService;
        Self {
            array: Identity(array.uuid),
            level: ArrayLevel(geometry.level()),
            chunk_bytes: (geometry.chunk_sectors() * voltier_block::SECTOR_BYTES) as u32,
            consistency: array.consistency,
            integrity: array.places.integrity(),
            member: Identity(array[member].uuid),
            place: member.0 as u32,
            event: array.event,
            redundancy: geometry.parity_chunks() as u32,
            places: array.members.iter().enumerate().map(place).collect(),
            has_journal_device: array.journal_device.is_some_and(|it| it.state == in_service),
            name: array.name,
        }
    }
}

/// The label of a journal device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalDeviceLabel {
    /// Identity of the array.
    pub array: Identity,
    /// Name of the array, as it was made.
    pub name: String,
}

/// The label of a spare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpareOwner {
    /// The identity of the array for which the spare waits, or the one that its pool's record has.
    pub owner: Identity,
    /// The name of the array or pool.
    pub name: String,
}

/// The facts in the superblock of a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheLabel {
    /// Identity of the cache.
    pub uuid: Identity,
    /// Grows with every opening of the cache.
    pub generation: u64,
    /// Grows with every writing of the superblock.
    pub sequence: u64,
    /// Whether the cache was stopped in order.
    pub is_clean: bool,
    /// Dirty lines at its last checkpoint.
    pub dirty_lines: u64,
    /// Size of the SSD in bytes.
    pub size_bytes: u64,
    /// Size of the origin in bytes.
    pub origin_bytes: u64,
    /// Bytes of a line.
    pub line_bytes: u32,
    /// Replacement policy.
    pub policy: PolicyKind,
    /// The volume of the cache, as far as it is recorded.
    pub owner: Owner,
}

impl CacheLabel {
    /// The label of a cache on an SSD of this size.
    pub fn of(label: Label, size_bytes: u64) -> Self {
        Self {
            uuid: Identity(label.uuid),
            generation: label.generation,
            sequence: label.sequence,
            is_clean: label.clean,
            dirty_lines: label.dirty_lines,
            size_bytes,
            origin_bytes: label.origin_sectors.saturating_mul(SECTOR_BYTES),
            line_bytes: u32::try_from(label.line_bytes).unwrap_or(u32::MAX),
            policy: label.policy,
            owner: label.owner,
        }
    }
}

/// Reads, writes and erases labels.
pub trait Labels {
    /// The superblock on a device; `None` when it is no member of an array. Nothing is
    /// written. The device is not in use.
    ///
    /// # Errors
    /// When the label cannot be read, or is damaged or of a newer version.
    fn label_of(&self, device: &DeviceSpec) -> ControlResult<Option<MemberLabel>>;

    /// The same for the label of a device that has the journal of an array.
    ///
    /// # Errors
    /// When the label cannot be read, or is damaged or of a newer version.
    fn journal_label_of(&self, device: &DeviceSpec) -> ControlResult<Option<JournalDeviceLabel>>;

    /// The same for the label of a device that waits as a spare; `None` too when the label is not whole.
    ///
    /// # Errors
    /// When the label cannot be read, or is damaged or of a newer version.
    fn spare_label_of(&self, device: &DeviceSpec) -> ControlResult<Option<SpareOwner>>;

    /// Makes a spare of a device that is not in use. `wipe` first clears both of its ends of what they held.
    ///
    /// # Errors
    /// When the device cannot be written.
    fn label_spare(&self, device: &DeviceSpec, label: &SpareOwner, wipe: bool)
    -> ControlResult<()>;

    /// Erases the label of a member. The device is not in use.
    ///
    /// # Errors
    /// When the device cannot be written.
    fn erase_label(&self, device: &DeviceSpec) -> ControlResult<()>;

    /// The superblock of the cache on a device that is not open, or on an open array that nobody uses. `None`
    /// when there is no cache.
    ///
    /// # Errors
    /// When the device cannot be read, or the superblock is damaged.
    fn cache_label_of(&self, device: &DeviceSpec) -> ControlResult<Option<CacheLabel>>;

    /// Erases the superblock of the cache on a device that is not open, so that no import finds it.
    ///
    /// # Errors
    /// When the device cannot be opened or written.
    fn erase_cache_label(&self, device: &DeviceSpec) -> ControlResult<()>;
}
