//! Passage: what clients may change on the origin while the SSD is evacuated.
//!
//! The log has ended, so nothing on the SSD can say that the origin has something newer. A start would serve
//! older clean lines, and write older dirty ones over it: also those that this evacuation has written. So each
//! region of the origin is *opened* before the first change in it. Its dirty lines go out ahead of all others.
//! Then the owner of the cache puts on record that nothing counts any more that the SSD has of the region.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use voltier_block::{Nanos, SectorRange};
use voltier_ring::{Handle, Signal};

use crate::canary::{self, Canary};
use crate::devices::health::SsdHealth;
use crate::format::geometry::Geometry;
use crate::map::index::LINES_PER_EXTENT;
use crate::map::ranges::LineRanges;
use crate::map::shared::Map;
use crate::numbers::Line;

/// Bytes of a region: its dirty lines are what the first change in it waits for.
const REGION_BYTES: u64 = 64 << 10;
/// Changes of more regions than these (16 MiB) wait for the end of the evacuation, which is not much longer.
const REGIONS_MAX: u64 = 256;
/// So many ranges are on record at most. Further regions wait until the cleaner has come so far that ranges
/// meet.
const RANGES_MAX: usize = 8192;
/// Runs of the cleaner's own sweeps that are under way beside clients: as many as keep the origin busy.
const RUNS_BESIDE_CLIENTS: usize = 2;
/// So long after a client's change another one is expected.
const CLIENTS_REST_NS: Nanos = 1_000_000_000;

/// Puts ranges on record in which nothing that the SSD has counts any more; false if it cannot.
pub(crate) type PassRecorder = Box<dyn Fn(Vec<SectorRange>) -> Pin<Box<dyn Future<Output = bool>>>>;

/// The regions of one cache.
#[derive(Default)]
struct Regions {
    /// Lines of open regions, as they are on record.
    open: LineRanges,
    wanted: BTreeSet<u64>,
    /// Those among the wanted that could not be opened: tried again after the next sweep.
    stuck: BTreeSet<u64>,
}

/// The passage of one cache.
pub(crate) struct Passage {
    handle: Handle,
    geometry: Geometry,
    health: Rc<SsdHealth>,
    recorder: RefCell<Option<PassRecorder>>,
    regions: RefCell<Regions>,
    /// A region is wanted or open, or whoever waits is to look again.
    news: Signal,
    /// Changes of clients under way past the SSD, and when the last of them ended.
    changes: Cell<u32>,
    changed_ns: Cell<Option<Nanos>>,
    /// Runs of the cleaner's own sweeps under way.
    runs: Cell<usize>,
    turns: Signal,
}

/// A change under way past the SSD, until dropped.
pub(crate) struct Change(Rc<Passage>);

impl Drop for Change {
    fn drop(&mut self) {
        self.0.changes.set(self.0.changes.get() - 1);
        self.0.changed_ns.set(Some(self.0.handle.now()));
        self.0.turns.notify();
    }
}

/// A run of a sweep under way, until dropped.
pub(crate) struct Turn<'a>(&'a Passage);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.runs.set(self.0.runs.get() - 1);
        self.0.turns.notify();
    }
}

impl Passage {
    /// A passage with these lines open.
    pub(crate) fn new(
        handle: Handle,
        geometry: Geometry,
        health: Rc<SsdHealth>,
        open: LineRanges,
    ) -> Rc<Self> {
        let regions = Regions { open, ..Regions::default() };
        Rc::new(Self {
            handle,
            geometry,
            health,
            recorder: RefCell::default(),
            regions: RefCell::new(regions),
            news: Signal::new(),
            changes: Cell::new(0),
            changed_ns: Cell::new(None),
            runs: Cell::new(0),
            turns: Signal::new(),
        })
    }

    /// Has `recorder` put open regions on record. Without it none is opened.
    pub(crate) fn set_recorder(&self, recorder: PassRecorder) {
        self.recorder.replace(Some(recorder));
    }

    fn lines_per_region(&self) -> u64 {
        (REGION_BYTES / self.geometry.line_bytes).clamp(1, LINES_PER_EXTENT)
    }

    /// The first and the last line of a region.
    pub(crate) fn lines_of(&self, region: u64) -> (Line, Line) {
        let first = Line(region * self.lines_per_region());
        let end = (first + self.lines_per_region()).min(Line(self.geometry.origin_lines()));
        (first, Line(end.0 - 1))
    }

    /// Asks for the regions of these lines.
    pub(crate) fn ask(&self, first: Line, last: Line) {
        if self.recorder.borrow().is_none() || self.is_open(first, last) {
            return;
        }
        let asked = first.0 / self.lines_per_region()..=last.0 / self.lines_per_region();
        if asked.end() - asked.start() >= REGIONS_MAX {
            return;
        }
        let mut regions = self.regions.borrow_mut();
        let Regions { open, wanted, stuck } = &mut *regions;
        let is_closed = |region: &u64| {
            let (first, last) = self.lines_of(*region);
            !open.covers(first, last) && !stuck.contains(region)
        };
        wanted.extend(asked.filter(is_closed));
        self.news.notify();
    }

    /// Whether the origin may be changed there.
    pub(crate) fn is_open(&self, first: Line, last: Line) -> bool {
        self.regions.borrow().open.covers(first, last)
    }

    /// Closes everything: the SSD takes writes.
    pub(crate) fn close(&self) {
        self.regions.borrow_mut().open = LineRanges::default();
    }

    /// Waits until regions are wanted of an SSD that is evacuated, or `ends`.
    pub(crate) async fn asked(&self, ends: impl Fn() -> bool) {
        let is_asked = || self.health.is_evacuating() && !self.regions.borrow().wanted.is_empty();
        self.news.until(|| ends() || is_asked()).await;
    }

