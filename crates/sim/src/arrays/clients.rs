//! Clients of an array: reads and writes of all lengths, over each other, held to the model.

use std::rc::Rc;

use voltier_block::{
    AfterDiscard, BlockDevice, Buf, Durability, IoResult, Lba, Prng, SECTOR_BYTES, SectorRange,
};

use crate::arrays::rig::Rig;

/// Runs so many steps of each client at once.
pub(crate) async fn run_clients(rig: &Rc<Rig>, steps: u64) {
    let clients = (0..rig.setup.clients).map(|_| {
        let (rig, dice) = (rig.clone(), rig.world.prng());
        rig.world.handle().clone().spawn(Client { rig, dice }.run(steps))
    });
    let clients: Vec<_> = clients.collect();
    for client in clients {
        client.await;
    }
}

struct Client {
    rig: Rc<Rig>,
    dice: Prng,
}

impl Client {
    fn pick(&mut self) -> SectorRange {
        let geometry = &self.rig.setup.geometry;
        let block = u64::from(self.rig.setup.block_bytes) / SECTOR_BYTES;
        let (sectors, stripe) = (geometry.sectors(), geometry.stripe_sectors());
        if self.dice.one_in(4) {
            // Whole stripes.
            let stripes = sectors / stripe;
            let first = self.dice.below(stripes);
            let count = 1 + self.dice.below((stripes - first).min(3));
            return SectorRange::new(Lba(first * stripe), count * stripe);
        }
        let blocks = sectors / block;
        // Most of it near the start, so that requests meet.
        let near = if self.dice.one_in(3) { blocks } else { blocks.min(64) };
        let longest = *self.dice.pick(&[1, 1, 8 / block.min(8), 2 * stripe / block]);
        let first = self.dice.below(near);
        let count = 1 + self.dice.below(longest.min(blocks - first));
        SectorRange::new(Lba(first * block), count * block)
    }

    async fn run(mut self, steps: u64) {
        for _ in 0..steps {
            let range = self.pick();
            let durability = *self.dice.pick(&[Durability::Cached, Durability::Durable]);
            match self.dice.below(16) {
                0..4 => self.read(range).await,
                4 | 5 => self.flush().await,
                6 => self.zero(range, durability).await,
                7 => self.discard(range).await,
                _ => self.write(range, durability).await,
            }
            if self.dice.one_in(8) {
                self.rig.world.handle().sleep(self.dice.below(3_000_000)).await;
            }
        }
    }

    /// No harm that is done here excuses an error.
    fn expect(result: IoResult<()>, what: &str, range: SectorRange) {
        if let Err(error) = result {
            panic!("{what} {range} fails: {error}");
        }
    }

    async fn read(&self, range: SectorRange) {
        let read = self.rig.model.borrow_mut().begin_read();
        let into = Buf::new(range.bytes() as usize);
        match self.rig.array().read(range.start, into).await {
            Ok(data) => {
                let seen = self.rig.model.borrow_mut().end_read(read, range.start, &data);
                if let Err(violation) = seen {
                    panic!("{violation}, reading {range}");
                }
            }
            Err(error) => panic!("reading {range} fails: {error}"),
        }
    }

    async fn flush(&self) {
        let flush = self.rig.model.borrow_mut().begin_flush();
        Self::expect(self.rig.array().flush().await, "flush of", SectorRange::default());
        self.rig.model.borrow_mut().end_flush(flush);
    }

    fn is_durable(&self, durability: Durability) -> bool {
        durability == Durability::Durable || self.rig.has_journal()
    }

    async fn write(&mut self, range: SectorRange, durability: Durability) {
        let mut data = Buf::new(range.bytes() as usize);
        self.dice.fill(&mut data);
        let write = self.rig.model.borrow_mut().begin_write(range.start, &data);
        let result = self.rig.array().write(range.start, data.into(), durability).await;
        Self::expect(result, "writing", range);
        let durable = self.is_durable(durability);
        self.rig.model.borrow_mut().end_write(write, durable);
    }

    async fn zero(&self, range: SectorRange, durability: Durability) {
        let write = self.rig.model.borrow_mut().begin_zeroes(range);
        let result = self.rig.array().write_zeroes(range, durability).await;
        Self::expect(result, "zeroing", range);
        let durable = self.is_durable(durability);
        self.rig.model.borrow_mut().end_write(write, durable);
    }

    async fn discard(&self, range: SectorRange) {
        let write = match self.rig.limits().after_discard {
            AfterDiscard::Zeroes => Some(self.rig.model.borrow_mut().begin_zeroes(range)),
            AfterDiscard::Anything => Some(self.rig.model.borrow_mut().begin_discard(range)),
            AfterDiscard::Unchanged => None,
        };
        Self::expect(self.rig.array().discard(range).await, "discarding", range);
        if let Some(write) = write {
            let durable = self.rig.has_journal();
            self.rig.model.borrow_mut().end_write(write, durable);
        }
    }
}
