//! Members of an array of this core that fail, are replaced or are added; spares, and background tasks.

use voltier_array::{Array, BackgroundTask, MemberIndex, Replacement};
use voltier_block::{BlockDevice, Buf, Lba, Nanos};
use voltier_control::{
    ArrayLevel, ArrayName, ArraySettings, ControlError, ControlResult, DeviceSpec, Identity, Memory,
};
use voltier_ring::Handle;
use voltier_volume::Leaf;

use crate::array_news;
use crate::assemble::promised;
use crate::drives::{KnownDevice, answered, open_all, open_leaf};
use crate::loss::EventGate;
use crate::table::{self, OpenArray, PendingMember};
use voltier_control::engine::{ArrayDevices, Replaced};
use voltier_control::protocol::{Growth, Repair};
use voltier_control::safety::HEAD_BYTES;

/// The first bytes of an array.
pub(super) async fn head(name: ArrayName) -> ControlResult<Vec<u8>> {
    let array = table::find(&name)?.array.clone();
    let bytes = array.limits().bytes().min(HEAD_BYTES as u64) as usize;
    let read = array.read(Lba(0), Buf::new(bytes)).await;
    let read = read.map_err(|error| ControlError::failed(format!("reading array:{name}: {error}")));
    read.map(|buf| buf.to_vec())
}

/// For so long a command waits until the loss of a member is on record, in nanoseconds: the others may be
/// waited for themselves.
const RECORD_NS: Nanos = 500_000_000;

/// Takes the member on a device out of service. Whether the others say so durably already: else they do when
/// they answer, and acknowledgements wait for that.
pub(super) async fn fail(
    handle: Handle,
    name: ArrayName,
    member: MemberIndex,
) -> ControlResult<bool> {
    let open = table::find(&name)?;
    let array = &open.array;
    let device = open.name_of(member.0);
    if !array.is_online(member) {
        return Err(ControlError::failed(format!("{device} is out of service in {name} already")));
    }
    let refused = |error| ControlError::failed(format!("{device} stays in {name}: {error}"));
    array.fail(member).map_err(refused)?;
    match handle.timeout(RECORD_NS, array.flush()).await {
        Ok(written) => written.map(|()| true).map_err(|error| {
            ControlError::failed(format!("{device} is out of service; recording that: {error}"))
        }),
        Err(()) => Ok(false),
    }
}

/// Opens a device that is to come to an array. Its sectors may be larger than those of the others.
async fn open_for(handle: &Handle, open: &OpenArray, device: &DeviceSpec) -> ControlResult<Leaf> {
    let leaf = open_leaf(handle, device).await?;
    let (has, array) = (leaf.limits().block_bytes, open.array.limits().block_bytes);
    if has > array {
        note_blocks(open.name(), device, has, array);
    }
    Ok(leaf.for_blocks_of(array))
}

/// Says in the log what larger sectors than those of the others cost.
pub(super) fn note_blocks(name: &ArrayName, device: &DeviceSpec, has: u32, array: u32) {
    tracing::warn!(
        "array {name}: {device} has sectors of {has} bytes, and the array has {array}: a write that is no \
         multiple of {has} bytes costs a read more"
    );
}

/// Puts a device in the place of a member.
pub(super) async fn replace(
    handle: Handle,
    name: ArrayName,
    place: MemberIndex,
    device: DeviceSpec,
) -> ControlResult<Replaced> {
    let open = table::find(&name)?;
    let leaf = open_for(&handle, &open, &device).await?;
    // The label may say anything: the array asks for it again, and waits for longer.
    let _ = answered(&handle, &device, Array::examine(&leaf)).await?;
    let known = KnownDevice { device: device.clone(), size_bytes: leaf.limits().bytes() };
    let uuid = Identity::random()?.0;
    let replaced = open.array.replace(place, leaf, uuid).await;
    let replaced = replaced.map_err(|error| {
        ControlError::failed(format!("{device} cannot be added to {name}: {error}"))
    })?;
    Ok(match replaced {
        Replacement::Successor => {
            let member = PendingMember { uuid, known, is_spare: false };
            open.pending.borrow_mut().push(member);
            Replaced::Copy
        }
        Replacement::Rebuild | Replacement::Return => {
            open.put(place.0, known);
            if replaced == Replacement::Return { Replaced::Return } else { Replaced::Rebuild }
        }
    })
}

/// Puts a lost member back whose device is there again; `false` of any other device.
pub(super) async fn restore_member(
    handle: Handle,
    name: ArrayName,
    place: MemberIndex,
    device: DeviceSpec,
) -> ControlResult<bool> {
    let open = table::find(&name)?;
    let leaf = open_for(&handle, &open, &device).await?;
    let known = KnownDevice { device: device.clone(), size_bytes: leaf.limits().bytes() };
    let is_back = open.array.restore_member(place, leaf).await;
    let is_back = is_back.map_err(|error| {
        ControlError::failed(format!("{device} cannot return to {name}: {error}"))
    })?;
    if is_back {
        open.put(place.0, known);
    }
    Ok(is_back)
}

