//! A device seen byte by byte: what `dd bs=1` and `cp` ask of a file.

use std::rc::Rc;

use voltier_block::{
    AfterDiscard, BlockDevice, Buf, Bytes, Durability, IoResult, Lba, Limits, SectorRange,
};

use super::range_locks::{Mode, RangeLocks};
use crate::requests;

/// Byte-granular access to a device. Writers through it never lose each other's bytes, however they are
/// aligned. Nobody orders them with writers through another export. A write of a part of a block may
/// take the rest of the block back to its content before such a writer.
pub(super) struct ByteDevice<D> {
    device: Rc<D>,
    locks: RangeLocks,
}

impl<D: BlockDevice> ByteDevice<D> {
    pub(super) fn new(device: Rc<D>) -> Self {
        Self { device, locks: RangeLocks::default() }
    }

    fn limits(&self) -> &Limits {
        self.device.limits()
    }

    /// The blocks that hold these bytes.
    fn cover(&self, offset: u64, length: u64) -> SectorRange {
        let block = u64::from(self.limits().block_bytes);
        let start = offset - offset % block;
        let end = (offset + length).next_multiple_of(block);
        SectorRange::from_bytes(start, end - start)
    }

    /// Reads bytes that lie on the device.
    pub(super) async fn read(&self, offset: u64, length: u64) -> IoResult<Bytes> {
        let cover = self.cover(offset, length);
        let buf = Buf::new(cover.bytes() as usize);
        let data = requests::read(&*self.device, cover.start, buf).await?.freeze();
        let start = (offset - cover.start.bytes()) as usize;
        Ok(data.slice(start..start + length as usize))
    }

    /// Writes bytes that lie on the device.
    pub(super) async fn write(
        &self,
        offset: u64,
        data: Bytes,
        durability: Durability,
    ) -> IoResult<()> {
        let cover = self.cover(offset, data.len() as u64);
        if cover.bytes() == data.len() as u64 {
            let _guard = self.locks.lock(cover, Mode::Replace).await;
            return requests::write(&*self.device, cover.start, data, durability).await;
        }
        let _guard = self.locks.lock(cover, Mode::Modify).await;
        let block = self.limits().block_bytes as usize;
        let mut whole = Buf::new(cover.bytes() as usize);
        let start = (offset - cover.start.bytes()) as usize;
        let end = start + data.len();
        if start > 0 {
            whole[..block].copy_from_slice(&self.block(cover.start).await?);
        }
        let last = whole.len() - block;
        // With one block only, it may have been read for its front already.
        if end < whole.len() && (last > 0 || start == 0) {
            let at = Lba::from_bytes(cover.start.bytes() + last as u64);
            whole[last..].copy_from_slice(&self.block(at).await?);
        }
        whole[start..end].copy_from_slice(&data);
        requests::write(&*self.device, cover.start, whole.freeze(), durability).await
    }

    async fn block(&self, at: Lba) -> IoResult<Buf> {
        self.device.read(at, Buf::new(self.limits().block_bytes as usize)).await
    }

    /// Makes bytes read as zeroes; gives their space up unless it is to be kept.
    pub(super) async fn zero(&self, offset: u64, length: u64, keep_space: bool) -> IoResult<()> {
        let block = u64::from(self.limits().block_bytes);
        let end = offset + length;
        let first = offset.next_multiple_of(block).min(end);
        let last = (end - end % block).max(first);
        self.zero_edge(offset, first - offset).await?;
        self.zero_blocks(
            SectorRange::from_bytes(if last > first { first } else { 0 }, last - first),
            keep_space,
        )
        .await?;
        self.zero_edge(last, end - last).await
    }

    async fn zero_edge(&self, offset: u64, length: u64) -> IoResult<()> {
        if length == 0 {
            return Ok(());
        }
        self.write(offset, Buf::zeroed(length as usize).freeze(), Durability::Cached).await
    }

    async fn zero_blocks(&self, range: SectorRange, keep_space: bool) -> IoResult<()> {
        if range.is_empty() {
            return Ok(());
        }
        let _guard = self.locks.lock(range, Mode::Replace).await;
        if !keep_space && self.limits().after_discard == AfterDiscard::Zeroes {
            return self.device.discard(range).await;
        }
        requests::write_zeroes(&*self.device, range, Durability::Cached, keep_space).await
    }

    /// Makes completed writes durable.
    pub(super) async fn flush(&self) -> IoResult<()> {
        self.device.flush().await
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use voltier_block::{Payload, Prng};
    use voltier_ring::{Executor, Handle, NoFiles};

    use super::*;
    use crate::memory::Memory;

    const SIZE_BYTES: u64 = 64 << 10;

    /// Memory whose every request takes some while, so that requests overtake each other.
    struct Slow {
        memory: Memory,
        handle: Handle,
        prng: RefCell<Prng>,
    }

    impl Slow {
        async fn delay(&self) {
            let nanos = self.prng.borrow_mut().below(1000);
            self.handle.sleep(nanos).await;
        }
    }

    impl BlockDevice for Slow {
        fn limits(&self) -> &Limits {
            self.memory.limits()
        }

        async fn read(&self, at: Lba, into: Buf) -> IoResult<Buf> {
            self.delay().await;
            let result = self.memory.read(at, into).await;
            self.delay().await;
            result
        }

        async fn write(&self, at: Lba, data: Payload, durability: Durability) -> IoResult<()> {
            self.delay().await;
            let result = self.memory.write(at, data, durability).await;
            self.delay().await;
            result
        }

        async fn flush(&self) -> IoResult<()> {
            self.memory.flush().await
        }

        async fn discard(&self, range: SectorRange) -> IoResult<()> {
            self.delay().await;
            self.memory.discard(range).await
        }

        async fn write_zeroes(&self, range: SectorRange, durability: Durability) -> IoResult<()> {
            self.delay().await;
            self.memory.write_zeroes(range, durability).await
        }
    }

    fn slow(handle: &Handle, seed: u64, block_bytes: u32) -> Rc<ByteDevice<Slow>> {
        let limits = Limits { block_bytes, ..Limits::plain(SIZE_BYTES) };
        let prng = RefCell::new(Prng::new(seed));
        let device = Slow { memory: Memory::new(limits), handle: handle.clone(), prng };
        Rc::new(ByteDevice::new(Rc::new(device)))
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
                    if zero {
                        device.zero(start, length, keep_space).await
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
