//! The file: what the kernel asks of it, and what the core does about it.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, INodeNo,
    InitFlags, KernelConfig, LockOwner, OpenAccMode, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty,
    ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::{FallocateFlags, OFlags};
use voltier_block::{BlockDevice, Bytes, Durability, IoError, IoResult, SECTOR_BYTES};
use voltier_ring::Handle;

use super::mailbox::{FileRequest, Mailbox, Receiver};
use crate::bytes::ByteDevice;
use crate::counters::{CounterCell, ExportCounters, Served};
use crate::requests::{Service, Workers};

/// Requests the kernel may send without a thread that waits for each (readahead, asynchronous direct
/// I/O). The limit is twice the deepest queue that fio is usually run with.
const BACKGROUND_REQUESTS_MAX: u16 = 256;

/// Longest write the kernel sends, in bytes; it joins no more than 256 pages by default.
const WRITE_BYTES_MAX: u32 = 1 << 20;

/// Requests served at once on the core; further ones wait.
const WORKERS_MAX: usize = BACKGROUND_REQUESTS_MAX as usize;

/// How long the kernel may remember attributes: they never change.
const ATTRIBUTES_TTL: Duration = Duration::from_secs(3600);

/// A device opened for one FUSE file: made on the device's core, mounted from another thread with
/// [`FuseFile::mount`](super::FuseFile::mount).
pub struct FileExport {
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) counters: Arc<CounterCell>,
    /// How often the file is open now: by programs and by loop devices.
    pub(super) handles: Arc<AtomicU64>,
    size_bytes: u64,
    preferred_bytes: u32,
    pub(super) read_only: bool,
    /// Whether holes cost metadata only. Loop devices make holes of discards: where zeroes are data, these
    /// would fill the volume.
    can_punch: bool,
}

impl FileExport {
    /// Starts serving `device` on this core; the export may then be sent to another thread.
    pub fn open<D: BlockDevice>(handle: &Handle, device: Rc<ByteDevice<D>>) -> Self {
        let mailbox = Arc::new(Mailbox::default());
        let counters = Arc::new(CounterCell::default());
        let limits = device.limits();
        let export = Self {
            mailbox: mailbox.clone(),
            counters: counters.clone(),
            handles: Arc::default(),
            size_bytes: limits.bytes(),
            preferred_bytes: limits.preferred_bytes,
            read_only: limits.read_only,
            can_punch: limits.cheap_zeroes,
        };
        let service = Serve { device, counters };
        let workers = Workers::new(handle.clone(), service, WORKERS_MAX);
        let (failing, receiver) = (mailbox.clone(), Receiver(mailbox));
        let on_failure = handle.on_failure(move |_| failing.fail());
        drop(handle.spawn(async move {
            let _on_failure = on_failure;
            let mut batch = Vec::new();
            while receiver.receive(&mut batch).await {
                batch.drain(..).for_each(|request| workers.serve(request));
            }
        }));
        export
    }

    /// The counters so far.
    pub fn counters(&self) -> ExportCounters {
        self.counters.get()
    }
}

impl Drop for FileExport {
    fn drop(&mut self) {
        self.mailbox.close();
    }
}

struct Serve<D> {
    device: Rc<ByteDevice<D>>,
    counters: Arc<CounterCell>,
}

impl<D: BlockDevice> Service for Serve<D> {
    type Job = FileRequest;

    async fn serve(&self, request: FileRequest) {
        match request {
            FileRequest::Read { offset, length, reply } => {
                let result = self.device.read(offset, length).await;
                self.count(&result, Served::Read(length));
                match result {
                    Ok(data) => reply.data(&data),
                    Err(error) => reply.error(errno(error)),
                }
            }
            FileRequest::Write { offset, data, durability, reply } => {
                let length = data.len() as u32;
                let result = self.device.write(offset, data, durability).await;
                self.count(&result, Served::Write(length.into()));
                match result {
                    Ok(()) => reply.written(length),
                    Err(error) => reply.error(errno(error)),
                }
            }
            FileRequest::Zero { offset, length, keep_space, reply } => {
                let result = if keep_space {
                    self.device.zero(offset, length, Durability::Cached, true).await
                } else {
                    self.device.punch(offset, length).await
                };
                self.count(&result, Served::Discard);
                answer(result, reply);
            }
            FileRequest::Flush { reply } => {
                let result = self.device.flush().await;
                self.count(&result, Served::Flush);
                answer(result, reply);
            }
        }
    }
}

impl<D> Serve<D> {
    fn count<T>(&self, result: &IoResult<T>, served: Served) {
        self.counters.count(if result.is_ok() { served } else { Served::Failure });
    }
}

fn errno(error: IoError) -> Errno {
    Errno::from_i32(error.errno())
}

fn answer(result: IoResult<()>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(error)),
    }
}

/// The file as the kernel sees it, on fuser's thread.
pub(super) struct File {
    pub(super) export: FileExport,
    /// The permission bits.
    pub(super) mode: u32,
    /// User and group.
    pub(super) owner: (u32, u32),
    pub(super) mounted_at: SystemTime,
}

