//! The survey of recorded devices before an array or a volume is opened: which are there, and which may come.
//! A look for late devices asks here whether one has come.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use voltier_array::MemberState;

use crate::engine::{CacheLabel, MemberLabel};
use crate::error::ErrorKind;
use crate::records::{CacheRecord, RegisteredArray, VolumeRecord};
use crate::safety::DriveIdentity;
use crate::service::presence::absence::{AwaitedCache, Hindrance, Missing};
use crate::service::presence::{ephemeral, look};
use crate::service::state::turn::Turn;
use crate::spec::DeviceSpec;

/// Hold-off of an array that would be left without redundancy, or could not be assembled, in hold-offs of
/// others: there the next error costs data. With the usual 30 s that is 90 s: as long as systemd waits for a
/// device.
const EXPOSED_FACTOR: u32 = 3;

/// The devices of an array as a start finds them.
pub(crate) struct Survey {
    /// Devices that may be used.
    pub(crate) present: Vec<DeviceSpec>,
    /// Devices that may not, and why.
    pub(crate) left_out: Vec<String>,
    /// Devices that the array counts on and that may still come.
    pub(crate) missing: Vec<Missing>,
    /// Places whose members the labels count on, that are not there, and for which the record has no path.
    pub(crate) places: BTreeSet<u32>,
    /// Whether no redundancy would be left without them, or the array not be assembled at all.
    is_exposed: bool,
}

impl Survey {
    /// The end of a hold-off that has begun.
    pub(crate) fn until(&self, since: Instant, wait: Duration) -> Instant {
        since + if self.is_exposed { wait * EXPOSED_FACTOR } else { wait }
    }
}

/// Looks at the recorded devices of an array and at `others` that say they are of it; nothing is written. A
/// member counts as there when it says that it is one.
pub(crate) fn survey(
    service: &mut Turn,
    record: &RegisteredArray,
    others: &[DeviceSpec],
) -> Survey {
    let (mut present, mut left_out, mut missing) = (Vec::new(), Vec::new(), Vec::new());
    // A spare that has the array's label was taken before a crash.
    let spares: Vec<DeviceSpec> = record.spares.clone();
    let (taken, free): (Vec<_>, Vec<_>) =
        spares.into_iter().partition(|spare| look::has_label(service, spare, record.uuid));
    let members = record.members.iter().flatten().map(|device| (device, "member"));
    let ours = members.chain(record.incoming.iter().map(|device| (device, "pending member")));
    let ours = ours.chain(record.journal.iter().map(|device| (device, "journal")));
    for (device, part) in ours.chain(taken.iter().map(|device| (device, "spare"))) {
        if device.is_volatile() {
            left_out.push(format!("{device} was lost when the previous daemon ended"));
            continue;
        }
        // A path that is on record twice is opened once.
        if present.contains(device) {
            continue;
        }
        let hindered = hindered(service, device, part);
        // One that takes no writes can be read.
        let is_enough = |it: &Missing| record.read_only && it.hindrance == Hindrance::Protected;
        match hindered.filter(|it| !is_enough(it)) {
            None => present.push(device.clone()),
            Some(hindered) => {
                left_out.push(hindered.why.clone());
                missing.push(hindered);
            }
        }
    }
    present.extend(others.iter().cloned());
    let labelled = labels_of(service, record, &mut present, &mut left_out, &mut missing);
    let (labelled, known): (Vec<DeviceSpec>, Vec<MemberLabel>) = labelled.into_iter().unzip();
    let newest = known.iter().max_by_key(|label| label.event);
    if let Some(newest) = newest {
        if lacks_a_member(newest, &known) {
            missing.extend(free.iter().filter_map(|spare| hindered(service, spare, "spare")));
            // Devices on their way that have become members, by what other labels say.
            let incoming = record.incoming.iter();
            for device in incoming.filter(|it| present.contains(it) && !labelled.contains(it)) {
                let why = (Hindrance::Absent, stranger(service, record, device, None));
                missing.push(missing_as(service, device, "pending member", None, why));
            }
        }
        // The members themselves may still come.
        for (place, device) in record.members.iter().enumerate() {
            let Some(device) = device.as_ref().filter(|it| labelled.contains(it)) else { continue };
            if is_labelled(newest, &known, place) {
                continue;
            }
            let why =
                format!("{device} was member {place}, and another device of the array is there");
            missing.push(missing_as(service, device, "member", None, (Hindrance::Absent, why)));
        }
        missing.retain(|missing| is_awaited(record, newest, &known, missing));
    }
    let is_exposed = is_exposed(newest, &known, &missing);
    let places = newest.map(|newest| places_without_path(record, newest, &known));
    Survey { present, left_out, missing, places: places.unwrap_or_default(), is_exposed }
}

