//! The stack that clients see: a volume is an origin, with a cache in front of it or without.
//!
//! ```text
//!   export ──> Volume: range checked, long requests cut, counted
//!              │ plain ──────────────> origin
//!              └ cached ──> Cache ──┬─> SSD
//!                                   └─> origin
//! ```
//!
//! Changes of the same sectors reach the origin in the order of their arrival, whether their clients are still
//! there or not.
//!
//! Exports hold a [`Volume`] and see a block device; whether a cache is in front changes under them,
//! between two requests. A volume and everything below it belongs to one core.
//!
//! | file | content |
//! | --- | --- |
//! | `volume` | requests; how a cache comes and goes under traffic |
//! | `front` | the cache of a record put in front, and changed there |
//! | `gate` | requests pass a gate, which closes while the stack changes |
//! | `steps` | how much of a request without data is done between two looks at the gate |
//! | `drive` | all kinds of drives that a volume may stand on |
//!
//! To *drain* a volume is to write back all that is dirty when the drain begins. To *quiesce* a volume is to
//! drain it, the last part while requests wait, and to let these wait on.

pub mod canary;
mod drive;
mod front;
mod gate;
mod steps;
mod volume;

pub use drive::{Drive, Leaf, LeafKind};
pub use front::{ChangeError, Front, change_cache, origin_has_cache, put_in_front};
pub use voltier_array::Array;
pub use voltier_cache::{
    Cache, DeviceBytes, FormatOptions, Health, Label, LineSize, Mode, OpenError, OpenOptions,
    Opened, OriginTrust, RequestCounts, Settings, Side, SilentDrive, Status, UnwritableSsd,
    WallClock, admission::AdmissionKind, policy::PolicyKind,
};
pub use volume::{Volume, VolumeError, VolumeFigures};
