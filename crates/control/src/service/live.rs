//! The service's knowledge of volumes and arrays beside their records.

use std::time::Instant;

use super::absence::Absence;
use crate::export_spec::ExportSpec;

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
    /// Exports of the record that could not be opened, and why.
    pub(super) closed_exports: Vec<(ExportSpec, String)>,
    pub(super) opened_at: Instant,
    /// The drives that it lacks, while it is not open.
    pub(super) absence: Absence,
    /// Not open because the state folder takes no records.
    pub(super) is_unrecorded: bool,
}

impl Live {
    pub(super) fn new() -> Self {
        Self {
            is_open: false,
            error: String::new(),
            closed_exports: Vec::new(),
            opened_at: now(),
            absence: Absence::default(),
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
    /// Why it is not open; empty when it is.
    pub(super) error: String,
    /// The devices that it lacks: of an open array the members that were in service before.
    pub(super) absence: Absence,
}
