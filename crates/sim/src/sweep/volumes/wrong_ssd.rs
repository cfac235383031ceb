//! Starts with an SSD that is not the right one. The start is refused with the reason and nothing
//! changed, or, when nothing can be lost, served without it.

use std::rc::Rc;
use std::time::Duration;

use voltier_block::{Lba, Prng};
use voltier_cache::{Cache, OpenOptions, SUPERBLOCK_MAGIC};
use voltier_control::protocol::{Request, Response};
use voltier_control::{CacheRecord, Desired, Service, Settings, VolumeState, seed_of};

use super::command::{ask, create, create_swapped, name, new_cache, shape, show};
use super::engine::{self, SSD, SimEngine};
use super::fixture::{Identities, Left, VolumeFixture};
use super::plan::Plan;
use crate::fault::FaultKind;
use crate::ledger::Ledger;
use crate::medium::Medium;
use crate::origin::SimDrive;
use crate::sweep::harness::{Crash, Fixture, SweepPosition};

/// One crash point in so many is tried with a wrong SSD.
const ONE_IN: u64 = 3;

/// An SSD that is plugged in instead of the right one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WrongSsd {
    /// The SSD's own older self.
    Stale,
    /// The cache of another volume.
    Foreign,
    /// An empty drive.
    Blank,
    /// The two drives are where the other one was, and have marks to know them by.
    Swapped,
    /// The same with drives that have none.
    SwappedUnknown,
    /// The SSD is the right one, and an empty drive has the path of the HDD.
    OtherHdd,
    /// The same with drives that have no marks, and a drive with other content.
    OtherHddUnknown,
}

impl WrongSsd {
    /// Whether the drives have marks that the record knows.
    fn has_marks(self) -> bool {
        !matches!(self, WrongSsd::SwappedUnknown | WrongSsd::OtherHddUnknown)
    }

    /// The reason that the user is told.
    fn reason(self) -> &'static str {
        match self {
            WrongSsd::Stale => "older state",
            WrongSsd::Foreign => "another cache",
            WrongSsd::Blank => "no Voltier cache",
            WrongSsd::Swapped => "",
            WrongSsd::SwappedUnknown => "its backing disk",
            WrongSsd::OtherHdd => "another drive",
            WrongSsd::OtherHddUnknown => "was changed",
        }
    }

    /// Counts a refusal; kinds of the fault model are counted there.
    fn count(self, ledger: &Ledger) {
        match self {
            WrongSsd::Stale => ledger.fault(FaultKind::StaleSsd),
            WrongSsd::Swapped | WrongSsd::SwappedUnknown | WrongSsd::OtherHdd => {
                ledger.fault(FaultKind::WrongOrder);
            }
            WrongSsd::OtherHddUnknown => ledger.fault(FaultKind::ForeignOrigin),
            WrongSsd::Foreign | WrongSsd::Blank => {}
        }
        ledger.count(|counts| counts.refused += 1);
    }
}

/// An SSD with the cache of another volume, stopped in order.
fn foreign(plan: &Plan, ledger: &Rc<Ledger>) -> Medium {
    let drives = &plan.drives;
    let mut left = Left::nothing(drives);
    left.daemon.is_of_another_machine();
    let fixture = VolumeFixture::new(drives, left, 0, ledger);
    let mut service = engine::service(&fixture);
    service.start(false, Duration::ZERO);
    ask(&fixture, &mut service, create(Some(&Settings::default())));
    service.stop();
    fixture.ssd.medium()
}

/// Changes everything that clients use.
fn overwrite_all(hdd: &mut Medium, plan: &Plan) {
    for sector in plan.drives.windows().iter().flat_map(|window| window.start.0..window.end().0) {
        let mut bytes = [0; 512];
        hdd.peek(Lba(sector), &mut bytes);
        hdd.overwrite(sector * 512, &bytes.map(|byte| !byte));
    }
}

/// Whether a crash left dirty lines, and clean ones by which the origin is known.
fn can_tell_origins(
    plan: &Plan,
    ledger: &Rc<Ledger>,
    crash: &Crash<Left>,
    record: &CacheRecord,
) -> bool {
    let fixture = VolumeFixture::new(&plan.drives, crash.left.clone(), 0, ledger);
    let (ssd, hdd) = (fixture.ssd.clone(), SimDrive::any_sector(fixture.hdd.clone()));
    let (handle, uuid) = (fixture.world.handle().clone(), record.uuid.0);
    let options = OpenOptions {
        uuid: Some(uuid),
        seed: seed_of(&record.uuid),
        ..OpenOptions::with(record.settings.for_cache())
    };
    fixture.run(async move {
        let opened = Cache::open(&handle, ssd, hdd, options).await;
        let Ok((cache, opened)) = opened else { return false };
        cache.kill();
        opened.sampled_lines > 0 && cache.status().lines.dirty > 0
    })
}

/// The content that a crash left, with drives that are not the ones of the record.
fn drives_of(
    wrong_ssd: WrongSsd,
    plan: &Plan,
    stale: Option<&Medium>,
    ledger: &Rc<Ledger>,
    crash_left: &Left,
) -> Left {
    let mut left = crash_left.clone();
    match (wrong_ssd, stale) {
        (WrongSsd::Stale, Some(stale)) => left.ssd = stale.clone(),
        (WrongSsd::Foreign, _) => left.ssd = foreign(plan, ledger),
        (WrongSsd::Blank, _) => left.ssd = Medium::zeroed(plan.drives.ssd.bytes),
        (WrongSsd::OtherHdd, _) => left.hdd = Medium::zeroed(plan.drives.hdd.bytes),
        (WrongSsd::OtherHddUnknown, _) => overwrite_all(&mut left.hdd, plan),
        _ => {}
    }
    if !wrong_ssd.has_marks() {
        left.daemon.forget_identities();
    }
    left
}

