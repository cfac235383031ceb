//! An export as the control plane holds it, whatever its kind.

use std::sync::Arc;

use voltier_control::{ControlResult, ExportSpec, VolumeName};
use voltier_export::FileAccess;
use voltier_export::nbd::Budget;

use crate::call::Way;
use crate::exports::keeping::Keeping;

/// What the control plane asks of an open export, whatever its kind. No request of a client passes here.
pub(crate) trait OpenExport: Send {
    /// Closes the export. A file that somebody has open stays, and that is an error, unless its users are
    /// to be cut off.
    fn close(&mut self, cut_off: bool) -> ControlResult<()>;

    /// Passes the export on to the next program of this process: its clients wait for that. It is closed here in any
    /// case.
    ///
    /// # Errors
    /// Why clients are cut off.
    fn pass_on(&mut self, keeping: &Keeping, volume: [u8; 16]) -> Result<(), String>;

    /// Why clients cannot come through it any more, if that is so.
    fn trouble(&self) -> Option<String>;

    /// Clients connected now; of a file, how often it is open. A core that does not answer counts as a
    /// client: nobody knows that there is none.
    fn clients(&self) -> u64;
}

/// An open export, and where it really is: port 0 asked for a free one.
pub(crate) struct Opened {
    pub(crate) spec: ExportSpec,
    pub(crate) export: Box<dyn OpenExport>,
}

/// What an export is opened with.
pub(crate) struct Opener<'a> {
    /// The way to the volume's core.
    pub(crate) way: &'a Way,
    pub(crate) name: &'a VolumeName,
    pub(crate) access: FileAccess,
    pub(crate) budget: &'a Arc<Budget>,
    /// What lets files outlive the daemon, and the identity of the volume, for volumes that do.
    pub(crate) keeping: Option<(&'a Keeping, [u8; 16])>,
}
