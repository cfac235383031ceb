//! Crashes at every event of every management command.
//!
//! ```text
//!   the real Service ── registry (bytes, replaced whole)
//!         │
//!      SimEngine: real Volume, real Cache ──┬─> SimDisk (SSD)
//!         │                                 └─> SimDisk (origin)
//!      clients ──> Volume, held to the Model
//! ```
//!
//! A command runs once, clients at work. At every event of the drives, and between any two steps of
//! the control plane, copies of both drives and of the registry are made as a power cut or a kill
//! would leave them. A daemon starts on the copies in a world of its own, and is crashed at the
//! events of its start in the same way. Whatever was cut off: the volume is as before the command or
//! as after it, serves, has lost nothing, and takes every command again. At the openings the SSD is
//! also replaced: by its own older self, by another volume's, by the origin.

mod bay;
mod clients;
mod engine;
mod intruder;
mod no_arrays;
pub(crate) mod points;
pub(crate) mod site;
mod story;

use std::cell::Cell;
use std::rc::Rc;

use voltier_block::Prng;
use voltier_control::protocol::{Request, Response};
use voltier_control::{Service, VolumeState, VolumeStatus};

pub use bay::Drives;
pub use story::Command;

use crate::ledger::Ledger;
use crate::life::count_crash;
use crate::medium::Medium;
use crate::stage;
use bay::{Bay, Left};
use engine::SimEngine;
use points::{Points, Progress, draw_cut};
use story::{Shape, ask, create, finish_jobs, name, shape};

/// What to walk.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The command.
    pub command: Command,
    /// What it runs on.
    pub drives: Drives,
    /// All chance follows from it.
    pub seed: u64,
    /// One event of the command in so many is a crash point: 1 for all, and then by both cuts.
    pub stride: u64,
    /// One event of a recovery in so many is one: 1 for all, 0 for none.
    pub second_stride: u64,
    /// One crash point in so many has its recovery crashed: 1 for all.
    pub second_one_in: u64,
    /// Only this event, to see a failure again.
    pub only: Option<u64>,
}

impl Plan {
    /// Every event by both cuts, and every event of some recoveries: of every tenth when it is
    /// recoveries that are walked. The seed chooses the drives.
    pub fn exhaustive(command: Command, seed: u64) -> Self {
        let drives = Drives::of_seed(seed);
        let second_one_in = if matches!(command, Command::Recover(_)) { 10 } else { 300 };
        Self { command, drives, seed, stride: 1, second_stride: 1, second_one_in, only: None }
    }

    /// The same with one event of the command in `stride`, by one cut each.
    pub fn sampled(command: Command, seed: u64, stride: u64) -> Self {
        let all = Self::exhaustive(command, seed);
        Self { stride, second_stride: 10, second_one_in: 10, ..all }
    }
}

/// What was walked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Events of the command, the steps of the control plane included.
    pub events: u64,
    /// Worlds that were recovered after a crash of the command.
    pub crash_points: u64,
    /// Worlds that were recovered after a crash of a recovery.
    pub second_crash_points: u64,
    /// Starts with an SSD that was not the right one.
    pub intruders: u64,
    /// What happened, in one number.
    pub trace_hash: u64,
}

/// Where a walk is, until this is dropped; a failure leaves it on the ledger.
struct Place {
    ledger: Rc<Ledger>,
    before: (String, Option<u64>),
}

impl Place {
    fn at(ledger: &Rc<Ledger>, place: &str, event: Option<u64>) -> Self {
        let before = ledger.place();
        ledger.at(place.to_owned(), event);
        Self { ledger: ledger.clone(), before }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let (place, event) = std::mem::take(&mut self.before);
            self.ledger.at(place, event);
        }
    }
}

/// Prints where a walk was when it failed.
struct Told(Rc<Ledger>);

impl Drop for Told {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed at: {}", self.0.place().0);
        }
    }
}

/// What crashes of one command share.
struct Walk {
    plan: Plan,
    /// The SSD some openings ago.
    stale: Option<Medium>,
    report: Cell<Report>,
    ledger: Rc<Ledger>,
}

/// Walks a plan; panics when a promise is broken, and prints the place.
pub fn run(plan: &Plan) -> Report {
    let told = Told(Rc::default());
    run_in(plan, &told.0)
}

