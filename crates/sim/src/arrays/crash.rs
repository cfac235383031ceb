//! Cuts at the events of a recorded life, and what is found afterwards, whoever is gone.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use voltier_array::{ArrayError, AssembleOptions, AssembleReport, MemberState, MetadataError};
use voltier_block::Prng;
use voltier_ring::{Executor, NoFiles};

use crate::arrays::bit_rot::{is_locatable, scrub_again};
use crate::arrays::clients::{age, run_clients};
use crate::arrays::fixture::ArrayFixture;
use crate::arrays::left::{Known, Left, has, last_ones, mask};
use crate::arrays::operator::{finish, take_care};
use crate::arrays::setup::{Care, Setup, can_lose, losses};
use crate::budget;
use crate::disk::SimDisk;
use crate::fault::FaultKind;
use crate::ledger::Ledger;
use crate::medium::Cut;
use crate::rest::{Buffers, check_tasks};
use crate::world::World;

/// Cuts of starts and of what follows, one in the other.
const DEPTH_MAX: u32 = 3;
/// Events of a life after a crash among which the next cut falls.
const NEXT_CUT_EVENTS: u64 = 200;

/// Starts after a kill that are cut off by the power, beside others.
const REDO_CUTS: u64 = 2;
/// Events of a start in which it redoes.
const REDO_EVENTS: u64 = 100;

/// The next cut, in what follows a cut.
#[derive(Clone, Copy, PartialEq)]
enum Cuts {
    /// At any event, if so many before it were fewer than the most.
    Any(u32),
    /// The power goes within the start.
    InStart,
}

/// Runs a seed; panics when a promise is broken.
pub fn run(seed: u64, setup: Setup, only: Option<u64>, ledger: &Rc<Ledger>) {
    budget::note_world();
    ledger.count(|counts| counts.array_seeds += 1);
    let buffers = Buffers::now();
    let setup = Rc::new(setup);
    let mut executor = Executor::in_virtual_time(NoFiles);
    let world = World::in_ledger(&executor.handle(), seed, ledger);
    let fixture = ArrayFixture::new(&world, &setup, Left::new(&setup, seed));
    ledger.at(format!("seed {seed}, recording"), None);
    executor.block_on(record(fixture.clone(), seed, only));
    end(world, executor, fixture);
    buffers.check();
}

/// The life that is recorded.
async fn record(fixture: Rc<ArrayFixture>, seed: u64, only: Option<u64>) {
    if fixture.setup.from_the_start {
        watch(&fixture, seed, only);
    }
    fixture.create().await.expect("a new array begins");
    age(&fixture, fixture.setup.aging).await;
    if !fixture.setup.from_the_start {
        watch(&fixture, seed, only);
    }
    let care = take_care(fixture.clone(), fixture.setup.care, fixture.setup.acts);
    let care = fixture.world.handle().spawn(care);
    run_clients(&fixture, fixture.setup.steps).await;
    care.await;
    fixture.world.handle().sleep(60 * fixture.setup.latency_ns).await;
    fixture.check_all("at the end of the recorded life").await;
    finish(&fixture).await;
    fixture.check_all("at rest").await;
    fixture.stop().await;
    fixture.drop_array();
    start_again(&fixture, fixture.world.prng()).await;
    fixture.world.unwatch();
}

/// Starts what was stopped in order, from all drives that have a superblock.
async fn start_again(fixture: &Rc<ArrayFixture>, mut dice: Prng) {
    fixture.disks.iter().for_each(SimDisk::mend);
    let known = fixture.known();
    let is_gone = |drive: &usize| fixture.disks[*drive].is_gone();
    let all = known.labelled() | known.journals();
    let given = all & !mask((0..fixture.disks.len()).filter(is_gone));
    let mut trial = Trial::of(&fixture.setup, &fixture.lives(), &known, given);
    let report = start(fixture, &mut trial, &mut dice).await.expect("what was stopped comes back");
    assert!(report.was_clean && report.regions_in_doubt == 0, "what was stopped is not clean");
    assert_eq!(report.journal.transactions, 0, "a journal that was settled is empty");
    fixture.check_members(trial.usable);
    fixture.check_all("after a stop").await;
}

fn shuffled(drives: u64, dice: &mut Prng) -> Vec<usize> {
    let mut rest: Vec<usize> = (0..64).filter(|drive| has(drives, *drive)).collect();
    let mut order = Vec::new();
    while !rest.is_empty() {
        order.push(rest.swap_remove(dice.below(rest.len() as u64) as usize));
    }
    order
}

