//! The checksums of all devices of an array: of members, and of those that are filled beside members.

use std::cell::RefCell;
use std::rc::{Rc, Weak};

use voltier_block::DriveControl;
use voltier_ring::Handle;

use crate::format::bits::Bits;
use crate::format::checksum_page::Owner;
use crate::format::member_layout::MemberLayout;
use crate::format::region_map::RegionGrid;
use crate::format::void_pages::VoidPages;
use crate::geometry::numbers::Region;
use crate::members::checksums::checked::Checked;
use crate::members::checksums::void_list::first_era;

/// The devices of an array with integrity. A device that everybody else has left is closed: nothing here
/// keeps it.
pub(crate) struct Checksums<D> {
    handle: Handle,
    array: [u8; 16],
    /// The event count of the array when it was put together.
    event: u64,
    places: MemberLayout,
    devices: RefCell<Vec<(Weak<D>, Rc<Checked>)>>,
}

impl<D: DriveControl> Checksums<D> {
    pub(crate) fn new(handle: &Handle, array: [u8; 16], event: u64, places: MemberLayout) -> Self {
        Self { handle: handle.clone(), array, event, places, devices: RefCell::default() }
    }

    /// A device comes to the array as the member of this uuid, whose pages the device may have. The pages'
    /// checksums of these regions are not believed.
    pub(crate) fn join(&self, device: &Rc<D>, member: [u8; 16], distrusted: Bits<Region>) {
        self.add(device, member, distrusted, None);
    }

    /// A device comes to the array as a new member: it has no pages.
    pub(crate) fn join_new(&self, device: &Rc<D>, member: [u8; 16]) {
        let regions = RegionGrid::new(self.places.data.count).count();
        let list = VoidPages::of_era(first_era(self.event));
        self.add(device, member, Bits::new(regions), Some(list));
    }

    fn add(
        &self,
        device: &Rc<D>,
        member: [u8; 16],
        distrusted: Bits<Region>,
        list: Option<VoidPages>,
    ) {
        let owner = Owner { array: self.array, member };
        let checked = Checked::new(&self.handle, owner, self.event, &self.places, distrusted, list);
        let mut devices = self.devices.borrow_mut();
        let is_other = |own: &Weak<D>| own.strong_count() > 0 && own.as_ptr() != Rc::as_ptr(device);
        devices.retain(|(own, _)| is_other(own));
        devices.push((Rc::downgrade(device), Rc::new(checked)));
    }

    /// The checksums of a device.
    pub(crate) fn of(&self, device: &Rc<D>) -> Rc<Checked> {
        let devices = self.devices.borrow();
        let found = devices.iter().find(|(own, _)| own.as_ptr() == Rc::as_ptr(device));
        found.expect("a device joins before requests are sent to it").1.clone()
    }
}
