//! Devices of the registry that are not there: which are awaited, for how long, and whether they have come.
//!
//! Buses are slow and enclosures are switched on late. So nothing is opened without a recorded device before
//! its hold-off is over ([why](../../../../docs/adr/0030-drives-that-come-late.md)).

use std::time::{Duration, Instant};

use voltier_array::MemberState;

use super::Service;
use super::live::now;
use crate::engine::{Engine, MemberLabel};
use crate::records::{CacheRecord, RegisteredArray, VolumeRecord};
use crate::safety::{DeviceId, DriveIdentity};
use crate::spec::DeviceSpec;

/// Hold-off of an array that would be left without redundancy, or could not be assembled, in hold-offs of
/// others. With the usual 30 s that is 90 s: as long as systemd waits for a device.
const EXPOSED_FACTOR: u32 = 3;

/// A recorded device that is not there.
#[derive(Clone, Debug)]
pub(super) struct Missing {
    pub(super) device: DeviceSpec,
    /// The part of the device: `origin`, `SSD`, `member`, `newcomer`, `journal`, `spare`.
    part: &'static str,
    identity: Option<DriveIdentity>,
    /// The storage under its path when it was looked for: another drive, or nothing.
    seen: Option<DeviceId>,
    /// Why the device does not count as there.
    pub(super) why: String,
}

impl Missing {
    pub(super) fn is_member(&self) -> bool {
        self.part == "member"
    }
}

/// The recorded devices of a volume or array that are not there.
#[derive(Clone, Debug, Default)]
pub(super) struct Absence {
    pub(super) missing: Vec<Missing>,
    /// The beginning of the hold-off. None of what does not wait.
    pub(super) since: Option<Instant>,
    /// The end of the hold-off, while nothing is done because of it.
    pub(super) until: Option<Instant>,
}

impl Absence {
    pub(super) fn is_waiting(&self) -> bool {
        self.until.is_some()
    }

    /// Seconds that are left of a hold-off.
    pub(super) fn seconds_left(&self) -> Option<u64> {
        let left = self.until?.saturating_duration_since(now());
        Some(left.as_secs() + u64::from(left.subsec_nanos() > 0))
    }

    pub(super) fn awaited(&self) -> Vec<String> {
        self.missing.iter().map(|missing| missing.device.to_string()).collect()
    }

    /// A device that is no longer awaited.
    pub(super) fn forget(&mut self, device: &DeviceSpec) {
        self.missing.retain(|missing| missing.device != *device);
    }

    /// Another storage than the awaited one is under its path.
    pub(super) fn saw(&mut self, device: &DeviceSpec, seen: Option<DeviceId>) {
        for missing in self.missing.iter_mut().filter(|missing| missing.device == *device) {
            missing.seen.clone_from(&seen);
        }
    }

    /// Why devices are awaited that were not before.
    pub(super) fn news_since(&self, before: Option<&Self>) -> Vec<String> {
        let is_known = |it: &&Missing| {
            before.is_some_and(|before| before.missing.iter().any(|known| known.why == it.why))
        };
        self.missing.iter().filter(|it| !is_known(it)).map(|it| it.why.clone()).collect()
    }

    /// One clear line for commands that need the volume or array. `verb` is `voltier` or `voltier array`.
    pub(super) fn text(&self, verb: &str, name: &str) -> String {
        let named = self.missing.iter().map(|it| format!("its {} {}", it.part, it.device));
        let named = named.collect::<Vec<_>>().join(", ");
        format!(
            "it waits for {named}; `{verb} show {name}` says how long, `{verb} start {name}` tries it now"
        )
    }
}

/// The devices of an array as a start finds them.
pub(super) struct Survey {
    /// Devices that may be used.
    pub(super) present: Vec<DeviceSpec>,
    /// Devices that may not, and why.
    pub(super) left_out: Vec<String>,
    /// Devices that the array counts on and that may still come.
    pub(super) missing: Vec<Missing>,
    /// Whether no redundancy would be left without them, or the array not be assembled at all.
    is_exposed: bool,
}

impl Survey {
    /// The end of a hold-off that has begun.
    pub(super) fn until(&self, since: Instant, wait: Duration) -> Instant {
        since + if self.is_exposed { wait * EXPOSED_FACTOR } else { wait }
    }
}

/// Looks at the recorded devices of an array; nothing is written. With `labels`, a member counts as there
/// when it says that it is one.
pub(super) fn survey<E: Engine>(
    service: &mut Service<E>,
    record: &RegisteredArray,
    labels: bool,
) -> Survey {
    let (mut present, mut left_out, mut missing) = (Vec::new(), Vec::new(), Vec::new());
    // A spare that has the array's label was taken before a crash.
    let spares: Vec<DeviceSpec> = record.spares.clone();
    let (taken, free): (Vec<_>, Vec<_>) =
        spares.into_iter().partition(|spare| service.is_labelled(spare, record.uuid));
    let members = record.members.iter().flatten().map(|device| (device, "member"));
    let ours = members.chain(record.incoming.iter().map(|device| (device, "newcomer")));
    let ours = ours.chain(record.journal.iter().map(|device| (device, "journal")));
    for (device, part) in ours.chain(taken.iter().map(|device| (device, "spare"))) {
        if device.is_volatile() {
            left_out.push(format!("{device} ended with the daemon before"));
            continue;
        }
        // A path that is on record twice is opened once.
        if present.contains(device) {
            continue;
        }
        match service.look_at(device, 0, "member") {
            Ok(()) => present.push(device.clone()),
            Err(error) => {
                left_out.push(error.message.clone());
                missing.push(missing_as(service, device, part, None, error.message));
            }
        }
    }
    let mut newest = None;
    if labels || !missing.is_empty() {
        newest = newest_label(service, record, &present, &mut missing);
    }
    if labels {
        for spare in free {
            if is_absent(service, &spare, None) {
                let why = format!("{spare} is not there");
                missing.push(missing_as(service, &spare, "spare", None, why));
            }
        }
    }
    missing.retain(|missing| is_awaited(record, newest.as_ref(), missing));
    let is_exposed = is_exposed(record, newest.as_ref(), &missing);
    Survey { present, left_out, missing, is_exposed }
}

