//! The merger knows which writes follow one another, and how long they wait for those behind them.
//!
//! A *stream* is a place up to which somebody has written. A write there next belongs to the stream. The
//! merger knows two numbers of each stream. One is how many of its writes are under way. The other is how
//! many there were at once of late, its *depth*. A client that keeps so many under way answers the end of
//! some with as many new ones. So adaptive merging holds writes while others of their stream run, which
//! will bring more. Then merging holds them until all are there or none has come for a while. The depth
//! learns from a wait that found fewer. A stream with one write at a time has the depth one, and never
//! waits.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use voltier_block::{BlockDevice, Durability, IoResult, Lba, Nanos, SectorRange};
use voltier_ring::{Handle, race};

use crate::canary::{self, Canary};
use crate::geometry::chunks::Geometry;
use crate::geometry::numbers::StripeNumber;
use crate::members::at_once::at_once;
use crate::members::member_set::MemberSet;
use crate::stripe::ground::Ground;
use crate::stripe::merge::batch::{MergeBatch, Taken, batches_of};
use crate::stripe::merge::policy::{MergeMode, MergePolicy};
use crate::stripe::new_data::{NewData, SmallWrite};
use crate::stripe::stripe_writer::StripeWriter;

/// Merges small writes before they reach their stripe.
pub(crate) struct Merger<D> {
    handle: Handle,
    geometry: Geometry,
    members: Rc<MemberSet<D>>,
    writer: Rc<StripeWriter<D>>,
    streams: Streams,
    /// Where rows have two shapes no writes are merged.
    is_reshaping: bool,
}

impl<D: BlockDevice> Merger<D> {
    pub(crate) fn new(
        ground: &Ground<D>,
        writer: &Rc<StripeWriter<D>>,
        policy: MergePolicy,
        is_reshaping: bool,
    ) -> Self {
        let Ground { handle, geometry, members, .. } = ground.clone();
        Self {
            handle,
            geometry,
            members,
            writer: writer.clone(),
            streams: Streams::new(policy),
            is_reshaping,
        }
    }

    pub(crate) fn policy(&self) -> MergePolicy {
        self.streams.policy()
    }

    pub(crate) fn set_policy(&self, policy: MergePolicy) {
        self.streams.set_policy(policy);
    }

    /// The stream that a write belongs to; none while writes are not merged. Where rows have two shapes
    /// none are.
    pub(crate) fn stream_of(&self, range: SectorRange) -> Option<usize> {
        if self.streams.policy().mode == MergeMode::Off || self.is_reshaping {
            return None;
        }
        self.streams.stream_of(range, self.geometry.stripe_sectors())
    }

    /// Takes a small write of a stream in. So many parts of the same request have gone already.
    pub(crate) fn arrive(&self, stream: usize, small: SmallWrite, gone: u32) -> Arrival {
        let stripe_sectors = self.geometry.stripe_sectors();
        self.streams.arrive(stream, small, gone, stripe_sectors, || self.handle.now())
    }

    /// Writes what has arrived; a batch once begun is written also when nobody waits.
    pub(crate) async fn write_arrived(self: &Rc<Self>, arrival: Arrival) -> IoResult<()> {
        match arrival {
            Arrival::Alone(stream, small) => {
                self.handle.finish(self.clone().write_alone(stream, small)).await
            }
            Arrival::Leader(batch) => self.handle.finish(self.clone().write_as_leader(batch)).await,
            Arrival::Waiter(_) if canary::is(Canary::HeldAcknowledged) => Ok(()),
            Arrival::Waiter(batch) => batch.result().await,
        }
    }

    async fn write_alone(self: Rc<Self>, stream: usize, small: SmallWrite) -> IoResult<()> {
        let SmallWrite { stripe, parts, durability, .. } = small;
        let result = if parts.len() == 1 {
            self.writer.clone().write_stripe(stripe, parts, durability).await
        } else {
            self.write_batches(stripe, parts, durability).await
        };
        self.streams.ended(stream, 1, || self.handle.now());
        result
    }

