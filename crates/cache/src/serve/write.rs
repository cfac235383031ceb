//! Writes: to the log, or to the origin and then to the log.
//!
//! [`Writer`] chooses the way. [`DirectWriter`] changes the origin past the log: an intent bit first, and then news
//! for the log. Lines that a write has whole are changes as they are; [`PartWrites`] makes changes of the parts of
//! lines at its ends.

use std::cell::{Cell, RefCell};
use std::pin::{Pin, pin};
use std::rc::Rc;

use voltier_block::{
    DriveControl, Durability, IoError, IoResult, Lba, Limits, Payload, PayloadCursor, SectorRange,
};
use voltier_ring::join_all;

use crate::canary::{self, Canary};
use crate::config::Settings;
use crate::counters::{Counters, Served, add, count};
use crate::devices::health::SsdHealth;
use crate::devices::origin::{Origin, Space};
use crate::devices::passage::Passage;
use crate::devices::ssd::Ssd;
use crate::format::geometry::Geometry;
use crate::ground::Ground;
use crate::log::bound::{Bound, Place};
use crate::log::change::{Change, Source};
use crate::log::commit::Log;
use crate::log::damage::Damage;
use crate::log::intents::{Direct, Intents};
use crate::log::long_streams::DIRTY_LIMIT_PERCENT;
use crate::log::pressure::Pressure;
use crate::map::locks::{Access, LineGuard, LineLocks};
use crate::map::shared::Map;
use crate::numbers::Line;
use crate::serve::flush::Flusher;
use crate::serve::part_writes::{Member, PartWrites};
use crate::serve::route::{Router, WritePath};
use crate::serve::same_range::{self, Coalescing, Overwritten, Role, WriteAnswer};
use crate::serve::without_ssd::{RedoGuard, RedoOrder, RedoTicket};

/// How a write's wait for its lines ends.
enum Wait {
    /// The write has its lines, and answers those that came later and wait.
    Leader(LineGuard, Overwritten),
    /// A write of the same range has answered for all.
    Overwritten(WriteAnswer),
}

/// Whether a write that can only go on when the origin takes dirty lines ends with an error instead.
fn waits_no_more<O: DriveControl>(origin: &Origin<O>, health: &SsdHealth) -> bool {
    let refusal = origin.refusal();
    let has_left = origin.silence().has_left();
    has_left || refusal.lasts() || (refusal.has_begun() && health.ends_waits())
}

/// Whether a write that waits for space of the log ends with an error instead. Only the cleaner can make
/// space then, and the origin takes nothing.
fn waits_for_log_no_more<O: DriveControl>(
    pressure: &Pressure,
    origin: &Origin<O>,
    health: &SsdHealth,
) -> bool {
    pressure.log_waits() && waits_no_more(origin, health)
}

/// The writes of one cache.
pub(crate) struct Writer<S, O> {
    limits: Limits,
    map: Rc<Map>,
    ssd: Rc<Ssd<S>>,
    origin: Rc<Origin<O>>,
    log: Rc<Log<S>>,
    health: Rc<SsdHealth>,
    damage: Rc<Damage<S>>,
    pressure: Rc<Pressure>,
    bound: Rc<Bound<S>>,
    locks: Rc<LineLocks>,
    router: Rc<Router<S>>,
    coalescing: Coalescing,
    parts: Rc<PartWrites<S>>,
    direct: Rc<DirectWriter<S, O>>,
    flusher: Rc<Flusher<S, O>>,
    settings: Rc<RefCell<Settings>>,
    counters: Rc<Counters>,
}

impl<S: DriveControl, O: DriveControl> Writer<S, O> {
    pub(crate) fn new(
        ground: &Ground<S, O>,
        router: Rc<Router<S>>,
        parts: Rc<PartWrites<S>>,
        direct: Rc<DirectWriter<S, O>>,
        flusher: Rc<Flusher<S, O>>,
    ) -> Self {
        Self {
            limits: ground.limits.clone(),
            map: ground.map.clone(),
            ssd: ground.ssd.clone(),
            origin: ground.origin.clone(),
            log: ground.log.clone(),
            health: ground.health.clone(),
            damage: ground.damage.clone(),
            pressure: ground.pressure.clone(),
            bound: ground.bound.clone(),
            locks: ground.locks.clone(),
            router,
            coalescing: Coalescing::new(ground.map.geometry()),
            parts,
            direct,
            flusher,
            settings: ground.settings.clone(),
            counters: ground.counters.clone(),
        }
    }

