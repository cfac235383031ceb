//! The service's knowledge of volumes and arrays beside their records.

use std::time::Instant;

use crate::export_spec::ExportSpec;

/// A volume while the daemon runs, beside its record.
pub(super) struct Live {
    /// Whether the engine has it open.
    pub(super) is_open: bool,
    /// The volume's error; empty when all is well.
    pub(super) error: String,
    /// Exports of the record that could not be opened, and why.
    pub(super) closed_exports: Vec<(ExportSpec, String)>,
    pub(super) opened_at: Instant,
}

impl Live {
    #[expect(clippy::disallowed_methods, reason = "uptime of the control plane, not of an I/O")]
    pub(super) fn new() -> Self {
        Self {
            is_open: false,
            error: String::new(),
            closed_exports: Vec::new(),
            opened_at: Instant::now(),
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
}
