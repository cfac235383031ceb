//! One life of a cache: from the start of a process to its end, whatever end that is.

use std::collections::BTreeSet;
use std::rc::Rc;

use voltier_block::{BlockDevice, Buf, Durability, Lba, Nanos, SectorRange};
use voltier_cache::{Health, Mode, OpenError, Settings};

use crate::disk::SimDisk;
use crate::fault::FaultKind;
use crate::fixture::{CacheFixture, origin_disk};
use crate::hanging::still_sectors;
use crate::medium::Medium;
use crate::origin::SimDrive;
use crate::rest;
use crate::workload::{
    DeviceUnderTest, Profile, SimCache, is_in, open_as, open_passed, plain_dut, run_clients,
};
use crate::world::World;

/// Longer than any request takes, stuck ones included.
const REST_NS: Nanos = 900_000_000_000;

/// How a start went.
pub(crate) enum Start {
    /// The cache serves.
    Cached(Rc<DeviceUnderTest<SimCache>>),
    /// There is none any more, and there must not be: the plain origin serves.
    Plain,
    /// The start was refused, for a reason that faults explain.
    Refused,
}

/// Starts what is on the drives, as the registry would.
pub(crate) async fn start(
    world: &World,
    fixture: &Rc<CacheFixture>,
    profile: &Profile,
    mode: Mode,
) -> Start {
    if fixture.lost.get() {
        return Start::Plain;
    }
    match fixture.open(world, profile, mode).await {
        Ok(dut) => Start::Cached(dut),
        Err(OpenError::NotACache) if fixture.dissolving.get() => Start::Plain,
        Err(error) if fixture.may_refuse(world, &error) => {
            world.tell(|| format!("the start is refused: {error}"));
            world.ledger().count(|counts| counts.refused += 1);
            if !matches!(error, OpenError::Io { .. } | OpenError::Silent { .. }) {
                fixture.give_up_cache();
            }
            Start::Refused
        }
        Err(error) => panic!("the cache does not come back: {error}"),
    }
}

/// A start that must be refused, and must change nothing: with an older SSD in place, or with the
/// drives in each other's place.
pub(crate) async fn expect_refused(
    world: &World,
    fixture: &CacheFixture,
    profile: &Profile,
    kind: FaultKind,
    older: Option<Medium>,
) {
    let (ssd, origin) = fixture.drives.borrow().clone();
    let drives = match older {
        Some(older) => (SimDisk::new(world, &profile.ssd, older), origin.clone()),
        None => (origin.clone(), ssd.clone()),
    };
    let before = (ssd.changes(), origin.changes());
    world.ledger().fault(kind);
    let settings = profile.settings(Mode::WriteBack);
    let opened = open_as(fixture.uuid, world, &drives, settings, fixture.generation.get()).await;
    assert!(opened.is_err(), "{} is trusted", kind.name());
    assert_eq!((ssd.changes(), origin.changes()), before, "{} changes a drive", kind.name());
    world.ledger().count(|counts| counts.refused += 1);
}

