//! The search for devices whose labels name an array, wherever their paths lead.
//!
//! A search looks at recorded paths, then at all block devices, then at files beside recorded files that are
//! not there. The search passes over what somebody has, and writes to no device.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::engine::{LabelledPlace, MemberLabel};
use crate::error::{ControlResult, ErrorKind};
use crate::records::{Identity, RegisteredArray};
use crate::safety::DeviceId;
use crate::service::presence::absence::Hindrance;
use crate::service::presence::last_search::Copied;
use crate::service::presence::survey::is_counted_on;
use crate::service::presence::{admit, look};
use crate::service::state::turn::Turn;
use crate::spec::DeviceSpec;

/// The recorded devices that a search is for.
pub(crate) enum Wanted {
    /// All that have paths, and the members of places without one.
    All,
    /// These devices, and the members of these places without a path: the others are in use.
    These { devices: Vec<DeviceSpec>, places: BTreeSet<u32> },
}

impl Wanted {
    fn has(&self, device: &DeviceSpec) -> bool {
        let is_one = match self {
            Self::All => true,
            Self::These { devices, .. } => devices.contains(device),
        };
        is_one && device.is_external()
    }

    /// Whether the member of a place is searched for, of which the record has no path.
    fn has_place(&self, place: usize) -> bool {
        match self {
            Self::All => true,
            Self::These { places, .. } => places.iter().any(|it| *it as usize == place),
        }
    }

    /// Whether the members of some places are searched for, whatever is on record.
    fn names_places(&self) -> bool {
        matches!(self, Self::These { places, .. } if !places.is_empty())
    }
}

/// A device that says it is of the array.
struct Part {
    device: DeviceSpec,
    label: PartLabel,
}

enum PartLabel {
    Member(MemberLabel),
    Journal,
    Spare,
    /// A member or journal, by a label that only a newer program can read.
    Newer,
}

impl Part {
    fn member(&self) -> Option<&MemberLabel> {
        match &self.label {
            PartLabel::Member(label) => Some(label),
            PartLabel::Journal | PartLabel::Spare | PartLabel::Newer => None,
        }
    }
}

/// The devices that say they are of an array.
#[derive(Default)]
pub(crate) struct Parts {
    parts: Vec<Part>,
    /// Devices with a label that could not be asked.
    pub(crate) hindered: Vec<DeviceSpec>,
}

/// All that there is to be looked at for an array.
pub(crate) fn around(service: &mut Turn, record: &RegisteredArray) -> Vec<(PathBuf, u64)> {
    service.apart("listing all drives").around(&folders_of(record))
}

/// The folders of the recorded devices.
fn folders_of(record: &RegisteredArray) -> BTreeSet<PathBuf> {
    let folders = record.devices().filter_map(|device| device.path()?.parent());
    folders.map(Path::to_owned).collect()
}

/// Looks for the devices of an array.
pub(crate) fn find(service: &mut Turn, record: &RegisteredArray, wanted: &Wanted) -> Parts {
    let mut found = Parts::default();
    let mut recorded: Vec<&DeviceSpec> = Vec::new();
    for device in record.devices().filter(|device| wanted.has(device)) {
        if !recorded.contains(&device) && look::look(service, device).is_ok() {
            found.parts.extend(part_of(service, record, device).unwrap_or_default());
        }
        recorded.push(device);
    }
    if recorded.is_empty() && !wanted.names_places() {
        return found;
    }
    let paths = service.reading("all drives").own_devices();
    for path in paths {
        found.look_beside(service, record, DeviceSpec::Path(path));
    }
    if found.lack_one(record, wanted) || found.lack_by_label(wanted) {
        for folder in folders_of(record) {
            let folder_name = format_args!("the files of {}", folder.display());
            let paths = service.reading(folder_name).own_files(&folder);
            for path in paths {
                found.look_beside(service, record, DeviceSpec::Path(path));
            }
        }
    }
    found
}

impl Parts {
    /// Looks at a device that is not under a recorded path.
    fn look_beside(&mut self, service: &mut Turn, record: &RegisteredArray, device: DeviceSpec) {
        let Some(id) = service.id_of(&device) else { return };
        let is_recorded = record.devices().any(|known| service.id_of(known).as_ref() == Some(&id));
        let mut parts = self.parts.iter();
        // A loop device over a file that was found, or a disk of a partition.
        let is_found =
            parts.any(|it| service.id_of(&it.device).is_some_and(|part| part.overlaps(&id)));
        if is_recorded || is_found || is_served(service, &id) {
            return;
        }
        match look::look_once(service, &device) {
            Ok(_) => match part_of(service, record, &device) {
                Ok(part) => self.parts.extend(part),
                // Of something else, and no other look says more.
                Err(error) if error.kind == ErrorKind::Unsupported => {}
                // Nobody knows yet what it says.
                Err(_) => self.hindered.push(device),
            },
            Err((Hindrance::Absent | Hindrance::Wrong, _)) => {}
            Err(_) => self.hindered.push(device),
        }
    }

