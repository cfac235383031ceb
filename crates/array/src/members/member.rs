//! One member: its device, what the device lacks, and the device that is filled beside it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use voltier_block::{IoError, IoResult};

use crate::format::bits::Bits;
use crate::format::superblock::MemberState;
use crate::geometry::plan::SlotState;
use crate::members::watch::MemberWatch;

/// What a device does not have yet, while it is filled.
pub(crate) struct Missing {
    pub(crate) regions: Bits,
    /// Those of them that are being filled: they are written, and not read.
    pub(crate) under_way: BTreeSet<u64>,
}

impl Missing {
    pub(crate) fn new(regions: Bits) -> Self {
        Self { regions, under_way: BTreeSet::new() }
    }
}

/// A device that is filled beside a member in service, to take its place.
pub(crate) struct Successor<D> {
    pub(crate) device: Rc<D>,
    pub(crate) uuid: [u8; 16],
    pub(crate) missing: Missing,
}

/// A member: a device, as long as it is not lost.
pub(crate) struct Member<D> {
    device: RefCell<Option<Rc<D>>>,
    /// The uuid of the device; zero in a bare array.
    uuid: Cell<[u8; 16]>,
    /// What the device lacks; none of a member in service.
    missing: RefCell<Option<Missing>>,
    successor: RefCell<Option<Successor<D>>>,
    watch: MemberWatch,
    /// A device whose place a successor took, and its uuid, until the record says so.
    replaced: RefCell<Option<(Rc<D>, [u8; 16])>>,
}

impl<D> Member<D> {
    pub(crate) fn new(device: Option<D>) -> Self {
        Self {
            device: RefCell::new(device.map(Rc::new)),
            uuid: Cell::default(),
            missing: RefCell::default(),
            successor: RefCell::default(),
            watch: MemberWatch::default(),
            replaced: RefCell::default(),
        }
    }

    /// The same member in an array that takes over; nothing is left of this one.
    pub(crate) fn moved(&self) -> Self {
        let moved = Self::new(None);
        moved.device.swap(&self.device);
        moved.uuid.set(self.uuid.get());
        moved.missing.swap(&self.missing);
        moved.successor.swap(&self.successor);
        moved.replaced.swap(&self.replaced);
        moved.watch.take_over(&self.watch);
        moved
    }

    /// # Errors
    /// `Gone` when it is lost.
    pub(crate) fn device(&self) -> IoResult<Rc<D>> {
        self.device.borrow().clone().ok_or(IoError::Gone)
    }

    pub(crate) fn has_device(&self) -> bool {
        self.device.borrow().is_some()
    }

    pub(crate) fn is_device(&self, device: &Rc<D>) -> bool {
        self.device.borrow().as_ref().is_some_and(|own| Rc::ptr_eq(own, device))
    }

    /// Whether it is in service: not lost, and not being rebuilt.
    pub(crate) fn is_online(&self) -> bool {
        self.has_device() && self.missing.borrow().is_none()
    }

    pub(crate) fn is_rebuilding(&self) -> bool {
        self.missing.borrow().is_some()
    }

    /// Whether a region can be read from it.
    pub(crate) fn has_region(&self, region: u64) -> bool {
        let missing = self.missing.borrow();
        self.has_device() && missing.as_ref().is_none_or(|it| !it.regions.has(region))
    }

    /// How a region of it can be used by requests.
    pub(crate) fn slot_state(&self, region: u64) -> SlotState {
        match &*self.missing.borrow() {
            _ if !self.has_device() => SlotState::Lost,
            Some(missing) if missing.under_way.contains(&region) => SlotState::Unreadable,
            // All of it will be computed: what is written until then does not matter.
            Some(missing) if missing.regions.has(region) => SlotState::Lost,
            _ => SlotState::Online,
        }
    }

    /// What it is to the array, of which the record says that it is `recorded`.
    pub(crate) fn state(&self, recorded: MemberState) -> MemberState {
        match (self.has_device(), recorded) {
            (false, MemberState::Absent) => MemberState::Absent,
            (false, _) => MemberState::Lost,
            (true, _) if self.is_rebuilding() => MemberState::Rebuilding,
            (true, _) => MemberState::InService,
        }
    }

    pub(crate) fn uuid(&self) -> [u8; 16] {
        self.uuid.get()
    }

    pub(crate) fn set_uuid(&self, uuid: [u8; 16]) {
        self.uuid.set(uuid);
    }

    pub(crate) fn missing(&self) -> &RefCell<Option<Missing>> {
        &self.missing
    }

    pub(crate) fn successor(&self) -> &RefCell<Option<Successor<D>>> {
        &self.successor
    }

    /// A device to fill, in the place of one that is lost.
    pub(crate) fn join(&self, device: Rc<D>, uuid: [u8; 16], missing: Bits) {
        self.missing.replace(Some(Missing::new(missing)));
        self.watch.forget();
        self.uuid.set(uuid);
        self.device.replace(Some(device));
    }

    /// A device of which nothing is needed yet: it lacks nothing.
    pub(crate) fn begin(&self, device: Rc<D>, uuid: [u8; 16]) {
        self.uuid.set(uuid);
        self.device.replace(Some(device));
    }

    /// The successor, which lacks nothing any more, takes the place of the device.
    pub(crate) fn succeed(&self) {
        let Some(successor) = self.successor.take() else { return };
        self.watch.forget();
        let uuid = self.uuid.replace(successor.uuid);
        let before = self.device.replace(Some(successor.device));
        self.replaced.replace(before.map(|device| (device, uuid)));
    }

    /// The device that made place for another one, asked for once.
    pub(crate) fn take_replaced(&self) -> Option<(Rc<D>, [u8; 16])> {
        self.replaced.take()
    }

    pub(crate) fn succeeding(&self) -> Option<Rc<D>> {
        self.successor.borrow().as_ref().map(|it| it.device.clone())
    }

    /// Gives a successor up; whether it was that.
    pub(crate) fn drop_successor(&self, device: &Rc<D>) -> bool {
        let mut successor = self.successor.borrow_mut();
        successor.take_if(|it| Rc::ptr_eq(&it.device, device)).is_some()
    }

    /// How well the device does.
    pub(crate) fn watch(&self) -> &MemberWatch {
        &self.watch
    }

    /// Gives the device up; requests under way end as they may. A successor goes on in its place with
    /// what it has.
    pub(crate) fn lose(&self) -> bool {
        if self.device.borrow_mut().take().is_none() {
            return false;
        }
        self.missing.take();
        if let Some(Successor { device, uuid, missing }) = self.successor.take() {
            self.watch.forget();
            self.uuid.set(uuid);
            self.device.replace(Some(device));
            self.missing.replace(Some(missing));
        }
        true
    }
}
