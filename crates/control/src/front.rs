//! Putting a recorded cache in front of a volume, whatever the drives are. The cores do so with real
//! drives, and the simulator with its own.

use voltier_block::BlockDevice;
use voltier_volume::{Cache, OpenOptions, Opened, UnwritableSsd, Volume};

use crate::engine::CacheStart;
use crate::error::{ControlError, ControlResult};
use crate::records::{CacheRecord, VolumeRecord};
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
        unwritable: match start {
            CacheStart::Format => UnwritableSsd::Refuse,
            CacheStart::Load if cache.evacuating => UnwritableSsd::EvacuateFurther,
            CacheStart::Load => UnwritableSsd::Evacuate,
        },
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

/// Looks whether the origin of a record is not the SSD of that very record. Voltier would serve two
/// devices that have changed places, and write to them, as the data they are not.
///
/// # Errors
/// One line for the user.
pub async fn check_origin<D: BlockDevice>(
    volume: &Volume<D>,
    record: &VolumeRecord,
) -> ControlResult<()> {
    let Some(cache) = &record.cache else { return Ok(()) };
    match Cache::<D, D>::probe(volume.origin()).await {
        Ok(Some(label)) if label.uuid == cache.uuid.0 => Err(ControlError::failed(format!(
            "its origin {} holds the cache of {}: the two devices have changed places; \
             put them back, then `voltier start {}`",
            record.origin, record.name, record.name
        ))),
        // Any other content is its clients' business.
        _ => Ok(()),
    }
}

/// Gives the cache of a volume other settings while it serves.
///
/// # Errors
/// The old settings hold then.
pub async fn configure<D: BlockDevice>(
    volume: &Volume<D>,
    settings: &Settings,
) -> ControlResult<()> {
    volume.configure(settings.for_cache()).await.map_err(ControlError::failed)?;
    if let Some(cache) = volume.cache() {
        cache.set_policy(settings.policy);
    }
    Ok(())
}
