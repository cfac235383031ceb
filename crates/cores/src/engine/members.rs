//! Members of open arrays that fail, are replaced or are added; spares, journals and background tasks.

use std::rc::Rc;

use voltier_array::{Array, BackgroundTask, MemberIndex, Replacement};
use voltier_block::{BlockDevice, Nanos};
use voltier_control::engine::{Members, Replaced};
use voltier_control::protocol::{Growth, Repair};
use voltier_control::{
    ArrayName, ArraySettings, ControlError, ControlResult, DeviceSpec, Identity, Memory,
};
use voltier_ring::Handle;
use voltier_volume::Leaf;

use crate::assemble::{note_blocks, promised};
use crate::core_engine::CoreEngine;
use crate::drives::{KnownDevice, answered, open_all, open_leaf};
use crate::journals;
use crate::table::{OpenArray, PendingMember};

impl Members for CoreEngine {
    fn fail_member(&self, name: &ArrayName, place: u32) -> ControlResult<bool> {
        let (own, member) = (name.clone(), MemberIndex(place as usize));
        self.ask_array(name, move |handle, open| async move {
            let array = &open.array;
            let device = open.name_of(member.0);
            if !array.is_online(member) {
                return Err(ControlError::failed(format!(
                    "{device} is out of service in {own} already"
                )));
            }
            let refused = |error| ControlError::failed(format!("{device} stays in {own}: {error}"));
            array.fail(member).map_err(refused)?;
            match handle.timeout(RECORD_NS, array.flush()).await {
                Ok(written) => written.map(|()| true).map_err(|error| {
                    ControlError::failed(format!(
                        "{device} is out of service; recording that: {error}"
                    ))
                }),
                Err(()) => Ok(false),
            }
        })
    }

    fn replace_member(
        &self,
        name: &ArrayName,
        place: u32,
        device: &DeviceSpec,
    ) -> ControlResult<Replaced> {
        let (own, place, device) = (name.clone(), MemberIndex(place as usize), device.clone());
        self.call_array(name, move |handle, open| async move {
            let leaf = open_for(&handle, &open, &device).await?;
            // The label may say anything: the array asks for it again, and waits for longer.
            let _ = answered(&handle, &device, Array::examine(&leaf)).await?;
            let known = KnownDevice::of(&device, &leaf);
            let uuid = Identity::random()?.0;
            let replaced = open.array.replace(place, leaf, uuid).await;
            let replaced = replaced.map_err(|error| {
                ControlError::failed(format!("{device} cannot be added to {own}: {error}"))
            })?;
            Ok(match replaced {
                Replacement::Successor => {
                    let member = PendingMember { uuid, known, is_spare: false };
                    open.pending.borrow_mut().push(member);
                    Replaced::Copy
                }
                Replacement::Rebuild | Replacement::Return => {
                    open.put(place.0, known);
                    if replaced == Replacement::Return {
                        Replaced::Return
                    } else {
                        Replaced::Rebuild
                    }
                }
            })
        })
    }

    fn restore_member(
        &self,
        name: &ArrayName,
        place: u32,
        device: &DeviceSpec,
    ) -> ControlResult<bool> {
        let (own, place, device) = (name.clone(), MemberIndex(place as usize), device.clone());
        self.call_array(name, move |handle, open| async move {
            let leaf = open_for(&handle, &open, &device).await?;
            let known = KnownDevice::of(&device, &leaf);
            let is_back = open.array.restore_member(place, leaf).await;
            let is_back = is_back.map_err(|error| {
                ControlError::failed(format!("{device} cannot return to {own}: {error}"))
            })?;
            if is_back {
                open.put(place.0, known);
            }
            Ok(is_back)
        })
    }

    fn add_spare(&self, name: &ArrayName, device: &DeviceSpec) -> ControlResult<()> {
        let (own, device) = (name.clone(), device.clone());
        self.call_array(name, move |handle, open| async move {
            let leaf = open_for(&handle, &open, &device).await?;
            let known = KnownDevice::of(&device, &leaf);
            let uuid = Identity::random()?.0;
            open.array.add_spare(leaf, uuid).map_err(|error| {
                ControlError::failed(format!("{device} cannot be a spare of {own}: {error}"))
            })?;
            open.pending.borrow_mut().push(PendingMember { uuid, known, is_spare: true });
            Ok(())
        })
    }

