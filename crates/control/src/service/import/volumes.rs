//! Records of volumes, from the superblocks of their caches.

use std::collections::BTreeMap;

use super::find::{Found, FoundCache, OtherDevice, in_use};
use super::names::Names;
use super::origins::{self, Known, Origin};
use crate::error::{ControlError, ControlResult};
use crate::import_report::ImportedVolume;
use crate::name::VolumeName;
use crate::records::{CacheRecord, Desired, Identity, VolumeRecord};
use crate::safety::Role;
use crate::service::presence::admit::{self, Beside};
use crate::service::state::turn::Turn;
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
pub(super) fn plan(
    service: &mut Turn,
    names: &Names,
    found: &Found,
    known: Known<'_>,
) -> ControlResult<Vec<VolumePlan>> {
    for cache in &found.caches {
        is_unknown(service, cache)?;
    }
    let origins = origins::assign(service, found, known)?;
    let mut plans: Vec<VolumePlan> = Vec::new();
    for (cache, origin) in found.caches.iter().zip(origins) {
        let plan = plan_one(service, names, cache, origin)?;
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
fn is_unknown(service: &Turn, cache: &FoundCache) -> ControlResult<()> {
    let (device, label) = (&cache.device, &cache.label);
    for known in service.registry.volumes() {
        let name = &known.name;
        if known.cache.as_ref().is_some_and(|its| its.uuid == label.uuid) {
            return Err(ControlError::failed(format!(
                "the cache on {device} belongs to the volume {name}, which is already recorded; \
                 `voltier start {name}` serves it, `voltier show {name}` says why it is not \
                 served; if {device} is to be its SSD from now on, `voltier set {name} ssd={device}`"
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

/// Devices of the order that hold nothing of Voltier, and are the origin of no volume of it.
pub(super) fn left_over(
    service: &mut Turn,
    found: &Found,
    plans: &[VolumePlan],
) -> Vec<OtherDevice> {
    let taken = plans.iter().map(|plan| &plan.record.origin);
    origins::free_of(service, found, taken)
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

fn plan_one(
    service: &mut Turn,
    names: &Names,
    cache: &FoundCache,
    origin: Origin,
) -> ControlResult<VolumePlan> {
    let Origin { device: origin, is_given, note } = origin;
    let (device, label) = (&cache.device, &cache.label);
    let name = name_of(service, names, cache)?;
    if let Some(user) = admit::user_of_device(service, &origin) {
        return Err(in_use(&origin, &user));
    }
    if let Some(user) = origin.array().and_then(|array| service.user_of_array(array, None)) {
        return Err(in_use(&origin, &format!("volume {user}")));
    }
    admit::take(service, &origin, Role::Origin, Beside::None, None)?;
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
    let identity = admit::mark_of(service, device);
    let its_cache = CacheRecord {
        generation: label.generation,
        // Whether a line is dirty is not known, so the cache is not given up for a clean one.
        maybe_dirty: true,
        dirty_lines: label.dirty_lines,
        ..CacheRecord::new(device.clone(), identity, label.uuid, settings)
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
        is_origin_given: is_given,
        stopped_in_order: label.is_clean,
        policy,
        mode,
        ssd: device.clone(),
        dirty_lines: label.dirty_lines,
    })
}

/// The name of a volume: the user's, or the one that its SSD has.
fn name_of(service: &Turn, names: &Names, cache: &FoundCache) -> ControlResult<VolumeName> {
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