    pub(crate) async fn write(
        &self,
        at: Lba,
        data: Payload,
        durability: Durability,
    ) -> IoResult<()> {
        let range = SectorRange::from_bytes(at.bytes(), data.len() as u64);
        assert!(self.limits.accepts(range) && !range.is_empty(), "the volume checks ranges");
        if self.limits.read_only {
            return Err(IoError::ReadOnly);
        }
        self.wait_before_lines(range).await;
        let served = self.write_coalesced(range, data).await?;
        count(&self.counters.writes, served, range.bytes());
        if durability == Durability::Durable {
            // A durable record behind a lost one would not be replayed: flush what is before it.
            self.make_durable().await?;
        }
        Ok(())
    }

    /// Makes a change durable that is in the log, or past it, before it is acknowledged.
    pub(crate) async fn make_durable(&self) -> IoResult<()> {
        self.flusher.flush().await?;
        // That may have taken long. An SSD that was lost meanwhile had the change durably.
        match self.wait_for_older().await {
            Err(IoError::Gone) => Ok(()),
            done => done,
        }
    }

    async fn write_coalesced(&self, range: SectorRange, mut data: Payload) -> IoResult<Served> {
        let (first, last) = self.map.geometry().lines_of(range);
        let stream_bytes = self.router.observe_write(range);
        let access = self.access(range);
        let free = self
            .coalescing
            .is_next(range)
            .then(|| self.locks.try_lock(first, last, access))
            .flatten();
        let (guard, overwritten) = match free {
            Some(guard) => (guard, Overwritten::default()),
            None => match self.wait_for_lines(range, &mut data, access).await {
                Wait::Leader(guard, overwritten) => (guard, overwritten),
                Wait::Overwritten(answer) => return answer,
            },
        };
        let written = self.write_locked(guard, access, range, &data, stream_bytes).await;
        overwritten.answer(&written);
        written
    }

    /// How a write has its lines.
    #[inline]
    fn access(&self, range: SectorRange) -> Access {
        if canary::is(Canary::LockShared) {
            return Access::Shared;
        }
        if self.log.is_ordered() {
            return Access::Exclusive;
        }
        Access::change(range, self.map.geometry().line_sectors())
    }

    /// Waits for the log and for the lines. The newest of the writes of the same range that come
    /// meanwhile goes in the place of the leader.
    async fn wait_for_lines(&self, range: SectorRange, data: &mut Payload, access: Access) -> Wait {
        let (first, last) = self.map.geometry().lines_of(range);
        loop {
            match self.coalescing.join(range, data) {
                Role::Leader(leader) => {
                    self.coalescing.wait_for_log().await;
                    let guard = self.locks.lock(first, last, access).await;
                    let mut overwritten = same_range::begin_write(leader);
                    if let Some(newest) = overwritten.take_given() {
                        *data = newest;
                    }
                    return Wait::Leader(guard, overwritten);
                }
                Role::Waiter(answer) => {
                    // No answer: the first write was dropped, and the next try is for the lines themselves.
                    if let Some(answer) = answer.await {
                        add(&self.counters.cache.overwritten_writes, 1);
                        return Wait::Overwritten(answer);
                    }
                }
            }
        }
    }

