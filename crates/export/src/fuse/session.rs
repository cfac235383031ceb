//! The protocol without a descriptor: the bytes of a request in, what is to be done out.
//!
//! The kernel is not distrusted as a client of a network is. But nothing that it may say makes this panic, and
//! whatever can be answered is answered: a request without an answer keeps its caller in the kernel for ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, FileType, OFlags};
use voltier_block::{Durability, SECTOR_BYTES};
use voltier_ring::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::abi::{self, InHeader, OutHeader, fattr, fopen, init, notify, opcode, seek};
use super::kept::{Count, Note};

/// Requests the kernel may send without a thread that waits for each (readahead, asynchronous direct
/// I/O). The limit is twice the deepest queue that fio is usually run with.
pub(super) const BACKGROUND_REQUESTS_MAX: u16 = 256;

/// The longest read and the longest write, in bytes: what the kernel joins by default with pages of 4 KiB.
pub const TRANSFER_BYTES_MAX: u32 = 1 << 20;

/// The most pages of a request. Larger pages are not that many: the kernel is told the bytes, too.
const PAGES_MAX: u16 = 256;

/// The oldest minor version: the one that brought the longer INIT, of Linux 5.17. The ring needs a newer
/// kernel than that.
const MINOR_MIN: u32 = 36;

/// How long the kernel may remember attributes, in seconds: they never change.
const ATTRIBUTES_TTL_S: u64 = 3600;

/// The abilities of the kernel that are used where it has them. An older one lacks some: asynchronous direct
/// I/O is then slower, truncation at open is refused, shared mappings fail.
const WANTED: u64 = init::ASYNC_READ
    | init::ATOMIC_O_TRUNC
    | init::BIG_WRITES
    | init::ASYNC_DIO
    | init::MAX_PAGES
    | init::INIT_EXT
    | init::DIRECT_IO_ALLOW_MMAP
    | init::HAS_RESEND;

/// What the kernel is told of the file. It stays as it is while the file is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileFacts {
    /// The size, in bytes.
    pub size_bytes: u64,
    /// The length of requests that suits the device, in bytes.
    pub preferred_bytes: u32,
    /// Nobody may write.
    pub read_only: bool,
    /// Whether holes cost metadata only. Loop devices make holes of discards: where zeroes are data, these
    /// would fill the volume.
    pub can_punch: bool,
    /// The permission bits.
    pub mode: u32,
    /// User and group.
    pub owner: (u32, u32),
    /// All dates of the file: seconds since 1970, and nanoseconds.
    pub dated: (u64, u32),
}

impl FileFacts {
    fn permissions(&self) -> u32 {
        let writers = if self.read_only { 0o222 } else { 0 };
        self.mode & 0o7777 & !writers
    }

    fn attributes(&self) -> abi::AttrOut {
        let (seconds, nanoseconds) = self.dated;
        let attr = abi::Attr {
            ino: abi::ROOT,
            size: self.size_bytes,
            blocks: self.size_bytes / SECTOR_BYTES,
            atime: seconds,
            mtime: seconds,
            ctime: seconds,
            atimensec: nanoseconds,
            mtimensec: nanoseconds,
            ctimensec: nanoseconds,
            mode: FileType::RegularFile.as_raw_mode() | self.permissions(),
            nlink: 1,
            uid: self.owner.0,
            gid: self.owner.1,
            blksize: self.preferred_bytes,
            ..abi::Attr::default()
        };
        abi::AttrOut { attr_valid: ATTRIBUTES_TTL_S, attr, ..abi::AttrOut::default() }
    }

    /// How many of `length` bytes at `offset` lie on the device.
    fn clip(&self, offset: u64, length: u64) -> u64 {
        length.min(self.size_bytes.saturating_sub(offset))
    }
}

/// What was agreed on in INIT. A later session on the same descriptor begins with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// The kernel's minor version.
    pub minor: u32,
    /// The abilities that are used.
    pub flags: u64,
}

impl Agreed {
    /// Whether the kernel sends requests again when it is asked to.
    pub(super) fn can_resend(self) -> bool {
        self.flags & init::HAS_RESEND != 0
    }
}

/// A request that needs the device. All of it lies on the device, and it has a length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Read.
    Read {
        /// In bytes.
        offset: u64,
        /// In bytes.
        length: u64,
    },
    /// Write the first `length` bytes that came with the request; `durability` says when it is done.
    Write {
        /// In bytes.
        offset: u64,
        /// In bytes: those behind the end of the device are not among them.
        length: usize,
        /// What the write promises.
        durability: Durability,
    },
    /// Make a range read as zeroes, and give its space back unless `keep_space`.
    Zero {
        /// In bytes.
        offset: u64,
        /// In bytes.
        length: u64,
        /// By writing zeroes.
        keep_space: bool,
    },
    /// Make completed writes durable.
    Flush,
}

