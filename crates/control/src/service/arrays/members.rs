//! Members that come and go, spares, and the background tasks of arrays.

use voltier_array::{Integrity, Level};

use crate::array_settings::MERGE_KEYS;
use crate::engine::{Engine, Replaced};
use crate::error::{ControlError, ControlResult};
use crate::name::ArrayName;
use crate::protocol::{Growth, MemberName, Response};
use crate::records::RegisteredArray;
use crate::safety::{self, Role};
use crate::service::arrays;
use crate::service::arrays::spare_labels;
use crate::service::presence::admit::Beside;
use crate::service::presence::{admit, look, survey};
use crate::service::state::turn::{Turn, of_all};
use crate::spec::DeviceSpec;

pub(crate) fn replace(
    turn: &mut Turn,
    name: &ArrayName,
    old: &MemberName,
    new: DeviceSpec,
    force: bool,
) -> ControlResult<Response> {
    let before = turn.array_record(name)?;
    turn.size_of_array(name)?;
    let (place, old) = place_of(turn, &before, old)?;
    admit_to(turn, &before, &new, force)?;
    // The part of a disk that the old member was may be joined by another part of it.
    let others = (0..).zip(&before.members).filter(|(other, _)| *other != place);
    let others: Vec<DeviceSpec> = others.filter_map(|(_, member)| member.clone()).collect();
    admit::is_a_drive_of_its_own(turn, &new, &others)?;
    let bring = |turn: &mut Turn| turn.writing_to(&new).replace_member(name, place, &new);
    let replaced = bring_incoming(turn, name, std::slice::from_ref(&new), bring)?;
    arrays::events::record(turn);
    let how = match replaced {
        Replaced::Rebuild => {
            format!(
                "{new} takes the place of member {place} ({old}); its content is computed \
                     from the others"
            )
        }
        Replaced::Return => {
            format!("{new} is member {place} again; only what changed since is rebuilt")
        }
        Replaced::Copy => {
            format!("{new} is being filled from {old}, which serves until that is done")
        }
    };
    turn.engine.log(&format!("array {name}: {how}"));
    Ok(arrays::show::response(turn, name, vec![how]))
}

/// Brings devices that are on record already to an array. Until then the array does not know them, and
/// they stay on record.
pub(crate) fn bring_devices<T>(
    turn: &mut Turn,
    name: &ArrayName,
    devices: &[DeviceSpec],
    bring: impl FnOnce(&mut Turn) -> T,
) -> T {
    if let Some(live) = turn.live_arrays.get_mut(name) {
        live.arriving.extend_from_slice(devices);
    }
    let brought = bring(turn);
    if let Some(live) = turn.live_arrays.get_mut(name) {
        live.arriving.retain(|device| !devices.contains(device));
    }
    brought
}

/// Puts devices on record as on their way to an array, and brings them. The record names them before the array
/// does: so a start looks at them after a crash.
fn bring_incoming<T>(
    turn: &mut Turn,
    name: &ArrayName,
    devices: &[DeviceSpec],
    bring: impl FnOnce(&mut Turn) -> ControlResult<T>,
) -> ControlResult<T> {
    // The array may have lost a member while the devices were looked at.
    let mut record = turn.array_record(name)?;
    record.incoming.extend_from_slice(devices);
    turn.registry.put_array(record)?;
    let brought = bring_devices(turn, name, devices, bring);
    if brought.is_err() {
        let mut record = turn.array_record(name)?;
        record.incoming.retain(|device| !devices.contains(device));
        turn.registry.put_array(record)?;
    }
    brought
}

/// Adds a parity row, a copy, or a member for capacity.
pub(crate) fn grow(
    turn: &mut Turn,
    name: &ArrayName,
    by: Growth,
    devices: Vec<DeviceSpec>,
    force: bool,
) -> ControlResult<Response> {
    let before = turn.array_record(name)?;
    turn.size_of_array(name)?;
    check_growth(&before, by, devices.len())?;
    if by == Growth::Capacity {
        check_size_may_change(turn, name)?;
    }
    for (at, device) in devices.iter().enumerate() {
        admit::is_named_once(turn, device, &devices[..at])?;
        admit_new(turn, device, force)?;
        let members = before.members.iter().flatten().chain(&devices[..at]);
        let members: Vec<DeviceSpec> = members.cloned().collect();
        admit::is_a_drive_of_its_own(turn, device, &members)?;
    }
    let bring = |turn: &mut Turn| turn.writing_to(of_all(&devices)).grow_array(name, by, &devices);
    let grown = bring_incoming(turn, name, &devices, bring);
    arrays::events::record(turn);
    grown?;
    let level = turn.array_record(name)?.level;
    let volume = turn.user_of_array(name, None).map_or_else(String::new, |volume| {
        format!(
            "; volume {volume} has the new size after `voltier stop {volume}` and `voltier start {volume}`, when \
             that has ended"
        )
    });
    let how = match by {
        Growth::Capacity => format!(
            "{name} has one more member, and its data are being moved to it; until they all are, \
             the array keeps its old size{volume}"
        ),
        Growth::Parity | Growth::Member => {
            format!("{name} now has level {level}; the new member is being filled")
        }
    };
    turn.engine.log(&how);
    Ok(arrays::show::response(turn, name, vec![how]))
}