/// Sets the crash points of the recorded life.
fn watch(fixture: &Rc<ArrayFixture>, seed: u64, only: Option<u64>) {
    let ledger = fixture.world.ledger().clone();
    let watched = Rc::downgrade(fixture);
    let one_in = fixture.setup.one_in;
    // At the first point all choices of losses are tried, at others some.
    let is_first = Cell::new(true);
    fixture.world.watch(move |event| {
        let Some(fixture) = watched.upgrade() else { return };
        // The dice of a crash point are its own: it is the same when it is run alone.
        let mut prng = Prng::new(seed.wrapping_mul(0x1_0000_01b3) ^ event);
        if !prng.one_in(one_in) || only.is_some_and(|only| only != event) {
            return;
        }
        let cut = if prng.one_in(4) { Cut::Kill } else { Cut::Power };
        let contents = fixture.model.borrow().contents();
        let left = fixture.left_by(cut, &mut prng, &ledger);
        let mut choices = losses(&fixture.geometry());
        if only.is_none() && !is_first.replace(false) {
            choices = (0..2).map(|_| *prng.pick(&choices)).collect();
        }
        for away in choices {
            let name = format!("seed {seed}, event {event}, {cut:?}, without {away:#b}");
            ledger.at(name, Some(event));
            ledger.count(|counts| counts.array_points += 1);
            // The dice of a choice are its own too.
            let dice =
                Prng::new((seed ^ event << 20 ^ away << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            verify(&fixture.setup, left.clone(), away, dice, &ledger, Cuts::Any(0));
            fixture.model.borrow().forget_contents_since(contents);
        }
        // A start redoes what a kill left in the caches of drives, and the power goes meanwhile.
        if cut == Cut::Kill && fixture.setup.has_journal() {
            let left = fixture.left_by_kill(&ledger);
            for number in 0..REDO_CUTS {
                ledger.at(
                    format!("seed {seed}, event {event}, Kill, redone ({number})"),
                    Some(event),
                );
                ledger.count(|counts| counts.array_points += 1);
                let dice = Prng::new((seed ^ event << 20 ^ number << 56).wrapping_mul(0x9e37_79b9));
                verify(&fixture.setup, left.clone(), 0, dice, &ledger, Cuts::InStart);
                fixture.model.borrow().forget_contents_since(contents);
            }
        }
        ledger.at(format!("seed {seed}, recording"), None);
    });
}

/// How a start is tried, and what it must come to.
pub(crate) struct Trial {
    /// Drives that are given.
    pub(crate) given: u64,
    /// All members, by those of them that are newest.
    all: u64,
    /// Members that must be in service then.
    usable: u64,
    /// Whether that is enough of each group.
    is_enough: bool,
    pub(crate) options: AssembleOptions,
}

impl Trial {
    /// Whether no member is missing.
    pub(crate) fn is_whole(&self) -> bool {
        self.usable == self.all
    }

    fn of(setup: &Setup, lives: &[u64], known: &Known, given: u64) -> Self {
        let usable = known.current(given, MemberState::InService);
        let geometry = known.newest(given).map_or(&setup.geometry, |newest| &newest.geometry);
        let all = mask(0..geometry.member_count());
        let last = last_ones(lives, u64::MAX);
        // Without one that has the newest event they may be what the others went on without.
        let is_newest = known.highest_event(given & last) == known.highest_event(last);
        let options = AssembleOptions { degraded: is_newest, force: false };
        Self { given, all, usable, is_enough: can_lose(geometry, all & !usable), options }
    }
}

/// The drives that a start is given: not those of the members in `away`; none if nobody is left.
fn pick_drives(setup: &Setup, known: &Known, away: u64, prng: &mut Prng) -> u64 {
    let labelled = known.labelled();
    let members = known.drives_of(labelled).into_iter().enumerate();
    let away_drives = members.filter(|(member, _)| has(away, *member));
    let mut given = labelled & !mask(away_drives.filter_map(|(_, drive)| drive));
    if prng.one_in(4) {
        // A drive that was left behind is left away as well.
        given &= !(1 << prng.below(setup.drives.len() as u64));
    }
    let is_journal_there = !setup.has_journal_device || !prng.one_in(3);
    if given != 0 && is_journal_there { given | known.journals() } else { given }
}

/// Starts what a cut left, without the members of `away`, and checks it.
fn verify(
    setup: &Rc<Setup>,
    mut left: Left,
    away: u64,
    mut prng: Prng,
    ledger: &Rc<Ledger>,
    cuts: Cuts,
) {
    let known = left.known(setup);
    if left.is_made {
        let last = last_ones(&left.lives, u64::MAX);
        let by_record = known.current(last, MemberState::InService);
        let missing = left.online & !by_record;
        assert!(
            missing == 0,
            "members {missing:#b} were in service and are not by record:{known} of lives {:?}",
            left.lives
        );
        let is_believed = left.journal.is_out && known.has_journal_on_device(last);
        assert!(!is_believed, "the journal's device is out, and in service by record");
    }
    let given = pick_drives(setup, &known, away, &mut prng);
    if given == 0 {
        return;
    }
    let trial = Trial::of(setup, &left.lives, &known, given);
    if !trial.is_enough && left.is_made && !prng.one_in(8) {
        return;
    }
    budget::note_world();
    if away != 0 {
        ledger.fault(FaultKind::DriveLoss);
    }
    if known.lacks_journal(given) || !is_found(setup, &left, &trial) {
        // A block that turned over is found only where nothing is missing and nothing was in doubt.
        if let Some(rot) = left.rot.take() {
            rot.heal(&mut left.media[rot.drive]);
        }
    }
    let mut executor = Executor::in_virtual_time(NoFiles);
    let world = World::in_ledger(&executor.handle(), prng.next_u64(), ledger);
    let was_stopped = left.is_stopped;
    // What a start does with caches shows when the power goes.
    let is_next = left.is_cached || prng.one_in(2);
    let fixture = ArrayFixture::new(&world, setup, left);
    let next: Rc<RefCell<Option<Left>>> = Rc::default();
    let depth = match cuts {
        Cuts::Any(depth) => depth,
        Cuts::InStart => 0,
    };
    if depth < DEPTH_MAX && is_next {
        watch_next(&fixture, &next, cuts, Prng::new(prng.next_u64()));
    }
    executor.block_on(recover(fixture.clone(), trial, was_stopped, prng.next_u64()));
    end(world, executor, fixture);
    let Some(left) = next.take() else { return };
    let geometry = left.geometry.clone();
    // Most drives that were away stay there; now and then one is back, or another one goes.
    let mut away = if prng.one_in(3) { 0 } else { away };
    if prng.one_in(3) {
        let shape = if setup.gains_room() { &geometry } else { &setup.geometry };
        away |= 1 << prng.below(shape.member_count() as u64);
    }
    verify(setup, left, away, prng, ledger, Cuts::Any(depth + 1));
}

/// Cuts a life after a crash off at some event; what is left goes to `next`.
fn watch_next(
    fixture: &Rc<ArrayFixture>,
    next: &Rc<RefCell<Option<Left>>>,
    cuts: Cuts,
    mut dice: Prng,
) {
    let (watched, next) = (Rc::downgrade(fixture), next.clone());
    // Most of a start, all of it, or what follows.
    let most = match cuts {
        Cuts::Any(_) => *dice.pick(&[NEXT_CUT_EVENTS / 2, NEXT_CUT_EVENTS, 3 * NEXT_CUT_EVENTS]),
        Cuts::InStart => REDO_EVENTS,
    };
    let cut_at = dice.below(most);
    let dice = RefCell::new(dice);
    fixture.world.watch(move |event| {
        let Some(fixture) = watched.upgrade().filter(|_| event == cut_at) else { return };
        let mut dice = dice.borrow_mut();
        let is_kill = cuts != Cuts::InStart && dice.one_in(4);
        let cut = if is_kill { Cut::Kill } else { Cut::Power };
        next.replace(Some(fixture.left_by(cut, &mut dice, fixture.world.ledger())));
    });
}

/// Whether a scrub can find a block that turned over.
fn is_found(setup: &Setup, left: &Left, trial: &Trial) -> bool {
    left.is_made && trial.is_whole() && setup.has_journal() && is_locatable(setup)
}

/// Starts the array as a trial says; none if it is refused, as it may be.
async fn start(
    fixture: &Rc<ArrayFixture>,
    trial: &mut Trial,
    dice: &mut Prng,
) -> Option<AssembleReport> {
    loop {
        let order = shuffled(trial.given, dice);
        let needs_journal = fixture.needs_journal(trial.given);
        let members = mask(0..fixture.setup.member_drives());
        let older = fixture.part_of_older_lives(trial.given & members);
        let is_right_choice = trial.is_enough && trial.options.degraded && older == 0;
        fixture.starting.set(if is_right_choice { trial.usable } else { 0 });
        let refused = match fixture.assemble(&order, trial.options).await {
            Ok(report) => {
                assert!(trial.is_enough, "an array starts without enough members");
                let is_right = !needs_journal || trial.options.force;
                assert!(is_right, "an array starts without its journal");
                return Some(report);
            }
            Err(ArrayError::Metadata(refused)) => refused,
            Err(error) => panic!("the array does not come back: {error}"),
        };
        fixture.world.tell(|| format!("refused: {refused}"));
        fixture.world.ledger().count(|counts| counts.refused += 1);
        match refused {
            _ if !fixture.is_made() => return None,
            // Somebody has to know which ones the array went on with.
            MetadataError::Diverged { .. } | MetadataError::Contradiction { .. } if older != 0 => {
                let given = trial.given & !older;
                *trial = Trial::of(&fixture.setup, &fixture.lives(), &fixture.known(), given);
            }
            MetadataError::JournalMissing if needs_journal => fixture.find_journal(trial, dice),
            MetadataError::JournalNewer { .. } if !trial.options.degraded => return None,
            MetadataError::DirtyDegraded { .. } if fixture.may_be_in_doubt() => {
                fixture.force(trial)
            }
            MetadataError::MayBeOld { .. } if !trial.options.degraded => return None,
            // The others heard that the making had ended, and went on without these.
            MetadataError::HalfMade { .. } if !trial.options.degraded => return None,
            MetadataError::TooFew { .. } if !trial.is_enough => return None,
            // Those that were left behind together, with one that made place for its copy.
            MetadataError::Diverged { .. } | MetadataError::Contradiction { .. }
                if !trial.is_enough || !trial.options.degraded =>
            {
                return None;
            }
            refused => panic!("the array does not come back: {refused}"),
        }
    }
}

/// A drive that is no member is refused, whatever else is given.
async fn try_with_a_stranger(fixture: &Rc<ArrayFixture>, trial: &Trial, dice: &mut Prng) {
    let known = fixture.known();
    let labelled = known.labelled() | known.journals();
    let mut strangers = (0..fixture.disks.len()).filter(|drive| !has(labelled, *drive));
    let Some(stranger) = strangers.next_back().filter(|_| fixture.is_made()) else { return };
    let order = shuffled(trial.given | 1 << stranger, dice);
    let refused = fixture.assemble(&order, trial.options).await.err();
    let is_refused = matches!(refused, Some(ArrayError::Metadata(MetadataError::Device { .. })));
    assert!(is_refused, "a stranger is not refused: {refused:?}");
}

/// The life after a cut.
async fn recover(fixture: Rc<ArrayFixture>, mut trial: Trial, was_stopped: bool, seed: u64) {
    let mut dice = Prng::new(seed);
    if dice.one_in(16) {
        try_with_a_stranger(&fixture, &trial, &mut dice).await;
    }
    fixture.close_what_is_rotten();
    let Some(report) = start(&fixture, &mut trial, &mut dice).await else { return };
    let is_whole = trial.is_whole();
    let takes_along = trial.options.force || (fixture.setup.geometry.is_mirror() && !is_whole);
    if !fixture.setup.has_journal() && takes_along {
        for shape in fixture.setup.shapes() {
            fixture.uncovered.borrow_mut().give_up(&shape, &mut fixture.model.borrow_mut());
        }
    }
    assert!(report.journal.damaged.is_empty(), "a ring is damaged: {:?}", report.journal);
    if was_stopped {
        assert!(report.was_clean && report.regions_in_doubt == 0, "what was stopped is not clean");
    }
    fixture.check_members(trial.usable);
    fixture.check_all("after the crash").await;
    if fixture.rot.borrow().is_some() {
        scrub_again(&fixture).await;
        fixture.check_all("after the scrub").await;
    }
    if dice.one_in(2) {
        let care = if dice.one_in(2) { Care::Members } else { Care::Rest };
        let care = take_care(fixture.clone(), care, 1 + dice.below(3));
        let care = fixture.world.handle().spawn(care);
        run_clients(&fixture, 1 + dice.below(4)).await;
        care.await;
        fixture.world.handle().sleep(60 * fixture.setup.latency_ns).await;
        fixture.check_all("later").await;
    }
    if dice.one_in(2) {
        fixture.until("nothing is in doubt", |fixture| !fixture.is_in_doubt()).await;
        finish(&fixture).await;
        fixture.check_all("rebuilt").await;
    }
    if dice.one_in(4) {
        fixture.until("nothing is in doubt", |fixture| !fixture.is_in_doubt()).await;
        fixture.stop().await;
        fixture.drop_array();
        start_again(&fixture, dice).await;
    }
}

/// Ends a world: nothing is left of it.
fn end(world: World, mut executor: Executor, fixture: Rc<ArrayFixture>) {
    world.unwatch();
    fixture.drop_array();
    world.close();
    check_tasks(&world, &mut executor);
}
