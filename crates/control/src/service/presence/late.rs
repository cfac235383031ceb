//! Devices that come late. The service tries what waits for them when they are there, or when the
//! hold-off is over. The service tries again what failed for want of them, and a member that was
//! missing returns to its array: to wait for a command would cost redundancy until the command comes. A
//! member that was given up for its errors returns by a command alone.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::error::ControlResult;
use crate::name::{ArrayName, VolumeName};
use crate::protocol::Response;
use crate::records::{Desired, RegisteredArray, VolumeRecord};
use crate::service::arrays;
use crate::service::presence::absence::{Absence, Missing};
use crate::service::presence::moved::Located;
use crate::service::presence::survey::Survey;
use crate::service::presence::{admit, ephemeral, fallen, faults, look, moved, start, survey};
use crate::service::state::claims::Subject;
use crate::service::state::live::{Live, LiveArray, now};
use crate::service::state::turn::Turn;
use crate::service::volumes::{show, stops};
use crate::spec::DeviceSpec;

/// How long a start waits for devices that are not there, in seconds, unless the daemon is told otherwise.
pub const DEVICE_WAIT_S: u16 = 30;
/// How often missing devices are looked for while something waits for them.
const LOOK_STEP: Duration = Duration::from_secs(1);
/// How often they are looked for when nothing waits any more.
const LATE_LOOK_STEP: Duration = Duration::from_secs(5);

/// The end of an attempt to put a member back.
enum Comeback {
    /// The member is in its place again.
    Done(u32),
    /// The device is no member of the array, or another one has its place.
    Stranger,
    /// The device is a member, and the array does not take it back as it is.
    Refused(u32),
}

/// The arrays and volumes of which a device is looked for.
pub(crate) fn looked_for(service: &Turn) -> (Vec<ArrayName>, Vec<VolumeName>) {
    let arrays = service.live_arrays.iter().filter(|(_, live)| is_late(&live.absence));
    let takes_records = service.registry.trouble().is_none();
    let is_looked_for = |live: &Live| is_late(&live.absence) || live.is_unrecorded && takes_records;
    let is_to_try = |live: &Live| match live.is_open {
        true => live.awaits_ssd,
        false => is_looked_for(live),
    };
    let volumes = service.live.iter().filter(|(_, live)| is_to_try(live));
    (
        arrays.map(|(name, _)| name.clone()).collect(),
        volumes.map(|(name, _)| name.clone()).collect(),
    )
}

/// Looks for the missing drives of a volume, and tries the volume when that is due.
pub(crate) fn look_for_drives(service: &mut Turn, name: &VolumeName, now: Instant) {
    let Some(record) = service.registry.find(name).cloned() else { return };
    if service.is_open(name) {
        return ephemeral::take_up(service, name);
    }
    let Some(live) = service.live.get(name) else { return };
    let (absence, is_unrecorded) = (live.absence.clone(), live.is_unrecorded);
    if is_unrecorded && service.registry.trouble().is_none() {
        bring_up(service, &record);
    } else if let Some(since) = is_due(service, &absence, now) {
        try_volume(service, &record, Some(since), now);
    }
}

fn is_late(absence: &Absence) -> bool {
    absence.since.is_some() || absence.lacks_any()
}

/// The paths that a start opens, or a look for missing devices if there is one.
pub(crate) fn paths_to_open(service: &Turn) -> BTreeSet<PathBuf> {
    let mut devices: Vec<&DeviceSpec> = Vec::new();
    for array in service.registry.arrays() {
        match service.live_arrays.get(&array.name) {
            Some(live) if live.size_bytes.is_some() => {
                devices.extend(live.absence.missing.iter().map(|missing| &missing.device));
            }
            Some(live) if !is_late(&live.absence) => {}
            _ => devices.extend(array.devices()),
        }
    }
    let volumes = service.registry.volumes().iter();
    for volume in volumes.filter(|volume| volume.desired != Desired::Stopped) {
        let is_tried = |live: &Live| live.awaits_ssd || (!live.is_open && is_late(&live.absence));
        if service.live.get(&volume.name).is_none_or(is_tried) {
            devices.extend(volume.devices());
        }
    }
    let is_begun = !service.live.is_empty() || !service.live_arrays.is_empty();
    if !is_begun || !service.unfit_spares.is_empty() {
        let pools = service.registry.pools().iter();
        devices.extend(pools.flat_map(|pool| &pool.spares).map(|spare| &spare.device));
    }
    devices.iter().filter_map(|device| device.path()).map(Path::to_owned).collect()
}

