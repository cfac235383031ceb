//! The gate before any write: what holds something is refused until it is named twice.
//!
//! Only what nobody can have data on passes unnamed: files that the run makes itself, files without
//! any data, modelled drives. A target that is mounted or in use is refused in any case.

use std::fs::File;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use rustix::fs::SeekFrom;
use voltier_control::safety::{self, Finding, Machine, Role};
use voltier_results::size::format_bytes;

use super::facts;
use super::target::{Kind, Target};
use crate::LabError;
use crate::plan::step::Estimate;

/// Lets a run write to its targets, or refuses. The answer lists the data that will be lost, a line each.
///
/// # Errors
/// One line that names the target, what it holds, and what to say if that is to be lost.
pub(super) fn pass(targets: &[Target], destroy: &[String]) -> Result<Vec<String>, LabError> {
    let mut lost = Vec::new();
    let mut used = vec![false; destroy.len()];
    for target in targets {
        let mut named = |what: &dyn Fn(&str) -> bool| {
            let mut found = false;
            for (word, used) in destroy.iter().zip(&mut used) {
                if what(word) {
                    (*used, found) = (true, true);
                }
            }
            found
        };
        match &target.kind {
            Kind::Model(_) | Kind::Folder(_) => {}
            Kind::Paths(paths) => {
                for path in paths.iter().filter(|path| !target.made.contains(path)) {
                    let is_named = named(&|word| names_path(word, path));
                    lost.extend(judge_path(path, is_named)?);
                }
            }
            Kind::Nbd(_) | Kind::Rbd(_) | Kind::Volume(_) => {
                if !named(&|word| word == target.given) {
                    return Err(refused(&target.given, "may hold data", &target.given));
                }
                lost.push(format!("everything on {}", target.given));
            }
        }
    }
    match destroy.iter().zip(used).find(|(_, used)| !used) {
        Some((word, _)) => Err(LabError::Target {
            target: word.clone(),
            why: "is named by --destroy and is no target that would lose anything".to_owned(),
        }),
        None => Ok(lost),
    }
}

/// The writes of a run, in one line.
pub(super) fn announcement(estimate: &Estimate) -> String {
    let once = match estimate.bytes_written {
        0 => "nothing".to_owned(),
        bytes => format!("{} MiB", bytes.div_ceil(1 << 20)),
    };
    match estimate.writing_max.as_secs() {
        0 if estimate.writing_max.is_zero() => format!("writes {once}"),
        seconds => format!(
            "writes {once} in preparation, then for at most {seconds} s as fast as the target takes it"
        ),
    }
}

fn refused(target: &str, holds: &str, say: &str) -> LabError {
    LabError::Target {
        target: target.to_owned(),
        why: format!(
            "{holds}, which this plan overwrites: if that is meant, name it again with \
             --destroy {say}"
        ),
    }
}

/// By its path, by the path behind a link (/dev/disk/by-id), or by its serial number.
fn names_path(word: &str, path: &Path) -> bool {
    let same = || {
        let (one, other) = (std::fs::canonicalize(word).ok(), std::fs::canonicalize(path).ok());
        one.is_some() && one == other
    };
    facts::serial(path).is_some_and(|serial| serial == word) || same()
}

fn judge_path(path: &Path, is_named: bool) -> Result<Option<String>, LabError> {
    let shown = path.display().to_string();
    let examined = safety::examine(&Machine::real(), path, Role::Cache);
    let examined = examined.map_err(|error| LabError::Target {
        target: shown.clone(),
        why: format!("cannot be written: {error}"),
    })?;
    if let Some(finding) = examined.findings.iter().find(|found| !found.may_be_overridden()) {
        return Err(LabError::Target { target: shown, why: finding.to_string() });
    }
    let contents = examined.findings.iter().filter_map(|finding| match finding {
        Finding::Content(what) => Some(what.as_str()),
        _ => None,
    });
    let contents: Vec<&str> = contents.collect();
    let is_block = path.metadata().is_ok_and(|meta| meta.file_type().is_block_device());
    let size = format_bytes(examined.size_bytes);
    let holds = match contents.as_slice() {
        [] if !is_block && has_no_data(path) => return Ok(None),
        [] => format!("has {size} of which nothing is recognised"),
        all => format!("holds {} ({size})", all.join(" and ")),
    };
    if !is_named {
        return Err(refused(&shown, &holds, &shown));
    }
    Ok(Some(format!("{shown}: {holds}")))
}

/// Whether a file has no data at all, only a size.
fn has_no_data(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    matches!(rustix::fs::seek(&file, SeekFrom::Data(0)), Err(rustix::io::Errno::NXIO))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn target(path: &Path) -> Target {
        let daemon =
            super::super::target::Daemon { state: "state".into(), program: "voltier".into() };
        let extent = crate::plan::Extent::Bytes(1 << 20);
        let given = path.display().to_string();
        Target::find("t", &given, extent, &daemon, &crate::process::Stop::default()).unwrap()
    }

    #[test]
    fn a_file_with_data_is_refused_until_it_is_named_twice() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.img");
        fs::write(&path, vec![7; 2 << 20]).unwrap();
        let shown = path.display().to_string();
        let message = pass(&[target(&path)], &[]).unwrap_err().to_string();
        assert!(message.contains(&format!("--destroy {shown}")), "{message}");
        assert_eq!(message.lines().count(), 1);
        let lost = pass(&[target(&path)], std::slice::from_ref(&shown)).unwrap();
        assert!(lost[0].contains("2M"), "{lost:?}");
        let other = pass(&[target(&path)], &["disk.img".to_owned()]).unwrap_err().to_string();
        assert!(other.contains("--destroy"), "{other}");
    }

    #[test]
    fn what_a_file_holds_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.img");
        let mut bytes = vec![0; 2 << 20];
        bytes[1080..1082].copy_from_slice(&[0x53, 0xef]);
        fs::write(&path, bytes).unwrap();
        let message = pass(&[target(&path)], &[]).unwrap_err().to_string();
        assert!(message.contains("ext2/3/4 file system"), "{message}");
    }

    #[test]
    fn a_file_without_data_and_one_that_the_run_makes_pass() {
        let folder = tempfile::tempdir().unwrap();
        let empty = folder.path().join("empty.img");
        File::create(&empty).unwrap().set_len(4 << 20).unwrap();
        let missing = folder.path().join("new.img");
        assert_eq!(pass(&[target(&empty), target(&missing)], &[]).unwrap(), [""; 0]);
        let message = pass(&[target(&missing)], &["else".to_owned()]).unwrap_err().to_string();
        assert!(message.contains("is no target"), "{message}");
    }
}
