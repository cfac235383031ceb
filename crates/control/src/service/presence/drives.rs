//! The drives of recorded volumes, found by what they are known by and not by their paths.

use crate::engine::Engine;
use crate::error::{ControlError, ControlResult};
use crate::records::VolumeRecord;
use crate::safety::{DriveIdentity, Role};
use crate::spec::DeviceSpec;

/// The mark that a device is to be known by from now on. The answer is `none` if the device has no mark,
/// or shares its mark with another drive. `None` of a device without a path.
pub(crate) fn identity_of(engine: &dyn Engine, device: &DeviceSpec) -> Option<DriveIdentity> {
    if let Some(remote) = device.remote() {
        return engine.examine_remote(remote, Role::Origin).ok()?.remote_identity;
    }
    let path = device.path()?;
    let mark = engine.drive_identity(path);
    let known = mark.filter(|mark| engine.find_drive(mark, path).is_some());
    Some(known.unwrap_or_else(DriveIdentity::none))
}

/// The record of a volume with its drives where they are now, and lines for the log about those that have
/// moved. A missing drive stays where it was: whoever opens it says so.
///
/// # Errors
/// When another drive has the path of the origin, and the origin is nowhere: nothing of that drive may be
/// served or written.
pub(crate) fn located(
    engine: &dyn Engine,
    record: &VolumeRecord,
) -> ControlResult<(VolumeRecord, Vec<String>)> {
    let (mut record, mut news) = (record.clone(), Vec::new());
    match locate(engine, &record.origin, record.origin_identity.as_ref()) {
        Whereabouts::AsRecorded => {}
        Whereabouts::Moved(device) => {
            news.push(moved(
                "backing disk",
                &record.origin,
                &device,
                record.origin_identity.as_ref(),
            ));
            record.origin = device;
        }
        Whereabouts::Other(found) => return Err(another_drive(&record, found)),
    }
    if let Some(cache) = &mut record.cache
        && let Whereabouts::Moved(device) = locate(engine, &cache.device, cache.identity.as_ref())
    {
        news.push(moved("SSD", &cache.device, &device, cache.identity.as_ref()));
        cache.device = device;
    }
    Ok((record, news))
}

/// Where a drive is now: where it was, also when nothing is there, or where its mark is. `None` when another
/// drive has its path.
pub(crate) fn place_of(
    engine: &dyn Engine,
    device: &DeviceSpec,
    identity: Option<&DriveIdentity>,
) -> Option<DeviceSpec> {
    match locate(engine, device, identity) {
        Whereabouts::Moved(device) => Some(device),
        Whereabouts::AsRecorded => Some(device.clone()),
        Whereabouts::Other(_) => None,
    }
}

/// Where a drive of a record is.
enum Whereabouts {
    /// The drive is where the record says, or nowhere, or without a mark to know it by.
    AsRecorded,
    Moved(DeviceSpec),
    /// Nowhere, and a drive with this identity, or with none, is where it was.
    Other(Option<DriveIdentity>),
}

fn locate(
    engine: &dyn Engine,
    device: &DeviceSpec,
    identity: Option<&DriveIdentity>,
) -> Whereabouts {
    let known = identity.filter(|identity| identity.is_known());
    let (Some(path), Some(identity)) = (device.path(), known) else {
        return Whereabouts::AsRecorded;
    };
    let here = engine.drive_identity(path);
    if here.as_ref() == Some(identity) {
        return Whereabouts::AsRecorded;
    }
    match engine.find_drive(identity, path) {
        Some(found) => Whereabouts::Moved(device.moved_to(found)),
        None if engine.id_of(path).is_some() => Whereabouts::Other(here),
        None => Whereabouts::AsRecorded,
    }
}

fn moved(
    side: &str,
    from: &DeviceSpec,
    to: &DeviceSpec,
    identity: Option<&DriveIdentity>,
) -> String {
    let identity = identity.map(ToString::to_string).unwrap_or_default();
    format!("its {side} {identity} was {from} and is {to} now")
}

fn another_drive(record: &VolumeRecord, found: Option<DriveIdentity>) -> ControlError {
    let (name, origin) = (&record.name, &record.origin);
    let found = found.map_or_else(|| "one without an identity".to_owned(), |it| it.to_string());
    let known = record.origin_identity.as_ref().map(ToString::to_string).unwrap_or_default();
    let at_stake = match &record.cache {
        Some(cache) if cache.maybe_dirty => format!("; its SSD may hold {}", cache.newest_data()),
        _ => String::new(),
    };
    ControlError::failed(format!(
        "another drive has the path of its backing disk {origin}: {found}, not \
         {known}{at_stake}; connect the right disk, and the volume is served, or, if this drive \
         holds the data of that disk, `voltier set {name} hdd={origin}`"
    ))
}
