//! The folder of a run, and its room.

use std::fs;
use std::path::Path;

use super::facts;
use crate::LabError;
use crate::plan::step::Estimate;

/// The file of a run in its folder.
pub const RUN_FILE: &str = "run.jsonl";

/// Folder of raw results beside it.
pub const RAW_FOLDER: &str = "raw";

/// Room that results need at least, the report with its chart library among them.
const RESULTS_BYTES: u64 = 8 << 20;

/// Room for the raw result and the line of a point, about.
pub(super) const POINT_BYTES: u64 = 24 << 10;

/// A folder for a new run, with room for it.
pub(super) fn make_folder(folder: &Path, estimate: &Estimate) -> Result<(), LabError> {
    if folder.join(RUN_FILE).exists() {
        return Err(LabError::Target {
            target: folder.display().to_string(),
            why: "holds a run already: give another --out, or --resume it".to_owned(),
        });
    }
    fs::create_dir_all(folder.join(RAW_FOLDER)).map_err(full(folder))?;
    let needed = RESULTS_BYTES + estimate.points_max * POINT_BYTES;
    let free = facts::free_bytes(folder)?;
    if free < needed {
        return Err(LabError::Target {
            target: folder.display().to_string(),
            why: format!(
                "has no space for results: {} KiB are free, {} KiB may be needed; give another --out",
                free >> 10,
                needed.div_ceil(1024)
            ),
        });
    }
    Ok(())
}

/// A full disk in its own words; any other error as it is.
fn full(folder: &Path) -> impl Fn(std::io::Error) -> LabError + '_ {
    move |source| out_of_space(LabError::File { path: folder.to_path_buf(), source }, folder)
}

/// Turns "no space left on device" into what to do about it.
pub(super) fn out_of_space(error: LabError, folder: &Path) -> LabError {
    match &error {
        LabError::File { source, .. } if source.kind() == std::io::ErrorKind::StorageFull => {
            LabError::NoSpace { folder: folder.to_path_buf() }
        }
        _ => error,
    }
}
