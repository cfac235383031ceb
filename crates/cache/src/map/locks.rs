//! Order among requests that touch the same lines: reader-writer locks in buckets, no allocation
//! unless somebody really waits.
//!
//! A request takes the buckets of all its lines in ascending order of bucket, so two requests never
//! wait for each other. Two lines may share a bucket; the cost is a wait in vain, once in hundreds.
//!
//! A bucket is taken in the order of arrival: while a writer waits, readers that come later wait behind the
//! writer. So no stream of readers keeps a writer out for ever. A request must not lock lines that the same
//! request has locked already, not even shared ones.
//!
//! Requests of a stream that begins within a line share lines at their ends. They change different sectors of
//! these, and have [`Parts`] of them at the same time: one after the other they would reach the disk out of order.
//! Those of a line that have [begun](LineGuard::begin) all go the same way.
//!
//! A long range of lines is one lock, and takes no buckets: see [`LongLocks`].

use std::cell::{Cell, RefCell};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use voltier_block::{Lba, SectorRange};
use voltier_ring::Signal;

use crate::canary::{self, Canary};
use crate::map::long_locks::{LONG_LINES_MIN, LongLocks, Presence};
use crate::numbers::Line;

/// Buckets: with 256 lines in flight, one request in 256 meets a stranger on its bucket.
const BUCKET_COUNT: usize = 1 << 16;

/// How a request has its lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Shared,
    Exclusive,
    /// Of lines that the range has in part, other requests may have other sectors.
    Parts(Parts),
}

/// A range that is changed: whole lines exclusively, and sectors of the lines at its ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parts {
    range: SectorRange,
    line_sectors: u64,
}

/// The lines that a range has in part, each with the sectors of it; one, two or none.
pub(crate) fn parts_of_lines(
    range: SectorRange,
    line_sectors: u64,
) -> impl Iterator<Item = (Line, SectorRange)> {
    let (first, last) = (range.start.0 / line_sectors, (range.end().0 - 1) / line_sectors);
    let lines = [Some(first), (last != first).then_some(last)];
    lines.into_iter().flatten().filter_map(move |line| {
        let start = range.start.0.max(line * line_sectors);
        let count = range.end().0.min((line + 1) * line_sectors) - start;
        let part = SectorRange::new(Lba(start), count);
        (count < line_sectors).then_some((Line(line), part))
    })
}

impl Access {
    /// The access of a change of a range to its lines: to parts of them where others may have other parts.
    #[inline]
    pub(crate) fn change(range: SectorRange, line_sectors: u64) -> Self {
        let has_parts = !(range.start.0 | range.count).is_multiple_of(line_sectors);
        // Each line has a bucket of its own.
        let is_short = range.count / line_sectors + 2 < BUCKET_COUNT as u64;
        match has_parts && is_short {
            true => Self::Parts(Parts { range, line_sectors }),
            false => Self::Exclusive,
        }
    }
}

impl Parts {
    /// What the request has of a bucket: sectors of a line, or all of it.
    fn of_bucket(&self, bucket: u32) -> Option<Part> {
        let mut edges = parts_of_lines(self.range, self.line_sectors);
        let edge = edges.find(|(line, _)| bucket_of(*line) == bucket);
        edge.map(|(_, sectors)| Part { bucket, sectors, way: Way::Open })
    }
}

/// Sectors of a line that a request has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    bucket: u32,
    sectors: SectorRange,
    way: Way,
}

/// The way in which a part is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Nobody has asked yet.
    Open,
    /// Waits, with a ticket, until others that go another way have ended.
    Waits(u8, u64),
    Begun(u8),
}

impl Way {
    /// Whether a change that goes `way`, and has waited since `ticket`, has to wait for this one.
    fn is_before(self, way: u8, ticket: u64) -> bool {
        match self {
            Way::Open => false,
            Way::Waits(other, since) => other != way && since < ticket,
            Way::Begun(other) => other != way,
        }
    }
}

/// One bucket.
#[derive(Default)]
struct Bucket {
    /// Readers; -1 for a writer, and less for writers of parts: two of them are -3.
    held: Cell<i32>,
    /// So often it was taken for a change, modulo 2^32.
    changes: Cell<u32>,
}

