//! A regular file or a block device, through the ring.

mod left_behind;
mod open;

pub use open::{FileFacts, FileOptions, OpenError, OpenFile, is_undrained};

use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;

use voltier_block::{
    AfterDiscard, BlockDevice, Buf, DriveControl, Durability, IoError, IoResult, Lba, Limits, MIB,
    Nanos, Payload, SECTOR_BYTES, SectorRange, UnderWay, zero_writes,
};
use voltier_ring::{AllocateMode, Errno, Fd, Handle, OnFailure};

/// Most pieces the kernel takes in one vectored read or write (IOV_MAX).
const PIECES_MAX: usize = 1024;
/// Bytes per write where zeroes have to be written by hand.
const ZEROES_BYTES: u64 = MIB;

/// A drive behind a path. Close it by dropping it: the lock goes with the descriptor.
pub struct FileDevice {
    handle: Handle,
    fd: Fd,
    limits: Limits,
    facts: Option<FileFacts>,
    /// Alignment in memory that the kernel wants; pieces that lack it are copied.
    memory_align_bytes: usize,
    /// Whether the kernel takes these: zeroes that give space up, and zeroes that keep it.
    can_punch: Cell<bool>,
    can_zero: Cell<bool>,
    /// A failed flush may have dropped the very writes it was for, and the kernel reports that once. So
    /// after one failure no later flush may claim that all is well, before the owner has seen to these
    /// writes.
    flush_failed: Rc<Cell<bool>>,
    /// Flushes that failed.
    failed_flushes: Rc<Cell<u64>>,
    /// Held as long as the device holds its descriptor.
    own_hold: Rc<()>,
    on_failure: Option<OnFailure>,
}

impl Drop for FileDevice {
    fn drop(&mut self) {
        if let Some(facts) = &self.facts {
            left_behind::note(facts.identity, self.fd.watch());
        }
    }
}

impl FileDevice {
    /// Opens a regular file or block device.
    ///
    /// Direct I/O is used where the file system has it. A regular file is locked, a block device is
    /// claimed, so that only one writer has it.
    ///
    /// # Errors
    /// [`OpenError`], one line with advice; nothing was changed then.
    pub fn open(handle: &Handle, path: &Path, options: &FileOptions) -> Result<Self, OpenError> {
        Ok(Self::of(handle, OpenFile::open(path, options)?))
    }

    /// A device over a file that a thread has opened.
    pub fn of(handle: &Handle, opened: OpenFile) -> Self {
        let mut device = Self::over(handle.clone(), Fd::from_owned(opened.fd), opened.limits);
        if opened.facts.direct_io {
            device.memory_align_bytes = opened.facts.memory_align_bytes.max(1);
        }
        let (drive, descriptor) = (opened.facts.identity, device.fd.watch());
        let left = handle.on_failure(move |_| left_behind::keep(drive, descriptor));
        device.on_failure = Some(left);
        handle.close_on_failure(&device.fd);
        device.facts = Some(opened.facts);
        device
    }

    /// A device over a descriptor of whoever knows its limits: a simulator's file, for one.
    pub fn over(handle: Handle, fd: Fd, limits: Limits) -> Self {
        let can_punch = Cell::new(limits.cheap_zeroes);
        Self {
            handle,
            fd,
            limits,
            facts: None,
            memory_align_bytes: 1,
            can_punch,
            can_zero: Cell::new(true),
            flush_failed: Rc::default(),
            failed_flushes: Rc::default(),
            own_hold: Rc::default(),
            on_failure: None,
        }
    }

    /// The facts that opening found out; none for a device made by [`over`](Self::over).
    pub fn facts(&self) -> Option<&FileFacts> {
        self.facts.as_ref()
    }

    /// Whether writes go through the kernel's page cache.
    fn is_buffered(&self) -> bool {
        self.facts.as_ref().is_some_and(|facts| !facts.direct_io)
    }