/// What to do about a request.
#[derive(Debug)]
pub enum Action {
    /// Nothing: it has no answer.
    Nothing,
    /// Answer with these bytes.
    Reply(Reply),
    /// Ask the device, and answer then, with the number of the request.
    Serve(u64, Request),
    /// Answer, if there is something to be answered, and read no more.
    End(Option<Reply>),
}

/// The longest answer but for the data of reads.
const REPLY_BYTES_MAX: usize = size_of::<OutHeader>() + size_of::<abi::AttrOut>();

/// An answer without data.
#[derive(Clone, Copy, Debug)]
pub struct Reply {
    bytes: [u8; REPLY_BYTES_MAX],
    length: usize,
    /// The number of the request.
    pub(super) unique: u64,
    /// The answer opens the file. If the kernel does not want it any more, nothing was opened.
    pub(super) opens: bool,
}

impl Reply {
    /// A success that says `what`.
    fn with(unique: u64, what: &(impl IntoBytes + Immutable)) -> Self {
        let what = what.as_bytes();
        let length = size_of::<OutHeader>() + what.len();
        let mut reply = Self { bytes: [0; REPLY_BYTES_MAX], length, unique, opens: false };
        let header = OutHeader { len: length as u32, error: 0, unique };
        let (front, rest) = reply.bytes.split_at_mut(size_of::<OutHeader>());
        front.copy_from_slice(header.as_bytes());
        rest[..what.len()].copy_from_slice(what);
        reply
    }

    /// A success that says no more.
    pub fn done(unique: u64) -> Self {
        Self::with(unique, &[0u8; 0])
    }

    /// The answer to a write.
    pub fn written(unique: u64, bytes: u32) -> Self {
        Self::with(unique, &abi::WriteOut { size: bytes, padding: 0 })
    }

    /// A failure.
    pub fn error(unique: u64, errno: Errno) -> Self {
        let mut reply = Self::done(unique);
        let header = OutHeader { len: reply.length as u32, error: -errno.raw_os_error(), unique };
        reply.bytes[..reply.length].copy_from_slice(header.as_bytes());
        reply
    }

    /// The beginning of the answer to a read, which so many bytes of data follow.
    pub fn before_data(unique: u64, bytes: usize) -> OutHeader {
        OutHeader { len: (size_of::<OutHeader>() + bytes) as u32, error: 0, unique }
    }

    /// The bytes of the answer.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// The state of one connection.
pub struct Session {
    file: FileFacts,
    agreed: Option<Agreed>,
    /// How often the file is open: by programs and by loop devices.
    handles: Arc<AtomicU64>,
    /// Where the next daemon finds that number.
    note: Option<Note>,
    /// The last request that changed it before this daemon came.
    counted: u64,
}

/// The structure behind the header of a request of which `head` are the first bytes, and `body` the others.
fn arguments<T: FromBytes>(head: &[u8], body: &[u8]) -> Result<T, Errno> {
    let here = head.get(size_of::<InHeader>()..).unwrap_or_default();
    if let Ok((arguments, _)) = T::read_from_prefix(here) {
        return Ok(arguments);
    }
    // Longer than the head: INIT and SETATTR.
    let mut together = [0; size_of::<abi::SetattrIn>()];
    let most = together.len().min(size_of::<T>());
    let there = body.get(..most - here.len()).ok_or(Errno::INVAL)?;
    together[..here.len()].copy_from_slice(here);
    together[here.len()..most].copy_from_slice(there);
    T::read_from_prefix(&together[..most]).map(|(arguments, _)| arguments).map_err(|_| Errno::INVAL)
}

impl Session {
    /// A session on a descriptor of a fresh mount, or of one whose INIT was answered as `agreed` says. It
    /// counts in `handles` how often the file is open.
    pub fn new(file: FileFacts, agreed: Option<Agreed>, handles: Arc<AtomicU64>) -> Self {
        Self { file, agreed, handles, note: None, counted: 0 }
    }

    /// Has the count of open handles go into a note, too, and begin with what that says.
    pub(super) fn count_in(&mut self, note: Option<Note>) {
        let Some(note) = note else { return };
        let count = note.count();
        self.handles.store(count.handles, Ordering::Relaxed);
        (self.note, self.counted) = (Some(note), count.unique);
    }

    /// What was agreed on, once it is.
    pub fn agreed(&self) -> Option<Agreed> {
        self.agreed
    }

    /// The kernel did not want the answer to an open any more: no release follows.
    pub(super) fn open_in_vain(&self) {
        self.closed(0);
    }

