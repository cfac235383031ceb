//! Trials: small lives, each for one promise that crashes alone do not try.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use voltier_block::{BlockDevice, Buf, Durability, IoError, KIB, Lba, MIB, Prng, SectorRange};
use voltier_cache::admission::AdmissionKind;
use voltier_cache::policy::PolicyKind;
use voltier_cache::{FormatOptions, LineSize, Mode, OpenError, Settings};
use voltier_ring::{Executor, NoFiles};

use crate::budget;
use crate::disk::SimDisk;
use crate::medium::{Cut, Medium};
use crate::origin::SimDrive;
use crate::rest;
use crate::workload::{DeviceUnderTest, Profile, SimCache, open, run_clients};
use crate::world::World;

/// Bytes of the smallest log: 20 segments of 256 KiB, at the end of the SSD.
const LOG_BYTES: u64 = 20 * 256 * KIB;
/// Bits that are flipped in one trial.
const FLIPPED_BITS: u64 = 40;
/// Sectors that the ordered trial uses, from the first on.
const ORDERED_SECTORS: u64 = 1024;
/// Steps of each client before a full SSD, and the bytes of the log of that SSD: more writes than it has
/// places for heads.
const FULL_STEPS: u64 = 1_000;
const FULL_LOG_BYTES: u64 = 40 * 256 * KIB;
/// Steps of the ordered trial.
const ORDERED_STEPS: u64 = 800;

/// Guarantee 4: bits of the SSD flip while it is off; no wrong byte is served, and only dirty lines
/// fail.
///
/// # Panics
/// When the promise is broken.
pub fn bit_rot(profile: &Profile, seed: u64) {
    budget::note_world();
    let mut executor = Executor::in_virtual_time(NoFiles);
    let world = World::new(&executor.handle(), seed);
    executor.block_on(life_with_bit_rot(world.clone(), profile.clone()));
    rest::check_tasks(&world, &mut executor);
}

async fn life_with_bit_rot(world: World, profile: Profile) {
    let (ssd, origin) = profile.format();
    let drives =
        (SimDisk::new(&world, &profile.ssd, ssd), SimDisk::new(&world, &profile.origin, origin));
    let settings = Settings { mode: profile.modes[0], ..Settings::default() };
    let (device, generation) =
        open(&world, &drives, settings.clone(), 0).await.expect("a new cache opens");
    let model = Rc::new(RefCell::new(profile.model()));
    let windows = profile.windows();
    let dut =
        Rc::new(DeviceUnderTest { world: world.clone(), model, device, windows: windows.into() });
    run_clients(&dut, &profile, profile.steps).await;
    dut.device.stop().await.expect("a stop works");
    let mut ssd = drives.0.medium();
    for _ in 0..FLIPPED_BITS {
        let byte = profile.ssd.bytes - LOG_BYTES + world.below(LOG_BYTES);
        ssd.flip_bit(byte, world.below(8) as u8);
    }
    let drives = (SimDisk::new(&world, &profile.ssd, ssd), drives.1);
    let device = match open(&world, &drives, settings, generation).await {
        Ok((device, _)) => device,
        Err(OpenError::Damaged(_)) => return,
        Err(error) => panic!("the cache does not come back: {error}"),
    };
    let dut = DeviceUnderTest {
        device,
        model: dut.model.clone(),
        world: world.clone(),
        windows: windows.into(),
    };
    let mut failing = Vec::new();
    for piece in windows.iter().flat_map(|window| window.split_at_multiples(8)) {
        if !served_right(&dut, piece).await {
            failing.push(piece);
        }
    }
    let damaged = dut.device.damaged_ranges();
    for piece in failing {
        let named = damaged.iter().any(|range| range.overlaps(piece));
        assert!(named, "{piece} fails and is not named as damaged");
    }
    dut.device.kill();
    rest::check_cache(&world, &dut.device).await;
}