/// How soon to look for missing devices again, if there are any.
pub(crate) fn next_look(service: &Turn) -> Option<Duration> {
    let mut absences = service.absences();
    let is_unrecorded = service.live.values().any(|live| live.is_unrecorded);
    if absences.clone().any(Absence::is_waiting) || is_unrecorded {
        return Some(LOOK_STEP);
    }
    let awaits_ssd = service.live.values().any(|live| live.is_open && live.awaits_ssd);
    let is_late = awaits_ssd || absences.any(is_late) || !service.fallen.is_empty();
    is_late.then_some(LATE_LOOK_STEP)
}

/// The beginning of the hold-off with which something that is not open is tried now, if it is. A device
/// that comes after the hold-off begins a new one: others may be behind it.
fn is_due(service: &mut Turn, absence: &Absence, now: Instant) -> Option<Instant> {
    let has_come = absence.missing.iter().any(|missing| survey::has_come(service, missing));
    due_since(absence, has_come, now)
}

/// The same when it is known whether a device has come.
fn due_since(absence: &Absence, has_come: bool, now: Instant) -> Option<Instant> {
    let is_over = absence.until.is_none_or(|until| now >= until);
    match absence.since {
        Some(since) => (has_come || is_over).then_some(since),
        None => has_come.then_some(now),
    }
}

/// Looks for the missing members of an array, and assembles one that is not open when that is due.
pub(crate) fn look_for_members(service: &mut Turn, name: &ArrayName, now: Instant) {
    let (Some(mut record), name) = (service.registry.find_array(name).cloned(), name.clone())
    else {
        return;
    };
    let Some(live) = service.live_arrays.get(&name) else { return };
    let (mut absence, is_open) = (live.absence.clone(), live.size_bytes.is_some());
    let has_news = is_late(&absence) && moved::has_news(service, &record);
    if is_open && record.read_only {
        return;
    }
    if is_open {
        forget_taken_places(service, &record);
        if has_news {
            record = moved::follow(service, record);
        }
        let live = service.live_arrays.get(&name);
        absence = live.map(|live| live.absence.clone()).unwrap_or_default();
        for missing in absence.missing {
            let (device, is_spare) = (&missing.device, missing.is_spare());
            let is_ours = match is_spare {
                // A spare that became a member comes as the member.
                true if record.members.contains(&Some(device.clone())) => continue,
                true => record.spares.contains(device),
                false => record.members.contains(&Some(device.clone())),
            };
            if !is_ours {
                // A spare or another device has the place of a member that is missing.
                let live = service.live_arrays.get_mut(&name);
                live.into_iter().for_each(|live| live.absence.forget(device));
            } else if !moved::is_copied(service, &name, device)
                && survey::has_come(service, &missing)
            {
                if is_spare {
                    arrays::members::spare_again(service, &name, device);
                    arrays::events::record(service);
                } else {
                    member_has_come(service, &name, &missing);
                }
            }
        }
        return;
    }
    let due = match has_news {
        true => due_since(&absence, true, now),
        false => is_due(service, &absence, now),
    };
    if let Some(since) = due {
        try_array(service, record, Some(since), now);
        if service.size_of_array(&name).is_ok() {
            serve_again(service, &name, now);
        }
    }
}

/// Assembles an array, unless its hold-off lasts and a device is missing. Without a hold-off it is
/// assembled at once, with what is there.
pub(crate) fn try_array(
    service: &mut Turn,
    record: RegisteredArray,
    since: Option<Instant>,
    now: Instant,
) {
    let has_crashed = service.crashed.contains(&Subject::Array(record.name.clone()));
    faults::attempt(service, has_crashed, |service| attempt_array(service, record, since, now));
}

fn attempt_array(
    service: &mut Turn,
    record: RegisteredArray,
    since: Option<Instant>,
    now: Instant,
) {
    let name = record.name.clone();
    let located = moved::locate(service, record);
    if located.has_copies() {
        return moved::refuse(service, located);
    }
    attempt_located(service, &located, since, now);
    moved::keep(service, &name, located);
}

