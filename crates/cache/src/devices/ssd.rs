//! The SSD: its traffic counted, its slots read under pins and checked, its errors tried again and held
//! against it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use voltier_block::{
    Buf, Bytes, DriveControl, Durability, IoError, IoResult, Lba, Nanos, Payload, SectorRange,
};
use voltier_ring::Handle;

use crate::canary::{self, Canary};
use crate::config::Settings;
use crate::counters::{Counters, add};
use crate::devices::health::{Health, SsdHealth};
use crate::devices::read_errors::ReadErrors;
use crate::devices::silence::Silence;
use crate::format::owner::Owner;
use crate::format::superblock::{BLOCK_BYTES, SUPERBLOCK_OFFSETS, Superblock};
use crate::map::shared::Map;
use crate::numbers::Slot;

/// Rests before a read that failed is tried again: a queue that was full, memory that was short. A medium
/// error has been tried by the drive itself already.
const READ_BACK_OFF_NS: [Nanos; 2] = [1_000_000, 10_000_000];
/// Rests before a write that failed is tried again, 3.4 s in all. Clients wait meanwhile, and a path
/// that is switched over or a full file system that somebody empties takes about as long.
const WRITE_BACK_OFF_NS: [Nanos; 5] =
    [10_000_000, 40_000_000, 160_000_000, 640_000_000, 2_560_000_000];
/// A request is not tried again so long after its first error: each try may take as long as the kernel's
/// own patience.
const TRIES_NS_MAX: Nanos = 5_000_000_000;

/// The SSD of a cache in service.
pub(crate) struct Ssd<S> {
    handle: Handle,
    device: S,
    map: Rc<Map>,
    health: Rc<SsdHealth>,
    silence: Rc<Silence>,
    counters: Rc<Counters>,
    read_errors: RefCell<ReadErrors>,
    /// A flush has failed, and what it was for may be lost: a later flush says nothing of that.
    flush_failed: Cell<bool>,
    /// The volume that the superblock names.
    owner: RefCell<Owner>,
}

impl<S: DriveControl> Ssd<S> {
    pub(crate) fn new(
        handle: Handle,
        device: S,
        map: Rc<Map>,
        health: Rc<SsdHealth>,
        silence: Rc<Silence>,
        counters: Rc<Counters>,
        owner: Owner,
    ) -> Rc<Self> {
        let read_errors = RefCell::new(ReadErrors::new(map.geometry().slot_count()));
        let flush_failed = Cell::new(false);
        let owner = RefCell::new(owner);
        Rc::new(Self {
            handle,
            device,
            map,
            health,
            silence,
            counters,
            read_errors,
            flush_failed,
            owner,
        })
    }

    /// The device itself, for traffic that is not counted.
    pub(crate) fn device(&self) -> &S {
        &self.device
    }

    /// Whether the SSD answers, and who waits for it.
    pub(crate) fn silence(&self) -> &Rc<Silence> {
        &self.silence
    }

    #[inline]
    pub(crate) fn failed(&self) -> bool {
        self.health.failed()
    }

    /// Whether the origin serves clean lines: the SSD is given up, or does not answer.
    #[inline]
    pub(crate) fn passes_clean(&self) -> bool {
        self.failed() || self.silence.is_silent()
    }

    /// Whether the log goes on.
    #[inline]
    pub(crate) fn takes_writes(&self) -> bool {
        self.health.takes_writes()
    }

    pub(crate) fn health(&self) -> Health {
        self.health.health()
    }

    /// Whether the cleaner may read the SSD.
    pub(crate) fn can_destage(&self) -> bool {
        self.health.can_destage()
    }

    /// Whether a start may replay the log of the SSD: not any more when its loss is on record.
    pub(crate) fn may_be_replayed(&self) -> bool {
        !self.health.is_salvaging()
    }

    /// The SSD takes no more writes: what it has is evacuated.
    pub(crate) fn refuse_writes(&self) {
        self.health.refuse_writes();
    }

