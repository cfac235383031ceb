//! What the control plane needs from the data path, and nothing more.
//!
//! The service decides what is to happen and keeps the registry; an engine makes it happen on the
//! cores. Calls block until the data path has answered, except a drain, which is started and asked
//! about. Every error message is one line and complete: the service passes it on as it is.

use std::path::Path;
use std::sync::Arc;

use voltier_array::Consistency;

use crate::array_settings::ArraySettings;
use crate::array_spec::ArrayLevel;
use crate::array_status::ArrayStatus;
use crate::error::{ControlError, ControlResult};
use crate::export_spec::ExportSpec;
use crate::name::{ArrayName, VolumeName};
use crate::protocol::{Growth, Repair};
use crate::records::{ArrayRecord, CacheRecord, Identity, VolumeRecord};
use crate::safety::{self, DeviceId, Examined, Machine, Role};
use crate::settings::Settings;
use crate::spec::DeviceSpec;
use crate::status::VolumeStatus;

/// Whether an SSD is made a cache or was one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheStart {
    /// Write an empty cache over whatever is there.
    Format,
    /// Load the cache that is there; a foreign, stale or damaged one is an error.
    Load,
}

/// What opening a volume found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenedVolume {
    /// Size of the volume, in bytes.
    pub size_bytes: u64,
    /// Generation of its cache now; 0 without one.
    pub generation: u64,
}

/// Where a drain stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Drain {
    /// Lines are being written back.
    Running,
    /// No line that was dirty at the start is dirty now.
    Done,
    /// It could not go on; the text says why.
    Failed(String),
}

/// What a client counts on to see on a cache, without stopping to look at the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheHealth {
    /// Lines the origin does not have yet.
    pub dirty_lines: u64,
    /// Whether the SSD was given up since the cache was opened.
    pub ssd_failed: bool,
}

/// What the superblock of an array's member says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberLabel {
    /// Identity of the array.
    pub array: Identity,
    /// Name of the array, as it was made.
    pub name: String,
    /// Its level.
    pub level: ArrayLevel,
    /// Bytes of a chunk.
    pub chunk_bytes: u32,
    /// What keeps data and parity together over a crash.
    pub consistency: Consistency,
}

/// What making or assembling an array found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenedArray {
    /// Size of the array, in bytes.
    pub size_bytes: u64,
    /// Its level: rows may have been added since it was made.
    pub level: ArrayLevel,
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

/// What the label of a journal device says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalDeviceLabel {
    /// Identity of the array.
    pub array: Identity,
    /// Name of the array, as it was made.
    pub name: String,
}

/// What an array stands on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayDevices {
    /// Its level.
    pub level: ArrayLevel,
    /// Its size, in bytes.
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
    /// What happened to members since this was last asked: a line each.
    pub news: Vec<String>,
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
            news: Vec::new(),
        }
    }
}

/// How a device came into the place of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replaced {
    /// The member is lost: all is computed from the others.
    Rebuild,
    /// It is the lost member itself: what changed meanwhile is computed.
    Return,
    /// The member serves until all is copied.
    Copy,
}

/// Wakes the control plane, from any thread.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

