//! The caches of open volumes.

use crate::error::ControlResult;
use crate::name::VolumeName;
use crate::records::VolumeRecord;
use crate::settings::Settings;
use crate::status::ByteRange;

/// Where clients of a volume are to change the origin past an SSD that takes no writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Passing {
    /// Grows with every change.
    pub number: u64,
    /// All of it, in order.
    pub ranges: Vec<ByteRange>,
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

/// Puts caches in front of open volumes, writes them back and takes them away.
pub trait Caches {
    /// Lets the dirty lines of a volume that was opened and evacuates go to its origin, after that is on
    /// record.
    ///
    /// # Errors
    /// When the volume is not open.
    fn begin_evacuation(&self, name: &VolumeName) -> ControlResult<()>;

    /// Where clients of a volume are to change the origin past an SSD that takes no writes, if that is not on
    /// record yet.
    fn passing(&self, name: &VolumeName) -> Option<Passing>;

    /// The registry has what [`passing`](Self::passing) has told under this number.
    fn passing_is_recorded(&self, name: &VolumeName, number: u64);

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

    /// Ends a drain that is under way, and a [`quiesce`](Self::quiesce) too, with an error: what is dirty
    /// stays dirty.
    fn end_drain(&self, name: &VolumeName);

    /// Where the last drain stands.
    fn drain(&self, name: &VolumeName) -> Drain;

    /// The figures that change by themselves.
    fn health(&self, name: &VolumeName) -> CacheHealth;

    /// The loss of an SSD is on record: requests that wait for it may change the origin now.
    fn failure_is_recorded(&self, name: &VolumeName);
}