/// Adds a parity row on these devices, or one of them for capacity.
pub(super) async fn grow(
    handle: Handle,
    name: ArrayName,
    by: Growth,
    devices: Vec<DeviceSpec>,
    memory: Memory,
) -> ControlResult<()> {
    let open = table::find(&name)?;
    // A larger array stands beside the one it takes over from for a moment.
    let needed = voltier_array::memory_with(&open.array, devices.len());
    let promise = promised(&memory, needed, &name)?;
    let (leaves, known) = open_all(&handle, &devices).await?;
    let block_bytes = open.array.limits().block_bytes;
    let mut leaves: Vec<Leaf> =
        leaves.into_iter().map(|leaf| leaf.for_blocks_of(block_bytes)).collect();
    let uuids = devices.iter().map(|_| Identity::random().map(|uuid| uuid.0));
    let uuids: Vec<_> = uuids.collect::<ControlResult<_>>()?;
    let grown = match (by, leaves.len()) {
        (Growth::Capacity, 1) => open.array.grow_capacity(leaves.remove(0), uuids[0]).await,
        _ => open.array.grow(leaves, &uuids).await,
    };
    if grown.is_ok() {
        drop(promise);
        open.resident.memory.borrow_mut().change(needed);
    }
    let mut places = open.devices.borrow_mut();
    if open.array.geometry().member_count() > places.len() {
        places.extend(known.into_iter().map(Some));
    }
    grown.map_err(|error| {
        let told = error.to_string();
        let device = |at: usize| (format!("device {}: ", at + 1), format!("{}: ", devices[at]));
        let named = (0..devices.len()).map(device).find(|(number, _)| told.starts_with(number));
        let told = named.map_or(told.clone(), |(number, name)| told.replacen(&number, &name, 1));
        ControlError::failed(format!("{name} cannot grow: {told}"))
    })
}

/// Keeps a device for the next loss.
pub(super) async fn add_spare(
    handle: Handle,
    name: ArrayName,
    device: DeviceSpec,
) -> ControlResult<()> {
    let open = table::find(&name)?;
    let leaf = open_for(&handle, &open, &device).await?;
    let known = KnownDevice { device: device.clone(), size_bytes: leaf.limits().bytes() };
    let uuid = Identity::random()?.0;
    open.array.add_spare(leaf, uuid).map_err(|error| {
        ControlError::failed(format!("{device} cannot be a spare of {name}: {error}"))
    })?;
    open.pending.borrow_mut().push(PendingMember { uuid, known, is_spare: true });
    Ok(())
}

/// Starts a rebuild that was cut off.
pub(super) fn start_rebuild(name: &ArrayName) -> ControlResult<()> {
    table::find(name)?.array.rebuild().map_err(ControlError::from_error)
}

/// Starts a scrub.
pub(super) fn start_scrub(name: &ArrayName, repair: Repair) -> ControlResult<()> {
    let open = table::find(name)?;
    open.array.scrub(repair.into()).map_err(ControlError::from_error)?;
    open.told.scrub_begins();
    Ok(())
}

/// Whether a device suits as a spare.
pub(super) async fn check_spare(
    handle: Handle,
    name: ArrayName,
    device: DeviceSpec,
) -> ControlResult<()> {
    let open = table::find(&name)?;
    let leaf = open_for(&handle, &open, &device).await?;
    open.array.check_spare(&leaf).map_err(|error| {
        ControlError::failed(format!("{device} cannot be a spare of {name}: {error}"))
    })
}

/// Gives an array its settings.
pub(super) fn configure(name: &ArrayName, settings: &ArraySettings) -> ControlResult<()> {
    let array = &table::find(name)?.array;
    array.set_health_policy(settings.health.for_array());
    array.set_merge_policy(settings.merge.for_array());
    array.set_pace(BackgroundTask::Rebuild, settings.rebuild.for_array());
    array.set_pace(BackgroundTask::Scrub, settings.scrub.for_array());
    Ok(())
}

/// Wakes the control plane at changes of an array from now on, and has changes wait behind the gate.
pub(super) fn listen(handle: Handle, name: &ArrayName, gate: EventGate) -> ControlResult<()> {
    let (open, waker) = (table::find(name)?, gate.waker.clone());
    open.array.set_listener(move || waker());
    open.array.on_record(move |events| Box::pin(gate.clone().pass(handle.clone(), events)));
    Ok(())
}

/// The devices of an array now.
pub(super) fn devices(name: &ArrayName) -> ControlResult<ArrayDevices> {
    let open = table::find(name)?;
    open.place_pending();
    if open.devices.borrow().len() != open.array.geometry().member_count() {
        return Err(ControlError::failed(format!("{name} grows: the command says by what")));
    }
    let events = open.array.status().map_or(0, |status| status.event);
    let device = |known: &KnownDevice| known.device.clone();
    let members = open.devices.borrow().iter().map(|it| it.as_ref().map(device)).collect();
    let pending = open.pending.borrow();
    let of = |is_spare| {
        let those = pending.iter().filter(move |it| it.is_spare == is_spare);
        those.map(|it| device(&it.known)).collect()
    };
    let array = &open.array;
    let news = array_news::take(&open);
    Ok(ArrayDevices {
        level: ArrayLevel(array.geometry().level()),
        size_bytes: array.limits().bytes(),
        events,
        members,
        spares: of(true),
        incoming: of(false),
        spares_wanted: array.spares_wanted(),
        may_lose: open.may_lose(),
        lost: open.lost_places(),
        lost_too_many: open.lost_too_many(),
        news,
    })
}
