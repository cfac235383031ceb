//! Clients of an array: reads and writes of all lengths, over each other, held to the model.

use std::rc::Rc;

use voltier_array::StripeNumber;
use voltier_block::{AfterDiscard, BlockDevice, Buf, Durability, IoResult, Prng, SectorRange};

use crate::arrays::fixture::ArrayFixture;
use crate::arrays::merge::burst;
use crate::hang_times::check_patience;

/// Runs so many steps of each client at once.
pub(crate) async fn run_clients(fixture: &Rc<ArrayFixture>, steps: u64) {
    let clients = (0..fixture.setup.clients).map(|_| {
        let (fixture, dice) = (fixture.clone(), fixture.world.prng());
        fixture.world.handle().clone().spawn(Client { fixture, dice }.run(steps))
    });
    let clients: Vec<_> = clients.collect();
    for client in clients {
        client.await;
    }
}

/// Writes one after the other, small ones: they take the rings of a journal round.
pub(crate) async fn age(fixture: &Rc<ArrayFixture>, writes: u64) {
    let mut client = Client { fixture: fixture.clone(), dice: fixture.world.prng() };
    for _ in 0..writes {
        let range = client.pick_in(1);
        client.write(range, Durability::Cached).await;
    }
    let whole = client.fixture.whole();
    if client.dice.one_in(2) {
        // Something everywhere.
        for range in whole {
            client.write(range, Durability::Cached).await;
        }
    }
}

struct Client {
    fixture: Rc<ArrayFixture>,
    dice: Prng,
}

/// A request that is under way, until dropped.
struct UnderWay<'a>(&'a ArrayFixture, SectorRange);

impl<'a> UnderWay<'a> {
    fn new(fixture: &'a ArrayFixture, range: SectorRange) -> Self {
        fixture.under_way.borrow_mut().push(range);
        Self(fixture, range)
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
        let block = self.fixture.setup.block_sectors();
        let stripe = self.fixture.setup.geometry.stripe_sectors();
        loop {
            let longest = *self.dice.pick(&[1, 1, 8 / block.min(8), 2 * stripe / block]);
            let range = self.pick_in(longest);
            let closed = self
                .fixture
                .bit_rot
                .closed
                .get()
                .map(|stripe| self.fixture.setup.sectors_of(stripe));
            if closed.is_none_or(|closed| !closed.overlaps(range)) {
                return range;
            }
        }
    }

