//! A Ceph RBD image as a drive.
//!
//! ```text
//! request -> device -> librbd -> cluster
//!               |        '- counts completions in an eventfd, on which the core's ring waits
//!               '- a task collects what has ended, and wakes who waits for it
//! ```
//!
//! A cluster that does not answer is a drive that does not: librbd waits and goes on by itself when the cluster is
//! back, and the deadlines of caches and arrays deal with the time between. What was given to librbd cannot be taken
//! back, so its buffers stay with the request until it ends.
//!
//! **Lock.** The image's exclusive lock is ours for as long as the drive is open. When it is lost, or the image is made
//! smaller or deleted, the drive has ended: every request fails, also reads, for somebody else may have written.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use voltier_block::{
    AfterDiscard, BlockDevice, Buf, DriveControl, Durability, GIB, IoError, IoResult, Lba, Limits,
    MIB, Nanos, Payload, SECTOR_BYTES, SectorRange, UnderWay,
};
use voltier_librbd::{Done, Image, ImageError, Loss, Op};
use voltier_ring::{Errno, Fd, Handle, OneshotSender, Permit, Semaphore, join_all, oneshot};

/// Longest transfer, in bytes: an object of most images.
const TRANSFER_BYTES_MAX: u32 = 4 << 20;
/// Bytes that librbd has at most, of all requests: a core must not wait where librbd's own bound would have it wait.
const UNDER_WAY_BYTES_MAX: u64 = 64 * MIB;
/// A request counts as so many bytes at least: so there are at most 4096 of them.
const REQUEST_BYTES_MIN: u64 = UNDER_WAY_BYTES_MAX / 4096;
/// Longest range that is given up or zeroed with one request: 256 objects of most images.
const RANGE_SECTORS_MAX: u64 = GIB / SECTOR_BYTES;

/// Who waits for a request, and its share of what may be under way.
struct Waiter {
    sender: Option<OneshotSender<Result<Vec<Buf>, IoError>>>,
    _share: Permit,
}

struct Shared {
    handle: Handle,
    image: Image,
    event: Fd,
    waiters: RefCell<BTreeMap<u64, Waiter>>,
    next_token: Cell<u64>,
    room: Semaphore,
    tell: Box<dyn Fn(&Loss)>,
    loss: RefCell<Option<Loss>>,
    /// Others may write to the image now.
    lock_is_lost: Rc<Cell<bool>>,
    /// Nothing is served any more.
    has_ended: Cell<bool>,
    /// The device is dropped.
    is_dropped: Cell<bool>,
    /// As a file's: after one flush has failed no other may claim that all is well, before the owner has seen to
    /// the writes.
    flush_failed: Cell<bool>,
    failed_flushes: Cell<u64>,
}

/// A drive that is an RBD image. Dropping it gives the lock back when all requests have ended.
pub struct RbdDevice {
    shared: Rc<Shared>,
    limits: Limits,
}

impl RbdDevice {
    /// A device over an image that is open. `tell` hears how it is lost, once.
    ///
    /// # Errors
    /// When the process can have no more descriptors.
    pub fn new(
        handle: &Handle,
        image: Image,
        tell: impl Fn(&Loss) + 'static,
    ) -> Result<Self, ImageError> {
        let event = image.event().map_err(|error| ImageError::descriptors(&error))?;
        let limits = limits_of(image.size_bytes());
        let shared = Rc::new(Shared {
            handle: handle.clone(),
            image,
            event: Fd::from_owned(event),
            waiters: RefCell::default(),
            next_token: Cell::new(0),
            room: Semaphore::new(UNDER_WAY_BYTES_MAX),
            tell: Box::new(tell),
            loss: RefCell::default(),
            lock_is_lost: Rc::default(),
            has_ended: Cell::new(false),
            is_dropped: Cell::new(false),
            flush_failed: Cell::new(false),
            failed_flushes: Cell::new(0),
        });
        drop(handle.spawn(shared.clone().collect_all()));
        Ok(Self { shared, limits })
    }

    /// Bytes at the end of the image that are not used, because they do not fill a sector.
    pub fn unused_tail_bytes(&self) -> u64 {
        self.shared.image.size_bytes() - self.limits.bytes()
    }

    /// How the image was lost, in words, if it is.
    pub fn loss(&self) -> Option<String> {
        self.shared.loss.borrow().as_ref().map(ToString::to_string)
    }

