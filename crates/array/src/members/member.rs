//! One member: its device, what the device lacks, and the device that is filled beside it.
//!
//! `State` says which devices there are, by which uuids, and which events change that. `Vitals` know how well
//! the device does.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use voltier_block::{IoError, IoResult};

use crate::format::bits::Bits;
use crate::format::superblock::MemberState;
use crate::geometry::numbers::Region;
use crate::geometry::plan::SlotState;
use crate::members::vitals::Vitals;

/// Regions that a device does not have yet, while it is filled.
pub(crate) struct Missing {
    pub(crate) regions: Bits<Region>,
    /// Missing regions that are being filled: such regions are written, and not read.
    pub(crate) under_way: BTreeSet<Region>,
    /// Whether all writes reach the device. The rebuild fills nothing before: a region could lack a write
    /// that began without the device, and the region map would not say so.
    is_reached: bool,
}

impl Missing {
    /// The regions that a device lacks which all writes reach.
    pub(crate) fn new(regions: Bits<Region>) -> Self {
        Self { regions, under_way: BTreeSet::new(), is_reached: true }
    }

    /// The regions that a pending member lacks: writes of before are under way.
    pub(crate) fn of_pending_member(regions: Bits<Region>) -> Self {
        Self { is_reached: false, ..Self::new(regions) }
    }

    /// From now on all writes reach the device, which lacks these regions.
    pub(crate) fn note_reached(&mut self, lacking: Bits<Region>) {
        (self.regions, self.is_reached) = (lacking, true);
    }

    /// Whether the rebuild may begin to fill a region.
    pub(crate) fn can_fill(&self, region: Region) -> bool {
        self.is_reached && self.regions.has(region) && !self.under_way.contains(&region)
    }

    /// A region is not filled any more; the device has the region if that succeeded.
    pub(crate) fn end_filling(&mut self, region: Region, is_filled: bool) {
        self.under_way.remove(&region);
        if is_filled {
            self.regions.put(region, false);
        }
    }
}

/// A device, and its uuid on record; zero in a bare array.
struct Named<D> {
    device: Rc<D>,
    uuid: [u8; 16],
}

/// A device that is filled beside a member in service, to take its place.
struct Successor<D> {
    own: Named<D>,
    missing: Missing,
}

/// States of a member.
enum State<D> {
    /// There is no device: the other members of the group stand for this one. The uuid is that of the device
    /// that was lost.
    Lost { uuid: [u8; 16] },
    /// The device has all that was written.
    InService { own: Named<D> },
    /// The same, and a successor is filled beside the device.
    HasSuccessor { own: Named<D>, successor: Successor<D> },
    /// The device is filled, and lacks regions.
    Rebuilding { own: Named<D>, missing: Missing },
}

/// Events that change the state of a member.
enum Event<D> {
    /// A device to fill. A replacement, or a parity row that is added, brings one to a place without a
    /// device. An assembly finds by the record that the device in service is one to fill.
    Joined { own: Named<D>, missing: Missing },
    /// A device of which nothing is needed yet: a capacity expansion brings it, as a member that is new.
    Begun { own: Named<D> },
    /// A device to fill beside this one in service: a replacement brings it.
    SuccessionBegun(Successor<D>),
    /// The device that was filled lacks nothing any more: the rebuild says so.
    Filled,
    /// The successor did not take a write or a flush: whoever wrote to it says so.
    SuccessorFailed,
    /// The device is given up: by a failed request, by its health, or by an administrator.
    GivenUp,
}

impl<D> State<D> {
    /// The transition table: the state after an event, and a device that made place for another one by it.
    ///
    /// # Panics
    /// At an event that nobody causes in this state. The callers ask for the state just before such an
    /// event, with no await between.
    fn after(self, event: Event<D>) -> (Self, Option<Named<D>>) {
        let after = match (self, event) {
            (Self::Lost { .. } | Self::InService { .. }, Event::Joined { own, missing }) => {
                Self::Rebuilding { own, missing }
            }
            (Self::HasSuccessor { .. } | Self::Rebuilding { .. }, Event::Joined { .. }) => {
                unreachable!("a replacement asks first whether a device is being filled here")
            }

            (Self::Lost { .. }, Event::Begun { own }) => Self::InService { own },
            (
                Self::InService { .. } | Self::HasSuccessor { .. } | Self::Rebuilding { .. },
                Event::Begun { .. },
            ) => unreachable!("a capacity expansion begins a member that is new and has no device"),

            (Self::InService { own }, Event::SuccessionBegun(successor)) => {
                Self::HasSuccessor { own, successor }
            }
            (
                Self::Lost { .. } | Self::HasSuccessor { .. } | Self::Rebuilding { .. },
                Event::SuccessionBegun(_),
            ) => unreachable!("a replacement gives a successor to a member in service alone"),

            (Self::Rebuilding { own, .. }, Event::Filled) => Self::InService { own },
            (Self::HasSuccessor { own, successor }, Event::Filled) => {
                return (Self::InService { own: successor.own }, Some(own));
            }
            (Self::Lost { .. } | Self::InService { .. }, Event::Filled) => {
                unreachable!("the rebuild looks whether its device is still being filled here")
            }

            (Self::HasSuccessor { own, .. }, Event::SuccessorFailed) => Self::InService { own },
            (
                Self::Lost { .. } | Self::InService { .. } | Self::Rebuilding { .. },
                Event::SuccessorFailed,
            ) => unreachable!("a successor fails where there is one: the member has compared it"),

            // A successor goes on in the place of the device with what it has.
            (Self::HasSuccessor { successor, .. }, Event::GivenUp) => {
                Self::Rebuilding { own: successor.own, missing: successor.missing }
            }
            (Self::InService { own } | Self::Rebuilding { own, .. }, Event::GivenUp) => {
                Self::Lost { uuid: own.uuid }
            }
            // Changes nothing, because the device is gone: several requests may fail at a member, and an
            // administrator may take it out as well.
            (Self::Lost { uuid }, Event::GivenUp) => Self::Lost { uuid },
        };
        (after, None)
    }

