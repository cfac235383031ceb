//! Crashes at every event of every management command of arrays, as [`manage`](crate::manage) does it for
//! volumes: the real `Service` over real arrays on simulated drives.
//!
//! A command runs once, clients at work on the array. At every event of a drive, and between any two steps of
//! the control plane, drives and registry are copied as a power cut or a kill would leave them. A daemon
//! starts on the copies: the array is as before the command or as after it, serves, has lost nothing, has no
//! member missing that the command did not take out, and takes every command again.

mod bay;
mod engine;
mod story;

use std::cell::Cell;
use std::rc::Rc;

use voltier_block::Prng;
use voltier_control::protocol::ArrayRequest;
use voltier_control::{ArrayState, Service};

pub use story::ArrayCommand;

use crate::budget;
use crate::ledger::Ledger;
use crate::life::count_crash;
use crate::manage::points::{Points, Progress, draw_cut};
use crate::stage::Crash;
use bay::{Bay, Left};
use engine::WalkEngine;
use story::{Shape, ask, create, level_of, name, shape, show};

/// One crash point in so many has its recovery crashed as well, at some event.
const SECOND_ONE_IN: u64 = 6;
/// Events of a recovery among which that falls.
const SECOND_EVENTS: u64 = 400;

/// What to walk.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The command.
    pub command: ArrayCommand,
    /// All chance follows from it; level and blocks too.
    pub seed: u64,
    /// One event of the command in so many is a crash point: 1 for all, and then by both cuts.
    pub stride: u64,
    /// Only this event, to see a failure again.
    pub only: Option<u64>,
}

/// What crashes of one command share.
struct Walk {
    plan: Plan,
    before: Shape,
    ledger: Rc<Ledger>,
}

/// A crash that is to be recovered from.
struct Crashed {
    left: Left,
    progress: Progress,
    place: String,
    event: u64,
    goes_on: bool,
}

/// Walks a plan, counting in a ledger, which has the place when a promise is broken; the crash points.
///
/// # Panics
/// When a promise is broken.
pub fn run_in(plan: &Plan, ledger: &Rc<Ledger>) -> u64 {
    let (command, seed) = (plan.command, plan.seed);
    ledger.at(format!("{command}, seed {seed}, recording"), None);
    let mut bay = Bay::new(Left::nothing(seed), (seed, seed), ledger);
    let mut service = command.lead_up(&bay, seed);
    if let Some(left) = command.crash_before(&bay) {
        bay = Bay::new(left, (seed, seed), ledger);
        bay.crew_size.set(1);
        service = bay.service();
    }
    let before = shape(&bay.registry());
    let walk = Rc::new(Walk { plan: plan.clone(), before, ledger: ledger.clone() });
    let progress = Rc::new(Cell::new(Progress::Begun));
    let points = watch(&walk, &bay, &progress);
    command.act(&bay, &mut service, seed, &|| progress.set(Progress::Answered));
    bay.world.unwatch();
    let after = shape(&bay.registry());
    let has_changed = after != walk.before;
    assert_eq!(has_changed, command.changes_shape(), "from {:?} to {after:?}", walk.before);
    bay.check_all("after the command");
    service.stop();
    bay.check_for_leaks();
    points.get()
}

/// Sets the crash points of the command; their number.
fn watch(walk: &Rc<Walk>, bay: &Rc<Bay>, progress: &Rc<Cell<Progress>>) -> Rc<Cell<u64>> {
    let (walk, progress, weak) = (walk.clone(), progress.clone(), Rc::downgrade(bay));
    let (points, first) = (Rc::new(Cell::new(0)), bay.world.events());
    let counted = points.clone();
    bay.world.watch(move |event| {
        let Some(bay) = weak.upgrade() else { return };
        let (plan, event) = (&walk.plan, event - first);
        let Plan { seed, stride, only, .. } = *plan;
        let (cuts, mut prng) = Points { seed, stride, only }.cuts_at(event);
        if cuts.is_empty() {
            return;
        }
        for cut in cuts {
            let contents = bay.model.borrow().contents();
            let place = format!("{}, seed {}, event {event}, {cut:?}", plan.command, plan.seed);
            let goes_on = prng.below(SECOND_ONE_IN) == 0;
            let left = bay.left_by(cut, &mut prng);
            count_crash(&walk.ledger, Crash::of(cut));
            walk.ledger.count(|counts| counts.array_points += 1);
            counted.set(counted.get() + 1);
            walk.recover(
                Crashed { left, progress: progress.get(), place, event, goes_on },
                &mut prng,
            );
            bay.model.borrow().forget_contents_since(contents);
        }
        walk.ledger.at(format!("{}, seed {}, recording", plan.command, plan.seed), None);
    });
    points
}