    async fn write_locked(
        &self,
        mut guard: LineGuard,
        access: Access,
        range: SectorRange,
        data: &Payload,
        stream_bytes: u64,
    ) -> IoResult<Served> {
        let (first, last) = self.map.geometry().lines_of(range);
        let path = guard.begin(|| self.router.write_path(range, stream_bytes)).await;
        let hit = self.map.has_all(first, last);
        let mut written = match path {
            WritePath::Log => self.write_to_log(range, data).await,
            WritePath::Through | WritePath::Around => {
                let past = pin!(self.direct.write_past(&self.parts, access, range, data, path));
                self.origin.judged(past).await
            }
        };
        let may_go_back = path == WritePath::Around
            && self.router.writes_back()
            && self.ssd.takes_writes()
            // What an origin that was given up has in hand may still come.
            && !self.origin.silence().has_left();
        if written.is_err() && may_go_back {
            // The origin refuses a stream that could be written back.
            self.router.note_refused();
            guard.begin(|| WritePath::Log).await;
            written = self.write_to_log(range, data).await;
        }
        if written == Err(IoError::Gone) && !self.ssd.takes_writes() {
            let _guard = self.direct.lock_without_ssd(guard, range).await?;
            let again = pin!(self.direct.write_without_ssd(range, data));
            written = self.origin.judged(again).await;
        } else {
            drop(guard);
        }
        written?;
        Ok(match path {
            WritePath::Around => Served::Bypassed,
            _ if hit => Served::Hit,
            _ => Served::Miss,
        })
    }

    /// Write-back: acknowledged when the log has it on the SSD's interface.
    ///
    /// # Errors
    /// `Gone` when the SSD takes no more writes, also after it took this one: write without it then. `Medium`
    /// when the write would wait for an origin that takes nothing.
    pub(super) async fn write_to_log(&self, range: SectorRange, data: &Payload) -> IoResult<()> {
        if !self.ssd.takes_writes() {
            return Err(IoError::Gone);
        }
        let _place = self.wait_for_dirty_room(range).await?;
        let members = self.parts.join(range, true);
        let changes = whole_lines(self.map.geometry(), range, data, Source::Write { dirty: true });
        let _in_log = self.coalescing.in_log(data.len());
        let count = changes.len() as u64;
        let number = (count > 0).then(|| self.log.queue(changes));
        let waits_no_more = || self.waits_for_log_no_more();
        let parts = write_parts(&members, range, data, waits_no_more).await;
        if let Some(number) = number {
            self.log.acked_unless(number, count, waits_no_more).await?;
        }
        parts?;
        let (first, last) = self.map.geometry().lines_of(range);
        self.damage.forget(first, last);
        self.wait_for_older().await
    }

    /// Waits until a write of this range could begin, as the bound on what the origin lacks has it: without the
    /// lines, so that reads of them go on. Whether it begins is asked once more with the lines.
    async fn wait_before_lines(&self, range: SectorRange) {
        if self.is_bounded() && !self.bound.could_begin(range) {
            let place = self.bound.enter(range);
            let has_room = || {
                place.begin()
                    || !self.is_bounded()
                    || !self.ssd.takes_writes()
                    || self.waits_no_more()
            };
            self.pressure.until_room(has_room).await;
        }
    }

    /// Whether writes may have to wait for the bound.
    fn is_bounded(&self) -> bool {
        let settings = self.settings.borrow();
        settings.max_unshipped.is_any() && settings.mode.writes_back()
    }

    /// Waits until nothing that the origin lacks is older than the bound allows.
    ///
    /// # Errors
    /// `Medium` when the origin takes nothing, and the write waits no more. The log has it.
    async fn wait_for_older(&self) -> IoResult<()> {
        if self.bound.may_acknowledge() {
            return Ok(());
        }
        let _held = self.bound.hold();
        let may_acknowledge = || self.bound.may_acknowledge() || !self.is_bounded();
        let has_ended = || !self.ssd.takes_writes() || self.waits_no_more();
        self.pressure.until_room(|| may_acknowledge() || has_ended()).await;
        if !self.ssd.takes_writes() {
            // The log may have lost it: the write is made once more without the SSD.
            return Err(IoError::Gone);
        }
        if may_acknowledge() { Ok(()) } else { Err(IoError::Medium) }
    }

    fn waits_no_more(&self) -> bool {
        waits_no_more(&self.origin, &self.health)
    }

