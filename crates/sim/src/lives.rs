//! A chain of lives: each starts on what the one before it left.

use std::cell::RefCell;
use std::rc::Rc;

use voltier_block::Prng;
use voltier_cache::Mode;
use voltier_ring::{Executor, WakerCell, race};

use crate::fault::FaultKind;
use crate::fixture::{CacheFixture, Crash, Left};
use crate::hanging::Hanging;
use crate::ledger::Ledger;
use crate::life::{
    Start, calm, check_plain, dissolve, expect_refused, reopen_exactly, start, try_foreign_origin,
};
use crate::loading;
use crate::medium::{Cut, Medium};
use crate::remote::{Network, Wire};
use crate::scenario::{Drawn, Scenario};
use crate::workload::{Profile, run_clients};
use crate::world::World;

/// Events of a life among which its crash falls, for each step of a client.
const EVENTS_PER_STEP: u64 = 6;
/// Older copies of the SSD that are kept.
const SNAPSHOTS: usize = 3;

/// A life that is to be run.
#[derive(Clone)]
struct Life {
    number: u64,
    mode: Mode,
    /// Drives fail in it.
    faulty: bool,
    /// Tried first: an older copy of the SSD; the drives in each other's place.
    stale: Option<Medium>,
    swapped: bool,
    /// Tried first: another origin.
    foreign: bool,
    /// Before the life, the origin becomes larger by so much.
    origin_grows_bytes: u64,
    /// The cache is taken away.
    ends: bool,
    /// Ends at this event if it lives that long.
    crash_at: Option<u64>,
    crash: Crash,
    prng: Prng,
}

