//! Drives that forget what no flush covered, all at once when the power is cut.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::ops::Range;
use std::rc::Rc;

use voltier_block::{
    BlockDevice, Buf, Bytes, DriveControl, Durability, IoError, IoResult, Lba, Limits, Nanos,
    Payload, Prng, SECTOR_BYTES, SectorRange,
};
use voltier_ring::{Handle, Signal};

pub(crate) const SECTOR: usize = SECTOR_BYTES as usize;
pub(crate) type Sector = [u8; SECTOR];

/// The delay of a change in slow sectors: longer than a few other requests.
const SLOW_NS: u64 = 200_000;

/// The content of a sector that was never written: not zeroes.
const JUNK: Sector = [0xee; SECTOR];

/// A write on its way.
#[derive(Clone)]
struct UnderWay {
    at: u64,
    data: Bytes,
}

/// The content of a drive.
#[derive(Clone, Default)]
pub(crate) struct Medium {
    /// Grows with every change; a copy is in one piece of memory.
    durable: BTreeMap<u64, Sector>,
    /// Completed versions of sectors that no flush covered, oldest first.
    cached: BTreeMap<u64, Vec<Sector>>,
    under_way: BTreeMap<u64, UnderWay>,
    next: u64,
}

impl Medium {
    fn read(&self, sector: u64) -> &Sector {
        let cached = self.cached.get(&sector).and_then(|versions| versions.last());
        cached.or_else(|| self.durable.get(&sector)).unwrap_or(&JUNK)
    }

    fn begin(&mut self, at: Lba, data: Bytes) -> u64 {
        self.next += 1;
        self.under_way.insert(self.next, UnderWay { at: at.0, data });
        self.next
    }

    fn complete(&mut self, number: u64, durability: Durability) {
        let UnderWay { at, data } = self.under_way.remove(&number).expect("it was begun");
        for (index, sector) in data.chunks(SECTOR).enumerate() {
            let (at, sector) = (at + index as u64, sector.try_into().expect("whole sectors"));
            if durability == Durability::Durable {
                self.cached.remove(&at);
                self.durable.insert(at, sector);
            } else {
                self.cached.entry(at).or_default().push(sector);
            }
        }
    }

    /// Sectors and how many versions of each a flush that begins now will cover.
    fn covered(&self) -> Vec<(u64, usize)> {
        self.cached.iter().map(|(sector, versions)| (*sector, versions.len())).collect()
    }

    fn flush(&mut self, covered: Vec<(u64, usize)>) {
        for (sector, count) in covered {
            let Some(versions) = self.cached.get_mut(&sector) else { continue };
            let count = count.min(versions.len());
            if let Some(last) = versions.drain(..count).next_back() {
                self.durable.insert(sector, last);
            }
            if versions.is_empty() {
                self.cached.remove(&sector);
            }
        }
    }

    /// The drive after a power cut: of what no flush covered, and of what was under way, any sectors.
    pub(crate) fn after_power_cut(&self, dice: &mut Prng) -> Self {
        let mut durable = self.durable.clone();
        let mood = dice.below(4);
        let survives = |dice: &mut Prng| match mood {
            0 => false,
            1 => true,
            _ => dice.one_in(2),
        };
        for (sector, versions) in &self.cached {
            if survives(dice) {
                durable.insert(*sector, *dice.pick(versions));
            }
        }
        for write in self.under_way.values() {
            for (index, sector) in write.data.chunks(SECTOR).enumerate() {
                if survives(dice) {
                    let at = write.at + index as u64;
                    durable.insert(at, sector.try_into().expect("whole sectors"));
                }
            }
        }
        Self { durable, ..Self::default() }
    }

    /// The drive after the death of the process. Completed writes are as they were. Of writes under way
    /// any sectors are there, in the drive's cache.
    pub(crate) fn after_kill(&self, dice: &mut Prng) -> Self {
        let mut left = self.clone();
        for UnderWay { at, data } in std::mem::take(&mut left.under_way).into_values() {
            let is_whole = dice.one_in(2);
            for (index, sector) in data.chunks(SECTOR).enumerate() {
                if is_whole || dice.one_in(2) {
                    let sector = sector.try_into().expect("whole sectors");
                    left.cached.entry(at + index as u64).or_default().push(sector);
                }
            }
        }
        left
    }

    /// Changes bytes behind everybody's back.
    pub(crate) fn overwrite(&mut self, at: u64, bytes: &[u8]) {
        for (index, byte) in bytes.iter().enumerate() {
            let at = at as usize + index;
            let sector = (at / SECTOR) as u64;
            let mut content = *self.read(sector);
            content[at % SECTOR] = *byte;
            self.durable.insert(sector, content);
        }
    }

    /// Turns a byte of each sector over that holds nothing but `byte`; how many there are.
    pub(crate) fn turn_over(&mut self, byte: u8) -> usize {
        let cached = self.cached.values_mut().flatten();
        let all = self.durable.values_mut().chain(cached);
        let held = all.filter(|sector| **sector == [byte; SECTOR]);
        held.map(|sector| sector[7] ^= 0x10).count()
    }

