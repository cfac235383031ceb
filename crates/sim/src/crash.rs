//! Crashes at the events of a recorded workload.
//!
//! The workload runs once. At each chosen event the drives are copied as a power cut (or a kill of the
//! process) would leave them. The model is copied with them. Then, in a world of its own, the cache is
//! opened on the copies. The test reads every sector, again and again, while the cache destages, serves,
//! drains, restarts. That life may be cut short in the same way, and what it leaves is checked again.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use voltier_block::Prng;
use voltier_ring::{Executor, NoFiles};

use crate::budget;
use crate::crash_points::CrashPoints;
use crate::fixture::{CacheFixture, Crash, Left};
use crate::ledger::Ledger;
use crate::life::{Start, check_plain, dissolve, reopen_exactly, start};
use crate::rest;
use crate::workload::{MODES, Profile, run_clients};
use crate::world::World;

/// Crashes of crashed worlds' recoveries, at most.
const DEPTH_MAX: u32 = 2;
/// Events of a recovered life among which the next crash falls: opening takes the first 40 or so.
const NEXT_CRASH_EVENTS: u64 = 250;

/// The plan of a sweep.
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

/// The result of a sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Events of the workload.
    pub events: u64,
    /// Worlds that were recovered, crashes of recoveries included.
    pub crash_points: u64,
    /// Everything that happened, in one number.
    pub trace_hash: u64,
}

/// Runs a plan; panics with the place when a promise is broken.
pub fn run(plan: &Plan) -> Report {
    run_in(plan, &Rc::new(Ledger::default()))
}

/// The same, counting in a ledger.
pub fn run_in(plan: &Plan, ledger: &Rc<Ledger>) -> Report {
    budget::note_world();
    let mut executor = Executor::in_virtual_time(NoFiles);
    let world = World::in_ledger(&executor.handle(), plan.seed, ledger);
    let fixture = CacheFixture::new(&world, &plan.profile, Left::new(&plan.profile));
    let points = Rc::new(Cell::new(0));
    executor.block_on(record(world.clone(), fixture, plan.clone(), points.clone()));
    world.unwatch();
    world.close();
    Report { events: world.events(), crash_points: points.get(), trace_hash: world.trace_hash() }
}

/// The life that is recorded: two sessions, a stop in between, the cache taken away at the end.
async fn record(world: World, fixture: Rc<CacheFixture>, plan: Plan, points: Rc<Cell<u64>>) {
    let Plan { profile, .. } = &plan;
    let mode = profile.modes[0];
    let dut = fixture.open(&world, profile, mode).await.expect("a new cache opens");
    run_clients(&dut, profile, plan.warm_up_steps).await;
    fixture.inject(&world, profile);
    fixture.inject_all(profile);
    watch(&world, &fixture, &plan, points);
    run_clients(&dut, profile, profile.steps).await;
    rest::check_checksums(&world, &dut.device);
    if world.below(2) == 0 {
        fixture.stop(&dut).await;
    }
    drop(dut);
    fixture.kill(&world, profile);
    let Start::Cached(dut) = start(&world, &fixture, profile, mode).await else { return };
    run_clients(&dut, profile, profile.steps / 2).await;
    dut.check_all("at the end of the recorded life").await;
    rest::check_checksums(&dut.world, &dut.device);
    dissolve(&dut, &fixture).await;
}

/// Sets the crash points of the recorded life.
fn watch(world: &World, fixture: &Rc<CacheFixture>, plan: &Plan, counted: Rc<Cell<u64>>) {
    let Plan { seed, one_in, only, .. } = *plan;
    let points = CrashPoints { seed, one_in, only };
    let (weak, plan, ledger) = (Rc::downgrade(fixture), plan.clone(), world.ledger().clone());
    world.watch(move |event| {
        let Some(fixture) = weak.upgrade() else { return };
        let Some(mut prng) = points.dice_at(event) else { return };
        let crash = Crash::draw(&mut prng);
        let contents = fixture.model.borrow().contents();
        let left = fixture.left_by(crash, &mut prng);
        ledger.at(format!("seed {}, event {event}, {:?}", plan.seed, crash.ssd), Some(event));
        ledger.count_crash(crash.cut());
        counted.set(counted.get() + verify(left, &plan.profile, prng, &ledger, 0));
        // No copy that the crash left is there any more.
        fixture.model.borrow().forget_contents_since(contents);
        ledger.at(format!("seed {}, recording", plan.seed), None);
    });
}

/// Recovers what a crash left and checks it; the number of worlds this took.
fn verify(left: Left, profile: &Profile, mut prng: Prng, ledger: &Rc<Ledger>, depth: u32) -> u64 {
    budget::note_world();
    let buffers = (left.ssd.is_flushed() && left.origin.is_flushed()).then(rest::Buffers::now);
    let mut executor = Executor::in_virtual_time(NoFiles);
    let world = World::in_ledger(&executor.handle(), prng.next_u64(), ledger);
    let fixture = CacheFixture::new(&world, profile, left);
    let next: Rc<RefCell<Option<Left>>> = Rc::default();
    if depth < DEPTH_MAX && prng.one_in(2) {
        let (weak, next, ledger) = (Rc::downgrade(&fixture), next.clone(), ledger.clone());
        let crash_at = prng.below(NEXT_CRASH_EVENTS);
        let cut_prng = RefCell::new(prng.clone());
        world.watch(move |event| {
            if event == crash_at
                && let Some(fixture) = weak.upgrade()
            {
                let mut prng = cut_prng.borrow_mut();
                let crash = Crash::draw(&mut prng);
                ledger.count_crash(crash.cut());
                next.replace(Some(fixture.left_by(crash, &mut prng)));
            }
        });
    }
    executor.block_on(recover(world.clone(), fixture, profile.clone(), prng.clone()));
    world.unwatch();
    world.close();
    rest::check_tasks(&world, &mut executor);
    drop((world, executor));
    let next = next.borrow_mut().take();
    if let (Some(buffers), None) = (buffers, &next) {
        buffers.check();
    }
    1 + next.map_or(0, |left| {
        prng.next_u64();
        verify(left, profile, prng, ledger, depth + 1)
    })
}

/// The life after a crash.
async fn recover(world: World, fixture: Rc<CacheFixture>, profile: Profile, mut prng: Prng) {
    let mode = *prng.pick(&MODES);
    let dut = match start(&world, &fixture, &profile, mode).await {
        Start::Cached(dut) => dut,
        Start::Plain => return check_plain(&world, &fixture, &profile).await,
        Start::Refused => return,
    };
    dut.check_all("after the crash").await;
    let dut = match prng.below(6) {
        0 => reopen_exactly(dut, &fixture, &profile).await,
        1 => {
            run_clients(&dut, &profile, 12).await;
            dut
        }
        2 => {
            if let Err(error) = dut.device.drain().await {
                dut.forgive(error, "after the crash", || "a drain".to_owned());
            }
            dut
        }
        3 => {
            // Few writes, so that the log goes on just behind where the crash cut it.
            run_clients(&dut, &profile, 1).await;
            dut.device.stop().await.expect("a stop works");
            fixture.kill(&world, &profile);
            match start(&world, &fixture, &profile, mode).await {
                Start::Cached(dut) => dut,
                _ => return,
            }
        }
        4 => {
            world.handle().sleep(20_000_000_000).await;
            dut
        }
        _ => dut,
    };
    dut.check_all("later").await;
    rest::check_checksums(&world, &dut.device);
    if prng.one_in(2) {
        dissolve(&dut, &fixture).await;
    }
    fixture.end_process();
    rest::check_cache(&world, &dut.device).await;
}