    /// Makes a range zero: in the first way that the kernel takes, or by writing zeroes.
    async fn zero(&self, range: SectorRange, durable: bool, first: AllocateMode) -> IoResult<()> {
        let punch = (&self.can_punch, AllocateMode::PunchHole);
        let zero = (&self.can_zero, AllocateMode::ZeroRange);
        let ways = match first {
            AllocateMode::PunchHole => [punch, zero],
            AllocateMode::ZeroRange => [zero, punch],
        };
        for (can, mode) in ways.into_iter().filter(|(can, _)| can.get()) {
            match self.allocate(mode, range).await {
                Ok(()) if durable => return self.sync().await,
                Err(IoError::Unsupported) => can.set(false),
                other => return other,
            }
        }
        self.write_zeroes_by_hand(range, durable).await
    }

    /// Whether the kernel takes this memory as it is; the page cache takes any.
    fn is_aligned(&self, bytes: &[u8]) -> bool {
        self.memory_align_bytes == 1
            || ((bytes.as_ptr() as usize).is_multiple_of(self.memory_align_bytes)
                && bytes.len().is_multiple_of(self.limits.block_bytes as usize))
    }

    /// Fills an aligned buffer, however many reads that takes.
    async fn fill(&self, mut offset: u64, mut rest: Buf) -> IoResult<Buf> {
        let mut filled: Option<Buf> = None;
        loop {
            let (mut buf, result) = self.handle.read_at(&self.fd, offset, rest).await;
            let read = self.whole_blocks(result)?.min(buf.len());
            let front = buf.split_to(read);
            offset += read as u64;
            rest = buf;
            filled = Some(match filled {
                Some(before) => before.join(front),
                None => front,
            });
            if rest.is_empty()
                && let Some(whole) = filled
            {
                return Ok(whole.join(rest));
            }
        }
    }

    /// Bytes of a transfer that count: whole blocks. None at all means that the file has become
    /// shorter than it was, or that the device does not get on.
    fn whole_blocks(&self, result: Result<u32, Errno>) -> IoResult<usize> {
        let bytes = result.map_err(io_error)? as usize;
        match bytes - bytes % self.limits.block_bytes as usize {
            0 => Err(IoError::Medium),
            whole => Ok(whole),
        }
    }

    /// Writes pieces that the kernel takes as they are, however many writes that takes.
    async fn write_run(&self, mut offset: u64, mut data: Payload, durable: bool) -> IoResult<()> {
        // A durable write of a buffered file takes the page cache's error along, which may be that of other
        // writes. A flush by itself keeps the two errors apart.
        let flushes = durable && self.is_buffered();
        loop {
            let wanted = data.len();
            let forced = durable && !flushes;
            let result = self.handle.write_at(&self.fd, offset, data.clone(), forced).await;
            let written = self.whole_blocks(result)?;
            if written >= wanted {
                return if flushes { self.sync().await } else { Ok(()) };
            }
            offset += written as u64;
            data = data.slice(written..wanted);
        }
    }

    async fn write_zeroes_by_hand(&self, range: SectorRange, durable: bool) -> IoResult<()> {
        for (part, zeroes) in zero_writes(range, ZEROES_BYTES) {
            self.write_run(part.start.bytes(), zeroes, durable).await?;
        }
        Ok(())
    }

    async fn sync(&self) -> IoResult<()> {
        if self.flush_failed.get() {
            return Err(IoError::Medium);
        }
        let (handle, fd) = (self.handle.clone(), self.fd.clone());
        let (flush_failed, failed_flushes) =
            (self.flush_failed.clone(), self.failed_flushes.clone());
        let before = failed_flushes.get();
        let synced = async move {
            let result = handle.sync_data(&fd).await.map_err(io_error);
            if result.is_err() {
                flush_failed.set(true);
                failed_flushes.set(failed_flushes.get() + 1);
            } else if failed_flushes.get() != before {
                // Another flush that was under way has failed, and the kernel says so once: this one may have had
                // nothing left to store.
                return Err(IoError::Medium);
            }
            result
        };
        // The error counts when nobody waits for it any more, too.
        self.handle.finish(synced).await
    }

    async fn allocate(&self, mode: AllocateMode, range: SectorRange) -> IoResult<()> {
        let (offset, bytes) = (range.start.bytes(), range.bytes());
        self.handle.allocate(&self.fd, mode, offset, bytes).await.map_err(io_error)
    }
}

