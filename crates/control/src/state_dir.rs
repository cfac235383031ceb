//! The state folder: what is where in it, and the lock that keeps a second daemon out.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{Seek, Write};
use std::os::fd::IntoRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

use crate::error::{ControlError, ControlResult};
use crate::export_spec::{NbdAddress, check_socket_path};
use crate::file_lock;
use crate::name::VolumeName;

/// The message of a daemon that finds its folder served: a client that started one looks for this.
pub(crate) const ALREADY_SERVED: &str = "already serves";

/// One instance: registry, control socket, pid file, log and default export sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateDir(PathBuf);

impl StateDir {
    /// The variable of the environment with the path.
    pub const VARIABLE: &str = "VOLTIER_STATE";

    /// The state folder at `path`, made absolute; nothing is created yet.
    ///
    /// # Errors
    /// When the path is empty, or too long for the sockets in it.
    pub fn at(path: &Path) -> ControlResult<Self> {
        if path.as_os_str().is_empty() {
            return Err(ControlError::usage("an empty state folder; write --state DIR"));
        }
        let full = std::path::absolute(path)
            .map_err(|error| ControlError::io(format!("resolving {}", path.display()), &error))?;
        let state = Self(full);
        check_socket_path(&state.socket())
            .map_err(|error| ControlError::usage(format!("{error} (--state DIR)")))?;
        Ok(state)
    }

    /// The state folder of the whole machine: its block devices have their names in `/dev/voltier`.
    const OF_MACHINE: &str = "/var/lib/voltier";

    /// `/var/lib/voltier` for root, else the user's state folder of the XDG rules.
    ///
    /// # Errors
    /// When a user has neither `XDG_STATE_HOME` nor `HOME`.
    pub fn default_path() -> ControlResult<PathBuf> {
        if rustix::process::geteuid().is_root() {
            return Ok(PathBuf::from(Self::OF_MACHINE));
        }
        let absolute = |name: &str| {
            std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute())
        };
        absolute("XDG_STATE_HOME")
            .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))
            .map(|base| base.join("voltier"))
            .ok_or_else(|| {
                ControlError::usage("no HOME to keep state in; choose a folder with --state DIR")
            })
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The control socket.
    pub fn socket(&self) -> PathBuf {
        self.0.join("control.sock")
    }

    /// The connections of the daemon to Ceph clusters.
    pub(crate) fn ceph_clients(&self) -> PathBuf {
        self.0.join("ceph-clients")
    }

    /// The marks that the daemon left on Ceph images.
    pub(crate) fn ceph_images(&self) -> PathBuf {
        self.0.join("ceph-images")
    }

    /// The process id of the daemon that serves this folder.
    pub fn pid_file(&self) -> PathBuf {
        self.0.join("daemon.pid")
    }

    /// Where a daemon in the background writes what it has to say.
    pub fn log_file(&self) -> PathBuf {
        self.0.join("daemon.log")
    }

    /// Where `export NAME --nbd` listens when no address is given.
    ///
    /// # Errors
    /// When the name makes the path too long for a socket.
    pub fn nbd_address(&self, name: &VolumeName) -> ControlResult<NbdAddress> {
        NbdAddress::Unix(self.0.join(format!("{name}.nbd.sock"))).absolute()
    }

    /// The file of `export NAME --fuse` when none is given.
    pub fn fuse_file(&self, name: &VolumeName) -> PathBuf {
        self.0.join(format!("{name}.raw"))
    }

    /// The file under the block device of a volume.
    pub fn device_file(&self, name: &VolumeName) -> PathBuf {
        self.0.join(format!("{name}.device"))
    }

    /// The name of the block device of a volume when none is given. Instances with a folder of their own keep
    /// theirs in it, so that two do not meet in `/dev/voltier`.
    pub fn device_link(&self, name: &VolumeName) -> PathBuf {
        match self.0 == Path::new(Self::OF_MACHINE) {
            true => Path::new("/dev/voltier").join(name.as_str()),
            false => self.0.join("dev").join(name.as_str()),
        }
    }

    /// Creates the folder (mode 0700) when it is not there.
    ///
    /// # Errors
    /// When the folder cannot be created.
    pub fn create(&self) -> ControlResult<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.0).map_err(|error| {
            let doing = format!("creating the state folder {}", self.0.display());
            if error.kind() == std::io::ErrorKind::PermissionDenied {
                ControlError::failed(format!(
                    "{doing}: permission denied; run as root or choose another with --state DIR"
                ))
            } else {
                ControlError::io(doing, &error)
            }
        })?;
        self.check_owner()
    }

    /// Refuses a folder that somebody else can write in: who can do that can answer in the daemon's place,
    /// and lead its files elsewhere. A folder that is not there yet is nobody's.
    ///
    /// # Errors
    /// When the folder belongs to another user but root, or its mode lets others write.
    pub(crate) fn check_owner(&self) -> ControlResult<()> {
        let Ok(meta) = fs::metadata(&self.0) else { return Ok(()) };
        let own = rustix::process::geteuid().as_raw();
        let shown = self.0.display();
        if meta.uid() != own && meta.uid() != 0 {
            return Err(ControlError::failed(format!(
                "the state folder {shown} belongs to user {}; give it to yourself (chown), or choose another \
                 with --state DIR",
                meta.uid()
            )));
        }
        if meta.mode() & 0o022 != 0 {
            return Err(ControlError::failed(format!(
                "others can write in the state folder {shown}; `chmod go-w {shown}`, or choose another with \
                 --state DIR"
            )));
        }
        Ok(())
    }

    /// Takes the lock of the folder and writes the pid file. The lock ends with the process.
    ///
    /// # Errors
    /// When another daemon has it; the message names its process id.
    pub fn lock(&self) -> ControlResult<StateLock> {
        let path = self.pid_file();
        let doing = || format!("opening {}", path.display());
        let opened = || {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).mode(0o600);
            options.open(&path).map_err(|error| ControlError::io(doing(), &error))
        };
        let passed = passed_lock(&path);
        let after_upgrade = passed.is_some();
        let mut file = passed.map_or_else(opened, Ok)?;
        if !file_lock::try_exclusive(&file) {
            let pid = fs::read_to_string(&path).unwrap_or_default();
            return Err(ControlError::failed(format!(
                "a daemon (process {}) {ALREADY_SERVED} {}; use it, or choose another --state DIR",
                pid.trim(),
                self.0.display()
            )));
        }
        let before = fs::read_to_string(&path).unwrap_or_default();
        let own = format!("{}\n", std::process::id());
        // Over the number before: a full file system has room for that. The number is for people, and a
        // folder that cannot have it is served all the same.
        let written = file
            .rewind()
            .and_then(|()| file.write_all(own.as_bytes()))
            .and_then(|()| file.set_len(own.len() as u64));
        if let Err(error) = written {
            tracing::warn!("{}", ControlError::io(format!("writing {}", path.display()), &error));
        }
        Ok(StateLock { file, after_crash: !before.trim().is_empty(), after_upgrade })
    }
}

