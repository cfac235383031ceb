//! The checks of a device before anything is written to it (guarantee 9).
//!
//! [`examine`] only looks. The call opens the device for itself, asks the kernel who uses the device,
//! reads the first bytes, and lets go again. A drive that is opened later takes its own lock. The
//! result is a list of findings. A user can override content findings with `-f`, because the user then
//! knows what would be lost. A device that is mounted or in use is refused always.

mod around;
mod drive_identity;
mod drives_below;
mod finding;
mod identity;
mod looks;
mod machine;
mod protection;
mod remote;
mod role;
mod room;
mod signature;
mod usage;
pub(crate) mod users;

pub use around::around;
pub use drive_identity::DriveIdentity;
pub(crate) use drives_below::{PhysicalDrive, drives_below};
pub use finding::Finding;
pub use identity::DeviceId;
pub use machine::Machine;
pub use protection::WriteProtection;
pub use remote::{REMOTE_PATIENCE, TakenImage, take_image_over};
pub use role::Role;
pub use room::{Promise, Promises, Room, Shortage};

use std::fmt;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::error::{ControlError, ControlResult};
use crate::file_lock;
use crate::image_report::ImageReport;
use crate::remote::Remote;
use looks::ANSWER_MAX;
use signature::Content;

/// A device that was examined.
#[derive(Clone, Debug)]
pub struct Examined {
    /// The storage behind the path.
    pub id: DeviceId,
    /// Size in bytes.
    pub size_bytes: u64,
    /// The findings against writing to the device, gravest first.
    pub findings: Vec<Finding>,
    /// What a drive beyond this machine is known by.
    pub remote_identity: Option<DriveIdentity>,
    /// What another host reported that used the image last.
    pub report: Option<ImageReport>,
}

/// Whether a device has a mark of Voltier's: a cache, a member, a journal or a spare of an array.
pub(crate) fn says_it_is_ours(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    let found = signature::contents(&file, path, Role::Origin);
    found.is_ok_and(|found| found.iter().any(|content| content.is_ours))
}

/// The block devices of the machine that have such a mark. A device that does not answer has none.
pub fn own_devices(machine: &Machine) -> Vec<PathBuf> {
    let devices = drive_identity::all_block_devices(machine);
    machine.knock(devices.iter().cloned());
    with_marks(machine, devices)
}

/// The regular files of a folder that have such a mark. A file that does not answer has none.
pub fn own_files(machine: &Machine, folder: &Path) -> Vec<PathBuf> {
    with_marks(machine, around::files_of(machine, folder))
}

fn with_marks(machine: &Machine, mut paths: Vec<PathBuf>) -> Vec<PathBuf> {
    paths.retain(|path| {
        let at = path.clone();
        machine.looks.ask(path, ANSWER_MAX, move || says_it_is_ours(&at)).unwrap_or(false)
    });
    paths
}

/// Looks at a device.
///
/// # Errors
/// When the path does not exist, is neither a regular file nor a block device, or cannot be opened for
/// writing. So too when it has no whole sector, or does not answer for too long.
pub fn examine(machine: &Machine, path: &Path, role: Role) -> ControlResult<Examined> {
    let (own, at) = (machine.clone(), path.to_owned());
    let examined = machine.looks.ask(path, ANSWER_MAX, move || examine_now(&own, &at, role));
    examined.unwrap_or_else(|| {
        let shown = path.display();
        Err(ControlError::failed(format!(
            "{shown} does not answer: opening and reading it takes too long; see `dmesg`"
        )))
    })
}

fn examine_now(machine: &Machine, path: &Path, role: Role) -> ControlResult<Examined> {
    let shown = path.display();
    let meta = path.metadata().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => ControlError::failed(format!(
            "{shown} does not exist; `lsblk` lists the devices of this machine"
        )),
        _ => ControlError::io(format!("looking at {shown}"), &error),
    })?;
    let kind = meta.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(ControlError::failed(format!(
            "{shown} is neither a regular file nor a block device; give one of these"
        )));
    }
    let id = DeviceId::of(machine, &meta);
    let mut findings = usage::findings(machine, &id);
    let exclusive = if kind.is_block_device() { rustix::fs::OFlags::EXCL.bits() } else { 0 };
    let protection = WriteProtection::of(machine, path);
    let file = open_claimed(path, exclusive.cast_signed(), findings.is_empty());
    let file = match file {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
            if findings.is_empty() {
                findings.push(Finding::Busy);
            }
            // Looked at all the same, so that the answer can say what is on it.
            open(path, 0).map_err(|error| opening(path, &error))?
        }
        // Looked at all the same, so that the answer can say what is on it.
        Err(error) if protection.is_some() => {
            File::open(path).map_err(|_| opening(path, &error))?
        }
        Err(error) => return Err(opening(path, &error)),
    };
    if kind.is_file() && findings.is_empty() && !file_lock::try_exclusive(&file) {
        findings.push(Finding::Busy);
    }
    let size_bytes = size_of(&file).map_err(|error| opening(path, &error))?;
    if size_bytes < voltier_block::SECTOR_BYTES {
        return Err(ControlError::failed(format!(
            "{shown} has {size_bytes} bytes, less than one sector; make it larger first"
        )));
    }
    let content = signature::contents(&file, path, role)
        .map_err(|error| ControlError::io(format!("reading {shown}"), &error))?;
    findings.extend(protection.map(Finding::WriteProtected));
    findings.extend(counting(content, role));
    Ok(Examined { id, size_bytes, findings, remote_identity: None, report: None })
}

