//! A device seen byte by byte: `dd bs=1` and `cp` ask a file for that, and so do NBD clients that know no
//! block size.

use std::rc::Rc;

use voltier_block::{
    AfterDiscard, BlockDevice, Buf, Bytes, Durability, IoResult, Lba, Limits, SectorRange,
};
use voltier_ring::{RangeLocks, RangeMode};

use crate::requests;

/// Byte-granular access to a device, for all its exports together. A write of a part of a block reads the
/// block, changes the part and writes the block back. Meanwhile no other write through the same
/// `ByteDevice` changes the block, whichever export it comes by. So writers that share a block lose none of
/// each other's bytes, however they are aligned.
pub struct ByteDevice<D> {
    device: Rc<D>,
    locks: RangeLocks,
}

/// A range of bytes, cut where blocks begin and end: at most two parts of blocks, and whole blocks between.
struct Cut {
    /// First byte and length of the part before the whole blocks.
    head: (u64, u64),
    whole: SectorRange,
    /// First byte and length of the part behind them.
    tail: (u64, u64),
}

impl<D: BlockDevice> ByteDevice<D> {
    /// All exports of a device share one.
    pub fn new(device: Rc<D>) -> Self {
        Self { device, locks: RangeLocks::default() }
    }

    /// Facts about the device.
    pub fn limits(&self) -> &Limits {
        self.device.limits()
    }

    fn block_bytes(&self) -> u64 {
        u64::from(self.limits().block_bytes)
    }

    /// The blocks that hold these bytes.
    pub(crate) fn cover(&self, offset: u64, length: u64) -> SectorRange {
        let block = self.block_bytes();
        let start = offset - offset % block;
        let end = (offset + length).next_multiple_of(block);
        SectorRange::from_bytes(start, end - start)
    }

    fn cut(&self, offset: u64, length: u64) -> Cut {
        let block = self.block_bytes();
        let end = offset + length;
        let first = offset.next_multiple_of(block).min(end);
        let last = (end - end % block).max(first);
        // A part inside one block has no whole ones, and its first byte may be no block's.
        let whole = if last > first {
            SectorRange::from_bytes(first, last - first)
        } else {
            SectorRange::default()
        };
        Cut { head: (offset, first - offset), whole, tail: (last, end - last) }
    }

    /// Reads bytes that lie on the device.
    pub(crate) async fn read(&self, offset: u64, length: u64) -> IoResult<Bytes> {
        let cover = self.cover(offset, length);
        let buf = Buf::new(cover.bytes() as usize);
        let data = requests::read(&*self.device, cover.start, buf).await?.freeze();
        if cover.bytes() == length {
            return Ok(data);
        }
        let start = (offset - cover.start.bytes()) as usize;
        Ok(data.slice(start..start + length as usize))
    }

    /// Writes bytes that lie on the device.
    pub(crate) async fn write(
        &self,
        offset: u64,
        data: Bytes,
        durability: Durability,
    ) -> IoResult<()> {
        let cover = self.cover(offset, data.len() as u64);
        if cover.bytes() == data.len() as u64 {
            let _guard = self.locks.lock(cover, RangeMode::Shared).await;
            return requests::write(&*self.device, cover.start, data, durability).await;
        }
        let _guard = self.locks.lock(cover, RangeMode::Exclusive).await;
        let whole = self.completed(cover, offset, data).await?;
        requests::write(&*self.device, cover.start, whole, durability).await
    }

    /// The new content of the blocks that hold `data` at `offset`: what `data` leaves of the first and the
    /// last one is read. The data are copied once: a drive could not take them as they lie in memory.
    async fn completed(&self, cover: SectorRange, offset: u64, data: Bytes) -> IoResult<Bytes> {
        let block = self.block_bytes() as usize;
        let bytes = cover.bytes() as usize;
        let start = (offset - cover.start.bytes()) as usize;
        let end = start + data.len();
        let takes_both = bytes == 2 * block && start > 0 && end < bytes;
        if bytes == block || takes_both {
            let mut whole = requests::read(&*self.device, cover.start, Buf::new(bytes)).await?;
            whole[start..end].copy_from_slice(&data);
            return Ok(whole.freeze());
        }
        let last = bytes - block;
        let head = if start > 0 { Some(self.block(cover.start).await?) } else { None };
        let at = Lba::from_bytes(cover.start.bytes() + last as u64);
        let tail = if end < bytes { Some(self.block(at).await?) } else { None };
        let mut whole = Buf::new(bytes);
        if let Some(head) = head {
            whole[..block].copy_from_slice(&head);
        }
        if let Some(tail) = tail {
            whole[last..].copy_from_slice(&tail);
        }
        whole[start..end].copy_from_slice(&data);
        Ok(whole.freeze())
    }

    async fn block(&self, at: Lba) -> IoResult<Buf> {
        self.device.read(at, Buf::new(self.limits().block_bytes as usize)).await
    }