/// The members that are there with their labels, among them devices on their way and spares that became
/// members. Recorded members that have none of the array are missing, and such devices are left as they are.
fn labels_of(
    service: &mut Turn,
    record: &RegisteredArray,
    present: &mut Vec<DeviceSpec>,
    left_out: &mut Vec<String>,
    missing: &mut Vec<Missing>,
) -> Vec<(DeviceSpec, MemberLabel)> {
    let mut labels = Vec::new();
    let is_member = |device: &&DeviceSpec| record.members.contains(&Some((*device).clone()));
    for device in std::mem::take(present) {
        let label = service.reading(&device).label_of(&device);
        let why = match label {
            Ok(Some(label)) if label.array == record.uuid => {
                labels.push((device.clone(), label));
                present.push(device);
                continue;
            }
            // The array itself looks for the label of a journal, and for that of one on its way to be one.
            _ if !is_member(&&device) => {
                present.push(device);
                continue;
            }
            Ok(other) => {
                let why = stranger(service, record, &device, other);
                left_out.push(why.clone());
                (Hindrance::Absent, why)
            }
            // The member itself may be under another path, or come.
            Err(error) if error.clash.is_some() => {
                left_out.push(format!("{} (left out)", error.message));
                (Hindrance::Absent, error.message)
            }
            // There is nothing to wait for: with it the array refuses to start.
            Err(error) if error.is_unsupported_label(record.uuid) => {
                present.push(device);
                continue;
            }
            Err(error) => {
                present.push(device.clone());
                let is_shrunk = error.kind == ErrorKind::NotNow;
                let hindrance = if is_shrunk { Hindrance::Shrunk } else { Hindrance::Silent };
                (hindrance, error.message)
            }
        };
        missing.push(missing_as(service, &device, "member", None, why));
    }
    labels
}

/// A device that has the path of a part of an array, and is none of it, in words.
fn stranger(
    service: &mut Turn,
    record: &RegisteredArray,
    device: &DeviceSpec,
    label: Option<MemberLabel>,
) -> String {
    let name = &record.name;
    let mark = device
        .path()
        .and_then(|path| service.reading_identity_of(path.display()).drive_identity(path));
    let mark = mark.map(|mark| format!(" ({mark})")).unwrap_or_default();
    let is = match label {
        Some(label) => format!("member {} of the array {}", label.place, label.name),
        None => "without a label of an array".to_owned(),
    };
    let place = record.members.iter().position(|known| known.as_ref() == Some(device));
    let part = place.map_or_else(|| "no part".to_owned(), |place| format!("not member {place}"));
    format!("{device} is another device{mark}, {is}, and {part} of {name}: it is left alone")
}

/// The places that the newest label counts on, of which no device has the label, and the record no path. A
/// crash left them so, or other devices have got their paths.
fn places_without_path(
    record: &RegisteredArray,
    newest: &MemberLabel,
    labels: &[MemberLabel],
) -> BTreeSet<u32> {
    let has_path = |place: usize| record.members.get(place).is_some_and(Option::is_some);
    let places = (0_u32..).zip(&newest.places).filter(|(place, own)| {
        let place = *place as usize;
        is_counted_on(own.state) && !has_path(place) && !is_labelled(newest, labels, place)
    });
    places.map(|(place, _)| place).collect()
}

/// Whether one of these labels is that of the member in a place.
fn is_labelled(newest: &MemberLabel, labels: &[MemberLabel], place: usize) -> bool {
    let own = newest.places.get(place);
    own.is_some_and(|own| labels.iter().any(|label| label.member == own.member))
}

/// Whether the newest label counts on a member that none of the others is: a spare may be that by now.
fn lacks_a_member(newest: &MemberLabel, labels: &[MemberLabel]) -> bool {
    let is_there = |place: usize| {
        labels.iter().any(|label| label.place as usize == place && label.event == newest.event)
    };
    let mut places = newest.places.iter().enumerate();
    places.any(|(place, own)| is_counted_on(own.state) && !is_there(place))
}

