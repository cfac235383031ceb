//! Opening a file or a block device: what it is, how it wants to be used, who else uses it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, Dev, FileType, FlockOperation, Mode, OFlags, SeekFrom, Stat, StatxFlags, flock, fstat,
    ioctl_blkpbszget, ioctl_blksszget, major, minor, open, seek, stat, statx,
};
use rustix::io::{Errno, pread};
use voltier_block::{AfterDiscard, Buf, Limits, SECTOR_BYTES};

use super::left_behind::{self, FileIdentity};

/// How to open a file or block device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileOptions {
    /// Never write. Others may read beside it, nobody may write.
    pub read_only: bool,
    /// Go through the page cache even where direct I/O is possible.
    pub buffered: bool,
    /// Block size in bytes, 512 or 4096, at least what the file or device needs; by default that.
    pub block_bytes: Option<u32>,
}

/// Facts about a file, found out when it was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileFacts {
    /// The path as given.
    pub path: PathBuf,
    /// A block device, not a regular file.
    pub is_block_device: bool,
    /// Whether transfers bypass the page cache. `false` although it was wanted: the file system
    /// refuses direct I/O.
    pub direct_io: bool,
    /// Bytes at the end that are not used, because they do not fill a block.
    pub unused_tail_bytes: u64,
    /// Alignment in memory that direct transfers need, in bytes.
    pub(super) memory_align_bytes: usize,
    /// Whether the file had space for all of its bytes. A block device has no space to keep.
    pub(super) is_allocated: bool,
    pub(super) identity: FileIdentity,
}

/// Why a file or block device cannot be used. Every message is one line and says what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Nothing has this path.
    #[error("{0} does not exist: check the path, or make a file with 'truncate -s SIZE {0}'")]
    Missing(PathBuf),
    /// The user may not open it.
    #[error("no permission to open {0}: run as root, or as a user who may read and write it")]
    Permission(PathBuf),
    /// The file or its medium takes no writes.
    #[error("{0} is read-only: remove its write protection, or open it read-only")]
    ReadOnly(PathBuf),
    /// The kernel or another process uses the block device.
    #[error("{0} is in use (mounted, in an array, or open elsewhere): see 'lsblk {0}', release it")]
    Busy(PathBuf),
    /// Another process, or another device of this one, has the file open.
    #[error("{0} is open in another device or process: stop that one first (see 'fuser -v {0}')")]
    Locked(PathBuf),
    /// A device of this process was let go, and the drive has not ended all of its requests.
    #[error("{0} still has old requests in flight: wait until it answers, or restart the daemon")]
    Undrained(PathBuf),
    /// The path leads to a directory, a socket, a terminal or the like.
    #[error("{path} is a {kind}: give a regular file or a block device")]
    NotADrive {
        /// The path as given.
        path: PathBuf,
        /// The kind of the file.
        kind: &'static str,
    },
    /// The file does not hold one block.
    #[error(
        "{path} has {bytes} bytes, less than one block of {block_bytes}: \
         enlarge it with 'truncate -s SIZE {path}'"
    )]
    TooSmall {
        /// The path as given.
        path: PathBuf,
        /// Size of the file.
        bytes: u64,
        /// Block size of the device.
        block_bytes: u32,
    },
    /// Blocks of this size cannot be served.
    #[error(
        "{path} cannot serve blocks of {block_bytes} bytes: it needs {needed}, one of 512, 4096"
    )]
    BlockSize {
        /// The path as given.
        path: PathBuf,
        /// The size asked for, or found.
        block_bytes: u32,
        /// The smallest that works.
        needed: u32,
    },
    /// The system failed in a way that has no better name.
    #[error("cannot open {path}: {source}")]
    System {
        /// The path as given.
        path: PathBuf,
        /// The system's own words.
        source: io::Error,
    },
}

/// An open file, checked and locked, of no core yet: a core makes a [`FileDevice`](super::FileDevice) of it.
/// Opening a broken drive may take for ever, so a thread apart can do it.
pub struct OpenFile {
    pub(super) fd: OwnedFd,
    pub(super) limits: Limits,
    pub(super) facts: FileFacts,
}

