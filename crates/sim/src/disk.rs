//! A drive that forgets: what no flush covered is in a volatile cache, and a power cut keeps any
//! part of that, block by block.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use voltier_block::{
    AfterDiscard, BlockDevice, Buf, Bytes, Durability, IoError, IoResult, Lba, Limits, Nanos,
    Payload, Prng, SECTOR_BYTES, SectorRange,
};

use crate::image::Image;
use crate::world::{Event, World};

/// One request in so many takes long, and how many times as long: it overtakes nothing, everything
/// overtakes it.
const SLOW_ONE_IN: u64 = 40;
const SLOW_FACTOR: u64 = 25;

/// What kind of drive.
#[derive(Clone, Debug)]
pub struct DiskSpec {
    /// Number of the drive in the trace.
    pub number: u64,
    /// Size, in bytes.
    pub bytes: u64,
    /// Bytes that are written whole or not at all: 512 or 4096.
    pub block_bytes: u32,
    /// Shortest time of a request; most take up to five times as long.
    pub latency_ns: Nanos,
    /// Flushes complete without making anything durable: a fault that the oracle must find.
    pub lies: bool,
}

/// How a run ends without being asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The drives lose power: of what no flush covered any part may be on the medium.
    Power,
    /// The process is killed: what completed stays, what was under way may have happened.
    Kill,
}

/// A write as the drive sees it.
#[derive(Clone)]
struct Written {
    at: u64,
    data: Bytes,
}

impl Written {
    fn blocks(&self, block_bytes: u64) -> impl Iterator<Item = (u64, Bytes)> {
        let count = self.data.len() as u64 / block_bytes;
        (0..count).map(move |block| {
            let from = (block * block_bytes) as usize;
            (self.at + block * block_bytes, self.data.slice(from..from + block_bytes as usize))
        })
    }

    fn covers(&self, other: &Written) -> bool {
        self.at <= other.at
            && other.at + other.data.len() as u64 <= self.at + self.data.len() as u64
    }
}

/// What is on a drive that is not in use: what is safe, and what a power cut may still take.
#[derive(Clone)]
pub struct Medium {
    durable: Image,
    current: Image,
    /// Completed writes that no flush covered, by the order of completion.
    unflushed: BTreeMap<u64, Written>,
}

impl Medium {
    /// A medium of zeroes.
    pub fn zeroed(bytes: u64) -> Self {
        let image = Image::zeroed(bytes / SECTOR_BYTES);
        Self { durable: image.clone(), current: image, unflushed: BTreeMap::new() }
    }

    /// What a read returns, without a drive.
    pub fn peek(&self, at: Lba, into: &mut [u8]) {
        self.current.read(at.bytes(), into);
    }

    /// Whether reads of both return the same.
    pub fn reads_like(&self, other: &Self) -> bool {
        self.current.is_same(&other.current)
    }

    /// Turns one bit over, on the medium and in the drive's cache alike.
    pub fn rot(&mut self, byte: u64, bit: u8) {
        let mut value = [0];
        self.current.read(byte, &mut value);
        value[0] ^= 1 << bit;
        self.overwrite(byte, &value);
    }

    /// Writes past every drive, as a foreign machine would.
    pub fn overwrite(&mut self, byte: u64, data: &[u8]) {
        self.current.write(byte, data);
        self.durable.write(byte, data);
    }

    fn complete(&mut self, order: u64, written: Written, durability: Durability) {
        self.current.write(written.at, &written.data);
        match durability {
            Durability::Cached => drop(self.unflushed.insert(order, written)),
            Durability::Durable => {
                self.durable.write(written.at, &written.data);
                self.unflushed.retain(|_, older| !written.covers(older));
                // What is covered in part only is older as well: it must not come back on top.
                for older in self.unflushed.values_mut() {
                    older.patch(&written);
                }
            }
        }
    }

    /// Makes writes that completed before `order` durable.
    fn flush(&mut self, order: u64) {
        let rest = self.unflushed.split_off(&order);
        for written in std::mem::replace(&mut self.unflushed, rest).into_values() {
            self.durable.write(written.at, &written.data);
        }
    }
}

impl Written {
    /// Takes over the bytes that `newer` has in common with this write.
    fn patch(&mut self, newer: &Written) {
        let start = self.at.max(newer.at);
        let end = (self.at + self.data.len() as u64).min(newer.at + newer.data.len() as u64);
        if start >= end {
            return;
        }
        let mut patched = Buf::copy_of(&self.data);
        let count = (end - start) as usize;
        let (to, from) = ((start - self.at) as usize, (start - newer.at) as usize);
        patched[to..to + count].copy_from_slice(&newer.data[from..from + count]);
        self.data = patched.freeze();
    }
}

