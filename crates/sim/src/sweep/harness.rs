//! The harness of the sweeps: runs a command once, crashes it at its events, and holds every recovery to
//! what is promised.

use std::cell::Cell;
use std::fmt::{Debug, Display};
use std::ops::Deref;
use std::rc::Rc;
use std::time::{Duration, Instant};

use voltier_block::Prng;
use voltier_control::engine::Engine;
use voltier_control::{Registry, Service};

use super::daemon::DaemonFixture;
use super::points::{Points, Progress, Second};
use crate::budget;
use crate::crash_points::dice_of;
use crate::fault::FaultKind;
use crate::ledger::Ledger;
use crate::medium::Cut;

/// One start after a crash in so many has drives that come late.
const LATE_ONE_IN: u64 = 4;
/// Tells the dice of late drives from those of crash points.
const LATE_DICE: u64 = 0x1a7e_0000_0000;
/// Longer than any start takes on the clock of the host, which hold-offs go by.
const HOLD_OFF: Duration = Duration::from_secs(3600);

/// One life of a daemon, with drives and clients.
pub(super) trait Fixture: Deref<Target = DaemonFixture> + 'static {
    /// Everything that a crash leaves of a fixture.
    type Left: 'static;

    /// The number of its drives.
    const DRIVES: usize;

    /// Everything that a crash at this moment leaves.
    fn left_by(&self, cut: Cut, prng: &mut Prng) -> Self::Left;
    /// Holds everything that clients use to the model.
    fn check_all(&self, when: &'static str);
    /// Checks that nothing is left of a daemon that has stopped.
    fn check_for_leaks(&self);
}

/// The subject of a sweep: the commands of volumes, or those of arrays.
pub(super) trait Subject: Sized + 'static {
    /// One life of a daemon.
    type Fixture: Fixture<Left = Self::Left>;
    /// Everything that a crash leaves of a fixture.
    type Left: 'static;
    /// The data path under the service.
    type Engine: Engine;
    /// The registry's record of the subject, in short.
    type Shape: PartialEq + Debug + 'static;

    /// The command, for messages.
    fn command(&self) -> impl Display;
    /// The events of the command that are crash points.
    fn points(&self) -> Points;
    /// Command and seed, for messages.
    fn title(&self) -> String {
        format!("{}, seed {}", self.command(), self.points().seed)
    }
    /// A fixture of the drives of this sweep: on what is left, or on new drives; nothing runs yet.
    fn fixture(
        &self,
        left: Option<Self::Left>,
        seed: u64,
        ledger: &Rc<Ledger>,
    ) -> Rc<Self::Fixture>;
    /// A daemon on the registry and the drives of a fixture; nothing is open until the daemon is started.
    fn service(fixture: &Rc<Self::Fixture>) -> Service<Self::Engine>;
    /// The record, in short.
    fn shape(registry: &Registry) -> Self::Shape;

    /// Brings a new fixture to where the command begins.
    fn lead_up(&mut self, fixture: &Rc<Self::Fixture>) -> Service<Self::Engine>;
    /// The crash that the command begins on, if there is one.
    fn crash_before(&self, fixture: &Self::Fixture) -> Option<Self::Left>;
    /// Runs the command, and has clients work on for a moment. `answered` is called when it is done.
    fn act(
        &self,
        fixture: &Rc<Self::Fixture>,
        service: &mut Service<Self::Engine>,
        answered: &dyn Fn(),
    );
    /// Checks what the command came to when nothing was crashed.
    fn check_command(&self, fixture: &Self::Fixture, before: &Self::Shape, after: &Self::Shape);

    /// Everything that a crash at this moment leaves, and whether its recovery is crashed as well.
    fn crash(&self, fixture: &Self::Fixture, cut: Cut, prng: &mut Prng) -> (Self::Left, bool);
    /// Does what is due at a crash point before the recovery.
    fn before_recovery(&self, sweep: &Sweep<Self>, crash: &Crash<Self::Left>, prng: &mut Prng);
    /// Where the recovery is crashed as well.
    fn second(&self, prng: &mut Prng) -> Option<Second>;
    /// Prepares the fixture of a recovery.
    fn prepare(&self, fixture: &Self::Fixture, prng: &mut Prng);
    /// Checks that everything on record is served.
    fn check_served(&self, fixture: &Self::Fixture, service: &mut Service<Self::Engine>);
    /// Uses what has come back, and lets its work come to an end.
    fn use_recovered(
        &self,
        fixture: &Self::Fixture,
        service: &mut Service<Self::Engine>,
        prng: &mut Prng,
    );
    /// Checks that the command took place, or did not, by the shapes before and now; sends the clients away.
    fn check_recovered(
        &self,
        fixture: &Self::Fixture,
        service: &mut Service<Self::Engine>,
        shapes: (&Self::Shape, &Self::Shape),
        progress: Progress,
    );
    /// Whether the command can be asked for again after a crash that undid it.
    fn can_repeat(&self) -> bool;
    /// Asks for the command again, which must work; what is on record then.
    fn repeat(
        &self,
        fixture: &Rc<Self::Fixture>,
        service: &mut Service<Self::Engine>,
        before: &Self::Shape,
    ) -> Self::Shape;
    /// Makes and deletes what the commands are about, which must work.
    fn make_again(
        &self,
        sweep: &Sweep<Self>,
        fixture: &Self::Fixture,
        service: &mut Service<Self::Engine>,
        found: &Self::Shape,
        prng: &mut Prng,
    );
}