    fn pick_in(&mut self, longest: u64) -> SectorRange {
        let fixture = self.fixture.clone();
        let (block, stripe) =
            (fixture.setup.block_sectors(), fixture.setup.geometry.stripe_sectors());
        let window = *self.dice.pick(&fixture.windows());
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
            if self.fixture.setup.merges() && self.dice.one_in(3) {
                self.write_burst().await;
            }
            let range = self.pick();
            let fixture = self.fixture.clone();
            let under_way = UnderWay::new(&fixture, range);
            let since = fixture.world.handle().now();
            let durability = *self.dice.pick(&[Durability::Cached, Durability::Durable]);
            match self.dice.below(16) {
                0..4 => self.read(range).await,
                4 | 5 => flush(&self.fixture).await,
                6 => self.zero(range, durability).await,
                7 => self.discard(range).await,
                _ => self.write(range, durability).await,
            }
            drop(under_way);
            if fixture.setup.hangs {
                check_patience(fixture.world.handle().now() - since);
            }
            if self.dice.one_in(8) {
                self.fixture.world.handle().sleep(self.dice.below(3_000_000)).await;
            }
        }
    }

    /// Small writes at once, one behind the other.
    async fn write_burst(&mut self) {
        let fixture = self.fixture.clone();
        let first = self.pick_in(1);
        let window = fixture.windows().into_iter().find(|window| window.contains(first));
        let end = window.expect("it was picked in one").end().0;
        let closed = fixture.bit_rot.closed.get().map(|stripe| fixture.setup.sectors_of(stripe));
        let ranges = burst(&mut self.dice, fixture.setup.block_sectors(), first, end);
        let is_open = |range: &SectorRange| closed.is_none_or(|closed| !closed.overlaps(*range));
        let writes = ranges.into_iter().filter(is_open).map(|range| {
            let (fixture, dice) = (fixture.clone(), Prng::new(self.dice.next_u64()));
            let durability =
                if self.dice.one_in(8) { Durability::Durable } else { Durability::Cached };
            fixture.world.handle().clone().spawn(async move {
                let _under_way = UnderWay::new(&fixture, range);
                Client { fixture: fixture.clone(), dice }.write(range, durability).await;
            })
        });
        for write in writes.collect::<Vec<_>>() {
            write.await;
        }
    }

    async fn read(&self, range: SectorRange) {
        let read = self.fixture.model.borrow_mut().begin_read();
        let into = Buf::new(range.bytes() as usize);
        match self.fixture.array().read(range.start, into).await {
            Ok(data) => {
                self.fixture.note_use(range);
                let seen = self.fixture.model.borrow_mut().end_read(read, range.start, &data);
                if let Err(violation) = seen {
                    panic!("{violation}, reading {range}");
                }
            }
            Err(error) => panic!("reading {range} fails: {error}"),
        }
    }

    fn is_durable(&self, durability: Durability) -> bool {
        durability == Durability::Durable || self.fixture.setup.has_journal()
    }

    async fn write(&mut self, range: SectorRange, durability: Durability) {
        let mut data = Buf::new(range.bytes() as usize);
        self.dice.fill(&mut data);
        let write = self.fixture.model.borrow_mut().begin_write(range.start, &data);
        let journal = self.fixture.journal_before();
        let open = self.fixture.uncovered.borrow_mut().begin(range);
        let result = self.fixture.array().write(range.start, data.into(), durability).await;
        expect(result, "writing", range);
        self.fixture.note_journal(journal);
        self.fixture.note_use(range);
        self.fixture.uncovered.borrow_mut().end(open);
        let durable = self.is_durable(durability);
        self.fixture.model.borrow_mut().end_write(write, durable);
        let stripe = self.fixture.setup.geometry.stripe_sectors();
        let mut written = self.fixture.written.borrow_mut();
        for first in range.split_at_multiples(stripe) {
            written.insert(self.fixture.setup.region_of(StripeNumber(first.start.0 / stripe)));
        }
    }

    async fn zero(&self, range: SectorRange, durability: Durability) {
        let write = self.fixture.model.borrow_mut().begin_zeroes(range);
        let open = self.fixture.uncovered.borrow_mut().begin(range);
        let result = self.fixture.array().write_zeroes(range, durability).await;
        expect(result, "zeroing", range);
        self.fixture.uncovered.borrow_mut().end(open);
        let durable = self.is_durable(durability);
        self.fixture.model.borrow_mut().end_write(write, durable);
    }

    async fn discard(&self, range: SectorRange) {
        let write = match self.fixture.limits().after_discard {
            AfterDiscard::Zeroes => Some(self.fixture.model.borrow_mut().begin_zeroes(range)),
            AfterDiscard::Anything => Some(self.fixture.model.borrow_mut().begin_discard(range)),
            AfterDiscard::Unchanged => None,
        };
        let open = self.fixture.uncovered.borrow_mut().begin(range);
        expect(self.fixture.array().discard(range).await, "discarding", range);
        self.fixture.uncovered.borrow_mut().end(open);
        if let Some(write) = write {
            let durable = self.fixture.setup.has_journal();
            self.fixture.model.borrow_mut().end_write(write, durable);
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
pub(crate) async fn flush(fixture: &ArrayFixture) {
    let is_resynced = !fixture.needs_resync();
    let flush = fixture.model.borrow_mut().begin_flush();
    let open = fixture.uncovered.borrow_mut().begin_flush();
    expect(fixture.array().flush().await, "flush of", SectorRange::default());
    fixture.model.borrow_mut().end_flush(flush);
    fixture.uncovered.borrow_mut().end_flush(open, is_resynced);
}