    /// Waits as long as it is of use, then writes what has come.
    async fn write_as_leader(self: Rc<Self>, batch: Rc<MergeBatch>) -> IoResult<()> {
        while let Some(until_ns) = self.streams.waits_until(&batch, self.handle.now()) {
            let _ = race(batch.changed(), self.handle.sleep_until(until_ns)).await;
        }
        let taken = self.streams.close(&batch, self.handle.now());
        let (writes, held_ns) = (taken.writes, taken.held_ns);
        self.members.counters().add(|counts| {
            counts.held_writes += u64::from(writes);
            counts.held_ns += held_ns;
            if writes > 1 {
                counts.merged_writes += u64::from(writes);
                counts.merges += 1;
            }
        });
        let result = self.write_batches(batch.stripe(), taken.parts, taken.durability).await;
        self.streams.ended(batch.stream(), writes, || self.handle.now());
        batch.end(result);
        result
    }

    /// Parts of a stripe in any order, over each other: later ones count.
    async fn write_batches(
        self: &Rc<Self>,
        stripe: StripeNumber,
        parts: Vec<NewData>,
        durability: Durability,
    ) -> IoResult<()> {
        let write = |batch| self.writer.clone().write_stripe(stripe, batch, durability);
        let writes = batches_of(parts).into_iter().map(write);
        at_once(&self.handle, writes).await.into_iter().collect()
    }
}

/// The way of a small write.
pub(crate) enum Arrival {
    /// The write goes, as one of a stream.
    Alone(usize, SmallWrite),
    /// The write waits, and its caller writes the whole batch.
    Leader(Rc<MergeBatch>),
    /// The write waits for the leader of its batch.
    Waiter(Rc<MergeBatch>),
}

/// Streams that are known at once.
const STREAMS: usize = 32;
/// Where no write is.
const NOWHERE: u64 = u64::MAX / 2;

#[derive(Default)]
struct Stream {
    under_way: u32,
    depth: u32,
    /// When a write of the stream last came to wait, or the last write that ran ended.
    stirred_ns: Nanos,
    /// The batch that newer writes join.
    open: Option<Rc<MergeBatch>>,
}

impl Stream {
    /// The stream's writes that wait.
    fn held(&self) -> u32 {
        self.open.as_ref().map_or(0, |open| open.writes())
    }
}

struct State {
    /// Where each goes on: looked through for every write.
    nexts: [u64; STREAMS],
    streams: [Stream; STREAMS],
    /// The stream that is given up first for a new one.
    turn: usize,
}

/// The streams of an array.
pub(crate) struct Streams {
    policy: Cell<MergePolicy>,
    state: RefCell<State>,
}

impl Streams {
    pub(crate) fn new(policy: MergePolicy) -> Self {
        let state = State { nexts: [NOWHERE; STREAMS], streams: Default::default(), turn: 0 };
        Self { policy: Cell::new(policy), state: RefCell::new(state) }
    }

    pub(crate) fn policy(&self) -> MergePolicy {
        self.policy.get()
    }

    pub(crate) fn set_policy(&self, policy: MergePolicy) {
        self.policy.set(policy);
        let state = self.state.borrow();
        state.streams.iter().filter_map(|it| it.open.as_ref()).for_each(|it| it.stir());
    }

    /// The stream that a write goes on with, or begins: not further from its end than a stripe. None if
    /// there are too many.
    pub(crate) fn stream_of(&self, range: SectorRange, stripe_sectors: u64) -> Option<usize> {
        let mut state = self.state.borrow_mut();
        let (start, end) = (range.start.0, range.end().0);
        let distance = |next: u64| start.abs_diff(next);
        let is_near = |next: &u64| distance(*next) <= stripe_sectors;
        // Mostly none is: a pass without branches says so.
        if state.nexts.iter().fold(false, |is_any, next| is_any | is_near(next)) {
            let nearest = (0..STREAMS).min_by_key(|&it| distance(state.nexts[it]))?;
            state.nexts[nearest] = state.nexts[nearest].max(end);
            return Some(nearest);
        }
        let from = state.turn;
        let mut turns = (0..STREAMS).map(|it| (from + it) % STREAMS);
        let free = turns.find(|&it| state.streams[it].under_way == 0)?;
        state.turn = (free + 1) % STREAMS;
        state.nexts[free] = end;
        state.streams[free].depth = 0;
        Some(free)
    }

