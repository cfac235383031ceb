//! The caches of records, for the data path: what is to be put in front of a volume, and why it was not.

use voltier_block::SectorRange;
use voltier_cache::{MemoryGate, Owner, WallClock};
use voltier_volume::{
    ChangeError, Front, OpenError, OpenOptions, OriginTrust, UnwritableSsd, VolumeError,
};

use crate::engine::CacheStart;
use crate::error::{ControlError, ControlResult};
use crate::records::{Identity, VolumeRecord};

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

/// What is to be put in front of the volume.
///
/// # Errors
/// When the record has no cache, or one that cannot be made.
pub fn front_of(
    record: &VolumeRecord,
    start: CacheStart,
    memory: MemoryGate,
) -> ControlResult<Front> {
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
        // The caller's, if it has one.
        wall_clock: WallClock::default(),
    };
    let is_new = start == CacheStart::Format;
    let format = is_new.then(|| cache.settings.for_format(uuid)).transpose()?;
    Ok(Front { format, options, policy: cache.settings.policy })
}

/// Why the cache could not be put in front of the volume: one line for the user.
pub fn front_refused(record: &VolumeRecord, start: CacheStart, error: VolumeError) -> ControlError {
    let Some(cache) = &record.cache else { return ControlError::from_error(error) };
    let ways_on = ways_on(&error, record, start);
    let message = format!("the cache on {}: {error}{ways_on}", cache.device);
    match error {
        // Another cache on the SSD says nothing of the data of this volume.
        VolumeError::Open(OpenError::Unsupported { uuid, .. }) if uuid == cache.uuid.0 => {
            ControlError::unsupported_label(cache.uuid, message)
        }
        VolumeError::Open(
            OpenError::NoRoom(_) | OpenError::Memory(_) | OpenError::OriginShrunk { .. },
        ) => ControlError::not_now(message),
        _ => ControlError::failed(message),
    }
}

/// Why an origin that is the SSD of this very record is not served: one line for the user.
pub fn changed_places(record: &VolumeRecord) -> ControlError {
    let (name, origin) = (&record.name, &record.origin);
    ControlError::failed(format!(
        "its backing disk {origin} holds the cache of {name}: the two devices have changed places; put \
         them back, then `voltier start {name}`"
    ))
}

impl From<ChangeError> for ControlError {
    fn from(error: ChangeError) -> Self {
        match error {
            ChangeError::Policy(..) => ControlError::not_now(error.to_string()),
            ChangeError::Settings(why) => ControlError::failed(why),
        }
    }
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
