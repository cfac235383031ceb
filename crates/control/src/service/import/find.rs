//! The devices of an import, by what they say of themselves.

use std::collections::BTreeMap;

use voltier_array::MemberState;

use super::super::apart::apart;
use super::super::turn::Turn;
use super::super::{admit, look};
use crate::engine::{CacheLabel, Engine, MemberLabel, SpareOwner};
use crate::error::{Clash, ControlError, ControlResult};
use crate::records::Identity;
use crate::spec::DeviceSpec;

/// Everything that the devices of an import hold.
#[derive(Default)]
pub(super) struct Found {
    /// Arrays, by the identities in their labels.
    pub(super) arrays: BTreeMap<Identity, FoundArray>,
    /// SSDs with caches.
    pub(super) caches: Vec<FoundCache>,
    /// Spares that arrays or pools have labelled.
    pub(super) spares: Vec<(DeviceSpec, SpareOwner)>,
    /// Devices that hold nothing of Voltier: origins, perhaps.
    pub(super) others: Vec<OtherDevice>,
}

/// The parts of an array.
#[derive(Default)]
pub(super) struct FoundArray {
    pub(super) members: Vec<(DeviceSpec, MemberLabel)>,
    /// The device of the journal, with the name that it has for the array.
    pub(super) journal: Option<(DeviceSpec, String)>,
}

/// An SSD with a cache.
pub(super) struct FoundCache {
    pub(super) device: DeviceSpec,
    pub(super) label: CacheLabel,
}

/// A device that holds nothing of Voltier.
#[derive(Clone)]
pub(super) struct OtherDevice {
    pub(super) device: DeviceSpec,
    pub(super) size_bytes: u64,
    /// Why a label that is left on it does not count.
    pub(super) clash: Option<String>,
}

impl FoundArray {
    /// The label that knows most.
    pub(super) fn newest(&self) -> Option<&MemberLabel> {
        self.members.iter().map(|(_, label)| label).max_by_key(|label| label.event)
    }

    /// Whether a member says that it has this place.
    pub(super) fn has_member(&self, place: usize) -> bool {
        self.members.iter().any(|(_, label)| label.place as usize == place)
    }

    /// Whether the array counts on a device that was not found yet.
    fn is_incomplete(&self) -> bool {
        let Some(newest) = self.newest() else { return true };
        let counts = |state| matches!(state, MemberState::InService | MemberState::Rebuilding);
        let mut places = newest.places.iter().enumerate();
        places.any(|(place, own)| counts(own.state) && !self.has_member(place))
            || (newest.has_journal_device && self.journal.is_none())
    }
}

/// Looks at the devices of an import, and for what is missing of their arrays at all block devices. Nothing
/// is written.
pub(super) fn examine<E: Engine>(
    service: &mut Turn<E>,
    devices: &[DeviceSpec],
) -> ControlResult<Found> {
    let mut found = Found::default();
    for (at, device) in devices.iter().enumerate() {
        if devices[..at].iter().any(|other| admit::is_same(service, other, device)) {
            return Err(ControlError::failed(format!("{device} is given twice; name it once")));
        }
        let size_bytes = size_of_free(service, device)?;
        sort_in(service, &mut found, device, size_bytes)?;
    }
    look_further(service, &mut found, devices)?;
    Ok(found)
}

/// The size in bytes of a device that may be imported.
fn size_of_free<E: Engine>(service: &mut Turn<E>, device: &DeviceSpec) -> ControlResult<u64> {
    if device.is_volatile() {
        return Err(ControlError::usage(format!(
            "{device} is empty at every start, so nothing can be imported from it; leave it out"
        )));
    }
    if let Some(name) = device.array() {
        service.array_record(name)?;
        return match service.user_of_array(name, None) {
            Some(user) => Err(in_use(device, &format!("volume {user}"))),
            None => service.size_of_array(name),
        };
    }
    if let Some(user) = admit::user_of_device(service, device) {
        return Err(in_use(device, &user));
    }
    admit::take_for_import(service, device)?;
    look::look(service, device).map_err(|(_, why)| ControlError::failed(why))
}

