//! The SSD: its traffic counted, its slots read under pins and checked, its errors held against it.

use std::rc::Rc;

use voltier_block::{BlockDevice, Buf, Bytes, Durability, IoError, IoResult, Lba, Payload};

use crate::counters::{Counters, add};
use crate::devices::health::{Health, SsdHealth};
use crate::format::superblock::{BLOCK_BYTES, SUPERBLOCK_OFFSETS, Superblock};
use crate::map::shared::Map;
use crate::numbers::Slot;

/// Read errors of the SSD after which it is given up. Single bad lines are repaired or reported one
/// by one; a device that fails this often is failing.
const SSD_READ_ERRORS_MAX: u64 = 64;

/// The SSD of a cache in service.
pub(crate) struct Ssd<S> {
    device: S,
    map: Rc<Map>,
    health: Rc<SsdHealth>,
    counters: Rc<Counters>,
}

impl<S: BlockDevice> Ssd<S> {
    pub(crate) fn new(
        device: S,
        map: Rc<Map>,
        health: Rc<SsdHealth>,
        counters: Rc<Counters>,
    ) -> Rc<Self> {
        Rc::new(Self { device, map, health, counters })
    }

    /// The device itself, for traffic that is not counted.
    pub(crate) fn device(&self) -> &S {
        &self.device
    }

    #[inline]
    pub(crate) fn failed(&self) -> bool {
        self.health.failed()
    }

    pub(crate) fn health(&self) -> Health {
        self.health.health()
    }

    /// Gives the SSD up.
    pub(crate) fn give_up(&self) {
        self.health.give_up();
    }

    /// Reads into `into`; the segment must be pinned or otherwise kept.
    pub(crate) async fn read(&self, at: Lba, into: Buf) -> IoResult<Buf> {
        add(&self.counters.ssd_read_bytes, into.len() as u64);
        self.device.read(at, into).await
    }

    /// Begins a write that the next flush makes durable.
    pub(crate) fn write(&self, at: Lba, data: Payload) -> impl Future<Output = IoResult<()>> {
        add(&self.counters.ssd_written_bytes, data.len() as u64);
        self.device.write(at, data, Durability::Cached)
    }

    pub(crate) async fn flush(&self) -> IoResult<()> {
        self.device.flush().await
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
        let data = read.inspect_err(|error| self.count_read_error(*error))?;
        if copy.holds(&data) { Ok(data) } else { Err(IoError::Medium) }
    }

    /// A read failed; `error` decides whether the SSD is given up.
    pub(crate) fn count_read_error(&self, error: IoError) {
        let errors = self.counters.ssd_errors.get() + 1;
        self.counters.ssd_errors.set(errors);
        if error == IoError::Gone || errors > SSD_READ_ERRORS_MAX {
            self.health.give_up();
        }
    }

    /// A write failed: the SSD is given up.
    pub(crate) fn count_write_error(&self) {
        add(&self.counters.ssd_errors, 1);
        self.health.give_up();
    }

    /// Writes both copies of the superblock, one after the other.
    pub(crate) async fn write_superblock(&self, superblock: Superblock) -> IoResult<()> {
        store_superblock(&self.device, superblock).await?;
        add(&self.counters.ssd_written_bytes, 2 * 4096);
        Ok(())
    }

    /// Erases both copies of the superblock: nobody takes the SSD for a cache again.
    pub(crate) async fn erase_superblock(&self) -> IoResult<()> {
        for offset in SUPERBLOCK_OFFSETS {
            let zeroes = Buf::zeroed(BLOCK_BYTES).into();
            self.device.write(Lba::from_bytes(offset), zeroes, Durability::Durable).await?;
        }
        self.device.flush().await
    }
}

/// Writes both copies of a superblock, durably and in turn, so that one is whole at any moment.
pub(crate) async fn store_superblock<S: BlockDevice>(
    ssd: &S,
    superblock: Superblock,
) -> IoResult<()> {
    for (copy, offset) in SUPERBLOCK_OFFSETS.into_iter().enumerate() {
        let block = superblock.encode(copy as u32);
        let payload = Bytes::copy_of(&block).into();
        ssd.write(Lba::from_bytes(offset), payload, Durability::Durable).await?;
        ssd.flush().await?;
    }
    Ok(())
}