    /// Whether a recorded device is not among them.
    fn lack_one(&self, record: &RegisteredArray, wanted: &Wanted) -> bool {
        let members = record.members.iter().enumerate();
        let mut members = members.filter(|(place, known)| {
            known.as_ref().map_or(wanted.has_place(*place), |it| wanted.has(it))
        });
        let is_member =
            |part: &Part, place| part.member().is_some_and(|it| it.place as usize == place);
        let has_spare = |part: &&Part| matches!(part.label, PartLabel::Spare);
        let spares = record.spares.iter().filter(|spare| wanted.has(spare)).count();
        members.any(|(place, _)| !self.parts.iter().any(|part| is_member(part, place)))
            || self.parts.iter().filter(has_spare).count() < spares
            || record.journal.iter().any(|journal| wanted.has(journal) && !self.has(journal))
            || record.incoming.iter().any(|device| wanted.has(device) && !self.has(device))
    }

    /// Whether the newest label counts on a member or a journal that is not among them, whatever the record
    /// says: the registry may be older than the array.
    fn lack_by_label(&self, wanted: &Wanted) -> bool {
        let Some(newest) = self.newest().filter(|_| matches!(wanted, Wanted::All)) else {
            return false;
        };
        let is_there =
            |own: &LabelledPlace| self.members().any(|(_, label)| label.member == own.member);
        let has_journal = self.parts.iter().any(|part| matches!(part.label, PartLabel::Journal));
        newest.places.iter().any(|own| is_counted_on(own.state) && !is_there(own))
            || (newest.has_journal_device && !has_journal)
    }

    fn members(&self) -> impl Iterator<Item = (&DeviceSpec, &MemberLabel)> {
        self.parts.iter().filter_map(|part| Some((&part.device, part.member()?)))
    }

    /// The label that knows most.
    fn newest(&self) -> Option<&MemberLabel> {
        self.members().map(|(_, label)| label).max_by_key(|label| label.event)
    }

    fn has(&self, device: &DeviceSpec) -> bool {
        self.parts.iter().any(|part| part.device == *device)
    }

    /// The devices themselves.
    pub(crate) fn devices(&self) -> Vec<DeviceSpec> {
        self.parts.iter().map(|part| part.device.clone()).collect()
    }

    /// Members that there are twice: copies, or one disk on two paths. One of them may be older with the same
    /// event, and nobody knows which, so the array is refused. Former members count for nothing.
    pub(crate) fn copies(&self, record: &RegisteredArray) -> Vec<Copied> {
        let members: Vec<_> =
            self.members().filter(|(_, label)| !self.is_former(label, record)).collect();
        let mut copies = Vec::new();
        for (at, (device, label)) in members.iter().enumerate() {
            let is_it = |(_, it): &&(_, &MemberLabel)| it.is_twin_of(label);
            if let Some((other, _)) = members[..at].iter().find(is_it) {
                let devices = [(*other).clone(), (*device).clone()];
                let is_another = |(_, it): &&(&DeviceSpec, &MemberLabel)| !it.is_twin_of(label);
                let others = members.iter().filter(is_another).map(|(it, _)| (*it).clone());
                let others = others.collect();
                copies.push(Copied { place: label.place, devices, others });
            }
        }
        copies
    }

    /// Whether a label is that of a former member: another device has its place by the newest label, or it is
    /// an older state of a member that is there, by what the record knows.
    fn is_former(&self, label: &MemberLabel, record: &RegisteredArray) -> bool {
        let is_newer = |it: &MemberLabel| {
            let is_known = it.event <= record.events && is_current(it, record);
            let is_newer = it.is_twin_of(label) && it.event > label.event;
            is_newer && (is_known || !is_current(label, record))
        };
        self.newest().is_some_and(|newest| label.is_replaced_by(newest))
            || self.members().any(|(_, it)| is_newer(it))
    }

    /// Former members of which there are others beside them, or beside the member itself: neither is given to
    /// the array, which would not know one from the other. Each with a line for the log.
    pub(crate) fn former(&self, record: &RegisteredArray) -> Vec<(DeviceSpec, String)> {
        let has_twin = |device: &DeviceSpec, label: &MemberLabel| {
            self.members().any(|(other, it)| other != device && it.is_twin_of(label))
        };
        let former = self
            .members()
            .filter(|(device, label)| self.is_former(label, record) && has_twin(device, label));
        let newest = self.newest();
        let line = |(device, label): (&DeviceSpec, &MemberLabel)| {
            let place = label.place;
            let line = match newest.is_some_and(|newest| label.is_replaced_by(newest)) {
                true => {
                    format!("{device} was member {place} and has been replaced: it is left alone")
                }
                false => format!("{device} is an older copy of member {place}: it is left alone"),
            };
            (device.clone(), line)
        };
        former.map(line).collect()
    }