    /// Becomes true when the lock is lost: what is served in front of the image may be old from then on, and what
    /// clients write there never reaches it.
    pub fn lock_is_lost(&self) -> Rc<Cell<bool>> {
        self.shared.lock_is_lost.clone()
    }

    async fn change(&self, op: Op, bytes: u64) -> IoResult<()> {
        self.shared.ask(op, bytes).await.map(drop)
    }

    /// Ends a change that was to be durable.
    async fn made_durable(&self, durability: Durability) -> IoResult<()> {
        if durability == Durability::Durable { self.shared.sync().await } else { Ok(()) }
    }
}

fn limits_of(size_bytes: u64) -> Limits {
    Limits {
        max_transfer_bytes: TRANSFER_BYTES_MAX,
        // Parts of objects that are smaller than a granule of the library's stay as they are.
        after_discard: AfterDiscard::Anything,
        // librbd's cache is off, and then a completed write is durable. The image's own metadata may turn it on again,
        // and plug-ins may bring another one. A flush costs nothing where there is none.
        volatile_cache: true,
        ..Limits::plain(size_bytes)
    }
}

/// The block layer's error for one of the cluster.
fn io_error(number: i32) -> IoError {
    match IoError::from_errno(number) {
        // Ranges are checked here: what is out of range for the cluster is an image that was made smaller.
        IoError::OutOfRange => IoError::Medium,
        error => error,
    }
}

impl Shared {
    /// Hands a request to the library when there is room, and waits for its end.
    async fn ask(self: &Rc<Self>, op: Op, bytes: u64) -> IoResult<Vec<Buf>> {
        let share = bytes.clamp(REQUEST_BYTES_MIN, UNDER_WAY_BYTES_MAX);
        let share = self.room.acquire(share).await;
        if self.has_ended.get() {
            return Err(IoError::Gone);
        }
        let token = self.next_token.get();
        self.next_token.set(token + 1);
        let (sender, receiver) = oneshot();
        let waiter = Waiter { sender: Some(sender), _share: share };
        self.waiters.borrow_mut().insert(token, waiter);
        if let Err(number) = self.image.submit(token, op) {
            self.waiters.borrow_mut().remove(&token);
            return Err(self.failed(number));
        }
        receiver.await.unwrap_or(Err(IoError::Gone))
    }

    /// The error of a request, which may be the end of the drive.
    fn failed(&self, number: i32) -> IoError {
        if let Some(loss) = Loss::of_errno(number) {
            self.lose(&loss);
            return IoError::Gone;
        }
        io_error(number)
    }

    fn lose(&self, loss: &Loss) {
        if !self.has_ended.get() {
            self.lock_is_lost.set(loss.is_of_lock());
            self.loss.replace(Some(loss.clone()));
            (self.tell)(loss);
            self.end();
        }
    }

    /// Nothing is served any more. What is under way stays with the library, and nobody waits for it.
    fn end(&self) {
        self.has_ended.set(true);
        let senders: Vec<_> =
            self.waiters.borrow_mut().values_mut().filter_map(|it| it.sender.take()).collect();
        for sender in senders {
            sender.send(Err(IoError::Gone));
        }
    }

    /// Collects what has ended, until the device is dropped.
    async fn collect_all(self: Rc<Self>) {
        while !self.is_dropped.get() {
            match self.handle.readable(&self.event).await {
                Ok(()) | Err(Errno::INTR | Errno::AGAIN | Errno::CANCELED) => {}
                Err(_) => return self.end(),
            }
            // All of them, before who waits for one of them goes on.
            for Done { token, result } in self.image.collect() {
                let result = result.map_err(|number| self.failed(number));
                let waiter = self.waiters.borrow_mut().remove(&token);
                if let Some(sender) = waiter.and_then(|waiter| waiter.sender) {
                    sender.send(result);
                }
            }
            if let Some(loss) = self.image.lost() {
                self.lose(&loss);
            }
        }
        self.end();
    }

    async fn sync(self: &Rc<Self>) -> IoResult<()> {
        if self.flush_failed.get() {
            return Err(IoError::Medium);
        }
        let failed = self.failed_flushes.get();
        let flushed = self.ask(Op::Flush, 0).await;
        if flushed.is_err() {
            self.flush_failed.set(true);
            self.failed_flushes.set(self.failed_flushes.get() + 1);
        } else if failed != self.failed_flushes.get() {
            // Another one that was under way has failed. This one may have had nothing left to store.
            return Err(IoError::Medium);
        }
        flushed.map(drop)
    }
}

