//! Owner and permissions of the file by which local clients reach an export: a Unix socket, or a FUSE file.

use std::os::fd::AsRawFd;
use std::path::Path;

use rustix::fs::{self, AtFlags, CWD, FileType, Gid, Mode, OFlags, Uid};
use rustix::process::geteuid;
use voltier_ring::Errno;

/// Owner and permissions of the file of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileAccess {
    /// The permission bits, at most 0777.
    pub mode: u32,
    /// The number of the user, if not the one of the server.
    pub owner: Option<u32>,
    /// The number of the group, if not the one of the server.
    pub group: Option<u32>,
}

impl Default for FileAccess {
    /// For the user of the server alone.
    fn default() -> Self {
        Self { mode: 0o600, owner: None, group: None }
    }
}

impl FileAccess {
    /// Gives the fresh socket file at `path` its owner and permissions. A file that somebody else put there
    /// meanwhile is left as it is.
    ///
    /// # Errors
    /// When the system does not permit it, or the file is not a fresh socket of this process's user.
    pub(crate) fn apply(self, path: &Path) -> Result<(), Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = fs::open(path, flags, Mode::empty())?;
        let status = fs::fstat(&file)?;
        let is_socket = FileType::from_raw_mode(status.st_mode) == FileType::Socket;
        // A second name would be the one of a socket that somebody linked here.
        if !is_socket || status.st_nlink != 1 || status.st_uid != geteuid().as_raw() {
            return Err(Errno::NOTSOCK);
        }
        let (owner, group) = (self.owner.map(Uid::from_raw), self.group.map(Gid::from_raw));
        if owner.is_some() || group.is_some() {
            fs::chownat(&file, "", owner, group, AtFlags::EMPTY_PATH)?;
        }
        // A descriptor without rights to the content changes its mode by its name in /proc only.
        let name = format!("/proc/self/fd/{}", file.as_raw_fd());
        fs::chmodat(CWD, name, Mode::from_raw_mode(self.mode), AtFlags::empty())
    }

    /// Whether others than root and the user of the server may have a part of it.
    pub(crate) fn is_shared(self) -> bool {
        self != Self::default()
    }
}
