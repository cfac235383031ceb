//! Requests to single devices, which go through their checksums where the array has integrity.

use std::rc::Rc;

use voltier_block::{DriveControl, Durability, IoResult, Lba, Payload, SectorRange};

use crate::format::bits::Bits;
use crate::geometry::numbers::Region;
use crate::members::checksums::checked::Checked;
use crate::members::checksums::registry::Checksums;
use crate::members::clear::{Clear, clear_device};
use crate::members::counts::MemberCounts;

/// The devices of an array. The requests with checksums are in boxes: others do not carry their room along.
pub(crate) struct CheckedDevices<D> {
    /// None of an array without integrity.
    checksums: Option<Rc<Checksums<D>>>,
}

impl<D> Clone for CheckedDevices<D> {
    fn clone(&self) -> Self {
        Self { checksums: self.checksums.clone() }
    }
}

impl<D: DriveControl> CheckedDevices<D> {
    pub(crate) fn new(checksums: Option<Checksums<D>>) -> Self {
        Self { checksums: checksums.map(Rc::new) }
    }

    pub(crate) fn have_checksums(&self) -> bool {
        self.checksums.is_some()
    }

    /// The checksums of a device; none of an array without integrity.
    pub(crate) fn checked(&self, device: &Rc<D>) -> Option<Rc<Checked>> {
        self.checksums.as_ref().map(|checksums| checksums.of(device))
    }

    pub(crate) async fn write(
        &self,
        device: &Rc<D>,
        at: Lba,
        data: Payload,
        durability: Durability,
    ) -> IoResult<()> {
        let write = async |data| device.write(at, data, durability).await;
        match self.checked(device) {
            Some(checked) => Box::pin(checked.write(device, at, data, write)).await,
            None => device.write(at, data, durability).await,
        }
    }

    pub(crate) async fn clear(
        &self,
        device: &Rc<D>,
        range: SectorRange,
        clear: Clear,
    ) -> IoResult<()> {
        match self.checked(device) {
            Some(checked) => Box::pin(checked.clear(device, range, clear)).await,
            None => clear_device(&**device, range, clear).await,
        }
    }

    /// Flushes a device, and its checksums before.
    pub(crate) async fn flush(&self, device: &Rc<D>) -> IoResult<()> {
        match self.checked(device) {
            Some(checked) => Box::pin(checked.flush(device)).await,
            None => device.flush().await,
        }
    }

    /// A device comes to the array, before anything is sent to it as the member of this uuid. The
    /// device's own checksums of these regions are not believed.
    pub(crate) fn join(
        &self,
        device: &Rc<D>,
        uuid: [u8; 16],
        distrusted: impl FnOnce() -> Bits<Region>,
    ) {
        if let Some(checksums) = &self.checksums {
            checksums.join(device, uuid, distrusted());
        }
    }

    /// A device comes to the array that was no member before.
    pub(crate) fn join_new(&self, device: &Rc<D>, uuid: [u8; 16]) {
        if let Some(checksums) = &self.checksums {
            checksums.join_new(device, uuid);
        }
    }

    /// From now on nothing is known of these regions of a device.
    pub(crate) fn distrust(&self, device: &Rc<D>, regions: &Bits<Region>) {
        if let Some(checked) = self.checked(device) {
            checked.distrust(regions);
        }
    }

    /// The blocks of a device that did not match their checksums.
    pub(crate) fn counts(&self, device: &Rc<D>) -> MemberCounts {
        self.checked(device).map(|checked| checked.counts()).unwrap_or_default()
    }

    /// Blocks that others than their checksums show to be right get checksums, if they have none.
    pub(crate) async fn adopt(&self, device: &Rc<D>, at: Lba, bytes: &[u8]) {
        if let Some(checked) = self.checked(device) {
            // A device whose pages cannot be read goes without: its next read or write fails.
            let _ = checked.adopt(&**device, at, bytes).await;
        }
    }

    /// A block of a device is known to be wrong, and was not before.
    pub(crate) fn convict(&self, device: &Rc<D>, at: Lba) {
        if let Some(checked) = self.checked(device) {
            checked.convict(at);
        }
    }

    /// Whether all blocks of a range have checksums that are known.
    pub(crate) async fn knows(&self, device: &Rc<D>, at: Lba, bytes: u64) -> bool {
        match self.checked(device) {
            Some(checked) => checked.knows(&**device, at, bytes).await,
            None => false,
        }
    }

    /// Whether content that was computed is what its checksums say, as far as these are known.
    pub(crate) async fn accepts(&self, device: &Rc<D>, at: Lba, bytes: &[u8]) -> bool {
        match self.checked(device) {
            Some(checked) => checked.accepts(&**device, at, bytes).await,
            None => true,
        }
    }
}
