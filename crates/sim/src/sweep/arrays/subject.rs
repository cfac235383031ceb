//! Arrays as the subject of a sweep.

use std::fmt::Display;
use std::rc::Rc;

use voltier_block::Prng;
use voltier_control::protocol::ArrayRequest;
use voltier_control::{ArrayState, Registry, Service};

use super::command::{ArrayCommand, Shape, ask, create, level_of, name, shape, show};
use super::engine::{ArraySimEngine, service};
use super::fixture::{ArrayDaemonFixture, Left};
use crate::ledger::Ledger;
use crate::medium::Cut;
use crate::sweep::harness::{self, Crash, Fixture, Report, Subject, Sweep};
use crate::sweep::points::{Points, Progress, Second};

/// One crash point in so many has its recovery crashed as well, at some event.
const SECOND_ONE_IN: u64 = 6;
/// Events of a recovery among which that falls.
const SECOND_EVENTS: u64 = 400;

/// The plan of a sweep.
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

/// Sweeps a plan, counting in a ledger, which has the place when a promise is broken.
///
/// # Panics
/// When a promise is broken.
pub fn run_in(plan: &Plan, ledger: &Rc<Ledger>) -> Report {
    harness::run(Arrays { plan: plan.clone() }, ledger)
}

/// The commands of arrays.
struct Arrays {
    plan: Plan,
}

impl Arrays {
    /// The command took place, or it did not.
    fn check_shape(&self, before: &Shape, found: &Shape, progress: Progress) {
        let is_before = found == before;
        if self.plan.command.changes_shape() && progress == Progress::Answered {
            assert!(!is_before, "answered, and undone: {found:?}");
        } else if !self.plan.command.changes_shape() {
            assert!(is_before, "neither way: {found:?}");
        }
    }

    /// A spare is on record and waits in the array, or it is neither.
    fn check_spares(&self, fixture: &ArrayDaemonFixture, progress: Progress) {
        let Some(array) = fixture.array() else { return };
        let on_record = fixture.registry().find_array(&name()).map_or(0, |it| it.spares.len());
        assert_eq!(array.spare_count(), on_record, "spares that wait, and those on record");
        if progress == Progress::Answered {
            match self.plan.command {
                ArrayCommand::AddSpare => assert_eq!(on_record, 1, "the spare is gone"),
                ArrayCommand::RemoveSpare => assert_eq!(on_record, 0, "the spare is back"),
                _ => {}
            }
        }
    }

    /// Checks that no member is missing but those that the command took out.
    fn check_members(
        &self,
        fixture: &ArrayDaemonFixture,
        service: &mut Service<ArraySimEngine>,
        progress: Progress,
    ) {
        if fixture.array().is_none() {
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
}

impl Subject for Arrays {
    type Fixture = ArrayDaemonFixture;
    type Left = Left;
    type Engine = ArraySimEngine;
    type Shape = Shape;

    fn command(&self) -> impl Display {
        self.plan.command
    }

    fn points(&self) -> Points {
        let Plan { seed, stride, only, .. } = self.plan;
        Points { seed, stride, only }
    }

    fn fixture(
        &self,
        left: Option<Left>,
        seed: u64,
        ledger: &Rc<Ledger>,
    ) -> Rc<ArrayDaemonFixture> {
        let left = left.unwrap_or_else(|| Left::nothing(self.plan.seed));
        ArrayDaemonFixture::new(left, (self.plan.seed, seed), ledger)
    }

    fn service(fixture: &Rc<ArrayDaemonFixture>) -> Service<ArraySimEngine> {
        service(fixture)
    }

    fn shape(registry: &Registry) -> Shape {
        shape(registry)
    }

    fn lead_up(&mut self, fixture: &Rc<ArrayDaemonFixture>) -> Service<ArraySimEngine> {
        self.plan.command.lead_up(fixture, self.plan.seed)
    }

    fn crash_before(&self, fixture: &ArrayDaemonFixture) -> Option<Left> {
        self.plan.command.crash_before(fixture)
    }

    fn act(
        &self,
        fixture: &Rc<ArrayDaemonFixture>,
        service: &mut Service<ArraySimEngine>,
        answered: &dyn Fn(),
    ) {
        self.plan.command.act(fixture, service, self.plan.seed, answered);
    }

    fn check_command(&self, fixture: &ArrayDaemonFixture, before: &Shape, after: &Shape) {
        let has_changed = after != before;
        let changes = self.plan.command.changes_shape();
        assert_eq!(has_changed, changes, "from {before:?} to {after:?}");
        fixture.check_all("after the command");
    }

    fn crash(&self, fixture: &ArrayDaemonFixture, cut: Cut, prng: &mut Prng) -> (Left, bool) {
        let goes_on = prng.below(SECOND_ONE_IN) == 0;
        (fixture.left_by(cut, prng), goes_on)
    }

    fn before_recovery(&self, sweep: &Sweep<Self>, _: &Crash<Left>, _: &mut Prng) {
        sweep.ledger.count(|counts| counts.array_points += 1);
    }

    fn second(&self, prng: &mut Prng) -> Option<Second> {
        let event = prng.below(SECOND_EVENTS);
        Some(Second::Once { event, dice: Prng::new(prng.next_u64()) })
    }

    fn prepare(&self, fixture: &ArrayDaemonFixture, prng: &mut Prng) {
        fixture.client_count.set(prng.below(3));
    }

    fn check_served(&self, fixture: &ArrayDaemonFixture, service: &mut Service<ArraySimEngine>) {
        let is_on_record = shape(&fixture.registry()).is_some();
        if is_on_record {
            let status = show(service);
            assert_eq!(status.error, "", "the array does not come back as it was");
            assert_ne!(status.state, ArrayState::Failed);
        }
        assert_eq!(
            fixture.array().is_some(),
            is_on_record,
            "what is open is not what is on record"
        );
    }

    fn use_recovered(
        &self,
        fixture: &ArrayDaemonFixture,
        service: &mut Service<ArraySimEngine>,
        _: &mut Prng,
    ) {
        fixture.finish();
        service.notice_array_events();
    }

    fn check_recovered(
        &self,
        fixture: &ArrayDaemonFixture,
        service: &mut Service<ArraySimEngine>,
        (before, found): (&Shape, &Shape),
        progress: Progress,
    ) {
        self.check_shape(before, found, progress);
        self.check_members(fixture, service, progress);
        self.check_spares(fixture, progress);
        fixture.stop_clients();
    }

    fn can_repeat(&self) -> bool {
        self.plan.command.changes_shape()
    }

    fn repeat(
        &self,
        fixture: &Rc<ArrayDaemonFixture>,
        service: &mut Service<ArraySimEngine>,
        before: &Shape,
    ) -> Shape {
        self.plan.command.again(fixture, service, self.plan.seed);
        let found = shape(&fixture.registry());
        assert_ne!(found, *before, "asked for again");
        fixture.check_all("asked for again");
        found
    }

    fn make_again(
        &self,
        _: &Sweep<Self>,
        fixture: &ArrayDaemonFixture,
        service: &mut Service<ArraySimEngine>,
        _: &Shape,
        prng: &mut Prng,
    ) {
        fixture.stop_clients();
        if shape(&fixture.registry()).is_some() {
            let erase = prng.one_in(2);
            ask(fixture, service, ArrayRequest::Delete { name: name(), erase });
        }
        ask(fixture, service, create(fixture, level_of(self.plan.seed), None));
        fixture.check_all("made again");
    }
}