/// Whether a read worked; what it returned is held to the model.
async fn served_right(dut: &DeviceUnderTest<SimCache>, range: SectorRange) -> bool {
    let read = dut.model.borrow_mut().begin_read();
    match dut.device.read(range.start, Buf::new(range.bytes() as usize)).await {
        Ok(data) => {
            let checked = dut.model.borrow_mut().end_read(read, range.start, &data);
            if let Err(violation) = checked {
                panic!("flipped bits were served: {violation}");
            }
            true
        }
        Err(IoError::Medium) => {
            dut.model.borrow_mut().fail_read(read);
            false
        }
        Err(error) => panic!("reading {range}: {error}"),
    }
}

/// The writes to each sector, by the number that is the content.
#[derive(Default)]
struct History {
    /// For each content the flushes before it, and before the next write to its sector.
    versions: BTreeMap<u64, (u64, u64)>,
    newest: BTreeMap<u64, u64>,
    flushes: u64,
    next: u64,
}

impl History {
    fn write(&mut self, sector: u64) -> u64 {
        self.next += 1;
        if let Some(old) = self.newest.insert(sector, self.next) {
            self.versions.get_mut(&old).expect("a version").1 = self.flushes;
        }
        self.versions.insert(self.next, (self.flushes, u64::MAX));
        self.next
    }

    /// Checks that these contents are the state at some flush and any part of the writes between
    /// it and the next one.
    fn check(&self, contents: impl Iterator<Item = (u64, u64)>, first_write: &[u64]) {
        // The flush that fits is at least the first and at most the second.
        let (mut from, mut to) = ((0, 0), (u64::MAX, 0));
        for (sector, content) in contents {
            let (at, until) = match content {
                0 => (0, first_write[sector as usize]),
                known => *self.versions.get(&known).expect("somebody wrote it"),
            };
            from = from.max((at, sector));
            to = to.min((until, sector));
        }
        assert!(
            from.0 <= to.0,
            "no flush fits the origin: sector {} was written after flush {}, but sector {} was \
             overwritten before flush {}",
            from.1,
            from.0,
            to.1,
            to.0 + 1
        );
    }
}

/// Guarantee 5, ordered mode. At any moment the origin alone, as after a power cut, is the state at some
/// flush. Any part of the writes up to the next flush is in it.
///
/// # Panics
/// When the promise is broken.
pub fn ordered(seed: u64) {
    budget::note_world();
    let mut executor = Executor::in_virtual_time(NoFiles);
    let world = World::new(&executor.handle(), seed);
    executor.block_on(ordered_life(world.clone()));
    world.unwatch();
    rest::check_tasks(&world, &mut executor);
}

async fn ordered_life(world: World) {
    let profile = Profile { ordered: true, ..Profile::small(&[Mode::WriteBack]) };
    let (ssd, origin) = profile.format();
    let drives =
        (SimDisk::new(&world, &profile.ssd, ssd), SimDisk::new(&world, &profile.origin, origin));
    let settings = Settings {
        mode: Mode::WriteBack,
        ordered: true,
        dirty_high_percent: 8,
        dirty_low_percent: 1,
        ..Settings::default()
    };
    let (cache, _) = open(&world, &drives, settings, 0).await.expect("a new cache opens");
    let first_write = vec![u64::MAX; ORDERED_SECTORS as usize];
    let history = Rc::new(RefCell::new((History::default(), first_write)));
    let (origin, seen) = (drives.1.clone(), history.clone());
    let cut_dice = RefCell::new(world.prng());
    world.watch(move |_| {
        let medium = origin.after(Cut::Power, &mut cut_dice.borrow_mut());
        let (history, first_write) = &*seen.borrow();
        let contents = (0..ORDERED_SECTORS).map(|sector| {
            let mut content = [0; 8];
            medium.peek(Lba(sector), &mut content);
            (sector, u64::from_le_bytes(content))
        });
        history.check(contents, first_write);
    });
    let mut prng = world.prng();
    for _ in 0..ORDERED_STEPS {
        ordered_step(&world, &cache, &history, &mut prng).await;
    }
    cache.drain().await.expect("a drain works");
    cache.stop().await.expect("a stop works");
    rest::check_cache(&world, &cache).await;
}

