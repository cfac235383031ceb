//! One member: its device, what the device lacks, and the device that is filled beside it.
//!
//! `State` says which devices there are, and which events change that. `MemberWatch` knows the errors of the
//! device, and how long its I/Os take.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use voltier_block::{IoError, IoResult, Nanos};

use crate::format::bits::Bits;
use crate::format::superblock::MemberState;
use crate::geometry::numbers::Region;
use crate::geometry::plan::SlotState;
use crate::members::latency::Samples;

/// Regions that a device does not have yet, while it is filled.
pub(crate) struct Missing {
    pub(crate) regions: Bits<Region>,
    /// Those of them that are being filled: they are written, and not read.
    pub(crate) under_way: BTreeSet<Region>,
}

impl Missing {
    fn new(regions: Bits<Region>) -> Self {
        Self { regions, under_way: BTreeSet::new() }
    }
}

/// A device that is filled beside a member in service, to take its place.
struct Successor<D> {
    device: Rc<D>,
    uuid: [u8; 16],
    missing: Missing,
}

/// States of a member.
enum State<D> {
    /// There is no device: the other members of the group stand for this one.
    Lost,
    /// The device has all that was written.
    InService { device: Rc<D> },
    /// The same, and a successor is filled beside the device.
    Copied { device: Rc<D>, successor: Successor<D> },
    /// The device is filled, and lacks regions.
    Rebuilding { device: Rc<D>, missing: Missing },
}

/// Events that change the state of a member.
enum Event<D> {
    /// A device to fill: a replacement, a parity row that is added, or an assembly brings it.
    Joined { device: Rc<D>, missing: Missing },
    /// A device of which nothing is needed yet: a capacity expansion brings it.
    Begun { device: Rc<D> },
    /// A device to fill beside this one: a replacement brings it.
    CopyBegun(Successor<D>),
    /// The device that was filled lacks nothing any more: the rebuild says so.
    Filled,
    /// The successor did not take a write or a flush: whoever wrote to it says so.
    CopyFailed,
    /// The device is given up: by a failed request, by its health, or by an administrator.
    GivenUp,
}

impl<D> State<D> {
    /// The transition table: the state after an event. An event that is not in it changes nothing.
    fn after(self, event: Event<D>) -> Self {
        match (self, event) {
            (Self::Lost | Self::InService { .. }, Event::Joined { device, missing }) => {
                Self::Rebuilding { device, missing }
            }
            (Self::Lost, Event::Begun { device }) => Self::InService { device },
            (Self::InService { device }, Event::CopyBegun(successor)) => {
                Self::Copied { device, successor }
            }
            (Self::Rebuilding { device, .. }, Event::Filled) => Self::InService { device },
            (Self::Copied { successor, .. }, Event::Filled) => {
                Self::InService { device: successor.device }
            }
            (Self::Copied { device, .. }, Event::CopyFailed) => Self::InService { device },
            // A successor goes on in the place of the device with what it has.
            (Self::Copied { successor, .. }, Event::GivenUp) => {
                Self::Rebuilding { device: successor.device, missing: successor.missing }
            }
            (Self::InService { .. } | Self::Rebuilding { .. }, Event::GivenUp) => Self::Lost,
            (unchanged, _) => unchanged,
        }
    }

    /// The device that takes requests.
    fn device(&self) -> Option<&Rc<D>> {
        match self {
            Self::Lost => None,
            Self::InService { device }
            | Self::Copied { device, .. }
            | Self::Rebuilding { device, .. } => Some(device),
        }
    }

    /// The regions that requests do not find on the device.
    fn missing(&self) -> Option<&Missing> {
        if let Self::Rebuilding { missing, .. } = self { Some(missing) } else { None }
    }

    fn successor(&self) -> Option<&Successor<D>> {
        if let Self::Copied { successor, .. } = self { Some(successor) } else { None }
    }

    /// The device that is being filled: the member's own, or its successor.
    fn filling(&self) -> Option<(&Rc<D>, &Missing)> {
        match self {
            Self::Rebuilding { device, missing } => Some((device, missing)),
            Self::Copied { successor, .. } => Some((&successor.device, &successor.missing)),
            Self::Lost | Self::InService { .. } => None,
        }
    }

