//! A device for tests, on which requests overtake each other.

use std::cell::RefCell;

use voltier_block::{
    BlockDevice, Buf, Durability, IoResult, Lba, Limits, Payload, Prng, SectorRange,
};
use voltier_ring::Handle;

use crate::memory::Memory;

/// Memory whose every request takes some while, so that requests overtake each other.
pub(crate) struct Slow {
    memory: Memory,
    handle: Handle,
    prng: RefCell<Prng>,
}

impl Slow {
    pub(crate) fn new(handle: &Handle, seed: u64, limits: Limits) -> Self {
        let prng = RefCell::new(Prng::new(seed));
        Self { memory: Memory::new(limits), handle: handle.clone(), prng }
    }

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
