//! Volumes as the subject of a sweep.

use std::fmt::Display;
use std::rc::Rc;

use voltier_block::Prng;
use voltier_control::protocol::Request;
use voltier_control::{Desired, Registry, Service, VolumeState};

use super::command::{Shape, ask, create, name, shape, show};
use super::engine::{SimEngine, service};
use super::fixture::{Left, VolumeFixture};
use super::plan::Plan;
use super::wrong_ssd::{refuse_swapped, replace_the_ssd};
use crate::ledger::Ledger;
use crate::medium::{Cut, Medium};
use crate::sweep::daemon::finish_jobs;
use crate::sweep::harness::{self, Crash, Fixture, Report, Subject, Sweep};
use crate::sweep::points::{Points, Progress, Second};

/// Prints where a sweep was when it failed.
struct Told(Rc<Ledger>);

impl Drop for Told {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed at: {}", self.0.place().0);
        }
    }
}

/// Sweeps a plan; panics when a promise is broken, and prints the place.
pub fn run(plan: &Plan) -> Report {
    let told = Told(Rc::default());
    run_in(plan, &told.0)
}

/// The same, counting in a ledger, which has the place when a promise is broken.
pub fn run_in(plan: &Plan, ledger: &Rc<Ledger>) -> Report {
    harness::run(Volumes { plan: plan.clone(), stale: None }, ledger)
}

/// The commands of volumes.
struct Volumes {
    plan: Plan,
    /// The SSD some openings ago.
    stale: Option<Medium>,
}

impl Subject for Volumes {
    type Fixture = VolumeFixture;
    type Left = Left;
    type Engine = SimEngine;
    type Shape = Shape;

    fn command(&self) -> impl Display {
        self.plan.command
    }

    fn points(&self) -> Points {
        let Plan { seed, stride, only, .. } = self.plan;
        Points { seed, stride, only }
    }

    fn fixture(&self, left: Option<Left>, seed: u64, ledger: &Rc<Ledger>) -> Rc<VolumeFixture> {
        let drives = &self.plan.drives;
        let left = left.unwrap_or_else(|| Left::nothing(drives));
        VolumeFixture::new(drives, left, seed, ledger)
    }

    fn service(fixture: &Rc<VolumeFixture>) -> Service<SimEngine> {
        service(fixture)
    }

    fn shape(registry: &Registry) -> Shape {
        shape(registry)
    }

    fn lead_up(&mut self, fixture: &Rc<VolumeFixture>) -> Service<SimEngine> {
        let (service, stale) = self.plan.command.lead_up(fixture);
        self.stale = stale;
        service
    }

    fn crash_before(&self, fixture: &VolumeFixture) -> Option<Left> {
        self.plan.command.crash_before(fixture)
    }

    fn act(
        &self,
        fixture: &Rc<VolumeFixture>,
        service: &mut Service<SimEngine>,
        answered: &dyn Fn(),
    ) {
        self.plan.command.act(fixture, service, answered);
    }

    fn check_command(&self, fixture: &VolumeFixture, before: &Shape, after: &Shape) {
        let command = self.plan.command;
        assert_eq!(*before, command.before(), "before the command");
        assert_eq!(*after, command.after(), "after the command");
        if fixture.volume.borrow().is_some() || command.after().flatten().is_none() {
            fixture.check_all("after the command");
        }
    }

    fn crash(&self, fixture: &VolumeFixture, cut: Cut, prng: &mut Prng) -> (Left, bool) {
        let left = fixture.left_by(cut, prng);
        (left, prng.below(self.plan.second_one_in) == 0)
    }

    fn before_recovery(&self, sweep: &Sweep<Self>, crash: &Crash<Left>, prng: &mut Prng) {
        let ssds = replace_the_ssd(&self.plan, self.stale.as_ref(), &sweep.ledger, crash, prng);
        sweep.count(|report| report.wrong_ssds += ssds);
    }

    fn second(&self, _: &mut Prng) -> Option<Second> {
        let Plan { seed, second_stride: stride, .. } = self.plan;
        (stride > 0).then_some(Second::Every { stride, seed })
    }

    fn prepare(&self, _: &VolumeFixture, _: &mut Prng) {}

    fn check_served(&self, fixture: &VolumeFixture, service: &mut Service<SimEngine>) {
        if fixture.registry().volumes().is_empty() {
            assert!(fixture.volume.borrow().is_none(), "a volume that is not on record is open");
            return;
        }
        if fixture.registry().volumes()[0].desired == Desired::Stopped {
            assert!(fixture.volume.borrow().is_none(), "a stopped volume is open");
            assert_eq!(show(service).state, VolumeState::Stopped);
            service.handle(Request::Start { name: name() });
        }
        let status = show(service);
        assert_eq!(status.error, "", "the volume does not come back as it was");
        let is_served = matches!(status.state, VolumeState::Running | VolumeState::Draining);
        assert!(is_served, "{:?}", status.state);
    }

    fn use_recovered(
        &self,
        fixture: &VolumeFixture,
        service: &mut Service<SimEngine>,
        prng: &mut Prng,
    ) {
        if prng.one_in(2) && fixture.volume.borrow().is_some() {
            fixture.start_clients(1 + prng.below(2));
            fixture.pass(1_000_000);
            if prng.one_in(2) {
                fixture.stop_clients();
            }
        }
        finish_jobs(service);
        fixture.step();
        fixture.world.unwatch();
        fixture.stop_clients();
    }

    fn check_recovered(
        &self,
        fixture: &VolumeFixture,
        _: &mut Service<SimEngine>,
        (before, found): (&Shape, &Shape),
        progress: Progress,
    ) {
        let is_after = *found == self.plan.command.after();
        match progress {
            Progress::Answered => assert!(is_after, "answered, and undone: {found:?}"),
            Progress::Begun => assert!(is_after || found == before, "neither way: {found:?}"),
        }
        let registry = fixture.registry();
        let recorded = registry.find(&name()).and_then(|record| record.cache.as_ref());
        let in_front = fixture.volume.borrow().as_ref().is_some_and(|it| it.cache().is_some());
        assert_eq!(in_front, recorded.is_some(), "the cache in front is not the one on record");
    }

    fn can_repeat(&self) -> bool {
        true
    }

    fn repeat(
        &self,
        fixture: &Rc<VolumeFixture>,
        service: &mut Service<SimEngine>,
        _: &Shape,
    ) -> Shape {
        self.plan.command.again(fixture, service);
        let found = shape(&fixture.registry());
        assert_eq!(found, self.plan.command.after(), "asked for again");
        found
    }

    fn make_again(
        &self,
        sweep: &Sweep<Self>,
        fixture: &VolumeFixture,
        service: &mut Service<SimEngine>,
        found: &Shape,
        _: &mut Prng,
    ) {
        if found.is_none() {
            let ssds = refuse_swapped(&sweep.ledger, fixture, service);
            sweep.count(|report| report.wrong_ssds += ssds);
            ask(fixture, service, create(Some(&Default::default())));
            fixture.check_all("made again");
        }
        ask(fixture, service, Request::Delete { name: name(), flush: true });
        fixture.check_all("the plain origin");
    }
}