/// Refuses to change the size of an array that a cache was made for.
fn check_size_may_change(turn: &Turn, name: &ArrayName) -> ControlResult<()> {
    let is_ours = |device: &DeviceSpec| device.array() == Some(name);
    let cached = turn.registry.volumes().iter().find(|volume| {
        let cache = volume.cache.as_ref();
        cache.is_some_and(|cache| is_ours(&volume.origin) || is_ours(&cache.device))
    });
    match cached {
        Some(volume) => Err(ControlError::failed(format!(
            "the cache of volume {} was made for the size of {name}; `voltier detach {}` first, \
             and attach again when the array has its new size",
            volume.name, volume.name
        ))),
        None => Ok(()),
    }
}

pub(crate) fn add_spare(
    turn: &mut Turn,
    name: &ArrayName,
    spare: DeviceSpec,
    force: bool,
) -> ControlResult<Response> {
    let record = turn.array_record(name)?;
    turn.size_of_array(name)?;
    let is_usable = look::look(turn, &spare).is_ok();
    if is_usable && spare_labels::is_spare_of(turn, &spare, record.uuid) {
        // A spare of this array that the record does not have: nothing of anybody's is on it.
        admit::admit(turn, &spare, Role::Spare, force, Beside::None)?;
    } else {
        admit_to(turn, &record, &spare, force)?;
    }
    let members: Vec<DeviceSpec> = record.members.iter().flatten().cloned().collect();
    admit::is_a_drive_of_its_own(turn, &spare, &members)?;
    take_spare(turn, name, spare, force)?;
    Ok(arrays::show::response(turn, name, Vec::new()))
}

/// Labels and records a spare that was admitted, and gives it to the array; `wipe` clears what it held.
pub(crate) fn take_spare(
    turn: &mut Turn,
    name: &ArrayName,
    spare: DeviceSpec,
    wipe: bool,
) -> ControlResult<()> {
    turn.opening(&spare).check_spare(name, &spare)?;
    let before = turn.array_record(name)?;
    // A lost member that comes back as a spare keeps what it knows.
    if !look::is_labelled(turn, &spare, before.uuid) {
        spare_labels::write_label(turn, &spare, &spare_labels::of_array(&before), wipe)?;
    }
    let mut record = turn.array_record(name)?;
    record.spares.push(spare.clone());
    if let Err(error) = turn.registry.put_array(record) {
        // Else the label would name an array that knows nothing of the spare.
        spare_labels::erase_spare(turn, &spare, Some(before.uuid));
        return Err(error);
    }
    let bring = |turn: &mut Turn| turn.opening(&spare).add_spare(name, &spare);
    if let Err(error) = bring_devices(turn, name, std::slice::from_ref(&spare), bring) {
        spare_labels::erase_spare(turn, &spare, Some(before.uuid));
        let mut record = turn.array_record(name)?;
        record.spares.retain(|other| *other != spare);
        turn.registry.put_array(record)?;
        return Err(error);
    }
    arrays::events::record(turn);
    Ok(())
}