/// The same, counting in a ledger, which has the place when a promise is broken.
pub fn run_in(plan: &Plan, ledger: &Rc<Ledger>) -> Report {
    let recording = format!("{}, seed {}, recording", plan.command, plan.seed);
    let place = Place::at(ledger, &recording, None);
    let mut bay = Bay::new(&plan.drives, Left::nothing(&plan.drives), plan.seed, ledger);
    let (mut service, stale) = plan.command.lead_up(&bay);
    if let Some(left) = plan.command.crash_before(&bay) {
        bay = Bay::new(&plan.drives, left, plan.seed, ledger);
        bay.crew_size.set(1);
        service = bay.service();
    }
    assert_eq!(shape(&bay.registry()), plan.command.before(), "before the command");
    let walk = Rc::new(Walk {
        plan: plan.clone(),
        stale,
        report: Cell::default(),
        ledger: ledger.clone(),
    });
    let progress = Rc::new(Cell::new(Progress::Begun));
    let first = bay.world.events();
    watch(&walk, &bay, &progress, first);
    plan.command.act(&bay, &mut service, &|| progress.set(Progress::Answered));
    bay.world.unwatch();
    assert_eq!(shape(&bay.registry()), plan.command.after(), "after the command");
    let events = bay.world.events() - first;
    if bay.volume.borrow().is_some() || plan.command.after().flatten().is_none() {
        bay.check_all("after the command");
    }
    service.stop();
    bay.check_for_leaks();
    drop(place);
    let mut report = walk.report.get();
    (report.events, report.trace_hash) = (events, bay.world.trace_hash());
    report
}

/// Sets the crash points of the command.
fn watch(walk: &Rc<Walk>, bay: &Rc<Bay>, progress: &Rc<Cell<Progress>>, first: u64) {
    let (walk, progress, weak) = (walk.clone(), progress.clone(), Rc::downgrade(bay));
    bay.world.watch(move |event| {
        let Some(bay) = weak.upgrade() else { return };
        let (plan, event) = (&walk.plan, event - first);
        let Plan { seed, stride, only, .. } = *plan;
        let (cuts, mut prng) = Points { seed, stride, only }.cuts_at(event);
        for cut in cuts {
            let contents = bay.model.borrow().contents();
            let left = bay.left_by(cut, &mut prng);
            let place = format!("{}, seed {}, event {event}, {cut:?}", plan.command, plan.seed);
            let goes_on = prng.below(plan.second_one_in) == 0;
            walk.count(|report| report.crash_points += 1);
            count_crash(&walk.ledger, stage::Crash::of(cut));
            let crash = Crash { left, progress: progress.get(), place, event, goes_on };
            walk.replace_the_ssd(&crash, &mut prng);
            walk.recover(crash, &mut prng);
            // No copy that a crash left is there any more: what was written to them neither.
            bay.model.borrow().forget_contents_since(contents);
        }
    });
}

/// A crash that is to be recovered from.
struct Crash {
    left: Left,
    progress: Progress,
    place: String,
    /// The event of the command.
    event: u64,
    /// Whether the recovery is crashed as well.
    goes_on: bool,
}

impl Walk {
    fn count(&self, change: impl FnOnce(&mut Report)) {
        let mut report = self.report.get();
        change(&mut report);
        self.report.set(report);
    }

    /// Starts a daemon on what a crash left, and holds it to everything that is promised.
    fn recover(self: &Rc<Self>, crash: Crash, prng: &mut Prng) {
        let place = Place::at(&self.ledger, &crash.place, Some(crash.event));
        let Crash { left, progress, event, .. } = crash;
        let bay = Bay::new(&self.plan.drives, left, prng.next_u64(), &self.ledger);
        if crash.goes_on && self.plan.second_stride > 0 {
            self.watch_recovery(&bay, progress, (crash.place, event));
        }
        let mut service = bay.service();
        service.start(false);
        bay.step();
        self.check_served(&bay, &mut service);
        bay.check_all("after the crash");
        if prng.one_in(2) && bay.volume.borrow().is_some() {
            bay.start_crew(1 + prng.below(2));
            bay.pass(1_000_000);
            if prng.one_in(2) {
                bay.stop_crew();
            }
        }
        finish_jobs(&mut service);
        bay.step();
        bay.world.unwatch();
        bay.stop_crew();
        let found = shape(&bay.registry());
        self.check_shape(&found, progress);
        self.check_owner(&bay);
        bay.check_all("after the recovery");
        self.live_on(&bay, service, found, prng);
        bay.check_for_leaks();
        drop(place);
    }