    fn waits_for_log_no_more(&self) -> bool {
        waits_for_log_no_more(&self.pressure, &self.origin, &self.health)
    }

    /// Waits until the log may take a write of this range.
    ///
    /// # Errors
    /// `Medium` when the origin takes nothing, and the write waits no more.
    async fn wait_for_dirty_room(&self, range: SectorRange) -> IoResult<Place<S>> {
        let place = self.bound.enter(range);
        let limit = self.map.geometry().capacity_lines() * DIRTY_LIMIT_PERCENT / 100;
        let is_roomy = || {
            let waiting = (self.log.queued_bytes() as u64) / self.map.geometry().line_bytes;
            self.map.get().index().dirty_lines() + waiting < limit
        };
        let room = || !self.ssd.takes_writes() || (is_roomy() && place.begin());
        self.pressure.until_room(|| room() || self.waits_no_more()).await;
        if room() && !(self.log.lacks_space() && self.waits_for_log_no_more()) {
            place.begin_anyway();
            Ok(place)
        } else {
            Err(IoError::Medium)
        }
    }
}

/// The changes of the lines that a write has whole.
fn whole_lines(
    geometry: &Geometry,
    range: SectorRange,
    data: &Payload,
    source: Source,
) -> Vec<Change> {
    let line_sectors = geometry.line_sectors();
    let mut changes = Vec::with_capacity(1);
    let mut rest = PayloadCursor::new(data.clone());
    for piece in range.split_at_multiples(line_sectors) {
        let data = rest.take(piece.bytes() as usize);
        if piece.count == line_sectors {
            let line = geometry.line_of(piece.start);
            changes.push(Change::Data { line, data, mask: None, source });
        }
    }
    changes
}

