//! The service's knowledge of volumes and arrays beside their records.

use std::time::{Duration, Instant};

use crate::engine::CacheLabel;
use crate::export_spec::ExportSpec;
use crate::name::ArrayName;
use crate::service::presence::absence::Absence;
use crate::service::presence::last_search::Search;
use crate::spec::DeviceSpec;

/// The time of the control plane.
#[expect(clippy::disallowed_methods, reason = "time of the control plane, not of an I/O")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// A volume while the daemon runs, beside its record.
pub(crate) struct Live {
    /// Whether the engine has it open.
    pub(crate) is_open: bool,
    /// About to be closed: what it reports is its last word.
    pub(crate) is_closing: bool,
    /// The volume's error; empty when all is well.
    pub(crate) error: String,
    /// What happened at its start that is no error; empty when nothing did.
    pub(crate) note: String,
    /// Served without its ephemeral SSD, and looks for it.
    pub(crate) awaits_ssd: bool,
    /// Exports of the record that could not be opened.
    pub(crate) closed_exports: Vec<ClosedExport>,
    pub(crate) opened_at: Instant,
    /// The drives that it lacks, while it is not open.
    pub(crate) absence: Absence,
    /// The superblock of its SSD, while the volume is not open and the SSD is there.
    pub(crate) ssd_label: Option<CacheLabel>,
    /// Not open because the state folder takes no records.
    pub(crate) is_unrecorded: bool,
    /// Errors of its SSD and of its backing disk since the start that its user has taken note of.
    pub(crate) acknowledged_errors: [u64; 2],
    /// Since when every look has found writes that wait because of `max_unshipped`.
    pub(crate) writes_wait_since: Option<Instant>,
}

/// An export of the record that could not be opened, and is tried again.
pub(crate) struct ClosedExport {
    pub(crate) export: ExportSpec,
    /// Why the last attempt failed.
    pub(crate) error: String,
    /// How long to wait after the last attempt.
    pub(crate) pause: Duration,
    /// The next attempt.
    pub(crate) next: Instant,
}

impl Live {
    pub(crate) fn new() -> Self {
        Self {
            is_open: false,
            is_closing: false,
            error: String::new(),
            note: String::new(),
            awaits_ssd: false,
            closed_exports: Vec::new(),
            opened_at: now(),
            absence: Absence::default(),
            ssd_label: None,
            is_unrecorded: false,
            acknowledged_errors: [0; 2],
            writes_wait_since: None,
        }
    }
}

/// An array while the daemon runs, beside its record.
#[derive(Default)]
pub(crate) struct LiveArray {
    /// Size of the array in bytes while the engine has it open.
    pub(crate) size_bytes: Option<u64>,
    /// Devices of the record that are not in service, and why.
    pub(crate) left_out: Vec<String>,
    /// The reason why the array is not open; empty when the array is.
    pub(crate) error: String,
    /// Whether the reason is that only a newer program can read a device of it.
    pub(crate) is_unsupported: bool,
    /// Devices of the record that a command is bringing to the array: the array does not know them yet.
    pub(crate) arriving: Vec<DeviceSpec>,
    /// The engine may bring the array to the core of a volume: what it tells meanwhile is not all.
    pub(crate) is_moving: bool,
    /// The devices that it lacks: of an open array the members that were in service before.
    pub(crate) absence: Absence,
    /// The search for the array's devices.
    pub(crate) search: Search,
}

impl LiveArray {
    /// An array that is left at rest.
    pub(crate) fn stopped(name: &ArrayName) -> Self {
        let error = format!("it is stopped; `voltier array start {name}` first");
        Self { error, ..Self::default() }
    }
}