    fn filling_mut(&mut self) -> Option<(&Rc<D>, &mut Missing)> {
        match self {
            Self::Rebuilding { device, missing } => Some((device, missing)),
            Self::Copied { successor, .. } => Some((&successor.device, &mut successor.missing)),
            Self::Lost | Self::InService { .. } => None,
        }
    }
}

/// A member of an array.
pub(crate) struct Member<D> {
    state: RefCell<State<D>>,
    /// The uuid of the device, or of the one that was lost; zero in a bare array.
    uuid: Cell<[u8; 16]>,
    watch: MemberWatch,
    /// A device whose place a successor took, and its uuid, until the record says so.
    replaced: RefCell<Option<(Rc<D>, [u8; 16])>>,
}

impl<D> Member<D> {
    pub(crate) fn new(device: Option<D>) -> Self {
        let state = match device {
            Some(device) => State::InService { device: Rc::new(device) },
            None => State::Lost,
        };
        Self {
            state: RefCell::new(state),
            uuid: Cell::default(),
            watch: MemberWatch::default(),
            replaced: RefCell::default(),
        }
    }

    /// The same member in an array that takes over; nothing is left of this one.
    pub(crate) fn moved(&self) -> Self {
        let moved = Self::new(None);
        moved.state.swap(&self.state);
        moved.uuid.set(self.uuid.get());
        moved.replaced.swap(&self.replaced);
        moved.watch.take_over(&self.watch);
        moved
    }

    fn step(&self, event: Event<D>) {
        let before = self.state.replace(State::Lost);
        self.state.replace(before.after(event));
    }

    /// # Errors
    /// `Gone` when it is lost.
    pub(crate) fn device(&self) -> IoResult<Rc<D>> {
        self.state.borrow().device().cloned().ok_or(IoError::Gone)
    }

    pub(crate) fn has_device(&self) -> bool {
        self.state.borrow().device().is_some()
    }

    pub(crate) fn is_device(&self, device: &Rc<D>) -> bool {
        self.state.borrow().device().is_some_and(|own| Rc::ptr_eq(own, device))
    }

    /// Whether it is in service: not lost, and not being rebuilt.
    pub(crate) fn is_online(&self) -> bool {
        matches!(&*self.state.borrow(), State::InService { .. } | State::Copied { .. })
    }

    pub(crate) fn is_rebuilding(&self) -> bool {
        self.state.borrow().missing().is_some()
    }

    /// Whether a device is filled beside it.
    pub(crate) fn is_copied(&self) -> bool {
        self.state.borrow().successor().is_some()
    }

    /// Whether it is in service, and nothing is done to it.
    pub(crate) fn is_undisturbed(&self) -> bool {
        matches!(&*self.state.borrow(), State::InService { .. })
    }

    /// Whether a region can be read from it.
    pub(crate) fn has_region(&self, region: Region) -> bool {
        let state = self.state.borrow();
        state.device().is_some() && state.missing().is_none_or(|it| !it.regions.has(region))
    }

    /// Whether it is being rebuilt and lacks a region.
    pub(crate) fn lacks(&self, region: Region) -> bool {
        self.state.borrow().missing().is_some_and(|it| it.regions.has(region))
    }

    /// How a region of it can be used by requests.
    pub(crate) fn slot_state(&self, region: Region) -> SlotState {
        match &*self.state.borrow() {
            State::Lost => SlotState::Lost,
            State::Rebuilding { missing, .. } if missing.under_way.contains(&region) => {
                SlotState::Unreadable
            }
            // All of it will be computed: what is written until then does not matter.
            State::Rebuilding { missing, .. } if missing.regions.has(region) => SlotState::Lost,
            _ => SlotState::Online,
        }
    }

    /// What it is to the array, of which the record says that it is `recorded`.
    pub(crate) fn state(&self, recorded: MemberState) -> MemberState {
        match (&*self.state.borrow(), recorded) {
            (State::Lost, MemberState::Absent) => MemberState::Absent,
            (State::Lost, _) => MemberState::Lost,
            (State::Rebuilding { .. }, _) => MemberState::Rebuilding,
            (State::InService { .. } | State::Copied { .. }, _) => MemberState::InService,
        }
    }

