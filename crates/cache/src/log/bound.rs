//! The bound of what a loss of the SSD would take (`max_unshipped`): writes wait rather than exceed it.
//!
//! Three times follow from the age of the bound. From half of it on the cleaner works at full rate. At seven eighths
//! no write begins. And at the whole of it no write that had begun is acknowledged: so no acknowledgement is given
//! while the oldest write that the origin lacks is older. Of the size, writes reserve what they may make dirty
//! before they begin.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use voltier_block::{DriveControl, Nanos, SECTOR_BYTES, SectorRange};
use voltier_ring::Handle;

use crate::canary::{self, Canary};
use crate::config::Settings;
use crate::log::commit::Log;
use crate::log::damage::Damage;
use crate::log::ordered::Age;
use crate::log::pressure::Pressure;
use crate::map::shared::Map;

/// The share of the age at which no write begins, in eighths: the rest is for writes that have begun.
const BEGIN_EIGHTHS: u64 = 7;

/// The bound of one cache.
pub(crate) struct Bound<S> {
    handle: Handle,
    map: Rc<Map>,
    log: Rc<Log<S>>,
    damage: Rc<Damage<S>>,
    pressure: Rc<Pressure>,
    settings: Rc<RefCell<Settings>>,
    /// Bytes that writes may make dirty which have begun.
    reserved: Cell<u64>,
    /// Writes that wait for their begin, in order.
    queue: RefCell<BTreeSet<u64>>,
    next_ticket: Cell<u64>,
    /// Writes that have begun, and are not acknowledged before older ones are on the origin.
    held: Cell<u64>,
}

/// How far a write has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Entered,
    /// It waits, with this number.
    Waits(u64),
    /// Its bytes are reserved.
    Begun,
}

/// The place of a write, until dropped.
pub(crate) struct Place<S> {
    bound: Rc<Bound<S>>,
    bytes: u64,
    stage: Cell<Stage>,
}

/// A write that is not acknowledged yet because of its age, until dropped.
pub(crate) struct Held<'a>(&'a Cell<u64>);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl<S> Place<S> {
    /// Whoever comes next may begin.
    fn leave_queue(&self) {
        if let Stage::Waits(ticket) = self.stage.get() {
            self.bound.queue.borrow_mut().remove(&ticket);
        }
        if !self.bound.queue.borrow().is_empty() {
            self.bound.pressure.notify_dirty();
        }
    }
}

impl<S> Drop for Place<S> {
    fn drop(&mut self) {
        if self.stage.get() == Stage::Begun {
            self.bound.reserved.set(self.bound.reserved.get() - self.bytes);
        }
        self.leave_queue();
    }
}

impl<S: DriveControl> Place<S> {
    /// Whether the write may begin; if so, its bytes are reserved. If not, it waits behind those that came before.
    pub(crate) fn begin(&self) -> bool {
        let bound = &self.bound;
        let is_first = {
            let queue = bound.queue.borrow();
            match (self.stage.get(), queue.first()) {
                (Stage::Begun, _) => return true,
                (Stage::Waits(own), Some(first)) => own == *first,
                (_, first) => first.is_none(),
            }
        };
        if is_first && bound.has_room_for(self.bytes) {
            self.begin_anyway();
            return true;
        }
        if self.stage.get() == Stage::Entered {
            let ticket = bound.next_ticket.get();
            bound.next_ticket.set(ticket + 1);
            bound.queue.borrow_mut().insert(ticket);
            self.stage.set(Stage::Waits(ticket));
        }
        false
    }

    /// Begins whether there is room or not.
    pub(crate) fn begin_anyway(&self) {
        if self.stage.get() != Stage::Begun {
            self.leave_queue();
            self.bound.reserved.set(self.bound.reserved.get() + self.bytes);
            self.stage.set(Stage::Begun);
        }
    }
}

