//! The service's knowledge of volumes and arrays beside their records.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::absence::Absence;
use super::last_search::Search;
use crate::engine::CacheLabel;
use crate::export_spec::ExportSpec;
use crate::name::{ArrayName, VolumeName};
use crate::spec::DeviceSpec;

/// The time of the control plane.
#[expect(clippy::disallowed_methods, reason = "time of the control plane, not of an I/O")]
pub(super) fn now() -> Instant {
    Instant::now()
}

/// A volume while the daemon runs, beside its record.
pub(super) struct Live {
    /// Whether the engine has it open.
    pub(super) is_open: bool,
    /// The volume's error; empty when all is well.
    pub(super) error: String,
    /// Exports of the record that could not be opened.
    pub(super) closed_exports: Vec<ClosedExport>,
    pub(super) opened_at: Instant,
    /// The drives that it lacks, while it is not open.
    pub(super) absence: Absence,
    /// The superblock of its SSD, while the volume is not open and the SSD is there.
    pub(super) ssd_label: Option<CacheLabel>,
    /// Not open because the state folder takes no records.
    pub(super) is_unrecorded: bool,
}

/// An export of the record that could not be opened, and is tried again.
pub(super) struct ClosedExport {
    pub(super) export: ExportSpec,
    /// Why the last attempt failed.
    pub(super) error: String,
    /// How long to wait after the last attempt.
    pub(super) pause: Duration,
    /// The next attempt.
    pub(super) next: Instant,
}

impl Live {
    pub(super) fn new() -> Self {
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
pub(super) struct LiveArray {
    /// Size of the array in bytes while the engine has it open.
    pub(super) size_bytes: Option<u64>,
    /// Devices of the record that are not in service, and why.
    pub(super) left_out: Vec<String>,
    /// The reason why the array is not open; empty when the array is.
    pub(super) error: String,
    /// Whether the reason is that only a newer program can read a device of it.
    pub(super) is_unsupported: bool,
    /// Devices of the record that a command is bringing to the array: the array does not know them yet.
    pub(super) arriving: Vec<DeviceSpec>,
    /// The engine may bring the array to the core of a volume: what it tells meanwhile is not all.
    pub(super) is_moving: bool,
    /// The devices that it lacks: of an open array the members that were in service before.
    pub(super) absence: Absence,
    /// The search for the array's devices.
    pub(super) search: Search,
}

impl LiveArray {
    /// An array that is left at rest.
    pub(super) fn stopped(name: &ArrayName) -> Self {
        let error = format!("it is stopped; `voltier array start {name}` first");
        Self { error, ..Self::default() }
    }
}

/// Volumes and arrays that failed alone since the daemon started, or that were not closed
/// cleanly: the drives of these may have requests of before.
#[derive(Default)]
pub(super) struct Crashed {
    volumes: BTreeSet<VolumeName>,
    arrays: BTreeSet<ArrayName>,
}

impl Crashed {
    pub(super) fn add_volume(&mut self, name: &VolumeName) {
        self.volumes.insert(name.clone());
    }

    pub(super) fn add_array(&mut self, name: &ArrayName) {
        self.arrays.insert(name.clone());
    }

    pub(super) fn has_volume(&self, name: &VolumeName) -> bool {
        self.volumes.contains(name)
    }

    pub(super) fn has_array(&self, name: &ArrayName) -> bool {
        self.arrays.contains(name)
    }
}