/// Takes a spare back, and makes a plain device of it. A daemon that dies after the record has a label of the
/// array on a device that nobody has; before that, the spare waits on.
pub(crate) fn remove_spare(
    turn: &mut Turn,
    name: &ArrayName,
    spare: &DeviceSpec,
) -> ControlResult<Response> {
    let record = turn.array_record(name)?;
    let is_it = |it: &&DeviceSpec| *it == spare || admit::is_same(turn, it, spare);
    let Some(spare) = record.spares.iter().find(is_it).cloned() else {
        return Err(is_no_spare(turn, &record, spare));
    };
    let is_open = turn.size_of_array(name).is_ok();
    let had_it = is_open
        && turn.apart(format!("taking {spare} back from {name}")).remove_spare(name, &spare)?;
    let mut record = turn.array_record(name)?;
    record.spares.retain(|other| *other != spare);
    if let Err(error) = turn.registry.put_array(record.clone()) {
        if had_it {
            let bring = |turn: &mut Turn| turn.opening(&spare).add_spare(name, &spare);
            let again = bring_devices(turn, name, std::slice::from_ref(&spare), bring);
            turn.note_array(name, again);
        }
        return Err(error);
    }
    if let Some(live) = turn.live_arrays.get_mut(name) {
        live.absence.forget(&spare);
        live.left_out.retain(|line| !line.starts_with(&format!("the spare {spare} ")));
    }
    arrays::events::record(turn);
    let notes = match look::look(turn, &spare) {
        Ok(_) => {
            spare_labels::erase_spare(turn, &spare, Some(record.uuid));
            Vec::new()
        }
        Err((_, why)) => vec![format!(
            "{why}; the drive keeps its label as a spare of {name}: whatever takes it next needs -f"
        )],
    };
    turn.engine.log(&format!("array {name}: {spare} is no spare any more, on request"));
    Ok(arrays::show::response(turn, name, notes))
}

/// Why a device cannot be taken back.
fn is_no_spare(turn: &Turn, record: &RegisteredArray, device: &DeviceSpec) -> ControlError {
    let name = &record.name;
    let is_it = |known: &DeviceSpec| known == device || admit::is_same(turn, known, device);
    let place = record.members.iter().position(|known| known.as_ref().is_some_and(is_it));
    let mut pools = turn.registry.pools().iter();
    let pool = pools.find(|pool| pool.spares.iter().any(|spare| is_it(&spare.device)));
    ControlError::failed(match (place, pool) {
        (Some(place), _) => format!(
            "{device} is member {place} of {name} and no spare; `voltier array replace {name} {place} DEV` puts \
             another drive there"
        ),
        (None, Some(pool)) => format!(
            "{device} is a spare of the pool {0}; `voltier array spare-pool remove {0} {device}` takes it back",
            pool.name
        ),
        (None, None) => {
            let spares: Vec<String> = record.spares.iter().map(DeviceSpec::to_string).collect();
            let has = if spares.is_empty() { "none".to_owned() } else { spares.join(", ") };
            format!("{device} is not a spare of {name}; its spares: {has}")
        }
    })
}

/// Gives an array its spare again after a start, or when the spare has come, unless it is another device
/// by now. A spare that cannot be looked at is awaited.
pub(crate) fn spare_again(turn: &mut Turn, name: &ArrayName, spare: &DeviceSpec) {
    let again =
        still_a_spare(turn, name, spare).and_then(|()| turn.opening(spare).add_spare(name, spare));
    let hindered = again.is_err().then(|| survey::hindered(turn, spare, "spare")).flatten();
    let Some(live) = turn.live_arrays.get_mut(name) else { return };
    let was_left_out = |it: &String| it.starts_with(&format!("the spare {spare} "));
    let before = live.left_out.extract_if(.., |it| was_left_out(it)).next();
    live.absence.forget(spare);
    live.absence.missing.extend(hindered);
    let line = match again {
        Ok(()) if before.is_some() => Some(format!("the spare {spare} is there again")),
        Ok(()) => None,
        Err(error) => {
            let line = format!("the spare {spare} is left out: {error}");
            live.left_out.push(line.clone());
            Some(line)
        }
    };
    if let Some(line) = line.filter(|line| before.as_ref() != Some(line)) {
        turn.engine.log(&format!("array {name}: {line}"));
    }
}

fn still_a_spare(turn: &mut Turn, name: &ArrayName, spare: &DeviceSpec) -> ControlResult<()> {
    if !spare.is_external() {
        return Err(ControlError::failed("it was lost when the previous daemon ended"));
    }
    let owner = turn.array_record(name)?.uuid;
    spare_labels::check(&*turn.reading(spare), spare, Some(owner))
}

/// Checks a device that is to come to an array and was never there.
fn admit_new(turn: &mut Turn, device: &DeviceSpec, force: bool) -> ControlResult<()> {
    admit::is_no_array(device, "be a member")?;
    admit::admit(turn, device, Role::Cache, force, Beside::None).map(drop)
}

