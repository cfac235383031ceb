//! A target forgets what it holds: discarded, or zeroed where that is not possible.

use std::fs::File;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::fs::FallocateFlags;
use voltier_results::result::Point;

use super::load::LoadRunner;
use super::target::{Kind, Target};
use crate::LabError;
use crate::fio::{Job, Pattern, Until};
use crate::plan::step::Load;
use crate::process::{self, Stop};

/// A discard of a large drive takes minutes at most.
const DISCARD_LIMIT: Duration = Duration::from_secs(1800);

/// Purges the part of the target that is used; the point says how.
///
/// # Errors
/// When neither way works.
pub(super) fn purge(
    runner: &LoadRunner<'_>,
    target: &Target,
    point: &mut Point,
) -> Result<(), LabError> {
    if let Kind::Paths(paths) = &target.kind {
        let part = target.size_bytes / paths.len() as u64;
        if paths.iter().all(|path| discard(path, part, runner.stop).is_ok()) {
            point.command = vec!["discard".to_owned(), target.given.clone()];
            return Ok(());
        }
    } else if overwrite(runner, target, Pattern::Trim, &mut Point::clone(point)).is_ok() {
        point.command = vec!["discard".to_owned(), target.given.clone()];
        return Ok(());
    }
    overwrite(runner, target, Pattern::Write, point)
}

/// Discards the first bytes of a file or a device.
fn discard(path: &Path, bytes: u64, stop: &Stop) -> Result<(), LabError> {
    let is_block = path.metadata().is_ok_and(|meta| meta.file_type().is_block_device());
    if !is_block {
        let file = File::options().write(true).open(path).map_err(LabError::file(path))?;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        return rustix::fs::fallocate(&file, flags, 0, bytes)
            .map_err(|errno| LabError::File { path: path.to_path_buf(), source: errno.into() });
    }
    let mut command = Command::new("blkdiscard");
    command.args(["--offset", "0", "--length", &bytes.to_string()]).arg(path);
    let finished = process::run(&mut command, "blkdiscard", DISCARD_LIMIT, stop)?;
    match finished.status.success() {
        true => Ok(()),
        false => {
            Err(LabError::Failed { what: "blkdiscard".to_owned(), detail: finished.last_words() })
        }
    }
}

/// Goes over the used part once with discards or zeroes.
fn overwrite(
    runner: &LoadRunner<'_>,
    target: &Target,
    pattern: Pattern,
    point: &mut Point,
) -> Result<(), LabError> {
    let job = Job {
        name: "purge".to_owned(),
        pattern,
        block_bytes: 1 << 20,
        iodepth: 16,
        numjobs: 1,
        size_bytes: target.size_bytes,
        until: Until::Once,
        more: vec![("zero_buffers", "1".to_owned())],
    };
    runner.measure(&Load::of(job), target, point)?;
    // Discards are counted as neither reads nor writes.
    point.status = voltier_results::result::Status::Ok;
    Ok(())
}
