//! Making, assembling, changing and deleting arrays.

use std::time::Instant;

use voltier_array::{Consistency, Integrity};

use crate::array_settings::ArraySettings;
use crate::engine::{JournalDeviceLabel, MemberLabel};
use crate::error::{ControlError, ControlResult};
use crate::export_spec::ExportSpec;
use crate::name::ArrayName;
use crate::protocol::{MemberName, NewArray, Response};
use crate::records::{Identity, RegisteredArray};
use crate::safety::Role;
use crate::service::arrays;
use crate::service::arrays::open::close_array_and_note;
use crate::service::arrays::spare_labels;
use crate::service::presence::admit::Beside;
use crate::service::presence::{admit, late, look};
use crate::service::state::live::{LiveArray, now};
use crate::service::state::subjects;
use crate::service::state::turn::{Turn, of_all};
use crate::service::volumes;
use crate::service::volumes::exports;
use crate::spec::DeviceSpec;
use crate::units::exact_size;

/// Makes an array, and a volume of the same name on it if that is to have an export.
pub(crate) fn create_with(
    turn: &mut Turn,
    new: NewArray,
    integrity: Integrity,
    export: Option<ExportSpec>,
) -> ControlResult<Response> {
    let Some(export) = export else { return create(turn, new, integrity) };
    let (name, volume) = (new.name.clone(), new.name.of_its_volume());
    if turn.registry.find(&volume).is_some() {
        return Err(ControlError::failed(format!(
            "a volume `{volume}` exists, and the array would be served by one of its name; choose another \
             name, or add --export none"
        )));
    }
    exports::check(turn, &volume, &export)?;
    let made = create(turn, new, integrity)?;
    let origin = DeviceSpec::Array(name.clone());
    if let Err(error) = volumes::commands::create(turn, volume, origin, None, Some(export)) {
        if let Err(undoing) = delete(turn, &name, true) {
            tracing::warn!("array {name}: {}", undoing.message);
        }
        return Err(error);
    }
    Ok(made)
}

fn create(turn: &mut Turn, new: NewArray, integrity: Integrity) -> ControlResult<Response> {
    let NewArray { name, level, chunk_bytes, consistency, members, spares, journal, force } = new;
    if turn.registry.find_array(&name).is_some() {
        return Err(ControlError::failed(format!(
            "an array `{name}` exists; choose another name or `voltier array delete {name}` \
             first"
        )));
    }
    level.check(members.len(), chunk_bytes)?;
    if journal.is_some() && consistency != Consistency::Journal {
        return Err(ControlError::usage(format!(
            "--journal goes with --consistency journal, not {consistency}"
        )));
    }
    if integrity != Integrity::None && !level.has_redundancy() {
        return Err(ControlError::usage(format!(
            "level {} has no redundancy to repair blocks from: leave --integrity out",
            level.word()
        )));
    }
    let all: Vec<DeviceSpec> = members.iter().chain(&spares).chain(&journal).cloned().collect();
    let sizes = admit_members(turn, &all, force)?;
    let notes = unequal(&members, &sizes[..members.len()]);
    let uuid = turn.engine.draw_identity()?;
    let (size_bytes, events) = (0, 0);
    let members = members.into_iter().map(Some).collect();
    let record = RegisteredArray {
        name,
        uuid,
        level,
        chunk_bytes,
        consistency,
        integrity,
        size_bytes,
        events,
        members,
        spares: Vec::new(),
        incoming: Vec::new(),
        journal,
        stopped: false,
        read_only: false,
        failed_drives: Vec::new(),
        settings: ArraySettings::default(),
    };
    // Nobody uses it yet, so nothing can be acknowledged before the record is written.
    let name = record.name.clone();
    let opened = turn.writing_to(of_all(record.devices())).create_array(&record)?;
    arrays::open::keep(turn, record, opened, Vec::new())?;
    for spare in spares {
        arrays::members::take_spare(turn, &name, spare, force)?;
    }
    Ok(arrays::show::response(turn, &name, notes))
}

/// Checks all members of a new array; their sizes.
fn admit_members(turn: &mut Turn, members: &[DeviceSpec], force: bool) -> ControlResult<Vec<u64>> {
    let mut sizes = Vec::with_capacity(members.len());
    for (at, member) in members.iter().enumerate() {
        admit::is_no_array(member, "be a member")?;
        let before = Beside::Members(&members[..at]);
        sizes.push(admit::admit(turn, member, Role::Cache, force, before)?.size_bytes);
    }
    Ok(sizes)
}