const WRITER: i32 = -1;

/// A moment in the life of a line: whether it was taken for a change since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    of_bucket: u32,
    of_all: u64,
    of_long: u64,
}

/// The locks of one cache.
pub(crate) struct LineLocks {
    buckets: Vec<Bucket>,
    /// The parts that are held.
    parts: RefCell<Vec<Part>>,
    /// Parts were given back, or their way is another.
    parts_change: Signal,
    /// So often any bucket was taken for a change, and a long range.
    changes: Cell<u64>,
    long_changes: Cell<u64>,
    /// The requests that wait for each bucket, in the order of their arrival; no list is empty.
    waiting: RefCell<BTreeMap<u32, VecDeque<Waiter>>>,
    next_ticket: Cell<u64>,
    long: LongLocks,
}

/// A request that waits for a bucket.
struct Waiter {
    ticket: u64,
    access: Access,
    waker: Waker,
}

/// Takes a waiter out of the list of its bucket when the request has the bucket, or is dropped.
struct WaiterGuard<'a> {
    locks: &'a LineLocks,
    bucket: u32,
    ticket: u64,
}

impl Drop for WaiterGuard<'_> {
    fn drop(&mut self) {
        self.locks.leave(self.bucket, self.ticket);
    }
}

/// Lines locked until dropped.
pub(crate) struct LineGuard {
    locks: Rc<LineLocks>,
    held: Held,
    access: Access,
}

/// Buckets of one request: most requests touch one or two lines.
enum Held {
    One(u32, Presence),
    Many(Vec<u32>, Presence),
    /// The number of a long range.
    Long(u64),
}

impl Held {
    fn buckets(&self) -> &[u32] {
        match self {
            Held::One(one, _) => std::slice::from_ref(one),
            Held::Many(many, _) => many,
            Held::Long(_) => &[],
        }
    }
}

fn bucket_of(line: Line) -> u32 {
    // Neighbouring lines get neighbouring buckets: a large request takes distinct ones.
    (line.0 % BUCKET_COUNT as u64) as u32
}

impl LineLocks {
    pub(crate) fn new() -> Rc<Self> {
        let mut buckets = Vec::new();
        buckets.resize_with(BUCKET_COUNT, Bucket::default);
        Rc::new(Self {
            buckets,
            parts: RefCell::default(),
            parts_change: Signal::new(),
            changes: Cell::new(0),
            long_changes: Cell::new(0),
            waiting: RefCell::new(BTreeMap::new()),
            next_ticket: Cell::new(0),
            long: LongLocks::new(),
        })
    }

