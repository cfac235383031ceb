//! The control plane's view of arrays.

use voltier_array::{
    Consistency, Integrity, JournalState, MemberIndex, MemberRecord, MemberState, Superblock,
};

use crate::array_settings::ArraySettings;
use crate::array_spec::ArrayLevel;
use crate::array_status::ArrayDetail;
use crate::error::ControlResult;
use crate::name::ArrayName;
use crate::protocol::{Growth, Repair};
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

/// The result of making or assembling an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenedArray {
    /// Size of the array, in bytes.
    pub size_bytes: u64,
    /// Level of the array: parity may have been added since it was made.
    pub level: ArrayLevel,
    /// The checksums that the members keep.
    pub integrity: Integrity,
    /// Changes of membership so far, this opening included.
    pub events: u64,
    /// The device of each place, as far as the devices given tell.
    pub members: Vec<Option<DeviceSpec>>,
    /// The device of the journal; none when it is on the members.
    pub journal: Option<DeviceSpec>,
    /// Whether a device had the journal and was given up.
    pub is_journal_lost: bool,
    /// Devices that were not taken into service, and why: a line each.
    pub left_out: Vec<String>,
}

/// The label of a journal device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalDeviceLabel {
    /// Identity of the array.
    pub array: Identity,
    /// Name of the array, as it was made.
    pub name: String,
}

/// The devices and the state of an open array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayDevices {
    /// Level of the array.
    pub level: ArrayLevel,
    /// Size of the array, in bytes.
    pub size_bytes: u64,
    /// Changes of membership so far.
    pub events: u64,
    /// The device of each place, as far as it is known.
    pub members: Vec<Option<DeviceSpec>>,
    /// Devices that wait to replace a lost member.
    pub spares: Vec<DeviceSpec>,
    /// Devices that are being filled beside a member in service.
    pub incoming: Vec<DeviceSpec>,
    /// Lost members that could be rebuilt and for which no spare waits.
    pub spares_wanted: usize,
    /// How many more members may be lost, wherever they are.
    pub may_lose: u32,
    /// Places whose members are lost.
    pub lost: Vec<u32>,
    /// Members that are lost beyond what the level allows, in the group that lacks most.
    pub lost_too_many: u32,
    /// News of the array since the last question.
    pub news: Vec<ArrayNews>,
}

/// A line of the log about an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayNews {
    /// The line, without the name of the array.
    pub line: String,
    /// Whether a user has to look at it.
    pub is_warning: bool,
}

impl ArrayDevices {
    /// An array of which all is well, with these members and nothing beside them.
    pub fn whole(level: ArrayLevel, size_bytes: u64, members: Vec<Option<DeviceSpec>>) -> Self {
        Self {
            level,
            size_bytes,
            events: 1,
            members,
            spares: Vec::new(),
            incoming: Vec::new(),
            spares_wanted: 0,
            may_lose: 0,
            lost: Vec::new(),
            lost_too_many: 0,
            news: Vec::new(),
        }
    }
}

/// The label of a spare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpareOwner {
    /// The identity of the array for which the spare waits, or the one that its pool's record has.
    pub owner: Identity,
    /// The name of the array or pool.
    pub name: String,
}

/// The line about a member that a start left out, because its data are old.
pub fn stale_line(device: &DeviceSpec, place: usize) -> String {
    format!(
        "{device} was left out at the start: it was member {place}{WENT_ON}, so its data are old"
    )
}

/// Whether a line is that about the member of a place.
pub(crate) fn is_stale_line(line: &str, place: usize) -> bool {
    line.contains(&format!(" was left out at the start: it was member {place}{WENT_ON}"))
}

const WENT_ON: &str = ", and the array went on without it";

/// How a device came into the place of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replaced {
    /// The member is lost: all is computed from the others.
    Rebuild,
    /// The device is the lost member itself: only changes since are computed.
    Return,
    /// The member serves until all is copied.
    Copy,
}

/// The arrays of the data path, as the service uses them. Arrays are known by their names.
pub trait ArrayEngine {
    /// Whether an array is open. A move to another core that fails closes the array.
    fn has_array(&self, _name: &ArrayName) -> bool {
        true
    }

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

    /// Makes an array of the record's members, in their order, with its journal on the record's device
    /// if there is one, and opens it.
    ///
    /// # Errors
    /// Nothing is open then. Impossible arrays are refused before anything is written.
    fn create_array(&self, record: &RegisteredArray) -> ControlResult<OpenedArray>;

