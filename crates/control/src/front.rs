//! Putting a recorded cache in front of a volume, whatever the drives are: what the cores do with
//! real ones and the simulator with its own.

use voltier_block::BlockDevice;
use voltier_volume::{OpenOptions, Opened, Volume};

use crate::engine::CacheStart;
use crate::error::{ControlError, ControlResult};
use crate::registry::CacheRecord;
use crate::settings::Settings;

/// Opens or makes the cache of a record in front of a volume; what was found.
///
/// # Errors
/// One line for the user; the volume is then as before.
pub async fn put_in_front<D: BlockDevice>(
    volume: &Volume<D>,
    ssd: D,
    cache: &CacheRecord,
    start: CacheStart,
) -> ControlResult<Opened> {
    let uuid = cache.uuid.0;
    let [seed, _] =
        [0, 8].map(|at| u64::from_le_bytes(*uuid[at..].first_chunk().expect("16 bytes")));
    let options = OpenOptions {
        uuid: Some(uuid),
        generation_min: cache.generation,
        settings: cache.settings.for_cache(),
        seed,
    };
    let opened = match start {
        CacheStart::Load => volume.attach_existing(ssd, options).await,
        CacheStart::Format => {
            volume.attach_new(ssd, &cache.settings.for_format(uuid)?, options).await
        }
    };
    let opened = opened
        .map_err(|error| ControlError::failed(format!("the cache on {}: {error}", cache.device)))?;
    if let Some(cached) = volume.cache() {
        // Changed while it served, and the daemon was killed before the SSD knew.
        cached.set_policy(cache.settings.policy);
    }
    Ok(opened)
}

/// Gives the cache of a volume other settings while it serves.
///
/// # Errors
/// The old settings hold then.
pub async fn configure<D: BlockDevice>(
    volume: &Volume<D>,
    settings: &Settings,
) -> ControlResult<()> {
    volume.configure(settings.for_cache()).map_err(ControlError::failed)?;
    if let Some(cache) = volume.cache() {
        cache.set_policy(settings.policy);
    }
    Ok(())
}
