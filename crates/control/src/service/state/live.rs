//! The service's knowledge of volumes and arrays beside their records.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::engine::CacheLabel;
use crate::export_spec::ExportSpec;
use crate::name::{ArrayName, VolumeName};
use crate::service::presence::absence::Absence;
use crate::service::presence::last_search::Search;
use crate::spec::DeviceSpec;

/// The time of the control plane.
#[expect(clippy::disallowed_methods, reason = "time of the control plane, not of an I/O")]
pub(in crate::service) fn now() -> Instant {
    Instant::now()
}

/// A volume while the daemon runs, beside its record.
pub(in crate::service) struct Live {
    /// Whether the engine has it open.
    pub(in crate::service) is_open: bool,
    /// The volume's error; empty when all is well.
    pub(in crate::service) error: String,
    /// Exports of the record that could not be opened.
    pub(in crate::service) closed_exports: Vec<ClosedExport>,
    pub(in crate::service) opened_at: Instant,
    /// The drives that it lacks, while it is not open.
    pub(in crate::service) absence: Absence,
    /// The superblock of its SSD, while the volume is not open and the SSD is there.
    pub(in crate::service) ssd_label: Option<CacheLabel>,
    /// Not open because the state folder takes no records.
    pub(in crate::service) is_unrecorded: bool,
}

/// An export of the record that could not be opened, and is tried again.
pub(in crate::service) struct ClosedExport {
    pub(in crate::service) export: ExportSpec,
    /// Why the last attempt failed.
    pub(in crate::service) error: String,
    /// How long to wait after the last attempt.
    pub(in crate::service) pause: Duration,
    /// The next attempt.
    pub(in crate::service) next: Instant,
}

impl Live {
    pub(in crate::service) fn new() -> Self {
        Self {
            is_open: false,
            error: String::new(),
            closed_exports: Vec::new(),
            opened_at: now(),
            absence: Absence::default(),
            ssd_label: None,
            is_unrecorded: false,
        }
    }
}

/// An array while the daemon runs, beside its record.
#[derive(Default)]
pub(in crate::service) struct LiveArray {
    /// Size of the array in bytes while the engine has it open.
    pub(in crate::service) size_bytes: Option<u64>,
    /// Devices of the record that are not in service, and why.
    pub(in crate::service) left_out: Vec<String>,
    /// The reason why the array is not open; empty when the array is.
    pub(in crate::service) error: String,
    /// Whether the reason is that only a newer program can read a device of it.
    pub(in crate::service) is_unsupported: bool,
    /// Devices of the record that a command is bringing to the array: the array does not know them yet.
    pub(in crate::service) arriving: Vec<DeviceSpec>,
    /// The engine may bring the array to the core of a volume: what it tells meanwhile is not all.
    pub(in crate::service) is_moving: bool,
    /// The devices that it lacks: of an open array the members that were in service before.
    pub(in crate::service) absence: Absence,
    /// The search for the array's devices.
    pub(in crate::service) search: Search,
}

impl LiveArray {
    /// An array that is left at rest.
    pub(in crate::service) fn stopped(name: &ArrayName) -> Self {
        let error = format!("it is stopped; `voltier array start {name}` first");
        Self { error, ..Self::default() }
    }
}

/// Volumes and arrays that failed alone since the daemon started, or that were not closed
/// cleanly: the drives of these may have requests of before.
#[derive(Default)]
pub(in crate::service) struct Crashed {
    volumes: BTreeSet<VolumeName>,
    arrays: BTreeSet<ArrayName>,
}

impl Crashed {
    pub(in crate::service) fn add_volume(&mut self, name: &VolumeName) {
        self.volumes.insert(name.clone());
    }

    pub(in crate::service) fn add_array(&mut self, name: &ArrayName) {
        self.arrays.insert(name.clone());
    }

    pub(in crate::service) fn has_volume(&self, name: &VolumeName) -> bool {
        self.volumes.contains(name)
    }

    pub(in crate::service) fn has_array(&self, name: &ArrayName) -> bool {
        self.arrays.contains(name)
    }
}