/// The newest label of the members that are there. Those that have none of the array are missing.
fn newest_label<E: Engine>(
    service: &mut Service<E>,
    record: &RegisteredArray,
    present: &[DeviceSpec],
    missing: &mut Vec<Missing>,
) -> Option<MemberLabel> {
    let mut newest: Option<MemberLabel> = None;
    for device in record.members.iter().flatten().filter(|it| present.contains(*it)) {
        let why = match service.engine.label_of(device) {
            Ok(Some(label)) if label.array == record.uuid => {
                if newest.as_ref().is_none_or(|known| known.event < label.event) {
                    newest = Some(label);
                }
                continue;
            }
            Ok(_) => format!("{device} is another device: no member of {}", record.name),
            Err(error) => error.message,
        };
        missing.push(missing_as(service, device, "member", None, why));
    }
    newest
}

/// The recorded drives that a volume needs and that are not there.
pub(super) fn missing_drives<E: Engine>(
    service: &mut Service<E>,
    record: &VolumeRecord,
) -> Vec<Missing> {
    let origin = (&record.origin, "origin", record.origin_identity.as_ref());
    let ssd = record.cache.as_ref().filter(|cache| is_needed(cache));
    let ssd = ssd.map(|cache| (&cache.device, "SSD", cache.identity.as_ref()));
    let mut missing = Vec::new();
    for (device, part, identity) in [origin].into_iter().chain(ssd) {
        let is_waiting =
            |name| service.live_arrays.get(name).is_some_and(|it| it.absence.is_waiting());
        if device.array().is_some_and(is_waiting) || is_absent(service, device, identity) {
            let why = format!("{device} is not there");
            missing.push(missing_as(service, device, part, identity, why));
        }
    }
    missing
}

fn missing_as<E: Engine>(
    service: &mut Service<E>,
    device: &DeviceSpec,
    part: &'static str,
    identity: Option<&DriveIdentity>,
    why: String,
) -> Missing {
    let seen = device.path().and_then(|path| service.id_of(path));
    Missing { device: device.clone(), part, identity: identity.cloned(), seen, why }
}

/// Whether a drive is nowhere: nothing under its path, or another drive, and its mark on no other.
fn is_absent<E: Engine>(
    service: &mut Service<E>,
    device: &DeviceSpec,
    identity: Option<&DriveIdentity>,
) -> bool {
    let Some(path) = device.path() else { return false };
    let Service { engine, machine, .. } = service;
    match identity.filter(|identity| identity.is_known()) {
        Some(known) if engine.drive_identity(machine, path).as_ref() == Some(known) => false,
        Some(known) => engine.find_drive(machine, known, path).is_none(),
        None => engine.id_of(machine, path).is_none(),
    }
}

/// Whether a device may have come since it was looked for.
pub(super) fn has_come<E: Engine>(service: &mut Service<E>, missing: &Missing) -> bool {
    let Missing { device, identity, seen, .. } = missing;
    let Some(path) = device.path() else { return false };
    if identity.as_ref().is_some_and(DriveIdentity::is_known) {
        return !is_absent(service, device, identity.as_ref());
    }
    let here = service.id_of(path);
    here.is_some() && here != *seen
}

/// Whether a volume is not opened as it was without the SSD of this cache.
fn is_needed(cache: &CacheRecord) -> bool {
    let is_attached = cache.generation > 0 || cache.maybe_dirty;
    cache.failed.is_none() && is_attached
}

/// Whether an array counts on a device that is missing: not on a member or a journal that it has given up.
fn is_awaited(record: &RegisteredArray, newest: Option<&MemberLabel>, missing: &Missing) -> bool {
    let Some(label) = newest else { return true };
    let places = record.members.iter().enumerate();
    let mut places = places.filter(|(_, known)| known.as_ref() == Some(&missing.device));
    match missing.part {
        "member" => places.any(|(place, _)| {
            let known = label.places.get(place).map(|it| it.state);
            matches!(known, None | Some(MemberState::InService | MemberState::Rebuilding))
        }),
        "journal" => label.has_journal_device,
        _ => true,
    }
}

/// Whether a group would have no redundancy left without what is missing, or could not serve. Without a label
/// to go by, yes.
fn is_exposed(record: &RegisteredArray, newest: Option<&MemberLabel>, missing: &[Missing]) -> bool {
    let Some(label) = newest else { return true };
    let is_missing = |place: usize| {
        let known = record.members.get(place).and_then(Option::as_ref);
        missing.iter().any(|it| it.part == "member" && known == Some(&it.device))
    };
    let mut lost: Vec<u32> = Vec::new();
    for (place, own) in label.places.iter().enumerate() {
        let group = own.group as usize;
        lost.resize(lost.len().max(group + 1), 0);
        lost[group] += u32::from(own.state != MemberState::InService || is_missing(place));
    }
    let is_journal_missing = missing.iter().any(|it| it.part == "journal");
    is_journal_missing || lost.iter().any(|lost| *lost >= label.redundancy)
}
