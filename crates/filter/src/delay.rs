//! Adds time to every request.

use std::cell::Cell;
use std::rc::Rc;

use voltier_block::{
    BlockDevice, Buf, Durability, IoResult, Lba, Limits, Nanos, Payload, SectorRange,
};
use voltier_ring::Handle;

/// How long requests are held back; can be changed while they run.
#[derive(Clone, Debug, Default)]
pub struct Delay(Rc<DelayTimes>);

#[derive(Debug, Default)]
struct DelayTimes {
    read_ns: Cell<Nanos>,
    write_ns: Cell<Nanos>,
    flush_ns: Cell<Nanos>,
}

impl Delay {
    /// Delays for reads, for every change of content, and for flushes.
    pub fn new(read_ns: Nanos, write_ns: Nanos, flush_ns: Nanos) -> Self {
        let delay = Self::default();
        delay.set(read_ns, write_ns, flush_ns);
        delay
    }

    /// From the next request on.
    pub fn set(&self, read_ns: Nanos, write_ns: Nanos, flush_ns: Nanos) {
        self.0.read_ns.set(read_ns);
        self.0.write_ns.set(write_ns);
        self.0.flush_ns.set(flush_ns);
    }
}

/// Holds each request back before the device below sees it.
pub struct DelayDevice<D> {
    handle: Handle,
    below: D,
    delay: Delay,
}

impl<D: BlockDevice> DelayDevice<D> {
    /// Delays `below` as `delay` says; keep a clone of it to change it later.
    pub fn new(handle: Handle, below: D, delay: Delay) -> Self {
        Self { handle, below, delay }
    }
}

impl<D: BlockDevice> BlockDevice for DelayDevice<D> {
    fn limits(&self) -> &Limits {
        self.below.limits()
    }

    async fn read(&self, at: Lba, into: Buf) -> IoResult<Buf> {
        self.handle.sleep(self.delay.0.read_ns.get()).await;
        self.below.read(at, into).await
    }

    async fn write(&self, at: Lba, data: Payload, durability: Durability) -> IoResult<()> {
        self.handle.sleep(self.delay.0.write_ns.get()).await;
        self.below.write(at, data, durability).await
    }

    async fn flush(&self) -> IoResult<()> {
        self.handle.sleep(self.delay.0.flush_ns.get()).await;
        self.below.flush().await
    }

    async fn discard(&self, range: SectorRange) -> IoResult<()> {
        self.handle.sleep(self.delay.0.write_ns.get()).await;
        self.below.discard(range).await
    }

    async fn write_zeroes(&self, range: SectorRange, durability: Durability) -> IoResult<()> {
        self.handle.sleep(self.delay.0.write_ns.get()).await;
        self.below.write_zeroes(range, durability).await
    }
}

voltier_block::pass_control_on!(DelayDevice.below);

#[cfg(test)]
mod tests {
    use super::*;
    use voltier_block::MIB;
    use voltier_drive::MemoryDevice;
    use voltier_ring::{Executor, NoFiles};

    #[test]
    fn each_kind_of_request_takes_its_own_delay_and_it_can_change() {
        let mut executor = Executor::in_virtual_time(NoFiles);
        let handle = executor.handle();
        executor.block_on(async move {
            let delay = Delay::new(1_000, 20_000, 300_000);
            let device = DelayDevice::new(handle.clone(), MemoryDevice::new(MIB), delay.clone());
            device.read(Lba(0), Buf::new(512)).await.unwrap();
            assert_eq!(handle.now(), 1_000);
            let data = Buf::zeroed(512).into();
            device.write(Lba(0), data, Durability::Cached).await.unwrap();
            assert_eq!(handle.now(), 21_000);
            device.flush().await.unwrap();
            assert_eq!(handle.now(), 321_000);
            delay.set(0, 0, 0);
            device.flush().await.unwrap();
            assert_eq!(handle.now(), 321_000);
        });
    }
}
