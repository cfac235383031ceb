//! A drive as the product opens it: what clients reach takes 512-byte requests, whatever the blocks.

use voltier_drive::filter::FittedDevice;

use crate::disk::SimDisk;

/// A simulated drive, with what aligns requests in front of it where it needs that.
pub type SimDrive = FittedDevice<SimDisk>;