/// Looks at a drive beyond this machine. Who else uses an export, only its server knows, and it does not say; of an
/// image the cluster says it.
///
/// # Errors
/// When the server or cluster cannot be reached, does not have the drive, or it has no whole sector; also when an image
/// cannot be opened for writing.
pub fn examine_remote(remote: &Remote, role: Role) -> ControlResult<Examined> {
    let seen = remote::see(remote, HEAD_BYTES)?;
    let mut findings = seen.findings;
    findings.extend(findings_in(&seen.head, role));
    Ok(Examined {
        id: DeviceId::remote(remote),
        size_bytes: seen.size_bytes,
        findings,
        remote_identity: Some(seen.identity),
        report: seen.report,
    })
}

/// How many of its first bytes say what a device holds.
pub const HEAD_BYTES: usize = signature::LOOK_BYTES;

/// The findings in the first bytes of a device that count against a role, for devices that the
/// system does not know: arrays.
pub fn findings_in(head: &[u8], role: Role) -> Vec<Finding> {
    counting(signature::own_signatures(head), role).collect()
}

fn counting(content: Vec<Content>, role: Role) -> impl Iterator<Item = Finding> {
    let counts = content.into_iter().filter(move |found| match role {
        Role::Origin => found.is_ours,
        Role::Cache => true,
        Role::Spare => !found.is_spare,
    });
    counts.map(move |found| match (role, found.is_cache) {
        (Role::Origin, _) => Finding::Kept(found.what),
        (_, true) => Finding::Cache(found.what),
        (_, false) => Finding::Content(found.what),
    })
}

/// Turns findings into a refusal, unless there are none or `force` sets all of them aside.
///
/// # Errors
/// The gravest finding that stands, naming the device.
pub fn judge(path: &Path, examined: &Examined, force: bool) -> ControlResult<()> {
    judge_findings(path.display(), &examined.findings, force)
}

/// [`judge`] of a device by whatever it is called.
///
/// # Errors
/// As [`judge`].
pub fn judge_findings(
    shown: impl fmt::Display,
    findings: &[Finding],
    force: bool,
) -> ControlResult<()> {
    let standing = findings.iter().find(|f| !(force && f.may_be_overridden()));
    match standing {
        None => Ok(()),
        Some(finding) => Err(ControlError::failed(format!("{shown} {finding}"))),
    }
}

fn open(path: &Path, flags: i32) -> std::io::Result<File> {
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)
}

/// Opens a device for this process alone. One that nobody is known to use may look busy for a moment.
/// A program that another look starts shares the claims of this process between fork and exec.
fn open_claimed(path: &Path, exclusive: i32, is_patient: bool) -> std::io::Result<File> {
    let is_busy = |error: &std::io::Error| error.kind() == std::io::ErrorKind::ResourceBusy;
    for _ in 0..file_lock::TRIES {
        let opened = open(path, exclusive);
        if !is_patient || !opened.as_ref().is_err_and(is_busy) {
            return opened;
        }
        std::thread::park_timeout(file_lock::TRY_STEP);
    }
    open(path, exclusive)
}

fn opening(path: &Path, error: &std::io::Error) -> ControlError {
    ControlError::io(format!("opening {} for writing", path.display()), error)
}

/// Size of a regular file or a block device, in bytes: where its end is.
fn size_of(mut file: &File) -> std::io::Result<u64> {
    use std::io::{Seek, SeekFrom};
    file.seek(SeekFrom::End(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn image(dir: &Path, name: &str) -> PathBuf {
        let path = dir.join(name);
        File::create(&path).unwrap().set_len(8 << 20).unwrap();
        path
    }

    fn look(path: &Path, role: Role) -> Examined {
        examine(&Machine::real(), path, role).unwrap()
    }

    #[test]
    fn an_empty_file_is_fine_for_either_role() {
        let dir = tempfile::tempdir().unwrap();
        let path = image(dir.path(), "a");
        let examined = look(&path, Role::Cache);
        assert_eq!((examined.size_bytes, &examined.findings[..]), (8 << 20, &[][..]));
        judge(&path, &examined, false).unwrap();
    }

    #[test]
    fn a_file_system_is_a_finding_for_a_cache_and_the_point_of_an_origin() {
        let dir = tempfile::tempdir().unwrap();
        let path = image(dir.path(), "a");
        // The ext superblock: magic 0xEF53 at byte 1080.
        let mut bytes = fs::read(&path).unwrap();
        bytes[1080..1082].copy_from_slice(&[0x53, 0xef]);
        fs::write(&path, bytes).unwrap();
        let as_cache = look(&path, Role::Cache);
        let error = judge(&path, &as_cache, false).unwrap_err();
        assert!(error.message.contains("ext") && error.message.contains("-f"), "{error}");
        judge(&path, &as_cache, true).unwrap();
        judge(&path, &look(&path, Role::Origin), false).unwrap();
    }

    #[test]
    fn a_file_somebody_else_locked_is_busy_even_with_force() {
        let dir = tempfile::tempdir().unwrap();
        let path = image(dir.path(), "a");
        let other = File::open(&path).unwrap();
        assert!(file_lock::try_exclusive(&other));
        let examined = look(&path, Role::Cache);
        assert_eq!(examined.findings, [Finding::Busy]);
        assert!(judge(&path, &examined, true).is_err());
        drop(other);
        assert!(look(&path, Role::Cache).findings.is_empty());
    }

    #[test]
    fn what_is_no_device_is_refused_in_one_line() {
        let dir = tempfile::tempdir().unwrap();
        let tiny = dir.path().join("tiny");
        fs::write(&tiny, "x").unwrap();
        for path in [dir.path(), &tiny, Path::new("/dev/null"), Path::new("/no/such/device")] {
            let error = examine(&Machine::real(), path, Role::Cache).unwrap_err();
            assert!(error.message.contains(&path.display().to_string()), "{error}");
            assert_eq!(error.exit_code(), 1);
        }
    }
}
