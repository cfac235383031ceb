//! A process that serves a volume over the image, and its clients.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use voltier_block::{BlockDevice, Buf, Durability, IoError, IoResult, Nanos, Prng, SectorRange};
use voltier_cache::{FormatOptions, LineSize, Mode, OpenOptions, Unshipped};
use voltier_ring::{JoinHandle, Signal, race};
use voltier_volume::{Volume, VolumeError};

use super::fence::{HostDrive, Tie, Tied};
use super::history::History;
use crate::disk::SimDisk;
use crate::model::Model;
use crate::workload::{Profile, check_bound};
use crate::world::World;

/// How often a daemon publishes what its disk lacks.
const PUBLISHED_NS: Nanos = 1_000_000_000;
/// Longest single check, in sectors.
const CHECK_SECTORS: u64 = 512;

/// What was published at a moment.
pub(super) struct Published {
    pub(super) at_ns: Nanos,
    pub(super) unshipped: Unshipped,
}

/// Who serves: what survives its process.
#[derive(Clone)]
pub(super) struct Owner {
    pub(super) world: World,
    pub(super) profile: Profile,
    pub(super) mode: Mode,
    pub(super) uuid: [u8; 16],
    pub(super) model: Rc<RefCell<Model>>,
    pub(super) history: Rc<RefCell<History>>,
}

/// A process.
pub(super) struct Process {
    pub(super) owner: Owner,
    pub(super) volume: Volume<HostDrive>,
    pub(super) ssd: SimDisk,
    pub(super) tie: Option<Rc<Tie>>,
    pub(super) generation: u64,
    pub(super) published: RefCell<Vec<Published>>,
    /// Its clients may see errors.
    is_excused: Cell<bool>,
    is_dead: Cell<bool>,
    death: Signal,
}

impl Owner {
    /// The same with a model of its own, and no history.
    pub(super) fn apart(&self) -> Self {
        let model = Rc::new(RefCell::new(self.model.borrow().apart()));
        Self { model, history: Rc::new(RefCell::new(History::new())), ..self.clone() }
    }

    fn options(&self, generation_min: u64) -> OpenOptions {
        let settings = self.profile.settings(self.mode);
        let (uuid, wall_clock) = (Some(self.uuid), self.world.wall_clock());
        OpenOptions { uuid, generation_min, wall_clock, ..OpenOptions::with(settings) }
    }

    /// Opens the cache on an SSD that the host has, or makes a new one.
    pub(super) async fn open(
        &self,
        ssd: &SimDisk,
        image: HostDrive,
        tie: Option<Rc<Tie>>,
        generation: Option<u64>,
    ) -> Result<Rc<Process>, VolumeError> {
        let volume = Volume::plain(self.world.handle(), image);
        if let Some(tie) = &tie {
            volume.serve_until(tie.lock_is_lost());
        }
        let drive = Tied::own(ssd.clone());
        let opened = match generation {
            Some(least) => volume.attach_existing(drive, self.options(least)).await?,
            None => {
                let format = FormatOptions {
                    line_size: LineSize::new(self.profile.line_bytes).expect("a line size"),
                    policy: self.profile.policy,
                    uuid: self.uuid,
                };
                volume.attach_new(drive, &format, self.options(0)).await?
            }
        };
        let process = Rc::new(Process {
            owner: self.clone(),
            volume,
            ssd: ssd.clone(),
            tie,
            generation: opened.generation,
            published: RefCell::default(),
            is_excused: Cell::new(false),
            is_dead: Cell::new(false),
            death: Signal::new(),
        });
        drop(self.world.handle().spawn(publish(process.clone())));
        Ok(process)
    }
}

/// Publishes, as the daemon does, what a loss of the SSD would take.
async fn publish(process: Rc<Process>) {
    while !process.is_dead.get() {
        process.owner.world.pass(PUBLISHED_NS).await;
        if let Some(unshipped) = process.unshipped().filter(|_| !process.is_dead.get()) {
            let at_ns = process.owner.world.handle().now();
            process.published.borrow_mut().push(Published { at_ns, unshipped });
        }
    }
}

impl Process {
    pub(super) fn unshipped(&self) -> Option<Unshipped> {
        self.volume.cache().map(|cache| cache.status().unshipped)
    }

    /// Nothing that it still does has an effect on its own drives, and its clients are gone.
    pub(super) fn kill(&self) {
        self.is_dead.set(true);
        self.death.notify();
        if let Some(cache) = self.volume.cache() {
            cache.kill();
        }
    }

    /// From now on its clients may see errors.
    pub(super) fn excuse(&self) {
        self.is_excused.set(true);
    }

    fn knows_loss(&self) -> bool {
        self.tie.as_ref().is_some_and(|tie| tie.knows_loss())
    }

    /// Lets so many clients make so many requests each.
    pub(super) fn clients(self: &Rc<Self>, steps: u64) -> Vec<JoinHandle<()>> {
        let world = &self.owner.world;
        let client = || Client { process: self.clone(), dice: world.prng() };
        let clients = (0..self.owner.profile.clients).map(|_| client());
        clients.map(|client| world.handle().spawn(client.run(steps))).collect()
    }

    /// Reads a range and holds it to the model.
    pub(super) async fn check(&self, range: SectorRange, when: &str) {
        let (model, knew) = (self.owner.model.clone(), self.knows_loss());
        let read = model.borrow_mut().begin_read();
        match self.volume.read(range.start, Buf::new(range.bytes() as usize)).await {
            Ok(data) => {
                assert!(!knew, "{range} is served although the lock is known to be lost");
                if let Err(violation) = model.borrow_mut().end_read(read, range.start, &data) {
                    panic!("{when}: {violation}");
                }
            }
            Err(error) => {
                model.borrow_mut().fail_read(read);
                self.forgive(error, || format!("{when}: reading {range}"));
            }
        }
    }