impl<S: DriveControl> Bound<S> {
    pub(crate) fn new(
        handle: Handle,
        map: Rc<Map>,
        log: Rc<Log<S>>,
        damage: Rc<Damage<S>>,
        pressure: Rc<Pressure>,
        settings: Rc<RefCell<Settings>>,
    ) -> Rc<Self> {
        Rc::new(Self {
            handle,
            map,
            log,
            damage,
            pressure,
            settings,
            reserved: Cell::new(0),
            queue: RefCell::default(),
            next_ticket: Cell::new(0),
            held: Cell::new(0),
        })
    }

    /// Bytes that the origin lacks.
    pub(crate) fn bytes(&self) -> u64 {
        self.map.get().index().dirty_sectors() * SECTOR_BYTES
    }

    /// The age of the oldest acknowledged write that the origin lacks, as far as it is in the order.
    pub(crate) fn oldest_age(&self) -> Option<Age> {
        self.log.oldest_age(self.handle.now())
    }

    /// Writes that wait for the origin because of the bound.
    pub(crate) fn waiting(&self) -> u64 {
        self.queue.borrow().len() as u64 + self.held.get()
    }

    /// Whether a write may be acknowledged: what the origin lacks is no older than the bound.
    pub(crate) fn may_acknowledge(&self) -> bool {
        self.is_within_age(8) || canary::is(Canary::BoundNotKept)
    }

    /// A write is not acknowledged yet.
    pub(crate) fn hold(&self) -> Held<'_> {
        self.held.set(self.held.get() + 1);
        Held(&self.held)
    }

    /// The place of a write of this range.
    pub(crate) fn enter(self: &Rc<Self>, range: SectorRange) -> Place<S> {
        let geometry = self.map.geometry();
        let (first, last) = geometry.lines_of(range);
        Place {
            bound: self.clone(),
            bytes: (last.0 - first.0 + 1) * geometry.line_bytes,
            stage: Cell::new(Stage::Entered),
        }
    }

    /// Whether a write of this range could begin now.
    pub(crate) fn could_begin(&self, range: SectorRange) -> bool {
        let geometry = self.map.geometry();
        let (first, last) = geometry.lines_of(range);
        let bytes = (last.0 - first.0 + 1) * geometry.line_bytes;
        self.queue.borrow().is_empty() && self.has_room_for(bytes)
    }

    fn has_room_for(&self, bytes: u64) -> bool {
        let bytes_max = self.settings.borrow().max_unshipped.bytes;
        // What is damaged on the SSD does not reach the origin, and is not lost with the SSD.
        let damaged = || self.damage.count() as u64 * self.map.geometry().line_bytes;
        let others = || self.bytes().saturating_sub(damaged()) + self.reserved.get();
        let fits = bytes_max == 0 || others() + bytes <= bytes_max;
        (fits && self.is_within_age(BEGIN_EIGHTHS)) || canary::is(Canary::BoundNotKept)
    }

    fn is_within_age(&self, eighths: u64) -> bool {
        let age_max_ns = self.settings.borrow().max_unshipped.age_ns;
        let limit_ns = age_max_ns / 8 * eighths;
        age_max_ns == 0 || self.oldest_age().is_none_or(|age| age.ns <= limit_ns)
    }

    /// When the cleaner is to begin, if that is ahead; a moment that is over says that it is to work.
    pub(crate) fn due_ns(&self) -> Option<Nanos> {
        let bound = self.settings.borrow().max_unshipped;
        if bound.bytes > 0 && self.bytes() >= bound.bytes / 2 {
            return Some(0);
        }
        if bound.age_ns == 0 {
            return None;
        }
        let now_ns = self.handle.now();
        let age_ns = self.log.order_age(now_ns)?.ns;
        Some(now_ns.saturating_add((bound.age_ns / 2).saturating_sub(age_ns)))
    }

    /// Whether the cleaner is to work at full rate.
    pub(crate) fn is_urgent(&self) -> bool {
        self.due_ns().is_some_and(|due_ns| due_ns <= self.handle.now())
    }
}