    /// The regions that are wanted.
    pub(crate) fn wanted(&self) -> BTreeSet<u64> {
        self.regions.borrow().wanted.clone()
    }

    /// These regions are not to be opened for now.
    pub(crate) fn forget(&self, regions: &BTreeSet<u64>) {
        self.regions.borrow_mut().wanted.retain(|region| !regions.contains(region));
    }

    /// These regions are to be opened after the next sweep.
    fn put_off(&self, regions: BTreeSet<u64>) {
        self.forget(&regions);
        self.regions.borrow_mut().stuck.extend(regions);
    }

    /// A sweep is over: what held regions up may be gone.
    pub(crate) fn try_again(&self) {
        let mut regions = self.regions.borrow_mut();
        if !regions.stuck.is_empty() {
            let stuck = std::mem::take(&mut regions.stuck);
            regions.wanted.extend(stuck);
            self.news.notify();
        }
    }

    /// Opens those of the regions in which nothing is dirty any more, and puts the others off.
    pub(crate) async fn open(
        self: &Rc<Self>,
        mut regions: BTreeSet<u64>,
        map: &Map,
        ends: impl Fn() -> bool,
    ) {
        let has_dirty = |region: &u64| {
            let (first, last) = self.lines_of(*region);
            map.has_dirty(first, last) && !canary::is(Canary::PassBesideDirty)
        };
        let dirty = regions.extract_if(.., |region| has_dirty(region)).collect();
        self.put_off(dirty);
        if regions.is_empty() {
            return;
        }
        let open = self.with(&regions, map);
        let is_recorded = open.len() <= RANGES_MAX && self.is_recorded(&open, ends).await;
        if !is_recorded {
            return self.put_off(regions);
        }
        self.forget(&regions);
        self.regions.borrow_mut().open = open;
        self.health.tell_news();
    }

    /// Waits until open lines are on record; false if they are not, or something `ends` before.
    async fn is_recorded(self: &Rc<Self>, open: &LineRanges, ends: impl Fn() -> bool) -> bool {
        if canary::is(Canary::PassUnrecorded) {
            return true;
        }
        if ends() {
            return false;
        }
        let range_of = |(first, last)| {
            let (first, last) = (self.geometry.line_range(first), self.geometry.line_range(last));
            SectorRange::new(first.start, last.end().0 - first.start.0)
        };
        let recording = match &*self.recorder.borrow() {
            Some(recorder) => recorder(open.iter().map(range_of).collect()),
            None => return false,
        };
        // Nobody knows how long that takes: the end of the cache does not wait for it.
        let (passage, answer) = (self.clone(), Rc::new(Cell::new(None)));
        let told = answer.clone();
        drop(self.handle.spawn(async move {
            told.set(Some(recording.await));
            passage.news.notify();
        }));
        self.news.until(|| answer.get().is_some() || ends()).await;
        answer.get() == Some(true)
    }

    /// What is open with these regions: around a range all lines up to the next extent with dirty ones, so
    /// that a few ranges tell of many lines.
    fn with(&self, regions: &BTreeSet<u64>, map: &Map) -> LineRanges {
        let mut open = self.regions.borrow().open.clone();
        for region in regions {
            let (first, last) = self.lines_of(*region);
            if !open.covers(first, last) {
                open.insert(self.begin_of(first, map), self.end_of(last, map));
            }
        }
        open
    }

    /// The first of the lines before this one that are all clean, or the line itself.
    fn begin_of(&self, first: Line, map: &Map) -> Line {
        let extent = first.0 / LINES_PER_EXTENT;
        let begin = Line(extent * LINES_PER_EXTENT);
        if begin < first && map.has_dirty(begin, Line(first.0 - 1))
            || canary::is(Canary::PassBesideDirty)
        {
            return first;
        }
        let before = map.get().index().last_dirty_extent(extent);
        before.map_or(Line(0), |before| Line((before + 1) * LINES_PER_EXTENT))
    }

    /// The last of the lines behind this one that are all clean, or the line itself.
    fn end_of(&self, last: Line, map: &Map) -> Line {
        let next = (last.0 / LINES_PER_EXTENT + 1) * LINES_PER_EXTENT;
        let end = Line(next.min(self.geometry.origin_lines()) - 1);
        if last < end && map.has_dirty(last + 1, end) || canary::is(Canary::PassBesideDirty) {
            return last;
        }
        let behind = map.get().index().next_dirty_extent(next / LINES_PER_EXTENT);
        let end = behind.map_or(self.geometry.origin_lines(), |behind| behind * LINES_PER_EXTENT);
        Line(end - 1)
    }

    /// Begins a change past the SSD.
    pub(crate) fn begin_change(self: &Rc<Self>) -> Change {
        self.changes.set(self.changes.get() + 1);
        Change(self.clone())
    }

    /// Waits until a run of a sweep may begin. Beside clients few are under way, so that a change waits for
    /// the origin about as long as without an evacuation.
    pub(crate) async fn turn(&self) -> Turn<'_> {
        let is_free = || self.runs.get() < RUNS_BESIDE_CLIENTS || !self.has_clients();
        self.turns.until(is_free).await;
        self.runs.set(self.runs.get() + 1);
        Turn(self)
    }

    fn has_clients(&self) -> bool {
        let is_recent = |at: Nanos| self.handle.now() < at + CLIENTS_REST_NS;
        self.changes.get() > 0 || self.changed_ns.get().is_some_and(is_recent)
    }

    /// Has everybody who waits look again.
    pub(crate) fn wake_all(&self) {
        self.news.notify();
        self.turns.notify();
    }
}
