//! Open volumes.

use crate::error::ControlResult;
use crate::name::VolumeName;
use crate::records::VolumeRecord;
use crate::status::VolumeStatus;

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
    /// The SSD takes no writes: see [`Caches::begin_evacuation`](super::Caches::begin_evacuation).
    pub evacuates: bool,
}

/// Opens, closes and shows volumes, which are known by their names.
pub trait Volumes {
    /// Opens a volume with its cache, if the record has one that did not fail.
    ///
    /// # Errors
    /// Nothing is open then. With `Format`, an SSD that is too small is told apart before anything
    /// is written to it.
    fn open(&self, record: &VolumeRecord, start: CacheStart) -> ControlResult<OpenedVolume>;

    /// Why the code that serves an open volume has failed, if it has: the reason without the volume's name.
    /// The volume is not open after this answer. Clients are cut off, and nothing is written any more.
    fn take_fault(&self, name: &VolumeName) -> Option<String>;

    /// Stops a volume cleanly: dirty lines stay dirty, the log is checkpointed. The exports are
    /// closed before.
    ///
    /// # Errors
    /// When the clean stop could not be written; the volume is closed all the same.
    fn close(&self, name: &VolumeName) -> ControlResult<()>;

    /// Fills in what the data path knows: counters, lines, sizes, device states.
    fn fill_status(&self, name: &VolumeName, status: &mut VolumeStatus);
}