    /// A write has come (the time is asked for if it waits). So many parts of its request have gone
    /// already: it does not wait for these.
    pub(crate) fn arrive(
        &self,
        stream: usize,
        small: SmallWrite,
        gone: u32,
        stripe_sectors: u64,
        now: impl FnOnce() -> Nanos,
    ) -> Arrival {
        let mut state = self.state.borrow_mut();
        let own = &mut state.streams[stream];
        own.under_way += 1;
        own.depth = own.depth.max(own.under_way - gone);
        if let Some(open) = own.open.clone() {
            if small.stripe < open.stripe() {
                return Arrival::Alone(stream, small);
            }
            if small.stripe == open.stripe() {
                let now = now();
                own.stirred_ns = now;
                open.add(small, now);
                if self.until(own, &open, now).is_none() {
                    open.stir();
                }
                return Arrival::Waiter(open);
            }
            own.open = None;
            open.pass();
        }
        let waits = match self.policy.get().mode {
            MergeMode::Off => false,
            MergeMode::Adaptive => {
                let runs = own.under_way > 1 + gone;
                own.depth > 1 && (runs || small.durability == Durability::Cached)
            }
            MergeMode::Always => true,
        };
        if !waits {
            return Arrival::Alone(stream, small);
        }
        let now = now();
        own.stirred_ns = now;
        let sectors = SectorRange::new(Lba(small.stripe.0 * stripe_sectors), stripe_sectors);
        let batch = Rc::new(MergeBatch::new(stream, small, sectors, now));
        own.open = Some(batch.clone());
        Arrival::Leader(batch)
    }

    /// Until when a batch waits, if nothing changes; none if it waits no longer.
    pub(crate) fn waits_until(&self, batch: &MergeBatch, now: Nanos) -> Option<Nanos> {
        let state = self.state.borrow();
        self.until(&state.streams[batch.stream()], batch, now)
    }

    fn until(&self, stream: &Stream, batch: &MergeBatch, now: Nanos) -> Option<Nanos> {
        let MergePolicy { mode, wait_ns, max_ns } = self.policy.get();
        if batch.is_full() || batch.is_passed() {
            return None;
        }
        let at_most = batch.opened_ns() + max_ns;
        let until = match mode {
            MergeMode::Off => return None,
            MergeMode::Always => at_most.min(batch.joined_ns() + wait_ns),
            MergeMode::Adaptive if stream.under_way > stream.held() => at_most,
            MergeMode::Adaptive if stream.held() >= stream.depth || batch.is_durable() => {
                return None;
            }
            MergeMode::Adaptive => at_most.min(stream.stirred_ns + wait_ns),
        };
        (now < until).then_some(until)
    }

    /// Takes a batch's writes to write them.
    pub(crate) fn close(&self, batch: &Rc<MergeBatch>, now: Nanos) -> Taken {
        let mut state = self.state.borrow_mut();
        let own = &mut state.streams[batch.stream()];
        if own.open.as_ref().is_some_and(|open| Rc::ptr_eq(open, batch)) {
            if own.under_way == own.held() && !batch.is_full() {
                // All that there are: no more have come.
                own.depth = own.held();
            }
            own.open = None;
        }
        batch.take(now)
    }

    /// So many writes of a stream have ended.
    pub(crate) fn ended(&self, stream: usize, writes: u32, now: impl FnOnce() -> Nanos) {
        let mut state = self.state.borrow_mut();
        let own = &mut state.streams[stream];
        own.under_way -= writes;
        if let Some(open) = own.open.as_ref().filter(|it| own.under_way == it.writes()) {
            own.stirred_ns = now();
            open.stir();
        }
    }
}
