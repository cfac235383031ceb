//! Crashes at the events of a recorded workload.
//!
//! The workload runs once. At each chosen event the drives are copied as a power cut (or a kill of
//! the process) would leave them, and the model with them; then, in a world of its own, the cache is
//! opened on the copies and every sector is read, again and again, while the cache destages, serves,
//! drains, restarts. That life may be cut short in the same way, and what it leaves is checked again.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use voltier_block::{Lba, Prng};
use voltier_cache::{Mode, OpenError, Settings};
use voltier_ring::{Executor, NoFiles};

use crate::budget;
use crate::disk::{Cut, Medium, SimDisk};
use crate::model::Model;
use crate::rest;
use crate::workload::{Bench, MODES, Profile, SimCache, is_in, open, plain_bench, run_clients};
use crate::world::World;

/// Crashes of crashed worlds' recoveries, at most.
const DEPTH_MAX: u32 = 2;
/// Events of a recovered life among which the next crash falls: opening takes the first 40 or so.
const NEXT_CRASH_EVENTS: u64 = 250;

/// What to run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Cache, drives and clients.
    pub profile: Profile,
    /// All chance follows from it.
    pub seed: u64,
    /// One event in so many is a crash point: 1 for all.
    pub one_in: u64,
    /// Steps of each client before the first crash point: to fill the cache.
    pub warm_up_steps: u64,
    /// Only this event, to see a failure again.
    pub only: Option<u64>,
}

/// What was run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Events of the workload.
    pub events: u64,
    /// Worlds that were recovered, crashes of recoveries included.
    pub crash_points: u64,
    /// What happened, in one number.
    pub trace_hash: u64,
}

/// Where a run is: printed when it fails.
#[derive(Clone, Debug)]
struct Place(String);

impl Drop for Place {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed at: {}", self.0);
        }
    }
}

/// What a crash leaves.
struct Left {
    ssd: Medium,
    origin: Medium,
    model: Model,
    generation: u64,
}

/// What is to be copied when a crash point comes.
struct Stage {
    drives: RefCell<(SimDisk, SimDisk)>,
    model: Rc<RefCell<Model>>,
    /// The last generation that a start has told its caller.
    generation: Cell<u64>,
    /// Everything was written back, and the label is being erased.
    dissolving: Cell<bool>,
}

impl Stage {
    fn new(world: &World, profile: &Profile, left: Left) -> Rc<Self> {
        let ssd = SimDisk::new(world, &profile.ssd, left.ssd);
        let origin = SimDisk::new(world, &profile.origin, left.origin);
        Rc::new(Self {
            drives: RefCell::new((ssd, origin)),
            model: Rc::new(RefCell::new(left.model)),
            generation: Cell::new(left.generation),
            dissolving: Cell::new(false),
        })
    }

    fn left_by(&self, cut: Cut, prng: &mut Prng) -> Left {
        let (ssd, origin) = self.drives.borrow().clone();
        let mut model = self.model.borrow().clone();
        match cut {
            Cut::Power => model.power_cut(),
            Cut::Kill => model.kill(),
        }
        let generation = self.generation.get();
        Left { ssd: ssd.after(cut, prng), origin: origin.after(cut, prng), model, generation }
    }

    /// Kills the process that serves from the drives, for good: they get another life.
    fn kill(&self, world: &World, profile: &Profile) {
        let left = self.left_by(Cut::Kill, &mut world.prng());
        let ssd = SimDisk::new(world, &profile.ssd, left.ssd);
        let origin = SimDisk::new(world, &profile.origin, left.origin);
        self.drives.replace((ssd, origin));
        self.model.replace(left.model);
    }

    async fn open(
        &self,
        world: &World,
        profile: &Profile,
        mode: Mode,
    ) -> Result<Rc<Bench<SimCache>>, OpenError> {
        let drives = self.drives.borrow().clone();
        let settings = Settings { mode, ordered: profile.ordered, ..Settings::default() };
        let (device, generation) = open(world, &drives, settings, self.generation.get()).await?;
        self.generation.set(generation);
        Ok(Rc::new(Bench {
            world: world.clone(),
            model: self.model.clone(),
            device,
            windows: profile.windows(),
        }))
    }
}