/// A range in parts of at most so many sectors.
fn parts(range: SectorRange, sectors: u64) -> impl Iterator<Item = SectorRange> {
    (0..range.count.div_ceil(sectors)).map(move |part| {
        let start = part * sectors;
        SectorRange::new(range.start.plus(start), sectors.min(range.count - start))
    })
}

impl BlockDevice for RbdDevice {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    async fn read(&self, at: Lba, mut into: Buf) -> IoResult<Buf> {
        let range = self.limits.checked_transfer(at, into.len())?;
        if range.is_empty() {
            return Ok(into);
        }
        let most = TRANSFER_BYTES_MAX as usize;
        let (mut reads, mut start) = (Vec::new(), at);
        while !into.is_empty() {
            let part = into.split_to(most.min(into.len()));
            let bytes = part.len() as u64;
            let op = Op::Read { at: start.bytes(), into: vec![part] };
            reads.push(self.shared.ask(op, bytes));
            start = start.plus(bytes / SECTOR_BYTES);
        }
        let mut filled = Vec::with_capacity(reads.len());
        for read in join_all(reads).await {
            filled.extend(read?);
        }
        Ok(match <[Buf; 1]>::try_from(filled) {
            Ok([whole]) => whole,
            Err(parts) => Buf::put_together(parts),
        })
    }

    async fn read_vectored(&self, at: Lba, into: Vec<Buf>) -> IoResult<Vec<Buf>> {
        let bytes: usize = into.iter().map(|buf| buf.len()).sum();
        let range = self.limits.checked_transfer(at, bytes)?;
        if range.is_empty() {
            return Ok(into);
        }
        if bytes <= TRANSFER_BYTES_MAX as usize {
            return self.shared.ask(Op::Read { at: at.bytes(), into }, bytes as u64).await;
        }
        let whole = self.read(at, Buf::new(bytes)).await?;
        let (mut into, mut taken) = (into, 0);
        for buf in &mut into {
            let bytes = buf.len();
            buf.copy_from_slice(&whole[taken..taken + bytes]);
            taken += bytes;
        }
        Ok(into)
    }

    async fn write(&self, at: Lba, data: Payload, durability: Durability) -> IoResult<()> {
        let range = self.limits.checked_write(at, &data)?;
        let writes = parts(range, u64::from(TRANSFER_BYTES_MAX) / SECTOR_BYTES).map(|part| {
            let from = (part.start.bytes() - range.start.bytes()) as usize;
            let data = data.slice(from..from + part.bytes() as usize);
            self.change(Op::Write { at: part.start.bytes(), data }, part.bytes())
        });
        for written in join_all(writes.collect::<Vec<_>>()).await {
            written?;
        }
        self.made_durable(durability).await
    }

    async fn flush(&self) -> IoResult<()> {
        self.shared.sync().await
    }

    async fn discard(&self, range: SectorRange) -> IoResult<()> {
        for part in parts(self.limits.checked_change(range)?, RANGE_SECTORS_MAX) {
            let (at, bytes) = (part.start.bytes(), part.bytes());
            self.change(Op::Discard { at, bytes }, 0).await?;
        }
        Ok(())
    }

    async fn write_zeroes(&self, range: SectorRange, durability: Durability) -> IoResult<()> {
        for part in parts(self.limits.checked_change(range)?, RANGE_SECTORS_MAX) {
            let (at, bytes) = (part.start.bytes(), part.bytes());
            self.change(Op::Zeroes { at, bytes }, 0).await?;
        }
        self.made_durable(durability).await
    }
}

impl DriveControl for RbdDevice {
    /// What the library has not ended.
    fn under_way(&self) -> UnderWay {
        let count = self.shared.image.under_way();
        UnderWay::of(move || count.get())
    }

    fn abandon(&self) {
        self.shared.end();
    }

    fn forget_failed_flush(&self) {
        self.shared.flush_failed.set(false);
    }

    /// It waits for the cluster as long as that takes.
    fn patience_ns(&self) -> Nanos {
        0
    }
}

impl Drop for RbdDevice {
    fn drop(&mut self) {
        self.shared.is_dropped.set(true);
        self.shared.end();
        self.shared.image.let_go();
        self.shared.image.wake();
    }
}