/// The place of the member that a device says it is, if the record has no path for that place.
fn place_without_path(
    turn: &mut Turn,
    record: &RegisteredArray,
    device: &DeviceSpec,
) -> Option<usize> {
    if !device.is_external() || look::look_once(turn, device).is_err() {
        return None;
    }
    let label = turn.reading(device).label_of(device).ok().flatten()?;
    let place = label.place as usize;
    let has_path = record.members.get(place).is_none_or(Option::is_some);
    (label.array == record.uuid && !has_path).then_some(place)
}

/// Checks a device that is to come to an array. A member that was lost may come back.
fn admit_to(
    turn: &mut Turn,
    record: &RegisteredArray,
    device: &DeviceSpec,
    force: bool,
) -> ControlResult<()> {
    let known = record.members.iter().map(|known| known.as_ref());
    let is_it = |known: &DeviceSpec| admit::is_same(turn, known, device);
    let place = known.map(|known| known.is_some_and(is_it)).position(|is_it| is_it);
    let Some(place) = place.or_else(|| place_without_path(turn, record, device)) else {
        return admit_new(turn, device, force);
    };
    let status = arrays::show::status(turn, record);
    let name = &record.name;
    match status.members.get(place).map(|member| member.state.as_str()) {
        Some("online") => {
            return Err(ControlError::failed(format!(
                "{device} is member {place} of {name}, and in service; name another device, or \
                 take it out with `voltier array fail {name} {place}` first"
            )));
        }
        Some("rebuilding") => {
            return Err(ControlError::failed(format!(
                "{device} is member {place} of {name}, and being rebuilt; \
                 `voltier array rebuild {name}` follows that"
            )));
        }
        _ => {}
    }
    // Another device may be under the path of a member that was lost.
    admit::is_nobody_elses(turn, device, record.uuid)?;
    look::look_at(turn, device, 0, "member")?;
    let label = turn.reading(device).label_of(device);
    if matches!(label, Ok(Some(label)) if label.array == record.uuid) {
        return Ok(());
    }
    match turn.examine(device, Role::Cache) {
        None => Ok(()),
        Some(examined) => safety::judge_findings(device, &examined?.findings, force),
    }
}

pub(crate) fn set_journal(
    turn: &mut Turn,
    name: &ArrayName,
    journal: Option<DeviceSpec>,
    force: bool,
) -> ControlResult<Response> {
    let before = turn.array_record(name)?;
    turn.size_of_array(name)?;
    if let Some(device) = &journal {
        admit_journal(turn, &before, device, force)?;
    }
    // The record names the device before the array does: so a start looks at it after a crash.
    let mut record = turn.array_record(name)?;
    record.incoming.extend(journal.clone());
    turn.registry.put_array(record)?;
    let to = journal.as_ref().map_or_else(|| "the members".to_owned(), ToString::to_string);
    let step = format!("moving the journal to {to}");
    let bring = |turn: &mut Turn| turn.apart(step).set_journal(name, journal.as_ref());
    let moved = bring_devices(turn, name, journal.as_slice(), bring);
    let mut after = turn.array_record(name)?;
    after.incoming.retain(|device| Some(device) != journal.as_ref());
    if moved.is_ok() {
        after.journal.clone_from(&journal);
    }
    turn.registry.put_array(after)?;
    moved?;
    arrays::events::record(turn);
    let place = journal.map_or_else(|| "its members".to_owned(), |device| device.to_string());
    turn.engine.log(&format!("array {name}: its journal was moved to {place} on request"));
    Ok(arrays::show::response(turn, name, Vec::new()))
}

/// Checks a device that is to have the journal. One that was given up may come back.
fn admit_journal(
    turn: &mut Turn,
    record: &RegisteredArray,
    device: &DeviceSpec,
    force: bool,
) -> ControlResult<()> {
    admit::is_no_array(device, "have a journal")?;
    let name = &record.name;
    let is_own = record.journal.as_ref().is_some_and(|known| admit::is_same(turn, known, device));
    if !is_own {
        return admit::admit(turn, device, Role::Cache, force, Beside::None).map(drop);
    }
    let status = arrays::show::status(turn, record);
    if status.journal_device.is_some_and(|journal| journal.state == "online") {
        return Err(ControlError::failed(format!(
            "the journal of {name} is on {device} already; name another device, or `members`"
        )));
    }
    if !device.is_external() {
        return Ok(());
    }
    admit::is_nobody_elses(turn, device, record.uuid)?;
    let Some(examined) = turn.examine(device, Role::Cache).transpose()? else { return Ok(()) };
    let label = turn.reading(device).journal_label_of(device);
    let is_ours = matches!(label, Ok(Some(label)) if label.array == record.uuid);
    safety::judge_findings(device, &examined.findings, force || is_ours)
}