    /// Puts the paths of now in a record; adds a line to `news` for each device that has moved.
    pub(crate) fn record_paths(
        &self,
        record: &mut RegisteredArray,
        wanted: &Wanted,
        news: &mut Vec<String>,
    ) {
        let before = record.members.clone();
        let places = self.places(record, wanted);
        record.record_places(&places);
        for (place, is) in places.iter().enumerate() {
            let was = before.get(place).and_then(Option::as_ref);
            if let Some(is) = is.as_ref().filter(|is| was != Some(is)) {
                let was = was.map_or_else(|| "unknown".to_owned(), ToString::to_string);
                news.push(format!("its member {place} was {was} and is {is} now"));
            }
        }
        let spares = self.free(record, |part| matches!(part.label, PartLabel::Spare));
        let is_taken = |device: &DeviceSpec| places.iter().flatten().any(|it| it == device);
        let is_there = |device: &DeviceSpec| self.has(device) && !is_taken(device);
        move_on(&mut record.spares, wanted, (is_there, spares), "spare", news);
        let members = self.free(record, |part| part.member().is_some());
        let is_there = |device: &DeviceSpec| self.has(device);
        move_on(&mut record.incoming, wanted, (is_there, members), "pending member", news);
        let journals = self.free(record, |part| matches!(part.label, PartLabel::Journal));
        let journal = record.journal.as_mut_slice();
        move_on(journal, wanted, (is_there, journals), "journal", news);
        self.keep_untaken_spares(&before, record, wanted, news);
    }

    /// Keeps spares that a crash caught between the record, which says that they are members, and their labels,
    /// which do not: nobody else would know of them, and the loss would not be made good.
    fn keep_untaken_spares(
        &self,
        before: &[Option<DeviceSpec>],
        record: &mut RegisteredArray,
        wanted: &Wanted,
        news: &mut Vec<String>,
    ) {
        let newest = self.newest().filter(|newest| newest.event < record.events);
        let newest = newest.filter(|_| matches!(wanted, Wanted::All));
        for (place, was) in before.iter().enumerate() {
            let Some(was) = was.as_ref().filter(|was| was.is_external()) else { continue };
            let own = self.parts.iter().find(|part| part.device == *was);
            let is_spare = match own.map(|part| &part.label) {
                Some(label) => matches!(label, PartLabel::Spare),
                // It may come later. The record knows a change that no label does: the spare that it names.
                None => {
                    let is_lost = |own: &LabelledPlace| !is_counted_on(own.state);
                    let is_lost = newest.and_then(|it| it.places.get(place)).is_some_and(is_lost);
                    is_lost && record.members[place].as_ref() != Some(was)
                }
            };
            if !is_spare || record.spares.contains(was) || record.incoming.contains(was) {
                continue;
            }
            for known in &mut record.members {
                known.take_if(|known| known == was);
            }
            record.spares.push(was.clone());
            news.push(format!(
                "{was} was about to take the place of member {place}: it is a spare again"
            ));
        }
    }

    /// The devices of the places, as their labels say.
    fn places(&self, record: &RegisteredArray, wanted: &Wanted) -> Vec<Option<DeviceSpec>> {
        let copies = self.copies(record);
        let newest = self.newest();
        let is_replaced =
            |label: &MemberLabel| newest.is_some_and(|newest| label.is_replaced_by(newest));
        // A device on its way beside a member in service says that it is that member.
        let is_member = |part: &&Part| {
            let device = &part.device;
            let is_copied = copies.iter().any(|it| it.devices.contains(device));
            !is_copied && !record.incoming.contains(device)
        };
        let device_of = |(place, known): (usize, &Option<DeviceSpec>)| {
            let is_wanted = known.as_ref().map_or(wanted.has_place(place), |it| wanted.has(it));
            let labels = self.parts.iter().filter(is_member);
            let labels = labels.filter_map(|part| Some((part.member()?, &part.device)));
            let labels = labels.filter(|(label, _)| !is_replaced(label));
            let claims = labels.filter(|(label, _)| is_wanted && label.place as usize == place);
            // The newest of those that had the place one after the other, of equals the one on record. A
            // spare that was taken before a crash has the place when there is no other.
            let rank = |(label, device): &(&MemberLabel, &DeviceSpec)| {
                let is_spare = record.spares.contains(device);
                (!is_spare, label.event, known.as_ref() == Some(*device))
            };
            let (_, device) = claims.max_by_key(rank)?;
            Some(moved_to(known.as_ref(), device))
        };
        record.members.iter().enumerate().map(device_of).collect()
    }

