//! Clients of an array: reads and writes of all lengths, over each other, held to the model.

use std::rc::Rc;

use voltier_array::Stripe;
use voltier_block::{AfterDiscard, BlockDevice, Buf, Durability, IoResult, Prng, SectorRange};

use crate::arrays::merge::burst;
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

/// Writes one after the other, small ones: they take the rings of a journal round.
pub(crate) async fn age(rig: &Rc<Rig>, writes: u64) {
    let mut client = Client { rig: rig.clone(), dice: rig.world.prng() };
    for _ in 0..writes {
        let range = client.pick_in(1);
        client.write(range, Durability::Cached).await;
    }
    let whole = client.rig.whole();
    if client.dice.one_in(2) {
        // Something everywhere.
        for range in whole {
            client.write(range, Durability::Cached).await;
        }
    }
}

struct Client {
    rig: Rc<Rig>,
    dice: Prng,
}

/// A request that is under way, until dropped.
struct UnderWay<'a>(&'a Rig, SectorRange);

impl<'a> UnderWay<'a> {
    fn new(rig: &'a Rig, range: SectorRange) -> Self {
        rig.under_way.borrow_mut().push(range);
        Self(rig, range)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut under_way = self.0.under_way.borrow_mut();
        let own = under_way.iter().position(|range| *range == self.1);
        under_way.swap_remove(own.expect("it is under way"));
    }
}

impl Client {
    /// A range that is no part of a stripe which is closed.
    fn pick(&mut self) -> SectorRange {
        let block = self.rig.setup.block_sectors();
        let stripe = self.rig.setup.geometry.stripe_sectors();
        loop {
            let longest = *self.dice.pick(&[1, 1, 8 / block.min(8), 2 * stripe / block]);
            let range = self.pick_in(longest);
            let closed = self.rig.closed.get().map(|stripe| self.rig.setup.sectors_of(stripe));
            if closed.is_none_or(|closed| !closed.overlaps(range)) {
                return range;
            }
        }
    }

    fn pick_in(&mut self, longest: u64) -> SectorRange {
        let rig = self.rig.clone();
        let (block, stripe) = (rig.setup.block_sectors(), rig.setup.geometry.stripe_sectors());
        let window = *self.dice.pick(&rig.windows());
        if longest > 1 && self.dice.one_in(4) {
            // Whole stripes.
            let stripes = window.count / stripe;
            let first = self.dice.below(stripes);
            let count = 1 + self.dice.below((stripes - first).min(3));
            return SectorRange::new(window.start.plus(first * stripe), count * stripe);
        }
        let blocks = window.count / block;
        // Most of it near the start, so that requests meet.
        let near = if self.dice.one_in(3) { blocks } else { blocks.min(64) };
        let first = self.dice.below(near);
        let count = 1 + self.dice.below(longest.min(blocks - first));
        SectorRange::new(window.start.plus(first * block), count * block)
    }

    async fn run(mut self, steps: u64) {
        for _ in 0..steps {
            if self.rig.setup.merges() && self.dice.one_in(3) {
                self.write_burst().await;
            }
            let range = self.pick();
            let rig = self.rig.clone();
            let under_way = UnderWay::new(&rig, range);
            let durability = *self.dice.pick(&[Durability::Cached, Durability::Durable]);
            match self.dice.below(16) {
                0..4 => self.read(range).await,
                4 | 5 => flush(&self.rig).await,
                6 => self.zero(range, durability).await,
                7 => self.discard(range).await,
                _ => self.write(range, durability).await,
            }
            drop(under_way);
            if self.dice.one_in(8) {
                self.rig.world.handle().sleep(self.dice.below(3_000_000)).await;
            }
        }
    }