/// The variable with the process and the number of the descriptor that has the lock.
const LOCK: &str = "VOLTIER_LOCK";

/// The file that an earlier program of this process has locked and passed on, if it is the one at `path`.
fn passed_lock(path: &Path) -> Option<File> {
    let value = std::env::var(LOCK).ok()?;
    // A child of that program has the variable, too.
    let number = value.strip_prefix(&format!("{}:", std::process::id()))?.parse().ok()?;
    let own = pidfd_open(getpid(), PidfdFlags::empty()).ok()?;
    let fd = pidfd_getfd(own, number, PidfdGetfdFlags::empty());
    // Refused of a number that is not open.
    let _ = nix::unistd::close(number);
    let file = File::from(fd.ok()?);
    let (here, there) = (file.metadata().ok()?, fs::metadata(path).ok()?);
    ((here.dev(), here.ino()) == (there.dev(), there.ino())).then_some(file)
}

/// Proof that this process alone serves a state folder.
#[derive(Debug)]
pub struct StateLock {
    file: File,
    after_crash: bool,
    after_upgrade: bool,
}

impl StateLock {
    /// Whether the daemon before did not come to rest.
    pub fn after_crash(&self) -> bool {
        self.after_crash
    }

    /// Whether this process served the folder as another program before.
    pub(crate) fn after_upgrade(&self) -> bool {
        self.after_upgrade
    }

    /// The file that is locked.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Leaves the folder to the next program of this process, locked all the time; the variable with which that program
    /// finds the lock. If not all came to rest, it begins as after a crash.
    pub(crate) fn pass_on(self, is_at_rest: bool) -> (String, Option<String>) {
        if is_at_rest {
            // As in [`Self::release`].
            let _ = self.file.set_len(0);
        }
        // Without the lock the next one takes it again.
        let _ = fcntl_setfd(&self.file, FdFlags::empty());
        (LOCK.to_owned(), Some(format!("{}:{}", std::process::id(), self.file.into_raw_fd())))
    }

    /// Gives the folder back, at rest.
    pub fn release(self) {
        // A pid that stays tells the next daemon of a crash that was none: it only looks longer.
        let _ = self.file.set_len(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_daemon_on_the_same_folder_is_told_who_has_it() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::at(&dir.path().join("deep/er")).unwrap();
        state.create().unwrap();
        let lock = state.lock().unwrap();
        let error = state.lock().unwrap_err();
        assert!(error.message.contains(&std::process::id().to_string()), "{error}");
        assert!(!lock.after_crash());
        drop(lock);
        let lock = state.lock().unwrap();
        assert!(lock.after_crash());
        lock.release();
        assert!(!state.lock().unwrap().after_crash());
    }

    #[test]
    fn a_folder_that_others_can_write_in_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::at(&dir.path().join("state")).unwrap();
        assert!(state.check_owner().is_ok(), "it is not there yet");
        state.create().unwrap();
        for (mode, is_good) in [(0o755, true), (0o777, false), (0o1777, false), (0o770, false)] {
            fs::set_permissions(state.path(), fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(state.create().is_ok(), is_good, "{mode:o}");
        }
        if rustix::process::geteuid().is_root() {
            fs::set_permissions(state.path(), fs::Permissions::from_mode(0o700)).unwrap();
            std::os::unix::fs::chown(state.path(), Some(4711), None).unwrap();
            let error = state.create().unwrap_err();
            assert!(error.message.contains("belongs to user 4711"), "{error}");
        }
    }

    #[test]
    fn a_folder_too_deep_for_its_sockets_is_refused_at_once() {
        let error = StateDir::at(Path::new(&format!("/{}", "x".repeat(100)))).unwrap_err();
        assert!(error.message.contains("--state"), "{error}");
    }
}