/// Starts before another origin, on copies of the drives. The cache refuses while lines are dirty, if the
/// start before the right origin had clean lines to compare. Nothing is changed.
pub(crate) async fn try_foreign_origin(
    world: &World,
    fixture: &CacheFixture,
    profile: &Profile,
    settings: &Settings,
) {
    let media = fixture.drives.borrow().clone();
    let (ssd, right) = (media.0.medium(), media.1.medium());
    let copies = |origin: &Medium| {
        let ssd = SimDisk::new(world, &profile.ssd, ssd.clone());
        (ssd, origin_disk(world, profile, origin.clone(), fixture.origin_grown_bytes))
    };
    let (uuid, least) = (fixture.uuid, fixture.generation.get());
    let open = async |drives: &(SimDisk, SimDisk)| {
        open_passed(uuid, world, drives, settings.clone(), least, fixture.passed()).await
    };
    let Ok((known, found)) = open(&copies(&right)).await else {
        return;
    };
    known.kill();
    let dirty = known.status().lines.dirty;
    if found.sampled_lines == 0 || found.origin_changed {
        return;
    }
    let mut foreign = right;
    let written = profile.windows().into_iter().chain(still_sectors(profile));
    // Windows of clients overlap where they are large: what is turned over twice is as it was.
    let written: BTreeSet<u64> = written.flat_map(|it| it.start.0..it.end().0).collect();
    for sector in written {
        let mut bytes = [0; 512];
        foreign.peek(Lba(sector), &mut bytes);
        foreign.overwrite(sector * 512, &bytes.map(|byte| !byte));
    }
    let drives = copies(&foreign);
    let before = (drives.0.changes(), drives.1.changes());
    world.ledger().fault(FaultKind::ForeignOrigin);
    match open(&drives).await {
        Ok((emptied, opened)) => {
            emptied.kill();
            assert!(dirty == 0, "{dirty} dirty lines before a foreign origin: {opened:?}");
            assert!(opened.origin_changed, "a foreign origin is trusted: {opened:?}");
            assert_eq!(emptied.status().lines.used, 0, "lines of another origin");
        }
        Err(OpenError::OriginChanged { .. } | OpenError::ForeignOrigin { .. }) => {
            assert!(dirty > 0, "a clean cache is refused before a foreign origin");
            let after = (drives.0.changes(), drives.1.changes());
            assert_eq!(after, before, "a foreign origin changes a drive");
            world.ledger().count(|counts| counts.refused += 1);
        }
        Err(error) => panic!("a foreign origin looks like something else: {error}"),
    }
}

/// Writes everything back, takes the cache away and checks the plain origin. Does nothing where an
/// SSD that is lost or damaged stands in the way.
pub(crate) async fn dissolve(dut: &Rc<DeviceUnderTest<SimCache>>, fixture: &CacheFixture) {
    let settings = Settings { mode: Mode::PassThrough, ..dut.device.settings() };
    dut.device.configure(settings).expect("a mode switch works");
    if let Err(error) = dut.device.drain().await {
        return dut.forgive(error, "at the end", || "a drain".to_owned());
    }
    assert_eq!(dut.device.status().lines.dirty, 0, "dirty lines after a drain");
    fixture.dissolving.set(true);
    if let Err(error) = dut.device.dissolve().await {
        return dut.forgive(error, "at the end", || "a dissolve".to_owned());
    }
    let drives = fixture.drives.borrow().clone();
    if !dut.world.is_excused() {
        assert!(matches!(SimCache::probe(&drives.0).await, Ok(None)), "the label is still there");
    }
    rest::check_cache(&dut.world, &dut.device).await;
    plain_dut(dut, drives.1).check_all("the plain origin").await;
}

/// Holds the origin alone to the model.
pub(crate) async fn check_plain(world: &World, fixture: &CacheFixture, profile: &Profile) {
    let device = SimDrive::in_world(world, fixture.drives.borrow().1.clone());
    let (world, model) = (world.clone(), fixture.model.clone());
    let dut = DeviceUnderTest { world, model, device, windows: profile.windows().into() };
    dut.check_all("the plain origin after a crash").await;
}

/// Dirty is exactly what it must be. After a kill every sector that the origin has otherwise is listed as
/// dirty, and nothing else than what was written is. Ends with the cache open again.
pub(crate) async fn reopen_exactly(
    dut: Rc<DeviceUnderTest<SimCache>>,
    fixture: &Rc<CacheFixture>,
    profile: &Profile,
) -> Rc<DeviceUnderTest<SimCache>> {
    let world = dut.world.clone();
    if dut.device.status().health != Health::Online {
        return dut;
    }
    let newer = fixture.newer_than_origin(profile);
    fixture.end_process();
    let dirty = dut.device.lost_ranges(usize::MAX);
    for sector in newer {
        assert!(is_in(&dirty, sector), "sector {sector} is newer than the origin, but not dirty");
    }
    let line_sectors = profile.line_bytes / 512;
    for line in dirty.iter().flat_map(|it| it.start.0 / line_sectors..it.end().0 / line_sectors) {
        let model = dut.model.borrow();
        let mut sectors = line * line_sectors..(line + 1) * line_sectors;
        assert!(sectors.any(|it| model.is_touched(it)), "line {line}, never written, is dirty");
    }
    fixture.kill(&world, profile);
    fixture.open(&world, profile, Mode::WriteBack).await.expect("the cache comes back")
}

