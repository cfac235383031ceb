//! Why an export could not be opened: one line each, saying what to do next.

use std::io;
use std::path::PathBuf;

/// Why an export could not start.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// Another process serves at the socket.
    #[error("{0}: another server listens here; stop it, or choose another socket path")]
    SocketInUse(PathBuf),
    /// Something that is not a socket is in the way.
    #[error("{0}: exists and is not a socket; remove it, or choose another socket path")]
    NotASocket(PathBuf),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}; choose another address")]
    Listen {
        /// The address as asked for.
        address: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The socket file could not be given its owner and permissions.
    #[error(
        "{0}: cannot give the socket its mode, owner and group: {1}; run the daemon as root, or choose \
             the daemon's user and a group of that user"
    )]
    Access(PathBuf, io::Error),
    /// The kernel has no FUSE.
    #[error("/dev/fuse is not there; load the module (modprobe fuse), or export over NBD")]
    NoFuse,
    /// FUSE is there, but not for us.
    #[error("{0}: mounting is not permitted; run as root or install fusermount3")]
    MountNotPermitted(PathBuf),
    /// The mount point does not exist and cannot be made.
    #[error("{0}: cannot create the file: {1}; create its folder first, or choose another path")]
    MountPoint(PathBuf, io::Error),
    /// The mount point is not an empty regular file.
    #[error("{0}: {1}; choose a path that does not exist, or an empty file")]
    MountPointUnfit(PathBuf, &'static str),
    /// The kernel refused the mount.
    #[error("{path}: cannot mount: {source}; export over NBD instead")]
    Mount {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Somebody has the file open.
    #[error("{0}: still in use; close it (losetup -d, umount) and try again")]
    FileInUse(PathBuf),
    /// The kernel has no loop devices.
    #[error(
        "/dev/loop-control is not there; load the module (modprobe loop), or do without a block device \
             (--export nbd or --export none)"
    )]
    NoLoop,
    /// Loop devices are there, but not for us.
    #[error(
        "a block device needs root: /dev/loop-control cannot be opened; run the daemon as root, or do without \
             (--export nbd or --export none)"
    )]
    LoopNotPermitted,
    /// The program that sets loop devices up is missing.
    #[error(
        "losetup is not installed; install util-linux (on Debian the package mount), or --export nbd"
    )]
    NoLosetup,
    /// The kernel gave no loop device.
    #[error("cannot set up a loop device: {0}; see `voltier doctor`")]
    Loop(String),
    /// The name of a device is somebody else's.
    #[error("{link}: {by}; remove it, or choose another name with --loop DEV")]
    DeviceNameTaken {
        /// The name.
        link: PathBuf,
        /// What is there.
        by: String,
    },
    /// The name of a device cannot be made.
    #[error("{link}: cannot make the name of the device: {source}; choose another with --loop DEV")]
    DeviceName {
        /// The name.
        link: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Somebody has the device open.
    #[error(
        "{link}: {node} is still in use; close it (umount, swapoff, vgchange -an) and try again"
    )]
    DeviceInUse {
        /// The name of the device.
        link: PathBuf,
        /// The loop device.
        node: String,
    },
    /// The kernel did not give the mount up.
    #[error("{path}: cannot unmount: {source}; try umount -l {path}")]
    Unmount {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
}