/// The data path, as the service uses it. Volumes are known by their names.
pub trait Engine: 'static {
    /// Whom to wake when [`Engine::health`] of some volume has changed for the worse, or
    /// [`Engine::array_devices`] of some array at all.
    fn set_waker(&mut self, waker: Waker);

    /// Takes one line of the daemon's log.
    fn log(&mut self, line: &str) {
        eprintln!("voltier: {line}");
    }

    /// Size of a device in bytes as far as its name tells: `u64::MAX` for a path.
    ///
    /// # Errors
    /// When its profile is unknown.
    fn size_of(&mut self, device: &DeviceSpec) -> ControlResult<u64>;

    /// Looks at a device before it is used. An engine whose devices are not this machine's answers
    /// for them itself.
    ///
    /// # Errors
    /// As [`safety::examine`].
    fn examine(&mut self, machine: &Machine, path: &Path, role: Role) -> ControlResult<Examined> {
        safety::examine(machine, path, role)
    }

    /// Which storage a path leads to now; `None` when nothing is there.
    fn id_of(&mut self, machine: &Machine, path: &Path) -> Option<DeviceId> {
        DeviceId::of_path(machine, path)
    }

    /// Opens a volume with its cache, if the record has one that did not fail.
    ///
    /// # Errors
    /// Nothing is open then. With `Format`, an SSD that is too small is told apart before anything
    /// is written to it.
    fn open(&mut self, record: &VolumeRecord, start: CacheStart) -> ControlResult<OpenedVolume>;

    /// Stops a volume cleanly: dirty lines stay dirty, the log is checkpointed. Its doors are
    /// closed before.
    ///
    /// # Errors
    /// When the clean stop could not be written; the volume is closed all the same.
    fn close(&mut self, name: &VolumeName) -> ControlResult<()>;

    /// Puts a freshly formatted cache in front of an open volume that has none; its generation.
    ///
    /// # Errors
    /// The volume serves on without it.
    fn attach(&mut self, name: &VolumeName, cache: &CacheRecord) -> ControlResult<u64>;

    /// Writes everything back, the last of it while requests wait. They wait until `detach` or
    /// `resume`: so the registry can forget the cache while nothing can become dirty in it.
    ///
    /// # Errors
    /// When there is no cache, or it could not be written back: all is as before then.
    fn settle(&mut self, name: &VolumeName) -> ControlResult<()>;

    /// Lets requests go on after `settle`, with the cache still in front.
    fn resume(&mut self, name: &VolumeName);

    /// Takes the cache away and unmarks the SSD. With `write_back`, what is dirty goes to the
    /// origin first; without, it is given up.
    ///
    /// # Errors
    /// When there is none, or it could not be written back (it stays then), or not be unmarked.
    fn detach(&mut self, name: &VolumeName, write_back: bool) -> ControlResult<()>;

    /// Gives a cache other settings while it serves.
    ///
    /// # Errors
    /// The old settings hold then.
    fn configure(&mut self, name: &VolumeName, settings: &Settings) -> ControlResult<()>;

    /// Starts writing every dirty line back; one that runs already is joined.
    ///
    /// # Errors
    /// When the volume is not open.
    fn start_drain(&mut self, name: &VolumeName) -> ControlResult<()>;

    /// Where the last drain stands.
    fn drain(&mut self, name: &VolumeName) -> Drain;

    /// What may change by itself.
    fn health(&mut self, name: &VolumeName) -> CacheHealth;

    /// Fills in what the data path knows: counters, lines, sizes, device states.
    fn fill_status(&mut self, name: &VolumeName, status: &mut VolumeStatus);

    /// The loss of an SSD is on record: requests that wait for it may change the origin now.
    fn failure_is_recorded(&mut self, name: &VolumeName);

    /// Opens a door; the answer is where it really is (TCP port 0 asks for a free one).
    ///
    /// # Errors
    /// When the address is taken, not permitted, or the kernel has no such door.
    fn export(&mut self, name: &VolumeName, export: &ExportSpec) -> ControlResult<ExportSpec>;

    /// Closes a door; clients on it are cut off.
    ///
    /// # Errors
    /// When the kernel does not let go of it (a FUSE file in use).
    fn unexport(&mut self, name: &VolumeName, export: &ExportSpec) -> ControlResult<()>;

    /// Removes what the door of a daemon that was killed left in the file system, if anything.
    fn clear_dead(&mut self, export: &ExportSpec);

    /// Clients connected to a door now.
    fn clients(&mut self, name: &VolumeName, export: &ExportSpec) -> u64;

    /// What the superblock on a device says; `None` when it is no member of an array. Nothing is
    /// written. The device is not in use.
    ///
    /// # Errors
    /// When it cannot be read, or is damaged or of a newer version.
    fn label_of(&mut self, _: &DeviceSpec) -> ControlResult<Option<MemberLabel>> {
        Err(no_arrays())
    }

    /// The same for the label of a device that has the journal of an array.
    ///
    /// # Errors
    /// When it cannot be read, or is damaged or of a newer version.
    fn journal_label_of(&mut self, _: &DeviceSpec) -> ControlResult<Option<JournalDeviceLabel>> {
        Ok(None)
    }

    /// Makes an array of the record's members, in their order, with its journal on the record's device
    /// if there is one, and opens it.
    ///
    /// # Errors
    /// Nothing is open then. What cannot be is told apart before anything is written.
    fn create_array(&mut self, _: &ArrayRecord) -> ControlResult<OpenedArray> {
        Err(no_arrays())
    }

    /// Assembles an array of those of its devices that are there, in any order. Members that know
    /// fewer events than the record are old. `force` sets aside that they may be, and that some of
    /// the newest data may be wrong.
    ///
    /// # Errors
    /// Nothing is open then.
    fn open_array(
        &mut self,
        _: &ArrayRecord,
        _devices: &[DeviceSpec],
        _force: bool,
    ) -> ControlResult<OpenedArray> {
        Err(no_arrays())
    }

    /// Stops an array cleanly; nobody uses it.
    ///
    /// # Errors
    /// When the clean stop could not be written; it is closed all the same.
    fn close_array(&mut self, _: &ArrayName) -> ControlResult<()> {
        Err(no_arrays())
    }

    /// Erases what says that a device is a member of an array. It is not in use.
    ///
    /// # Errors
    /// When it cannot be written.
    fn erase_label(&mut self, _: &DeviceSpec) -> ControlResult<()> {
        Err(no_arrays())
    }

    /// The first bytes of an open array, as far as marks of file systems and others are looked for.
    ///
    /// # Errors
    /// When it is not open, or cannot be read.
    fn array_head(&mut self, _: &ArrayName) -> ControlResult<Vec<u8>> {
        Err(no_arrays())
    }

    /// Takes a member out of service.
    ///
    /// # Errors
    /// When the level cannot lose it, or the device is no member.
    fn fail_member(&mut self, _: &ArrayName, _place: u32) -> ControlResult<()> {
        Err(no_arrays())
    }

    /// Puts a device in the place of a member and begins to fill it. A member in service stays that
    /// until all is copied.
    ///
    /// # Errors
    /// The array is as before then.
    fn replace_member(
        &mut self,
        _: &ArrayName,
        _place: u32,
        _device: &DeviceSpec,
    ) -> ControlResult<Replaced> {
        Err(no_arrays())
    }

    /// Keeps a device for the next member that is lost, or takes it for one that is.
    ///
    /// # Errors
    /// When the device does not suit.
    fn add_spare(&mut self, _: &ArrayName, _: &DeviceSpec) -> ControlResult<()> {
        Err(no_arrays())
    }

    /// Whether a device suits an open array as a spare; nothing is changed.
    ///
    /// # Errors
    /// Why it does not.
    fn check_spare(&mut self, _: &ArrayName, _: &DeviceSpec) -> ControlResult<()> {
        Err(no_arrays())
    }

    /// Adds a row of redundancy on these devices, one for each group, and begins to fill it; or a member for
    /// room, and begins to move the data.
    ///
    /// # Errors
    /// The array is as before then, unless a device failed while it was taken in.
    fn grow_array(&mut self, _: &ArrayName, _: Growth, _: &[DeviceSpec]) -> ControlResult<()> {
        Err(no_arrays())
    }

    /// Puts the journal of an open array on another device, or back on the members.
    ///
    /// # Errors
    /// The array serves on; the journal is where it was, or on the members.
    fn set_journal(&mut self, _: &ArrayName, _: Option<&DeviceSpec>) -> ControlResult<()> {
        Err(no_arrays())
    }

    /// Starts a rebuild that was cut off.
    ///
    /// # Errors
    /// When nothing is to be rebuilt.
    fn start_rebuild(&mut self, _: &ArrayName) -> ControlResult<()> {
        Err(no_arrays())
    }

    /// Starts a scrub.
    ///
    /// # Errors
    /// When one is running.
    fn start_scrub(&mut self, _: &ArrayName, _: Repair) -> ControlResult<()> {
        Err(no_arrays())
    }

    /// Gives an open array its settings.
    fn configure_array(&mut self, _: &ArrayName, _: &ArraySettings) {}

    /// What an open array stands on now.
    fn array_devices(&mut self, _: &ArrayName) -> Option<ArrayDevices> {
        None
    }

    /// Fills in what the data path knows: state, members, counters.
    fn fill_array_status(&mut self, _: &ArrayName, _: &mut ArrayStatus) {}
}

/// An engine that keeps no arrays answers so.
fn no_arrays() -> ControlError {
    ControlError::failed("this engine has no arrays")
}