    /// A byte as it is now.
    pub(crate) fn byte(&self, at: u64) -> u8 {
        self.read(at / SECTOR_BYTES)[at as usize % SECTOR]
    }
}

/// The power of all drives, which is cut at a step: the beginning or the end of a change.
#[derive(Default)]
pub(crate) struct Power {
    cut_at: Cell<Option<u64>>,
    steps: Cell<u64>,
    is_cut: Cell<bool>,
    pub(crate) changed: Signal,
}

impl Power {
    pub(crate) fn cut_at(step: Option<u64>) -> Rc<Self> {
        Rc::new(Self { cut_at: Cell::new(step), ..Self::default() })
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.is_cut.get()
    }

    async fn step(&self) {
        let step = self.steps.replace(self.steps.get() + 1);
        if self.cut_at.get() == Some(step) {
            self.is_cut.set(true);
            self.changed.notify();
        }
        if self.is_cut() {
            pending::<()>().await;
        }
    }
}

/// A drive. Clones are the same.
#[derive(Clone)]
pub(crate) struct Drive {
    handle: Handle,
    limits: Limits,
    power: Rc<Power>,
    pub(crate) medium: Rc<RefCell<Medium>>,
    dice: Rc<RefCell<Prng>>,
    /// Changes that begin in these sectors take many times as long.
    pub(crate) slow: Rc<RefCell<Range<u64>>>,
    /// Everything fails for good.
    pub(crate) is_gone: Rc<Cell<bool>>,
    /// Writes so far of superblocks: sectors 0 and the last block.
    pub(crate) superblock_writes: Rc<Cell<u64>>,
    pub(crate) reads: Rc<Cell<u64>>,
    pub(crate) flushes: Rc<Cell<u64>>,
    /// Changes find no room while that is set, and take no place.
    pub(crate) is_full: Rc<Cell<bool>>,
    /// Every change fails so.
    pub(crate) refuses: Rc<Cell<Option<IoError>>>,
    /// Every request fails.
    pub(crate) fails_all: Rc<Cell<bool>>,
    /// The drive answers nothing while that is set, and all that it was asked for afterwards.
    is_hung: Rc<Cell<bool>>,
    /// Requests that are never answered, while it answers others: from the next write on.
    pub(crate) lost_requests: Rc<Cell<u32>>,
    /// Writes land when that is no longer set; the drive does all else meanwhile.
    holds_writes: Rc<Cell<bool>>,
    /// The same of flushes.
    holds_flushes: Rc<Cell<bool>>,
    /// Flushes give a medium error while that is set, and drop what they were to keep.
    pub(crate) drops_flushes: Rc<Cell<bool>>,
    /// Flushes give a medium error while that is set.
    pub(crate) refuses_flushes: Rc<Cell<bool>>,
    answers: Rc<Signal>,
    /// Requests that it has.
    requests: Rc<Cell<usize>>,
    /// Sectors that give a medium error when they are read, until they are written.
    pub(crate) unreadable: Rc<RefCell<BTreeSet<u64>>>,
    /// Sectors that give a medium error when they are written: nothing of the write takes place.
    pub(crate) unwritable: Rc<RefCell<BTreeSet<u64>>>,
    /// Sectors that give a medium error when they are written, and are written all the same.
    pub(crate) denied: Rc<RefCell<Range<u64>>>,
}

impl Drive {
    pub(crate) fn new(
        handle: &Handle,
        power: &Rc<Power>,
        bytes: u64,
        medium: Medium,
        seed: u64,
    ) -> Self {
        Self {
            handle: handle.clone(),
            limits: Limits { volatile_cache: true, ..Limits::plain(bytes) },
            power: power.clone(),
            medium: Rc::new(RefCell::new(medium)),
            dice: Rc::new(RefCell::new(Prng::new(seed))),
            slow: Rc::new(RefCell::new(0..0)),
            is_gone: Rc::default(),
            is_full: Rc::default(),
            refuses: Rc::default(),
            fails_all: Rc::default(),
            superblock_writes: Rc::default(),
            reads: Rc::default(),
            flushes: Rc::default(),
            is_hung: Rc::default(),
            lost_requests: Rc::default(),
            holds_writes: Rc::default(),
            holds_flushes: Rc::default(),
            drops_flushes: Rc::default(),
            refuses_flushes: Rc::default(),
            answers: Rc::default(),
            requests: Rc::default(),
            unreadable: Rc::default(),
            unwritable: Rc::default(),
            denied: Rc::default(),
        }
    }

    /// From now on it answers nothing, or everything that it was asked for.
    pub(crate) fn set_hung(&self, is_hung: bool) {
        self.is_hung.set(is_hung);
        self.answers.notify();
    }

    /// From now on its writes wait, or go on.
    pub(crate) fn set_holds_writes(&self, holds_writes: bool) {
        self.holds_writes.set(holds_writes);
        self.answers.notify();
    }

    /// From now on its flushes wait, or go on.
    pub(crate) fn set_holds_flushes(&self, holds_flushes: bool) {
        self.holds_flushes.set(holds_flushes);
        self.answers.notify();
    }

