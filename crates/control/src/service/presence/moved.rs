//! Arrays whose devices have other paths by now. The kernel gives names such as `/dev/sdb` anew at every
//! start. So a recorded path is a hint, and the label of a device says which part of which array it is.

use crate::error::{ControlError, ControlResult};
use crate::name::ArrayName;
use crate::records::{RegisteredArray, VolumeRecord};
use crate::safety::DriveIdentity;
use crate::service::presence::absence::{Absence, Hindrance};
use crate::service::presence::label_search::{Wanted, around, find, is_current};
use crate::service::presence::last_search::{Copied, Search};
use crate::service::presence::look;
use crate::service::presence::survey::missing_as;
use crate::service::state::live::LiveArray;
use crate::service::state::turn::Turn;
use crate::spec::DeviceSpec;

/// An array whose devices were looked for.
pub(crate) struct Located {
    /// The record with the paths of now.
    pub(crate) record: RegisteredArray,
    /// Further devices that say they are members or the journal of the array.
    pub(crate) others: Vec<DeviceSpec>,
    /// Former members that are left alone, each with a line for the log.
    pub(crate) former: Vec<(DeviceSpec, String)>,
    search: Search,
}

impl Located {
    /// Whether two devices say that they are the same member: nobody knows which one is the copy.
    pub(crate) fn has_copies(&self) -> bool {
        !self.search.copies.is_empty()
    }
}

/// Finds the devices of an array that is not open. Those with other paths are logged and put on record.
pub(crate) fn locate(service: &mut Turn, record: RegisteredArray) -> Located {
    locate_wanted(service, record, &Wanted::All)
}

fn locate_wanted(service: &mut Turn, before: RegisteredArray, wanted: &Wanted) -> Located {
    let name = before.name.clone();
    let around = around(service, &before);
    let parts = find(service, &before, wanted);
    // The array may have lost members, or taken spares, during the search.
    let before = service.registry.find_array(&name).cloned().unwrap_or(before);
    let (mut record, mut news) = (before.clone(), Vec::new());
    parts.record_paths(&mut record, wanted, &mut news);
    let (others, former) = (parts.others(&record), parts.former(&record));
    let earlier = service.live_arrays.get(&name).map(|live| live.search.moved.clone());
    let search = Search {
        around: Some(around),
        copies: parts.copies(&record),
        moved: [earlier.unwrap_or_default(), news.clone()].concat(),
        ours: parts.devices(),
        hindered: parts.hindered,
    };
    if record != before {
        let recorded = service.registry.put_array(record.clone());
        service.note_array(&name, recorded);
    }
    for line in news {
        service.engine.log(&format!("array {name}: {line}"));
    }
    Located { record, others, former, search }
}

/// Leaves an array at rest of which two devices say that they are the same member.
pub(crate) fn refuse(service: &mut Turn, located: Located) {
    let Located { record, search, .. } = located;
    let name = record.name;
    let lines: Vec<String> = search.copies.iter().map(|copied| copied.line(&name)).collect();
    let error = lines.join("; ");
    if service.live_arrays.get(&name).is_none_or(|before| before.error != error) {
        service.engine.warn(&format!("array {name}: {error}"));
    }
    let mut absence = Absence::default();
    for Copied { devices, .. } in &search.copies {
        for device in devices {
            let why = (Hindrance::Absent, format!("{device} may be a copy"));
            absence.missing.push(missing_as(service, device, "member", None, why));
        }
    }
    let live = LiveArray { error, absence, search, ..LiveArray::default() };
    service.live_arrays.insert(name, live);
}

/// Keeps what a search found beside what became of its array.
pub(crate) fn keep(service: &mut Turn, name: &ArrayName, located: Located) {
    if let Some(live) = service.live_arrays.get_mut(name) {
        live.search = located.search;
    }
}