pub(crate) fn is_counted_on(state: MemberState) -> bool {
    matches!(state, MemberState::InService | MemberState::Rebuilding)
}

/// The recorded drives that a volume needs and that are not there.
pub(crate) fn missing_drives(service: &mut Turn, record: &VolumeRecord) -> Vec<Missing> {
    let needed = record.cache.as_ref().filter(|cache| is_needed(cache));
    let parts = [("backing disk", None), ("SSD", needed)].into_iter().zip(record.drives());
    let mut missing = Vec::new();
    for ((part, cache), (device, identity)) in parts.take(1 + needed.iter().len()) {
        let is_waiting =
            |name| service.live_arrays.get(name).is_some_and(|it| it.absence.is_waiting());
        let is_waiting = device.array().is_some_and(is_waiting);
        let mut found = found(service, device, identity).filter(|_| !is_waiting);
        // Another drive may have the place of an ephemeral one.
        if found.is_none() && !is_waiting && cache.is_some_and(ephemeral::is_ephemeral) {
            found = service.id_of(device).map(|_| device.clone());
        }
        let Some(found) = found else {
            let why = (Hindrance::Absent, format!("{device} is not there"));
            let cache = cache.map(AwaitedCache::of);
            let cache =
                cache.map(|it| AwaitedCache { was_there: is_on(service, device, it), ..it });
            let absent = missing_as(service, device, part, identity, why);
            missing.push(Missing { cache, ..absent });
            continue;
        };
        if let Err(why) = look::look(service, &found) {
            missing.push(missing_as(service, device, part, identity, why));
        }
    }
    missing
}

/// The superblock of the SSD of a volume that could not be opened, if the SSD is there and the volume's. One that
/// does not hold the cache, or an older state of it, is missing: the right one may come under the same path.
pub(crate) fn ssd_label(
    service: &mut Turn,
    record: &VolumeRecord,
    missing: &mut Vec<Missing>,
) -> Option<CacheLabel> {
    let cache = record.cache.as_ref().filter(|cache| cache.device.is_external())?;
    if missing.iter().any(|missing| missing.device == cache.device) {
        return None;
    }
    let ssd = found(service, &cache.device, cache.identity.as_ref())?;
    // The volume's own error says what is wrong with an SSD that cannot be read.
    let label = service.reading(&ssd).cache_label_of(&ssd).ok()?;
    let awaited = AwaitedCache::of(cache);
    if is_needed(cache) && !label.as_ref().is_some_and(|it| awaited.is_held_by(it)) {
        let why = format!("{} does not hold the newest state of its cache", cache.device);
        let (device, identity) = (&cache.device, cache.identity.as_ref());
        let wrong = missing_as(service, device, "SSD", identity, (Hindrance::Wrong, why));
        missing.push(Missing { cache: Some(awaited), ..wrong });
        return None;
    }
    label.filter(|label| label.uuid == cache.uuid)
}

/// Whether an awaited cache is on a device.
fn is_on(service: &mut Turn, device: &DeviceSpec, awaited: AwaitedCache) -> bool {
    if look::look_once(service, device).is_err() {
        return false;
    }
    let label = service.reading(device).cache_label_of(device).ok().flatten();
    label.is_some_and(|label| awaited.is_held_by(&label))
}

/// A device that cannot be used now; `None` of one that can.
pub(crate) fn hindered(
    service: &mut Turn,
    device: &DeviceSpec,
    part: &'static str,
) -> Option<Missing> {
    let why = match look::look(service, device) {
        Err(why) => why,
        Ok(_) => {
            let how = look::write_protection(service, device)?;
            (Hindrance::Protected, format!("{device} {how}"))
        }
    };
    Some(missing_as(service, device, part, None, why))
}

pub(crate) fn missing_as(
    service: &mut Turn,
    device: &DeviceSpec,
    part: &'static str,
    identity: Option<&DriveIdentity>,
    (hindrance, why): (Hindrance, String),
) -> Missing {
    let seen = service.id_of(device);
    let (device, identity) = (device.clone(), identity.cloned());
    Missing { device, part, identity, seen, hindrance, why, cache: None }
}