pub(super) fn in_use(device: &DeviceSpec, user: &str) -> ControlError {
    ControlError::failed(format!(
        "{device} already belongs to {user} and needs no import; leave it out"
    ))
}

fn sort_in<E: Engine>(
    service: &mut Turn<E>,
    found: &mut Found,
    device: &DeviceSpec,
    size_bytes: u64,
) -> ControlResult<()> {
    let own = device.clone();
    let mut clash = None;
    if device.array().is_none() {
        if let Some(label) = unless_clashing(apart(service).label_of(device), &mut clash)? {
            found.arrays.entry(label.array).or_default().members.push((own, label));
            return Ok(());
        }
        if let Some(label) = unless_clashing(apart(service).journal_label_of(device), &mut clash)? {
            found.arrays.entry(label.array).or_default().journal = Some((own, label.name));
            return Ok(());
        }
        if let Some(label) = apart(service).spare_label_of(device)? {
            found.spares.push((own, label));
            return Ok(());
        }
    }
    if let Some(label) = unless_clashing(apart(service).cache_label_of(device), &mut clash)? {
        found.caches.push(FoundCache { device: own, label });
        return Ok(());
    }
    match clash {
        // What the device begins with may still be what it is.
        Some(error) if error.clash == Some(Clash::Labels) => Err(error),
        clash => {
            let clash = clash.map(|error| error.message);
            found.others.push(OtherDevice { device: own, size_bytes, clash });
            Ok(())
        }
    }
}

/// The label that a device has, unless another place of it says something else: the device may be by another
/// label what it is.
fn unless_clashing<T>(
    read: ControlResult<Option<T>>,
    clash: &mut Option<ControlError>,
) -> ControlResult<Option<T>> {
    match read {
        Err(error) if error.clash.is_some() => {
            clash.get_or_insert(error);
            Ok(None)
        }
        read => read,
    }
}

/// Whether a device is no member, journal, spare or cache.
pub(super) fn holds_nothing_of_ours<E: Engine>(
    service: &mut Turn<E>,
    device: &DeviceSpec,
) -> ControlResult<bool> {
    let mut seen = Found::default();
    sort_in(service, &mut seen, device, 0)?;
    Ok(!seen.others.is_empty())
}

/// Looks at all block devices for parts of arrays of which something is missing. A device that cannot be
/// used, or that somebody has, is passed over, unless only a newer program can read that it is of such an array.
fn look_further<E: Engine>(
    service: &mut Turn<E>,
    found: &mut Found,
    given: &[DeviceSpec],
) -> ControlResult<()> {
    if !found.arrays.values().any(FoundArray::is_incomplete) {
        return Ok(());
    }
    for path in apart(service).own_devices() {
        let device = DeviceSpec::Path(path);
        let is_given = given.iter().any(|other| admit::is_same(service, other, &device));
        if is_given
            || admit::user_of_device(service, &device).is_some()
            || look::look(service, &device).is_err()
        {
            continue;
        }
        let member = apart(service).label_of(&device);
        if let Ok(Some(label)) = member {
            if let Some(array) = found.arrays.get_mut(&label.array) {
                array.members.push((device, label));
            }
            continue;
        }
        let journal = apart(service).journal_label_of(&device);
        let errors = [member.as_ref().err(), journal.as_ref().err()].into_iter().flatten();
        for error in errors {
            if found.arrays.keys().any(|array| error.is_unsupported_label(*array)) {
                return Err(error.clone());
            }
        }
        if let Ok(Some(label)) = journal
            && let Some(array) = found.arrays.get_mut(&label.array)
            && array.journal.is_none()
        {
            array.journal = Some((device, label.name));
        }
    }
    Ok(())
}
