//! Starts with an SSD that is not the right one: refused with the reason and nothing changed, or,
//! when nothing can be lost, served without it.

use std::rc::Rc;

use voltier_block::{Lba, Prng};
use voltier_cache::SUPERBLOCK_MAGIC;
use voltier_control::protocol::{Request, Response};
use voltier_control::{CacheRecord, Service, Settings, VolumeState};

use super::bay::{Bay, Left};
use super::engine::SimEngine;
use super::story::{ask, create, create_swapped, name, new_cache, shape};
use super::{Crash, Place, Walk, show};
use crate::fault::FaultKind;
use crate::ledger::Ledger;
use crate::medium::Medium;

/// One crash point in so many is tried with a wrong SSD.
const ONE_IN: u64 = 3;

/// What is plugged in instead of the right SSD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Intruder {
    /// Its own older self.
    Stale,
    /// The cache of another volume.
    Foreign,
    /// An empty drive.
    Blank,
    /// The two drives are where the other one was.
    Swapped,
}

impl Intruder {
    /// What the user is told.
    fn reason(self) -> &'static str {
        match self {
            Intruder::Stale => "older state",
            Intruder::Foreign => "another cache",
            Intruder::Blank => "no Voltier cache",
            Intruder::Swapped => "its origin",
        }
    }

    /// It was refused; those that are of the fault model are counted there.
    fn count(self, ledger: &Ledger) {
        match self {
            Intruder::Stale => ledger.fault(FaultKind::StaleSsd),
            Intruder::Swapped => ledger.fault(FaultKind::WrongOrder),
            Intruder::Foreign | Intruder::Blank => {}
        }
        ledger.count(|counts| counts.refused += 1);
    }
}

/// An SSD with the cache of another volume, stopped in order.
fn foreign(walk: &Walk) -> Medium {
    let drives = &walk.plan.drives;
    let bay = Bay::new(drives, Left::nothing(drives), 0, &walk.ledger);
    let mut service = bay.service();
    service.start(false);
    ask(&bay, &mut service, create(Some(&Settings::default())));
    service.stop();
    bay.ssd.medium()
}

impl Walk {
    /// Tries wrong SSDs on what a crash left, when a cache is on record.
    pub(super) fn replace_the_ssd(self: &Rc<Self>, crash: &Crash, prng: &mut Prng) {
        let registry = crash.left.site.registry();
        let record = registry.find(&name()).and_then(|record| record.cache.clone());
        let Some(record) = record.filter(|cache| cache.generation > 0) else { return };
        let draw = prng.below(4 * ONE_IN);
        let (intruder, ssd) = match draw {
            0 => match &self.stale {
                Some(stale) => (Intruder::Stale, stale.clone()),
                None => return,
            },
            1 => (Intruder::Foreign, foreign(self)),
            2 => (Intruder::Blank, Medium::zeroed(self.plan.drives.ssd.bytes)),
            3 => (Intruder::Swapped, crash.left.ssd.clone()),
            _ => return,
        };
        let place = format!("{}, {intruder:?}", crash.place);
        let _place = Place::at(&self.ledger, &place, Some(crash.event));
        self.count(|report| report.intruders += 1);
        intruder.count(&self.ledger);
        let left = Left { ssd, ..crash.left.clone() };
        let bay = Bay::new(&self.plan.drives, left.clone(), prng.next_u64(), &self.ledger);
        bay.swapped.set(intruder == Intruder::Swapped);
        let mut service = bay.service();
        service.start(false);
        let status = show(&mut service);
        assert!(status.error.contains(intruder.reason()), "{intruder:?}: {}", status.error);
        if intruder == Intruder::Swapped || record.maybe_dirty {
            // The right SSD comes back in `recover`, which starts from the very same state.
            assert_eq!(status.state, VolumeState::Failed, "{}", status.error);
            let now = bay.left();
            assert!(now.hdd.reads_like(&left.hdd), "the origin was changed");
            assert!(now.ssd.reads_like(&left.ssd), "the SSD was changed");
            assert_eq!(now.site.registry, left.site.registry, "the registry was changed");
            service.stop();
            bay.check_for_leaks();
            return;
        }
        assert_eq!(status.state, VolumeState::Degraded, "{}", status.error);
        bay.check_all("without its SSD");
        bay.start_crew(2);
        bay.pass(3_000_000);
        service.stop();
        bay.check_for_leaks();
        self.bring_back(&crash.left, bay.left(), &record, prng);
    }

    /// A call that names the drives in the wrong order is refused while the SSD holds a cache, also
    /// one that nobody has on record, and changes nothing.
    pub(super) fn refuse_swapped(&self, bay: &Bay, service: &mut Service<SimEngine>) {
        let mut mark = [0; SUPERBLOCK_MAGIC.len()];
        bay.ssd.peek(Lba(0), &mut mark);
        if mark != SUPERBLOCK_MAGIC {
            return;
        }
        let before = bay.left();
        match service.handle(create_swapped()) {
            Response::Error { error } => {
                assert!(error.message.contains("holds a Voltier cache"), "{error}");
            }
            other => panic!("{other:?}"),
        }
        let now = bay.left();
        assert!(now.hdd.reads_like(&before.hdd) && now.ssd.reads_like(&before.ssd));
        assert_eq!(now.site.registry, before.site.registry);
        self.count(|report| report.intruders += 1);
        Intruder::Swapped.count(&self.ledger);
    }

    /// The right SSD is there again, and was given up meanwhile: it is not trusted, and a new
    /// cache can be made on it.
    fn bring_back(&self, before: &Left, now: Left, record: &CacheRecord, prng: &mut Prng) {
        let left = Left { ssd: before.ssd.clone(), ..now };
        let bay = Bay::new(&self.plan.drives, left, prng.next_u64(), &self.ledger);
        let mut service = bay.service();
        service.start(false);
        let status = show(&mut service);
        assert_eq!(status.state, VolumeState::Degraded, "{}", status.error);
        bay.check_all("with the SSD that was given up");
        ask(&bay, &mut service, Request::Detach { name: name(), flush: true });
        assert_eq!(shape(&bay.registry()), Some(None));
        bay.check_all("detached");
        let cache = new_cache(&record.settings);
        ask(&bay, &mut service, Request::Attach { name: name(), cache });
        bay.check_all("with a new cache on it");
        service.stop();
        bay.check_for_leaks();
    }
}
