//! Devices whose requests end: when the drive answers, or when the device is given up as hung.
//!
//! The [`Requests`] of a device count what is under way. A device that is
//! [abandoned](DriveControl::abandon) answers `Gone` to all requests, also to those under way. The drive may
//! still be at them ([`DriveControl::under_way`]).

use std::future::Future;
use std::rc::Rc;

use voltier_block::{
    BlockDevice, Buf, DriveControl, Durability, IoResult, Lba, Limits, Nanos, Payload, SectorRange,
    UnderWay,
};

use crate::watch::{Requests, Watch};

/// A device whose requests are watched, and can be ended.
pub struct Guarded<D> {
    device: D,
    requests: Rc<Requests>,
}

impl<D: DriveControl> Guarded<D> {
    /// Puts a device under a watch.
    pub fn new(device: D, watch: &Rc<Watch>) -> Self {
        Self { device, requests: Requests::new(watch) }
    }

    /// The device itself.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// The requests of the device.
    pub fn requests(&self) -> &Rc<Requests> {
        &self.requests
    }
}

impl<D: BlockDevice> BlockDevice for Guarded<D> {
    fn limits(&self) -> &Limits {
        self.device.limits()
    }

    #[inline]
    fn read(&self, at: Lba, into: Buf) -> impl Future<Output = IoResult<Buf>> {
        self.requests.watch_over(self.device.read(at, into))
    }

    fn read_vectored(&self, at: Lba, into: Vec<Buf>) -> impl Future<Output = IoResult<Vec<Buf>>> {
        self.requests.watch_over(self.device.read_vectored(at, into))
    }

    fn write(
        &self,
        at: Lba,
        data: Payload,
        durability: Durability,
    ) -> impl Future<Output = IoResult<()>> {
        self.requests.watch_over(self.device.write(at, data, durability))
    }

    fn flush(&self) -> impl Future<Output = IoResult<()>> {
        self.requests.watch_over(self.device.flush())
    }

    fn discard(&self, range: SectorRange) -> impl Future<Output = IoResult<()>> {
        self.requests.watch_over(self.device.discard(range))
    }

    fn write_zeroes(
        &self,
        range: SectorRange,
        durability: Durability,
    ) -> impl Future<Output = IoResult<()>> {
        self.requests.watch_over(self.device.write_zeroes(range, durability))
    }

    fn zero_in_place(
        &self,
        range: SectorRange,
        durability: Durability,
    ) -> impl Future<Output = IoResult<()>> {
        self.requests.watch_over(self.device.zero_in_place(range, durability))
    }
}

impl<D: DriveControl> DriveControl for Guarded<D> {
    fn under_way(&self) -> UnderWay {
        self.device.under_way()
    }

    /// Ends all requests with `Gone`, now and from now on. Nobody relies on the device any more.
    fn abandon(&self) {
        self.device.abandon();
        self.requests.release();
    }

    fn forget_failed_flush(&self) {
        self.device.forget_failed_flush();
    }

    fn patience_ns(&self) -> Nanos {
        self.device.patience_ns()
    }
}