async fn ordered_step(
    world: &World,
    cache: &SimCache,
    history: &RefCell<(History, Vec<u64>)>,
    prng: &mut Prng,
) {
    match prng.below(12) {
        0 | 1 => {
            cache.flush().await.expect("a flush works");
            history.borrow_mut().0.flushes += 1;
        }
        2 => world.handle().sleep(prng.below(8_000_000)).await,
        _ => {
            let count = *prng.pick(&[1, 2, 8, 8, 16]);
            let span = if prng.one_in(2) { 64 } else { ORDERED_SECTORS };
            let start = prng.below(span - count + 1);
            let mut data = Buf::zeroed(count as usize * 512);
            for (sector, bytes) in (start..).zip(data.chunks_mut(512)) {
                let (history, first_write) = &mut *history.borrow_mut();
                bytes[..8].copy_from_slice(&history.write(sector).to_le_bytes());
                let first = &mut first_write[sector as usize];
                *first = (*first).min(history.flushes);
            }
            let written = cache.write(Lba(start), data.into(), Durability::Cached).await;
            written.expect("a write works");
        }
    }
}

/// Ordered mode over an SSD full of clean lines, and clients that flush after each write: the log finds
/// space in what is clean, the cleaner goes on without space in the log, and everything ends.
///
/// # Panics
/// When something does not.
pub fn full_of_clean_lines(seed: u64) {
    budget::note_world();
    let mut executor = Executor::in_virtual_time(NoFiles);
    let world = World::new(&executor.handle(), seed);
    executor.block_on(life_on_a_full_ssd(world.clone()));
    rest::check_tasks(&world, &mut executor);
}

async fn life_on_a_full_ssd(world: World) {
    let mut profile = Profile {
        ordered: true,
        syncs: true,
        steps: FULL_STEPS,
        sectors_max: 8,
        window_bytes: 8 * MIB,
        ..Profile::small(&[Mode::WriteBack])
    };
    profile.ssd.bytes = 2 * MIB + FULL_LOG_BYTES;
    // So slow that the log overtakes the cleaner.
    profile.origin.latency_ns = 8_000_000;
    profile.settings.dirty_high_percent = 90;
    profile.settings.dirty_low_percent = world.below(90) as u8;
    let (ssd, origin) = profile.format();
    let drives =
        (SimDisk::new(&world, &profile.ssd, ssd), SimDisk::new(&world, &profile.origin, origin));
    let settings = profile.settings(Mode::WriteBack);
    let (device, _) = open(&world, &drives, settings, 0).await.expect("a new cache opens");
    let (model, windows) = (Rc::new(RefCell::new(profile.model())), profile.windows().into());
    let dut = Rc::new(DeviceUnderTest { world: world.clone(), model, device, windows });
    dut.check_all("at the start").await;
    run_clients(&dut, &profile, profile.steps).await;
    world.within("a drain", dut.device.drain()).await.expect("a drain works");
    dut.check_all("after a drain").await;
    world.within("a stop", dut.device.stop()).await.expect("a stop works");
    rest::check_cache(&world, &dut.device).await;
}

/// Every setting is one that changes nothing of what may be read: a policy, who is admitted, a line
/// size, a cut-off for streams. All of them change while clients are at work.
///
/// # Panics
/// When a setting changes something.
pub fn settings(policy: PolicyKind, admission: AdmissionKind, line_bytes: u64) {
    budget::note_world();
    let mut executor = Executor::in_virtual_time(NoFiles);
    let world = World::new(&executor.handle(), line_bytes);
    let mut profile =
        Profile { line_bytes, policy, steps: 40, ..Profile::small(&[Mode::WriteBack]) };
    profile.ssd.bytes = 2 * MIB + 22 * (256 * KIB).max(16 * line_bytes);
    executor.block_on(life_with_settings(world.clone(), profile, admission));
    rest::check_tasks(&world, &mut executor);
}

