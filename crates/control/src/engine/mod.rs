//! The control plane's view of the data path, and nothing more.
//!
//! The service decides what is to happen and keeps the registry; an engine makes it happen on the
//! cores. Calls block until the data path has answered, except a drain, which is started and asked
//! about. The calls come from several threads, and those that only look are answered soon, whatever a
//! device does. Every error message is one line and complete: the service passes it on as it is.

mod arrays;

use std::collections::BTreeSet;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use voltier_block::SECTOR_BYTES;
use voltier_cache::policy::PolicyKind;
use voltier_cache::{Label, Owner};

use crate::error::ControlResult;
use crate::export_access::ExportAccess;
use crate::export_spec::ExportSpec;
use crate::name::VolumeName;
use crate::records::{Identity, VolumeRecord};
use crate::safety::{self, DeviceId, DriveIdentity, Examined, Machine, Role, WriteProtection};
use crate::settings::Settings;
use crate::spec::DeviceSpec;
use crate::status::{ByteRange, VolumeStatus};

pub(crate) use arrays::is_stale_line;
pub use arrays::{
    ArrayDevices, ArrayEngine, ArrayNews, JournalDeviceLabel, LabelledPlace, MemberLabel,
    OpenedArray, Replaced, SpareOwner, stale_line,
};

/// Whether an SSD is made a cache or was one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheStart {
    /// Write an empty cache over whatever is there.
    Format,
    /// Load the cache that is there; a foreign, stale or damaged one is an error, and so is another origin
    /// while lines are dirty.
    Load,
    /// The same, before a block device that no mark says to be the origin: dirty lines want some proof.
    LoadUnmarked,
    /// As `Load`, of a cache that no registry knows: a changed origin is an error, whatever is dirty.
    Import,
    /// The same, before an origin that the cache has no mark of: dirty lines want some proof.
    ImportGiven,
    /// The same, before an origin whose present content counts, as the user says.
    Adopt,
}

/// The result of opening a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenedVolume {
    /// Size of the volume, in bytes.
    pub size_bytes: u64,
    /// Generation of its cache now; 0 without one.
    pub generation: u64,
    /// Dirty lines that its cache came back with.
    pub dirty_lines: u64,
    /// The SSD takes no writes: see [`Engine::begin_evacuation`].
    pub evacuates: bool,
}

/// Where clients of a volume are to change the origin past an SSD that takes no writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Passing {
    /// Grows with every change.
    pub number: u64,
    /// All of it, in order.
    pub ranges: Vec<ByteRange>,
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

/// Where a drain stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Drain {
    /// Lines are being written back.
    Running,
    /// No line that was dirty at the start is dirty now.
    Done,
    /// The drain could not go on; the text says why.
    Failed(String),
}

/// The figures of a cache that are looked at often.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheHealth {
    /// Lines the origin does not have yet; none of a volume that has failed and cannot say.
    pub dirty_lines: Option<u64>,
    /// Whether the SSD was given up since the cache was opened.
    pub ssd_failed: bool,
    /// Whether the SSD was given up because it is gone. Until the loss is on record, nothing but dirty lines
    /// changes the origin.
    pub ssd_is_gone: bool,
}

/// Wakes the control plane, from any thread.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

