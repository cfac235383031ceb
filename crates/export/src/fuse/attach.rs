//! Asking for a mount: of the kernel, or without privileges of fusermount3.

use std::ffi::{CString, OsString};
use std::fs;
use std::io::{self, ErrorKind, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::fs::{Mode, OFlags, fcntl_getfl, fcntl_setfl, open};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::session::TRANSFER_BYTES_MAX;

/// The source of the mount, by which `findmnt` and `df` name it.
const NAME: &str = "voltier";

/// The program that mounts and unmounts for users, by its names: the one of FUSE 3, and the older one.
const HELPERS: [&str; 2] = ["fusermount3", "fusermount"];

/// How the file is mounted.
#[derive(Clone, Copy)]
pub(super) struct Options {
    pub(super) read_only: bool,
    /// Others than the user of this process may open the file, as far as its mode, owner and group say so.
    pub(super) shared: bool,
}

impl Options {
    /// What only FUSE knows.
    fn of_fuse(self) -> String {
        let all = if self.shared { ",default_permissions,allow_other" } else { "" };
        format!("max_read={TRANSFER_BYTES_MAX}{all}")
    }
}

/// Mounts over the file at `path`; the descriptor of the new connection, whose reads do not wait.
pub(super) fn attach(path: &Path, options: Options) -> io::Result<OwnedFd> {
    let path = path.canonicalize()?;
    let fd = match by_kernel(&path, options) {
        Err(error) if error.raw_os_error() == Some(Errno::PERM.raw_os_error()) => {
            by_helper(&path, options)
        }
        attached => attached,
    }?;
    fcntl_setfl(&fd, fcntl_getfl(&fd)? | OFlags::NONBLOCK)?;
    Ok(fd)
}

fn by_kernel(path: &Path, options: Options) -> io::Result<OwnedFd> {
    let fd = open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let mode = fs::metadata(path)?.mode();
    let (user, group) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let number = fd.as_raw_fd();
    let more = options.of_fuse();
    let data = format!("fd={number},rootmode={mode:o},user_id={user},group_id={group},{more}");
    let mut flags = MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOATIME;
    flags.set(MountFlags::RDONLY, options.read_only);
    mount(NAME, path, "fuse", flags, CString::new(data)?.as_c_str())?;
    Ok(fd)
}

/// Has fusermount3 mount, which sends the descriptor through a socket: its standard input.
fn by_helper(path: &Path, options: Options) -> io::Result<OwnedFd> {
    let (here, there) = UnixStream::pair()?;
    let access = if options.read_only { "ro" } else { "rw" };
    let asked = format!("fsname={NAME},noatime,{access},{}", options.of_fuse());
    let arguments = ["-o".into(), asked.into(), "--".into(), path.as_os_str().to_owned()];
    let child = helper(&arguments, || Ok(Stdio::from(OwnedFd::from(there.try_clone()?))))?;
    // Without this end open here, a helper that gives up ends the wait.
    drop(there);
    let received = receive(&here);
    let said = complaint(child)?;
    received?.ok_or_else(|| io::Error::other(said.unwrap_or_else(|| "no descriptor".to_owned())))
}

/// Unmounts what is mounted at `path` without privileges; `lazily` also while it is in use.
pub(super) fn detach_by_helper(path: &Path, lazily: bool) -> io::Result<()> {
    let how = if lazily { "-uz" } else { "-u" };
    let arguments = [how.into(), "--".into(), path.as_os_str().to_owned()];
    let said = complaint(helper(&arguments, || Ok(Stdio::null()))?)?;
    match said {
        None => Ok(()),
        // The words of strerror(EBUSY).
        Some(said) if said.contains("busy") => Err(Errno::BUSY.into()),
        Some(said) => Err(io::Error::other(said)),
    }
}

/// Starts the program that mounts for users; it finds a socket at its standard input.
fn helper(arguments: &[OsString], input: impl Fn() -> io::Result<Stdio>) -> io::Result<Child> {
    for name in HELPERS {
        let mut command = Command::new(name);
        command.args(arguments).env("_FUSE_COMMFD", "0").env("LC_ALL", "C");
        command.stdin(input()?).stdout(Stdio::null()).stderr(Stdio::piped());
        match command.spawn() {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            started => return started,
        }
    }
    Err(ErrorKind::PermissionDenied.into())
}

/// Waits for the end of a helper; what it says is wrong, in one line.
fn complaint(child: Child) -> io::Result<Option<String>> {
    let output = child.wait_with_output()?;
    if output.status.success() {
        return Ok(None);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let line = said.lines().map(str::trim).find(|line| !line.is_empty());
    Ok(Some(line.map_or_else(|| format!("fusermount3: {}", output.status), str::to_owned)))
}

/// The descriptor that comes through a socket; none when the other end is closed without one.
fn receive(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    loop {
        let mut room = [IoSliceMut::new(&mut byte)];
        match recvmsg(socket, &mut room, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            received => {
                received?;
                break;
            }
        }
    }
    Ok(ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    }))
}