    /// Sets the crash points of a recovery.
    fn watch_recovery(
        self: &Rc<Self>,
        bay: &Rc<Bay>,
        progress: Progress,
        (place, event): (String, u64),
    ) {
        let (walk, weak) = (self.clone(), Rc::downgrade(bay));
        bay.world.watch(move |second| {
            let Some(bay) = weak.upgrade() else { return };
            if second % walk.plan.second_stride != 0 {
                return;
            }
            let mut prng = Prng::new(walk.plan.seed ^ second.wrapping_mul(0x9e37_79b9));
            let cut = draw_cut(&mut prng);
            let contents = bay.model.borrow().contents();
            let left = bay.left_by(cut, &mut prng);
            let place = format!("{place}, then event {second}, {cut:?}");
            walk.count(|report| report.second_crash_points += 1);
            count_crash(&walk.ledger, stage::Crash::of(cut));
            walk.recover(Crash { left, progress, place, event, goes_on: false }, &mut prng);
            bay.model.borrow().forget_contents_since(contents);
        });
    }

    /// What is on record is served, and nothing is wrong with it.
    fn check_served(&self, bay: &Bay, service: &mut Service<SimEngine>) {
        if bay.registry().volumes().is_empty() {
            assert!(bay.volume.borrow().is_none(), "a volume that is not on record is open");
            return;
        }
        let status = show(service);
        assert_eq!(status.error, "", "the volume does not come back as it was");
        let is_served = matches!(status.state, VolumeState::Running | VolumeState::Draining);
        assert!(is_served, "{:?}", status.state);
    }

    /// The command took place, or it did not.
    fn check_shape(&self, found: &Shape, progress: Progress) {
        let command = self.plan.command;
        let is_after = *found == command.after();
        match progress {
            Progress::Answered => assert!(is_after, "answered, and undone: {found:?}"),
            Progress::Begun => {
                assert!(is_after || *found == command.before(), "neither way: {found:?}");
            }
        }
    }

    /// A cache in front is the one on record; a volume without one on record has none.
    fn check_owner(&self, bay: &Bay) {
        let registry = bay.registry();
        let recorded = registry.find(&name()).and_then(|record| record.cache.as_ref());
        let in_front = bay.volume.borrow().as_ref().is_some_and(|it| it.cache().is_some());
        assert_eq!(in_front, recorded.is_some(), "the cache in front is not the one on record");
    }

    /// What the recovered daemon is asked for: whatever it is, it works, and nothing is lost.
    fn live_on(
        &self,
        bay: &Rc<Bay>,
        mut service: Service<SimEngine>,
        found: Shape,
        prng: &mut Prng,
    ) {
        let mut found = found;
        if found == self.plan.command.before() && prng.one_in(2) {
            self.plan.command.again(bay, &mut service);
            found = shape(&bay.registry());
            assert_eq!(found, self.plan.command.after(), "asked for again");
        }
        if prng.one_in(2) {
            service.stop();
            bay.check_for_leaks();
            service = bay.service();
            service.start(false);
            self.check_served(bay, &mut service);
            bay.check_all("after a stop in order");
        }
        if prng.one_in(2) {
            if found.is_none() {
                self.refuse_swapped(bay, &mut service);
                ask(bay, &mut service, create(Some(&Default::default())));
                bay.check_all("made again");
            }
            ask(bay, &mut service, Request::Delete { name: name(), flush: true });
            bay.check_all("the plain origin");
        }
        service.stop();
    }
}

/// What `voltier show` says of the volume.
fn show(service: &mut Service<SimEngine>) -> VolumeStatus {
    match service.handle(Request::Show { name: Some(name()) }) {
        Response::Volume { volume } => *volume,
        other => panic!("{other:?}"),
    }
}