    /// Reads lines into `into`; the segment must be pinned or otherwise kept. A line that fails is tried
    /// again; a run of lines is not, because the caller reads these one by one then.
    ///
    /// # Errors
    /// The device's, which are held against the SSD.
    pub(crate) async fn read(&self, at: Lba, into: Buf) -> IoResult<Buf> {
        let bytes = into.len() as u64;
        match self.begin_read(at, into).await {
            Ok(data) => Ok(data),
            // In a box: reads that work do not carry it along.
            Err(error) => Box::pin(self.read_failed(at, bytes, error)).await,
        }
    }

    /// Begins a read of lines; a caller that gets an error goes on with [`read_failed`](Self::read_failed).
    #[inline]
    pub(crate) fn begin_read(
        &self,
        at: Lba,
        into: Buf,
    ) -> impl Future<Output = IoResult<Buf>> + use<'_, S> {
        add(&self.counters.device_bytes.ssd_read, into.len() as u64);
        self.device.read(at, into)
    }

    /// Goes on after a read of lines that failed with `error`: a single line is tried again.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    #[cold]
    pub(crate) async fn read_failed(&self, at: Lba, bytes: u64, error: IoError) -> IoResult<Buf> {
        if error != IoError::Gone && bytes > self.map.geometry().line_bytes {
            return Err(error);
        }
        self.read_again(at, bytes, error).await
    }

    /// Reads a part of the stored map, without counting it; what fails is tried again.
    ///
    /// # Errors
    /// The device's, which are held against the SSD.
    pub(crate) async fn read_map(&self, at: Lba, bytes: usize) -> IoResult<Buf> {
        match self.device.read(at, Buf::new(bytes)).await {
            Ok(data) => Ok(data),
            Err(error) => self.read_again(at, bytes as u64, error).await,
        }
    }

    #[cold]
    async fn read_again(&self, at: Lba, bytes: u64, error: IoError) -> IoResult<Buf> {
        let mut last = error;
        let range = SectorRange::from_bytes(at.bytes(), bytes);
        let until = self.handle.now() + TRIES_NS_MAX;
        for rest_ns in READ_BACK_OFF_NS {
            let is_known = self.read_errors.borrow().is_known(range);
            if is_known || !self.can_destage() || !self.is_worth_a_try(last, until) {
                break;
            }
            self.handle.sleep(rest_ns).await;
            match self.device.read(at, Buf::new(bytes as usize)).await {
                Ok(data) => return Ok(data),
                Err(error) => last = error,
            }
        }
        if self.silence.is_given_up() {
            // The request was ended, and has not failed.
            return Err(last);
        }
        add(&self.counters.cache.ssd_errors, 1);
        let too_many = self.read_errors.borrow_mut().note(at, self.handle.now());
        if last == IoError::Gone {
            self.health.lose();
        } else if too_many {
            self.health.refuse_writes();
        }
        Err(last)
    }

    /// Begins a write that the next flush makes durable.
    pub(crate) fn write(&self, at: Lba, data: Payload) -> impl Future<Output = IoResult<()>> {
        add(&self.counters.device_bytes.ssd_written, data.len() as u64);
        self.device.write(at, data, Durability::Cached)
    }

    /// Writes again after `error`, for so long as that is worth it: `attempt` writes the same data to the
    /// same place.
    ///
    /// # Errors
    /// The last one; the SSD takes no more writes then.
    #[cold]
    pub(crate) async fn write_again(
        &self,
        error: IoError,
        mut attempt: impl AsyncFnMut() -> IoResult<()>,
    ) -> IoResult<()> {
        let mut last = error;
        let until = self.handle.now() + TRIES_NS_MAX;
        for rest_ns in WRITE_BACK_OFF_NS {
            if !self.takes_writes() || !self.is_worth_a_try(last, until) {
                break;
            }
            self.handle.sleep(rest_ns).await;
            match attempt().await {
                Ok(()) => return Ok(()),
                Err(error) => last = error,
            }
        }
        if self.silence.is_given_up() {
            return Err(last);
        }
        add(&self.counters.cache.ssd_errors, 1);
        self.end_writes(last);
        Err(last)
    }

    /// The consequence of a write or a flush that failed for good.
    fn end_writes(&self, error: IoError) {
        if error == IoError::Gone {
            self.health.lose();
        } else {
            self.health.refuse_writes();
        }
    }

    fn is_worth_a_try(&self, last: IoError, until_ns: Nanos) -> bool {
        last != IoError::Gone && self.handle.now() < until_ns
    }

    /// Places that could not be read are tried again from now on, with rests.
    pub(crate) fn forget_read_errors(&self) {
        self.read_errors.borrow_mut().clear();
    }

    /// The core of the SSD.
    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Makes durable what was written before.
    ///
    /// # Errors
    /// The device's; from then on every flush fails, for what the first one was for may be lost, and the
    /// SSD takes no more writes.
    pub(crate) async fn flush(&self) -> IoResult<()> {
        let flushed = self.device.flush().await;
        if canary::is(Canary::FailedFlushBelieved) {
            return Ok(());
        }
        if let Err(error) = flushed {
            self.flush_failed.set(true);
            self.end_writes(error);
        }
        if self.flush_failed.get() { flushed.and(Err(IoError::Medium)) } else { Ok(()) }
    }

    /// Reads a whole slot and checks it against the CRC of when it was written.
    ///
    /// # Errors
    /// The device's, or `Medium` when the data is not what was written.
    pub(crate) async fn read_slot(&self, slot: Slot) -> IoResult<Buf> {
        let pinned = self.map.pin(&mut self.map.change(), slot);
        let line = Buf::new(self.map.geometry().line_bytes as usize);
        let read = self.read(pinned.copy().at, line).await;
        let copy = pinned.release();
        let data = read?;
        if copy.holds(&data) { Ok(data) } else { Err(IoError::Medium) }
    }

    /// The next superblock records these settings, if it names a volume.
    pub(crate) fn set_owner_settings(&self, settings: &Settings) {
        let owner = self.owner.take();
        self.owner.replace(owner.with(settings));
    }

    /// Writes both copies of the superblock of a checkpoint.
    ///
    /// # Errors
    /// The device's, of a write that was tried again or of a flush.
    pub(crate) async fn write_superblock(&self, superblock: Superblock) -> IoResult<()> {
        self.write_superblock_uncounted(superblock).await?;
        add(&self.counters.device_bytes.ssd_written, 2 * 4096);
        Ok(())
    }

    /// Writes both copies of the superblock, one after the other, without counting them.
    ///
    /// # Errors
    /// The device's, of a write that was tried again or of a flush.
    pub(crate) async fn write_superblock_uncounted(&self, superblock: Superblock) -> IoResult<()> {
        // The settings of the owner may change between the copies, which have the same sequence number.
        let owner = self.owner.borrow().clone();
        for copy in 0..SUPERBLOCK_OFFSETS.len() {
            let block = Bytes::copy_of(&superblock.encode(copy as u32, &owner));
            let write = || write_copy(&self.device, block.clone(), copy);
            if let Err(error) = write().await {
                self.write_again(error, async || write().await).await?;
            }
            self.flush().await?;
        }
        Ok(())
    }

    /// Erases both copies of the superblock: nobody takes the SSD for a cache again.
    pub(crate) async fn erase_superblock(&self) -> IoResult<()> {
        erase_superblock(&self.device).await
    }
}

/// Erases both copies of the superblock of an SSD, durably.
pub(crate) async fn erase_superblock<S: DriveControl>(ssd: &S) -> IoResult<()> {
    for offset in SUPERBLOCK_OFFSETS {
        let zeroes = Buf::zeroed(BLOCK_BYTES).into();
        ssd.write(Lba::from_bytes(offset), zeroes, Durability::Durable).await?;
    }
    ssd.flush().await
}

/// Writes both copies of a superblock, durably and in turn, so that one is whole at any moment.
pub(crate) async fn store_superblock<S: DriveControl>(
    ssd: &S,
    superblock: Superblock,
    owner: &Owner,
) -> IoResult<()> {
    for copy in 0..SUPERBLOCK_OFFSETS.len() {
        let block = Bytes::copy_of(&superblock.encode(copy as u32, owner));
        write_copy(ssd, block, copy).await?;
        ssd.flush().await?;
    }
    Ok(())
}

/// Writes one copy of a superblock.
async fn write_copy<S: DriveControl>(ssd: &S, block: Bytes, copy: usize) -> IoResult<()> {
    let at = Lba::from_bytes(SUPERBLOCK_OFFSETS[copy]);
    ssd.write(at, block.into(), Durability::Durable).await
}