#[derive(Default)]
struct Faults {
    reads: Vec<SectorRange>,
    writes: Vec<SectorRange>,
    flushes: bool,
}

struct Inner {
    world: World,
    spec: DiskSpec,
    limits: Limits,
    medium: RefCell<Medium>,
    in_flight: RefCell<BTreeMap<u64, Written>>,
    /// Numbers submissions and completions alike.
    order: Cell<u64>,
    gone: Cell<bool>,
    faults: RefCell<Faults>,
}

/// A simulated drive. Clones are the same drive.
#[derive(Clone)]
pub struct SimDisk(Rc<Inner>);

#[derive(Clone, Copy)]
enum Operation {
    Read = 1,
    Write,
    Flush,
    Discard,
    Zero,
}

impl SimDisk {
    /// A drive in `world` with this medium in it.
    pub fn new(world: &World, spec: &DiskSpec, medium: Medium) -> Self {
        let limits = Limits {
            block_bytes: spec.block_bytes,
            after_discard: AfterDiscard::Anything,
            volatile_cache: true,
            ..Limits::plain(spec.bytes)
        };
        Self(Rc::new(Inner {
            world: world.clone(),
            spec: spec.clone(),
            limits,
            // Behind every number that a write left in the drive's cache has.
            order: Cell::new(medium.unflushed.last_key_value().map_or(0, |last| last.0 + 1)),
            medium: RefCell::new(medium),
            in_flight: RefCell::new(BTreeMap::new()),
            gone: Cell::new(false),
            faults: RefCell::new(Faults::default()),
        }))
    }

    /// What is on the medium after `cut` at this moment. The drive itself goes on.
    pub fn after(&self, cut: Cut, prng: &mut Prng) -> Medium {
        let before = self.0.medium.borrow();
        let block_bytes = u64::from(self.0.spec.block_bytes);
        let in_flight = self.0.in_flight.borrow();
        match cut {
            Cut::Power => {
                let mut image = before.durable.clone();
                let odds = prng.below(3);
                for written in before.unflushed.values().chain(in_flight.values()) {
                    for (at, block) in survivors(written, block_bytes, odds, prng) {
                        image.write(at, &block);
                    }
                }
                Medium { current: image.clone(), durable: image, unflushed: BTreeMap::new() }
            }
            Cut::Kill => {
                let mut medium = before.clone();
                let mut order = self.0.order.get();
                for written in in_flight.values() {
                    for (at, data) in survivors(written, block_bytes, 1, prng) {
                        medium.complete(order, Written { at, data }, Durability::Cached);
                        order += 1;
                    }
                }
                medium
            }
        }
    }

    /// The medium as it is now, with every completed write.
    pub fn medium(&self) -> Medium {
        self.0.medium.borrow().clone()
    }

    /// What a read would return now, without a request.
    pub fn peek(&self, at: Lba, into: &mut [u8]) {
        self.0.medium.borrow().peek(at, into);
    }

    /// Writes, zeroes and discards that were submitted and are not complete.
    pub fn writes_under_way(&self) -> usize {
        self.0.in_flight.borrow().len()
    }

    /// From now on every request fails with `Gone`.
    pub fn lose(&self) {
        self.0.gone.set(true);
    }

    /// Reads that touch `range` fail.
    pub fn fail_reads(&self, range: SectorRange) {
        self.0.faults.borrow_mut().reads.push(range);
    }

    /// Writes, discards and zeroes that touch `range` fail and change nothing.
    pub fn fail_writes(&self, range: SectorRange) {
        self.0.faults.borrow_mut().writes.push(range);
    }

    /// Flushes fail and make nothing durable.
    pub fn fail_flushes(&self) {
        self.0.faults.borrow_mut().flushes = true;
    }

    /// Ends all faults of reads, writes and flushes.
    pub fn mend(&self) {
        self.0.faults.replace(Faults::default());
    }

    fn next_order(&self) -> u64 {
        self.0.order.replace(self.0.order.get() + 1)
    }

    fn event(&self, event: Event, operation: Operation, range: SectorRange) {
        self.0.world.event(event, self.0.spec.number, operation as u64, range);
    }