impl OpenFile {
    /// Opens a regular file or block device: see [`FileDevice::open`](super::FileDevice::open).
    ///
    /// # Errors
    /// [`OpenError`], one line with advice; nothing was changed then.
    pub fn open(path: &Path, options: &FileOptions) -> Result<Self, OpenError> {
        open_file(path, options)
    }
}

/// Whether this process let a device at this path go while the drive has requests. An open of such a drive
/// is refused with [`OpenError::Undrained`].
pub fn is_undrained(path: &Path) -> bool {
    // The path is not asked without need: its file system may hang.
    left_behind::are_any()
        && stat(path).is_ok_and(|status| left_behind::is_undrained(identity_of(&status)))
}

/// The file or block device that was asked for its status.
fn identity_of(status: &Stat) -> FileIdentity {
    let is_block_device = FileType::from_raw_mode(status.st_mode) == FileType::BlockDevice;
    let number = if is_block_device { (0, status.st_rdev) } else { (status.st_dev, status.st_ino) };
    FileIdentity { is_block_device, number }
}

fn open_file(path: &Path, options: &FileOptions) -> Result<OpenFile, OpenError> {
    let fail = |errno| explain(path, errno);
    let status = stat(path).map_err(fail)?;
    let is_block_device = match FileType::from_raw_mode(status.st_mode) {
        FileType::RegularFile => false,
        FileType::BlockDevice => true,
        other => return Err(OpenError::NotADrive { path: path.to_owned(), kind: kind_of(other) }),
    };
    let identity = identity_of(&status);
    if left_behind::is_undrained(identity) {
        return Err(OpenError::Undrained(path.to_owned()));
    }
    let (fd, direct_io) = open_descriptor(path, options, is_block_device)?;
    let opened = fstat(&fd).map_err(fail)?;
    if (opened.st_dev, opened.st_ino) != (status.st_dev, status.st_ino) {
        return Err(OpenError::Busy(path.to_owned())); // replaced while we looked at it
    }
    if !is_block_device {
        lock(path, &fd, options.read_only)?;
    }
    let alignment = Alignment::find(&fd, is_block_device, direct_io).map_err(fail)?;
    let block_bytes = options.block_bytes.unwrap_or(alignment.block_bytes);
    if !matches!(block_bytes, 512 | 4096) || block_bytes < alignment.block_bytes {
        let needed = alignment.block_bytes;
        return Err(OpenError::BlockSize { path: path.to_owned(), block_bytes, needed });
    }
    let bytes = seek(&fd, SeekFrom::End(0)).map_err(fail)?;
    let unused_tail_bytes = bytes % u64::from(block_bytes);
    if bytes < u64::from(block_bytes) {
        return Err(OpenError::TooSmall { path: path.to_owned(), bytes, block_bytes });
    }
    let discards = !is_block_device || zeroes_on_discard(status.st_rdev);
    let limits = Limits {
        sectors: (bytes - unused_tail_bytes) / SECTOR_BYTES,
        block_bytes,
        preferred_bytes: alignment.preferred_bytes.max(block_bytes),
        after_discard: if discards { AfterDiscard::Zeroes } else { AfterDiscard::Unchanged },
        cheap_zeroes: discards,
        volatile_cache: true, // the drive's, the page cache's, or the file's own metadata
        read_only: options.read_only,
        // A file is as slow as what its file system is on, where that is one disk.
        rotational: queue_limit(
            if is_block_device { status.st_rdev } else { status.st_dev },
            "rotational",
        ),
        ..Limits::plain(bytes)
    };
    let facts = FileFacts {
        path: path.to_owned(),
        is_block_device,
        direct_io,
        unused_tail_bytes,
        memory_align_bytes: alignment.memory_bytes,
        is_allocated: !is_block_device && is_allocated(&opened),
        identity,
    };
    Ok(OpenFile { fd, limits, facts })
}

/// Whether a file has space for all of its bytes.
fn is_allocated(file: &Stat) -> bool {
    // The unit of `st_blocks` is 512 bytes on every file system.
    u64::try_from(file.st_blocks).is_ok_and(|blocks| blocks * 512 >= file.st_size.unsigned_abs())
}