fn draw_cut(prng: &mut Prng) -> Cut {
    if prng.one_in(4) { Cut::Kill } else { Cut::Power }
}

/// Runs a plan; panics with the place when a promise is broken.
pub fn run(plan: &Plan) -> Report {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let world = World::new(&executor.handle(), plan.seed);
    let (ssd, origin) = plan.profile.format();
    let left = Left { ssd, origin, model: plan.profile.model(), generation: 0 };
    let stage = Stage::new(&world, &plan.profile, left);
    let points = Rc::new(Cell::new(0));
    let life = record(world.clone(), stage, plan.clone(), points.clone());
    let place = Place(format!("seed {}, recording", plan.seed));
    executor.block_on(life);
    drop(place);
    Report { events: world.events(), crash_points: points.get(), trace_hash: world.trace_hash() }
}

/// The life that is recorded: two sessions, a stop in between, the cache taken away at the end.
async fn record(world: World, stage: Rc<Stage>, plan: Plan, points: Rc<Cell<u64>>) {
    let Plan { profile, .. } = &plan;
    let mode = profile.modes[0];
    let bench = stage.open(&world, profile, mode).await.expect("a new cache opens");
    run_clients(&bench, profile, plan.warm_up_steps).await;
    watch(&world, &stage, &plan, points);
    run_clients(&bench, profile, profile.steps).await;
    if world.below(2) == 0 {
        bench.device.stop().await.expect("a stop works");
    } else {
        bench.device.kill();
        stage.kill(&world, profile);
    }
    drop(bench);
    let bench = stage.open(&world, profile, mode).await.expect("the cache comes back");
    run_clients(&bench, profile, profile.steps / 2).await;
    bench.check_all("at the end of the recorded life").await;
    rest::check_checksums(&bench.device);
    dissolve(&bench, &stage).await;
}

/// Sets the crash points of the recorded life.
fn watch(world: &World, stage: &Rc<Stage>, plan: &Plan, points: Rc<Cell<u64>>) {
    let (stage, plan) = (stage.clone(), plan.clone());
    world.watch(move |event| {
        // The dice of a crash point are its own: it is the same when it is run alone.
        let mut prng = Prng::new(plan.seed.wrapping_mul(0x1_0000_01b3) ^ event);
        let chosen = prng.one_in(plan.one_in);
        if plan.only.map_or(!chosen, |only| only != event) {
            return;
        }
        let cut = draw_cut(&mut prng);
        let left = stage.left_by(cut, &mut prng);
        let place = format!("seed {}, event {event}, {cut:?}", plan.seed);
        let dissolving = stage.dissolving.get();
        points.set(points.get() + verify(left, &plan.profile, prng, place, 0, dissolving));
    });
}

/// Recovers what a crash left and checks it; the number of worlds this took.
fn verify(
    left: Left,
    profile: &Profile,
    mut prng: Prng,
    place: String,
    depth: u32,
    dissolving: bool,
) -> u64 {
    budget::note_world();
    let buffers = (left.ssd.is_flushed() && left.origin.is_flushed()).then(rest::Buffers::now);
    let mut executor = Executor::in_virtual_time(NoFiles);
    let world = World::new(&executor.handle(), prng.next_u64());
    let stage = Stage::new(&world, profile, left);
    let next: Rc<RefCell<Option<(Left, bool, String)>>> = Rc::default();
    if depth < DEPTH_MAX && prng.one_in(2) {
        let (stage, next, place) = (stage.clone(), next.clone(), place.clone());
        let crash_at = prng.below(NEXT_CRASH_EVENTS);
        let cut_prng = RefCell::new(prng.clone());
        world.watch(move |event| {
            if event == crash_at {
                let mut prng = cut_prng.borrow_mut();
                let cut = draw_cut(&mut prng);
                let left = stage.left_by(cut, &mut prng);
                let place = format!("{place}, then event {event}, {cut:?}");
                next.replace(Some((left, dissolving || stage.dissolving.get(), place)));
            }
        });
    }
    let guard = Place(place);
    let life = recover(world.clone(), stage, profile.clone(), prng.clone(), dissolving);
    executor.block_on(life);
    world.unwatch();
    rest::check_tasks(&mut executor);
    drop((world, executor));
    let next = next.borrow_mut().take();
    if let (Some(buffers), None) = (buffers, &next) {
        buffers.check();
    }
    drop(guard);
    1 + next.map_or(0, |(left, dissolving, place)| {
        prng.next_u64();
        verify(left, profile, prng, place, depth + 1, dissolving)
    })
}