impl Walk {
    /// Starts a daemon on what a crash left, and holds it to everything that is promised.
    fn recover(self: &Rc<Self>, crashed: Crashed, prng: &mut Prng) {
        budget::note_world();
        let Crashed { left, progress, place, event, goes_on } = crashed;
        self.ledger.at(place.clone(), Some(event));
        let seed = self.plan.seed;
        let bay = Bay::new(left, (seed, prng.next_u64()), &self.ledger);
        let next = Rc::new(Cell::new(None));
        if goes_on {
            let (weak, next, at) = (Rc::downgrade(&bay), next.clone(), prng.below(SECOND_EVENTS));
            let dice = std::cell::RefCell::new(Prng::new(prng.next_u64()));
            bay.world.watch(move |second| {
                let Some(bay) = weak.upgrade().filter(|_| second == at) else { return };
                let mut dice = dice.borrow_mut();
                let cut = draw_cut(&mut dice);
                next.set(Some((bay.left_by(cut, &mut dice), cut, second)));
            });
        }
        bay.crew_size.set(prng.below(3));
        let mut service = bay.service();
        service.start(false);
        bay.step();
        self.check_served(&bay, &mut service);
        bay.check_all("after the crash");
        bay.finish();
        service.notice_array_events();
        let found = shape(&bay.registry());
        self.check_shape(&found, progress);
        self.check_members(&bay, &mut service, progress);
        bay.stop_crew();
        bay.check_all("after the recovery");
        bay.world.unwatch();
        self.live_on(&bay, service, found, prng);
        bay.check_for_leaks();
        drop(bay);
        if let Some((left, cut, second)) = next.take() {
            count_crash(&self.ledger, Crash::of(cut));
            let place = format!("{place}, then event {second}, {cut:?}");
            self.recover(Crashed { left, progress, place, event, goes_on: false }, prng);
        }
    }

    /// What is on record is served, and nothing is wrong with it.
    fn check_served(&self, bay: &Bay, service: &mut Service<WalkEngine>) {
        let is_on_record = shape(&bay.registry()).is_some();
        if is_on_record {
            let status = show(service);
            assert_eq!(status.error, "", "the array does not come back as it was");
            assert_ne!(status.state, ArrayState::Failed);
        }
        assert_eq!(bay.array().is_some(), is_on_record, "what is open is not what is on record");
    }

    /// The command took place, or it did not.
    fn check_shape(&self, found: &Shape, progress: Progress) {
        let is_before = *found == self.before;
        if self.plan.command.changes_shape() && progress == Progress::Answered {
            assert!(!is_before, "answered, and undone: {found:?}");
        } else if !self.plan.command.changes_shape() {
            assert!(is_before, "neither way: {found:?}");
        }
    }

    /// Nobody is missing whom the command did not take out.
    fn check_members(&self, bay: &Bay, service: &mut Service<WalkEngine>, progress: Progress) {
        if bay.array().is_none() {
            return;
        }
        let status = show(service);
        let missing = status.members.iter().filter(|member| member.state != "online").count();
        let command = self.plan.command;
        let is_replaced = matches!(command, ArrayCommand::ReplaceLost | ArrayCommand::ReplaceBack);
        let may_miss = if is_replaced && progress == Progress::Answered {
            0
        } else {
            usize::from(command.may_miss_one())
        };
        let states: Vec<_> = status.members.iter().map(|it| (&it.path, &it.state)).collect();
        assert!(missing <= may_miss, "{missing} members are missing: {states:?}");
        if command == ArrayCommand::Fail && progress == Progress::Answered {
            assert_eq!(missing, 1, "a member that was taken out is back");
        }
    }

    /// What the recovered daemon is asked for: whatever it is, it works, and nothing is lost.
    fn live_on(
        &self,
        bay: &Rc<Bay>,
        mut service: Service<WalkEngine>,
        found: Shape,
        prng: &mut Prng,
    ) {
        let (command, seed) = (self.plan.command, self.plan.seed);
        if found == self.before && command.changes_shape() && prng.one_in(2) {
            command.again(bay, &mut service, seed);
            assert_ne!(shape(&bay.registry()), self.before, "asked for again");
            bay.check_all("asked for again");
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
            bay.stop_crew();
            if shape(&bay.registry()).is_some() {
                let erase = prng.one_in(2);
                ask(bay, &mut service, ArrayRequest::Delete { name: name(), erase });
            }
            ask(bay, &mut service, create(level_of(seed), None));
            bay.check_all("made again");
        }
        service.stop();
    }
}
