//! Devices of a core: opening a drive by its specification, and reading or erasing the label on one.

use std::future::Future;
use std::path::Path;

use voltier_array::{
    Array, DeviceError, MemberState, read_spare_label, wipe_superblocks, write_spare_label,
};
use voltier_block::{BlockDevice, Nanos};
use voltier_control::engine::{JournalDeviceLabel, MemberLabel, SpareOwner};
use voltier_control::safety::{Machine, WriteProtection};
use voltier_control::{ControlError, ControlResult, DeviceSpec, Identity};
use voltier_drive::OpenError;
use voltier_ring::Handle;
use voltier_volume::Leaf;

use crate::opening;

/// A device of an array.
#[derive(Clone)]
pub(super) struct KnownDevice {
    pub(super) device: DeviceSpec,
    pub(super) size_bytes: u64,
}

/// Opens a device, on a thread of its own.
pub(super) async fn open_leaf(handle: &Handle, device: &DeviceSpec) -> ControlResult<Leaf> {
    open_once(handle, device).await?.map_err(ControlError::from_error)
}

async fn open_once(handle: &Handle, device: &DeviceSpec) -> ControlResult<Result<Leaf, OpenError>> {
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

/// Opens a device whose label is to be read: also one that takes no writes.
async fn open_for_label(handle: &Handle, device: &DeviceSpec) -> ControlResult<Leaf> {
    match open_once(handle, device).await? {
        Err(OpenError::ReadOnly(_) | OpenError::Permission(_)) => {
            open_read_only(handle, device).await
        }
        opened => opened.map_err(ControlError::from_error),
    }
}

pub(super) async fn open_all(
    handle: &Handle,
    devices: &[DeviceSpec],
) -> ControlResult<(Vec<Leaf>, Vec<KnownDevice>)> {
    let mut leaves = Vec::with_capacity(devices.len());
    let mut known = Vec::with_capacity(devices.len());
    for device in devices {
        let leaf = open_leaf(handle, device).await?;
        known.push(KnownDevice { device: device.clone(), size_bytes: leaf.limits().bytes() });
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

/// Why no label of a device can be read. One that a newer program can read says which array it is of.
fn unreadable(device: &DeviceSpec, error: &DeviceError) -> ControlError {
    let message = format!("{device}: {error}");
    match error {
        DeviceError::Unsupported { array, .. } => {
            ControlError::unsupported_label(Identity(*array), message)
        }
        // It may get its size back.
        DeviceError::Truncated { .. } => ControlError::not_now(message),
        DeviceError::Disagree { is_labelled, .. } => {
            ControlError::label_clash(*is_labelled, message)
        }
        _ => ControlError::failed(message),
    }
}

/// The facts in the superblock of a device.
pub(super) async fn label_of(
    handle: Handle,
    device: DeviceSpec,
) -> ControlResult<Option<MemberLabel>> {
    let leaf = open_for_label(&handle, &device).await?;
    let found = answered(&handle, &device, Array::examine(&leaf)).await?;
    let found = found.map_err(|error| unreadable(&device, &error))?;
    Ok(found.map(MemberLabel::from))
}

/// The label of a device, if it has a journal.
pub(super) async fn journal_label_of(
    handle: Handle,
    device: DeviceSpec,
) -> ControlResult<Option<JournalDeviceLabel>> {
    let leaf = open_for_label(&handle, &device).await?;
    let found = answered(&handle, &device, Array::examine_journal(&leaf)).await?;
    let found = found.map_err(|error| unreadable(&device, &error))?;
    Ok(found.map(|it| JournalDeviceLabel { array: Identity(it.array), name: it.name }))
}

/// The label of a device, if it waits as a spare.
pub(super) async fn spare_label_of(
    handle: Handle,
    device: DeviceSpec,
) -> ControlResult<Option<SpareOwner>> {
    let leaf = open_for_label(&handle, &device).await?;
    let found = answered(&handle, &device, read_spare_label(&leaf)).await?;
    let found = found.map_err(|error| unreadable(&device, &error))?;
    Ok(found.map(|it| SpareOwner { owner: Identity(it.owner), name: it.name }))
}

/// Makes a spare of a device.
pub(super) async fn label_spare(
    handle: Handle,
    device: DeviceSpec,
    label: SpareOwner,
    wipe: bool,
) -> ControlResult<()> {
    let leaf = open_leaf(&handle, &device).await?;
    let SpareOwner { owner, name } = label;
    let label = voltier_array::SpareLabel { owner: owner.0, name, device_sectors: 0 };
    let written = answered(&handle, &device, write_spare_label(&leaf, label, wipe)).await?;
    written.map_err(|error| {
        ControlError::failed(format!("writing the label of a spare to {device}: {error}"))
    })
}

/// Overwrites both copies of a superblock.
pub(super) async fn erase_label(handle: Handle, device: DeviceSpec) -> ControlResult<()> {
    let leaf = open_leaf(&handle, &device).await?;
    let erased = answered(&handle, &device, wipe_superblocks(&leaf)).await?;
    erased.map_err(|error| ControlError::failed(format!("erasing the label of {device}: {error}")))
}

/// What the kernel says of the device of a member that is lost; empty when nothing.
pub(super) fn trouble_of(state: MemberState, known: Option<&KnownDevice>) -> &'static str {
    let path = known.filter(|_| state == MemberState::Lost).and_then(|it| it.device.path());
    let is_protected =
        |path: &Path| WriteProtection::of_block_device(&Machine::real(), path).is_some();
    if path.is_some_and(is_protected) { "write-protected" } else { "" }
}