/// The life after a crash.
async fn recover(
    world: World,
    stage: Rc<Stage>,
    profile: Profile,
    mut prng: Prng,
    dissolving: bool,
) {
    let mode = *prng.pick(&MODES);
    let bench = match stage.open(&world, &profile, mode).await {
        Ok(bench) => bench,
        Err(OpenError::NotACache) if dissolving => {
            return check_plain(&world, &stage, &profile).await;
        }
        Err(error) => panic!("the cache does not come back: {error}"),
    };
    bench.check_all("after the crash").await;
    let bench = match prng.below(6) {
        0 => reopen_exactly(bench, &stage, &profile).await,
        1 => {
            run_clients(&bench, &profile, 12).await;
            bench
        }
        2 => {
            bench.device.drain().await.expect("a drain works");
            bench
        }
        3 => {
            // Few writes, so that the log goes on just behind where the crash cut it.
            run_clients(&bench, &profile, 1).await;
            bench.device.stop().await.expect("a stop works");
            stage.open(&world, &profile, mode).await.expect("the cache comes back")
        }
        4 => {
            world.handle().sleep(20_000_000_000).await;
            bench
        }
        _ => bench,
    };
    bench.check_all("later").await;
    rest::check_checksums(&bench.device);
    if prng.one_in(2) {
        dissolve(&bench, &stage).await;
    } else {
        bench.device.kill();
        rest::check_cache(&world, &bench.device).await;
    }
}

/// Writes everything back, takes the cache away and checks the plain origin.
async fn dissolve(bench: &Rc<Bench<SimCache>>, stage: &Stage) {
    let settings = Settings { mode: Mode::PassThrough, ..bench.device.settings() };
    bench.device.configure(settings).expect("a mode switch works");
    bench.device.drain().await.expect("a drain works");
    assert_eq!(bench.device.status().lines_dirty, 0, "dirty lines after a drain");
    stage.dissolving.set(true);
    bench.device.dissolve().await.expect("the label goes");
    let drives = stage.drives.borrow().clone();
    assert!(matches!(SimCache::probe(&drives.0).await, Ok(None)), "the label is still there");
    rest::check_cache(&bench.world, &bench.device).await;
    plain_bench(bench, drives.1).check_all("the plain origin").await;
}

async fn check_plain(world: &World, stage: &Stage, profile: &Profile) {
    let device = stage.drives.borrow().1.clone();
    let (world, model) = (world.clone(), stage.model.clone());
    let bench = Bench { world, model, device, windows: profile.windows() };
    bench.check_all("the plain origin after a crash").await;
}

/// Dirty is exactly what it must be: every sector that the origin has otherwise is listed as dirty
/// after a kill, and nothing else than what was written is. Ends with the cache open again.
async fn reopen_exactly(
    bench: Rc<Bench<SimCache>>,
    stage: &Stage,
    profile: &Profile,
) -> Rc<Bench<SimCache>> {
    let world = bench.world.clone();
    let mut newer = Vec::new();
    let origin = stage.drives.borrow().1.clone();
    for sector in bench.windows.iter().flat_map(|it| it.start.0..it.end().0) {
        let mut found = [0; 512];
        origin.peek(Lba(sector), &mut found);
        if bench.model.borrow().differs(sector, &found) {
            newer.push(sector);
        }
    }
    bench.device.kill();
    let dirty = bench.device.lost_ranges(usize::MAX);
    for sector in newer {
        assert!(is_in(&dirty, sector), "sector {sector} is newer than the origin, but not dirty");
    }
    let line_sectors = profile.line_bytes / 512;
    for line in dirty.iter().flat_map(|it| it.start.0 / line_sectors..it.end().0 / line_sectors) {
        let model = bench.model.borrow();
        let mut sectors = line * line_sectors..(line + 1) * line_sectors;
        assert!(sectors.any(|it| model.is_touched(it)), "line {line}, never written, is dirty");
    }
    stage.kill(&world, profile);
    stage.open(&world, profile, Mode::WriteBack).await.expect("the cache comes back")
}