pub(crate) fn assemble(
    turn: &mut Turn,
    devices: Vec<DeviceSpec>,
    force: bool,
    read_only: bool,
) -> ControlResult<Response> {
    let label = labels(turn, &devices, read_only)?;
    claim_array_of(turn, label.array)?;
    let known = turn.registry.array_with(label.array).cloned();
    if let Some(known) = &known
        && turn.size_of_array(&known.name).is_ok()
    {
        return Err(ControlError::failed(format!(
            "the array {0} is assembled already; see `voltier array show {0}`",
            known.name
        )));
    }
    let name = match &known {
        Some(known) => known.name.clone(),
        None => free_name(turn, &label.name)?,
    };
    turn.claim_also(subjects::of_array(&turn.registry, &name))?;
    let mut record = known.unwrap_or_else(|| label.record(name.clone()));
    (record.stopped, record.read_only) = (false, read_only);
    let opened = turn.opening(of_all(&devices)).open_array(&record, &devices, force)?;
    let left_out = opened.left_out.clone();
    arrays::open::keep(turn, record, opened, left_out.clone())?;
    late::serve_again(turn, &name, now());
    Ok(arrays::show::response(turn, &name, left_out))
}

/// Has a recorded array for this command alone.
fn claim_array_of(turn: &mut Turn, uuid: Identity) -> ControlResult<()> {
    let known = turn.registry.array_with(uuid);
    let Some(name) = known.map(|array| array.name.clone()) else { return Ok(()) };
    turn.claim_also(subjects::of_array(&turn.registry, &name))
}

/// The label that all these devices share: they are the members of one array, and free.
fn labels(turn: &mut Turn, devices: &[DeviceSpec], read_only: bool) -> ControlResult<MemberLabel> {
    let mut found: Option<(MemberLabel, &DeviceSpec)> = None;
    let (mut journals, mut clash) = (Vec::new(), None);
    for (at, device) in devices.iter().enumerate() {
        admit::is_named_once(turn, device, &devices[..at])?;
        look::look_at(turn, device, 0, "member")?;
        if !read_only && let Some(how) = look::write_protection(turn, device) {
            return Err(ControlError::failed(format!("{device} {how}, or leave it out")));
        }
        let found_label = turn.reading(device).label_of(device);
        let found_label = match found_label {
            // The array leaves it out, by name and with the reason.
            Err(error) if error.clash.is_some() => {
                clash.get_or_insert(error);
                continue;
            }
            found_label => found_label?,
        };
        let Some(label) = found_label else {
            let journal = turn.reading(device).journal_label_of(device);
            let journal = match journal {
                Err(error) if error.clash.is_some() => {
                    clash.get_or_insert(error);
                    continue;
                }
                journal => journal?,
            };
            let Some(journal) = journal else {
                return Err(ControlError::failed(format!(
                    "{device} is not a member of an array; leave it out"
                )));
            };
            admit::is_nobody_elses(turn, device, journal.array)?;
            journals.push((journal, device));
            continue;
        };
        admit::is_nobody_elses(turn, device, label.array)?;
        match &found {
            Some((first, other)) if first.array != label.array => {
                return Err(ControlError::failed(format!(
                    "{device} belongs to the array {} ({}), and {other} to {} ({}); \
                     assemble one at a time",
                    label.name, label.array, first.name, first.array
                )));
            }
            Some(_) => {}
            None => found = Some((label, device)),
        }
    }
    let of_another = |(journal, _): &&(JournalDeviceLabel, &DeviceSpec)| {
        found.as_ref().is_none_or(|(label, _)| label.array != journal.array)
    };
    match journals.iter().find(of_another) {
        Some((journal, device)) if found.is_none() => Err(ControlError::failed(format!(
            "{device} is the journal of the array {} ({}); name its members as well",
            journal.name, journal.array
        ))),
        Some((journal, device)) => Err(ControlError::failed(format!(
            "{device} is the journal of another array, {} ({}); leave it out",
            journal.name, journal.array
        ))),
        None => found.map(|(label, _)| label).ok_or_else(|| {
            let none = || ControlError::usage("no devices given; name the members of the array");
            clash.unwrap_or_else(none)
        }),
    }
}