    fn remove_spare(&self, name: &ArrayName, device: &DeviceSpec) -> ControlResult<bool> {
        let (own, device) = (name.clone(), device.clone());
        self.ask_array(name, move |_, open| async move {
            open.place_pending();
            let is_it = |known: &Option<KnownDevice>| {
                known.as_ref().is_some_and(|known| known.device == device)
            };
            if let Some(place) = open.devices.borrow().iter().position(is_it) {
                return Err(ControlError::failed(format!(
                    "{device} is member {place} of {own} by now; `voltier array replace {own} {place} DEV` \
                     puts another drive there"
                )));
            }
            let mut pending = open.pending.borrow_mut();
            let is_it = |it: &PendingMember| it.is_spare && it.known.device == device;
            let Some(at) = pending.iter().position(is_it) else { return Ok(false) };
            open.array.remove_spare(pending[at].uuid).map_err(|error| {
                ControlError::failed(format!("{device} cannot leave {own}: {error}"))
            })?;
            pending.remove(at);
            Ok(true)
        })
    }

    fn check_spare(&self, name: &ArrayName, device: &DeviceSpec) -> ControlResult<()> {
        let (own, device) = (name.clone(), device.clone());
        self.call_array(name, move |handle, open| async move {
            let leaf = open_for(&handle, &open, &device).await?;
            open.array.check_spare(&leaf).map_err(|error| {
                ControlError::failed(format!("{device} cannot be a spare of {own}: {error}"))
            })
        })
    }

    fn grow_array(
        &self,
        name: &ArrayName,
        by: Growth,
        devices: &[DeviceSpec],
    ) -> ControlResult<()> {
        let memory = self.room_for(devices.iter())?;
        let devices = devices.to_vec();
        self.call_array(name, move |handle, open| grow(handle, open, by, devices, memory))
    }

    fn set_journal(&self, name: &ArrayName, device: Option<&DeviceSpec>) -> ControlResult<()> {
        let (own, new) = (name.clone(), device.cloned());
        self.call_array(name, move |handle, open| async move {
            let (journal, known) =
                journals::open_device(&handle, new.as_ref(), open.array.limits().block_bytes)
                    .await?
                    .unzip();
            let moved = open.array.set_journal(journal).await;
            moved.map_err(|error| {
                let what =
                    new.map_or_else(|| "the journal".to_owned(), |device| device.to_string());
                ControlError::failed(format!("{what} cannot be moved to {own}: {error}"))
            })?;
            open.journal.replace(known);
            Ok(())
        })?;
        if let Some(home) = self.homes.find_array(name) {
            home.record.get().journal = device.cloned();
        }
        Ok(())
    }

    fn start_rebuild(&self, name: &ArrayName) -> ControlResult<()> {
        self.ask_array(name, |_, open| async move {
            open.array.rebuild().map_err(ControlError::from_error)
        })
    }

    fn start_scrub(&self, name: &ArrayName, repair: Repair) -> ControlResult<()> {
        self.ask_array(name, move |_, open| async move {
            open.array.scrub(repair.into()).map_err(ControlError::from_error)?;
            open.told.scrub_begins();
            Ok(())
        })
    }

    fn configure_array(&self, name: &ArrayName, settings: &ArraySettings) {
        let settings = settings.clone();
        if let Some(home) = self.homes.find_array(name) {
            home.record.get().settings = settings.clone();
        }
        // An array that is not open has nothing to set.
        let _ = self.ask_array(name, move |_, open| async move {
            let array = &open.array;
            array.set_health_policy(settings.health.for_array());
            array.set_merge_policy(settings.merge.for_array());
            array.set_pace(BackgroundTask::Rebuild, settings.rebuild.for_array());
            array.set_pace(BackgroundTask::Scrub, settings.scrub.for_array());
            Ok(())
        });
    }
}

/// For so long a command waits until the loss of a member is on record, in nanoseconds: the others may be
/// waited for themselves.
const RECORD_NS: Nanos = 500_000_000;

/// Opens a device that is to come to an array. Its sectors may be larger than those of the others.
async fn open_for(handle: &Handle, open: &OpenArray, device: &DeviceSpec) -> ControlResult<Leaf> {
    let leaf = open_leaf(handle, device).await?;
    let (has, array) = (leaf.limits().block_bytes, open.array.limits().block_bytes);
    if has > array {
        note_blocks(open.name(), device, has, array);
    }
    Ok(leaf.for_blocks_of(array))
}

/// Adds a parity row on these devices, or one of them for capacity.
async fn grow(
    handle: Handle,
    open: Rc<OpenArray>,
    by: Growth,
    devices: Vec<DeviceSpec>,
    memory: Memory,
) -> ControlResult<()> {
    let name = open.name();
    // A larger array stands beside the one it takes over from for a moment.
    let needed = voltier_array::memory_with(&open.array, devices.len());
    let promise = promised(&memory, needed, name)?;
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
