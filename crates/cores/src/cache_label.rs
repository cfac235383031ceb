//! The label of a cache that is not open: read, and erased.

use voltier_block::BlockDevice;
use voltier_control::engine::CacheLabel;
use voltier_control::{ControlError, ControlResult, DeviceSpec, Identity};
use voltier_ring::Handle;
use voltier_volume::{Cache, Drive, OpenError};

use crate::drives::answered;
use crate::table;

/// The facts in the superblock of the cache on a device, if there is one.
pub(super) async fn cache_label_of(
    handle: Handle,
    device: DeviceSpec,
) -> ControlResult<Option<CacheLabel>> {
    let (ssd, _fails) = table::open_ssd(&handle, &device).await?;
    let found = answered(&handle, &device, Cache::<Drive, Drive>::probe(&ssd)).await?;
    let found = found.map_err(|error| {
        let message = format!("{device}: {error}");
        match error {
            OpenError::Unsupported { uuid, .. } => {
                ControlError::unsupported_label(Identity(uuid), message)
            }
            OpenError::Disagree { is_labelled, .. } => {
                ControlError::label_clash(is_labelled, message)
            }
            _ => ControlError::failed(message),
        }
    })?;
    let size_bytes = ssd.limits().bytes();
    Ok(found.map(|label| CacheLabel::of(label, size_bytes)))
}

/// Erases the superblock of the cache on a device that is not open.
pub(super) async fn erase_cache_label(handle: Handle, device: DeviceSpec) -> ControlResult<()> {
    let (ssd, _fails) = table::open_ssd(&handle, &device).await?;
    let erased = answered(&handle, &device, Cache::<Drive, Drive>::erase(&ssd)).await?;
    erased.map_err(|error| {
        ControlError::failed(format!("erasing the superblock of the cache on {device}: {error}"))
    })
}