/// The data path, as the service uses it. Volumes are known by their names.
pub trait Engine: ArrayEngine + 'static {
    /// Sets the waker for a change of [`Engine::health`] of some volume for the worse, or of
    /// [`ArrayEngine::array_devices`] of some array at all. A fault of either wakes as well.
    fn set_waker(&self, waker: Waker);

    /// Takes one line of the daemon's log.
    fn log(&self, line: &str) {
        tracing::info!("{line}");
    }

    /// [`Self::log`] of what a user has to look at.
    fn warn(&self, line: &str) {
        tracing::warn!("{line}");
    }

    /// Size of a device in bytes as far as its name tells: `u64::MAX` for a path.
    ///
    /// # Errors
    /// When the device's profile is unknown.
    fn size_of(&self, device: &DeviceSpec) -> ControlResult<u64>;

    /// The machine whose drives these are.
    fn machine(&self) -> &Machine;

    /// Looks at a device before it is used. An engine whose devices are not this machine's answers
    /// for them itself.
    ///
    /// # Errors
    /// As [`safety::examine`].
    fn examine(&self, path: &Path, role: Role) -> ControlResult<Examined> {
        safety::examine(self.machine(), path, role)
    }

    /// The storage that a path leads to now; `None` when nothing is there.
    fn id_of(&self, path: &Path) -> Option<DeviceId> {
        DeviceId::of_path(self.machine(), path)
    }

    /// Whether a drive still has requests of a volume or an array of this daemon, which has let the drive go.
    /// Such a drive looks as if another program used it, and so does one whose file system does not answer.
    fn is_letting_go(&self, _path: &Path) -> bool {
        false
    }

    /// Whether a block device is at a path: the kernel gives such names in the order in which it finds
    /// drives.
    fn is_block_device(&self, path: &Path) -> bool {
        path.metadata().is_ok_and(|meta| meta.file_type().is_block_device())
    }

    /// The mark that the drive at a path is known by under any path. `None` when nothing is there, and of
    /// a drive without such a mark.
    fn drive_identity(&self, path: &Path) -> Option<DriveIdentity> {
        DriveIdentity::of_path(self.machine(), path)
    }

    /// The path of the drive with this identity, which was at `hint`; `None` when it is not here.
    fn find_drive(&self, identity: &DriveIdentity, hint: &Path) -> Option<PathBuf> {
        identity.find(self.machine(), hint)
    }

    /// All drives with this identity: several, if drives share it.
    fn drives_with(&self, identity: &DriveIdentity, hint: &Path) -> Vec<PathBuf> {
        identity.find_all(self.machine(), hint)
    }

    /// The block devices of the machine that have a mark of Voltier's.
    fn own_devices(&self) -> Vec<PathBuf> {
        safety::own_devices(self.machine())
    }

    /// The regular files of a folder that have a mark of Voltier's.
    fn own_files(&self, folder: &Path) -> Vec<PathBuf> {
        safety::own_files(self.machine(), folder)
    }

    /// The block devices of the machine and the regular files of these folders, as [`safety::around`] lists
    /// them.
    fn around(&self, folders: &BTreeSet<PathBuf>) -> Vec<(PathBuf, u64)> {
        safety::around(self.machine(), folders)
    }

    /// Why the drive at a path takes no writes, if that is so.
    fn write_protection(&self, path: &Path) -> Option<WriteProtection> {
        WriteProtection::of(self.machine(), path)
    }

    /// An identity for something new: never given before.
    ///
    /// # Errors
    /// When the system has no randomness to give.
    fn draw_identity(&self) -> ControlResult<Identity> {
        Identity::random()
    }

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

    /// Opens a volume with its cache, if the record has one that did not fail.
    ///
    /// # Errors
    /// Nothing is open then. With `Format`, an SSD that is too small is told apart before anything
    /// is written to it.
    fn open(&self, record: &VolumeRecord, start: CacheStart) -> ControlResult<OpenedVolume>;

    /// Why the code that serves an open volume has failed, if it has: the reason without the volume's name.
    /// The volume is not open after this answer. Clients are cut off, and nothing is written any more.
    ///
    /// Without an answer of its own, an engine does not outlive such a failure.
    fn take_fault(&self, _: &VolumeName) -> Option<String> {
        None
    }

    /// Lets the dirty lines of a volume that was opened and evacuates go to its origin, after that is on
    /// record.
    ///
    /// # Errors
    /// When the volume is not open.
    fn begin_evacuation(&self, name: &VolumeName) -> ControlResult<()>;

    /// Where clients of a volume are to change the origin past an SSD that takes no writes, if that is not on
    /// record yet.
    fn passing(&self, _: &VolumeName) -> Option<Passing> {
        None
    }

    /// The registry has what [`passing`](Self::passing) has told under this number.
    fn passing_is_recorded(&self, _: &VolumeName, _: u64) {}

    /// Stops a volume cleanly: dirty lines stay dirty, the log is checkpointed. The exports are
    /// closed before.
    ///
    /// # Errors
    /// When the clean stop could not be written; the volume is closed all the same.
    fn close(&self, name: &VolumeName) -> ControlResult<()>;

    /// Puts the freshly formatted cache of a record in front of its volume, which is open and has none; its
    /// generation.
    ///
    /// # Errors
    /// The volume serves on without it.
    fn attach(&self, record: &VolumeRecord) -> ControlResult<u64>;

    /// Writes everything back, the last of it while requests wait. Requests wait until `detach` or
    /// `resume`: so the registry can forget the cache while nothing can become dirty in it.
    ///
    /// # Errors
    /// When there is no cache, or it could not be written back: all is as before then.
    fn quiesce(&self, name: &VolumeName) -> ControlResult<()>;

    /// Lets requests go on after `quiesce`, with the cache still in front.
    fn resume(&self, name: &VolumeName);

    /// Takes the cache away and unmarks the SSD. With `write_back`, what is dirty goes to the
    /// origin first; without, it is given up.
    ///
    /// # Errors
    /// When there is none, or it could not be written back (it stays then), or not be unmarked.
    fn detach(&self, name: &VolumeName, write_back: bool) -> ControlResult<()>;

    /// Gives a cache other settings while it serves.
    ///
    /// # Errors
    /// The old settings hold then.
    fn configure(&self, name: &VolumeName, settings: &Settings) -> ControlResult<()>;

    /// Starts writing every dirty line back; one that runs already is joined.
    ///
    /// # Errors
    /// When the volume is not open.
    fn start_drain(&self, name: &VolumeName) -> ControlResult<()>;

    /// Ends a drain that is under way, and a [`quiesce`](Engine::quiesce) too, with an error: what is dirty
    /// stays dirty. An engine whose drains take no time has nothing to end.
    fn end_drain(&self, _: &VolumeName) {}

    /// Where the last drain stands.
    fn drain(&self, name: &VolumeName) -> Drain;

    /// The figures that change by themselves.
    fn health(&self, name: &VolumeName) -> CacheHealth;

    /// Fills in what the data path knows: counters, lines, sizes, device states.
    fn fill_status(&self, name: &VolumeName, status: &mut VolumeStatus);

    /// The loss of an SSD is on record: requests that wait for it may change the origin now.
    fn failure_is_recorded(&self, name: &VolumeName);

    /// Opens an export, its socket or file with the given access (without one for the user of the daemon
    /// alone). The answer is where the export really is: TCP port 0 asks for a free one.
    ///
    /// # Errors
    /// When the address is taken, not permitted, the kernel has no such export, or a user or group of the
    /// access is not there.
    fn export(
        &self,
        name: &VolumeName,
        export: &ExportSpec,
        access: Option<&ExportAccess>,
    ) -> ControlResult<ExportSpec>;

    /// Closes an export; network clients on it are cut off. With `cut_off`, the users of a file are too.
    ///
    /// # Errors
    /// When the kernel does not let go of it (a FUSE file in use).
    fn unexport(&self, name: &VolumeName, export: &ExportSpec, cut_off: bool) -> ControlResult<()>;

    /// Removes what the export of a daemon that was killed left in the file system, if anything.
    fn clear_dead(&self, export: &ExportSpec);

    /// Why an export that was opened takes no more clients, if that is so.
    fn export_trouble(&self, name: &VolumeName, export: &ExportSpec) -> Option<String>;

    /// Clients connected to an export now; of a file, how often it is open.
    fn clients(&self, name: &VolumeName, export: &ExportSpec) -> u64;
}
