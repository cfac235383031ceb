//! Putting a recorded cache in front of a volume, whatever the drives are. The cores do so with real
//! drives, and the simulator with its own.

use voltier_block::{DriveControl, SectorRange};
use voltier_cache::{MemoryGate, Owner};
use voltier_volume::{
    Cache, OpenError, OpenOptions, Opened, OriginTrust, UnwritableSsd, Volume, VolumeError,
};

use crate::engine::CacheStart;
use crate::error::{ControlError, ControlResult};
use crate::records::{Identity, VolumeRecord};
use crate::settings::Settings;

/// The seed of a cache, from its identity: of its dice, and of the choice of lines by which a start knows the
/// origin.
pub fn seed_of(uuid: &Identity) -> u64 {
    u64::from_le_bytes(*uuid.0.first_chunk().expect("16 bytes"))
}

/// The volume of a record, as the superblock of its cache names it.
fn owner_of(record: &VolumeRecord) -> Owner {
    let mark = record.origin_identity.as_ref().filter(|mark| mark.is_known());
    Owner {
        volume_uuid: record.uuid.0,
        volume: record.name.to_string(),
        origin_identity: mark.map(ToString::to_string).unwrap_or_default(),
        origin_path: record.origin.to_string(),
        ..Owner::default()
    }
}

/// Opens or makes the cache of a record in front of a volume; what was found.
///
/// # Errors
/// One line for the user; the volume is then as before.
pub async fn put_in_front<D: DriveControl>(
    volume: &Volume<D>,
    ssd: D,
    record: &VolumeRecord,
    start: CacheStart,
    memory: MemoryGate,
) -> ControlResult<Opened> {
    let Some(cache) = &record.cache else {
        return Err(ControlError::failed(format!("{} has no cache to open", record.name)));
    };
    let uuid = cache.uuid.0;
    let options = OpenOptions {
        uuid: Some(uuid),
        generation_min: cache.generation,
        sequence_min: cache.sequence,
        settings: cache.settings.for_cache(),
        seed: seed_of(&cache.uuid),
        unwritable: match start {
            // An SSD that was given up for that may say that it is dirty.
            CacheStart::Format | CacheStart::Import | CacheStart::ImportGiven => {
                UnwritableSsd::Refuse
            }
            _ if cache.evacuating => UnwritableSsd::EvacuateFurther,
            CacheStart::Load | CacheStart::LoadUnmarked | CacheStart::Adopt => {
                UnwritableSsd::Evacuate
            }
        },
        origin: match start {
            CacheStart::Adopt => OriginTrust::AsFound,
            CacheStart::Import => OriginTrust::Unchanged,
            CacheStart::ImportGiven => OriginTrust::Unproven,
            CacheStart::LoadUnmarked => OriginTrust::Unmarked,
            CacheStart::Format | CacheStart::Load => OriginTrust::AsBefore,
        },
        owner: Some(owner_of(record)),
        passed: match start {
            CacheStart::Format => Vec::new(),
            _ => cache
                .passed
                .iter()
                .map(|it| SectorRange::from_bytes(it.offset_bytes, it.length_bytes))
                .collect(),
        },
        memory,
    };
    let opened = match start {
        CacheStart::Format => {
            volume.attach_new(ssd, &cache.settings.for_format(uuid)?, options).await
        }
        CacheStart::Load
        | CacheStart::LoadUnmarked
        | CacheStart::Import
        | CacheStart::ImportGiven
        | CacheStart::Adopt => volume.attach_existing(ssd, options).await,
    };
    let opened = opened.map_err(|error| {
        let ways_on = ways_on(&error, record, start);
        let message = format!("the cache on {}: {error}{ways_on}", cache.device);
        match error {
            // Another cache on the SSD says nothing of the data of this volume.
            VolumeError::Open(OpenError::Unsupported { uuid: found, .. }) if found == uuid => {
                ControlError::unsupported_label(cache.uuid, message)
            }
            VolumeError::Open(
                OpenError::NoRoom(_) | OpenError::Memory(_) | OpenError::OriginShrunk { .. },
            ) => ControlError::not_now(message),
            _ => ControlError::failed(message),
        }
    })?;
    // Changed while it served, and the daemon was killed before the SSD knew.
    let policy = cache.settings.policy;
    if let Some(cached) = volume.cache()
        && let Err(error) = cached.set_policy(policy)
    {
        let before = cached.status().policy;
        tracing::warn!("{}: {error} for the policy {policy}: {before} goes on", record.name);
    }
    Ok(opened)
}

