//! The devices of an import, by what they say of themselves.

use std::collections::BTreeMap;

use crate::engine::{CacheLabel, MemberLabel, SpareOwner};
use crate::error::{Clash, ControlError, ControlResult};
use crate::records::Identity;
use crate::safety::Role;
use crate::service::presence::admit::Beside;
use crate::service::presence::survey::is_counted_on;
use crate::service::presence::{admit, look};
use crate::service::state::turn::Turn;
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
    pub(super) members: Vec<FoundMember>,
    /// Devices of the journal, with the name that they have for the array.
    pub(super) journals: Vec<(DeviceSpec, String)>,
    /// Lines for the user about devices that are left alone.
    pub(super) notes: Vec<String>,
}

/// A device that says it is a member of an array.
pub(super) struct FoundMember {
    pub(super) device: DeviceSpec,
    pub(super) label: MemberLabel,
    /// Whether the order names the device.
    pub(super) is_given: bool,
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
        self.members.iter().map(|member| &member.label).max_by_key(|label| label.event)
    }

    /// Whether a member says that it has this place.
    pub(super) fn has_member(&self, place: usize) -> bool {
        self.members.iter().any(|member| member.label.place as usize == place)
    }

    /// Takes a device that the order does not name for a member, unless the order names another one for it.
    fn take(&mut self, device: DeviceSpec, label: MemberLabel) {
        let mut given = self.members.iter().filter(|member| member.is_given);
        match given.find(|member| member.label.is_twin_of(&label)) {
            Some(given) => self.notes.push(format!(
                "{device} says that it is the same member as {}, which was given: it is left alone",
                given.device
            )),
            None => self.members.push(FoundMember { device, label, is_given: false }),
        }
    }

    /// Leaves devices alone that the order does not name and that are no members any more by the newest label:
    /// others have replaced them, or they are older copies of members.
    ///
    /// # Errors
    /// When two devices that the order does not name are the same member.
    fn leave_out(&mut self, given: &[DeviceSpec]) -> ControlResult<()> {
        let Some(newest) = self.newest().cloned() else { return Ok(()) };
        let labels: Vec<MemberLabel> = self.members.iter().map(|it| it.label.clone()).collect();
        let is_former = |it: &mut FoundMember| {
            let is_old = it.label.event + 1 < newest.event;
            let mut newer = labels.iter().filter(|label| label.event > it.label.event);
            let has_newer = is_old && newer.any(|label| it.label.is_twin_of(label));
            !it.is_given && (has_newer || it.label.is_replaced_by(&newest))
        };
        let former: Vec<FoundMember> = self.members.extract_if(.., is_former).collect();
        self.notes.extend(former.iter().map(|it| {
            format!(
                "{} was member {} and is none any more: it is left alone",
                it.device, it.label.place
            )
        }));
        let mut others = self.members.iter().filter(|it| !it.is_given).enumerate();
        let twin = others.find_map(|(at, one)| {
            let mut before = self.members.iter().filter(|it| !it.is_given).take(at);
            before.find(|it| it.label.is_twin_of(&one.label)).map(|other| (other, one))
        });
        let Some((one, other)) = twin else { return Ok(()) };
        let given: Vec<_> = given.iter().map(ToString::to_string).collect();
        let given = given.join(" ");
        Err(ControlError::failed(format!(
            "{0} and {1} both say that they are member {2} of the array {3}, so one is a copy; name the right \
             one: `voltier import {given} {0}` or `voltier import {given} {1}`",
            one.device, other.device, one.label.place, newest.name
        )))
    }

    /// Whether the array counts on a device that was not found yet.
    fn is_incomplete(&self) -> bool {
        let Some(newest) = self.newest() else { return true };
        let mut places = newest.places.iter().enumerate();
        places.any(|(place, own)| is_counted_on(own.state) && !self.has_member(place))
            || (newest.has_journal_device && self.journals.is_empty())
    }
}