    /// Assembles an array of those of its devices that are there, in any order. Members that know
    /// fewer events than the record are old. `force` sets aside that they may be, and that some of
    /// the newest data may be wrong.
    ///
    /// # Errors
    /// Nothing is open then.
    fn open_array(
        &self,
        record: &RegisteredArray,
        devices: &[DeviceSpec],
        force: bool,
    ) -> ControlResult<OpenedArray>;

    /// Stops an array cleanly; nobody uses it. The changes of membership so far, this stop included; 0 if the array
    /// was not open.
    ///
    /// # Errors
    /// When the clean stop could not be written; it is closed all the same.
    fn close_array(&self, name: &ArrayName) -> ControlResult<u64>;

    /// [`Engine::take_fault`](super::Engine::take_fault) of an open array.
    fn take_array_fault(&self, _: &ArrayName) -> Option<String> {
        None
    }

    /// Erases the label of a member. The device is not in use.
    ///
    /// # Errors
    /// When the device cannot be written.
    fn erase_label(&self, device: &DeviceSpec) -> ControlResult<()>;

    /// The first bytes of an open array, as far as marks of file systems and others are looked for.
    ///
    /// # Errors
    /// When the array is not open, or cannot be read.
    fn array_head(&self, name: &ArrayName) -> ControlResult<Vec<u8>>;

    /// Takes a member out of service, at once and whatever the member does. Whether the other members say so
    /// durably already: they may be waited for themselves.
    ///
    /// # Errors
    /// When the level cannot lose it, or the device is no member.
    fn fail_member(&self, name: &ArrayName, place: u32) -> ControlResult<bool>;

    /// Puts a device in the place of a member and begins to fill it. A member in service stays that
    /// until all is copied.
    ///
    /// # Errors
    /// The array is as before then.
    fn replace_member(
        &self,
        name: &ArrayName,
        place: u32,
        device: &DeviceSpec,
    ) -> ControlResult<Replaced>;

    /// Puts a lost member back into its place, if the device is that member and was not used elsewhere
    /// since: what changed meanwhile is computed. `false` of any other device, which is not written to.
    ///
    /// # Errors
    /// The array is as before then.
    fn restore_member(
        &self,
        name: &ArrayName,
        place: u32,
        device: &DeviceSpec,
    ) -> ControlResult<bool>;

    /// Keeps a device for the next member that is lost, or takes it for one that is.
    ///
    /// # Errors
    /// When the device does not suit.
    fn add_spare(&self, name: &ArrayName, device: &DeviceSpec) -> ControlResult<()>;

    /// Whether a device suits an open array as a spare; nothing is changed.
    ///
    /// # Errors
    /// The reason why the device does not suit.
    fn check_spare(&self, name: &ArrayName, device: &DeviceSpec) -> ControlResult<()>;

    /// Adds a parity row on these devices, one for each group, and begins to fill it. A member for
    /// capacity is added the same way, and the data begin to move.
    ///
    /// # Errors
    /// The array is as before then, unless a device failed while it was taken in.
    fn grow_array(&self, name: &ArrayName, by: Growth, devices: &[DeviceSpec])
    -> ControlResult<()>;

    /// Puts the journal of an open array on another device, or back on the members.
    ///
    /// # Errors
    /// The array serves on; the journal is where it was, or on the members.
    fn set_journal(&self, name: &ArrayName, device: Option<&DeviceSpec>) -> ControlResult<()>;

    /// Starts a rebuild that was cut off.
    ///
    /// # Errors
    /// When nothing is to be rebuilt.
    fn start_rebuild(&self, name: &ArrayName) -> ControlResult<()>;

    /// Starts a scrub.
    ///
    /// # Errors
    /// When a scrub is running.
    fn start_scrub(&self, name: &ArrayName, repair: Repair) -> ControlResult<()>;

    /// Gives an open array its settings.
    fn configure_array(&self, name: &ArrayName, settings: &ArraySettings);

    /// The devices and the state of an open array now.
    fn array_devices(&self, name: &ArrayName) -> Option<ArrayDevices>;

    /// The registry has this event count of an open array. Changes of an array whose members have changed
    /// wait for that.
    fn array_recorded(&self, name: &ArrayName, events: u64);

    /// Fills in what the data path knows: state, members, counters.
    fn fill_array_status(&self, name: &ArrayName, status: &mut ArrayDetail);
}
