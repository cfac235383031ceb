//! A device that is only read: what is written to it stays in memory.

use std::cell::RefCell;
use std::collections::BTreeMap;

use voltier_block::{
    AfterDiscard, BlockDevice, Buf, Durability, IoResult, Lba, Limits, Payload, SECTOR_BYTES,
    SectorRange,
};

/// The bytes of a sector.
type Sector = [u8; SECTOR_BYTES as usize];

/// Changes over a device, by sector. No sector is in both.
#[derive(Default)]
struct Changes {
    data: BTreeMap<u64, Box<Sector>>,
    /// Runs that were made zeroes: first sectors, and the sectors behind them.
    zeroed: BTreeMap<u64, u64>,
}

impl Changes {
    /// Cuts a run out of those that are zeroes.
    fn uncover(&mut self, start: u64, end: u64) {
        let reaches_in = |(from, to): (&u64, &u64)| (*to > start).then_some((*from, *to));
        while let Some((from, to)) = self.zeroed.range(..end).next_back().and_then(reaches_in) {
            self.zeroed.remove(&from);
            if to > end {
                self.zeroed.insert(end, to);
            }
            if from < start {
                self.zeroed.insert(from, start);
            }
        }
    }

    fn zero(&mut self, range: SectorRange) {
        let (start, end) = (range.start.0, range.end().0);
        self.uncover(start, end);
        let mut behind = self.data.split_off(&start);
        self.data.append(&mut behind.split_off(&end));
        if start < end {
            self.zeroed.insert(start, end);
        }
    }

    fn write(&mut self, at: Lba, data: &Payload) {
        self.uncover(at.0, at.0 + data.len() as u64 / SECTOR_BYTES);
        let (mut number, mut sector, mut filled) = (at.0, Box::new([0; 512]), 0);
        for piece in data.pieces() {
            let mut rest = &piece[..];
            while !rest.is_empty() {
                let taken = rest.len().min(sector.len() - filled);
                sector[filled..filled + taken].copy_from_slice(&rest[..taken]);
                (rest, filled) = (&rest[taken..], filled + taken);
                if filled == sector.len() {
                    self.data.insert(number, std::mem::replace(&mut sector, Box::new([0; 512])));
                    (number, filled) = (number + 1, 0);
                }
            }
        }
    }

    /// Puts the changes into what the device has.
    fn put_into(&self, range: SectorRange, bytes: &mut [u8]) {
        let (start, end) = (range.start.0, range.end().0);
        let place = |sector: u64| ((sector - start) * SECTOR_BYTES) as usize;
        let before = self.zeroed.range(..start).next_back().filter(|(_, to)| **to > start);
        for (from, to) in before.into_iter().chain(self.zeroed.range(start..end)) {
            bytes[place((*from).max(start))..place((*to).min(end))].fill(0);
        }
        for (sector, data) in self.data.range(start..end) {
            bytes[place(*sector)..place(*sector + 1)].copy_from_slice(&data[..]);
        }
    }
}

/// A device that takes writes and keeps them in memory: the one below is never written to. What is in memory is
/// gone with the device.
///
/// Any sectors can be written, whatever blocks the device below has.
pub struct OverlayDevice<D> {
    below: D,
    limits: Limits,
    changes: RefCell<Changes>,
}

impl<D: BlockDevice> OverlayDevice<D> {
    /// Takes writes in front of `below`.
    pub fn new(below: D) -> Self {
        let limits = Limits {
            block_bytes: SECTOR_BYTES as u32,
            after_discard: AfterDiscard::Zeroes,
            cheap_zeroes: true,
            volatile_cache: false,
            read_only: false,
            ..below.limits().clone()
        };
        Self { below, limits, changes: RefCell::default() }
    }

    /// The device that is only read.
    pub fn below(&self) -> &D {
        &self.below
    }

    /// The content of the device below, of any sectors.
    async fn read_below(&self, range: SectorRange, mut into: Buf) -> IoResult<Buf> {
        let block = u64::from(self.below.limits().block_bytes) / SECTOR_BYTES;
        let (start, end) = (range.start.0 / block * block, range.end().0.next_multiple_of(block));
        if (start, end) == (range.start.0, range.end().0) {
            return self.below.read(range.start, into).await;
        }
        let whole = Buf::new(((end - start) * SECTOR_BYTES) as usize);
        let whole = self.below.read(Lba(start), whole).await?;
        let (from, len) = (((range.start.0 - start) * SECTOR_BYTES) as usize, into.len());
        into.copy_from_slice(&whole[from..from + len]);
        Ok(into)
    }
}

impl<D: BlockDevice> BlockDevice for OverlayDevice<D> {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    async fn read(&self, at: Lba, into: Buf) -> IoResult<Buf> {
        let range = self.limits.checked_transfer(at, into.len())?;
        let mut read = self.read_below(range, into).await?;
        self.changes.borrow().put_into(range, &mut read);
        Ok(read)
    }

    async fn write(&self, at: Lba, data: Payload, _: Durability) -> IoResult<()> {
        self.limits.checked_write(at, &data)?;
        self.changes.borrow_mut().write(at, &data);
        Ok(())
    }

    async fn flush(&self) -> IoResult<()> {
        Ok(())
    }

    async fn discard(&self, range: SectorRange) -> IoResult<()> {
        self.changes.borrow_mut().zero(self.limits.checked_change(range)?);
        Ok(())
    }

    async fn write_zeroes(&self, range: SectorRange, _: Durability) -> IoResult<()> {
        self.discard(range).await
    }
}

voltier_block::pass_control_on!(OverlayDevice.below);
