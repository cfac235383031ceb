//! Drives of a cache hang while clients use it. During the fault, reads of clean lines end soon although the
//! SSD answers nothing. Nobody waits for an SSD without dirty lines.

use std::cell::Cell;
use std::rc::Rc;

use voltier_block::{KIB, MIB, Nanos, Prng, SectorRange};
use voltier_cache::Side;
use voltier_ring::JoinHandle;

use crate::fixture::CacheFixture;
use crate::hang_times::{DEADLINE_NS, draw_time_ns};
use crate::workload::{DeviceUnderTest, Profile, SimCache, run_clients};
use crate::world::World;

/// Mixed into the seed: seeds that do not draw this are as they were, and no kept seed draws it.
const HANG: u64 = 0x7369_6c65_6e74_00ce;
/// One seed in so many has drives that hang.
const HANG_ONE_IN: u64 = 4;
/// Longest time until the next drive hangs.
const REST_NS: Nanos = 30_000_000;
/// Until then a drive has done all that it was asked for while it hung.
const ALL_DONE_NS: Nanos = 5 * DEADLINE_NS;
/// So many deadlines a read of clean lines takes at most, and a step of a stop.
const PATIENCE: Nanos = 6;
/// So many deadlines after a drive began to hang, its cache has decided about it.
const DECIDED: Nanos = 3;
/// Lines that nobody writes: clean, and cached when they were read.
const STILL: (u64, u64) = (8 * MIB, 256 * KIB);
/// Longest read of them, in sectors.
const STILL_SECTORS: u64 = 256;

/// The lines that nobody writes, of worlds in which drives hang.
pub(crate) fn still_sectors(profile: &Profile) -> Option<SectorRange> {
    profile.hangs.then(|| SectorRange::from_bytes(STILL.0, STILL.1))
}

/// Drives that hang, if the seed draws them.
pub(crate) fn hangs(profile: &mut Profile, seed: u64) {
    profile.hangs = Prng::new(seed ^ HANG).one_in(HANG_ONE_IN);
    if profile.hangs {
        profile.settings.deadline_ns = DEADLINE_NS;
    }
}

/// The parts of a life in which drives hang.
#[derive(Clone)]
pub(crate) struct Hanging {
    world: World,
    fixture: Rc<CacheFixture>,
    dut: Rc<DeviceUnderTest<SimCache>>,
    /// Nothing else goes wrong: times are bounded.
    is_bounded: bool,
    is_over: Rc<Cell<bool>>,
}

impl Hanging {
    pub(crate) fn new(
        fixture: &Rc<CacheFixture>,
        dut: &Rc<DeviceUnderTest<SimCache>>,
        is_bounded: bool,
    ) -> Self {
        let (world, is_over) = (dut.world.clone(), Rc::default());
        Self { world, fixture: fixture.clone(), dut: dut.clone(), is_bounded, is_over }
    }

    /// Has drives hang from now on, until [`end`](Self::end).
    pub(crate) fn begin(&self) -> JoinHandle<()> {
        let (own, dice) = (self.clone(), self.world.prng());
        self.world.handle().spawn(own.hang_in_turn(dice))
    }

    /// No further drive hangs; waits until those that do answer again.
    pub(crate) async fn end(&self, hanging: JoinHandle<()>) {
        self.is_over.set(true);
        hanging.await;
    }

    async fn hang_in_turn(self, mut dice: Prng) {
        // Most of the lines that nobody writes come into the cache.
        self.read_still(&mut dice, 8).await;
        while !self.is_over.get() {
            self.world.handle().sleep(dice.below(REST_NS)).await;
            let time_ns = draw_time_ns(&mut dice);
            let (ssd, origin) = self.fixture.drives.borrow().clone();
            if dice.one_in(4) {
                origin.hang(time_ns);
                self.world.handle().sleep(time_ns).await;
            } else {
                ssd.hang(time_ns);
                self.watch_hung_ssd(time_ns, &mut dice).await;
            }
            self.world.handle().sleep(ALL_DONE_NS).await;
        }
    }

    async fn watch_hung_ssd(&self, time_ns: Nanos, dice: &mut Prng) {
        let begun = self.world.handle().now();
        let ends = begun + time_ns;
        while self.world.handle().now() < ends {
            self.read_still(dice, 1).await;
            let now = self.world.handle().now();
            let silent = self.dut.device.silent_drive().filter(|it| it.side == Side::Ssd);
            if let Some(silent) = silent.filter(|_| now > begun + DECIDED * DEADLINE_NS) {
                let why = "everybody stands still for an SSD that nothing depends on";
                assert!(silent.lines_dirty > 0, "{why}: {silent:?}");
            }
            let rest_ns = 1 + dice.below(DEADLINE_NS / 2);
            self.world.handle().sleep_until((now + rest_ns).min(ends)).await;
        }
    }

    /// Reads lines that nobody writes.
    async fn read_still(&self, dice: &mut Prng, reads: u64) {
        for _ in 0..reads {
            let sectors = 1 + dice.below(STILL_SECTORS);
            let still = SectorRange::from_bytes(STILL.0, STILL.1);
            let start = still.start.plus(dice.below(still.count - sectors + 1));
            let begun = self.world.handle().now();
            self.dut.check(SectorRange::new(start, sectors), "while a drive hangs").await;
            self.check_time("a read of clean lines", begun);
        }
    }

    fn check_time(&self, what: &str, begun: Nanos) {
        let took_ns = self.world.handle().now() - begun;
        let is_bounded = !self.is_bounded || took_ns < PATIENCE * DEADLINE_NS;
        assert!(is_bounded, "{what} stands still for {} ms", took_ns / 1_000_000);
    }

    /// Stops the cache while one of its drives answers nothing, and clients are at work.
    pub(crate) async fn stop_beside_a_hung_drive(&self, profile: &Profile) {
        let mut dice = self.world.prng();
        let (ssd, origin) = self.fixture.drives.borrow().clone();
        let hung = if dice.one_in(2) { ssd } else { origin };
        hung.hang(100 * DEADLINE_NS);
        let (dut, profile) = (self.dut.clone(), profile.clone());
        let clients =
            self.world.handle().spawn(async move { run_clients(&dut, &profile, 2).await });
        self.world.handle().sleep(dice.below(2 * PATIENCE * DEADLINE_NS)).await;
        // Requests that wait for the drive end with an error from here on.
        self.world.excuse(true);
        self.dut.device.leave_silent_drives();
        let begun = self.world.handle().now();
        clients.await;
        self.fixture.stop(&self.dut).await;
        self.check_time("a stop", begun);
    }
}
