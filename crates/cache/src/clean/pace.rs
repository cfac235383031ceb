//! How hard the cleaner works: by how full of dirty lines the cache is, and by what clients do.
//!
//! A cleaner that waits until the cache is full leaves writers at the disk's speed all at once. One that
//! cleans at once writes the same line many times and never joins neighbours. So the rate rises between two
//! thresholds. Below them what has been dirty for long goes, too.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use voltier_block::DriveControl;
use voltier_ring::Handle;

use crate::clean::age::{DirtyAge, Progress};
use crate::config::Settings;
use crate::counters::Counters;
use crate::ground::Ground;
use crate::log::bound::Bound;
use crate::log::commit::Log;
use crate::log::long_streams::LongStreams;
use crate::log::ordered::Age;
use crate::log::pressure::Pressure;
use crate::map::shared::Map;

/// Least share of the time between the thresholds.
const SHARE_MIN: f64 = 0.05;
/// Share of the time for what has been dirty for long: clients need the origin, too.
const SHARE_OF_OLD: f64 = 0.5;
/// Clients' data that waits for the log: from here on the SSD is what clients wait for. Below the high
/// threshold the cleaner's reads of the SSD can wait.
const BACKLOG_BYTES: usize = 256 << 10;
/// Below the low threshold the cleaner works only when no request came for this long.
const IDLE_NS: u64 = 2_000_000_000;

/// How hard the cleaner works now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Pace {
    /// No work, until something changes or (with a time) the clients are idle, or their stream has ended.
    Rest(Option<u64>),
    /// Work for a share of the time, above 0 and at most 1.
    Work(f64),
}

/// The parts whose state decides the pace.
pub(crate) struct Pacer<S> {
    handle: Handle,
    map: Rc<Map>,
    log: Rc<Log<S>>,
    pressure: Rc<Pressure>,
    bound: Rc<Bound<S>>,
    long_streams: Rc<LongStreams>,
    settings: Rc<RefCell<Settings>>,
    counters: Rc<Counters>,
    /// Requests when the cleaner last looked, and when they had last grown.
    requests_seen: Cell<(u64, u64)>,
    age: RefCell<DirtyAge>,
    /// What is dirty is too old.
    is_old: Cell<bool>,
}

impl<S: DriveControl> Pacer<S> {
    pub(crate) fn new<O: DriveControl>(ground: &Ground<S, O>) -> Self {
        Self {
            handle: ground.handle.clone(),
            map: ground.map.clone(),
            log: ground.log.clone(),
            pressure: ground.pressure.clone(),
            bound: ground.bound.clone(),
            long_streams: ground.long_streams.clone(),
            settings: ground.settings.clone(),
            counters: ground.counters.clone(),
            requests_seen: Cell::new((0, ground.handle.now())),
            age: RefCell::new(DirtyAge::at_start(ground.map.get().index().dirty_lines() > 0)),
            is_old: Cell::new(false),
        }
    }

    /// Whether the cleaner works because of the age of what is dirty: then it leaves nothing for later.
    pub(super) fn is_old(&self) -> bool {
        self.is_old.get()
    }

    /// How hard to work, when so many sweeps have ended and so many batches have failed; and whether all sweeps take
    /// everything.
    pub(super) fn pace(&self, sweeps: u64, errors: u64, takes_all: bool) -> Pace {
        let dirty = self.map.get().index().dirty_lines();
        if dirty == 0 {
            self.age.borrow_mut().clear();
            self.is_old.set(false);
            // After a start the order may still name versions that the origin has: they cost nothing.
            return if self.log.order_waits() { Pace::Work(1.0) } else { Pace::Rest(None) };
        }
        let settings = self.settings.borrow();
        let progress = Progress { sweeps, errors, sequence: self.log.next_sequence() };
        let mut age = self.age.borrow_mut();
        age.note(self.handle.now(), progress, |sequence| self.log.order_is_past(sequence));
        let is_old = age.is_due(self.handle.now(), settings.dirty_age_ns, progress, takes_all);
        self.is_old.set(is_old);
        let is_pressed = self.pressure.is_pressed() || self.pressure.is_replay_long();
        if is_pressed || self.bound.is_urgent() || !settings.mode.writes_back() {
            return Pace::Work(1.0);
        }
        let capacity = self.map.geometry().capacity_lines() as f64;
        let percent = dirty as f64 * 100.0 / capacity;
        if !self.is_old()
            && let Some(until_ns) = self.long_streams.cleaner_rests_until(percent)
        {
            return Pace::Rest(Some(self.at_latest(until_ns)));
        }
        let (low, high) =
            (f64::from(settings.dirty_low_percent), f64::from(settings.dirty_high_percent));
        if percent > low {
            let share = ((percent - low) / (high - low)).clamp(SHARE_MIN, 1.0);
            let share = if self.is_old() { share.max(SHARE_OF_OLD) } else { share };
            let behind = self.log.queued_bytes() >= BACKLOG_BYTES;
            let leaves = behind && percent < high && !self.is_old();
            return Pace::Work(if leaves { SHARE_MIN } else { share });
        }
        let idle_at = self.busy_until_ns() + IDLE_NS;
        if self.handle.now() >= idle_at {
            return Pace::Work(1.0);
        }
        if self.is_old() {
            return Pace::Work(SHARE_OF_OLD);
        }
        let due_ns = age.due_ns(settings.dirty_age_ns).filter(|_| settings.dirty_age_ns > 0);
        Pace::Rest(Some(self.at_latest(due_ns.map_or(idle_at, |due_ns| due_ns.min(idle_at)))))
    }

    /// The end of a rest, or the time before it at which the bound of what the origin lacks asks for work.
    pub(super) fn at_latest(&self, until_ns: u64) -> u64 {
        self.bound.due_ns().map_or(until_ns, |due_ns| due_ns.min(until_ns))
    }

    /// The age of what is dirty where there is no order, at most.
    pub(super) fn dirty_age(&self) -> Option<Age> {
        let (since_ns, is_older) = self.age.borrow().since()?;
        Some(Age { ns: self.handle.now().saturating_sub(since_ns), is_older })
    }

    /// When clients were last seen to send something, as far as the cleaner looked.
    fn busy_until_ns(&self) -> u64 {
        let requests = self.counters.requests();
        let (seen, at) = self.requests_seen.get();
        if requests == seen {
            return at;
        }
        let now = self.handle.now();
        self.requests_seen.set((requests, now));
        now
    }
}