    /// Small writes at once, one behind the other.
    async fn write_burst(&mut self) {
        let rig = self.rig.clone();
        let first = self.pick_in(1);
        let window = rig.windows().into_iter().find(|window| window.contains(first));
        let end = window.expect("it was picked in one").end().0;
        let closed = rig.closed.get().map(|stripe| rig.setup.sectors_of(stripe));
        let ranges = burst(&mut self.dice, rig.setup.block_sectors(), first, end);
        let is_open = |range: &SectorRange| closed.is_none_or(|closed| !closed.overlaps(*range));
        let writes = ranges.into_iter().filter(is_open).map(|range| {
            let (rig, dice) = (rig.clone(), Prng::new(self.dice.next_u64()));
            let durability =
                if self.dice.one_in(8) { Durability::Durable } else { Durability::Cached };
            rig.world.handle().clone().spawn(async move {
                let _under_way = UnderWay::new(&rig, range);
                Client { rig: rig.clone(), dice }.write(range, durability).await;
            })
        });
        for write in writes.collect::<Vec<_>>() {
            write.await;
        }
    }

    async fn read(&self, range: SectorRange) {
        let read = self.rig.model.borrow_mut().begin_read();
        let into = Buf::new(range.bytes() as usize);
        match self.rig.array().read(range.start, into).await {
            Ok(data) => {
                self.rig.note_use(range);
                let seen = self.rig.model.borrow_mut().end_read(read, range.start, &data);
                if let Err(violation) = seen {
                    panic!("{violation}, reading {range}");
                }
            }
            Err(error) => panic!("reading {range} fails: {error}"),
        }
    }

    fn is_durable(&self, durability: Durability) -> bool {
        durability == Durability::Durable || self.rig.setup.has_journal()
    }

    async fn write(&mut self, range: SectorRange, durability: Durability) {
        let mut data = Buf::new(range.bytes() as usize);
        self.dice.fill(&mut data);
        let write = self.rig.model.borrow_mut().begin_write(range.start, &data);
        let journal = self.rig.journal_before();
        let open = self.rig.open.borrow_mut().begin(range);
        let result = self.rig.array().write(range.start, data.into(), durability).await;
        expect(result, "writing", range);
        self.rig.note_journal(journal);
        self.rig.note_use(range);
        self.rig.open.borrow_mut().end(open);
        let durable = self.is_durable(durability);
        self.rig.model.borrow_mut().end_write(write, durable);
        let stripe = self.rig.setup.geometry.stripe_sectors();
        let mut written = self.rig.written.borrow_mut();
        for first in range.split_at_multiples(stripe) {
            written.insert(self.rig.setup.region_of(Stripe(first.start.0 / stripe)));
        }
    }

    async fn zero(&self, range: SectorRange, durability: Durability) {
        let write = self.rig.model.borrow_mut().begin_zeroes(range);
        let open = self.rig.open.borrow_mut().begin(range);
        let result = self.rig.array().write_zeroes(range, durability).await;
        expect(result, "zeroing", range);
        self.rig.open.borrow_mut().end(open);
        let durable = self.is_durable(durability);
        self.rig.model.borrow_mut().end_write(write, durable);
    }

    async fn discard(&self, range: SectorRange) {
        let write = match self.rig.limits().after_discard {
            AfterDiscard::Zeroes => Some(self.rig.model.borrow_mut().begin_zeroes(range)),
            AfterDiscard::Anything => Some(self.rig.model.borrow_mut().begin_discard(range)),
            AfterDiscard::Unchanged => None,
        };
        let open = self.rig.open.borrow_mut().begin(range);
        expect(self.rig.array().discard(range).await, "discarding", range);
        self.rig.open.borrow_mut().end(open);
        if let Some(write) = write {
            let durable = self.rig.setup.has_journal();
            self.rig.model.borrow_mut().end_write(write, durable);
        }
    }
}

/// No harm that is done here excuses an error.
fn expect(result: IoResult<()>, what: &str, range: SectorRange) {
    if let Err(error) = result {
        panic!("{what} {range} fails: {error}");
    }
}

/// Flushes the volume.
pub(crate) async fn flush(rig: &Rig) {
    let is_settled = !rig.is_in_doubt();
    let flush = rig.model.borrow_mut().begin_flush();
    let open = rig.open.borrow_mut().begin_flush();
    expect(rig.array().flush().await, "flush of", SectorRange::default());
    rig.model.borrow_mut().end_flush(flush);
    rig.open.borrow_mut().end_flush(open, is_settled);
}