    /// Whether an open or a close was counted by a daemon that died before it could answer. There is one at most:
    /// each is answered before the next request is read.
    fn is_counted(&self, unique: u64) -> bool {
        unique & notify::RESENT != 0 && unique & !notify::RESENT == self.counted & !notify::RESENT
    }

    /// Tells the next daemon, before the answer: see [`Self::is_counted`].
    fn tell_count(&self, unique: u64) {
        if let Some(note) = &self.note {
            note.set_count(Count { handles: self.handles.load(Ordering::Relaxed), unique });
        }
    }

    fn opened(&self, unique: u64) {
        if !self.is_counted(unique) {
            self.handles.fetch_add(1, Ordering::Relaxed);
            self.tell_count(unique);
        }
    }

    fn closed(&self, unique: u64) {
        if self.is_counted(unique) {
            return;
        }
        // A release more than there were opens must not make the file look used.
        let less = |handles: u64| handles.checked_sub(1);
        let _ = self.handles.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        self.tell_count(unique);
    }

    /// What to do about a request: `head` are its first bytes, at least its header's, at most those before the
    /// data of a write ([`abi::WRITE_HEAD_BYTES`]); `body` are all others.
    pub fn request(&mut self, head: &[u8], body: &[u8]) -> Action {
        let Ok((header, _)) = InHeader::read_from_prefix(head) else {
            // Without a number there is nothing to answer.
            return Action::End(None);
        };
        let unique = header.unique;
        match header.opcode {
            opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT | opcode::NOTIFY_REPLY => {
                return Action::Nothing;
            }
            _ if header.len as usize != head.len() + body.len() => {
                return Action::Reply(Reply::error(unique, Errno::IO));
            }
            opcode::INIT => return self.init(unique, head, body),
            opcode::DESTROY => return Action::End(Some(Reply::done(unique))),
            _ if self.agreed.is_none() => {
                return Action::Reply(Reply::error(unique, Errno::IO));
            }
            _ => {}
        }
        self.file_request(&header, head, body)
            .unwrap_or_else(|errno| Action::Reply(Reply::error(unique, errno)))
    }

    fn init(&mut self, unique: u64, head: &[u8], body: &[u8]) -> Action {
        let failed = |errno| Some(Reply::error(unique, errno));
        if self.agreed.is_some() {
            return Action::Reply(Reply::error(unique, Errno::IO));
        }
        let Ok(asked) = arguments::<abi::InitIn>(head, body) else {
            return Action::End(failed(Errno::PROTO));
        };
        if asked.major > abi::MAJOR {
            // The kernel asks again, in the version that it is told.
            let (major, minor) = (abi::MAJOR, abi::MINOR);
            let answer = abi::InitOut { major, minor, ..abi::InitOut::default() };
            return Action::Reply(Reply::with(unique, &answer));
        }
        if (asked.major, asked.minor) < (abi::MAJOR, MINOR_MIN) {
            return Action::End(failed(Errno::PROTO));
        }
        let has_more = u64::from(asked.flags) & init::INIT_EXT != 0;
        let more = if has_more { u64::from(asked.flags2) << 32 } else { 0 };
        let flags = WANTED & (u64::from(asked.flags) | more);
        self.agreed = Some(Agreed { minor: asked.minor, flags });
        let answer = abi::InitOut {
            major: abi::MAJOR,
            minor: abi::MINOR,
            max_readahead: asked.max_readahead,
            flags: flags as u32,
            flags2: (flags >> 32) as u32,
            max_background: BACKGROUND_REQUESTS_MAX,
            congestion_threshold: BACKGROUND_REQUESTS_MAX / 4 * 3,
            max_write: TRANSFER_BYTES_MAX,
            time_gran: 1,
            max_pages: PAGES_MAX,
            ..abi::InitOut::default()
        };
        Action::Reply(Reply::with(unique, &answer))
    }

    /// A request after INIT.
    fn file_request(
        &mut self,
        header: &InHeader,
        head: &[u8],
        body: &[u8],
    ) -> Result<Action, Errno> {
        let (unique, file) = (header.unique, &self.file);
        Ok(match header.opcode {
            opcode::READ => {
                let asked: abi::ReadIn = arguments(head, body)?;
                if asked.size > TRANSFER_BYTES_MAX {
                    return Err(Errno::INVAL);
                }
                match file.clip(asked.offset, asked.size.into()) {
                    0 => Action::Reply(Reply::done(unique)),
                    length => Action::Serve(unique, Request::Read { offset: asked.offset, length }),
                }
            }
            opcode::WRITE => return self.write(unique, head, body),
            opcode::FSYNC => Action::Serve(unique, Request::Flush),
            // A close promises nothing, and every write has reached the volume already.
            opcode::FLUSH => Action::Reply(Reply::done(unique)),
            opcode::GETATTR => Action::Reply(Reply::with(unique, &file.attributes())),
            opcode::SETATTR => self.set_attributes(unique, &arguments(head, body)?)?,
            opcode::OPEN => self.open(unique, arguments(head, body)?)?,
            opcode::RELEASE => {
                self.closed(unique);
                Action::Reply(Reply::done(unique))
            }
            opcode::STATFS => Action::Reply(Reply::with(unique, &self.file_system())),
            opcode::FALLOCATE => self.allocate(unique, &arguments(head, body)?)?,
            opcode::LSEEK => self.seek(unique, &arguments(head, body)?)?,
            _ => return Err(Errno::NOSYS),
        })
    }

