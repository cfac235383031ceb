//! Labels of devices that are not open: read, written and erased.

use voltier_array::{Array, DeviceError, read_spare_label, wipe_superblocks, write_spare_label};
use voltier_block::BlockDevice;
use voltier_control::engine::{CacheLabel, JournalDeviceLabel, Labels, MemberLabel, SpareOwner};
use voltier_control::{ControlError, ControlResult, DeviceSpec, Identity};
use voltier_drive::OpenError;
use voltier_ring::Handle;
use voltier_volume::{Cache, Drive, Leaf, OpenError as CacheError};

use crate::core_engine::CoreEngine;
use crate::drives::{answered, open_leaf, open_once, open_read_only};
use crate::table;

impl Labels for CoreEngine {
    fn label_of(&self, device: &DeviceSpec) -> ControlResult<Option<MemberLabel>> {
        let device = device.clone();
        self.ways[0].call(move |handle| async move {
            let leaf = open_for_label(&handle, &device).await?;
            let found = answered(&handle, &device, Array::examine(&leaf)).await?;
            let found = found.map_err(|error| unreadable(&device, &error))?;
            Ok(found.map(MemberLabel::from))
        })
    }

    fn journal_label_of(&self, device: &DeviceSpec) -> ControlResult<Option<JournalDeviceLabel>> {
        let device = device.clone();
        self.ways[0].call(move |handle| async move {
            let leaf = open_for_label(&handle, &device).await?;
            let found = answered(&handle, &device, Array::examine_journal(&leaf)).await?;
            let found = found.map_err(|error| unreadable(&device, &error))?;
            Ok(found.map(|it| JournalDeviceLabel { array: Identity(it.array), name: it.name }))
        })
    }

    fn spare_label_of(&self, device: &DeviceSpec) -> ControlResult<Option<SpareOwner>> {
        let device = device.clone();
        self.ways[0].call(move |handle| async move {
            let leaf = open_for_label(&handle, &device).await?;
            let found = answered(&handle, &device, read_spare_label(&leaf)).await?;
            let found = found.map_err(|error| unreadable(&device, &error))?;
            Ok(found.map(|it| SpareOwner { owner: Identity(it.owner), name: it.name }))
        })
    }

    fn label_spare(
        &self,
        device: &DeviceSpec,
        label: &SpareOwner,
        wipe: bool,
    ) -> ControlResult<()> {
        let (device, label) = (device.clone(), label.clone());
        self.ways[0].call(move |handle| async move {
            let leaf = open_leaf(&handle, &device).await?;
            let SpareOwner { owner, name } = label;
            let label = voltier_array::SpareLabel { owner: owner.0, name, device_sectors: 0 };
            let written = answered(&handle, &device, write_spare_label(&leaf, label, wipe)).await?;
            written.map_err(|error| {
                ControlError::failed(format!("writing the label of a spare to {device}: {error}"))
            })
        })
    }

    fn erase_label(&self, device: &DeviceSpec) -> ControlResult<()> {
        let device = device.clone();
        self.ways[0].call(move |handle| async move {
            let leaf = open_leaf(&handle, &device).await?;
            let erased = answered(&handle, &device, wipe_superblocks(&leaf)).await?;
            erased.map_err(|error| {
                ControlError::failed(format!("erasing the label of {device}: {error}"))
            })
        })
    }

    fn cache_label_of(&self, device: &DeviceSpec) -> ControlResult<Option<CacheLabel>> {
        let (core, device) = (self.core_of(Some(device)).unwrap_or(0), device.clone());
        self.ways[core].call(move |handle| async move {
            let (ssd, _fails) = table::open_ssd(&handle, &device).await?;
            let found = answered(&handle, &device, Cache::<Drive, Drive>::probe(&ssd)).await?;
            let found = found.map_err(|error| {
                let message = format!("{device}: {error}");
                match error {
                    CacheError::Unsupported { uuid, .. } => {
                        ControlError::unsupported_label(Identity(uuid), message)
                    }
                    CacheError::Disagree { is_labelled, .. } => {
                        ControlError::label_clash(is_labelled, message)
                    }
                    _ => ControlError::failed(message),
                }
            })?;
            let size_bytes = ssd.limits().bytes();
            Ok(found.map(|label| CacheLabel::of(label, size_bytes)))
        })
    }

    fn erase_cache_label(&self, device: &DeviceSpec) -> ControlResult<()> {
        let (core, device) = (self.core_of(Some(device)).unwrap_or(0), device.clone());
        self.ways[core].call(move |handle| async move {
            let (ssd, _fails) = table::open_ssd(&handle, &device).await?;
            let erased = answered(&handle, &device, Cache::<Drive, Drive>::erase(&ssd)).await?;
            erased.map_err(|error| {
                ControlError::failed(format!(
                    "erasing the superblock of the cache on {device}: {error}"
                ))
            })
        })
    }
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
