//! Drives that a user names for a volume that is not served: another backing disk, or another SSD.
//!
//! A disk carries nothing of Voltier's, so the word of the user counts for what it holds. An SSD says which
//! cache it holds and how new that is, and is taken only if it is as new as the record.

use crate::engine::CacheLabel;
use crate::error::{ControlError, ControlResult};
use crate::name::VolumeName;
use crate::protocol::Response;
use crate::records::{CacheRecord, Desired, VolumeRecord};
use crate::safety::Role;
use crate::service::presence::absence::{Hindrance, Missing};
use crate::service::presence::admit::{Admitted, Beside};
use crate::service::presence::{admit, late, look, survey};
use crate::service::state::live::now;
use crate::service::state::turn::Turn;
use crate::service::volumes::{exports, in_use, show};
use crate::settings::SSD_KEY;
use crate::spec::DeviceSpec;

/// Takes a drive that the user names as one side of a volume. A volume that is stopped stays so.
pub(crate) fn take(
    turn: &mut Turn,
    name: &VolumeName,
    key: &str,
    device: DeviceSpec,
) -> ControlResult<Response> {
    let record = turn.record(name)?;
    if !turn.is_open(name) {
        in_use::is_unused(turn, &record, &format!("voltier stop {name} --now"))?;
        exports::end_kept(turn, &record, "it gets another drive");
    }
    if key == SSD_KEY {
        take_ssd(turn, &record, device)
    } else {
        take_origin(turn, &record, device)
    }
}

fn is_not_served(
    turn: &Turn,
    record: &VolumeRecord,
    side: &str,
    device: &DeviceSpec,
) -> ControlResult<()> {
    if !turn.is_open(&record.name) {
        return Ok(());
    }
    Err(ControlError::failed(format!(
        "{0} is served from {device}: its {side} can be changed only while it is not served; `voltier stop {0}` \
         first",
        record.name
    )))
}

/// Takes a drive as the origin. The user says that what the drive holds counts: as a copy, as the same drive
/// with another mark, or changed since. The cache goes on with that drive.
fn take_origin(
    turn: &mut Turn,
    record: &VolumeRecord,
    device: DeviceSpec,
) -> ControlResult<Response> {
    let name = &record.name;
    is_not_served(turn, record, "backing disk", &record.origin)?;
    if device.is_volatile() {
        return Err(ControlError::failed(format!(
            "{device} is empty at every start: it cannot hold the data of {name}; give the drive \
             that holds what its backing disk held"
        )));
    }
    let Admitted { size_bytes, mark } =
        admit::admit(turn, &device, Role::Origin, false, Beside::Cache(record))?;
    look::large_enough(&device, size_bytes, record.size_bytes, "backing disk")?;
    let taken = VolumeRecord { origin: device.clone(), origin_identity: mark, ..record.clone() };
    turn.adopted_origins.insert(name.clone());
    let opened = put_and_open(turn, record, taken, &device, "backing disk");
    if opened.is_err() {
        turn.adopted_origins.remove(name);
    }
    opened
}

/// Takes a drive as the SSD. Nothing on the drive is overwritten: the cache of the volume is on it, in its
/// newest state.
fn take_ssd(turn: &mut Turn, record: &VolumeRecord, device: DeviceSpec) -> ControlResult<Response> {
    let name = &record.name;
    let Some(cache) = &record.cache else {
        return Err(ControlError::failed(format!(
            "{name} has no cache; give it one with `voltier attach {name} -s {device}`"
        )));
    };
    is_not_served(turn, record, "SSD", &cache.device)?;
    if let Some(reason) = &cache.failed {
        return Err(ControlError::failed(format!(
            "the cache of {name} was given up, and no copy of it is used again: {reason}"
        )));
    }
    if device.is_volatile() {
        return Err(ControlError::failed(format!(
            "{device} is empty at every start: it cannot hold the cache of {name}; give the SSD, or a copy of it"
        )));
    }
    admit::admit_ssd_again(turn, &device, record)?;
    let label = current_label(turn, name, cache, &device)?;
    is_the_newest(turn, cache, &device, &label)?;
    let identity = admit::mark_of(turn, &device);
    let taken = CacheRecord { device: device.clone(), identity, ..cache.clone() };
    let taken = VolumeRecord { cache: Some(taken), ..record.clone() };
    put_and_open(turn, record, taken, &device, "SSD")
}