    /// Devices of a kind that are not on record.
    fn free(&self, record: &RegisteredArray, is_it: impl Fn(&Part) -> bool) -> Vec<DeviceSpec> {
        let is_on_record = |part: &&Part| record.devices().any(|known| *known == part.device);
        let free = self.parts.iter().filter(|part| is_it(part) && !is_on_record(part));
        free.map(|part| part.device.clone()).collect()
    }

    /// Members and journals that are not on record: the array itself knows which of them it can use, and that
    /// it cannot start beside one that only a newer program can read.
    pub(crate) fn others(&self, record: &RegisteredArray) -> Vec<DeviceSpec> {
        let former = self.former(record);
        self.free(record, |part| match part.label {
            PartLabel::Member(_) => !former.iter().any(|(device, _)| *device == part.device),
            PartLabel::Newer => true,
            PartLabel::Journal => record.journal.is_some(),
            PartLabel::Spare => false,
        })
    }
}

/// Gives recorded devices that are not there the paths of free ones.
fn move_on(
    known: &mut [DeviceSpec],
    wanted: &Wanted,
    (is_there, free): (impl Fn(&DeviceSpec) -> bool, Vec<DeviceSpec>),
    part: &str,
    news: &mut Vec<String>,
) {
    let gone = known.iter_mut().filter(|known| wanted.has(known) && !is_there(known));
    for (was, is) in gone.zip(free) {
        let is = moved_to(Some(was), &is);
        news.push(format!("its {part} was {was} and is {is} now"));
        *was = is;
    }
}

/// A device at the path of another one.
fn moved_to(known: Option<&DeviceSpec>, device: &DeviceSpec) -> DeviceSpec {
    match (known, device.path()) {
        (Some(known), Some(path)) => known.moved_to(path.to_owned()),
        _ => device.clone(),
    }
}

/// The part of an array that a free device says it is, unless a volume knows the device for its own.
fn part_of(
    service: &mut Turn,
    record: &RegisteredArray,
    device: &DeviceSpec,
) -> ControlResult<Option<Part>> {
    let array = record.uuid;
    let label = match member_or_journal(service, device) {
        Ok(Some((of, label))) => (of == array).then_some(label),
        Ok(None) => {
            let label = service.reading(device).spare_label_of(device)?;
            label.filter(|label| label.owner == array).map(|_| PartLabel::Spare)
        }
        Err(error) if error.is_unsupported_label(array) => Some(PartLabel::Newer),
        // It is a part of nothing until somebody has overwritten it.
        Err(error) if error.clash.is_some() => None,
        Err(error) => return Err(error),
    };
    let Some(label) = label else { return Ok(None) };
    let part = Part { device: device.clone(), label };
    let is_current = part.member().is_none_or(|label| is_current(label, record));
    Ok((!is_of_a_volume(service, device, is_current)).then_some(part))
}

/// The label of a member or journal on a device, and the array that it is of.
fn member_or_journal(
    service: &mut Turn,
    device: &DeviceSpec,
) -> ControlResult<Option<(Identity, PartLabel)>> {
    if let Some(label) = service.reading(device).label_of(device)? {
        return Ok(Some((label.array, PartLabel::Member(label))));
    }
    let label = service.reading(device).journal_label_of(device)?;
    Ok(label.map(|label| (label.array, PartLabel::Journal)))
}

/// Whether a device is a drive of a volume: by the mark that the volume knows its drive by. Without a mark
/// the path counts, unless the device is in service in an array.
fn is_of_a_volume(service: &mut Turn, device: &DeviceSpec, is_in_service: bool) -> bool {
    if !device.is_external() {
        return false;
    }
    let path = device.path();
    let mark =
        path.and_then(|path| service.reading_identity_of(path.display()).drive_identity(path));
    let mut drives = service.registry.volumes().iter().flat_map(|volume| volume.drives());
    drives.any(|(drive, known)| match known.filter(|known| known.is_known()) {
        Some(known) => mark.as_ref() == Some(known),
        None => !is_in_service && admit::is_same(service, drive, device),
    })
}

/// Whether an open volume or array has this storage.
fn is_served(service: &mut Turn, id: &DeviceId) -> bool {
    let volumes = service.registry.volumes().iter().filter(|it| service.is_open(&it.name));
    let arrays =
        service.registry.arrays().iter().filter(|it| service.size_of_array(&it.name).is_ok());
    let mut devices = volumes.flat_map(|it| it.devices()).chain(arrays.flat_map(|it| it.devices()));
    devices.any(|device| service.id_of(device).is_some_and(|served| served.overlaps(id)))
}

/// Whether a label may be that of a member in service. One that another drive replaced knows less than the
/// record.
pub(crate) fn is_current(label: &MemberLabel, record: &RegisteredArray) -> bool {
    label.event + 1 >= record.events
}