/// Looks at the devices of an import, and for what is missing of their arrays at all block devices. Nothing
/// is written.
pub(super) fn examine(service: &mut Turn, devices: &[DeviceSpec]) -> ControlResult<Found> {
    let mut found = Found::default();
    for (at, device) in devices.iter().enumerate() {
        admit::is_named_once(service, device, &devices[..at])?;
        let size_bytes = size_of_free(service, device)?;
        sort_in(service, &mut found, device, size_bytes)?;
    }
    look_further(service, &mut found, devices)?;
    Ok(found)
}

/// The size in bytes of a device that may be imported.
fn size_of_free(service: &mut Turn, device: &DeviceSpec) -> ControlResult<u64> {
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
    admit::take(service, device, Role::Origin, Beside::None, None)?;
    look::look(service, device).map_err(|(_, why)| ControlError::failed(why))
}

pub(super) fn in_use(device: &DeviceSpec, user: &str) -> ControlError {
    ControlError::failed(format!(
        "{device} already belongs to {user} and needs no import; leave it out"
    ))
}

fn sort_in(
    service: &mut Turn,
    found: &mut Found,
    device: &DeviceSpec,
    size_bytes: u64,
) -> ControlResult<()> {
    let own = device.clone();
    let mut clash = None;
    if device.array().is_none() {
        if let Some(label) = unless_clashing(service.reading(device).label_of(device), &mut clash)?
        {
            let member = FoundMember { device: own, label, is_given: true };
            found.arrays.entry(member.label.array).or_default().members.push(member);
            return Ok(());
        }
        if let Some(label) =
            unless_clashing(service.reading(device).journal_label_of(device), &mut clash)?
        {
            found.arrays.entry(label.array).or_default().journals.push((own, label.name));
            return Ok(());
        }
        if let Some(label) = service.reading(device).spare_label_of(device)? {
            found.spares.push((own, label));
            return Ok(());
        }
    }
    if let Some(label) =
        unless_clashing(service.reading(device).cache_label_of(device), &mut clash)?
    {
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
pub(super) fn holds_nothing_of_ours(
    service: &mut Turn,
    device: &DeviceSpec,
) -> ControlResult<bool> {
    let mut seen = Found::default();
    sort_in(service, &mut seen, device, 0)?;
    Ok(!seen.others.is_empty())
}

/// Looks at all block devices for parts of arrays of which something is missing. A device that cannot be
/// used, or that somebody has, is passed over, unless only a newer program can read that it is of such an array.
fn look_further(service: &mut Turn, found: &mut Found, given: &[DeviceSpec]) -> ControlResult<()> {
    if !found.arrays.values().any(FoundArray::is_incomplete) {
        return Ok(());
    }
    let mut journals: Vec<(Identity, DeviceSpec, String)> = Vec::new();
    let paths = service.reading("all drives").own_devices();
    for path in paths {
        let device = DeviceSpec::Path(path);
        let is_given = given.iter().any(|other| admit::is_same(service, other, &device));
        if is_given
            || admit::user_of_device(service, &device).is_some()
            || look::look(service, &device).is_err()
        {
            continue;
        }
        let member = service.reading(&device).label_of(&device);
        if let Ok(Some(label)) = member {
            if let Some(array) = found.arrays.get_mut(&label.array) {
                array.take(device, label);
            }
            continue;
        }
        let journal = service.reading(&device).journal_label_of(&device);
        let errors = [member.as_ref().err(), journal.as_ref().err()].into_iter().flatten();
        for error in errors {
            if found.arrays.keys().any(|array| error.is_unsupported_label(*array)) {
                return Err(error.clone());
            }
        }
        if let Ok(Some(label)) = journal {
            journals.push((label.array, device, label.name));
        }
    }
    for (uuid, array) in &mut found.arrays {
        // One that is named wins. Of several others the array knows its own by what is on them.
        if array.journals.is_empty() {
            let own = journals.iter().filter(|(of, ..)| of == uuid);
            array.journals = own.map(|(_, device, name)| (device.clone(), name.clone())).collect();
        }
        array.leave_out(given)?;
    }
    Ok(())
}