    /// The uuid of the device that takes requests, or of the one that was lost.
    fn uuid(&self) -> [u8; 16] {
        match self {
            Self::Lost { uuid } => *uuid,
            Self::InService { own }
            | Self::HasSuccessor { own, .. }
            | Self::Rebuilding { own, .. } => own.uuid,
        }
    }

    fn uuid_mut(&mut self) -> &mut [u8; 16] {
        match self {
            Self::Lost { uuid } => uuid,
            Self::InService { own }
            | Self::HasSuccessor { own, .. }
            | Self::Rebuilding { own, .. } => &mut own.uuid,
        }
    }

    /// The device that takes requests.
    fn device(&self) -> Option<&Rc<D>> {
        match self {
            Self::Lost { .. } => None,
            Self::InService { own }
            | Self::HasSuccessor { own, .. }
            | Self::Rebuilding { own, .. } => Some(&own.device),
        }
    }

    /// The regions that requests do not find on the device.
    fn missing(&self) -> Option<&Missing> {
        if let Self::Rebuilding { missing, .. } = self { Some(missing) } else { None }
    }

    fn successor(&self) -> Option<&Successor<D>> {
        if let Self::HasSuccessor { successor, .. } = self { Some(successor) } else { None }
    }

    /// The device that is being filled: the member's own, or its successor.
    fn filling(&self) -> Option<(&Rc<D>, &Missing)> {
        match self {
            Self::Rebuilding { own, missing } => Some((&own.device, missing)),
            Self::HasSuccessor { successor, .. } => {
                Some((&successor.own.device, &successor.missing))
            }
            Self::Lost { .. } | Self::InService { .. } => None,
        }
    }

    fn filling_mut(&mut self) -> Option<(&Rc<D>, &mut Missing)> {
        match self {
            Self::Rebuilding { own, missing } => Some((&own.device, missing)),
            Self::HasSuccessor { successor, .. } => {
                Some((&successor.own.device, &mut successor.missing))
            }
            Self::Lost { .. } | Self::InService { .. } => None,
        }
    }
}

/// A member of an array.
pub(crate) struct Member<D> {
    state: RefCell<State<D>>,
    /// The device whose place a successor took with the last [`Event::Filled`], until the record says so.
    replaced: RefCell<Option<Named<D>>>,
    vitals: Vitals,
}

impl<D> Member<D> {
    pub(crate) fn new(device: Option<D>) -> Self {
        let uuid = [0; 16];
        Self::at(match device {
            Some(device) => State::InService { own: Named { device: Rc::new(device), uuid } },
            None => State::Lost { uuid },
        })
    }

    fn at(state: State<D>) -> Self {
        Self { state: RefCell::new(state), replaced: RefCell::default(), vitals: Vitals::default() }
    }

    /// The same member in an array that takes over; nothing is left of this one.
    pub(crate) fn moved(&self) -> Self {
        let uuid = self.uuid();
        let moved = Self::at(self.state.replace(State::Lost { uuid }));
        moved.replaced.swap(&self.replaced);
        moved.vitals.take_over(&self.vitals);
        moved
    }

