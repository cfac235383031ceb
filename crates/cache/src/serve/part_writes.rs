//! Writes of parts of lines: what is cached of a line and all parts that are written at the same time become
//! one change.
//!
//! The writers of a line's parts have [parts](crate::map::locks::Access::Parts) of its lock, and are its *group* before
//! they change anything. One of them reads what is cached, puts in the parts of all who are ready, and has the
//! log take the line; the next one begins with what the last one made.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::task::Poll;

use voltier_block::{Buf, Bytes, DriveControl, IoError, IoResult, SectorRange};
use voltier_ring::Signal;

use crate::canary::{self, Canary};
use crate::devices::ssd::Ssd;
use crate::format::geometry::mask_of;
use crate::ground::Ground;
use crate::log::change::{Change, Source};
use crate::log::commit::Log;
use crate::log::damage::Damage;
use crate::map::locks::parts_of_lines;
use crate::map::recent::{Content, RecentLines};
use crate::map::shared::Map;
use crate::numbers::{Line, Slot};

/// The groups of one cache.
pub(crate) struct PartWrites<S> {
    map: Rc<Map>,
    ssd: Rc<Ssd<S>>,
    log: Rc<Log<S>>,
    damage: Rc<Damage<S>>,
    recent: Rc<RecentLines>,
    groups: RefCell<BTreeMap<Line, Rc<Group>>>,
}

/// The writers of one line's parts.
struct Group {
    members: Cell<u32>,
    /// Whether one of them writes for all.
    is_led: Cell<bool>,
    /// That one is done.
    done: Signal,
    line: RefCell<Known>,
    ready: RefCell<Vec<Rc<Part>>>,
}

/// What a group knows of its line.
enum Known {
    /// Nothing yet: only parts that are the whole line can be put in.
    Nothing,
    /// Nothing of it is cached.
    Absent,
    /// The cache must not have it.
    Void,
    /// What it holds with all that was put in.
    Content(Content),
}

/// A part that is ready to be put in.
struct Part {
    sectors: SectorRange,
    data: Bytes,
    outcome: Cell<Option<IoResult<()>>>,
}

/// A writer of a part, until dropped. It has the part's lock.
pub(super) struct Member<'a, S> {
    of: &'a PartWrites<S>,
    line: Line,
    sectors: SectorRange,
    group: Rc<Group>,
    /// Whether the log alone has dirty parts, so that what is cached counts also when a write fails.
    is_dirty: bool,
    is_written: Cell<bool>,
}

/// The one that writes for all, until dropped.
struct Lead<'a>(&'a Group);

impl<'a> Lead<'a> {
    fn begin(group: &'a Group) -> Self {
        group.is_led.set(true);
        Self(group)
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        self.0.is_led.set(false);
        self.0.done.notify();
    }
}

/// A part that waits, until dropped.
struct Ready<'a>(&'a Group, Rc<Part>);

impl Drop for Ready<'_> {
    fn drop(&mut self) {
        self.0.ready.borrow_mut().retain(|part| !Rc::ptr_eq(part, &self.1));
    }
}