/// The ways on of a user whose cache does not know the origin, or whose SSD is not the right one; empty if
/// that is not the error.
fn ways_on(error: &VolumeError, owner: &VolumeRecord, start: CacheStart) -> String {
    let is_dirty = owner.cache.as_ref().is_some_and(|cache| cache.maybe_dirty);
    let is_start = matches!(start, CacheStart::Load | CacheStart::LoadUnmarked | CacheStart::Adopt);
    if is_dirty
        && is_start
        && let VolumeError::Open(
            OpenError::Stale { .. } | OpenError::Foreign { .. } | OpenError::NotACache,
        ) = error
    {
        return format!(
            "; connect the SSD that was in use last, and the volume is served; a copy of it, under any path: \
             `voltier set {} ssd=DEV`",
            owner.name
        );
    }
    let (VolumeError::Open(OpenError::OriginChanged { .. })
    | VolumeError::Open(OpenError::ForeignOrigin { .. })
    | VolumeError::Open(OpenError::UnprovenOrigin { .. })) = error
    else {
        return String::new();
    };
    let VolumeRecord { name, origin, .. } = owner;
    if matches!(start, CacheStart::Import | CacheStart::ImportGiven) {
        return format!(
            "; connect the right drive, or, to accept what {origin} holds now, add \
             --changed-origin: the dirty lines are written over it"
        );
    }
    format!(
        "; connect the right drive as {origin}, then `voltier start {name}`, or accept what \
         {origin} holds now with `voltier set {name} hdd={origin}`, or give those lines up with \
         `voltier detach {name} --no-flush`"
    )
}

/// Looks whether the origin of a record is not the SSD of that very record. Voltier would serve two
/// devices that have changed places, and write to them, as the data they are not.
///
/// # Errors
/// One line for the user.
pub async fn check_origin<D: DriveControl>(
    volume: &Volume<D>,
    record: &VolumeRecord,
) -> ControlResult<()> {
    let Some(cache) = &record.cache else { return Ok(()) };
    let is_own = match Cache::<D, D>::probe(volume.origin()).await {
        Ok(found) => found.is_some_and(|label| label.uuid == cache.uuid.0),
        Err(OpenError::Unsupported { uuid, .. }) => uuid == cache.uuid.0,
        // Any other content is its clients' business.
        Err(_) => false,
    };
    if is_own {
        return Err(ControlError::failed(format!(
            "its backing disk {} holds the cache of {}: the two devices have changed places; put \
             them back, then `voltier start {}`",
            record.origin, record.name, record.name
        )));
    }
    Ok(())
}

/// Gives the cache of a volume other settings while it serves.
///
/// # Errors
/// The old settings hold then.
pub async fn configure<D: DriveControl>(
    volume: &Volume<D>,
    settings: &Settings,
) -> ControlResult<()> {
    let before = volume.cache().map(|cache| cache.status().policy);
    if let Some(cache) = volume.cache() {
        cache.set_policy(settings.policy).map_err(|error| {
            let policy = settings.policy;
            ControlError::not_now(format!(
                "{error} for the policy {policy}; free some, or keep the policy that it has"
            ))
        })?;
    }
    let configured = volume.configure(settings.for_cache()).await.map_err(ControlError::failed);
    if let (Err(_), Some(cache), Some(before)) = (&configured, volume.cache(), before) {
        // Memory for the one of before was there a moment ago.
        let _ = cache.set_policy(before);
    }
    configured
}