/// Has the log take the parts of lines at the ends of a write.
///
/// # Errors
/// Those of [`Member::write`].
async fn write_parts<S: DriveControl>(
    members: &[Member<'_, S>],
    range: SectorRange,
    data: &Payload,
    waits_no_more: impl Fn() -> bool + Copy,
) -> IoResult<()> {
    if members.is_empty() {
        return Ok(());
    }
    let writes = members.iter().map(|member| {
        let from = (member.sectors().start.0 - range.start.0) as usize * 512;
        let part = data.bytes(from..from + member.sectors().bytes() as usize);
        member.write(part, waits_no_more)
    });
    Box::pin(join_all(writes)).await.into_iter().collect()
}

/// What is to be done if a request is dropped.
struct Undone<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Undone<F> {
    /// The request has ended.
    fn forget(mut self) {
        self.0 = None;
    }
}

impl<F: FnOnce()> Drop for Undone<F> {
    fn drop(&mut self) {
        if let Some(undo) = self.0.take() {
            undo();
        }
    }
}

/// The direct way to the origin of one cache.
pub(crate) struct DirectWriter<S, O> {
    map: Rc<Map>,
    ssd: Rc<Ssd<S>>,
    origin: Rc<Origin<O>>,
    log: Rc<Log<S>>,
    health: Rc<SsdHealth>,
    passage: Rc<Passage>,
    intents: Rc<Intents>,
    pressure: Rc<Pressure>,
    damage: Rc<Damage<S>>,
    locks: Rc<LineLocks>,
    redo_order: Rc<RedoOrder>,
}

impl<S: DriveControl, O: DriveControl> DirectWriter<S, O> {
    pub(crate) fn new(ground: &Ground<S, O>) -> Self {
        Self {
            map: ground.map.clone(),
            ssd: ground.ssd.clone(),
            origin: ground.origin.clone(),
            log: ground.log.clone(),
            health: ground.health.clone(),
            passage: ground.passage.clone(),
            intents: ground.intents.clone(),
            pressure: ground.pressure.clone(),
            damage: ground.damage.clone(),
            locks: ground.locks.clone(),
            redo_order: RedoOrder::new(),
        }
    }

    /// Waits until the log takes news. Behind the change that they tell of, they must not wait for space that
    /// an origin which takes nothing does not let the cleaner make.
    ///
    /// # Errors
    /// `Medium` when the request waits no more.
    async fn wait_for_space(&self) -> IoResult<()> {
        let waits_no_more = || waits_for_log_no_more(&self.pressure, &self.origin, &self.health);
        let has_space = || !self.log.lacks_space() || !self.ssd.takes_writes();
        self.log.until(|| has_space() || waits_no_more()).await;
        if has_space() { Ok(()) } else { Err(IoError::Medium) }
    }

    /// Straight to the origin; the log gets a copy or the news that its old one is void at the same time. Of the two
    /// each may be the one that a crash leaves: the intent bits say so.
    async fn write_past(
        &self,
        parts: &PartWrites<S>,
        access: Access,
        range: SectorRange,
        data: &Payload,
        path: WritePath,
    ) -> IoResult<()> {
        if !self.ssd.takes_writes() {
            return Err(IoError::Gone);
        }
        self.wait_for_space().await?;
        let (first, last) = self.map.geometry().lines_of(range);
        self.map.void_unloaded(first, last);
        let _direct = self.set_intent(range).await?;
        let members = parts.join(range, false);
        let is_kept = path == WritePath::Through;
        let changes = if is_kept {
            whole_lines(self.map.geometry(), range, data, Source::Write { dirty: false })
        } else {
            members.iter().for_each(Member::make_void);
            self.drops(first, last)
        };
        // Of lines of which nothing is cached there is nothing to tell, unless what was formed before is on its way.
        let has_news = is_kept || !changes.is_empty() || !self.log.has_acked_all();
        let write = || self.write_origin(range, data, access);
        let news = async {
            let parts = async {
                if is_kept { write_parts(&members, range, data, || false).await } else { Ok(()) }
            };
            self.commit_past(changes, parts, first, last).await
        };
        // A write that is dropped may not have reached the origin.
        let undone = Undone(Some(|| self.void_copies(&members, first, last)));
        let (written, committed) = if has_news {
            let both: [Pin<Box<dyn Future<Output = IoResult<()>> + '_>>; 2] =
                [Box::pin(write()), Box::pin(news)];
            let done = join_all(both).await;
            (done[0], done[1])
        } else {
            (write().await, Ok(()))
        };
        undone.forget();
        if written.is_err() {
            // Nobody knows what the origin holds: cached copies are void too.
            members.iter().for_each(Member::make_void);
            self.commit_past(self.drops(first, last), async { Ok(()) }, first, last).await?;
        }
        committed?;
        written
    }

    /// Writes to the origin in the order of changes of the lines.
    async fn write_origin(
        &self,
        range: SectorRange,
        data: &Payload,
        access: Access,
    ) -> IoResult<()> {
        let (first, last) = self.map.geometry().lines_of(range);
        let _order = self.origin.lock_as(first, last, access).await;
        self.origin.write(range.start, data.clone()).await
    }

    /// Drops the copies of lines that the log may have newer than the origin.
    fn void_copies(&self, members: &[Member<'_, S>], first: Line, last: Line) {
        members.iter().for_each(Member::make_void);
        self.log.queue(self.drops(first, last));
    }

    /// Sets the intent bits of a range before it is written past the log.
    ///
    /// # Errors
    /// `Gone`: the SSD does not take the bits, however often it is tried.
    async fn set_intent(&self, range: SectorRange) -> IoResult<Direct<'_>> {
        match self.intents.begin(self.ssd.device(), range).await {
            Ok(direct) => Ok(direct),
            Err(error) => Box::pin(self.set_intent_again(range, error)).await,
        }
    }

    #[cold]
    async fn set_intent_again(&self, range: SectorRange, error: IoError) -> IoResult<Direct<'_>> {
        let direct = Cell::new(None);
        let attempt = async || {
            direct.set(Some(self.intents.begin(self.ssd.device(), range).await?));
            Ok(())
        };
        let _ = self.ssd.write_again(error, attempt).await;
        direct.into_inner().ok_or(IoError::Gone)
    }

    /// Drops of every line that is cached, or that a queued change may bring in: a fill, or the write of a client
    /// that is gone.
    pub(super) fn drops(&self, first: Line, last: Line) -> Vec<Change> {
        let queued = match canary::is(Canary::QueuedLinesStay) {
            true => Vec::new(),
            false => self.log.queued_lines(first, last),
        };
        let contents = self.map.get();
        let cached = contents.index().cached_between(first, last).map(|(line, _)| line);
        cached.chain(queued).map(|line| Change::Drop { line }).collect()
    }

    /// Commits what a direct write changed, `parts` too, and all that was formed before. An older record that made
    /// one of the write's lines clean, or dropped one, must not be lost when this write is
    /// acknowledged.
    ///
    /// # Errors
    /// `Gone` when the SSD takes no more writes: the older record may be undone, and an evacuation may
    /// write its line over this write.
    async fn commit(
        &self,
        changes: Vec<Change>,
        parts: impl Future<Output = IoResult<()>>,
    ) -> IoResult<()> {
        let number = (!changes.is_empty()).then(|| self.log.queue(changes));
        parts.await?;
        if let Some(number) = number {
            self.log.acked(number).await?;
        }
        self.log.all_acked().await
    }

    /// The same after the origin has been changed.
    async fn commit_past(
        &self,
        changes: Vec<Change>,
        parts: impl Future<Output = IoResult<()>>,
        first: Line,
        last: Line,
    ) -> IoResult<()> {
        let committed = self.commit(changes, parts).await;
        if committed.is_err() {
            // The log tells nobody that these copies are older than the origin.
            self.map.change().forget_clean(first, last);
        }
        committed
    }

    /// Locks the lines of a change that the SSD did not take once more, when the origin may be changed past
    /// the SSD. Without the locks meanwhile: the SSD may have an older copy, which clients read until it is
    /// on the origin.
    ///
    /// # Errors
    /// Those of [`SsdHealth::past_gate_if`].
    pub(super) async fn lock_without_ssd(
        &self,
        lines: LineGuard,
        range: SectorRange,
    ) -> IoResult<RedoGuard> {
        let ticket = self.enter_redo(range);
        drop(lines);
        self.past_gate(range).await?;
        let change = self.passage.begin_change();
        ticket.in_turn().await;
        let (first, last) = self.map.geometry().lines_of(range);
        Ok(RedoGuard::new(self.locks.lock(first, last, Access::Exclusive).await, change, ticket))
    }

    /// The place in the order of a change that the SSD did not take. The caller holds the locks of the lines.
    pub(super) fn enter_redo(&self, range: SectorRange) -> Rc<RedoTicket> {
        Rc::new(self.redo_order.enter(range))
    }

    /// Locks a part of a long change as [`lock_without_ssd`](Self::lock_without_ssd) does, in the change's turn.
    ///
    /// # Errors
    /// Those of [`SsdHealth::past_gate_if`].
    pub(super) async fn lock_part_without_ssd(
        &self,
        ticket: &Rc<RedoTicket>,
        part: SectorRange,
    ) -> IoResult<RedoGuard> {
        self.past_gate(part).await?;
        let change = self.passage.begin_change();
        ticket.in_turn().await;
        let (first, last) = self.map.geometry().lines_of(part);
        Ok(RedoGuard::new(self.locks.lock_range(first, last).await, change, ticket.clone()))
    }

    /// Sets intent bits ahead of a discard or of zeroes that may go on behind this range: those of regions of
    /// which a start would not find a line that it must not trust.
    fn look_ahead(&self, range: SectorRange) {
        let contents = self.map.get();
        let is_bare = |region| {
            let (first, last) = self.map.geometry().lines_of(region);
            contents.loading().is_none() && contents.index().is_bare(first, last)
        };
        self.intents.look_ahead(range, is_bare);
    }

    /// Waits until a range of the origin may be changed past the SSD. In an evacuation its region is opened,
    /// but in ordered mode: there the origin gets nothing before what is older.
    ///
    /// # Errors
    /// Those of [`SsdHealth::past_gate_if`].
    async fn past_gate(&self, range: SectorRange) -> IoResult<()> {
        let (first, last) = self.map.geometry().lines_of(range);
        if self.log.is_ordered() {
            return self.health.past_gate().await;
        }
        if !self.health.failed() {
            self.passage.ask(first, last);
        }
        self.health.past_gate_if(|| self.passage.is_open(first, last)).await
    }

    /// Takes the copies out of the cache of lines that are changed on the origin now. In an evacuation they are
    /// clean, and nothing else says that the origin is newer.
    fn forget_copies(&self, first: Line, last: Line) {
        if self.health.is_evacuating() {
            self.map.void_unloaded(first, last);
            self.map.change().forget_clean(first, last);
        }
    }

    /// Without the SSD: the origin takes the write, and sectors that were lost have content again.
    pub(super) async fn write_without_ssd(
        &self,
        range: SectorRange,
        data: &Payload,
    ) -> IoResult<()> {
        self.past_gate(range).await?;
        let (first, last) = self.map.geometry().lines_of(range);
        // The cleaner may have been writing an older version when the SSD was lost.
        let _order = self.origin.lock(first, last).await;
        self.forget_copies(first, last);
        self.origin.write(range.start, data.clone()).await?;
        self.map.change().heal(range);
        Ok(())
    }

    /// Zeroes without the SSD: sectors that were lost have content again.
    pub(super) async fn zero_without_ssd(&self, piece: SectorRange, space: Space) -> IoResult<()> {
        let (first, last) = self.map.geometry().lines_of(piece);
        let _order = self.origin.lock_range(first, last).await;
        self.forget_copies(first, last);
        self.origin.write_zeroes(piece, space).await?;
        self.map.change().heal(piece);
        Ok(())
    }

    /// Zeroes of the origin; the log gets the news that its copies are void.
    pub(super) async fn zero_past(&self, piece: SectorRange, space: Space) -> IoResult<()> {
        let (first, last) = self.map.geometry().lines_of(piece);
        if !self.ssd.takes_writes() {
            return Err(IoError::Gone);
        }
        self.wait_for_space().await?;
        self.map.void_unloaded(first, last);
        self.look_ahead(piece);
        let _direct = self.set_intent(piece).await?;
        let zeroed = {
            let _order = self.origin.lock_range(first, last).await;
            self.origin.write_zeroes(piece, space).await
        };
        self.commit_past(self.drops(first, last), async { Ok(()) }, first, last).await?;
        zeroed
    }

    /// Discards whole lines without the SSD: sectors that were lost have content again.
    pub(super) async fn discard_without_ssd(
        &self,
        first: Line,
        last: Line,
        whole: SectorRange,
    ) -> IoResult<()> {
        let _order = self.origin.lock_range(first, last).await;
        self.forget_copies(first, last);
        self.origin.discard(whole).await?;
        self.map.change().heal(whole);
        Ok(())
    }

    /// Discards whole lines, whose locks the caller holds: the cache forgets them, the origin is told.
    ///
    /// # Errors
    /// `Gone` when the SSD takes no more writes: discard without it then. Others are the origin's.
    pub(super) async fn discard(
        &self,
        first: Line,
        last: Line,
        whole: SectorRange,
    ) -> IoResult<()> {
        if !self.ssd.takes_writes() {
            return Err(IoError::Gone);
        }
        self.wait_for_space().await?;
        self.map.void_unloaded(first, last);
        self.look_ahead(whole);
        let Ok(_direct) = self.set_intent(whole).await else { return Ok(()) };
        // The content is given up from now on: dirty lines need not reach the origin any more.
        if self.commit(self.drops(first, last), async { Ok(()) }).await.is_err() {
            return Ok(());
        }
        self.damage.forget(first, last);
        let _order = self.origin.lock_range(first, last).await;
        let discarded = self.origin.discard(whole).await;
        match discarded {
            // A discard is advice; an origin that cannot take it keeps its content.
            Err(IoError::Unsupported) => Ok(()),
            done => done,
        }
    }
}
