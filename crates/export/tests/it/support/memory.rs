//! A block device in memory, for tests and for measuring the exports themselves.

use std::cell::RefCell;

use voltier_block::{
    BlockDevice, Buf, Durability, IoError, IoResult, Lba, Limits, Payload, SectorRange,
};

/// Sectors `bad_sectors` answer a medium error.
pub(crate) struct Memory {
    limits: Limits,
    bytes: RefCell<Vec<u8>>,
    pub(crate) bad_sectors: SectorRange,
}

impl Memory {
    pub(crate) fn new(limits: Limits) -> Self {
        let bytes = RefCell::new(vec![0; limits.bytes() as usize]);
        Self { limits, bytes, bad_sectors: SectorRange::default() }
    }

    fn check(&self, range: SectorRange) -> IoResult<()> {
        assert!(self.limits.accepts(range), "{range} on {:?}", self.limits);
        if self.bad_sectors.overlaps(range) { Err(IoError::Medium) } else { Ok(()) }
    }
}

fn range_of(at: Lba, bytes: usize) -> SectorRange {
    SectorRange::from_bytes(at.bytes(), bytes as u64)
}

impl BlockDevice for Memory {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    async fn read(&self, at: Lba, mut into: Buf) -> IoResult<Buf> {
        assert!(into.len() <= self.limits.max_transfer_bytes as usize);
        self.check(range_of(at, into.len()))?;
        let (start, end) = (at.bytes() as usize, at.bytes() as usize + into.len());
        into.copy_from_slice(&self.bytes.borrow()[start..end]);
        Ok(into)
    }

    async fn write(&self, at: Lba, data: Payload, _durability: Durability) -> IoResult<()> {
        assert!(data.len() <= self.limits.max_transfer_bytes as usize);
        self.check(range_of(at, data.len()))?;
        let mut start = at.bytes() as usize;
        for piece in data.pieces() {
            self.bytes.borrow_mut()[start..start + piece.len()].copy_from_slice(piece);
            start += piece.len();
        }
        Ok(())
    }

    async fn flush(&self) -> IoResult<()> {
        Ok(())
    }

    async fn discard(&self, range: SectorRange) -> IoResult<()> {
        self.write_zeroes(range, Durability::Cached).await
    }

    async fn write_zeroes(&self, range: SectorRange, _durability: Durability) -> IoResult<()> {
        self.check(range)?;
        let start = range.start.bytes() as usize;
        self.bytes.borrow_mut()[start..start + range.bytes() as usize].fill(0);
        Ok(())
    }
}
