//! Limits requests and bytes per second.

use std::cell::Cell;

use voltier_block::{
    BlockDevice, Buf, Durability, IoResult, Lba, Limits, Nanos, Payload, SectorRange,
};
use voltier_ring::Handle;

/// Limits of a [`ThrottleDevice`]; absent means none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttle {
    /// Reads and changes of content per second. Flushes are free.
    pub requests_per_s: Option<u64>,
    /// Bytes of reads, writes and written zeroes per second. Discards move none.
    pub bytes_per_s: Option<u64>,
    /// How much of a quiet time may be caught up with at full speed afterwards.
    pub burst_ns: Nanos,
}

/// A token bucket as its equal in time: when the next token would be due if none had been spared.
#[derive(Debug, Default)]
struct Bucket {
    due_ns: Cell<Nanos>,
}

impl Bucket {
    /// Takes `amount` tokens of `rate` per second and returns when they may be used.
    fn take(&self, now_ns: Nanos, burst_ns: Nanos, amount: u64, rate: Option<u64>) -> Nanos {
        let Some(rate) = rate else { return now_ns };
        let cost = u128::from(amount) * 1_000_000_000 / u128::from(rate.max(1));
        let from = self.due_ns.get().max(now_ns.saturating_sub(burst_ns));
        self.due_ns.set(from.saturating_add(u64::try_from(cost).unwrap_or(u64::MAX)));
        from.max(now_ns)
    }
}

/// Lets through what its [`Throttle`] allows, first come first served.
pub struct ThrottleDevice<D> {
    handle: Handle,
    below: D,
    throttle: Cell<Throttle>,
    requests: Bucket,
    bytes: Bucket,
}

impl<D: BlockDevice> ThrottleDevice<D> {
    /// Limits `below`.
    pub fn new(handle: Handle, below: D, throttle: Throttle) -> Self {
        let (requests, bytes) = (Bucket::default(), Bucket::default());
        Self { handle, below, throttle: Cell::new(throttle), requests, bytes }
    }

    /// From the next request on.
    pub fn set(&self, throttle: Throttle) {
        self.throttle.set(throttle);
    }

    async fn pass(&self, bytes: u64) {
        let (throttle, now) = (self.throttle.get(), self.handle.now());
        let by_count = self.requests.take(now, throttle.burst_ns, 1, throttle.requests_per_s);
        let by_bytes = self.bytes.take(now, throttle.burst_ns, bytes, throttle.bytes_per_s);
        self.handle.sleep_until(by_count.max(by_bytes)).await;
    }
}

impl<D: BlockDevice> BlockDevice for ThrottleDevice<D> {
    fn limits(&self) -> &Limits {
        self.below.limits()
    }

    async fn read(&self, at: Lba, into: Buf) -> IoResult<Buf> {
        self.pass(into.len() as u64).await;
        self.below.read(at, into).await
    }

    async fn write(&self, at: Lba, data: Payload, durability: Durability) -> IoResult<()> {
        self.pass(data.len() as u64).await;
        self.below.write(at, data, durability).await
    }

    async fn flush(&self) -> IoResult<()> {
        self.below.flush().await
    }

    async fn discard(&self, range: SectorRange) -> IoResult<()> {
        self.pass(0).await;
        self.below.discard(range).await
    }

    async fn write_zeroes(&self, range: SectorRange, durability: Durability) -> IoResult<()> {
        self.pass(range.bytes()).await;
        self.below.write_zeroes(range, durability).await
    }
}

voltier_block::pass_control_on!(ThrottleDevice.below);

#[cfg(test)]
mod tests {
    use super::*;
    use voltier_block::MIB;
    use voltier_drive::MemoryDevice;
    use voltier_ring::{Executor, NoFiles};

    /// Virtual time that eleven reads of 4 KiB take.
    fn eleven_reads(throttle: Throttle) -> Nanos {
        let mut executor = Executor::in_virtual_time(NoFiles);
        let handle = executor.handle();
        executor.block_on(async move {
            let device = ThrottleDevice::new(handle.clone(), MemoryDevice::new(MIB), throttle);
            handle.sleep(1_000_000_000).await;
            for _ in 0..11 {
                device.read(Lba(0), Buf::new(4096)).await.unwrap();
            }
            handle.now() - 1_000_000_000
        })
    }

    #[test]
    fn the_tighter_limit_holds_and_a_burst_is_forgiven() {
        let none = Throttle::default();
        let requests = Throttle { requests_per_s: Some(1_000), ..none };
        let both = Throttle { bytes_per_s: Some(409_600), ..requests };
        let burst = Throttle { burst_ns: 5_000_000, ..requests };
        assert_eq!(eleven_reads(none), 0);
        assert_eq!(eleven_reads(requests), 10_000_000);
        assert_eq!(eleven_reads(both), 100_000_000);
        assert_eq!(eleven_reads(burst), 5_000_000);
    }
}
