//! Serves 512-byte blocks from a device with larger ones.

use voltier_block::{
    AfterDiscard, BlockDevice, Buf, Bytes, Durability, IoResult, Lba, Limits, Nanos, Payload,
    SECTOR_BYTES, SectorRange, UnderWay,
};
use voltier_ring::{RangeLocks, RangeMode};

/// 512-byte blocks over a device of 4096-byte ones.
///
/// Requests of whole blocks pass as they are. Others read the blocks at their edges first. The write that
/// follows covers whole blocks, so a power cut tears none of the small ones either.
pub struct AlignDevice<D> {
    below: D,
    limits: Limits,
    /// Blocks under change, so that a read-modify-write never undoes a neighbour. Two requests for different
    /// sectors of one block do not overlap, and both must last.
    locks: RangeLocks,
}

impl<D: BlockDevice> AlignDevice<D> {
    /// Serves 512-byte blocks from `below`.
    pub fn new(below: D) -> Self {
        let limits = Limits { block_bytes: 512, ..below.limits().clone() };
        Self { below, limits, locks: RangeLocks::default() }
    }

    /// The device with the larger blocks.
    pub fn below(&self) -> &D {
        &self.below
    }

    fn block_sectors(&self) -> u64 {
        u64::from(self.below.limits().block_bytes) / SECTOR_BYTES
    }

    /// The blocks that a range touches.
    fn covering(&self, range: SectorRange) -> SectorRange {
        let block = self.block_sectors();
        let start = range.start.0 / block * block;
        SectorRange::new(Lba(start), range.end().0.next_multiple_of(block) - start)
    }

    /// The blocks that lie whole in a range; empty at its end if there are none.
    fn whole_blocks(&self, range: SectorRange) -> SectorRange {
        let block = self.block_sectors();
        let start = range.start.0.next_multiple_of(block);
        let end = range.end().0 / block * block;
        if start >= end {
            return SectorRange::new(range.end(), 0);
        }
        SectorRange::new(Lba(start), end - start)
    }

    async fn read_range(&self, range: SectorRange) -> IoResult<Bytes> {
        let buf = Buf::new(range.bytes() as usize);
        Ok(self.below.read(range.start, buf).await?.freeze())
    }

    /// Writes a range of any alignment; its blocks are locked by the caller.
    async fn write_locked(
        &self,
        range: SectorRange,
        data: &Payload,
        durability: Durability,
    ) -> IoResult<()> {
        let covering = self.covering(range);
        let block = self.block_sectors();
        let mut pieces = Vec::with_capacity(data.pieces().len() + 2);
        let before = ((range.start.0 - covering.start.0) * SECTOR_BYTES) as usize;
        let after = ((covering.end().0 - range.end().0) * SECTOR_BYTES) as usize;
        let mut first = None;
        if before > 0 {
            let bytes = self.read_range(SectorRange::new(covering.start, block)).await?;
            pieces.push(bytes.slice(0..before));
            first = Some(bytes);
        }
        pieces.extend(data.pieces().iter().cloned());
        if after > 0 {
            let last = SectorRange::new(Lba(covering.end().0 - block), block);
            let bytes = match first {
                Some(bytes) if last.start == covering.start => bytes,
                _ => self.read_range(last).await?,
            };
            pieces.push(bytes.slice(bytes.len() - after..bytes.len()));
        }
        self.below.write(covering.start, Payload::Many(pieces), durability).await
    }

    /// Zeroes the parts of a range that do not fill a block.
    async fn zero_edges(&self, range: SectorRange, durability: Durability) -> IoResult<()> {
        let whole = self.whole_blocks(range);
        let edges = [
            SectorRange::new(range.start, whole.start.0 - range.start.0),
            SectorRange::new(whole.end(), range.end().0 - whole.end().0),
        ];
        for edge in edges.into_iter().filter(|edge| !edge.is_empty()) {
            let zeroes = Payload::from(Buf::zeroed(edge.bytes() as usize));
            self.write_locked(edge, &zeroes, durability).await?;
        }
        Ok(())
    }
}

impl<D: BlockDevice> BlockDevice for AlignDevice<D> {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    async fn read(&self, at: Lba, mut into: Buf) -> IoResult<Buf> {
        let range = self.limits.checked_transfer(at, into.len())?;
        let covering = self.covering(range);
        if covering == range {
            return self.below.read(at, into).await;
        }
        let bytes = self.read_range(covering).await?;
        let from = ((range.start.0 - covering.start.0) * SECTOR_BYTES) as usize;
        let len = into.len();
        into.copy_from_slice(&bytes[from..from + len]);
        Ok(into)
    }

    async fn write(&self, at: Lba, data: Payload, durability: Durability) -> IoResult<()> {
        let range = self.limits.checked_write(at, &data)?;
        let covering = self.covering(range);
        let _lock = self.locks.lock(covering, RangeMode::Exclusive).await;
        if covering == range {
            return self.below.write(at, data, durability).await;
        }
        self.write_locked(range, &data, durability).await
    }

    async fn flush(&self) -> IoResult<()> {
        self.below.flush().await
    }

    async fn discard(&self, range: SectorRange) -> IoResult<()> {
        self.limits.checked_change(range)?;
        let _lock = self.locks.lock(self.covering(range), RangeMode::Exclusive).await;
        if self.limits.after_discard == AfterDiscard::Zeroes {
            self.zero_edges(range, Durability::Cached).await?;
        }
        match self.whole_blocks(range) {
            whole if whole.is_empty() => Ok(()),
            whole => self.below.discard(whole).await,
        }
    }

    async fn write_zeroes(&self, range: SectorRange, durability: Durability) -> IoResult<()> {
        self.limits.checked_change(range)?;
        let _lock = self.locks.lock(self.covering(range), RangeMode::Exclusive).await;
        self.zero_edges(range, durability).await?;
        match self.whole_blocks(range) {
            whole if whole.is_empty() => Ok(()),
            whole => self.below.write_zeroes(whole, durability).await,
        }
    }

    fn under_way(&self) -> UnderWay {
        self.below.under_way()
    }

    fn abandon(&self) {
        self.below.abandon();
    }

    fn forget_failed_flush(&self) {
        self.below.forget_failed_flush();
    }

    fn patience_ns(&self) -> Nanos {
        self.below.patience_ns()
    }
}
