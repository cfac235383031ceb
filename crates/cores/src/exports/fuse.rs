//! Files that are volumes: mounted from the control thread, served on the volume's core.

use std::path::Path;

use voltier_control::{ControlError, ControlResult, ExportSpec, VolumeName};
use voltier_export::ExportError;
use voltier_export::fuse::{FileExport, FuseFile, News};

use crate::exports::keeping::Keeping;
use crate::exports::open_export::{OpenExport, Opened, Opener};
use crate::volumes;

struct Mounted {
    name: VolumeName,
    file: FuseFile,
}

/// Mounts the file of a volume.
pub(super) fn mount(opener: &Opener<'_>, path: &Path) -> ControlResult<FuseFile> {
    let volume = opener.name.clone();
    let serve = move |handle| async move {
        Ok(FileExport::open(&handle, volumes::resident(&volume)?.exported.clone()))
    };
    let export = opener.way.call(serve)?;
    let keep =
        opener.keeping.map(|(keeping, volume)| keeping.keep(path, volume)).unwrap_or_default();
    let file = FuseFile::mount_kept(export, path, opener.access, keep);
    let mut file = file.map_err(ControlError::from_error)?;
    for News { line, is_warning } in file.news() {
        match is_warning {
            true => tracing::warn!("{}: {line}", opener.name),
            false => tracing::info!("{}: {line}", opener.name),
        }
    }
    if file.is_adopted() {
        tracing::info!(
            "{}: {} is served on for those who have it open",
            opener.name,
            path.display()
        );
    }
    Ok(file)
}

pub(super) fn open(opener: Opener<'_>, path: &Path) -> ControlResult<Opened> {
    let file = mount(&opener, path)?;
    let export = Box::new(Mounted { name: opener.name.clone(), file });
    Ok(Opened { spec: ExportSpec::Fuse(path.to_owned()), export })
}

/// Passes a file on to the next program of this process.
pub(super) fn pass_on(file: &mut FuseFile, keeping: &Keeping) -> Result<(), String> {
    let pair = file.leave(keeping.leave_time())?;
    keeping.pass_file(file.path(), pair);
    Ok(())
}

impl OpenExport for Mounted {
    fn close(&mut self, cut_off: bool) -> ControlResult<()> {
        match self.file.stop() {
            Err(ExportError::FileInUse(_)) if cut_off => {
                self.file.cut_off();
                Ok(())
            }
            stopped => stopped.map_err(ControlError::from_error),
        }
    }

    fn pass_on(&mut self, keeping: &Keeping, _volume: [u8; 16]) -> Result<(), String> {
        pass_on(&mut self.file, keeping)
    }

    fn trouble(&self) -> Option<String> {
        if self.file.is_reachable() {
            return None;
        }
        let (name, path) = (&self.name, self.file.path().display());
        Some(format!(
            "its file {path} was unmounted or covered; `voltier export {name} --fuse {path}` mounts it again"
        ))
    }

    fn clients(&self) -> u64 {
        self.file.handles()
    }
}