    /// The memory of the locks of a cache.
    pub(crate) const fn bytes() -> u64 {
        (BUCKET_COUNT * size_of::<Bucket>()) as u64 + LongLocks::bytes()
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.buckets) + LongLocks::bytes() as usize
    }

    /// Buckets and long ranges that are held, and buckets that somebody waits for.
    pub(crate) fn in_use(&self) -> (usize, usize) {
        let held = self.buckets.iter().filter(|bucket| bucket.held.get() != 0).count();
        (held + self.long.count(), self.waiting.borrow().len())
    }

    /// The line as it is now, for [`is_unchanged`](Self::is_unchanged). Nobody changes it meanwhile.
    pub(crate) fn mark(&self, line: Line) -> Mark {
        let bucket = &self.buckets[bucket_of(line) as usize];
        Mark {
            of_bucket: bucket.changes.get(),
            of_all: self.changes.get(),
            of_long: self.long_changes.get(),
        }
    }

    /// Whether nobody but the caller, who has taken the line so many times, took it for a change since.
    pub(crate) fn is_unchanged(&self, line: Line, since: Mark, own: u32) -> bool {
        let now = self.mark(line);
        // One bucket cannot have come round when all together have not.
        let is_recent = now.of_all - since.of_all < u64::from(u32::MAX);
        is_recent
            && now.of_long == since.of_long
            && now.of_bucket == since.of_bucket.wrapping_add(own)
    }

    #[inline]
    fn is_free(&self, bucket: u32, access: Access) -> bool {
        let held = self.buckets[bucket as usize].held.get();
        match access {
            Access::Shared => held >= 0,
            Access::Exclusive => held == 0,
            Access::Parts(parts) => held == 0 || held < WRITER && self.is_part_free(bucket, &parts),
        }
    }

    fn is_part_free(&self, bucket: u32, parts: &Parts) -> bool {
        let Some(wanted) = parts.of_bucket(bucket) else { return false };
        let held = self.parts.borrow();
        let mut of_bucket = held.iter().filter(|part| part.bucket == bucket);
        !of_bucket.any(|part| part.sectors.overlaps(wanted.sectors))
    }

    /// Has parts that are held be changed in a way, if none that goes another way is before them; whether that is so.
    fn begin_parts(&self, own: &[Part], way: u8, ticket: u64) -> bool {
        let mut held = self.parts.borrow_mut();
        let is_own = |part: &Part, own: &Part| part.sectors == own.sectors;
        let shares = |part: &Part, own: &Part| part.bucket == own.bucket && !is_own(part, own);
        let must_wait = held
            .iter()
            .any(|part| part.way.is_before(way, ticket) && own.iter().any(|own| shares(part, own)));
        let new = if must_wait { Way::Waits(way, ticket) } else { Way::Begun(way) };
        let mut lets_others = false;
        for part in held.iter_mut().filter(|part| own.iter().any(|own| is_own(part, own))) {
            lets_others |=
                matches!(part.way, Way::Begun(before) | Way::Waits(before, _) if before != way);
            part.way = new;
        }
        drop(held);
        if lets_others {
            self.parts_change.notify();
        }
        !must_wait
    }

    fn is_waited_for(&self, bucket: u32) -> bool {
        let waiting = self.waiting.borrow();
        !waiting.is_empty() && waiting.contains_key(&bucket)
    }

    fn try_take(&self, bucket: u32, access: Access) -> bool {
        let free = self.is_free(bucket, access);
        if free {
            let Bucket { held, changes } = &self.buckets[bucket as usize];
            if access == Access::Shared {
                held.set(held.get() + 1);
                return true;
            }
            changes.set(changes.get().wrapping_add(1));
            self.changes.set(self.changes.get() + 1);
            match access {
                Access::Parts(parts) if let Some(part) = parts.of_bucket(bucket) => {
                    held.set(held.get().min(WRITER) - 1);
                    self.parts.borrow_mut().push(part);
                }
                _ => held.set(WRITER),
            }
        }
        free
    }

    /// Takes a bucket that nobody waits for, if it is free.
    #[inline]
    fn take_now(&self, bucket: u32, access: Access) -> bool {
        !self.is_waited_for(bucket) && self.try_take(bucket, access)
    }

    #[cold]
    async fn take_in_turn(&self, bucket: u32, access: Access) {
        let ticket = self.next_ticket.get();
        self.next_ticket.set(ticket + 1);
        let mut guard = None;
        poll_fn(|context| {
            if guard.is_none() {
                let waiter = Waiter { ticket, access, waker: context.waker().clone() };
                self.waiting.borrow_mut().entry(bucket).or_default().push_back(waiter);
                guard = Some(WaiterGuard { locks: self, bucket, ticket });
            }
            if self.is_first(bucket, ticket) && self.try_take(bucket, access) {
                return Poll::Ready(());
            }
            if let Some(list) = self.waiting.borrow_mut().get_mut(&bucket)
                && let Some(own) = list.iter_mut().find(|waiter| waiter.ticket == ticket)
            {
                own.waker.clone_from(context.waker());
            }
            Poll::Pending
        })
        .await;
    }

    fn is_first(&self, bucket: u32, ticket: u64) -> bool {
        let waiting = self.waiting.borrow();
        let first = waiting.get(&bucket).and_then(VecDeque::front);
        first.is_some_and(|first| first.ticket == ticket)
    }

    /// A request has its bucket, or is dropped: the next one may have its turn.
    fn leave(&self, bucket: u32, ticket: u64) {
        if let Entry::Occupied(mut list) = self.waiting.borrow_mut().entry(bucket) {
            list.get_mut().retain(|waiter| waiter.ticket != ticket);
            if list.get().is_empty() {
                list.remove();
            }
        }
        self.wake_first(bucket);
    }

    /// Wakes the request whose turn a bucket is, if the bucket is free for that request.
    fn wake_first(&self, bucket: u32) {
        let waiting = self.waiting.borrow();
        if let Some(first) = waiting.get(&bucket).and_then(VecDeque::front)
            && self.is_free(bucket, first.access)
        {
            first.waker.wake_by_ref();
        }
    }

    fn give(&self, bucket: u32, access: Access) {
        let held = &self.buckets[bucket as usize].held;
        match access {
            Access::Shared => held.set(held.get() - 1),
            Access::Parts(parts) if let Some(part) = parts.of_bucket(bucket) => {
                let mut parts = self.parts.borrow_mut();
                let is_own = |held: &Part| held.bucket == bucket && held.sectors == part.sectors;
                let place = parts.iter().position(is_own);
                parts.swap_remove(place.expect("a part that is held"));
                drop(parts);
                self.parts_change.notify();
                held.set(if held.get() == WRITER - 1 { 0 } else { held.get() + 1 });
            }
            _ => held.set(0),
        }
        if !self.waiting.borrow().is_empty() {
            self.wake_first(bucket);
        }
    }

    /// The buckets of lines `first..=last`, two or more, in the order in which all take them.
    fn buckets_of(first: Line, last: Line) -> Vec<u32> {
        let mut buckets: Vec<u32> = if last - first >= BUCKET_COUNT as u64 {
            (0..BUCKET_COUNT as u32).collect()
        } else {
            first.through(last).map(bucket_of).collect()
        };
        buckets.sort_unstable();
        buckets
    }

    /// Locks the lines `first..=last` if nobody else has one of them or waits for one.
    pub(crate) fn try_lock(
        self: &Rc<Self>,
        first: Line,
        last: Line,
        access: Access,
    ) -> Option<LineGuard> {
        let one = [bucket_of(first)];
        let many = if first == last { Vec::new() } else { Self::buckets_of(first, last) };
        let buckets = if first == last { &one[..] } else { &many };
        let is_takeable =
            |bucket: &u32| self.is_free(*bucket, access) && !self.is_waited_for(*bucket);
        if self.long.has(first, last) || !buckets.iter().all(is_takeable) {
            return None;
        }
        for bucket in buckets {
            assert!(self.try_take(*bucket, access), "a bucket of a request comes once");
        }
        let presence = self.long.enter(first, last);
        let held = match first == last {
            true => Held::One(one[0], presence),
            false => Held::Many(many, presence),
        };
        Some(LineGuard { locks: self.clone(), held, access })
    }

    /// Locks the lines `first..=last`: a few.
    #[inline]
    pub(crate) async fn lock(
        self: &Rc<Self>,
        first: Line,
        last: Line,
        access: Access,
    ) -> LineGuard {
        // In boxes: a request that finds its one line free carries no wait along.
        if first != last {
            return Box::pin(self.lock_many(first, last, access)).await;
        }
        if self.long.has(first, last) {
            Box::pin(self.long.left(first, last)).await;
        }
        let (bucket, presence) = (bucket_of(first), self.long.enter(first, last));
        if self.take_now(bucket, access) {
            return LineGuard { locks: self.clone(), held: Held::One(bucket, presence), access };
        }
        Box::pin(self.lock_one_in_turn(bucket, presence, access)).await
    }

    #[cold]
    async fn lock_one_in_turn(
        self: &Rc<Self>,
        bucket: u32,
        presence: Presence,
        access: Access,
    ) -> LineGuard {
        let held = Held::Many(Vec::new(), presence);
        let mut guard = LineGuard { locks: self.clone(), held, access };
        self.take_in_turn(bucket, access).await;
        guard.held = Held::One(bucket, presence);
        guard
    }

    /// Locks the lines `first..=last`, exclusively: many at the cost of one.
    pub(crate) async fn lock_range(self: &Rc<Self>, first: Line, last: Line) -> LineGuard {
        let access = Access::Exclusive;
        if last - first < LONG_LINES_MIN {
            return self.lock(first, last, access).await;
        }
        if self.long.has(first, last) {
            self.long.left(first, last).await;
        }
        let held = Held::Long(self.long.register(first, last));
        let guard = LineGuard { locks: self.clone(), held, access };
        if !canary::is(Canary::LongLockEarly) {
            self.long.others_left(first, last).await;
        }
        // Only now: those that came before may have made marks until they left.
        self.long_changes.set(self.long_changes.get() + 1);
        guard
    }

    async fn lock_many(self: &Rc<Self>, first: Line, last: Line, access: Access) -> LineGuard {
        if self.long.has(first, last) {
            self.long.left(first, last).await;
        }
        let presence = self.long.enter(first, last);
        let held = Held::Many(Vec::new(), presence);
        let mut guard = LineGuard { locks: self.clone(), held, access };
        for bucket in Self::buckets_of(first, last) {
            if !self.take_now(bucket, access) {
                self.take_in_turn(bucket, access).await;
            }
            // Held as it grows: a request dropped here gives back what it has.
            if let Held::Many(held, _) = &mut guard.held {
                held.push(bucket);
            }
        }
        guard
    }
}