/// The result of a sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Events of the command, the steps of the control plane included.
    pub events: u64,
    /// Worlds that were recovered after a crash of the command.
    pub crash_points: u64,
    /// Worlds that were recovered after a crash of a recovery.
    pub second_crash_points: u64,
    /// Starts with an SSD that was not the right one.
    pub wrong_ssds: u64,
    /// Everything that happened, in one number.
    pub trace_hash: u64,
}

/// Where a sweep is, until this is dropped; a failure leaves the place on the ledger.
pub(super) struct SweepPosition {
    ledger: Rc<Ledger>,
    before: (String, Option<u64>),
}

impl SweepPosition {
    pub(super) fn at(ledger: &Rc<Ledger>, place: &str, event: Option<u64>) -> Self {
        let before = ledger.place();
        ledger.at(place.to_owned(), event);
        Self { ledger: ledger.clone(), before }
    }
}

impl Drop for SweepPosition {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let (place, event) = std::mem::take(&mut self.before);
            self.ledger.at(place, event);
        }
    }
}

/// A crash that is to be recovered from.
pub(super) struct Crash<L> {
    pub(super) left: L,
    progress: Progress,
    pub(super) place: String,
    /// The event of the command.
    pub(super) event: u64,
    /// Whether the recovery is crashed as well.
    goes_on: bool,
}

/// The sweep of one command.
pub(super) struct Sweep<S: Subject> {
    subject: S,
    /// The record when the command began.
    before: S::Shape,
    pub(super) ledger: Rc<Ledger>,
    report: Cell<Report>,
}

/// Sweeps a command.
///
/// # Panics
/// When a promise is broken; the ledger has the place.
pub(super) fn run<S: Subject>(mut subject: S, ledger: &Rc<Ledger>) -> Report {
    let place = SweepPosition::at(ledger, &format!("{}, recording", subject.title()), None);
    let seed = subject.points().seed;
    let mut fixture = subject.fixture(None, seed, ledger);
    let mut service = subject.lead_up(&fixture);
    if let Some(left) = subject.crash_before(&fixture) {
        fixture = subject.fixture(Some(left), seed, ledger);
        fixture.client_count.set(1);
        service = S::service(&fixture);
    }
    let before = S::shape(&fixture.registry());
    let report = Cell::default();
    let sweep = Rc::new(Sweep { subject, before, ledger: ledger.clone(), report });
    let progress = Rc::new(Cell::new(Progress::Begun));
    let first = fixture.world.events();
    sweep.watch(&fixture, &progress, first);
    sweep.subject.act(&fixture, &mut service, &|| progress.set(Progress::Answered));
    fixture.world.unwatch();
    let (after, events) = (S::shape(&fixture.registry()), fixture.world.events() - first);
    sweep.subject.check_command(&fixture, &sweep.before, &after);
    service.stop();
    fixture.check_for_leaks();
    drop(place);
    Report { events, trace_hash: fixture.world.trace_hash(), ..sweep.report.get() }
}

impl<S: Subject> Sweep<S> {
    pub(super) fn count(&self, change: impl FnOnce(&mut Report)) {
        let mut report = self.report.get();
        change(&mut report);
        self.report.set(report);
    }

    /// Sets the crash points of the command.
    fn watch(self: &Rc<Self>, fixture: &Rc<S::Fixture>, progress: &Rc<Cell<Progress>>, first: u64) {
        let (sweep, progress, weak) = (self.clone(), progress.clone(), Rc::downgrade(fixture));
        fixture.world.watch(move |event| {
            let Some(fixture) = weak.upgrade() else { return };
            let (subject, event) = (&sweep.subject, event - first);
            let (cuts, mut prng) = subject.points().cuts_at(event);
            for cut in cuts {
                let contents = fixture.model.borrow().contents();
                let (left, goes_on) = subject.crash(&fixture, cut, &mut prng);
                let place = format!("{}, event {event}, {cut:?}", subject.title());
                sweep.count(|report| report.crash_points += 1);
                sweep.ledger.count_crash(cut);
                let crash = Crash { left, progress: progress.get(), place, event, goes_on };
                subject.before_recovery(&sweep, &crash, &mut prng);
                sweep.recover(crash, &mut prng);
                // No copy that a crash left is there any more: what was written to them neither.
                fixture.model.borrow().forget_contents_since(contents);
            }
        });
    }

