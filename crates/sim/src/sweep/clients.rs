//! Clients of a volume that is managed under them: they only know a block device.

use std::cell::Cell;
use std::rc::Rc;

use voltier_block::{BlockDevice, Buf, Durability, Payload, Prng, SectorRange};
use voltier_ring::JoinHandle;

use crate::workload::DeviceUnderTest;

/// Longest request, in sectors.
const SECTORS_MAX: u64 = 64;

/// Clients at work.
pub(super) struct Clients {
    leaving: Rc<Cell<bool>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Clients {
    /// Sends `count` clients in.
    pub(super) fn start<D: BlockDevice>(dut: &Rc<DeviceUnderTest<D>>, count: u64) -> Self {
        let leaving = Rc::new(Cell::new(false));
        let start = |_| {
            let client = Client { dut: dut.clone(), prng: dut.world.prng() };
            let leaving = leaving.clone();
            dut.world.handle().spawn(async move { client.run(&leaving).await })
        };
        let tasks = (0..count).map(start).collect();
        Self { leaving, tasks }
    }

    /// Waits until each has ended its request.
    pub(super) async fn stop(self) {
        self.leaving.set(true);
        for task in self.tasks {
            task.await;
        }
    }
}

struct Client<D> {
    dut: Rc<DeviceUnderTest<D>>,
    prng: Prng,
}

impl<D: BlockDevice> Client<D> {
    async fn run(mut self, leaving: &Cell<bool>) {
        while !leaving.get() {
            self.step().await;
        }
    }

    async fn step(&mut self) {
        let range = self.range();
        match self.prng.below(32) {
            0..16 => self.write(range).await,
            16..22 => self.dut.check(range, "under load").await,
            22..26 => self.flush().await,
            26..28 => self.zero(range).await,
            28..30 => self.discard(range).await,
            _ => {
                let pause_ns = *self.prng.pick(&[50_000, 1_000_000, 5_000_000]);
                self.dut.world.handle().sleep(pause_ns).await;
            }
        }
    }

    fn range(&mut self) -> SectorRange {
        let window = *self.prng.pick(&self.dut.windows);
        let longest = *self.prng.pick(&[1, 8, 8, 24, SECTORS_MAX]);
        let count = if self.prng.one_in(2) { longest } else { 1 + self.prng.below(longest) };
        // A third of the requests meet others in a small place.
        let span = if self.prng.one_in(3) { (2 * count).max(64) } else { window.count };
        let start = self.prng.below(span - count + 1);
        let start = if self.prng.one_in(2) { start / 8 * 8 } else { start };
        SectorRange::new(window.start.plus(start), count)
    }

    fn durability(&mut self) -> Durability {
        if self.prng.one_in(8) { Durability::Durable } else { Durability::Cached }
    }

    async fn write(&mut self, range: SectorRange) {
        let mut data = Buf::new(range.bytes() as usize);
        self.prng.fill(&mut data);
        let (data, durability) = (data.freeze(), self.durability());
        let write = self.dut.model.borrow_mut().begin_write(range.start, &data);
        let written = self.dut.device.write(range.start, Payload::One(data), durability).await;
        written.unwrap_or_else(|error| panic!("writing {range}: {error}"));
        self.dut.model.borrow_mut().end_write(write, durability == Durability::Durable);
    }

    async fn zero(&mut self, range: SectorRange) {
        let durability = self.durability();
        let write = self.dut.model.borrow_mut().begin_zeroes(range);
        let zeroed = self.dut.device.write_zeroes(range, durability).await;
        zeroed.unwrap_or_else(|error| panic!("zeroing {range}: {error}"));
        self.dut.model.borrow_mut().end_write(write, durability == Durability::Durable);
    }

    async fn discard(&mut self, range: SectorRange) {
        let write = self.dut.model.borrow_mut().begin_discard(range);
        let discarded = self.dut.device.discard(range).await;
        discarded.unwrap_or_else(|error| panic!("discarding {range}: {error}"));
        self.dut.model.borrow_mut().end_write(write, false);
    }

    async fn flush(&mut self) {
        let flush = self.dut.model.borrow_mut().begin_flush();
        self.dut.device.flush().await.expect("a flush works");
        self.dut.model.borrow_mut().end_flush(flush);
    }
}