impl LineGuard {
    /// Begins the change of what is held. Of lines that others have parts of, too, only one way goes at a time:
    /// changes that go other ways wait, those that came first go first. All keep their lines meanwhile, so that
    /// later changes of the same sectors stay behind. `way` is asked until the change begins; its last answer.
    pub(crate) async fn begin<W: Copy + Into<u8>>(&mut self, way: impl Fn() -> W) -> W {
        let Access::Parts(parts) = self.access else { return way() };
        let own: Vec<Part> =
            self.held.buckets().iter().filter_map(|bucket| parts.of_bucket(*bucket)).collect();
        let ticket = self.locks.next_ticket.get();
        self.locks.next_ticket.set(ticket + 1);
        loop {
            let way = way();
            if self.locks.begin_parts(&own, way.into(), ticket) {
                return way;
            }
            self.locks.parts_change.wait().await;
        }
    }
}

impl Drop for LineGuard {
    fn drop(&mut self) {
        for bucket in self.held.buckets() {
            self.locks.give(*bucket, self.access);
        }
        match self.held {
            Held::One(_, presence) | Held::Many(_, presence) => self.locks.long.leave(presence),
            Held::Long(number) => self.locks.long.give(number),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::{Context, Wake};

    use voltier_ring::{Executor, NoFiles};

    use super::*;

    #[test]
    fn a_writer_waits_for_readers_and_the_next_reader_for_the_writer() {
        let mut executor = Executor::in_virtual_time(NoFiles);
        let handle = executor.handle();
        let locks = LineLocks::new();
        let log = Rc::new(RefCell::new(Vec::new()));
        let (outer, seen) = (handle.clone(), log.clone());
        executor.block_on(async move {
            let reader = locks.lock(Line(5), Line(9), Access::Shared).await;
            let writer = {
                let (locks, log) = (locks.clone(), log.clone());
                outer.spawn(async move {
                    let _guard = locks.lock(Line(9), Line(12), Access::Exclusive).await;
                    log.borrow_mut().push("writer");
                })
            };
            outer.yield_now().await;
            log.borrow_mut().push("reader");
            drop(reader);
            writer.await;
            drop(locks.lock(Line(9), Line(9), Access::Exclusive).await);
        });
        assert_eq!(*seen.borrow(), ["reader", "writer"]);
    }

    /// Two readers of a line in turn, each of which locks the line before the other gives it back, for
    /// ever; a writer beside them.
    #[test]
    fn readers_that_never_leave_a_gap_do_not_starve_a_writer() {
        let mut executor = Executor::in_virtual_time(NoFiles);
        let handle = executor.handle();
        let locks = LineLocks::new();
        let is_over = Rc::new(Cell::new(false));
        let locked = locks.clone();
        executor.block_on(async move {
            let readers: Vec<_> = [0, 5]
                .into_iter()
                .map(|start_ns| {
                    let (own, locks, is_over) = (handle.clone(), locked.clone(), is_over.clone());
                    handle.spawn(async move {
                        own.sleep(start_ns).await;
                        while !is_over.get() {
                            let _guard = locks.lock(Line(7), Line(7), Access::Shared).await;
                            own.sleep(10).await;
                        }
                    })
                })
                .collect();
            handle.sleep(100).await;
            let (writing, has_written) = (locked.clone(), Rc::new(Cell::new(false)));
            let written = has_written.clone();
            let writer = handle.spawn(async move {
                drop(writing.lock(Line(7), Line(8), Access::Exclusive).await);
                written.set(true);
            });
            handle.sleep(10_000).await;
            assert!(has_written.get(), "the writer has its turn between readers");
            is_over.set(true);
            writer.await;
            for reader in readers {
                reader.await;
            }
        });
        assert_eq!(locks.in_use(), (0, 0));
    }

    const LONG: (Line, Line) = (Line(1000), Line(3_000_000));

    #[test]
    fn a_long_range_keeps_others_from_its_lines_only() {
        let locks = LineLocks::new();
        let mut context = Context::from_waker(Waker::noop());
        let mut long = Box::pin(locks.lock_range(LONG.0, LONG.1));
        let Poll::Ready(long) = long.as_mut().poll(&mut context) else { panic!("all are free") };
        let is_free = |first, last| locks.try_lock(Line(first), Line(last), Access::Shared);
        assert!(is_free(0, 999).is_some() && is_free(3_000_001, 3_000_004).is_some());
        for (first, last) in [(999, 1000), (1000, 1000), (70_000, 70_001), (3_000_000, 3_000_001)] {
            assert!(is_free(first, last).is_none(), "{first} to {last}");
            let mut reader = Box::pin(locks.lock(Line(first), Line(last), Access::Shared));
            assert!(reader.as_mut().poll(&mut context).is_pending());
        }
        let mut reader = Box::pin(locks.lock(Line(2000), Line(2000), Access::Shared));
        let mut other = Box::pin(locks.lock_range(Line(0), Line(1000)));
        let mut beside = Box::pin(locks.lock_range(Line(3_000_001), Line(9_000_000)));
        assert!(reader.as_mut().poll(&mut context).is_pending());
        assert!(other.as_mut().poll(&mut context).is_pending());
        assert!(beside.as_mut().poll(&mut context).is_ready());
        drop(long);
        assert!(reader.as_mut().poll(&mut context).is_ready());
        assert!(other.as_mut().poll(&mut context).is_ready());
        drop((reader, other, beside));
        assert_eq!(locks.in_use(), (0, 0));
    }

    /// A request that has one of its lines when the range comes, and waits for another one.
    #[test]
    fn a_long_range_waits_for_those_before_it_and_not_for_those_after_it() {
        let locks = LineLocks::new();
        let mut context = Context::from_waker(Waker::noop());
        let before = locks.try_lock(Line(999), Line(999), Access::Shared).unwrap();
        let mut across = Box::pin(locks.lock(Line(998), Line(1001), Access::Exclusive));
        assert!(across.as_mut().poll(&mut context).is_pending());
        let elsewhere = locks.try_lock(Line(5_000_000), Line(5_000_000), Access::Shared);
        let mut long = Box::pin(locks.lock_range(LONG.0, LONG.1));
        assert!(long.as_mut().poll(&mut context).is_pending());
        let after = locks.try_lock(Line(3), Line(3), Access::Shared).unwrap();
        drop(before);
        let Poll::Ready(across) = across.as_mut().poll(&mut context) else { panic!("its turn") };
        assert!(long.as_mut().poll(&mut context).is_pending());
        drop(across);
        assert!(long.as_mut().poll(&mut context).is_ready());
        drop((long, after, elsewhere));
        assert_eq!(locks.in_use(), (0, 0));
    }

    #[test]
    fn long_ranges_and_requests_in_any_order_never_meet_and_all_have_their_turn() {
        for seed in 0..30 {
            let mut executor = Executor::in_virtual_time(NoFiles);
            let handle = executor.handle();
            let (locks, held) = (LineLocks::new(), Rc::new(RefCell::new(Vec::new())));
            let audited = locks.clone();
            executor.block_on(async move {
                let mut prng = voltier_block::Prng::new(seed);
                let mut tasks = Vec::new();
                for number in 0..300u64 {
                    let is_long = prng.one_in(4);
                    let lines = if is_long { 150 + prng.below(150_000) } else { prng.below(9) };
                    let first = Line(prng.below(200_000));
                    let last = first + lines;
                    let access = if prng.one_in(2) { Access::Shared } else { Access::Exclusive };
                    let (own, locks, held) = (handle.clone(), locks.clone(), held.clone());
                    let (gives_up, time_ns) = (prng.one_in(5), prng.below(300));
                    tasks.push(handle.spawn(async move {
                        let lock = async {
                            match is_long {
                                true => locks.lock_range(first, last).await,
                                false => locks.lock(first, last, access).await,
                            }
                        };
                        let shared = !is_long && access == Access::Shared;
                        let guard = match gives_up {
                            true => own.timeout(time_ns, lock).await.ok(),
                            false => Some(lock.await),
                        };
                        let Some(_guard) = guard else { return };
                        for (_, from, to, is_shared) in held.borrow().iter() {
                            let meets: bool = *from <= last && first <= *to;
                            assert!(!meets || (shared && *is_shared), "seed {seed}");
                        }
                        held.borrow_mut().push((number, first, last, shared));
                        own.sleep(time_ns).await;
                        held.borrow_mut().retain(|entry| entry.0 != number);
                    }));
                    handle.sleep(prng.below(100)).await;
                }
                for task in tasks {
                    task.await;
                }
            });
            assert_eq!(audited.in_use(), (0, 0), "seed {seed}");
        }
    }

    #[test]
    fn a_waiting_writer_that_is_dropped_lets_the_readers_behind_it_in() {
        let locks = LineLocks::new();
        let mut context = Context::from_waker(Waker::noop());
        let first = locks.try_lock(Line(1), Line(1), Access::Shared).unwrap();
        let mut writer = Box::pin(locks.lock(Line(1), Line(1), Access::Exclusive));
        let mut reader = Box::pin(locks.lock(Line(1), Line(1), Access::Shared));
        assert!(writer.as_mut().poll(&mut context).is_pending());
        assert!(reader.as_mut().poll(&mut context).is_pending());
        assert!(locks.try_lock(Line(1), Line(1), Access::Shared).is_none());
        drop(writer);
        assert!(reader.as_mut().poll(&mut context).is_ready());
        drop((first, reader));
        assert_eq!(locks.in_use(), (0, 0));
    }

    fn change(start: u64, count: u64) -> Access {
        Access::change(SectorRange::new(Lba(start), count), 8)
    }

    #[test]
    fn changes_of_other_sectors_share_the_lines_at_their_ends() {
        let locks = LineLocks::new();
        let first = locks.try_lock(Line(0), Line(2), change(7, 10)).unwrap();
        assert!(locks.try_lock(Line(1), Line(1), change(9, 1)).is_none(), "a whole line");
        assert!(locks.try_lock(Line(2), Line(2), change(16, 2)).is_none(), "the same sector");
        assert!(locks.try_lock(Line(2), Line(2), Access::Shared).is_none());
        assert!(locks.try_lock(Line(2), Line(2), Access::Exclusive).is_none());
        let second = locks.try_lock(Line(2), Line(3), change(17, 8)).unwrap();
        drop(first);
        let third = locks.try_lock(Line(2), Line(2), change(16, 1)).unwrap();
        drop(second);
        assert!(locks.try_lock(Line(2), Line(2), Access::Shared).is_none());
        drop(third);
        assert_eq!(locks.in_use(), (0, 0));
        let _reader = locks.try_lock(Line(2), Line(2), Access::Shared).unwrap();
        assert!(locks.try_lock(Line(2), Line(2), change(17, 2)).is_none());
    }

    /// Whether a change begins now in this way.
    fn begins(guard: &mut LineGuard, way: u8) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        Box::pin(guard.begin(|| way)).as_mut().poll(&mut context).is_ready()
    }

    #[test]
    fn changes_of_a_line_begin_when_those_that_go_another_way_have_ended() {
        let locks = LineLocks::new();
        let lock = |first, last, access| locks.try_lock(Line(first), Line(last), access).unwrap();
        let mut first = lock(0, 1, change(6, 4));
        let mut second = lock(1, 2, change(12, 6));
        let mut third = lock(2, 2, change(20, 1));
        assert!(begins(&mut first, 1), "nobody else has begun");
        assert!(!begins(&mut second, 0));
        assert!(begins(&mut second, 1));
        assert!(!begins(&mut third, 0));
        drop((first, second));
        assert!(begins(&mut third, 0));
        drop(third);
        assert_eq!(locks.in_use(), (0, 0));
    }

    #[test]
    fn changes_that_wait_to_begin_have_their_turn_in_their_order() {
        let locks = LineLocks::new();
        let lock = |at| locks.try_lock(Line(0), Line(0), change(at, 1)).unwrap();
        let (mut first, mut second, mut third) = (lock(0), lock(1), lock(2));
        let (way, mut context) = (Cell::new(1), Context::from_waker(Waker::noop()));
        assert!(begins(&mut first, 0));
        let mut waits = Box::pin(second.begin(|| way.get()));
        assert!(waits.as_mut().poll(&mut context).is_pending());
        let mut behind = Box::pin(third.begin(|| 0));
        assert!(behind.as_mut().poll(&mut context).is_pending(), "nobody overtakes");
        way.set(0);
        locks.parts_change.notify();
        assert!(waits.as_mut().poll(&mut context).is_ready());
        assert!(behind.as_mut().poll(&mut context).is_ready(), "all go one way");
    }

    /// Whether it was woken.
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_change_that_begins_again_in_another_way_lets_those_go_that_waited_for_it() {
        let locks = LineLocks::new();
        let lock = |at| locks.try_lock(Line(0), Line(0), change(at, 1)).unwrap();
        let (mut first, mut second, mut third) = (lock(0), lock(1), lock(2));
        let woken = Arc::new(Woken(AtomicBool::new(false)));
        let waker = Waker::from(woken.clone());
        let mut context = Context::from_waker(&waker);
        assert!(begins(&mut first, 2));
        let mut second = Box::pin(second.begin(|| 0));
        assert!(second.as_mut().poll(&mut context).is_pending());
        let mut third = Box::pin(third.begin(|| 2));
        assert!(third.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert!(!begins(&mut first, 0), "the third came before, and goes another way");
        assert!(woken.0.load(Ordering::Relaxed), "nobody else would wake it");
        assert!(second.as_mut().poll(&mut context).is_ready());
    }

    #[test]
    fn a_change_of_whole_lines_is_exclusive() {
        assert_eq!(change(8, 16), Access::Exclusive);
        assert_ne!(change(8, 15), Access::Exclusive);
        assert_ne!(change(4, 8), Access::Exclusive);
        // Its ends would have the bucket of another of its lines.
        assert_eq!(change(1, 8 * BUCKET_COUNT as u64), Access::Exclusive);
    }

    #[test]
    fn a_mark_holds_until_the_line_is_taken_for_a_change() {
        let locks = LineLocks::new();
        let mark = locks.mark(Line(3));
        drop(locks.try_lock(Line(3), Line(3), Access::Shared));
        drop(locks.try_lock(Line(4), Line(4), Access::Exclusive));
        assert!(locks.is_unchanged(Line(3), mark, 0));
        let mut executor = Executor::in_virtual_time(NoFiles);
        let (long, of_long) = (locks.clone(), locks.mark(Line(3)));
        executor.block_on(async move { drop(long.lock_range(Line(0), Line(999)).await) });
        assert!(!locks.is_unchanged(Line(3), of_long, 0));
        let mark = locks.mark(Line(3));
        let writer = locks.try_lock(Line(3), Line(3), change(24, 1)).unwrap();
        assert!(locks.is_unchanged(Line(3), mark, 1));
        drop(writer);
        drop(locks.try_lock(Line(3), Line(3), Access::Exclusive));
        assert!(!locks.is_unchanged(Line(3), mark, 0) && !locks.is_unchanged(Line(3), mark, 1));
    }
}