    /// Lets the time of a request pass.
    async fn work(&self) -> IoResult<()> {
        let inner = &self.0;
        let fastest_ns = inner.spec.latency_ns;
        let mut time_ns = fastest_ns + inner.world.below(4 * fastest_ns);
        if inner.world.below(SLOW_ONE_IN) == 0 {
            time_ns *= SLOW_FACTOR;
        }
        inner.world.pass(time_ns).await;
        if inner.gone.get() { Err(IoError::Gone) } else { Ok(()) }
    }

    fn check(&self, range: SectorRange, of: fn(&Faults) -> &Vec<SectorRange>) -> IoResult<()> {
        assert!(self.0.limits.accepts(range), "{range} is not a request for this drive");
        let faults = self.0.faults.borrow();
        let hit = of(&faults).iter().any(|fault| fault.overlaps(range));
        if hit { Err(IoError::Medium) } else { Ok(()) }
    }

    async fn put(
        &self,
        operation: Operation,
        at: Lba,
        data: Bytes,
        durability: Durability,
    ) -> IoResult<()> {
        let range = SectorRange::from_bytes(at.bytes(), data.len() as u64);
        if self.0.gone.get() {
            return Err(IoError::Gone);
        }
        let fault = self.check(range, |faults| &faults.writes);
        let submitted = self.next_order();
        let written = Written { at: at.bytes(), data };
        if fault.is_ok() {
            self.0.in_flight.borrow_mut().insert(submitted, written.clone());
        }
        self.event(Event::Submitted, operation, range);
        let worked = self.work().await;
        self.0.in_flight.borrow_mut().remove(&submitted);
        worked?;
        fault?;
        let completed = self.next_order();
        self.0.medium.borrow_mut().complete(completed, written, durability);
        self.event(Event::Completed, operation, range);
        Ok(())
    }
}

/// The blocks of a write that reach the medium: none, all, or any. `odds` 0 loses most, 2 keeps most.
fn survivors(written: &Written, block_bytes: u64, odds: u64, prng: &mut Prng) -> Vec<(u64, Bytes)> {
    let blocks = written.blocks(block_bytes);
    match (odds, prng.below(6)) {
        (_, 0) => blocks.filter(|_| prng.one_in(2)).collect(),
        (0, 1) | (1, 1..4) | (2, 1..6) => blocks.collect(),
        _ => Vec::new(),
    }
}

impl BlockDevice for SimDisk {
    fn limits(&self) -> &Limits {
        &self.0.limits
    }

    async fn read(&self, at: Lba, mut into: Buf) -> IoResult<Buf> {
        let range = SectorRange::from_bytes(at.bytes(), into.len() as u64);
        if self.0.gone.get() {
            return Err(IoError::Gone);
        }
        let fault = self.check(range, |faults| &faults.reads);
        self.event(Event::Submitted, Operation::Read, range);
        // The content of some moment between begin and end.
        let early = self.0.world.below(2) == 0;
        if early {
            self.0.medium.borrow().peek(at, &mut into);
        }
        self.work().await?;
        fault?;
        if !early {
            self.0.medium.borrow().peek(at, &mut into);
        }
        Ok(into)
    }

    async fn write(&self, at: Lba, data: Payload, durability: Durability) -> IoResult<()> {
        let mut whole = Buf::new(data.len());
        let mut filled = 0;
        for piece in data.pieces() {
            whole[filled..filled + piece.len()].copy_from_slice(piece);
            filled += piece.len();
        }
        self.put(Operation::Write, at, whole.freeze(), durability).await
    }

    async fn flush(&self) -> IoResult<()> {
        if self.0.gone.get() {
            return Err(IoError::Gone);
        }
        let fails = self.0.faults.borrow().flushes;
        let covers = self.next_order();
        self.event(Event::Submitted, Operation::Flush, SectorRange::default());
        self.work().await?;
        if fails {
            return Err(IoError::Medium);
        }
        if !self.0.spec.lies {
            self.0.medium.borrow_mut().flush(covers);
        }
        self.event(Event::Completed, Operation::Flush, SectorRange::default());
        Ok(())
    }

    async fn discard(&self, range: SectorRange) -> IoResult<()> {
        let mut content = Buf::new(range.bytes() as usize);
        match self.0.world.below(3) {
            0 => self.0.medium.borrow().peek(range.start, &mut content),
            1 => content.fill(0),
            _ => content.fill(0xd5),
        }
        self.put(Operation::Discard, range.start, content.freeze(), Durability::Cached).await
    }

    async fn write_zeroes(&self, range: SectorRange, durability: Durability) -> IoResult<()> {
        let zeroes = Buf::zeroed(range.bytes() as usize).freeze();
        self.put(Operation::Zero, range.start, zeroes, durability).await
    }
}
