//! Records of volumes, from the superblocks of their caches. The origin carries nothing: its mark finds it.

use std::collections::BTreeMap;
use std::path::Path;

use super::super::admit;
use super::super::apart::apart;
use super::super::turn::Turn;
use super::arrays::ArrayPlan;
use super::find::{Found, FoundCache, OtherDevice, holds_nothing_of_ours, in_use};
use super::names::Names;
use crate::engine::Engine;
use crate::error::{ControlError, ControlResult};
use crate::import_report::ImportedVolume;
use crate::name::VolumeName;
use crate::records::{CacheRecord, Desired, Identity, VolumeRecord};
use crate::safety::DriveIdentity;
use crate::settings::Settings;
use crate::spec::DeviceSpec;

/// A volume that is to be put on record.
pub(super) struct VolumePlan {
    pub(super) record: VolumeRecord,
    /// Lines for the user.
    pub(super) notes: Vec<String>,
    /// The user gave the origin: no mark says that the cache belongs to it.
    pub(super) is_origin_given: bool,
    stopped_in_order: bool,
    policy: String,
    mode: String,
    ssd: DeviceSpec,
    dirty_lines: u64,
}

impl VolumePlan {
    pub(super) fn reported(&self) -> ImportedVolume {
        let VolumeRecord { name, uuid, origin, size_bytes, .. } = &self.record;
        ImportedVolume {
            name: name.clone(),
            uuid: *uuid,
            origin: origin.clone(),
            ssd: self.ssd.clone(),
            size_bytes: *size_bytes,
            mode: self.mode.clone(),
            policy: self.policy.clone(),
            stopped_in_order: self.stopped_in_order,
            dirty_lines: self.dirty_lines,
        }
    }
}

/// The records of the volumes of all caches that were found.
///
/// # Errors
/// When a volume is on record, has another one's name, or its origin is not found.
pub(super) fn plan<E: Engine>(
    service: &mut Turn<E>,
    names: &Names,
    found: &Found,
    arrays: &[ArrayPlan],
) -> ControlResult<Vec<VolumePlan>> {
    let mut origins = Vec::new();
    for cache in &found.caches {
        is_unknown(service, cache)?;
        origins.push(by_mark(service, cache, found, arrays)?);
    }
    let mut plans: Vec<VolumePlan> = Vec::new();
    for (at, cache) in found.caches.iter().enumerate() {
        let is_origin_given = origins[at].is_none();
        let (origin, note) = match origins[at].clone() {
            Some(origin) => (origin, None),
            None => {
                let (origin, note) = as_given(service, cache, found, &origins)?;
                origins[at] = Some(origin.clone());
                (origin, note)
            }
        };
        let plan = plan_one(service, names, cache, origin, note)?;
        let plan = VolumePlan { is_origin_given, ..plan };
        if let Some(other) = plans.iter().find(|other| other.record.name == plan.record.name) {
            return Err(ControlError::failed(format!(
                "{} and {} both say that they are the SSD of a volume {}; give the one that was in use \
                 last, or import them one at a time, one of them with --name NEW",
                other.ssd, plan.ssd, plan.record.name
            )));
        }
        for other in &plans {
            if admit::is_same(service, &other.record.origin, &plan.record.origin) {
                return Err(ControlError::failed(format!(
                    "{} and {} both name {} as their backing disk; give the SSD that was in use last",
                    other.ssd, plan.ssd, plan.record.origin
                )));
            }
        }
        plans.push(plan);
    }
    Ok(plans)
}

/// Refuses a cache that a volume on record has, or that a volume on record has given up.
fn is_unknown<E: Engine>(service: &Turn<E>, cache: &FoundCache) -> ControlResult<()> {
    let (device, label) = (&cache.device, &cache.label);
    for known in service.registry.volumes() {
        let name = &known.name;
        if known.cache.as_ref().is_some_and(|its| its.uuid == label.uuid) {
            return Err(ControlError::failed(format!(
                "the cache on {device} belongs to the volume {name}, which is already recorded; \
                 `voltier start {name}` serves it, `voltier show {name}` says why it is not \
                 served"
            )));
        }
        if known.uuid.0 == label.owner.volume_uuid {
            return Err(ControlError::failed(format!(
                "the cache on {device} names the volume {name}, which is recorded without it; if \
                 this SSD was in use last, `voltier delete {name}` and import it; otherwise its \
                 data are old"
            )));
        }
    }
    Ok(())
}