fn io_error(errno: Errno) -> IoError {
    IoError::from_errno(errno.raw_os_error())
}

/// One piece of aligned memory with the same bytes.
fn aligned_copy(data: &Payload) -> Payload {
    let mut copy = Buf::new(data.len());
    data.copy_to(0, &mut copy);
    copy.into()
}

impl BlockDevice for FileDevice {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    async fn read(&self, at: Lba, mut into: Buf) -> IoResult<Buf> {
        let range = self.limits.checked_transfer(at, into.len())?;
        if range.is_empty() {
            return Ok(into);
        }
        if self.is_aligned(&into) {
            return self.fill(at.bytes(), into).await;
        }
        let aligned = self.fill(at.bytes(), Buf::new(into.len())).await?;
        into.copy_from_slice(&aligned);
        Ok(into)
    }

    async fn read_vectored(&self, at: Lba, into: Vec<Buf>) -> IoResult<Vec<Buf>> {
        let bytes = into.iter().map(|buf| buf.len()).sum();
        self.limits.checked_transfer(at, bytes)?;
        let as_they_are = into.len() <= PIECES_MAX && into.iter().all(|buf| self.is_aligned(buf));
        let mut filled = 0;
        let mut bufs = into;
        if as_they_are && bytes > 0 {
            let result;
            (bufs, result) = self.handle.read_vectored_at(&self.fd, at.bytes(), bufs).await;
            filled = self.whole_blocks(result)?;
        }
        // The bytes that did not come with the vectored read, buffer by buffer.
        let mut end = 0;
        let mut whole = Vec::with_capacity(bufs.len());
        for buf in bufs {
            let start = end;
            end += buf.len();
            let rest = at.plus(start as u64 / SECTOR_BYTES);
            whole.push(if end <= filled { buf } else { self.read(rest, buf).await? });
        }
        Ok(whole)
    }

    async fn write(&self, at: Lba, data: Payload, durability: Durability) -> IoResult<()> {
        let range = self.limits.checked_write(at, &data)?;
        if range.is_empty() {
            return Ok(());
        }
        let durable = durability == Durability::Durable;
        let pieces = data.pieces();
        let as_it_is =
            pieces.len() <= PIECES_MAX && pieces.iter().all(|piece| self.is_aligned(piece));
        let data = if as_it_is { data } else { aligned_copy(&data) };
        self.write_run(at.bytes(), data, durable).await
    }

    async fn flush(&self) -> IoResult<()> {
        if self.limits.read_only {
            return Ok(());
        }
        self.sync().await
    }

    async fn discard(&self, range: SectorRange) -> IoResult<()> {
        self.limits.checked_change(range)?;
        if range.is_empty() || self.limits.after_discard == AfterDiscard::Unchanged {
            return Ok(());
        }
        // The promise of zeroes was made when it was opened, so they are written if need be.
        self.zero(range, false, AllocateMode::PunchHole).await
    }

    async fn write_zeroes(&self, range: SectorRange, durability: Durability) -> IoResult<()> {
        self.limits.checked_change(range)?;
        if range.is_empty() {
            return Ok(());
        }
        // A file that somebody gave all of its space keeps the space.
        let is_allocated = self.facts.as_ref().is_some_and(|facts| facts.is_allocated);
        let first = if is_allocated { AllocateMode::ZeroRange } else { AllocateMode::PunchHole };
        self.zero(range, durability == Durability::Durable, first).await
    }

    async fn zero_in_place(&self, range: SectorRange, durability: Durability) -> IoResult<()> {
        self.limits.checked_change(range)?;
        if range.is_empty() {
            return Ok(());
        }
        if !self.limits.cheap_zeroes || !self.can_zero.get() {
            return Err(IoError::Unsupported);
        }
        match self.allocate(AllocateMode::ZeroRange, range).await {
            Ok(()) if durability == Durability::Durable => self.sync().await,
            Err(IoError::Unsupported) => {
                self.can_zero.set(false);
                Err(IoError::Unsupported)
            }
            other => other,
        }
    }
}