/// Whether other devices than at the last search say that they are of an array. While no device comes or
/// goes, nothing is read.
pub(crate) fn has_news(service: &mut Turn, record: &RegisteredArray) -> bool {
    let Some(live) = service.live_arrays.get(&record.name) else { return false };
    let (mut search, wanted) = (live.search.clone(), wanted_of(live));
    let now = Some(around(service, record));
    // An array that was made or assembled by a command was never looked for.
    let is_same = search.around.is_none() || search.around == now;
    if is_same && !search.hindered.iter().any(|device| look::look_once(service, device).is_ok()) {
        return false;
    }
    let parts = find(service, record, &wanted);
    let before = std::mem::replace(&mut search.ours, parts.devices());
    (search.around, search.hindered) = (now, parts.hindered);
    let is_news = search.ours != before;
    if let Some(live) = service.live_arrays.get_mut(&record.name) {
        live.search = search;
    }
    is_news
}

/// Of an array that is open only what is missing.
fn wanted_of(live: &LiveArray) -> Wanted {
    match live.size_bytes {
        Some(_) => {
            let Absence { missing, places, .. } = &live.absence;
            let devices = missing.iter().map(|missing| missing.device.clone()).collect();
            Wanted::These { devices, places: places.clone() }
        }
        None => Wanted::All,
    }
}

/// Looks for the missing devices of an open array, and awaits them where they are now. The record with the
/// paths of now.
pub(crate) fn follow(service: &mut Turn, record: RegisteredArray) -> RegisteredArray {
    let name = record.name.clone();
    let Some(live) = service.live_arrays.get(&name) else { return record };
    let (wanted, said) = (wanted_of(live), live.search.copies.clone());
    let located = locate_wanted(service, record.clone(), &wanted);
    let now = located.record.clone();
    let Some(live) = service.live_arrays.get_mut(&name) else { return now };
    let members = record.members.iter().zip(&now.members);
    let members = members.filter_map(|(was, is)| Some((was.as_ref()?, is.as_ref()?)));
    let moved: Vec<_> = members.chain(record.spares.iter().zip(&now.spares)).collect();
    live.absence.follow(&moved);
    live.absence.await_as_spares(&now.spares);
    let found = live
        .absence
        .places
        .iter()
        .filter_map(|place| Some((*place, now.members.get(*place as usize)?.clone()?)));
    let found = found.collect();
    live.absence.found_paths(found);
    let gone: Vec<String> = said.iter().map(|copied| copied.line(&name)).collect();
    live.left_out.retain(|line| !gone.contains(line));
    let copies: Vec<String> = located.search.copies.iter().map(|it| it.line(&name)).collect();
    live.left_out.extend(copies.iter().cloned());
    for line in copies.iter().filter(|line| !gone.contains(line)) {
        service.engine.warn(&format!("array {name}: {line}"));
    }
    keep(service, &name, located);
    now
}

/// Whether a device says that it is the same member as another one: neither is taken.
pub(crate) fn is_copied(service: &Turn, name: &ArrayName, device: &DeviceSpec) -> bool {
    let live = service.live_arrays.get(name);
    live.is_some_and(|live| live.search.copies.iter().any(|it| it.devices.contains(device)))
}

/// Refuses an origin that only its path makes the volume's, when its label says that it is in service in an
/// array on record.
pub(crate) fn is_no_member(service: &mut Turn, record: &VolumeRecord) -> ControlResult<()> {
    let origin = &record.origin;
    let has_mark = record.origin_identity.as_ref().is_some_and(DriveIdentity::is_known);
    if has_mark || !origin.is_external() {
        return Ok(());
    }
    let label = service.reading(origin).label_of(origin);
    let label = match label {
        Ok(Some(label)) => label,
        Ok(None) => return Ok(()),
        Err(error) => {
            // Whether it is in service there, only a newer program can say.
            let mut arrays = service.registry.arrays().iter();
            let array = arrays.find(|array| error.is_unsupported_label(array.uuid));
            return array.map_or(Ok(()), |array| {
                let name = &array.name;
                Err(ControlError::unsupported_label(
                    array.uuid,
                    format!("its backing disk has a label of the array {name}: {error}"),
                ))
            });
        }
    };
    let array = service.registry.array_with(label.array);
    match array.filter(|array| is_current(&label, array)) {
        None => Ok(()),
        Some(array) => Err(ControlError::failed(format!(
            "another drive has the path of its backing disk {origin}: member {} of the array {}; \
             connect the right disk, and name it with `voltier set {} hdd=DEVICE`",
            label.place, array.name, record.name
        ))),
    }
}