/// The liveness phase of a cache whose drives do not fail any more: everything completes, and all
/// that is not lost is there. Ends with a stop in order.
pub(crate) async fn calm(
    world: &World,
    fixture: &Rc<CacheFixture>,
    profile: &Profile,
    dut: &Rc<DeviceUnderTest<SimCache>>,
) {
    // Requests under way may still fail.
    world.pass(REST_NS).await;
    if dut.device.flush().await.is_err() {
        // An earlier fault may be told only now.
        dut.model.borrow_mut().fail_flush();
    }
    world.tell(|| "the faults have ended".to_owned());
    world.excuse(fixture.ssd_damaged.get());
    if dut.device.status().health == Health::Failed {
        return outlive_ssd(world, dut).await;
    }
    if let Err(error) = world.within("a drain", dut.device.drain()).await {
        dut.forgive(error, "at rest", || "a drain".to_owned());
        if dut.device.status().health == Health::Failed {
            return outlive_ssd(world, dut).await;
        }
        heal_damage(world, dut).await;
    }
    assert_eq!(dut.device.status().lines.dirty, 0, "dirty lines after a drain");
    world.within("reading everything", dut.check_all("after the faults")).await;
    world.within("using it", run_clients(dut, profile, 4)).await;
    world.within("a stop", fixture.stop(dut)).await;
}

/// Checks that lines which could not be drained are damaged, that all of them are known, and that a write
/// heals them.
async fn heal_damage(world: &World, dut: &Rc<DeviceUnderTest<SimCache>>) {
    let damaged = dut.device.damaged_ranges();
    let dirty = dut.device.status().lines.dirty;
    assert!(dirty <= damaged.len() as u64, "{dirty} dirty lines, {} damaged", damaged.len());
    world.tell(|| format!("{} damaged lines are written anew", damaged.len()));
    for range in damaged {
        world.within("healing", write_zeroes(dut, range)).await;
    }
    let drained = world.within("a drain", dut.device.drain()).await;
    drained.expect("a drain works when nothing is damaged any more");
}

async fn write_zeroes(dut: &DeviceUnderTest<SimCache>, range: SectorRange) {
    let write = dut.model.borrow_mut().begin_zeroes(range);
    let written = dut.device.write_zeroes(range, Durability::Cached).await;
    written.unwrap_or_else(|error| panic!("zeroing {range} again: {error}"));
    dut.model.borrow_mut().end_write(write, false);
}

/// The SSD is given up and the origin works: what is lost fails to read, until it is written;
/// everything else is right.
async fn outlive_ssd(world: &World, dut: &Rc<DeviceUnderTest<SimCache>>) {
    // A write waits until the loss is on record.
    let lost = world.within("the record of a loss", async {
        let _ = dut.device.flush().await;
        dut.device.lost_ranges(usize::MAX)
    });
    let lost = lost.await;
    for range in &lost {
        let buf = Buf::new(range.bytes().min(1 << 20) as usize);
        let read = world.within("a read", dut.device.read(range.start, buf)).await;
        assert!(read.is_err(), "lost {range} can be read");
    }
    world.excuse(false);
    for &window in &dut.windows {
        for piece in window.split_at_multiples(128) {
            if !lost.iter().any(|range| range.overlaps(piece)) {
                dut.check(piece, "without the SSD").await;
            }
        }
    }
    for range in lost {
        for piece in range.split_at_multiples(1024) {
            world.within("healing", write_zeroes(dut, piece)).await;
        }
    }
    assert_eq!(dut.device.lost_ranges(usize::MAX), [], "lost ranges that were written");
    world.within("reading everything", dut.check_all("without the SSD")).await;
    world.within("a flush", dut.device.flush()).await.expect("a flush works");
    world.excuse(true);
}