/// The label of the cache on a device, which is that of the volume and as new as the record.
///
/// # Errors
/// When the device holds anything else.
fn current_label(
    turn: &mut Turn,
    name: &VolumeName,
    cache: &CacheRecord,
    device: &DeviceSpec,
) -> ControlResult<CacheLabel> {
    let Some(label) = turn.reading(device).cache_label_of(device)? else {
        return Err(ControlError::failed(format!(
            "{device} holds no Voltier cache: it is neither the SSD of {name} nor a whole copy of it; give the \
             SSD, or copy all of it to {device} first"
        )));
    };
    if label.uuid != cache.uuid {
        let of = match label.owner.volume.as_str() {
            "" => String::new(),
            volume => format!(" of the volume {volume}"),
        };
        return Err(ControlError::failed(format!(
            "{device} holds another cache{of} ({}); that of {name} is {}: give its SSD, or a copy of it",
            label.uuid, cache.uuid
        )));
    }
    if label.generation < cache.generation {
        return Err(ControlError::failed(format!(
            "{device} holds an older state of the cache of {name} (generation {}, expected {}), so it is a stale \
             copy or a snapshot, and is not used; give the SSD that was in use last, or a copy made since",
            label.generation, cache.generation
        )));
    }
    Ok(label)
}

/// Refuses a copy that is older than the SSD on record, as far as that one is there.
fn is_the_newest(
    turn: &mut Turn,
    cache: &CacheRecord,
    device: &DeviceSpec,
    label: &CacheLabel,
) -> ControlResult<()> {
    let Some(before) = survey::ssd_of(turn, cache) else { return Ok(()) };
    if admit::is_same(turn, &before, device) || look::look_once(turn, &before).is_err() {
        return Ok(());
    }
    let Ok(Some(known)) = turn.reading(&before).cache_label_of(&before) else { return Ok(()) };
    let state = |label: &CacheLabel| (label.generation, label.sequence);
    if known.uuid == label.uuid && state(&known) > state(label) {
        return Err(ControlError::failed(format!(
            "{device} is older than {before}, the SSD on record, which has been in use since {device} was copied; \
             copy it again"
        )));
    }
    Ok(())
}

/// Puts a record with the named drive in place of the one before, and opens the volume, unless it is stopped.
/// When the drive is the reason that it does not open, the record is as before.
fn put_and_open(
    turn: &mut Turn,
    before: &VolumeRecord,
    taken: VolumeRecord,
    device: &DeviceSpec,
    side: &str,
) -> ControlResult<Response> {
    let name = &taken.name;
    turn.registry.put(taken.clone())?;
    let line = format!("its {side} is now {device}, as set by the user");
    if taken.desired == Desired::Stopped {
        turn.log(name, &line);
        return Ok(show::volume(turn, name));
    }
    let since = late::hold_off_of(turn, name);
    // The other drive may come late: then the volume waits for it, and has its new one.
    late::try_volume(turn, &taken, since.or(Some(now())), now());
    let refused = turn.live.get(name).filter(|live| {
        let waits = live.absence.is_waiting();
        let is_another = |it: &Missing| it.device != *device && it.hindrance != Hindrance::Wrong;
        let lacks_another = live.absence.missing.iter().any(is_another);
        !live.is_open && !waits && !lacks_another
    });
    if let Some(error) = refused.map(|live| live.error.clone()) {
        turn.registry.put(before.clone())?;
        late::try_volume(turn, before, since, now());
        return Err(ControlError::failed(error));
    }
    turn.log(name, &line);
    // A clean cache that does not open is given up: nothing is lost, and it is not what the user wants.
    let now = turn.registry.find(name).and_then(|record| record.cache.as_ref());
    match now.and_then(|cache| cache.failed.clone()) {
        Some(reason) if before.cache.as_ref().is_some_and(|cache| cache.failed.is_none()) => {
            Err(ControlError::failed(format!("{name} is served without a cache: {reason}")))
        }
        _ => Ok(show::volume(turn, name)),
    }
}