/// The origin with the mark that the cache has for its origin: among the devices given, or anywhere on the
/// machine.
fn by_mark<E: Engine>(
    service: &mut Turn<E>,
    cache: &FoundCache,
    found: &Found,
    arrays: &[ArrayPlan],
) -> ControlResult<Option<DeviceSpec>> {
    let owner = &cache.label.owner;
    let Some(mark) = DriveIdentity::recorded(&owner.origin_identity) else { return Ok(None) };
    if let Some(uuid) = mark.array() {
        let planned = arrays.iter().map(|plan| &plan.record);
        let mut known = service.registry.arrays().iter().chain(planned);
        let name = known.find(|array| array.uuid == uuid).map(|array| array.name.clone());
        return Ok(name.map(DeviceSpec::Array));
    }
    for other in &found.others {
        let Some(path) = other.device.path() else { continue };
        if apart(service).drive_identity(path).as_ref() == Some(&mark) {
            return Ok(Some(other.device.clone()));
        }
    }
    let hint = owner.origin_path.parse().unwrap_or_else(|_| DeviceSpec::Path("/".into()));
    let place = hint.path().unwrap_or(Path::new("/"));
    let at = apart(service).find_drive(&mark, place);
    let origin = at.map(|path| match hint.path() {
        Some(_) => hint.moved_to(path),
        None => DeviceSpec::Path(path),
    });
    if let Some(origin) = &origin
        && !holds_nothing_of_ours(service, origin)?
    {
        return Err(ControlError::failed(format!(
            "the backing disk of the cache on {} is {origin} by its identity, but that drive is \
             now a member, spare or cache of Voltier; give the drive that holds the data of the \
             backing disk",
            cache.device
        )));
    }
    Ok(origin)
}

/// The origin that the user gives, with a line for the user: the only device of the right size that holds
/// nothing of Voltier. The origin of another cache does not count.
fn as_given<E: Engine>(
    service: &mut Turn<E>,
    cache: &FoundCache,
    found: &Found,
    taken: &[Option<DeviceSpec>],
) -> ControlResult<(DeviceSpec, Option<String>)> {
    let bytes = cache.label.origin_bytes;
    let free = free_of(service, found, taken);
    let fitting: Vec<&OtherDevice> =
        free.iter().filter(|other| other.size_bytes == bytes).collect();
    let rivals = found
        .caches
        .iter()
        .zip(taken)
        .filter(|(other, origin)| origin.is_none() && other.label.origin_bytes == bytes);
    match (&fitting[..], rivals.count()) {
        ([origin], 1) => Ok((origin.device.clone(), other_mark(service, cache, &origin.device))),
        ([], _) => Err(not_found(cache, &free)),
        _ => Err(ControlError::failed(format!(
            "several drives could be the backing disk of the cache on {}; import one volume at a \
             time: its SSD and its backing disk",
            cache.device
        ))),
    }
}

/// Devices that hold nothing of Voltier, and are nobody's origin yet.
fn free_of<E: Engine>(
    service: &mut Turn<E>,
    found: &Found,
    taken: &[Option<DeviceSpec>],
) -> Vec<OtherDevice> {
    let mut free = found.others.clone();
    for origin in taken.iter().flatten() {
        free.retain(|other| !admit::is_same(service, origin, &other.device));
    }
    free
}

/// Says that an origin has not the mark that was recorded: a copy, or the same drive at another controller.
fn other_mark<E: Engine>(
    service: &mut Turn<E>,
    cache: &FoundCache,
    origin: &DeviceSpec,
) -> Option<String> {
    let recorded = DriveIdentity::recorded(&cache.label.owner.origin_identity)?;
    let now = admit::mark_of(service, origin).filter(DriveIdentity::is_known);
    let now = now.map_or_else(|| "no mark".to_owned(), |mark| mark.to_string());
    Some(format!(
        "{origin} was taken as the backing disk because it was given: it has {now}, not {recorded}"
    ))
}

fn not_found(cache: &FoundCache, free: &[OtherDevice]) -> ControlError {
    let (device, label) = (&cache.device, &cache.label);
    let recorded = |text: &str, what: &str| match text {
        "" => format!("no {what} is recorded"),
        text => format!("its {what} is {text}"),
    };
    let owner = &label.owner;
    let sizes = free.iter().map(|it| format!("{} has {} bytes", it.device, it.size_bytes));
    let given = match sizes.collect::<Vec<_>>().join(", ") {
        none if none.is_empty() => String::new(),
        sizes => format!(" ({sizes})"),
    };
    let what = match DriveIdentity::recorded(&owner.origin_identity).and_then(|mark| mark.array()) {
        Some(_) => "give the members of that array as well",
        None => "connect it, or give the drive that holds its data after the SSD",
    };
    ControlError::failed(format!(
        "the backing disk of the cache on {device}, of {} bytes, was not found{given}: {}, {}; {what}",
        label.origin_bytes,
        recorded(&owner.origin_identity, "identity"),
        recorded(&owner.origin_path, "last path")
    ))
}