    /// Reads all that clients use.
    pub(super) async fn check_all(&self, when: &str) {
        for window in self.owner.profile.windows() {
            for piece in window.split_at_multiples(CHECK_SECTORS) {
                self.check(piece, when).await;
            }
        }
    }

    fn forgive(&self, error: IoError, what: impl Fn() -> String) {
        assert!(self.is_excused.get(), "{}: {error}, and nothing is wrong", what());
        self.owner.world.tell(|| format!("client: {}: {error}", what()));
    }
}

/// One client.
struct Client {
    process: Rc<Process>,
    dice: Prng,
}

impl Client {
    async fn run(mut self, steps: u64) {
        let process = self.process.clone();
        for _ in 0..steps {
            let step = process.owner.world.within("what a client asked for", self.step());
            let end = process.death.until(|| process.is_dead.get());
            // The end first: what a dead process answers is nobody's.
            if race(end, step).await.is_ok() {
                return;
            }
        }
    }

    async fn step(&mut self) {
        let range = self.range();
        match self.dice.below(32) {
            0..15 => self.write(range).await,
            15..22 => self.process.check(range, "under load").await,
            22..26 => self.flush().await,
            26 => self.zero(range).await,
            27..30 => self.read_again().await,
            _ => {
                let pause_ns = *self.dice.pick(&[50_000, 3_000_000, 400_000_000, 2_500_000_000]);
                self.process.owner.world.pass(pause_ns).await;
            }
        }
    }

    fn range(&mut self) -> SectorRange {
        let profile = &self.process.owner.profile;
        let window = *self.dice.pick(&profile.windows());
        let longest = *self.dice.pick(&[1, 8, 8, 24, profile.sectors_max]);
        let longest = longest.min(profile.sectors_max);
        let count = if self.dice.one_in(2) { longest } else { 1 + self.dice.below(longest) };
        // A third of the requests meet others in a small place.
        let span = if self.dice.one_in(3) { (2 * count).max(64) } else { window.count };
        let start = self.dice.below(span.min(window.count) - count + 1);
        let align = if self.dice.one_in(2) { profile.align_sectors } else { 1 };
        SectorRange::new(window.start.plus(start / align * align), count)
    }

    /// Reads what is likely to be in the cache.
    async fn read_again(&mut self) {
        let window = self.process.owner.profile.windows()[0];
        let range = SectorRange::new(window.start, 8.min(window.count));
        self.process.check(range, "under load").await;
    }

    fn durability(&mut self) -> Durability {
        if self.dice.one_in(8) { Durability::Durable } else { Durability::Cached }
    }

    async fn write(&mut self, range: SectorRange) {
        let mut data = Buf::new(range.bytes() as usize);
        self.dice.fill(&mut data);
        let data = data.freeze();
        let (process, durability) = (self.process.clone(), self.durability());
        let change = process.owner.history.borrow_mut().begin(range, Some(&data));
        let write = process.owner.model.borrow_mut().begin_write(range.start, &data);
        process.owner.world.tell(|| format!("client: write {range}, {durability:?}"));
        let knew = process.knows_loss();
        let done = process.volume.write(range.start, data.into(), durability).await;
        self.ended((change, write), done, durability, knew);
        if process.owner.profile.syncs {
            self.flush().await;
        }
    }

    async fn zero(&mut self, range: SectorRange) {
        let (process, durability) = (self.process.clone(), self.durability());
        let change = process.owner.history.borrow_mut().begin(range, None);
        let write = process.owner.model.borrow_mut().begin_zeroes(range);
        process.owner.world.tell(|| format!("client: zero {range}, {durability:?}"));
        let knew = process.knows_loss();
        let done = process.volume.write_zeroes(range, durability).await;
        self.ended((change, write), done, durability, knew);
    }

    fn ended(
        &self,
        (change, write): (super::history::Change, crate::model::Write),
        done: IoResult<()>,
        durability: Durability,
        knew: bool,
    ) {
        let Process { owner, volume, .. } = &*self.process;
        let (range, now) = (change.range, owner.world.handle().now());
        let is_durable = durability == Durability::Durable;
        owner.history.borrow_mut().end(&change, done.is_ok().then_some(now), is_durable);
        match done {
            Ok(()) => {
                assert!(
                    !knew,
                    "a change of {range} is taken although the lock is known to be lost"
                );
                if let Some(cache) = volume.cache().filter(|_| owner.mode.writes_back()) {
                    check_bound(&cache);
                }
                owner.world.tell(|| format!("client: changing {range} has ended"));
                owner.model.borrow_mut().end_write(write, is_durable);
            }
            Err(error) => {
                let mut model = owner.model.borrow_mut();
                model.fail_write(write);
                if is_durable {
                    model.fail_flush();
                }
                drop(model);
                self.process.forgive(error, || format!("changing {range}"));
            }
        }
    }

    async fn flush(&mut self) {
        let Owner { model, history, world, .. } = &self.process.owner;
        let (flush, begun) = (model.borrow_mut().begin_flush(), history.borrow_mut().begin_flush());
        let knew = self.process.knows_loss();
        match self.process.volume.flush().await {
            Ok(()) => {
                assert!(!knew, "a flush is done although the lock is known to be lost");
                model.borrow_mut().end_flush(flush);
                history.borrow_mut().end_flush(begun);
                world.tell(|| "client: a flush has completed".to_owned());
            }
            Err(error) => {
                model.borrow_mut().fail_flush();
                self.process.forgive(error, || "a flush".to_owned());
            }
        }
    }
}