    fn step(&self, event: Event<D>) {
        let uuid = self.uuid();
        let before = self.state.replace(State::Lost { uuid });
        let (after, replaced) = before.after(event);
        self.state.replace(after);
        if replaced.is_some() {
            self.replaced.replace(replaced);
        }
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

    /// Whether the member is in service: not lost, and not being rebuilt.
    pub(crate) fn is_online(&self) -> bool {
        matches!(&*self.state.borrow(), State::InService { .. } | State::HasSuccessor { .. })
    }

    pub(crate) fn is_rebuilding(&self) -> bool {
        self.state.borrow().missing().is_some()
    }

    /// Whether a device is filled beside it.
    pub(crate) fn has_successor(&self) -> bool {
        self.state.borrow().successor().is_some()
    }

    /// Whether the member is in service, and no task works on it.
    pub(crate) fn is_undisturbed(&self) -> bool {
        matches!(&*self.state.borrow(), State::InService { .. })
    }

    /// Whether a region can be read from it.
    pub(crate) fn has_region(&self, region: Region) -> bool {
        let state = self.state.borrow();
        state.device().is_some() && state.missing().is_none_or(|it| !it.regions.has(region))
    }

    /// Whether the member is being rebuilt and lacks a region.
    pub(crate) fn lacks(&self, region: Region) -> bool {
        self.state.borrow().missing().is_some_and(|it| it.regions.has(region))
    }

    /// How a region of it can be used by requests.
    pub(crate) fn slot_state(&self, region: Region) -> SlotState {
        match &*self.state.borrow() {
            State::Lost { .. } => SlotState::Lost,
            State::Rebuilding { missing, .. } if missing.under_way.contains(&region) => {
                SlotState::Unreadable
            }
            // All of it will be computed: what is written until then does not matter.
            State::Rebuilding { missing, .. } if missing.regions.has(region) => SlotState::Lost,
            _ => SlotState::Online,
        }
    }

    /// The state of the member for the array, whose record says `recorded`.
    pub(crate) fn state(&self, recorded: MemberState) -> MemberState {
        match (&*self.state.borrow(), recorded) {
            (State::Lost { .. }, MemberState::Absent) => MemberState::Absent,
            (State::Lost { .. }, _) => MemberState::Lost,
            (State::Rebuilding { .. }, _) => MemberState::Rebuilding,
            (State::InService { .. } | State::HasSuccessor { .. }, _) => MemberState::InService,
        }
    }

    pub(crate) fn uuid(&self) -> [u8; 16] {
        self.state.borrow().uuid()
    }

    pub(crate) fn set_uuid(&self, uuid: [u8; 16]) {
        *self.state.borrow_mut().uuid_mut() = uuid;
    }

    /// Whether the member's device, or the successor, has this uuid.
    pub(crate) fn has_uuid(&self, uuid: &[u8; 16]) -> bool {
        let state = self.state.borrow();
        let beside = state.successor().map(|it| it.own.uuid);
        (state.device().is_some() && state.uuid() == *uuid) || beside == Some(*uuid)
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

    /// A device to fill, in the place of one that is lost or counted as whole. No other is being filled.
    pub(crate) fn join(&self, device: Rc<D>, uuid: [u8; 16], missing: Missing) {
        self.step(Event::Joined { own: Named { device, uuid }, missing });
        self.vitals.forget();
    }

    /// A device of which nothing is needed yet: it lacks nothing. The member is new.
    pub(crate) fn begin(&self, device: Rc<D>, uuid: [u8; 16]) {
        self.step(Event::Begun { own: Named { device, uuid } });
    }

    /// A device to fill beside this one, which serves on until then. The member is undisturbed.
    pub(crate) fn begin_succession(&self, device: Rc<D>, uuid: [u8; 16], missing: Missing) {
        self.step(Event::SuccessionBegun(Successor { own: Named { device, uuid }, missing }));
    }

    /// The device that is being filled lacks nothing any more: it serves, a successor in the place of the
    /// device.
    pub(crate) fn put_in_service(&self) {
        if self.has_successor() {
            self.vitals.forget();
        }
        self.step(Event::Filled);
    }

    /// The device that made place for another one, asked for once.
    pub(crate) fn take_replaced(&self) -> Option<(Rc<D>, [u8; 16])> {
        self.replaced.take().map(|Named { device, uuid }| (device, uuid))
    }

    pub(crate) fn succeeding(&self) -> Option<Rc<D>> {
        self.state.borrow().successor().map(|it| it.own.device.clone())
    }

    /// Gives a successor up; whether it was that.
    pub(crate) fn drop_successor(&self, device: &Rc<D>) -> bool {
        let is_it = self.succeeding().is_some_and(|own| Rc::ptr_eq(&own, device));
        if is_it {
            self.step(Event::SuccessorFailed);
        }
        is_it
    }

    /// How well the device does.
    pub(crate) fn vitals(&self) -> &Vitals {
        &self.vitals
    }

    /// Gives the device up, if there is one; requests under way end as they may.
    pub(crate) fn lose(&self) -> bool {
        let had_device = self.has_device();
        if self.has_successor() {
            self.vitals.forget();
        }
        self.step(Event::GivenUp);
        had_device
    }
}

#[cfg(test)]
mod tests;
