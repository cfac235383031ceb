//! Pressure on the cleaner: dirty lines changed, a part hurries, a person waits for a drain.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;

use voltier_block::SECTOR_BYTES;
use voltier_ring::Signal;

use crate::config::Settings;
use crate::map::shared::Map;

/// The pressure on the cleaner of one cache.
pub(crate) struct Pressure {
    map: Rc<Map>,
    settings: Rc<RefCell<Settings>>,
    dirty_changed: Signal,
    /// Ends a rest of the cleaner.
    hurry: Signal,
    /// The cleaner rests, and much that is dirty may end the rest.
    resting: Cell<bool>,
    /// The log finds no space until versions that wait for their order are written out.
    log_waits: Cell<bool>,
    /// Writes that wait until less is dirty.
    room_waits: Cell<u32>,
    /// People who wait for everything to be written back.
    drains: Cell<u32>,
}

/// A drain or a wait for room under way, until dropped.
pub(crate) struct Waits<'a>(&'a Cell<u32>);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// A rest of the cleaner, until dropped.
pub(crate) struct Rest<'a>(&'a Cell<bool>);

impl Drop for Rest<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl Pressure {
    pub(crate) fn new(map: Rc<Map>, settings: Rc<RefCell<Settings>>) -> Rc<Self> {
        Rc::new(Self {
            map,
            settings,
            dirty_changed: Signal::new(),
            hurry: Signal::new(),
            resting: Cell::new(false),
            log_waits: Cell::new(false),
            room_waits: Cell::new(0),
            drains: Cell::new(0),
        })
    }

    /// Wakes all who wait for a change of what is dirty, the cleaner among them.
    pub(crate) fn notify_dirty(&self) {
        self.dirty_changed.notify();
    }

    /// Completes at the first change after this call.
    pub(crate) fn dirty_change(&self) -> impl Future<Output = ()> + '_ {
        self.dirty_changed.wait()
    }

    /// Waits until `condition` holds, checking at each change of what is dirty.
    pub(crate) async fn until(&self, condition: impl FnMut() -> bool) {
        self.dirty_changed.until(condition).await;
    }

    /// Ends a rest of the cleaner.
    pub(crate) fn hurry(&self) {
        self.hurry.notify();
    }

    /// Completes at the first hurry after this call.
    pub(crate) fn hurried(&self) -> impl Future<Output = ()> + '_ {
        self.hurry.wait()
    }

    /// The cleaner rests; whether much that is dirty ends the rest.
    pub(crate) fn rest(&self, ends_when_high: bool) -> Rest<'_> {
        self.resting.set(ends_when_high);
        Rest(&self.resting)
    }

    /// Ends a rest of the cleaner when much is dirty: a small cache, or its bound, fills up within one.
    pub(crate) fn hurry_when_high(&self) {
        if self.resting.get() {
            let capacity = self.map.geometry().capacity_lines();
            let high = capacity * u64::from(self.settings.borrow().dirty_high_percent) / 100;
            if self.map.get().index().dirty_lines() >= high
                || self.is_replay_long()
                || self.is_bound_near()
            {
                self.hurry.notify();
            }
        }
    }

    /// Whether half of the segments are in the replay, as can be in ordered mode alone: the log can reuse them
    /// when the origin has the versions in them.
    pub(crate) fn is_replay_long(&self) -> bool {
        let in_replay = self.map.get().segments().in_replay();
        self.settings.borrow().ordered && in_replay * 2 > self.map.geometry().segment_count as usize
    }

    /// Whether the origin lacks half of the bytes that it may.
    fn is_bound_near(&self) -> bool {
        let bytes_max = self.settings.borrow().max_unshipped.bytes;
        bytes_max > 0 && self.map.get().index().dirty_sectors() * SECTOR_BYTES >= bytes_max / 2
    }

    /// The log finds no space, and only the cleaner can make some.
    pub(crate) fn let_log_wait(&self) {
        self.log_waits.set(true);
        self.dirty_changed.notify();
    }

    /// Whether the log finds no space before the cleaner makes some.
    pub(crate) fn log_waits(&self) -> bool {
        self.log_waits.get()
    }

    /// The cleaner has made the space that there is to be made.
    pub(crate) fn log_waits_no_longer(&self) {
        self.log_waits.set(false);
    }

    /// A person waits for everything to be written back, until the guard is dropped.
    pub(crate) fn drain(&self) -> Waits<'_> {
        self.drains.set(self.drains.get() + 1);
        Waits(&self.drains)
    }

    /// Waits until `has_room`, with the cleaner at work.
    pub(crate) async fn until_room(&self, mut has_room: impl FnMut() -> bool) {
        if has_room() {
            return;
        }
        self.room_waits.set(self.room_waits.get() + 1);
        let _waits = Waits(&self.room_waits);
        if self.resting.get() {
            self.hurry();
        }
        self.until(has_room).await;
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.drains.get() > 0
    }

    /// Whether a drain, the log or a write waits for the cleaner.
    pub(crate) fn is_pressed(&self) -> bool {
        self.is_draining() || self.log_waits.get() || self.room_waits.get() > 0
    }
}
