//! Cuts at the events of a recorded life, and what is found afterwards, whoever is gone.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use voltier_array::MemberState;
use voltier_block::Prng;
use voltier_ring::{Executor, NoFiles};

use crate::arrays::checks::{check_all, check_members};
use crate::arrays::clients::{age, run_clients};
use crate::arrays::copies;
use crate::arrays::fixture::ArrayFixture;
use crate::arrays::half_written;
use crate::arrays::hanging::start_beside_a_hang;
use crate::arrays::known::{check_both_ends, last_ones};
use crate::arrays::left::Left;
use crate::arrays::operator::{finish, spare_dice, take_care};
use crate::arrays::outages;
use crate::arrays::page_rot;
use crate::arrays::reuse;
use crate::arrays::scrubbing::scrub_again;
use crate::arrays::sets::{DriveSet, MemberSet};
use crate::arrays::setup::{Care, Setup, losses};
use crate::arrays::start::{give_up_uncovered, start, start_again, try_with_a_stranger};
use crate::arrays::trial::{Trial, is_found, pick_drives};
use crate::budget;
use crate::crash_points::CrashPoints;
use crate::fault::FaultKind;
use crate::ledger::Ledger;
use crate::medium::{Cut, Medium};
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
    if let Some(dice) = reuse::drawn(seed) {
        reuse::use_before(&fixture, dice).await;
    }
    if fixture.setup.from_the_start {
        watch(&fixture, seed, only);
    }
    fixture.create().await.expect("a new array begins");
    age(&fixture, fixture.setup.aging).await;
    if !fixture.setup.from_the_start {
        watch(&fixture, seed, only);
    }
    let Setup { care, acts, .. } = *fixture.setup;
    let care = take_care(fixture.clone(), care, acts, spare_dice(seed));
    let care = fixture.world.handle().spawn(care);
    run_clients(&fixture, fixture.setup.steps).await;
    care.await;
    fixture.world.handle().sleep(60 * fixture.setup.latency_ns).await;
    check_all(&fixture, "at the end of the recorded life").await;
    finish(&fixture).await;
    check_all(&fixture, "at rest").await;
    if let Some(dice) = outages::drawn(seed) {
        outages::refuse_for_a_time(&fixture, dice).await;
    }
    fixture.stop().await;
    fixture.drop_array();
    start_again(&fixture, fixture.world.prng()).await;
    fixture.world.unwatch();
    if let Some(dice) = page_rot::drawn(seed) {
        page_rot::rot_and_start(&fixture, dice).await;
    }
    if let Some(dice) = copies::drawn(seed) {
        copies::put_back(&fixture, dice).await;
    }
    if let Some(dice) = half_written::drawn(seed) {
        half_written::fail_and_stop(&fixture, dice).await;
    }
}

/// Sets the crash points of the recorded life.
fn watch(fixture: &Rc<ArrayFixture>, seed: u64, only: Option<u64>) {
    let ledger = fixture.world.ledger().clone();
    let watched = Rc::downgrade(fixture);
    let points = CrashPoints { seed, one_in: fixture.setup.one_in, only };
    // At the first point all choices of losses are tried, at others some.
    let is_first = Cell::new(true);
    fixture.world.watch(move |event| {
        let Some(fixture) = watched.upgrade() else { return };
        let Some(mut prng) = points.dice_at(event) else { return };
        let cut = Cut::draw(&mut prng);
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
            let dice = Prng::new(
                (seed ^ event << 20 ^ away.bits() << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15),
            );
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
                verify(
                    &fixture.setup,
                    left.clone(),
                    MemberSet::EMPTY,
                    dice,
                    &ledger,
                    Cuts::InStart,
                );
                fixture.model.borrow().forget_contents_since(contents);
            }
        }
        ledger.at(format!("seed {seed}, recording"), None);
    });
}

