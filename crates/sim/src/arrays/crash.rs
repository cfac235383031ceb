//! Cuts at the events of a recorded life, and what is found afterwards, whoever is gone.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use voltier_array::JournalStart;
use voltier_block::Prng;
use voltier_ring::{Executor, NoFiles};

use crate::arrays::clients::run_clients;
use crate::arrays::rig::{Left, Rig};
use crate::arrays::setup::Setup;
use crate::budget;
use crate::fault::FaultKind;
use crate::ledger::Ledger;
use crate::medium::Cut;
use crate::rest::{Buffers, check_tasks};
use crate::world::World;

/// Cuts of replays and of what follows, one in the other.
const DEPTH_MAX: u32 = 3;
/// Events of a life after a crash among which the next cut falls.
const NEXT_CUT_EVENTS: u64 = 120;

/// Runs a seed; panics when a promise is broken.
pub fn run(seed: u64, setup: Setup, only: Option<u64>, ledger: &Rc<Ledger>) {
    budget::note_world();
    ledger.count(|counts| counts.array_seeds += 1);
    let buffers = Buffers::now();
    let setup = Rc::new(setup);
    let mut executor = Executor::in_virtual_time(NoFiles);
    let world = World::in_ledger(&executor.handle(), seed, ledger);
    let rig = Rig::new(&world, &setup, Left::new(&setup), 0);
    ledger.at(format!("seed {seed}, recording"), None);
    executor.block_on(record(rig.clone(), seed, only));
    end(world, executor, rig);
    buffers.check();
}

/// The life that is recorded.
async fn record(rig: Rc<Rig>, seed: u64, only: Option<u64>) {
    rig.start(JournalStart::Create).await.expect("a new array begins");
    watch(&rig, seed, only);
    for (member, harm, at) in rig.setup.harms.clone() {
        let harmed = rig.clone();
        rig.world.handle().spawn(async move {
            harmed.world.handle().sleep(at).await;
            harmed.harm(member, harm);
        });
    }
    run_clients(&rig, rig.setup.steps).await;
    rig.world.handle().sleep(60 * rig.setup.latency_ns).await;
    rig.check_all("at the end of the recorded life").await;
    rig.array().settle().await.expect("the array settles");
    rig.check_all("settled").await;
    rig.world.unwatch();
}

/// Sets the crash points of the recorded life.
fn watch(rig: &Rc<Rig>, seed: u64, only: Option<u64>) {
    let ledger = rig.world.ledger().clone();
    let watched = Rc::downgrade(rig);
    let one_in = rig.setup.one_in;
    // At the first point all choices of losses are tried, at others some.
    let is_first = Cell::new(true);
    rig.world.watch(move |event| {
        let Some(rig) = watched.upgrade() else { return };
        // The dice of a crash point are its own: it is the same when it is run alone.
        let mut prng = Prng::new(seed.wrapping_mul(0x1_0000_01b3) ^ event);
        if !prng.one_in(one_in) || only.is_some_and(|only| only != event) {
            return;
        }
        let cut = if prng.one_in(4) { Cut::Kill } else { Cut::Power };
        let left = rig.left_by(cut, &mut prng, &ledger);
        let mut losses = rig.setup.losses();
        if only.is_none() && !is_first.replace(false) {
            losses = (0..2).map(|_| *prng.pick(&losses)).collect();
        }
        for away in losses {
            let name = format!("seed {seed}, event {event}, {cut:?}, without {away:#b}");
            ledger.at(name, Some(event));
            ledger.count(|counts| counts.array_points += 1);
            // The dice of a choice are its own too.
            let dice =
                Prng::new((seed ^ event << 20 ^ away << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            verify(&rig.setup, left.clone(), away, dice, &ledger, 0);
        }
        ledger.at(format!("seed {seed}, recording"), None);
    });
}

/// Starts what a cut left, without the members of `away`, and checks it.
fn verify(
    setup: &Rc<Setup>,
    left: Left,
    away: u64,
    mut prng: Prng,
    ledger: &Rc<Ledger>,
    depth: u32,
) {
    if !left.can_do_without(setup, away) {
        return;
    }
    budget::note_world();
    if away != 0 {
        ledger.fault(FaultKind::DriveLoss);
    }
    let left = Left { model: left.model.apart(), ..left };
    let mut executor = Executor::in_virtual_time(NoFiles);
    let world = World::in_ledger(&executor.handle(), prng.next_u64(), ledger);
    let rig = Rig::new(&world, setup, left, away);
    let next: Rc<RefCell<Option<Left>>> = Rc::default();
    if depth < DEPTH_MAX && prng.one_in(2) {
        let (watched, next, ledger) = (Rc::downgrade(&rig), next.clone(), ledger.clone());
        let mut dice = Prng::new(prng.next_u64());
        let most = *dice.pick(&[30, NEXT_CUT_EVENTS]);
        let cut_at = dice.below(most);
        let dice = RefCell::new(dice);
        world.watch(move |event| {
            let Some(rig) = watched.upgrade().filter(|_| event == cut_at) else { return };
            let mut dice = dice.borrow_mut();
            let cut = if dice.one_in(4) { Cut::Kill } else { Cut::Power };
            next.replace(Some(rig.left_by(cut, &mut dice, &ledger)));
        });
    }
    executor.block_on(recover(rig.clone(), prng.next_u64()));
    end(world, executor, rig);
    let Some(left) = next.take() else { return };
    // Most drives that were away stay there; now and then one is back, or another one goes.
    let mut away = if prng.one_in(3) { 0 } else { away };
    if prng.one_in(3) {
        away |= 1 << prng.below(setup.geometry.member_count() as u64);
    }
    verify(setup, left, away, prng, ledger, depth + 1);
}

/// The life after a cut.
async fn recover(rig: Rc<Rig>, seed: u64) {
    let mut prng = Prng::new(seed);
    if let Err(error) = rig.start(JournalStart::Replay).await {
        panic!("the array does not come back: {error}");
    }
    rig.check_all("after the crash").await;
    if prng.one_in(2) {
        run_clients(&rig, 1 + prng.below(4)).await;
        rig.world.handle().sleep(60 * rig.setup.latency_ns).await;
        rig.check_all("later").await;
    }
    if prng.one_in(4) {
        rig.array().settle().await.expect("the array settles");
        rig.drop_array();
        let report = rig.start(JournalStart::Replay).await.expect("the array comes back");
        assert_eq!(report.transactions, 0, "a journal that was settled is empty");
        rig.check_all("after a stop").await;
    }
}

/// Ends a world: nothing is left of it.
fn end(world: World, mut executor: Executor, rig: Rc<Rig>) {
    world.unwatch();
    rig.drop_array();
    world.close();
    check_tasks(&world, &mut executor);
}