impl DriveControl for FileDevice {
    fn under_way(&self) -> UnderWay {
        let (descriptor, own_hold) = (self.fd.watch(), Rc::downgrade(&self.own_hold));
        UnderWay::of(move || descriptor.holders().saturating_sub(own_hold.strong_count()))
    }

    fn abandon(&self) {
        self.handle.cancel(&self.fd);
    }

    fn forget_failed_flush(&self) {
        self.flush_failed.set(false);
    }

    /// It waits for the drive as long as the kernel does.
    fn patience_ns(&self) -> Nanos {
        0
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Poll;

    use super::*;
    use voltier_ring::{Executor, Op, OpOutcome, VirtualFiles};

    /// Syncs fail once, as the kernel's do, and take a while.
    struct OneBadSync(bool);

    const SYNC_NS: u64 = 10;

    impl VirtualFiles for OneBadSync {
        fn submit(&mut self, now: u64, op: Op) -> (u64, OpOutcome) {
            assert!(matches!(op, Op::Sync { .. }));
            let bad = std::mem::replace(&mut self.0, false);
            let result = if bad { Err(Errno::IO) } else { Ok(0) };
            (now + SYNC_NS, OpOutcome { result, buf: None, bufs: Vec::new() })
        }
    }

    #[test]
    fn after_a_failed_flush_no_other_one_claims_success_before_the_owner_has_seen_to_it() {
        let mut executor = Executor::in_virtual_time(OneBadSync(true));
        let handle = executor.handle();
        executor.block_on(async move {
            let device = FileDevice::over(handle, Fd::Virtual(0), Limits::plain(MIB));
            assert_eq!(device.flush().await, Err(IoError::Medium));
            assert_eq!(device.flush().await, Err(IoError::Medium));
            device.forget_failed_flush();
            assert_eq!(device.flush().await, Ok(()));
        });
    }

    #[test]
    fn a_failed_flush_that_nobody_waits_for_any_more_counts() {
        let mut executor = Executor::in_virtual_time(OneBadSync(true));
        let handle = executor.handle();
        executor.block_on(async move {
            let device = FileDevice::over(handle.clone(), Fd::Virtual(0), Limits::plain(MIB));
            let mut dropped = Box::pin(device.flush());
            poll_fn(|context| Poll::Ready(dropped.as_mut().poll(context).is_pending())).await;
            drop(dropped);
            handle.sleep(2 * SYNC_NS).await;
            assert_eq!(device.flush().await, Err(IoError::Medium));
        });
    }

    /// A file behind a page cache whose write-back meets a full pool. The next sync says so, once: a flush,
    /// or the sync within a durable write.
    struct FullPool {
        has_error: bool,
    }

    impl VirtualFiles for FullPool {
        fn submit(&mut self, now: u64, op: Op) -> (u64, OpOutcome) {
            let (is_sync, written) = match &op {
                Op::Sync { .. } => (true, 0),
                Op::Write { data, dsync, .. } => (*dsync, data.len() as u32),
                _ => unreachable!("nothing else is asked for"),
            };
            let fails = is_sync && std::mem::take(&mut self.has_error);
            let result = if fails { Err(Errno::NOSPC) } else { Ok(written) };
            (now, OpOutcome { result, buf: None, bufs: Vec::new() })
        }
    }

    #[test]
    fn a_durable_write_that_took_the_error_of_earlier_writes_along_is_no_flush_for_them() {
        let mut executor = Executor::in_virtual_time(FullPool { has_error: true });
        let handle = executor.handle();
        executor.block_on(async move {
            let mut device = FileDevice::over(handle, Fd::Virtual(0), Limits::plain(MIB));
            device.facts = Some(FileFacts {
                path: "ssd".into(),
                is_block_device: false,
                direct_io: false,
                unused_tail_bytes: 0,
                memory_align_bytes: 1,
                is_allocated: false,
                identity: left_behind::FileIdentity { is_block_device: false, number: (0, 0) },
            });
            let write =
                async |durability| device.write(Lba(0), Buf::zeroed(4096).into(), durability).await;
            write(Durability::Cached).await.expect("the page cache takes it");
            assert!(write(Durability::Durable).await.is_err());
            assert!(device.flush().await.is_err(), "the cached write is lost");
        });
    }
}