/// Starts a background task.
pub(crate) fn start_task(
    turn: &mut Turn,
    name: &ArrayName,
    start: impl FnOnce(&dyn Engine, &ArrayName) -> ControlResult<()>,
) -> ControlResult<Response> {
    turn.array_record(name)?;
    turn.size_of_array(name)?;
    start(&*turn.engine, name)?;
    Ok(arrays::show::response(turn, name, Vec::new()))
}

pub(crate) fn set(
    turn: &mut Turn,
    name: &ArrayName,
    changes: &[(String, String)],
) -> ControlResult<Response> {
    let mut record = turn.array_record(name)?;
    for (key, value) in changes {
        record.settings.apply(key, value)?;
        if MERGE_KEYS.contains(&key.as_str()) && !record.level.0.has_parity() {
            return Err(ControlError::failed(format!(
                "{name} has level {}: only levels with parity have small writes to merge",
                record.level.word()
            )));
        }
    }
    let settings = record.settings.clone();
    if let Some(pool) = &settings.spare_pool {
        turn.pool_record(pool)?;
    }
    turn.registry.put_array(record)?;
    if turn.size_of_array(name).is_ok() {
        turn.engine.configure_array(name, &settings);
    }
    turn.unfit_spares.clear();
    arrays::events::record(turn);
    Ok(arrays::show::response(turn, name, Vec::new()))
}

/// The place and the device of a member that is meant.
pub(crate) fn place_of(
    turn: &Turn,
    record: &RegisteredArray,
    meant: &MemberName,
) -> ControlResult<(u32, String)> {
    let shown = |device: &Option<DeviceSpec>| {
        device.as_ref().map_or_else(|| "?".to_owned(), ToString::to_string)
    };
    let is_same = |known: &Option<DeviceSpec>, meant: &DeviceSpec| {
        known.as_ref().is_some_and(|known| known == meant || admit::is_same(turn, known, meant))
    };
    let place = match meant {
        MemberName::Index(index) => Some(*index as usize),
        MemberName::Device(meant) => record.members.iter().position(|it| is_same(it, meant)),
    };
    if let Some(place) = place.filter(|place| *place < record.members.len()) {
        return Ok((place as u32, shown(&record.members[place])));
    }
    let members = record.members.iter().enumerate();
    let members = members.map(|(place, device)| format!("{place} {}", shown(device)));
    let meant = match meant {
        MemberName::Device(device) => device.to_string(),
        MemberName::Index(index) => index.to_string(),
    };
    Err(ControlError::failed(format!(
        "{meant} is not a member of {}; its members: {}",
        record.name,
        members.collect::<Vec<_>>().join(", ")
    )))
}

/// Refuses what an array of this level cannot be given more of.
fn check_growth(record: &RegisteredArray, by: Growth, devices: usize) -> ControlResult<()> {
    let (name, level) = (&record.name, record.level);
    let is_mirror = level.0 == Level::Raid1;
    let has_room =
        matches!(level.0, Level::Raid5 | Level::Raid6 | Level::Raid7_3 | Level::NPlusM { .. });
    match by {
        Growth::Parity if is_mirror => Err(ControlError::failed(format!(
            "{name} has level 1: it has copies and no parity; `voltier array grow {name} \
             --member DEV` adds a copy"
        ))),
        Growth::Member if !is_mirror => Err(ControlError::failed(format!(
            "{name} has level {level}: only level 1 has copies; `voltier array grow {name} \
             --capacity --member DEV` adds a member for capacity, `--parity DEV` a parity"
        ))),
        Growth::Capacity if !has_room => Err(ControlError::failed(format!(
            "{name} has level {level}: only levels 5, 6, 7.3 and N+M can be expanded by a \
             member; make a larger array and copy the data"
        ))),
        Growth::Capacity if record.integrity != Integrity::None => {
            Err(ControlError::failed(format!(
                "{name} keeps checksums (--integrity {}), and such an array cannot be expanded \
                 by a member; make a larger array and copy the data",
                record.integrity
            )))
        }
        Growth::Capacity if devices != 1 => Err(ControlError::failed(format!(
            "{devices} devices given: capacity grows by one member at a time; give one now and \
             the next one later"
        ))),
        Growth::Parity | Growth::Member | Growth::Capacity => Ok(()),
    }
}