fn attempt_located(service: &mut Turn, located: &Located, since: Option<Instant>, now: Instant) {
    let (record, wait) = (located.record.clone(), service.device_wait);
    let name = record.name.clone();
    let mut survey = survey::survey(service, &record, &located.others);
    let is_left = |(device, _): &&(DeviceSpec, String)| !survey.present.contains(device);
    let former: Vec<String> =
        located.former.iter().filter(is_left).map(|(_, line)| line.clone()).collect();
    survey.left_out.extend(former);
    let until = since.map(|since| survey.until(since, wait)).filter(|until| now < *until);
    if until.is_some() && !(survey.missing.is_empty() && survey.places.is_empty()) {
        let absence = Absence { missing: survey.missing, places: survey.places, since, until };
        let error = absence.text("voltier array", name.as_str());
        let before = service.live_arrays.get(&name).map(|live| &live.absence);
        for missing in absence.news_since(before) {
            service.engine.log(&format!("array {name}: waiting: {missing}"));
        }
        let live = LiveArray { error, absence, ..LiveArray::default() };
        service.live_arrays.insert(name, live);
        return;
    }
    survey.left_out.extend(not_found_lines(&name, &survey));
    arrays::open::assemble(service, record, survey);
    if let Some(live) = service.live_arrays.get_mut(&name)
        && live.size_bytes.is_none()
    {
        live.absence.since = since.filter(|since| now < *since + wait);
    }
}

/// Opens a volume, unless its hold-off lasts and a drive is missing. Without a hold-off it is opened at
/// once, with what is there.
pub(crate) fn try_volume(
    service: &mut Turn,
    record: &VolumeRecord,
    since: Option<Instant>,
    now: Instant,
) {
    let is_left = record.devices().any(|device| look::is_letting_go(service, device));
    let is_patient = is_left || service.crashed.contains(&Subject::Volume(record.name.clone()));
    faults::attempt(service, is_patient, |service| attempt_volume(service, record, since, now));
}

fn attempt_volume(service: &mut Turn, record: &VolumeRecord, since: Option<Instant>, now: Instant) {
    let (name, wait) = (record.name.clone(), service.device_wait);
    let since = since.filter(|_| !wait.is_zero());
    if let Some(begun) = since {
        let missing = survey::missing_drives(service, record);
        let arrays = missing.iter().filter_map(|it| service.live_arrays.get(it.device.array()?));
        let ends = arrays.filter_map(|live| live.absence.until).chain([begun + wait]);
        let until = ends.max().filter(|until| now < *until && !missing.is_empty());
        if until.is_some() {
            let absence = Absence { missing, since, until, ..Absence::default() };
            let before = service.live.get(&name).map(|live| &live.absence);
            for missing in absence.news_since(before) {
                service.log(&name, &format!("waiting: {missing}"));
            }
            let error = absence.text("voltier", name.as_str());
            service.live.insert(name, Live { error, absence, ..Live::new() });
            return;
        }
    }
    start::open_up(service, record);
    if service.live.get(&name).is_some_and(|live| !live.is_open) {
        let mut missing = survey::missing_drives(service, record);
        let ssd_label = survey::ssd_label(service, record, &mut missing);
        let since = since.filter(|since| now < *since + wait);
        if let Some(live) = service.live.get_mut(&name) {
            live.absence = Absence { missing, since, ..Absence::default() };
            live.ssd_label = ssd_label;
        }
    }
}

/// Brings one volume up; one that waits goes on waiting.
pub(crate) fn bring_up(service: &mut Turn, record: &VolumeRecord) {
    let since = hold_off_of(service, &record.name);
    try_volume(service, record, since, now());
}

/// The beginning of the hold-off of a volume, if it has one.
pub(crate) fn hold_off_of(service: &Turn, name: &VolumeName) -> Option<Instant> {
    service.live.get(name).and_then(|live| live.absence.since)
}

/// Brings up the volumes of an array that is open again.
pub(crate) fn serve_again(service: &mut Turn, array: &ArrayName, now: Instant) {
    for volume in service.registry.volumes().to_vec() {
        let stands = volume.devices().any(|it| it.array() == Some(array));
        if stands && volume.desired != Desired::Stopped && !service.is_open(&volume.name) {
            let since = hold_off_of(service, &volume.name).unwrap_or(now);
            try_volume(service, &volume, Some(since), now);
        }
    }
}

/// Opens a volume now, with what is there, and the arrays that it stands on.
pub(crate) fn start_volume(service: &mut Turn, name: &VolumeName) -> ControlResult<Response> {
    let record = service.record(name)?;
    let record = stops::unstop(service, record)?;
    for array in record.devices().filter_map(|device| device.array()) {
        // The volume's own error tells of one that is not open.
        let _ = start_array(service, array);
    }
    if !service.is_open(name) {
        try_volume(service, &record, None, now());
    }
    service.open_record(name)?;
    Ok(show::volume(service, name))
}