    pub(crate) fn uuid(&self) -> [u8; 16] {
        self.uuid.get()
    }

    pub(crate) fn set_uuid(&self, uuid: [u8; 16]) {
        self.uuid.set(uuid);
    }

    /// Whether its device, or its successor, has this uuid.
    pub(crate) fn has_uuid(&self, uuid: &[u8; 16]) -> bool {
        let state = self.state.borrow();
        let beside = state.successor().map(|it| it.uuid);
        (state.device().is_some() && self.uuid.get() == *uuid) || beside == Some(*uuid)
    }

    /// Looks at the device that is being filled, if there is one, and at what it lacks.
    pub(crate) fn filling<T>(&self, look: impl FnOnce(&Rc<D>, &Missing) -> T) -> Option<T> {
        let state = self.state.borrow();
        state.filling().map(|(device, missing)| look(device, missing))
    }

    /// Changes what a device lacks that is being filled; none if it is not, or not any more.
    pub(crate) fn with_missing<T>(
        &self,
        device: &Rc<D>,
        change: impl FnOnce(&mut Missing) -> T,
    ) -> Option<T> {
        let mut state = self.state.borrow_mut();
        let (_, missing) = state.filling_mut().filter(|(own, _)| Rc::ptr_eq(own, device))?;
        Some(change(missing))
    }

    /// A device to fill, in the place of one that is lost.
    pub(crate) fn join(&self, device: Rc<D>, uuid: [u8; 16], lacking: Bits<Region>) {
        self.step(Event::Joined { device, missing: Missing::new(lacking) });
        self.watch.forget();
        self.uuid.set(uuid);
    }

    /// A device of which nothing is needed yet: it lacks nothing.
    pub(crate) fn begin(&self, device: Rc<D>, uuid: [u8; 16]) {
        self.step(Event::Begun { device });
        self.uuid.set(uuid);
    }

    /// A device to fill beside this one, which serves on until then.
    pub(crate) fn begin_copy(&self, device: Rc<D>, uuid: [u8; 16], lacking: Bits<Region>) {
        let missing = Missing::new(lacking);
        self.step(Event::CopyBegun(Successor { device, uuid, missing }));
    }

    /// The device that was filled lacks nothing any more: it serves, a successor in the place of the device.
    pub(crate) fn put_in_service(&self) {
        let replaced = match &*self.state.borrow() {
            State::Copied { device, successor } => Some((device.clone(), successor.uuid)),
            _ => None,
        };
        if let Some((device, uuid)) = replaced {
            self.watch.forget();
            let before = self.uuid.replace(uuid);
            self.replaced.replace(Some((device, before)));
        }
        self.step(Event::Filled);
    }

    /// The device that made place for another one, asked for once.
    pub(crate) fn take_replaced(&self) -> Option<(Rc<D>, [u8; 16])> {
        self.replaced.take()
    }

    pub(crate) fn succeeding(&self) -> Option<Rc<D>> {
        self.state.borrow().successor().map(|it| it.device.clone())
    }

    /// Gives a successor up; whether it was that.
    pub(crate) fn drop_successor(&self, device: &Rc<D>) -> bool {
        let is_it = self.succeeding().is_some_and(|own| Rc::ptr_eq(&own, device));
        if is_it {
            self.step(Event::CopyFailed);
        }
        is_it
    }

    /// How well the device does.
    pub(crate) fn watch(&self) -> &MemberWatch {
        &self.watch
    }

    /// Gives the device up, if there is one; requests under way end as they may.
    pub(crate) fn lose(&self) -> bool {
        let had_device = self.has_device();
        let succeeding = self.state.borrow().successor().map(|it| it.uuid);
        if let Some(uuid) = succeeding {
            self.watch.forget();
            self.uuid.set(uuid);
        }
        self.step(Event::GivenUp);
        had_device
    }
}

/// Every such I/O of a member is timed. Odd: requests that read and write in turns have both timed.
const STRIDE: u32 = 31;
/// After one that took as long as this, in nanoseconds, the next is timed: there are few of them then,
/// and a look at the clock is nothing to them.
const LONG_NS: Nanos = 100_000;
/// Verdicts in a row that make a member slow, or end that: the window has so many rounds.
pub(crate) const ROUNDS: u32 = 5;
/// One of so many reads of a member that is avoided goes to it all the same: that shows when it has
/// recovered.
const PROBE: u32 = 64;