/// Runs a scenario's lives; panics when a promise is broken.
pub(crate) fn run_lives(drawn: &Drawn, scenario: &Scenario, ledger: &Rc<Ledger>) {
    let profile = &drawn.profile;
    let mut prng = Prng::new(scenario.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut left = Left::new(profile);
    let mut snapshots: Vec<(u64, Medium)> = Vec::new();
    for number in 0..drawn.lives {
        let last = number + 1 == drawn.lives;
        let mut life_prng = Prng::new(prng.next_u64());
        if left.lost {
            // The origin alone, and a new SSD in the place of the lost one.
            let plain = Life::plain(number, Prng::new(prng.next_u64()));
            left = live(left, profile, plain, ledger).with_new_ssd(profile);
            snapshots.clear();
        }
        let life = Life::draw(number, last, drawn, scenario, &left, &snapshots, &mut life_prng);
        let older = (left.generation, left.ssd.clone());
        left = live(left, profile, life, ledger);
        if left.generation > older.0 && older.0 > 0 {
            snapshots.push(older);
            snapshots.drain(..snapshots.len().saturating_sub(SNAPSHOTS));
        }
    }
    if !left.lost {
        // Everything to the origin, and nothing of ours stays.
        let end = Life::plain(drawn.lives, prng);
        live(left, profile, end, ledger);
    }
}

impl Life {
    fn plain(number: u64, prng: Prng) -> Self {
        Self {
            number,
            mode: Mode::WriteBack,
            faulty: false,
            stale: None,
            swapped: false,
            foreign: false,
            origin_grows_bytes: 0,
            ends: true,
            crash_at: None,
            crash: Crash::of(Cut::Kill),
            prng,
        }
    }

    fn draw(
        number: u64,
        last: bool,
        drawn: &Drawn,
        scenario: &Scenario,
        left: &Left,
        snapshots: &[(u64, Medium)],
        prng: &mut Prng,
    ) -> Self {
        let profile = &drawn.profile;
        let events = 40 + EVENTS_PER_STEP * profile.steps * profile.clients;
        let crash_at = prng.below(events);
        let (crash, crashes) = (Crash::draw(prng), !prng.one_in(4));
        let (faulty, stale, swapped) = (!prng.one_in(5), prng.one_in(3), prng.one_in(8));
        // From dice of its own: lives that were kept for a bug go on as they did.
        let foreign = Prng::new(prng.clone().next_u64() ^ 0x666f_7265_6967_6e00).one_in(4);
        let mut growth = Prng::new(prng.clone().next_u64() ^ 0x6772_6f77_7468_0000);
        let grows = growth.one_in(8) && number > 0;
        let grown_bytes = 4096 * (1 + growth.below(1 << 10));
        let older = snapshots.iter().find(|older| older.0 < left.generation);
        let allowed = |kind: FaultKind| !scenario.without.contains(&kind);
        Self {
            number,
            mode: *prng.pick(&profile.modes),
            faulty: faulty && !last,
            stale: older.filter(|_| stale && allowed(FaultKind::StaleSsd)).map(|it| it.1.clone()),
            // A disk of this machine is not taken for one behind a network.
            swapped: swapped && allowed(FaultKind::WrongOrder) && !profile.remote,
            foreign: foreign && allowed(FaultKind::ForeignOrigin),
            origin_grows_bytes: match grows && allowed(FaultKind::GrownOrigin) {
                true => grown_bytes,
                false => 0,
            },
            ends: false,
            crash_at: (crashes && !last).then_some(crash_at),
            crash,
            prng: Prng::new(prng.next_u64()),
        }
    }
}

/// Runs one life, and returns what the life leaves.
fn live(mut left: Left, profile: &Profile, life: Life, ledger: &Rc<Ledger>) -> Left {
    let mut prng = life.prng.clone();
    let wire = Wire::new(prng.clone().next_u64());
    let mut executor = Executor::in_virtual_time(wire.clone());
    let world = World::in_ledger(&executor.handle(), prng.next_u64(), ledger);
    let network = Network::new(wire, profile.bad_network);
    if profile.remote {
        world.join(network.clone());
    }
    ledger.at(format!("life {}", life.number), None);
    world.tell(|| format!("life {} begins", life.number));
    if life.origin_grows_bytes > 0 {
        world.tell(|| format!("the origin grows by {} bytes", life.origin_grows_bytes));
        ledger.fault(FaultKind::GrownOrigin);
        left.grow_origin(profile, life.origin_grows_bytes);
    }
    let fixture = CacheFixture::new(&world, profile, left);
    let crashed: Rc<RefCell<Option<Left>>> = Rc::default();
    let waker: Rc<WakerCell> = Rc::default();
    if let Some(crash_at) = life.crash_at {
        let (weak, crashed, waker) = (Rc::downgrade(&fixture), crashed.clone(), waker.clone());
        let (ledger, crash, prng) = (ledger.clone(), life.crash, RefCell::new(prng.clone()));
        let checked = profile.clone();
        world.watch(move |event| {
            let due = event >= crash_at && crashed.borrow().is_none();
            let Some(fixture) = weak.upgrade() else { return };
            if due && !fixture.has_unproved_damage() {
                ledger.count_crash(crash.cut());
                fixture.check_loss(&checked);
                crashed.replace(Some(fixture.left_by(crash, &mut prng.borrow_mut())));
                waker.wake();
            }
        });
    }
    let main = serve(world.clone(), fixture.clone(), profile.clone(), life);
    let ended = crashed.clone();
    executor.block_on(async move {
        let _ = race(waker.until(|| ended.borrow().is_some()), main).await;
    });
    world.unwatch();
    world.close();
    let left = crashed.borrow_mut().take();
    let left = left.unwrap_or_else(|| fixture.left_by(Crash::of(Cut::Kill), &mut prng));
    fixture.end_process();
    network.close();
    left
}

/// Runs the main task of a life.
async fn serve(world: World, fixture: Rc<CacheFixture>, profile: Profile, mut life: Life) {
    if let Some(older) = life.stale.take() {
        world.tell(|| "the SSD is an older copy of itself".to_owned());
        expect_refused(&world, &fixture, &profile, FaultKind::StaleSsd, Some(older)).await;
    }
    if life.swapped && !fixture.lost.get() {
        world.tell(|| "SSD and origin have changed places".to_owned());
        expect_refused(&world, &fixture, &profile, FaultKind::WrongOrder, None).await;
    }
    if life.foreign && !fixture.lost.get() {
        try_foreign_origin(&world, &fixture, &profile, &profile.settings(life.mode)).await;
    }
    if life.faulty {
        fixture.inject(&world, &profile);
    }
    let begun = start(&world, &fixture, &profile, life.mode).await;
    let mut dut = match begun {
        Start::Cached(dut) => dut,
        Start::Plain => return check_plain(&world, &fixture, &profile).await,
        Start::Refused => return,
    };
    let stops_loading = life.number > 0 && !life.ends && loading::is_drawn(&profile, &life.prng);
    if stops_loading {
        loading::hold_map(&fixture, &profile);
    }
    if life.faulty {
        fixture.inject_all(&profile);
    }
    if stops_loading {
        return loading::stop(&fixture, &profile, &dut).await;
    }
    if life.number == 0 || life.prng.one_in(2) {
        dut.check_all("at the start").await;
    }
    if life.prng.one_in(8) && !life.faulty {
        dut = reopen_exactly(dut, &fixture, &profile).await;
    }
    if life.ends {
        return dissolve(&dut, &fixture).await;
    }
    let hanging = Hanging::new(&fixture, &dut, !life.faulty);
    if profile.hangs {
        let turns = hanging.begin();
        run_clients(&dut, &profile, profile.steps).await;
        hanging.end(turns).await;
    } else {
        run_clients(&dut, &profile, profile.steps).await;
    }
    fixture.check_loss(&profile);
    dut.check_all("later").await;
    if profile.hangs && world.below(3) == 0 {
        return hanging.stop_beside_a_hung_drive(&profile).await;
    }
    if (!life.faulty || life.prng.one_in(2)) && fixture.can_be_mended() {
        fixture.mend(&world);
        calm(&world, &fixture, &profile, &dut).await;
    } else if life.prng.one_in(2) {
        fixture.stop(&dut).await;
    }
}