/// Assembles an array now, with what is there.
pub(crate) fn start_array(service: &mut Turn, name: &ArrayName) -> ControlResult<Response> {
    let mut record = service.array_record(name)?;
    if record.stopped {
        record.stopped = false;
        service.registry.put_array(record.clone())?;
    }
    if service.size_of_array(name).is_err() {
        try_array(service, record, None, now());
        service.size_of_array(name)?;
        serve_again(service, name, now());
    } else if arrays::show::failure(service, &DeviceSpec::Array(name.clone())).is_some() {
        fallen::assemble_anew(service, record, now());
        service.size_of_array(name)?;
    }
    arrays::show::must_take_changes(service, name)?;
    Ok(arrays::show::response(service, name, Vec::new()))
}

/// Puts a member back that was missing when its array was assembled.
fn member_has_come(service: &mut Turn, name: &ArrayName, missing: &Missing) {
    let device = &missing.device;
    let comeback = take_member_back(service, name, missing);
    let line = match &comeback {
        Ok(Comeback::Stranger) => None,
        Ok(Comeback::Done(place)) => {
            Some(format!("{device} is back as member {place}; only what changed since is rebuilt"))
        }
        Ok(Comeback::Refused(place)) => Some(format!(
            "{device} is back, but cannot return as it is: another device has its place, or it \
             was used without the others; if nothing on it is newer, `voltier array replace \
             {name} {place} {device}` fills it from the others"
        )),
        Err(error) => Some(format!("{device} is back, but not in service: {error}")),
    };
    let seen = service.id_of(device);
    let Some(live) = service.live_arrays.get_mut(name) else { return };
    let is_news = line.as_ref().is_some_and(|line| !live.left_out.contains(line));
    match &comeback {
        Ok(Comeback::Stranger) => live.absence.saw(device, seen),
        Ok(_) => live.absence.forget(device),
        // Somebody may have it open for a moment.
        Err(_) => {}
    }
    if let Some(line) = line.filter(|_| is_news) {
        let mut of_it = vec![format!("{device} ")];
        if let Ok(Comeback::Done(place)) = &comeback {
            of_it.push(not_found(*place));
        }
        live.left_out
            .retain(|it| *it != missing.why && !of_it.iter().any(|begin| it.starts_with(begin)));
        if !matches!(comeback, Ok(Comeback::Done(_))) {
            live.left_out.push(line.clone());
        }
        service.engine.log(&format!("array {name}: {line}"));
    }
    arrays::events::record(service);
}

fn take_member_back(
    service: &mut Turn,
    name: &ArrayName,
    missing: &Missing,
) -> ControlResult<Comeback> {
    let (record, device) = (service.array_record(name)?, &missing.device);
    look::look_at(service, device, 0, "member")?;
    look::takes_writes(service, device, "member")?;
    let label = service.reading(device).label_of(device)?;
    let place = match label {
        Some(label) if label.array == record.uuid => label.place,
        _ => return Ok(Comeback::Stranger),
    };
    admit::is_nobody_elses(service, device, record.uuid)?;
    // The path of before, or one where another member that is missing was: not the device of one in service.
    let known = record.members.get(place as usize).and_then(Option::as_ref);
    let absence = service.live_arrays.get(name).map(|live| &live.absence);
    let is_missing = |known| absence.is_some_and(|absence| absence.lacks(known));
    if known.is_some_and(|known| known != device && !is_missing(known)) {
        return Ok(Comeback::Stranger);
    }
    let is_back = service.writing_to(device).restore_member(name, place, device)?;
    Ok(if is_back { Comeback::Done(place) } else { Comeback::Refused(place) })
}

/// Awaits no member for a place that another device has got meanwhile.
fn forget_taken_places(service: &mut Turn, record: &RegisteredArray) {
    let has_path = |place: &u32| record.members.get(*place as usize).is_some_and(Option::is_some);
    let Some(live) = service.live_arrays.get_mut(&record.name) else { return };
    let taken: BTreeSet<u32> = live.absence.places.iter().copied().filter(has_path).collect();
    live.absence.places.retain(|place| !taken.contains(place));
    live.left_out.retain(|line| !taken.iter().any(|place| line.starts_with(&not_found(*place))));
}

/// The beginning of the line about a member without a path on record that no search has found.
fn not_found(place: u32) -> String {
    format!("member {place} was not found")
}

/// The lines about members without paths on record that no search has found.
fn not_found_lines(name: &ArrayName, survey: &Survey) -> Vec<String> {
    let line = |place: &u32| {
        format!(
            "{} under any path; if it is a file in another folder: `voltier array replace {name} {place} FILE`",
            not_found(*place)
        )
    };
    survey.places.iter().map(line).collect()
}