/// The name that a label gives, if no other array has it.
fn free_name(turn: &Turn, text: &str) -> ControlResult<ArrayName> {
    let name: ArrayName =
        text.parse().map_err(|error: ControlError| ControlError::failed(error.message))?;
    if turn.registry.find_array(&name).is_some() {
        return Err(ControlError::failed(format!(
            "another array `{name}` exists; `voltier array delete {name}` forgets it, its \
             data stay, and `voltier array assemble` brings it back"
        )));
    }
    Ok(name)
}

pub(crate) fn fail_member(
    turn: &mut Turn,
    name: &ArrayName,
    member: &MemberName,
) -> ControlResult<Response> {
    let record = turn.array_record(name)?;
    turn.size_of_array(name)?;
    let (place, member) = arrays::members::place_of(turn, &record, member)?;
    let is_on_record =
        turn.apart(format!("taking member {place} out of service")).fail_member(name, place)?;
    turn.engine.log(&format!("array {name}: {member} was taken out of service on request"));
    // Spares are asked by others: they may hang as well.
    arrays::events::record(turn);
    let late = format!(
        "{member} is out of service; the other members have not all recorded that yet: `voltier \
         array show {name}` says which of them does not answer"
    );
    Ok(arrays::show::response(turn, name, if is_on_record { Vec::new() } else { vec![late] }))
}

pub(crate) fn delete(turn: &mut Turn, name: &ArrayName, erase: bool) -> ControlResult<Response> {
    let record = turn.array_record(name)?;
    if let Some(user) = turn.user_of_array(name, None) {
        return Err(ControlError::failed(format!(
            "the array {name} is in use by volume {user}; `voltier delete {user}` first"
        )));
    }
    if turn.size_of_array(name).is_ok() {
        close_array_and_note(turn, name);
    }
    turn.live_arrays.remove(name);
    turn.registry.remove_array(name)?;
    if erase {
        erase_labels(turn, &record)?;
    }
    Ok(Response::Done)
}

/// Makes plain devices of the members. Each is told what became of it before the first error.
fn erase_labels(turn: &mut Turn, record: &RegisteredArray) -> ControlResult<()> {
    let mut result = Ok(());
    for member in record.devices().filter(|member| !member.is_volatile()) {
        let erased = erase_label(turn, record, member);
        if let Err(error) = &erased {
            turn.engine.log(&format!("array {}: {}", record.name, error.message));
        }
        result = result.and(erased);
    }
    result.map_err(|error| {
        let name = &record.name;
        ControlError::failed(format!(
            "{name} is deleted, but not all of its labels were erased: \
                                      {error}"
        ))
    })
}

fn erase_label(
    turn: &mut Turn,
    record: &RegisteredArray,
    member: &DeviceSpec,
) -> ControlResult<()> {
    let erase = |turn: &mut Turn, member: &DeviceSpec| {
        turn.apart(format!("erasing the label of {member}")).erase_label(member)
    };
    look::look_at(turn, member, 0, "member")?;
    // A device that stands there now may be somebody else's.
    let label = turn.reading(member).label_of(member);
    match label {
        Ok(Some(label)) if label.array == record.uuid => erase(turn, member),
        Ok(None) => {
            let journal = turn.reading(member).journal_label_of(member);
            match journal {
                Ok(Some(label)) if label.array == record.uuid => erase(turn, member),
                Err(error) if error.is_unsupported_label(record.uuid) => Err(error),
                _ => {
                    spare_labels::erase_spare(turn, member, Some(record.uuid));
                    Ok(())
                }
            }
        }
        Err(error) if error.is_unsupported_label(record.uuid) => Err(error),
        _ => Ok(()),
    }
}

/// Assembles a recorded array, unless it is to stay at rest. One that cannot be is shown as failed, with
/// the reason.
pub(crate) fn start(turn: &mut Turn, name: &ArrayName, now: Instant) {
    let Some(record) = turn.registry.find_array(name).cloned() else { return };
    if record.stopped {
        let stopped = LiveArray::stopped(name);
        turn.live_arrays.insert(record.name, stopped);
    } else {
        late::try_array(turn, record, Some(now), now);
    }
}

/// Notes on members of which only the smallest one's size is used.
fn unequal(members: &[DeviceSpec], sizes: &[u64]) -> Vec<String> {
    let Some(smallest) = sizes.iter().min() else { return Vec::new() };
    let larger = members.iter().zip(sizes).filter(|(_, size)| *size > smallest);
    larger
        .map(|(member, size)| {
            format!(
                "{member} has {} and is used like the smallest member, as {}",
                exact_size(*size),
                exact_size(*smallest)
            )
        })
        .collect()
}