/// Opens with O_DIRECT where the file system takes it, and says whether it did.
fn open_descriptor(
    path: &Path,
    options: &FileOptions,
    is_block_device: bool,
) -> Result<(OwnedFd, bool), OpenError> {
    let access = if options.read_only { OFlags::RDONLY } else { OFlags::RDWR };
    // O_EXCL on a block device claims it: mounted and assembled ones refuse.
    let claim = if is_block_device && !options.read_only { OFlags::EXCL } else { OFlags::empty() };
    let flags = access | claim | OFlags::CLOEXEC;
    if !options.buffered {
        match open(path, flags | OFlags::DIRECT, Mode::empty()) {
            Ok(fd) => return Ok((fd, true)),
            Err(Errno::INVAL | Errno::OPNOTSUPP) => {}
            Err(errno) => return Err(explain(path, errno)),
        }
    }
    let fd = open(path, flags, Mode::empty()).map_err(|errno| explain(path, errno))?;
    Ok((fd, false))
}

/// One writer, or several readers. A file system without locks is left without them.
fn lock(path: &Path, fd: &OwnedFd, shared: bool) -> Result<(), OpenError> {
    let operation = if shared {
        FlockOperation::NonBlockingLockShared
    } else {
        FlockOperation::NonBlockingLockExclusive
    };
    match flock(fd, operation) {
        Err(Errno::WOULDBLOCK) => Err(OpenError::Locked(path.to_owned())),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The alignment that transfers need.
struct Alignment {
    block_bytes: u32,
    preferred_bytes: u32,
    memory_bytes: usize,
}

impl Alignment {
    fn find(fd: &OwnedFd, is_block_device: bool, direct_io: bool) -> Result<Self, Errno> {
        if is_block_device {
            let block_bytes = ioctl_blksszget(fd)?;
            let preferred_bytes = ioctl_blkpbszget(fd)?.max(4096).next_power_of_two();
            return Ok(Self { block_bytes, preferred_bytes, memory_bytes: block_bytes as usize });
        }
        let preferred_bytes = 4096;
        if !direct_io {
            return Ok(Self { block_bytes: 512, preferred_bytes, memory_bytes: 1 });
        }
        let facts = statx(fd.as_fd(), c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
        let (block_bytes, memory_bytes) = match facts {
            Ok(facts) if facts.stx_mask & StatxFlags::DIOALIGN.bits() != 0 => {
                (facts.stx_dio_offset_align, facts.stx_dio_mem_align as usize)
            }
            // Older kernels do not say: try.
            _ if reads_one_sector(fd) => (512, 512),
            _ => (4096, 4096),
        };
        Ok(Self { block_bytes: block_bytes.max(512), preferred_bytes, memory_bytes })
    }
}

fn reads_one_sector(fd: &OwnedFd) -> bool {
    pread(fd, &mut *Buf::new(SECTOR_BYTES as usize), 0).is_ok()
}

/// Whether the block device can discard and then reads as zeroes, as the kernel says in sysfs.
fn zeroes_on_discard(device: Dev) -> bool {
    queue_limit(device, "discard_max_bytes") && queue_limit(device, "write_zeroes_max_bytes")
}

/// Whether a figure of the queue of a block device is there and not 0.
fn queue_limit(device: Dev, name: &str) -> bool {
    let base = format!("/sys/dev/block/{}:{}", major(device), minor(device));
    // A partition has no queue of its own: its disk, one folder up, has.
    ["queue", "../queue"].into_iter().any(|queue| {
        let limit = std::fs::read_to_string(format!("{base}/{queue}/{name}"));
        limit.is_ok_and(|text| text.trim().parse().is_ok_and(|figure: u64| figure > 0))
    })
}

fn kind_of(file: FileType) -> &'static str {
    match file {
        FileType::Directory => "directory",
        FileType::CharacterDevice => "character device",
        FileType::Fifo => "pipe",
        FileType::Socket => "socket",
        _ => "special file",
    }
}

fn explain(path: &Path, errno: Errno) -> OpenError {
    let path = path.to_owned();
    match errno {
        Errno::NOENT | Errno::NXIO | Errno::NODEV => OpenError::Missing(path),
        Errno::ACCESS | Errno::PERM => OpenError::Permission(path),
        Errno::ROFS => OpenError::ReadOnly(path),
        Errno::BUSY => OpenError::Busy(path),
        other => OpenError::System { path, source: other.into() },
    }
}
