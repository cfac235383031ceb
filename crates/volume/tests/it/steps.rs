//! Goal: a request without data, however long, lets the gate close between two of its steps, and is few steps
//! where they are quick. Method: a device that takes a while for each request counts them; the volume stops
//! meanwhile.

use std::cell::Cell;
use std::rc::Rc;

use voltier_block::{
    BlockDevice, Buf, Durability, GIB, InMemory, IoError, IoResult, Lba, Limits, MIB, Payload,
    SectorRange,
};
use voltier_ring::{Executor, Handle, NoFiles};
use voltier_volume::Volume;

const SECOND_NS: u64 = 1_000_000_000;
const TIB: u64 = 1 << 40;

/// Takes a while for each request without data.
struct Slow {
    handle: Handle,
    limits: Limits,
    pause_ns: Rc<Cell<u64>>,
    requests: Rc<Cell<u64>>,
    taken_bytes: Rc<Cell<u64>>,
    flushes: Rc<Cell<u64>>,
}

impl BlockDevice for Slow {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    async fn read(&self, _at: Lba, into: Buf) -> IoResult<Buf> {
        Ok(into)
    }

    async fn write(&self, _at: Lba, _data: Payload, _durability: Durability) -> IoResult<()> {
        Ok(())
    }

    async fn flush(&self) -> IoResult<()> {
        self.flushes.set(self.flushes.get() + 1);
        Ok(())
    }

    async fn discard(&self, range: SectorRange) -> IoResult<()> {
        self.write_zeroes(range, Durability::Cached).await
    }

    async fn write_zeroes(&self, range: SectorRange, durability: Durability) -> IoResult<()> {
        self.requests.set(self.requests.get() + 1);
        self.handle.sleep(self.pause_ns.get()).await;
        self.taken_bytes.set(self.taken_bytes.get() + range.bytes());
        match durability {
            Durability::Cached => Ok(()),
            Durability::Durable => self.flush().await,
        }
    }
}

impl InMemory for Slow {}

struct World {
    executor: Executor,
    volume: Volume<Slow>,
    pause_ns: Rc<Cell<u64>>,
    requests: Rc<Cell<u64>>,
    taken_bytes: Rc<Cell<u64>>,
    flushes: Rc<Cell<u64>>,
}

fn world() -> World {
    let executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    let (taken_bytes, flushes) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let (pause_ns, requests) = (Rc::new(Cell::new(SECOND_NS)), Rc::new(Cell::new(0)));
    let slow = Slow {
        handle: handle.clone(),
        limits: Limits::plain(TIB),
        pause_ns: pause_ns.clone(),
        requests: requests.clone(),
        taken_bytes: taken_bytes.clone(),
        flushes: flushes.clone(),
    };
    let volume = Volume::plain(&handle, slow);
    World { executor, volume, pause_ns, requests, taken_bytes, flushes }
}

fn whole() -> SectorRange {
    SectorRange::from_bytes(0, 4 * GIB)
}

#[test]
fn a_volume_stops_between_two_steps_of_a_long_zeroing_or_discard() {
    for zeroes in [true, false] {
        let World { mut executor, volume, taken_bytes, .. } = world();
        let (handle, clone) = (executor.handle(), volume.clone());
        let outcome = executor.block_on(async move {
            let long = handle.spawn(async move {
                match zeroes {
                    true => clone.write_zeroes(whole(), Durability::Cached).await,
                    false => clone.discard(whole()).await,
                }
            });
            handle.sleep(SECOND_NS / 2).await;
            volume.stop().await.unwrap();
            long.await
        });
        assert_eq!(outcome, Err(IoError::Gone));
        assert!(taken_bytes.get() <= 32 * MIB, "{} bytes inside the gate", taken_bytes.get());
        assert_eq!(executor.task_count(), 0);
    }
}

#[test]
fn a_long_durable_zeroing_takes_everything_and_flushes_once() {
    let World { mut executor, volume, taken_bytes, flushes, .. } = world();
    executor
        .block_on(async move { volume.write_zeroes(whole(), Durability::Durable).await })
        .unwrap();
    assert_eq!((taken_bytes.get(), flushes.get()), (4 * GIB, 1));
}

#[test]
fn quick_steps_become_long_and_slow_ones_short() {
    for zeroes in [true, false] {
        let World { mut executor, volume, pause_ns, requests, taken_bytes, .. } = world();
        executor.block_on(async move {
            let clear = async |range: SectorRange| match zeroes {
                true => volume.write_zeroes(range, Durability::Cached).await.unwrap(),
                false => volume.discard(range).await.unwrap(),
            };
            pause_ns.set(1_000_000);
            clear(SectorRange::from_bytes(4096, TIB - 4096)).await;
            assert_eq!(taken_bytes.get(), TIB - 4096);
            assert!(requests.get() < 270, "{} steps", requests.get());
            requests.set(0);
            clear(SectorRange::from_bytes(GIB, 4 * GIB - 4096)).await;
            assert_eq!(requests.get(), 1);
            pause_ns.set(SECOND_NS);
            clear(whole()).await;
            requests.set(0);
            clear(whole()).await;
            assert!(requests.get() > 2, "{} steps", requests.get());
        });
    }
}