/// Devices of the order that hold nothing of Voltier, and are the origin of no volume of it.
pub(super) fn left_over<E: Engine>(
    service: &mut Turn<E>,
    found: &Found,
    plans: &[VolumePlan],
) -> Vec<OtherDevice> {
    let taken: Vec<_> = plans.iter().map(|plan| Some(plan.record.origin.clone())).collect();
    free_of(service, found, &taken)
}

pub(super) fn no_origin(OtherDevice { device, clash, .. }: &OtherDevice) -> ControlError {
    if let Some(clash) = clash {
        return ControlError::failed(clash);
    }
    ControlError::failed(format!(
        "{device} holds nothing of Voltier, and is not the backing disk of any cache that was \
         given; leave it out"
    ))
}

fn plan_one<E: Engine>(
    service: &mut Turn<E>,
    names: &Names,
    cache: &FoundCache,
    origin: DeviceSpec,
    note: Option<String>,
) -> ControlResult<VolumePlan> {
    let (device, label) = (&cache.device, &cache.label);
    let name = name_of(service, names, cache)?;
    if let Some(user) = admit::user_of_device(service, &origin) {
        return Err(in_use(&origin, &user));
    }
    if let Some(user) = origin.array().and_then(|array| service.user_of_array(array, None)) {
        return Err(in_use(&origin, &format!("volume {user}")));
    }
    admit::take_for_import(service, &origin)?;
    let mode = label.owner.mode.unwrap_or_else(|| Settings::default().mode);
    let settings = Settings {
        mode,
        policy: label.policy,
        line_bytes: label.line_bytes,
        ordered: label.owner.ordered,
        ..Settings::default()
    };
    let mut notes: Vec<String> = note.into_iter().collect();
    if label.owner.mode.is_none() {
        notes.push(format!("{name}: its mode is not recorded on the SSD, so it is now {mode}"));
    }
    let uuid = match label.owner.volume_uuid {
        [0, ..] if label.owner.volume_uuid == [0; 16] => service.engine.draw_identity()?,
        uuid => Identity(uuid),
    };
    let (policy, mode) = (settings.policy.to_string(), settings.mode.to_string());
    let its_cache = CacheRecord {
        device: device.clone(),
        identity: admit::mark_of(service, device),
        uuid: label.uuid,
        settings,
        generation: label.generation,
        sequence: 0,
        // Whether a line is dirty is not known, so the cache is not given up for a clean one.
        maybe_dirty: true,
        dirty_lines: label.dirty_lines,
        evacuating: false,
        failed: None,
        lost: Vec::new(),
        lost_total: 0,
    };
    let record = VolumeRecord {
        name,
        uuid,
        size_bytes: label.origin_bytes,
        origin_identity: admit::mark_of(service, &origin),
        origin,
        cache: Some(its_cache),
        exports: Vec::new(),
        export_access: BTreeMap::new(),
        desired: Desired::Serving,
    };
    Ok(VolumePlan {
        record,
        notes,
        is_origin_given: false,
        stopped_in_order: label.is_clean,
        policy,
        mode,
        ssd: device.clone(),
        dirty_lines: label.dirty_lines,
    })
}

/// The name of a volume: the user's, or the one that its SSD has.
fn name_of<E: Engine>(
    service: &Turn<E>,
    names: &Names,
    cache: &FoundCache,
) -> ControlResult<VolumeName> {
    let recorded = || cache.label.owner.volume.parse().ok();
    let Some(name) = names.volume.clone().or_else(recorded) else {
        return Err(ControlError::failed(format!(
            "the cache on {} does not name its volume; give the name with --name NAME",
            cache.device
        )));
    };
    match service.registry.find(&name) {
        None => Ok(name),
        Some(other) => Err(ControlError::failed(format!(
            "another volume `{name}` ({}) exists; import this one alone, under another name: `voltier import \
             --name NEW DEVICE...`",
            other.uuid
        ))),
    }
}

/// A line about all that the registry alone knew of a volume.
pub(super) fn lost_with_the_registry(volume: &ImportedVolume) -> String {
    format!(
        "{0}: its exports are not recorded on any drive, and of its settings only mode, policy \
         and ordered are; the others have their defaults: `voltier set {0} KEY=VALUE`, `voltier \
         export {0}`",
        volume.name
    )
}
