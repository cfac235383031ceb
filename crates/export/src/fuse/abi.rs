//! The kernel's side of the protocol: its structures and numbers.
//!
//! Source of all: `include/uapi/linux/fuse.h` of Linux, protocol 7.40. Integers are in the byte order of the
//! machine. A request is an [`InHeader`], the structure of its kind, and what follows that: names, or the data
//! of a write. An answer is an [`OutHeader`] and, unless it is an error, the structure of its kind.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The major version of the protocol.
pub const MAJOR: u32 = 7;
/// The minor version that is answered.
pub const MINOR: u32 = 40;

/// The number of the only inode: the root, which is the file.
pub const ROOT: u64 = 1;

/// Kinds of requests (`enum fuse_opcode`).
pub mod opcode {
    /// A reference to an inode is gone. Has no answer.
    pub const FORGET: u32 = 2;
    /// The attributes.
    pub const GETATTR: u32 = 3;
    /// Change attributes.
    pub const SETATTR: u32 = 4;
    /// Open the file.
    pub const OPEN: u32 = 14;
    /// Read.
    pub const READ: u32 = 15;
    /// Write.
    pub const WRITE: u32 = 16;
    /// The facts of the file system.
    pub const STATFS: u32 = 17;
    /// The last user of an open file has closed it.
    pub const RELEASE: u32 = 18;
    /// Make writes durable.
    pub const FSYNC: u32 = 20;
    /// A descriptor of an open file is closed.
    pub const FLUSH: u32 = 25;
    /// The first request: versions and abilities.
    pub const INIT: u32 = 26;
    /// Somebody who waits for a request got a signal. Needs no answer.
    pub const INTERRUPT: u32 = 36;
    /// The last request of a connection.
    pub const DESTROY: u32 = 38;
    /// An answer of the kernel's to what was asked of it. Has no answer.
    pub const NOTIFY_REPLY: u32 = 41;
    /// References to inodes are gone. Has no answer.
    pub const BATCH_FORGET: u32 = 42;
    /// Allocate, punch or zero.
    pub const FALLOCATE: u32 = 43;
    /// The next data, or the next hole.
    pub const LSEEK: u32 = 46;
}

/// Abilities (`FUSE_INIT` flags): of the kernel in the request, those to be used in the answer.
pub mod init {
    /// Several reads of one file at once.
    pub const ASYNC_READ: u64 = 1 << 0;
    /// The server is told of `O_TRUNC` at the open.
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    /// Writes of more than one page.
    pub const BIG_WRITES: u64 = 1 << 5;
    /// Direct I/O of many requests at once.
    pub const ASYNC_DIO: u64 = 1 << 15;
    /// The answer has `max_pages`.
    pub const MAX_PAGES: u64 = 1 << 22;
    /// `flags2` counts.
    pub const INIT_EXT: u64 = 1 << 30;
    /// Shared mappings of files opened for direct I/O.
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    /// The kernel sends requests again when it is asked to (Linux 6.9).
    pub const HAS_RESEND: u64 = 1 << 39;
}

/// What the kernel is told without a request (`enum fuse_notify_code`).
pub mod notify {
    /// Send again all requests that were read and not answered. They come with [`RESENT`].
    pub const RESEND: i32 = 7;
    /// In the number of a request that comes again.
    pub const RESENT: u64 = 1 << 63;
}

/// How an open file is used (`FOPEN_` flags).
pub mod fopen {
    /// Past the page cache.
    pub const DIRECT_IO: u32 = 1 << 0;
    /// No request when a descriptor is closed.
    pub const NOFLUSH: u32 = 1 << 5;
    /// Several direct writes at once.
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// What a [`SetattrIn`] changes (`FATTR_` flags).
pub mod fattr {
    /// The permissions.
    pub const MODE: u32 = 1 << 0;
    /// The owner.
    pub const UID: u32 = 1 << 1;
    /// The group.
    pub const GID: u32 = 1 << 2;
    /// The size.
    pub const SIZE: u32 = 1 << 3;
}

/// The kinds of a search (`lseek`).
pub mod seek {
    /// For data.
    pub const DATA: u32 = 3;
    /// For a hole.
    pub const HOLE: u32 = 4;
}

/// Structures of which nothing but the named fields means anything here.
macro_rules! structures {
    ($($(#[doc = $text:literal])+ $name:ident { $($field:ident: $kind:ty),+ $(,)? })+) => { $(
        $(#[doc = $text])+
        #[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        #[allow(missing_docs, reason = "the names of the kernel's header, which explains them")]
        pub struct $name { $(pub $field: $kind),+ }
    )+ };
}

structures! {
    /// `fuse_in_header`: the beginning of every request.
    InHeader {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32,
        total_extlen: u16, padding: u16,
    }
    /// `fuse_out_header`: the beginning of every answer. An error is a negative number.
    OutHeader { len: u32, error: i32, unique: u64 }
    /// `fuse_init_in`.
    InitIn { major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11] }
    /// `fuse_init_out`.
    InitOut {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16,
        congestion_threshold: u16, max_write: u32, time_gran: u32, max_pages: u16, map_alignment: u16,
        flags2: u32, max_stack_depth: u32, request_timeout: u16, unused: [u16; 11],
    }
    /// `fuse_attr`.
    Attr {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32,
        mtimensec: u32, ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32,
        blksize: u32, flags: u32,
    }
    /// `fuse_attr_out`.
    AttrOut { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr }
    /// `fuse_setattr_in`.
    SetattrIn {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64,
        ctime: u64, atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32, uid: u32,
        gid: u32, unused5: u32,
    }
    /// `fuse_open_in`.
    OpenIn { flags: u32, open_flags: u32 }
    /// `fuse_open_out`.
    OpenOut { fh: u64, open_flags: u32, backing_id: i32 }
    /// `fuse_read_in`.
    ReadIn {
        fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
    /// `fuse_write_in`; the data follow.
    WriteIn {
        fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
    /// `fuse_write_out`.
    WriteOut { size: u32, padding: u32 }
    /// `fuse_statfs_out`.
    StatfsOut {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32,
        frsize: u32, padding: u32, spare: [u32; 6],
    }
    /// `fuse_fallocate_in`.
    FallocateIn { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 }
    /// `fuse_lseek_in`.
    LseekIn { fh: u64, offset: u64, whence: u32, padding: u32 }
    /// `fuse_lseek_out`.
    LseekOut { offset: u64 }
}

/// The bytes of a write before its data.
pub const WRITE_HEAD_BYTES: usize = size_of::<InHeader>() + size_of::<WriteIn>();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structures_are_as_long_as_the_kernels() {
        let sizes = [
            (size_of::<InHeader>(), 40),
            (size_of::<OutHeader>(), 16),
            (size_of::<InitIn>(), 64),
            (size_of::<InitOut>(), 64),
            (size_of::<Attr>(), 88),
            (size_of::<AttrOut>(), 104),
            (size_of::<SetattrIn>(), 88),
            (size_of::<OpenIn>(), 8),
            (size_of::<OpenOut>(), 16),
            (size_of::<ReadIn>(), 40),
            (size_of::<WriteIn>(), 40),
            (size_of::<WriteOut>(), 8),
            (size_of::<StatfsOut>(), 80),
            (size_of::<FallocateIn>(), 32),
            (size_of::<LseekIn>(), 24),
            (size_of::<LseekOut>(), 8),
            (WRITE_HEAD_BYTES, 80),
        ];
        for (here, kernel) in sizes {
            assert_eq!(here, kernel);
        }
    }
}