/// Tries wrong SSDs on what a crash left, when a cache is on record; how many it tried.
pub(super) fn replace_the_ssd(
    plan: &Plan,
    stale: Option<&Medium>,
    ledger: &Rc<Ledger>,
    crash: &Crash<Left>,
    prng: &mut Prng,
) -> u64 {
    let registry = crash.left.daemon.registry();
    let volume = registry.find(&name());
    if volume.is_some_and(|volume| volume.desired == Desired::Stopped) {
        // Nothing is opened before a start by name.
        return 0;
    }
    // A start of a volume that leaves goes on with that: `recover` sees to it.
    let is_serving = volume.is_some_and(|volume| volume.desired == Desired::Serving);
    let record = volume.and_then(|record| record.cache.clone());
    let Some(record) = record.filter(|cache| cache.generation > 0) else { return 0 };
    let wrong_ssd = match (prng.below(4 * ONE_IN), stale) {
        (0, Some(_)) => WrongSsd::Stale,
        (1, _) => WrongSsd::Foreign,
        (2, _) => WrongSsd::Blank,
        (3, _) if is_serving => WrongSsd::Swapped,
        (4, _) => WrongSsd::SwappedUnknown,
        (5, _) => WrongSsd::OtherHdd,
        (6, _) if can_tell_origins(plan, ledger, crash, &record) => WrongSsd::OtherHddUnknown,
        _ => return 0,
    };
    let place = format!("{}, {wrong_ssd:?}", crash.place);
    let _place = SweepPosition::at(ledger, &place, Some(crash.event));
    wrong_ssd.count(ledger);
    let left = drives_of(wrong_ssd, plan, stale, ledger, &crash.left);
    let has_marks = wrong_ssd.has_marks();
    let fixture = VolumeFixture::new(&plan.drives, left.clone(), prng.next_u64(), ledger);
    fixture.swapped.set(matches!(wrong_ssd, WrongSsd::Swapped | WrongSsd::SwappedUnknown));
    fixture.identities.set(match wrong_ssd {
        _ if !has_marks => Identities::None,
        WrongSsd::OtherHdd => Identities::OtherHdd,
        _ => Identities::Known,
    });
    let mut service = engine::service(&fixture);
    service.start(false, Duration::ZERO);
    let status = show(&mut service);
    if wrong_ssd == WrongSsd::Swapped {
        assert_ne!(status.state, VolumeState::Failed, "{}", status.error);
        assert_eq!(status.hdd.path, SSD);
        fixture.check_all("with its drives at each other's paths");
        service.stop();
        fixture.check_for_leaks();
        return 1;
    }
    assert!(status.error.contains(wrong_ssd.reason()), "{wrong_ssd:?}: {}", status.error);
    let is_origin = !has_marks || wrong_ssd == WrongSsd::OtherHdd;
    if is_origin || record.maybe_dirty {
        // The right SSD comes back in `recover`, which starts from the very same state.
        assert_eq!(status.state, VolumeState::Failed, "{}", status.error);
        let now = fixture.left();
        assert!(now.hdd.reads_like(&left.hdd), "the origin was changed");
        assert!(now.ssd.reads_like(&left.ssd), "the SSD was changed");
        assert_eq!(now.daemon.registry, left.daemon.registry, "the registry was changed");
        service.stop();
        fixture.check_for_leaks();
        return 1;
    }
    assert_eq!(status.state, VolumeState::Degraded, "{}", status.error);
    fixture.check_all("without its SSD");
    fixture.start_clients(2);
    fixture.pass(3_000_000);
    service.stop();
    fixture.check_for_leaks();
    let left = Left { ssd: crash.left.ssd.clone(), ..fixture.left() };
    bring_back(VolumeFixture::new(&plan.drives, left, prng.next_u64(), ledger), &record);
    1
}

/// The service refuses a call that names the drives in the wrong order while the SSD holds a cache. So
/// too when nobody has the cache on record. Such a call changes nothing. Returns how many such calls were
/// tried.
pub(super) fn refuse_swapped(
    ledger: &Ledger,
    fixture: &VolumeFixture,
    service: &mut Service<SimEngine>,
) -> u64 {
    let mut mark = [0; SUPERBLOCK_MAGIC.len()];
    fixture.ssd.peek(Lba(0), &mut mark);
    if mark != SUPERBLOCK_MAGIC {
        return 0;
    }
    let before = fixture.left();
    match service.handle(create_swapped()) {
        Response::Error { error } => {
            assert!(error.message.contains("holds a Voltier cache"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    let now = fixture.left();
    assert!(now.hdd.reads_like(&before.hdd) && now.ssd.reads_like(&before.ssd));
    assert_eq!(now.daemon.registry, before.daemon.registry);
    WrongSsd::Swapped.count(ledger);
    1
}

/// The right SSD is there again, and was given up meanwhile: it is not trusted, and a new
/// cache can be made on it.
fn bring_back(fixture: Rc<VolumeFixture>, record: &CacheRecord) {
    let mut service = engine::service(&fixture);
    service.start(false, Duration::ZERO);
    let status = show(&mut service);
    assert_eq!(status.state, VolumeState::Degraded, "{}", status.error);
    fixture.check_all("with the SSD that was given up");
    ask(&fixture, &mut service, Request::Detach { name: name(), flush: true });
    assert_eq!(shape(&fixture.registry()), Some(None));
    fixture.check_all("detached");
    let cache = new_cache(&record.settings);
    ask(&fixture, &mut service, Request::Attach { name: name(), cache });
    fixture.check_all("with a new cache on it");
    service.stop();
    fixture.check_for_leaks();
}