    /// Does a request to its end whoever waits for it.
    async fn held<T: 'static>(
        &self,
        request: impl AsyncFnOnce(Drive) -> IoResult<T> + 'static,
    ) -> IoResult<T> {
        let drive = self.clone();
        let ended = async move {
            let requests = drive.requests.clone();
            requests.set(requests.get() + 1);
            let result = request(drive).await;
            requests.set(requests.get() - 1);
            result
        };
        self.handle.finish(ended).await
    }

    async fn late(&self) -> IoResult<()> {
        let delay_ns = 1_000 + self.dice.borrow_mut().below(20_000);
        self.handle.sleep(delay_ns).await;
        if self.power.is_cut() {
            pending::<()>().await;
        }
        self.answers.until(|| !self.is_hung.get()).await;
        if self.fails_all.get() {
            return Err(IoError::Medium);
        }
        if self.is_gone.get() { Err(IoError::Gone) } else { Ok(()) }
    }

    async fn change(&self, at: Lba, data: Bytes, durability: Durability) -> IoResult<()> {
        if self.is_gone.get() {
            return Err(IoError::Gone);
        }
        if at.0 == 0 || at.0 + 8 == self.limits.sectors {
            self.superblock_writes.set(self.superblock_writes.get() + 1);
        }
        if self.is_full.get() {
            return Err(IoError::NoSpace);
        }
        if let Some(error) = self.refuses.get() {
            return Err(error);
        }
        let sectors = (data.len() / SECTOR) as u64;
        if self.unwritable.borrow().range(at.0..at.0 + sectors).next().is_some() {
            return Err(IoError::Medium);
        }
        let number = self.medium.borrow_mut().begin(at, data);
        self.power.step().await;
        let lost = self.lost_requests.get();
        if lost > 0 {
            self.lost_requests.set(lost - 1);
            pending::<()>().await;
        }
        if self.slow.borrow().contains(&at.0) {
            self.handle.sleep(SLOW_NS).await;
        }
        self.late().await?;
        self.answers.until(|| !self.holds_writes.get()).await;
        let end = at.0 + sectors;
        self.unreadable.borrow_mut().retain(|sector| !(at.0..end).contains(sector));
        self.medium.borrow_mut().complete(number, durability);
        self.power.step().await;
        let denied = self.denied.borrow();
        let is_denied = at.0 < denied.end && denied.start < end;
        if is_denied { Err(IoError::Medium) } else { Ok(()) }
    }
}

impl BlockDevice for Drive {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    async fn read(&self, at: Lba, mut into: Buf) -> IoResult<Buf> {
        self.reads.set(self.reads.get() + 1);
        let read = async move |drive: Drive| {
            drive.late().await?;
            let end = at.0 + (into.len() / SECTOR) as u64;
            if drive.unreadable.borrow().range(at.0..end).next().is_some() {
                return Err(IoError::Medium);
            }
            let medium = drive.medium.borrow();
            for (index, sector) in into.chunks_mut(SECTOR).enumerate() {
                sector.copy_from_slice(medium.read(at.0 + index as u64));
            }
            drop(medium);
            Ok(into)
        };
        self.held(read).await
    }

    async fn write(&self, at: Lba, data: Payload, durability: Durability) -> IoResult<()> {
        let whole: Vec<u8> = data.pieces().iter().flat_map(|piece| piece.to_vec()).collect();
        let whole = Bytes::copy_of(&whole);
        self.held(async move |drive: Drive| drive.change(at, whole, durability).await).await
    }

    async fn flush(&self) -> IoResult<()> {
        self.flushes.set(self.flushes.get() + 1);
        let flush = async |drive: Drive| {
            let covered = drive.medium.borrow().covered();
            drive.late().await?;
            drive.answers.until(|| !drive.holds_flushes.get()).await;
            if drive.drops_flushes.get() {
                drive.medium.borrow_mut().cached.clear();
                return Err(IoError::Medium);
            }
            if drive.refuses_flushes.get() {
                return Err(IoError::Medium);
            }
            drive.medium.borrow_mut().flush(covered);
            drive.power.step().await;
            Ok(())
        };
        self.held(flush).await
    }

    async fn discard(&self, _range: SectorRange) -> IoResult<()> {
        self.late().await
    }

    async fn write_zeroes(&self, range: SectorRange, durability: Durability) -> IoResult<()> {
        let zeroes = Buf::zeroed(range.bytes() as usize).freeze();
        self.held(async move |drive: Drive| drive.change(range.start, zeroes, durability).await)
            .await
    }
}

impl DriveControl for Drive {
    fn under_way(&self) -> voltier_block::UnderWay {
        let requests = self.requests.clone();
        voltier_block::UnderWay::of(move || requests.get())
    }

    /// A drive that hangs ends nothing early, whoever gives it up.
    fn abandon(&self) {}

    /// The next flush succeeds by itself.
    fn forget_failed_flush(&self) {}

    fn patience_ns(&self) -> Nanos {
        0
    }
}
