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

    /// Ends the files and connections that the daemon before left, but for those of exports that will be opened. The
    /// others wait for that, with all who use them.
    fn end_kept_but(&self, awaited: &[ExportSpec]);

    /// Whether a file or connections that the daemon before left wait for its export to be opened, with all who use it.
    fn is_kept(&self, export: &ExportSpec) -> bool;

    /// Ends a file, or connections, that wait for their export to be opened.
    fn end_kept(&self, export: &ExportSpec, why: &str);

    /// The daemon ends in order: no file is kept for the next one from here on.
    fn keep_nothing(&self);

    /// The form in which exports are passed on to the next program of this process: one of another form cannot take
    /// them.
    fn handover(&self) -> u32;

    /// Exports are passed on to the next program of this process from here on, and what they have is to be answered
    /// soon.
    fn begin_to_pass(&self);

    /// Closes an export here, and passes it on: its clients wait for the next program. Those that cannot be passed on
    /// are cut off.
    fn pass_on(&self, name: &VolumeName, export: &ExportSpec);

    /// The variables with which that program finds them; those without a value are to be left out. All volumes are
    /// closed.
    ///
    /// # Errors
    /// When there is no memory for the list.
    fn passed(&self) -> ControlResult<Vec<(String, Option<String>)>>;

    /// Why an export that was opened takes no more clients, if that is so.
    fn export_trouble(&self, name: &VolumeName, export: &ExportSpec) -> Option<String>;

    /// Clients connected to an export now; of a file, how often it is open.
    fn clients(&self, name: &VolumeName, export: &ExportSpec) -> u64;
}