impl File {
    fn attributes(&self) -> FileAttr {
        FileAttr {
            ino: INodeNo::ROOT,
            size: self.export.size_bytes,
            blocks: self.export.size_bytes / SECTOR_BYTES,
            atime: self.mounted_at,
            mtime: self.mounted_at,
            ctime: self.mounted_at,
            crtime: self.mounted_at,
            kind: FileType::RegularFile,
            perm: self.permissions(),
            nlink: 1,
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            blksize: self.export.preferred_bytes,
            flags: 0,
        }
    }

    fn permissions(&self) -> u16 {
        let writers = if self.export.read_only { 0o222 } else { 0 };
        (self.mode & !writers) as u16
    }

    /// How many of `length` bytes at `offset` lie on the device.
    fn clip(&self, offset: u64, length: u64) -> u64 {
        length.min(self.export.size_bytes.saturating_sub(offset))
    }
}

impl Filesystem for File {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let wanted = [
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_ATOMIC_O_TRUNC,
            InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
        ];
        for flag in wanted {
            // An older kernel lacks some: asynchronous direct I/O is then slower, truncation at
            // open is refused, shared mappings fail.
            let _ = config.add_capabilities(flag);
        }
        // Both values lie inside the bounds that fuser checks.
        let _ = config.set_max_background(BACKGROUND_REQUESTS_MAX);
        let _ = config.set_max_write(WRITE_BYTES_MAX);
        Ok(())
    }

    fn getattr(&self, _: &Request, _: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&ATTRIBUTES_TTL, &self.attributes());
    }

    fn setattr(
        &self,
        _request: &Request,
        _inode: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        match size {
            Some(size) if size > self.export.size_bytes => return reply.error(Errno::EFBIG),
            Some(size) if size < self.export.size_bytes => return reply.error(Errno::EPERM),
            _ if mode.is_some() || uid.is_some() || gid.is_some() => {
                return reply.error(Errno::EPERM);
            }
            _ => {}
        }
        reply.attr(&ATTRIBUTES_TTL, &self.attributes());
    }

    fn open(&self, _request: &Request, _inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if self.export.read_only && flags.acc_mode() != OpenAccMode::O_RDONLY {
            return reply.error(Errno::EROFS);
        }
        self.export.handles.fetch_add(1, Ordering::Relaxed);
        let direct = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        reply.opened(FileHandle(0), direct | FopenFlags::FOPEN_NOFLUSH);
    }

    fn release(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.export.handles.fetch_sub(1, Ordering::Relaxed);
        reply.ok();
    }

    fn read(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.clip(offset, size.into()) {
            0 => reply.data(&[]),
            length => self.export.mailbox.send(FileRequest::Read { offset, length, reply }),
        }
    }

    fn write(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let length = self.clip(offset, data.len() as u64) as usize;
        if data.is_empty() {
            return reply.written(0);
        }
        if length == 0 {
            return reply.error(Errno::ENOSPC);
        }
        // The flags of a write carry O_DSYNC also for RWF_DSYNC; O_SYNC contains it.
        let durability = if flags.0 & OFlags::DSYNC.bits() as i32 != 0 {
            Durability::Durable
        } else {
            Durability::Cached
        };
        let data = Bytes::copy_of(&data[..length]);
        self.export.mailbox.send(FileRequest::Write { offset, data, durability, reply });
    }

    fn flush(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        // A close promises nothing, and every write has reached the volume already.
        reply.ok();
    }

    fn fsync(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        self.export.mailbox.send(FileRequest::Flush { reply });
    }

    fn statfs(&self, _request: &Request, _inode: INodeNo, reply: ReplyStatfs) {
        let block = self.export.preferred_bytes;
        let blocks = self.export.size_bytes / u64::from(block);
        reply.statfs(blocks, 0, 0, 1, 0, block, 255, block);
    }

    fn fallocate(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let mode = FallocateFlags::from_bits_retain(mode as u32);
        let keep_size = FallocateFlags::KEEP_SIZE;
        let beyond = offset.checked_add(length).is_none_or(|end| end > self.export.size_bytes);
        if beyond && !mode.contains(keep_size) {
            return reply.error(Errno::EFBIG);
        }
        let keep_space = match mode.difference(keep_size) {
            // The volume provides every byte of its size: there is nothing to allocate.
            plain if plain.is_empty() => return reply.ok(),
            FallocateFlags::PUNCH_HOLE if self.export.can_punch => false,
            FallocateFlags::ZERO_RANGE => true,
            _ => return reply.error(Errno::EOPNOTSUPP),
        };
        match self.clip(offset, length) {
            0 => reply.ok(),
            length => {
                self.export.mailbox.send(FileRequest::Zero { offset, length, keep_space, reply });
            }
        }
    }

    fn lseek(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        const SEEK_DATA: i32 = 3;
        const SEEK_HOLE: i32 = 4;
        let inside = u64::try_from(offset).is_ok_and(|offset| offset < self.export.size_bytes);
        match whence {
            SEEK_DATA | SEEK_HOLE if !inside => reply.error(Errno::ENXIO),
            // One run of data, and the hole that every file ends with.
            SEEK_DATA => reply.offset(offset),
            SEEK_HOLE => reply.offset(self.export.size_bytes as i64),
            _ => reply.error(Errno::EINVAL),
        }
    }
}