    fn write(&self, unique: u64, head: &[u8], body: &[u8]) -> Result<Action, Errno> {
        let asked: abi::WriteIn = arguments(head, body)?;
        if head.len() != abi::WRITE_HEAD_BYTES || body.len() != asked.size as usize {
            return Err(Errno::INVAL);
        }
        if body.is_empty() {
            return Ok(Action::Reply(Reply::written(unique, 0)));
        }
        let length = self.file.clip(asked.offset, body.len() as u64) as usize;
        if length == 0 {
            return Err(Errno::NOSPC);
        }
        // The flags of a write carry O_DSYNC also for RWF_DSYNC; O_SYNC contains it.
        let is_durable = asked.flags & OFlags::DSYNC.bits() != 0;
        let durability = if is_durable { Durability::Durable } else { Durability::Cached };
        Ok(Action::Serve(unique, Request::Write { offset: asked.offset, length, durability }))
    }

    fn set_attributes(&self, unique: u64, asked: &abi::SetattrIn) -> Result<Action, Errno> {
        let changes_size = asked.valid & fattr::SIZE != 0;
        if changes_size && asked.size > self.file.size_bytes {
            return Err(Errno::FBIG);
        }
        let shrinks = changes_size && asked.size < self.file.size_bytes;
        if shrinks || asked.valid & (fattr::MODE | fattr::UID | fattr::GID) != 0 {
            return Err(Errno::PERM);
        }
        Ok(Action::Reply(Reply::with(unique, &self.file.attributes())))
    }

    fn open(&self, unique: u64, asked: abi::OpenIn) -> Result<Action, Errno> {
        if self.file.read_only && asked.flags & OFlags::ACCMODE.bits() != OFlags::RDONLY.bits() {
            return Err(Errno::ROFS);
        }
        self.opened(unique);
        let open_flags = fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES | fopen::NOFLUSH;
        let reply = Reply::with(unique, &abi::OpenOut { open_flags, ..abi::OpenOut::default() });
        Ok(Action::Reply(Reply { opens: true, ..reply }))
    }

    fn file_system(&self) -> abi::StatfsOut {
        let block = self.file.preferred_bytes;
        abi::StatfsOut {
            blocks: self.file.size_bytes / u64::from(block.max(1)),
            files: 1,
            bsize: block,
            namelen: 255,
            frsize: block,
            ..abi::StatfsOut::default()
        }
    }

    fn allocate(&self, unique: u64, asked: &abi::FallocateIn) -> Result<Action, Errno> {
        let (offset, file) = (asked.offset, &self.file);
        let mode = FallocateFlags::from_bits_retain(asked.mode);
        let keep_size = FallocateFlags::KEEP_SIZE;
        let beyond = offset.checked_add(asked.length).is_none_or(|end| end > file.size_bytes);
        if beyond && !mode.contains(keep_size) {
            return Err(Errno::FBIG);
        }
        let keep_space = match mode.difference(keep_size) {
            // The volume provides every byte of its size: there is nothing to allocate.
            plain if plain.is_empty() => return Ok(Action::Reply(Reply::done(unique))),
            FallocateFlags::PUNCH_HOLE if file.can_punch => false,
            FallocateFlags::ZERO_RANGE => true,
            _ => return Err(Errno::OPNOTSUPP),
        };
        Ok(match file.clip(offset, asked.length) {
            0 => Action::Reply(Reply::done(unique)),
            length => Action::Serve(unique, Request::Zero { offset, length, keep_space }),
        })
    }

    fn seek(&self, unique: u64, asked: &abi::LseekIn) -> Result<Action, Errno> {
        let size = self.file.size_bytes;
        let offset = match asked.whence {
            seek::DATA | seek::HOLE if asked.offset >= size => return Err(Errno::NXIO),
            // The device does not tell what it holds: one run of data, and the hole that every file ends with.
            seek::DATA => asked.offset,
            seek::HOLE => size,
            _ => return Err(Errno::INVAL),
        };
        Ok(Action::Reply(Reply::with(unique, &abi::LseekOut { offset })))
    }
}
