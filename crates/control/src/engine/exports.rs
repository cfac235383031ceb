//! Exports of open volumes.

use crate::error::ControlResult;
use crate::export_access::ExportAccess;
use crate::export_spec::ExportSpec;
use crate::name::VolumeName;

/// Opens and closes the ways of clients to volumes.
pub trait Exports {
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

    /// Checks that an export can be opened, as far as that is seen without doing it.
    ///
    /// # Errors
    /// When the kernel or a program lacks something, or the address or name is taken.
    fn check_export(&self, export: &ExportSpec) -> ControlResult<()>;

    /// Closes an export; network clients on it are cut off. With `cut_off`, the users of a file are too.
    ///
    /// # Errors
    /// When the kernel does not let go of it (a FUSE file in use).
    fn unexport(&self, name: &VolumeName, export: &ExportSpec, cut_off: bool) -> ControlResult<()>;

    /// Removes what the export of a daemon that was killed left in the file system, unless that waits for the export
    /// to be opened again.
    fn clear_dead(&self, export: &ExportSpec);

    /// Ends the files that the daemon before left, but for those of exports that will be opened. The others wait for
    /// that, with all who use them.
    fn end_kept_but(&self, awaited: &[ExportSpec]);

    /// Whether a file that the daemon before left waits for its export to be opened, with all who use it.
    fn is_kept(&self, export: &ExportSpec) -> bool;

    /// Ends a file that waits for its export to be opened.
    fn end_kept(&self, export: &ExportSpec, why: &str);

    /// The daemon ends in order: no file is kept for the next one from here on.
    fn keep_nothing(&self);

    /// Why an export that was opened takes no more clients, if that is so.
    fn export_trouble(&self, name: &VolumeName, export: &ExportSpec) -> Option<String>;

    /// Clients connected to an export now; of a file, how often it is open.
    fn clients(&self, name: &VolumeName, export: &ExportSpec) -> u64;
}
