//! The map as the tasks of a cache share it: borrowed for moments, and pinned for reads.

use std::cell::{Ref, RefCell, RefMut};
use std::future::Future;
use std::rc::Rc;

use voltier_block::Lba;
use voltier_ring::{Round, Signal};

use crate::canary::{self, Canary};
use crate::format::checksum::{crc32c, kept_crc_bits};
use crate::format::geometry::Geometry;
use crate::map::contents::Contents;
use crate::numbers::{Line, Segment, Slot};

/// The map of one cache, and the signals of what happens in it.
pub(crate) struct Map {
    geometry: Geometry,
    contents: RefCell<Contents>,
    /// Segments may be wanted, or may be ready: the reclaimer looks again.
    reclaim_work: Signal,
    /// More of the map is loaded.
    loading_progress: Signal,
}

/// A slot's place on the SSD, and what its data must be.
#[derive(Clone, Copy)]
pub(crate) struct SlotCopy {
    pub(crate) slot: Slot,
    pub(crate) at: Lba,
    pub(crate) crc_bits: u32,
}

impl SlotCopy {
    /// Whether `data` is what was written to the slot.
    #[inline]
    pub(crate) fn holds(&self, data: &[u8]) -> bool {
        kept_crc_bits(crc32c(data)) == self.crc_bits || canary::is(Canary::DataChecksumIgnored)
    }
}

/// A slot that is being read. The line may leave the slot meanwhile; the data stays until the pin is
/// dropped.
pub(crate) struct Pinned<'a> {
    copy: SlotCopy,
    map: &'a Map,
    segment: Segment,
    round: Round,
}

impl Pinned<'_> {
    #[inline]
    pub(crate) fn copy(&self) -> SlotCopy {
        self.copy
    }

    /// The read is over.
    #[inline]
    pub(crate) fn release(self) -> SlotCopy {
        self.copy
    }
}

impl Drop for Pinned<'_> {
    #[inline]
    fn drop(&mut self) {
        if canary::is(Canary::PinLeaked) && self.copy.slot.0 % 64 == 1 {
            return;
        }
        let mut contents = self.map.change();
        let waited_for = contents.segments_mut().unpin(self.segment, self.round);
        if waited_for {
            self.map.reclaim_work.notify();
        }
    }
}

impl Map {
    pub(crate) fn new(contents: Contents) -> Rc<Self> {
        Rc::new(Self {
            geometry: contents.geometry().clone(),
            contents: RefCell::new(contents),
            reclaim_work: Signal::new(),
            loading_progress: Signal::new(),
        })
    }

    /// The map as it is now.
    #[inline]
    pub(crate) fn get(&self) -> Ref<'_, Contents> {
        self.contents.borrow()
    }

    /// The map, to be changed now.
    #[inline]
    pub(crate) fn change(&self) -> RefMut<'_, Contents> {
        self.contents.borrow_mut()
    }

    #[inline]
    pub(crate) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Pins a slot for reading: its place, and the CRC its data must have.
    #[inline]
    pub(crate) fn pin(&self, contents: &mut Contents, slot: Slot) -> Pinned<'_> {
        let segment = self.geometry.segment_of(slot);
        let round = contents.segments_mut().pin(segment);
        let (at, crc_bits) = (contents.index().lba_of(slot), contents.index().crc_bits(slot));
        Pinned { copy: SlotCopy { slot, at, crc_bits }, map: self, segment, round }
    }

    /// Has the reclaimer look for segments.
    pub(crate) fn ask_for_segments(&self) {
        self.reclaim_work.notify();
    }

    /// Completes at the first request for segments after this call.
    pub(crate) fn segments_asked_for(&self) -> impl Future<Output = ()> + '_ {
        self.reclaim_work.wait()
    }

    /// Wakes those who wait for the map to be loaded.
    pub(crate) fn tell_of_loading(&self) {
        self.loading_progress.notify();
    }

    /// Waits until the whole map is loaded, or the wait is given up.
    pub(crate) async fn loaded(&self, given_up: impl Fn() -> bool) {
        let done = || given_up() || self.get().loading().is_none();
        self.loading_progress.until(done).await;
    }

    /// Notes that the stored map will be out of date about lines that are about to be changed past the log.
    /// The caller holds the locks of the lines.
    pub(crate) fn void_unloaded(&self, first: Line, last: Line) {
        if let Some(loading) = self.change().loading_mut() {
            loading.void(first, last);
        }
    }

    /// Whether every line is cached.
    #[inline]
    pub(crate) fn has_all(&self, first: Line, last: Line) -> bool {
        let contents = self.get();
        first.through(last).all(|line| contents.index().lookup(line).is_some())
    }

    /// Whether any line is dirty.
    #[inline]
    pub(crate) fn has_dirty(&self, first: Line, last: Line) -> bool {
        let contents = self.get();
        contents.index().dirty_lines() > 0
            && contents.index().dirty_between(first, last).next().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{FormatOptions, LineSize};
    use crate::policy::PolicyKind;

    #[test]
    fn a_read_that_is_dropped_gives_its_pin_back() {
        let (line_size, policy, uuid) = (LineSize::DEFAULT, PolicyKind::Lru, [1; 16]);
        let format = FormatOptions { line_size, policy, uuid };
        let geometry = Geometry::plan(&format, 64 << 20, 1 << 21).unwrap();
        let map = Map::new(Contents::new(geometry, policy, 1).unwrap());
        let pinned = [5, 6].map(|slot| map.pin(&mut map.change(), Slot(slot)));
        assert!(map.get().segments().audit_pins().is_err());
        let read = async {
            let _pinned = pinned;
            std::future::pending::<()>().await;
        };
        drop(read);
        map.get().segments().audit_pins().unwrap();
    }
}