async fn life_with_settings(world: World, profile: Profile, admission: AdmissionKind) {
    let (ssd, origin) = profile.format();
    let drives =
        (SimDisk::new(&world, &profile.ssd, ssd), SimDisk::new(&world, &profile.origin, origin));
    let settings = Settings {
        mode: Mode::WriteBack,
        admission,
        seq_cutoff_bytes: 64 * KIB,
        dirty_high_percent: 20,
        dirty_low_percent: 5,
        ..Settings::default()
    };
    let opened = open(&world, &drives, settings.clone(), 0).await;
    let (device, generation) = opened.expect("a new cache opens");
    let model = Rc::new(RefCell::new(profile.model()));
    let windows = profile.windows();
    let dut =
        Rc::new(DeviceUnderTest { world: world.clone(), model, device, windows: windows.into() });
    run_clients(&dut, &profile, profile.steps).await;
    stream(&dut).await;
    for policy in PolicyKind::ALL {
        dut.device.set_policy(policy).expect("there is memory");
        run_clients(&dut, &profile, 8).await;
    }
    for mode in [Mode::WriteThrough, Mode::ReadOnly, Mode::WriteBack] {
        let changed = Settings { mode, admission: AdmissionKind::Always, ..settings.clone() };
        dut.device.configure(changed).expect("the settings make sense");
        stream(&dut).await;
        run_clients(&dut, &profile, 8).await;
    }
    dut.check_all("at the end").await;
    rest::check_checksums(&world, &dut.device);
    dut.device.stop().await.expect("a stop works");
    rest::check_cache(&world, &dut.device).await;
    let opened = open(&world, &drives, settings, generation).await;
    let (device, _) = opened.expect("the cache comes back");
    let again = DeviceUnderTest {
        device,
        model: dut.model.clone(),
        world: world.clone(),
        windows: windows.into(),
    };
    again.check_all("after the start").await;
    again.device.drain().await.expect("a drain works");
    again.device.stop().await.expect("a stop works");
    rest::check_cache(&world, &again.device).await;
}

/// One window is written and read from its begin to its end.
async fn stream(dut: &DeviceUnderTest<SimCache>) {
    for piece in dut.windows[0].split_at_multiples(64) {
        let mut data = Buf::new(piece.bytes() as usize);
        dut.world.prng().fill(&mut data);
        let write = dut.model.borrow_mut().begin_write(piece.start, &data);
        let written = dut.device.write(piece.start, data.into(), Durability::Cached).await;
        written.expect("a write works");
        dut.model.borrow_mut().end_write(write, false);
    }
    for piece in dut.windows[0].split_at_multiples(64) {
        dut.check(piece, "in a stream").await;
    }
}

/// A drive that holds no cache of ours, or cannot, is refused with a sentence.
///
/// # Panics
/// When such a drive is taken.
pub fn refusals() {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let world = World::new(&executor.handle(), 1);
    executor.block_on(async move {
        let mut profile = Profile::small(&[Mode::WriteBack]);
        let origin = SimDisk::new(&world, &profile.origin, Medium::zeroed(profile.origin.bytes));
        let before = SimDrive::any_sector(origin.clone());
        let format = FormatOptions {
            line_size: LineSize::new(2048).expect("a line size"),
            policy: profile.policy,
            uuid: [3; 16],
        };
        profile.ssd.block_bytes = 4096;
        let coarse = SimDisk::new(&world, &profile.ssd, Medium::zeroed(profile.ssd.bytes));
        profile.ssd.bytes = 5 * MIB;
        let small = SimDisk::new(&world, &profile.ssd, Medium::zeroed(profile.ssd.bytes));
        profile.ssd.bytes = 32 * KIB;
        let tiny = SimDisk::new(&world, &profile.ssd, Medium::zeroed(profile.ssd.bytes));
        for (ssd, word) in [(&coarse, "blocks have 4096 bytes"), (&small, "needs at least")] {
            let refused = SimCache::format(ssd, &before, &format).await.expect_err("refused");
            assert!(refused.to_string().contains(word), "{refused}");
        }
        for empty in [coarse, small, tiny] {
            assert!(matches!(SimCache::probe(&empty).await, Ok(None)));
            let opened = open(&world, &(empty, origin.clone()), Settings::default(), 0).await;
            assert!(matches!(opened.err(), Some(OpenError::NotACache)));
        }
        let wrong = Settings { dirty_low_percent: 70, ..Settings::default() };
        assert!(wrong.check().is_err());
        assert!("touches:99".parse::<AdmissionKind>().is_err());
        assert!("none".parse::<PolicyKind>().is_err());
        assert!("none".parse::<Mode>().is_err() && LineSize::new(1000).is_err());
    });
}