/// Where a drive is now; `None` when nothing, or another drive, is under its path, and its mark on no other.
fn found(
    service: &mut Turn,
    device: &DeviceSpec,
    identity: Option<&DriveIdentity>,
) -> Option<DeviceSpec> {
    let Some(path) = device.path() else { return Some(device.clone()) };
    match identity.filter(|identity| identity.is_known()) {
        Some(known)
            if service.reading_identity_of(path.display()).drive_identity(path).as_ref()
                == Some(known) =>
        {
            Some(device.clone())
        }
        Some(known) => {
            let found = service.looking_for(known).find_drive(known, path);
            found.map(|found| device.moved_to(found))
        }
        None => service.id_of(device).map(|_| device.clone()),
    }
}

/// Whether a device may have come since it was looked for, or can be used again.
pub(crate) fn has_come(service: &mut Turn, missing: &Missing) -> bool {
    let Missing { device, identity, seen, hindrance, .. } = missing;
    if !device.is_external() {
        return false;
    }
    if device.remote().is_some() {
        let is_there = *hindrance != Hindrance::Wrong && look::look_once(service, device).is_ok();
        let may_be_written = *hindrance != Hindrance::Protected;
        return is_there && (may_be_written || look::write_protection(service, device).is_none());
    }
    let found = found(service, device, identity.as_ref());
    // A start opens what is under the path, if the cache is on it, when the SSD itself is not there.
    if let Some(awaited) = missing.cache.filter(|awaited| !awaited.was_there)
        && is_on(service, found.as_ref().unwrap_or(device), awaited)
    {
        return true;
    }
    let Some(found) = found else { return false };
    match hindrance {
        Hindrance::Absent => {}
        Hindrance::Wrong => return false,
        Hindrance::Busy | Hindrance::Silent => return look::look(service, &found).is_ok(),
        Hindrance::Shrunk => {
            return look::look(service, &found).is_ok()
                && service.reading(&found).label_of(&found).is_ok();
        }
        Hindrance::Protected => {
            return look::look(service, &found).is_ok()
                && look::write_protection(service, &found).is_none();
        }
    }
    identity.as_ref().is_some_and(DriveIdentity::is_known) || service.id_of(device) != *seen
}

/// Whether a volume is not opened as it was without the SSD of this cache.
fn is_needed(cache: &CacheRecord) -> bool {
    let is_attached = cache.generation > 0 || cache.maybe_dirty;
    cache.failed.is_none() && is_attached
}

/// Whether an array waits for a device that is missing: not for a member or a journal that it has given up, nor
/// for a member that is there under the path of another part. Nobody is behind the old path then.
fn is_awaited(
    record: &RegisteredArray,
    newest: &MemberLabel,
    labels: &[MemberLabel],
    missing: &Missing,
) -> bool {
    let awaits = |(place, known): (usize, &Option<DeviceSpec>)| {
        let is_kept = newest.places.get(place).is_none_or(|own| is_counted_on(own.state));
        known.as_ref() == Some(&missing.device) && is_kept && !is_labelled(newest, labels, place)
    };
    match missing.part {
        "member" => record.members.iter().enumerate().any(awaits),
        "journal" => newest.has_journal_device,
        _ => true,
    }
}

/// Whether a group would have no redundancy left without what is missing, or could not serve. Without a label
/// to go by, yes.
fn is_exposed(newest: Option<&MemberLabel>, labels: &[MemberLabel], missing: &[Missing]) -> bool {
    let Some(newest) = newest else { return true };
    let mut lost: Vec<u32> = Vec::new();
    for (place, own) in newest.places.iter().enumerate() {
        let group = own.group as usize;
        lost.resize(lost.len().max(group + 1), 0);
        let serves = own.state == MemberState::InService && is_labelled(newest, labels, place);
        lost[group] += u32::from(!serves);
    }
    let is_journal_missing = missing.iter().any(|it| it.part == "journal");
    is_journal_missing || lost.iter().any(|lost| *lost >= newest.redundancy)
}

/// Where the SSD of a cache is now; `None` when the SSD is not there.
pub(crate) fn ssd_of(service: &mut Turn, cache: &CacheRecord) -> Option<DeviceSpec> {
    found(service, &cache.device, cache.identity.as_ref())
}
