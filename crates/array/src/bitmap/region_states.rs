//! The write-intent bitmap in memory: what is on the members, what is on its way, and who is in which region.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use voltier_block::{IoError, SECTOR_BYTES};
use voltier_ring::{DrainRounds, Signal};

use crate::format::bits::Bits;
use crate::format::region_map::{RegionGrid, RegionMap};
use crate::geometry::numbers::{Region, each};

/// Longest extent of a member that is made zero ahead of a writer that goes on and on, in bytes.
const AHEAD_BYTES_MAX: u64 = 16 << 20;

/// The map and what is known of it in memory.
pub(crate) struct RegionStates {
    regions: RegionGrid,
    /// The map on the members; for the regions in `unstored`, the map to come.
    pub(super) map: RefCell<RegionMap>,
    /// Regions whose state is on its way to the members, or did not get through.
    pub(super) unstored: RefCell<BTreeSet<Region>>,
    /// Regions with writes that may not be durable on all members: the dirty ones, and in a journal's
    /// care also others.
    pub(super) recent: RefCell<Bits<Region>>,
    /// Regions that were entered since the last round began.
    pub(super) touched: RefCell<Bits<Region>>,
    /// Regions whose parity is to be made anew.
    pub(super) to_resync: RefCell<Bits<Region>>,
    /// Writes under way: a round of clearing waits for those that began before it.
    pub(super) under_way: RefCell<DrainRounds>,
    pub(super) drained: Signal,
    /// Regions whose state a writer waits for.
    pub(super) wanted: RefCell<BTreeSet<Region>>,
    /// Dirty regions that may be cleared.
    pub(super) to_clear: RefCell<Vec<Region>>,
    /// Regions that no member lacks any more, durably.
    pub(super) rebuilt: RefCell<Vec<Region>>,
    /// Whether the whole map is to be written, with what members lack.
    pub(super) is_whole_wanted: Cell<bool>,
    pub(super) is_storing: Cell<bool>,
    pub(super) stored: Signal,
    pub(super) failures: Cell<u64>,
    pub(super) last_error: Cell<IoError>,
    pub(super) has_rounds: Cell<bool>,
}

impl RegionStates {
    /// The states of a map as it is on all members, some regions of which need a resync. With `unflushed`
    /// there may be writes anywhere that not all members hold durably.
    pub(crate) fn new(
        map: RegionMap,
        member_sectors: u64,
        to_resync: Bits<Region>,
        unflushed: bool,
    ) -> Self {
        let count = map.count();
        let recent = if unflushed { &map.written } else { &map.dirty };
        Self {
            regions: RegionGrid::new(member_sectors),
            recent: RefCell::new(recent.clone()),
            map: RefCell::new(map),
            unstored: RefCell::default(),
            touched: RefCell::new(Bits::new(count)),
            to_resync: RefCell::new(to_resync),
            under_way: RefCell::default(),
            drained: Signal::new(),
            wanted: RefCell::default(),
            to_clear: RefCell::default(),
            rebuilt: RefCell::default(),
            is_whole_wanted: Cell::new(false),
            is_storing: Cell::new(false),
            stored: Signal::new(),
            failures: Cell::new(0),
            last_error: Cell::new(IoError::Gone),
            has_rounds: Cell::new(false),
        }
    }

    /// The rounds belong to an array that is superseded; the next one begins its own.
    pub(crate) fn leave_rounds(&self) {
        self.has_rounds.set(false);
    }

    pub(crate) fn is_written(&self, region: Region) -> bool {
        self.map.borrow().written.has(region)
    }

    /// The regions that a new member lacks: all that were written; for one that comes back the dirty
    /// ones.
    pub(crate) fn lacking(&self, is_back: bool) -> Bits<Region> {
        let map = self.map.borrow();
        if is_back {
            let mut lacking = map.dirty.clone();
            self.unstored.borrow().iter().for_each(|region| lacking.put(*region, true));
            lacking
        } else {
            map.written.clone()
        }
    }

    /// The first region that was written and is not below `from`.
    pub(crate) fn next_written(&self, from: Region) -> Option<Region> {
        self.map.borrow().written.next(from)
    }

    pub(crate) fn written_count(&self) -> u64 {
        self.map.borrow().written.count()
    }

    /// The first region that needs a resync and is not below `from`.
    pub(crate) fn next_to_resync(&self, from: Region) -> Option<Region> {
        self.to_resync.borrow().iter().find(|region| *region >= from)
    }

    /// The parity of a region is right now; the region is cleared when all members are flushed.
    pub(crate) fn note_resynced(&self, region: Region) {
        self.to_resync.borrow_mut().put(region, false);
        self.recent.borrow_mut().put(region, true);
        self.touched.borrow_mut().put(region, true);
    }

    /// Regions: all, written, dirty, in need of a resync.
    pub(crate) fn counts(&self) -> [u64; 4] {
        let map = self.map.borrow();
        [map.count(), map.written.count(), map.dirty.count(), self.to_resync.borrow().count()]
    }

    /// Regions that these need to be zero and are not, and some ahead of those that follow a run of
    /// written ones.
    pub(super) fn to_zero(&self, wanted: &BTreeSet<Region>) -> BTreeSet<Region> {
        let map = self.map.borrow();
        let ahead_max = (AHEAD_BYTES_MAX / (self.regions.region_sectors() * SECTOR_BYTES)).max(1);
        let ahead = |&region: &Region| {
            let before = each(Region(0)..region).rev().take(ahead_max as usize);
            let written = before.take_while(|before| map.written.has(*before)).count() as u64;
            each(region..(region + written.max(1)).min(Region(map.count())))
        };
        let missing = wanted.iter().filter(|region| !map.written.has(**region));
        missing.flat_map(ahead).filter(|region| !map.written.has(*region)).collect()
    }
}