/// What is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timed {
    Read,
    Write,
}

/// What is known of one member.
pub(crate) struct MemberWatch {
    /// Reads under way, by which copies share the load.
    reads_in_flight: Cell<u32>,
    /// I/Os until the next one is timed.
    untimed: Cell<u32>,
    /// When the one that is timed began; 0 for none.
    timed_since: Cell<Nanos>,
    timed: Cell<Timed>,
    /// Whether reads go elsewhere.
    is_avoided: Cell<bool>,
    probes: Cell<u32>,
    is_slow: Cell<bool>,
    /// Verdicts in a row that it is not what `is_slow` says.
    against: Cell<u32>,
    errors_read: Cell<u64>,
    errors_write: Cell<u64>,
    repaired: Cell<u64>,
    errors_recent: Cell<u32>,
    /// Until when these are halved.
    halved_at: Cell<Nanos>,
    samples: [RefCell<Samples>; 2],
}

impl Default for MemberWatch {
    fn default() -> Self {
        Self {
            reads_in_flight: Cell::default(),
            untimed: Cell::default(),
            timed_since: Cell::default(),
            timed: Cell::new(Timed::Read),
            is_avoided: Cell::default(),
            probes: Cell::default(),
            is_slow: Cell::default(),
            against: Cell::default(),
            errors_read: Cell::default(),
            errors_write: Cell::default(),
            repaired: Cell::default(),
            errors_recent: Cell::default(),
            halved_at: Cell::default(),
            samples: Default::default(),
        }
    }
}

impl MemberWatch {
    /// Goes on with what another one has found, whose array makes place for this one's.
    pub(crate) fn take_over(&self, before: &MemberWatch) {
        self.is_avoided.set(before.is_avoided.get());
        self.is_slow.set(before.is_slow.get());
        self.against.set(before.against.get());
        self.errors_read.set(before.errors_read.get());
        self.errors_write.set(before.errors_write.get());
        self.repaired.set(before.repaired.get());
        self.errors_recent.set(before.errors_recent.get());
        self.halved_at.set(before.halved_at.get());
    }
}

/// A read of a member under way, timed or not.
pub(crate) struct ReadUnderWay<'a> {
    watch: &'a MemberWatch,
    since: Nanos,
}

impl ReadUnderWay<'_> {
    /// When it began, if it was timed, or 0.
    #[inline]
    pub(crate) fn end(self) -> Nanos {
        self.since
    }
}

impl Drop for ReadUnderWay<'_> {
    fn drop(&mut self) {
        self.watch.reads_in_flight.set(self.watch.reads_in_flight.get() - 1);
        if self.since != 0 {
            self.watch.end();
        }
    }
}

