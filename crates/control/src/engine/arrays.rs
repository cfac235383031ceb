//! Open arrays.

use voltier_array::{Integrity, ScrubFound};

use crate::array_spec::ArrayLevel;
use crate::array_status::ArrayDetail;
use crate::error::ControlResult;
use crate::events::event::EventKind;
use crate::name::ArrayName;
use crate::records::RegisteredArray;
use crate::spec::DeviceSpec;

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
    /// What it is as an event; none of what is a condition of `voltier health` anyway.
    pub event: Option<&'static EventKind>,
    /// What a scrub found that has ended and went over everything.
    pub scrubbed: Option<ScrubFound>,
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

/// Makes, opens, closes and shows arrays, which are known by their names.
pub trait Arrays {
    /// Whether an array is open. A move to another core that fails closes the array.
    fn has_array(&self, name: &ArrayName) -> bool;

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

    /// [`Volumes::take_fault`](super::Volumes::take_fault) of an open array.
    fn take_array_fault(&self, name: &ArrayName) -> Option<String>;

    /// The first bytes of an open array, as far as marks of file systems and others are looked for.
    ///
    /// # Errors
    /// When the array is not open, or cannot be read.
    fn array_head(&self, name: &ArrayName) -> ControlResult<Vec<u8>>;

    /// The devices and the state of an open array now.
    fn array_devices(&self, name: &ArrayName) -> Option<ArrayDevices>;

    /// The registry has this event count of an open array. Changes of an array whose members have changed
    /// wait for that.
    fn array_recorded(&self, name: &ArrayName, events: u64);

    /// Fills in what the data path knows: state, members, counters.
    fn fill_array_status(&self, name: &ArrayName, status: &mut ArrayDetail);
}