/// Lets all tasks that can go on do so.
async fn yield_once() {
    let mut has_yielded = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

impl Group {
    /// The log may not have what was put in.
    fn forget(&self) {
        let mut line = self.line.borrow_mut();
        if !matches!(*line, Known::Void) {
            *line = Known::Nothing;
        }
    }
}

impl<S: DriveControl> PartWrites<S> {
    pub(crate) fn new<O: DriveControl>(ground: &Ground<S, O>) -> Self {
        Self {
            map: ground.map.clone(),
            ssd: ground.ssd.clone(),
            log: ground.log.clone(),
            damage: ground.damage.clone(),
            recent: ground.recent.clone(),
            groups: RefCell::default(),
        }
    }

    /// Makes a writer a member of the groups of the lines that it changes in part. Called as soon as the writer has
    /// their locks, which it holds for longer than the answer. Dirty parts go to the log alone.
    pub(super) fn join(&self, range: SectorRange, is_dirty: bool) -> Vec<Member<'_, S>> {
        let edges =
            parts_of_lines(range, self.map.geometry().line_sectors()).map(|(line, sectors)| {
                let mut groups = self.groups.borrow_mut();
                let group = groups.entry(line).or_insert_with(|| {
                    // All other members would have been here before.
                    let known = self.recent.get(line, 1).map_or(Known::Nothing, Known::Content);
                    Rc::new(Group {
                        members: Cell::new(0),
                        is_led: Cell::new(false),
                        done: Signal::new(),
                        line: RefCell::new(known),
                        ready: RefCell::default(),
                    })
                });
                group.members.set(group.members.get() + 1);
                let group = group.clone();
                Member { of: self, line, sectors, group, is_dirty, is_written: Cell::new(false) }
            });
        edges.collect()
    }

    /// Has the log take what a line holds with the parts put in. What is cached of it is read first, the origin is
    /// not asked. Lines of which nothing is cached stay so, unless the parts are dirty: then masked lines are made
    /// of them.
    async fn write_ready(
        &self,
        member: &Member<'_, S>,
        waits_no_more: impl Fn() -> bool,
    ) -> IoResult<()> {
        let &Member { line, ref group, is_dirty, .. } = member;
        let all = self.map.geometry().line_mask(line);
        // One record for all that come now.
        yield_once().await;
        let parts = loop {
            // Looked at and put in at once: parts may leave, and the line may be forgotten, while anything is awaited.
            let parts: Vec<Rc<Part>> = group.ready.borrow().clone();
            let mask = parts.iter().fold(0, |mask, part| mask | self.mask(line, part));
            if mask == all || !matches!(*group.line.borrow(), Known::Nothing) {
                break parts;
            }
            let known = match self.cached_line(line).await? {
                Some((data, mask)) => Known::Content((data.freeze(), mask)),
                None if is_dirty => Known::Absent,
                None => Known::Void,
            };
            let mut of_line = group.line.borrow_mut();
            if matches!(*of_line, Known::Nothing) {
                *of_line = known;
            }
        };
        let written = match self.put_in(line, group, &parts, is_dirty) {
            Some(change) => {
                let number = self.log.queue([change]);
                self.log.acked_unless(number, 1, waits_no_more).await
            }
            None => Ok(()),
        };
        if written.is_err() {
            group.forget();
        }
        group.ready.borrow_mut().retain(|part| !parts.iter().any(|done| Rc::ptr_eq(part, done)));
        parts.iter().for_each(|part| part.outcome.set(Some(written)));
        written
    }

    /// The change that parts make; `None` if nothing is cached of the line, or may be.
    fn put_in(
        &self,
        line: Line,
        group: &Group,
        parts: &[Rc<Part>],
        is_dirty: bool,
    ) -> Option<Change> {
        let (mut buf, mut valid) = match &*group.line.borrow() {
            // A fill that is still queued would bring the old content in.
            Known::Void => {
                let may_come = self.log.has_queued(line, line)
                    || self.map.get().index().lookup(line).is_some();
                return may_come.then_some(Change::Drop { line });
            }
            Known::Content((data, mask)) => {
                (Buf::copy_of(data), mask.unwrap_or_else(|| self.map.geometry().line_mask(line)))
            }
            Known::Nothing | Known::Absent => {
                (Buf::zeroed(self.map.geometry().line_bytes as usize), 0)
            }
        };
        let start = self.map.geometry().line_range(line).start;
        for part in parts {
            let at = (part.sectors.start.0 - start.0) as usize * 512;
            buf[at..at + part.data.len()].copy_from_slice(&part.data);
            valid |= self.mask(line, part);
        }
        let all = self.map.geometry().line_mask(line);
        let is_known = !matches!(*group.line.borrow(), Known::Nothing);
        assert!(is_known || valid == all, "what is cached of a line is not left out");
        let is_whole = valid == all || canary::is(Canary::MergeTorn);
        let (data, mask) = (buf.freeze(), (!is_whole).then_some(valid));
        group.line.replace(Known::Content((data.clone(), mask)));
        Some(Change::Data { line, data, mask, source: Source::Write { dirty: is_dirty } })
    }

    fn mask(&self, line: Line, part: &Part) -> u128 {
        let start = self.map.geometry().line_range(line).start;
        mask_of(part.sectors.start.0 - start.0, part.sectors.count)
    }

    /// The cached copy of a line and its mask, verified; `None` if there is none worth having.
    ///
    /// # Errors
    /// `Medium` when the copy is dirty and damaged; `Gone` when the SSD is.
    async fn cached_line(&self, line: Line) -> IoResult<Option<(Buf, Option<u128>)>> {
        let found = || self.map.get().index().lookup(line);
        let pending = |slot: Slot| self.map.get().index().is_pending(slot);
        self.log.until(|| self.ssd.failed() || !found().is_some_and(pending)).await;
        if self.ssd.failed() {
            return Err(IoError::Gone);
        }
        let Some(slot) = found() else { return Ok(None) };
        let mask = self.map.get().index().mask(slot);
        match self.ssd.read_slot(slot).await {
            Ok(data) => Ok(Some((data, mask))),
            Err(_) if self.ssd.failed() => Err(IoError::Gone),
            Err(_) => self.damage.give_up_line(line, slot).map(|()| None),
        }
    }
}

impl<S> Member<'_, S> {
    /// The line must not be in the cache: what the origin has of it is not known, or is newer.
    pub(super) fn make_void(&self) {
        self.group.line.replace(Known::Void);
    }
}

impl<S: DriveControl> Member<'_, S> {
    /// The sectors of the part.
    pub(super) fn sectors(&self) -> SectorRange {
        self.sectors
    }

    /// Has the log take the part, with those of others that are ready. Dirty parts are not waited for any more when
    /// there is no space for them, and `waits_no_more`.
    ///
    /// # Errors
    /// `Medium` then, or when what is cached is dirty and damaged; `Gone` when the SSD takes no more writes.
    pub(super) async fn write(
        &self,
        data: Bytes,
        waits_no_more: impl Fn() -> bool,
    ) -> IoResult<()> {
        let part = Rc::new(Part { sectors: self.sectors, data, outcome: Cell::new(None) });
        self.group.ready.borrow_mut().push(part.clone());
        let _ready = Ready(&self.group, part.clone());
        let group = &*self.group;
        group.done.until(|| part.outcome.get().is_some() || !group.is_led.get()).await;
        let written = match part.outcome.get() {
            Some(outcome) => outcome,
            None => {
                let _lead = Lead::begin(group);
                self.of.write_ready(self, waits_no_more).await
            }
        };
        self.is_written.set(written.is_ok());
        written
    }
}

impl<S> Drop for Member<'_, S> {
    fn drop(&mut self) {
        match self.is_written.get() {
            true => (),
            false if self.is_dirty => self.group.forget(),
            // The origin may have the part.
            false => self.make_void(),
        }
        self.group.members.set(self.group.members.get() - 1);
        if self.group.members.get() > 0 {
            return;
        }
        self.of.groups.borrow_mut().remove(&self.line);
        match self.group.line.replace(Known::Void) {
            Known::Content(content) => self.of.recent.put(self.line, content),
            _ => self.of.recent.forget(self.line),
        }
    }
}