impl MemberWatch {
    #[inline]
    pub(crate) fn begin_read(&self, now: impl FnOnce() -> Nanos) -> ReadUnderWay<'_> {
        self.reads_in_flight.set(self.reads_in_flight.get() + 1);
        ReadUnderWay { watch: self, since: self.begin(Timed::Read, now) }
    }

    pub(crate) fn errors_read(&self) -> u64 {
        self.errors_read.get()
    }

    pub(crate) fn errors_write(&self) -> u64 {
        self.errors_write.get()
    }

    pub(crate) fn repaired(&self) -> u64 {
        self.repaired.get()
    }

    pub(crate) fn note_failed_read(&self) {
        self.errors_read.set(self.errors_read.get() + 1);
    }

    pub(crate) fn note_failed_change(&self) {
        self.errors_write.set(self.errors_write.get() + 1);
    }

    pub(crate) fn note_repair(&self) {
        self.repaired.set(self.repaired.get() + 1);
    }

    /// The one that was timed has ended.
    pub(crate) fn end(&self) {
        self.timed_since.set(0);
    }

    /// How long the one that is timed has taken so far.
    pub(crate) fn under_way_ns(&self, timed: Timed, now: Nanos) -> Option<Nanos> {
        let since = self.timed_since.get();
        let is_it = since != 0 && self.timed.get() == timed;
        is_it.then(|| now.saturating_sub(since))
    }

    /// Takes down what the one that was timed took.
    pub(crate) fn add(&self, timed: Timed, took_ns: Nanos) {
        self.samples(timed).borrow_mut().add(took_ns);
        if took_ns >= LONG_NS {
            self.untimed.set(0);
        }
    }

    pub(crate) fn is_slow(&self) -> bool {
        self.is_slow.get()
    }

    pub(crate) fn is_avoided(&self) -> bool {
        self.is_avoided.get()
    }

    pub(crate) fn set_avoided(&self, is_avoided: bool) {
        self.is_avoided.set(is_avoided);
    }

    pub(crate) fn forget_means(&self) {
        self.samples.iter().for_each(|samples| samples.borrow_mut().forget_mean());
    }

    /// The verdicts so far count no more; if nobody is to be slow, it is not.
    pub(crate) fn judge_anew(&self, may_be_slow: bool) {
        self.against.set(0);
        self.is_slow.set(self.is_slow.get() && may_be_slow);
    }

    pub(crate) fn reads_in_flight(&self) -> u32 {
        self.reads_in_flight.get()
    }

    /// Another device has the place: nothing of the old one is true of it.
    pub(crate) fn forget(&self) {
        let new = Self::default();
        self.is_avoided.set(false);
        self.is_slow.set(false);
        self.against.set(0);
        self.errors_read.set(0);
        self.errors_write.set(0);
        self.repaired.set(0);
        self.errors_recent.set(0);
        for (own, new) in self.samples.iter().zip(new.samples) {
            own.replace(new.into_inner());
        }
    }

    /// Whether this read is to go elsewhere.
    pub(crate) fn is_avoided_now(&self) -> bool {
        if !self.is_avoided.get() {
            return false;
        }
        self.probes.set((self.probes.get() + 1) % PROBE);
        self.probes.get() != 0
    }

    /// When this I/O began if it is one that is timed, or 0.
    #[inline]
    pub(crate) fn begin(&self, timed: Timed, now: impl FnOnce() -> Nanos) -> Nanos {
        let untimed = self.untimed.get();
        if untimed != 0 {
            self.untimed.set(untimed - 1);
            return 0;
        }
        self.begin_timed(timed, now)
    }

    #[cold]
    fn begin_timed(&self, timed: Timed, now: impl FnOnce() -> Nanos) -> Nanos {
        if self.timed_since.get() != 0 {
            return 0;
        }
        self.untimed.set(STRIDE - 1);
        let since = now().max(1);
        self.timed.set(timed);
        self.timed_since.set(since);
        since
    }

    pub(crate) fn samples(&self, timed: Timed) -> &RefCell<Samples> {
        &self.samples[timed as usize]
    }

    /// One more error; how many there are of late.
    pub(crate) fn add_error(&self, now: Nanos, window_ns: Nanos) -> u32 {
        let recent = self.recent(now, window_ns);
        let windows = now.saturating_sub(self.halved_at.get()) / window_ns;
        let is_first = self.errors_recent.get() == 0;
        let halved_at = if is_first { now } else { self.halved_at.get() + windows * window_ns };
        self.halved_at.set(halved_at);
        self.errors_recent.set(recent.saturating_add(1));
        self.errors_recent.get()
    }

    /// Errors of late.
    pub(crate) fn recent(&self, now: Nanos, window_ns: Nanos) -> u32 {
        let windows = now.saturating_sub(self.halved_at.get()) / window_ns;
        let halvings = u32::try_from(windows).unwrap_or(u32::MAX);
        self.errors_recent.get().checked_shr(halvings).unwrap_or(0)
    }

    /// A verdict of a round; whether it changed what the member is called.
    pub(crate) fn judge(&self, is_slow: bool) -> bool {
        if is_slow == self.is_slow.get() {
            self.against.set(0);
            return false;
        }
        self.against.set(self.against.get() + 1);
        if self.against.get() < ROUNDS {
            return false;
        }
        self.against.set(0);
        self.is_slow.set(is_slow);
        true
    }
}

#[cfg(test)]
mod tests;