    /// Makes bytes read as zeroes; with `keep_space` whole blocks keep their space.
    pub(crate) async fn zero(
        &self,
        offset: u64,
        length: u64,
        durability: Durability,
        keep_space: bool,
    ) -> IoResult<()> {
        let Cut { head, whole, tail } = self.cut(offset, length);
        self.zero_part(head, durability).await?;
        if !whole.is_empty() {
            // Zeroes that are written are several writes of the device, and one change for everybody else.
            let mode = if keep_space { RangeMode::Exclusive } else { RangeMode::Shared };
            let _guard = self.locks.lock(whole, mode).await;
            requests::write_zeroes(&*self.device, whole, durability, keep_space).await?;
        }
        self.zero_part(tail, durability).await
    }

    async fn zero_part(
        &self,
        (offset, length): (u64, u64),
        durability: Durability,
    ) -> IoResult<()> {
        if length == 0 {
            return Ok(());
        }
        self.write(offset, Buf::zeroed(length as usize).freeze(), durability).await
    }

    /// Makes bytes read as zeroes, and gives the space of whole blocks up where a discard leaves zeroes.
    pub(crate) async fn punch(&self, offset: u64, length: u64) -> IoResult<()> {
        if self.limits().after_discard != AfterDiscard::Zeroes {
            return self.zero(offset, length, Durability::Cached, false).await;
        }
        let Cut { head, tail, .. } = self.cut(offset, length);
        self.zero_part(head, Durability::Cached).await?;
        self.discard(offset, length).await?;
        self.zero_part(tail, Durability::Cached).await
    }

    /// Gives the content of whole blocks up; bytes of other blocks stay as they are.
    pub(crate) async fn discard(&self, offset: u64, length: u64) -> IoResult<()> {
        let Cut { whole, .. } = self.cut(offset, length);
        if whole.is_empty() {
            return Ok(());
        }
        let _guard = self.locks.lock(whole, RangeMode::Shared).await;
        self.device.discard(whole).await
    }

    /// Makes completed writes durable.
    pub(crate) async fn flush(&self) -> IoResult<()> {
        self.device.flush().await
    }
}

#[cfg(test)]
mod tests {
    use voltier_block::Prng;
    use voltier_ring::{Executor, Handle, NoFiles};

    use super::*;
    use crate::slow::Slow;

    const SIZE_BYTES: u64 = 64 << 10;

    fn slow(handle: &Handle, seed: u64, block_bytes: u32) -> Rc<ByteDevice<Slow>> {
        let limits = Limits { block_bytes, ..Limits::plain(SIZE_BYTES) };
        Rc::new(ByteDevice::new(Rc::new(Slow::new(handle, seed, limits))))
    }

    /// Byte ranges that share blocks but no byte, all under change at once.
    async fn change_at_once(
        handle: &Handle,
        device: &Rc<ByteDevice<Slow>>,
        model: &mut [u8],
        prng: &mut Prng,
    ) {
        let (mut start, mut tasks) = (0, Vec::new());
        while start < SIZE_BYTES {
            let longest = *prng.pick(&[3, 100, 700, 9000]);
            let length = (1 + prng.below(longest)).min(SIZE_BYTES - start);
            let range = start as usize..(start + length) as usize;
            let (device, zero) = (device.clone(), prng.one_in(3));
            let keep_space = prng.one_in(2);
            let mut data = Buf::zeroed(length as usize);
            if !zero {
                prng.fill(&mut data);
            }
            if prng.one_in(2) {
                model[range].copy_from_slice(&data);
                tasks.push(handle.spawn(async move {
                    if zero && !keep_space {
                        device.punch(start, length).await
                    } else if zero {
                        device.zero(start, length, Durability::Cached, keep_space).await
                    } else {
                        device.write(start, data.freeze(), Durability::Cached).await
                    }
                }));
            }
            start += length;
        }
        for task in tasks {
            task.await.unwrap();
        }
    }

    #[test]
    fn writers_that_share_blocks_never_lose_each_others_bytes() {
        for seed in 0..60 {
            let mut executor = Executor::in_virtual_time(NoFiles);
            let handle = executor.handle();
            executor.block_on(async move {
                let mut prng = Prng::new(seed);
                let device = slow(&handle, seed, *prng.pick(&[512, 4096]));
                let mut model = vec![0; SIZE_BYTES as usize];
                for _ in 0..4 {
                    change_at_once(&handle, &device, &mut model, &mut prng).await;
                    let all = device.read(0, SIZE_BYTES).await.unwrap();
                    assert!(all[..] == model[..], "seed {seed}");
                    let offset = prng.below(SIZE_BYTES - 1);
                    let length = 1 + prng.below(SIZE_BYTES - offset);
                    let part = device.read(offset, length).await.unwrap();
                    assert!(part[..] == model[offset as usize..(offset + length) as usize]);
                }
            });
        }
    }
}
