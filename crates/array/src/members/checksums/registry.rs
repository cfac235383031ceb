//! The checksums of all devices of an array: of members, and of those that are filled beside members.

use std::cell::RefCell;
use std::rc::Rc;

use voltier_block::BlockDevice;

use crate::format::bits::Bits;
use crate::format::checksum_page::Owner;
use crate::format::member_layout::MemberLayout;
use crate::geometry::numbers::Region;
use crate::members::checksums::checked::Checked;

/// The devices of an array with integrity.
pub(crate) struct Checksums<D> {
    array: [u8; 16],
    places: MemberLayout,
    devices: RefCell<Vec<Rc<Checked<D>>>>,
}

impl<D: BlockDevice> Checksums<D> {
    pub(crate) fn new(array: [u8; 16], places: MemberLayout) -> Self {
        Self { array, places, devices: RefCell::default() }
    }

    /// A device comes to the array as the member of this uuid. What the device says of these regions is not
    /// believed. Pages of another member are none.
    pub(crate) fn join(&self, device: &Rc<D>, member: [u8; 16], distrusted: Bits<Region>) {
        let owner = Owner { array: self.array, member };
        let checked = Rc::new(Checked::new(device, owner, &self.places, distrusted));
        let mut devices = self.devices.borrow_mut();
        devices.retain(|it| !it.is_left() && !it.is_of(device));
        devices.push(checked);
    }

    /// The device with its checksums.
    pub(crate) fn of(&self, device: &Rc<D>) -> Rc<Checked<D>> {
        let devices = self.devices.borrow();
        let found = devices.iter().find(|it| it.is_of(device));
        found.expect("a device joins before requests are sent to it").clone()
    }
}
