//! Opening recorded arrays and bringing them to rest; what an opening finds is put on record.

use crate::engine::OpenedArray;
use crate::error::{ControlResult, ErrorKind};
use crate::name::ArrayName;
use crate::protocol::Response;
use crate::records::RegisteredArray;
use crate::service::arrays;
use crate::service::presence::absence::Absence;
use crate::service::presence::survey::Survey;
use crate::service::state::claims::Subject;
use crate::service::state::live::LiveArray;
use crate::service::state::turn::{Turn, of_all};

/// Records an array that the engine has opened, and gives it its settings; closed again when that fails.
pub(crate) fn keep(
    turn: &mut Turn,
    mut record: RegisteredArray,
    opened: OpenedArray,
    notes: Vec<String>,
) -> ControlResult<Response> {
    let name = record.name.clone();
    learn(&mut record, &opened);
    let settings = record.settings.clone();
    turn.registry.put_array(record).inspect_err(|_| close_array_and_note(turn, &name))?;
    let (size_bytes, left_out) = (Some(opened.size_bytes), opened.left_out);
    let live = LiveArray { size_bytes, left_out, ..LiveArray::default() };
    turn.live_arrays.insert(name.clone(), live);
    turn.engine.configure_array(&name, &settings);
    Ok(arrays::show::response(turn, &name, notes))
}

/// Assembles a recorded array of the devices that a survey found.
pub(crate) fn assemble(turn: &mut Turn, mut record: RegisteredArray, survey: Survey) {
    let name = record.name.clone();
    let Survey { present, left_out, missing, places, .. } = survey;
    let arriving = record.spares.clone();
    let mut live = LiveArray { left_out, arriving, ..LiveArray::default() };
    (live.absence.missing, live.absence.places) = (missing, places);
    let opened = turn.opening(of_all(&present)).open_array(&record, &present, false);
    match opened {
        Ok(opened) => {
            live.size_bytes = Some(opened.size_bytes);
            let before = record.members.clone();
            learn(&mut record, &opened);
            live.absence.keep_members(&before, &record.members);
            live.left_out.extend(opened.left_out);
            if record.read_only {
                // A member that came back would be written to.
                live.absence = Absence::default();
            }
        }
        Err(error) => {
            live.is_unsupported = error.kind == ErrorKind::Unsupported;
            live.error = error.message;
        }
    }
    let before = turn.live_arrays.get(&name);
    let is_news = before.is_none_or(|it| it.error != live.error || it.left_out != live.left_out);
    let lines = live.left_out.iter().chain(Some(&live.error).filter(|text| !text.is_empty()));
    for line in lines.filter(|_| is_news) {
        turn.engine.log(&format!("array {name}: {line}"));
    }
    let (is_open, is_read_only) = (live.size_bytes.is_some(), record.read_only);
    let mut spares = std::mem::take(&mut record.spares);
    if is_open {
        spares.retain(|spare| !present.contains(spare));
    }
    if is_open {
        turn.engine.configure_array(&name, &record.settings);
        let recorded =
            turn.registry.put_array(RegisteredArray { spares: spares.clone(), ..record });
        turn.note_array(&name, recorded);
    }
    turn.live_arrays.insert(name.clone(), live);
    for spare in spares.into_iter().filter(|_| is_open && !is_read_only) {
        arrays::members::spare_again(turn, &name, &spare);
    }
    if let Some(live) = turn.live_arrays.get_mut(&name) {
        live.arriving.clear();
    }
}

/// Closes an open array, and records what its members say after that.
pub(crate) fn close_array(turn: &mut Turn, name: &ArrayName) -> ControlResult<()> {
    let devices = turn.registry.find_array(name).map(|record| of_all(record.devices()));
    let devices = devices.unwrap_or_else(|| name.to_string());
    let closed = turn.closing(devices).close_array(name);
    match &closed {
        Ok(events) => record_events(turn, name, *events),
        Err(_) => drop(turn.crashed.insert(Subject::Array(name.clone()))),
    }
    closed.map(drop)
}

/// [`close_array`]; what goes wrong is in the log.
pub(crate) fn close_array_and_note(turn: &mut Turn, name: &ArrayName) {
    let closed = close_array(turn, name);
    turn.note_array(name, closed);
}

/// Records the event count of an array that has stopped: members that know fewer are old. A copy of one that was
/// made before the stop is not believed when it is put back.
fn record_events(turn: &mut Turn, name: &ArrayName, events: u64) {
    let Some(record) = turn.registry.find_array(name).cloned() else { return };
    // The devices of one that is only read know nothing of it.
    if events > record.events && !record.read_only {
        let recorded = turn.registry.put_array(RegisteredArray { events, ..record });
        turn.note_array(name, recorded);
    }
}

/// Brings an array to rest; the volumes on it are closed.
pub(crate) fn bring_to_rest(turn: &mut Turn, name: &ArrayName) {
    arrays::events::record(turn);
    let live = turn.live_arrays.remove(name);
    if live.is_some_and(|live| live.size_bytes.is_some()) {
        close_array_and_note(turn, name);
    }
}

/// Puts into a record what an opening found.
fn learn(record: &mut RegisteredArray, opened: &OpenedArray) {
    record.size_bytes = opened.size_bytes;
    if !record.read_only {
        record.events = opened.events;
    }
    (record.level, record.integrity) = (opened.level, opened.integrity);
    if opened.journal.is_some() || !opened.is_journal_lost {
        record.journal.clone_from(&opened.journal);
    }
    record.members.truncate(opened.members.len());
    record.record_places(&opened.members);
}