    /// Starts a daemon on what a crash left, and holds it to everything that is promised.
    fn recover(self: &Rc<Self>, crash: Crash<S::Left>, prng: &mut Prng) {
        budget::note_world();
        let subject = &self.subject;
        let Crash { left, progress, place, event, goes_on } = crash;
        let here = SweepPosition::at(&self.ledger, &place, Some(event));
        let fixture = subject.fixture(Some(left), prng.next_u64(), &self.ledger);
        let later = Rc::default();
        if goes_on && let Some(second) = subject.second(prng) {
            self.watch_recovery(&fixture, second, (progress, place, event), &later);
        }
        subject.prepare(&fixture, prng);
        let mut service = S::service(&fixture);
        self.start(&fixture, &service, event);
        fixture.step();
        subject.check_served(&fixture, &mut service);
        fixture.check_all("after the crash");
        subject.use_recovered(&fixture, &mut service, prng);
        let found = S::shape(&fixture.registry());
        subject.check_recovered(&fixture, &mut service, (&self.before, &found), progress);
        fixture.check_all("after the recovery");
        fixture.world.unwatch();
        self.live_on(&fixture, service, found, prng);
        fixture.check_for_leaks();
        drop((fixture, here));
        if let Some(crash) = later.take() {
            self.recover_again(crash, prng);
        }
    }

    /// Starts a daemon after a crash. In some starts drives are late, and come one after the other.
    fn start(&self, fixture: &S::Fixture, service: &Service<S::Engine>, event: u64) {
        // Dice of its own: the rest of the sweep is the same with drives that are all there.
        let mut dice = dice_of(self.subject.points().seed ^ LATE_DICE, event);
        if !dice.one_in(LATE_ONE_IN) {
            return service.start(false, Duration::ZERO);
        }
        let mut late: Vec<usize> = (0..S::Fixture::DRIVES).filter(|_| dice.one_in(2)).collect();
        fixture.unplug(&late);
        service.start(false, HOLD_OFF);
        while !late.is_empty() {
            late.swap_remove(dice.below(late.len() as u64) as usize);
            fixture.unplug(&late);
            fixture.step();
            self.ledger.fault(FaultKind::LateDrive);
            #[expect(
                clippy::disallowed_methods,
                reason = "the hold-off is by real time, and longer"
            )]
            service.look_for_devices(Instant::now());
        }
    }

    /// Sets the crash points of a recovery; a crash that waits is put into `later`.
    fn watch_recovery(
        self: &Rc<Self>,
        fixture: &Rc<S::Fixture>,
        second: Second,
        (progress, place, event): (Progress, String, u64),
        later: &Rc<Cell<Option<Crash<S::Left>>>>,
    ) {
        let (sweep, weak, later) = (self.clone(), Rc::downgrade(fixture), later.clone());
        fixture.world.watch(move |at| {
            let Some(fixture) = weak.upgrade() else { return };
            let Some(mut dice) = second.dice_at(at) else { return };
            let cut = Cut::draw(&mut dice);
            let contents = fixture.model.borrow().contents();
            let left = fixture.left_by(cut, &mut dice);
            sweep.ledger.count_crash(cut);
            let place = format!("{place}, then event {at}, {cut:?}");
            let crash = Crash { left, progress, place, event, goes_on: false };
            if second.waits() {
                later.set(Some(crash));
                return;
            }
            sweep.recover_again(crash, &mut dice);
            fixture.model.borrow().forget_contents_since(contents);
        });
    }

    /// Recovers from a crash of a recovery.
    fn recover_again(self: &Rc<Self>, crash: Crash<S::Left>, prng: &mut Prng) {
        self.count(|report| report.second_crash_points += 1);
        self.recover(crash, prng);
    }

    /// Asks the recovered daemon for more: every request works, and nothing is lost.
    fn live_on(
        &self,
        fixture: &Rc<S::Fixture>,
        mut service: Service<S::Engine>,
        mut found: S::Shape,
        prng: &mut Prng,
    ) {
        let subject = &self.subject;
        if found == self.before && subject.can_repeat() && prng.one_in(2) {
            found = subject.repeat(fixture, &mut service, &self.before);
        }
        if prng.one_in(2) {
            service.stop();
            fixture.check_for_leaks();
            service = S::service(fixture);
            service.start(false, Duration::ZERO);
            subject.check_served(fixture, &mut service);
            fixture.check_all("after a stop in order");
        }
        if prng.one_in(2) {
            subject.make_again(self, fixture, &mut service, &found, prng);
        }
        service.stop();
    }
}
