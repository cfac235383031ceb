//! Devices of a core: opening a drive by its specification.

use std::future::Future;
use std::path::Path;
use std::rc::Rc;

use voltier_array::MemberState;
use voltier_block::{BlockDevice, Meter, Nanos};
use voltier_control::safety::{Machine, WriteProtection};
use voltier_control::{ControlError, ControlResult, DeviceSpec};
use voltier_drive::OpenError;
use voltier_ring::Handle;
use voltier_volume::Leaf;

use crate::opening;

/// A device of an array.
#[derive(Clone)]
pub(super) struct KnownDevice {
    pub(super) device: DeviceSpec,
    pub(super) size_bytes: u64,
    pub(super) meter: Rc<Meter>,
}

impl KnownDevice {
    /// A device that is open.
    pub(super) fn of(device: &DeviceSpec, leaf: &Leaf) -> Self {
        Self { device: device.clone(), size_bytes: leaf.limits().bytes(), meter: leaf.meter() }
    }
}

/// Opens a device, on a thread of its own.
pub(super) async fn open_leaf(handle: &Handle, device: &DeviceSpec) -> ControlResult<Leaf> {
    open_once(handle, device).await?.map_err(ControlError::from_error)
}

pub(super) async fn open_once(
    handle: &Handle,
    device: &DeviceSpec,
) -> ControlResult<Result<Leaf, OpenError>> {
    answered(handle, device, opening::open(handle, device)).await?
}

/// For so long a device may take to end the requests of a volume or an array that failed, in nanoseconds.
/// Most devices need no more than for any request; of one that takes longer an error says so.
const DRAINED_NS: Nanos = 2_000_000_000;
/// How often the opening looks, in nanoseconds.
const DRAINED_STEP_NS: Nanos = 20_000_000;

/// Opens a device that a volume or an array of this process may have had until a moment ago.
pub(super) async fn open_drained(handle: &Handle, device: &DeviceSpec) -> ControlResult<Leaf> {
    let late_ns = handle.now() + DRAINED_NS;
    loop {
        match open_once(handle, device).await? {
            Err(OpenError::Undrained(_)) if handle.now() < late_ns => {
                handle.sleep(DRAINED_STEP_NS).await;
            }
            opened => return opened.map_err(ControlError::from_error),
        }
    }
}

/// Opens a device that is only read; a member of a read-only array keeps in memory what is written to it.
pub(super) async fn open_read_only(handle: &Handle, device: &DeviceSpec) -> ControlResult<Leaf> {
    let opened = answered(handle, device, opening::open_read_only(handle, device)).await??;
    opened.map_err(ControlError::from_error)
}

pub(super) async fn open_all(
    handle: &Handle,
    devices: &[DeviceSpec],
) -> ControlResult<(Vec<Leaf>, Vec<KnownDevice>)> {
    let mut leaves = Vec::with_capacity(devices.len());
    let mut known = Vec::with_capacity(devices.len());
    for device in devices {
        let leaf = open_leaf(handle, device).await?;
        known.push(KnownDevice::of(device, &leaf));
        leaves.push(leaf);
    }
    Ok((leaves, known))
}

/// For so long a device may take to answer what a command asks it for, in nanoseconds. As long as the
/// kernel waits before it tries again: a disk that spins up has answered.
const ANSWER_NS: Nanos = 30_000_000_000;

/// The answer of a device, or an error when none comes: the command ends, whatever the drive does.
pub(super) async fn answered<T>(
    handle: &Handle,
    device: &DeviceSpec,
    asked: impl Future<Output = T>,
) -> ControlResult<T> {
    handle.timeout(ANSWER_NS, asked).await.map_err(|()| {
        let seconds = ANSWER_NS / 1_000_000_000;
        ControlError::failed(format!("{device} has not answered for {seconds} s"))
    })
}

/// What the kernel says of the device of a member that is lost; empty when nothing.
pub(super) fn trouble_of(state: MemberState, known: Option<&KnownDevice>) -> &'static str {
    let path = known.filter(|_| state == MemberState::Lost).and_then(|it| it.device.path());
    let is_protected =
        |path: &Path| WriteProtection::of_block_device(&Machine::real(), path).is_some();
    if path.is_some_and(is_protected) { "write-protected" } else { "" }
}