/// Starts what a cut left, without the members of `away`, and checks it.
fn verify(
    setup: &Rc<Setup>,
    mut left: Left,
    away: MemberSet,
    mut prng: Prng,
    ledger: &Rc<Ledger>,
    cuts: Cuts,
) {
    let known = left.known(setup);
    check_both_ends(setup, left.media.iter().map(Medium::snapshot));
    if left.is_made {
        let last = last_ones(&left.lives, DriveSet::ALL);
        let by_record = known.current(last, MemberState::InService);
        let missing = left.online - by_record;
        assert!(
            missing.is_empty(),
            "members {missing:#b} were in service and are not by record:{known} of lives {:?}",
            left.lives
        );
        let is_believed = left.journal.is_out && known.has_journal_on_device(last);
        assert!(!is_believed, "the journal's device is out, and in service by record");
    }
    let given = pick_drives(setup, &known, away, &mut prng);
    if given.is_empty() {
        return;
    }
    let trial = Trial::of(setup, &left.lives, &known, given);
    if !trial.is_enough && left.is_made && !prng.one_in(8) {
        return;
    }
    budget::note_world();
    if !away.is_empty() {
        ledger.fault(FaultKind::DriveLoss);
    }
    if setup.has_checksums() {
        // A crash takes the checksums of dirty regions, and members may be away. The next cut may take
        // content of caches, and the bit rot below comes back: the block stays known.
        if let Some(bit_rot) = &left.bit_rot {
            bit_rot.heal_what_is_left(&mut left.media[bit_rot.drive]);
        }
    } else if known.lacks_journal(given) || !is_found(setup, &left, &trial) {
        // A block that turned over is found only where nothing is missing and nothing needed a resync.
        if let Some(bit_rot) = left.bit_rot.take() {
            bit_rot.heal(&mut left.media[bit_rot.drive]);
        }
    }
    let mut executor = Executor::in_virtual_time(NoFiles);
    let world = World::in_ledger(&executor.handle(), prng.next_u64(), ledger);
    let was_stopped = left.is_stopped;
    // A start's work in caches shows when the power goes.
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
    let mut away = if prng.one_in(3) { MemberSet::EMPTY } else { away };
    if prng.one_in(3) {
        let shape = if setup.expands() { &geometry } else { &setup.geometry };
        away = away | MemberSet::one(prng.below(shape.member_count() as u64) as usize);
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

/// The life after a cut.
async fn recover(fixture: Rc<ArrayFixture>, mut trial: Trial, was_stopped: bool, seed: u64) {
    let mut dice = Prng::new(seed);
    if dice.one_in(16) {
        try_with_a_stranger(&fixture, &trial, &mut dice).await;
    }
    let may_scrub = !fixture.setup.has_checksums();
    if may_scrub {
        fixture.bit_rot.close();
    }
    let beside_a_hang = start_beside_a_hang(&fixture, &mut trial, &mut dice).await;
    // A start that has ended for a drive that hangs may have said that the array is in use.
    let was_stopped = was_stopped && (beside_a_hang.is_some() || fixture.is_stopped());
    let started = match beside_a_hang {
        None => start(&fixture, &mut trial, &mut dice).await,
        started => started,
    };
    let Some(report) = started else { return };
    give_up_uncovered(&fixture, &trial);
    assert!(report.journal.damaged.is_empty(), "a ring is damaged: {:?}", report.journal);
    if was_stopped {
        assert!(report.was_clean && report.regions_to_resync == 0, "what was stopped is not clean");
    }
    check_members(&fixture, trial.usable);
    check_all(&fixture, "after the crash").await;
    if may_scrub && fixture.bit_rot.block.borrow().is_some() {
        scrub_again(&fixture).await;
        check_all(&fixture, "after the scrub").await;
    }
    if dice.one_in(2) {
        let care = if dice.one_in(2) { Care::Members } else { Care::Rest };
        let care = take_care(fixture.clone(), care, 1 + dice.below(3), None);
        let care = fixture.world.handle().spawn(care);
        run_clients(&fixture, 1 + dice.below(4)).await;
        care.await;
        fixture.world.handle().sleep(60 * fixture.setup.latency_ns).await;
        check_all(&fixture, "later").await;
    }
    if dice.one_in(2) {
        fixture.until("nothing needs a resync", |fixture| !fixture.needs_resync()).await;
        finish(&fixture).await;
        check_all(&fixture, "rebuilt").await;
    }
    if dice.one_in(4) {
        fixture.until("nothing needs a resync", |fixture| !fixture.needs_resync()).await;
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
