//! The state of arrays, put together from the registry, the service and the data path.

use std::time::Duration;

use crate::array_status::{ArrayDetail, ArrayState};
use crate::error::{ControlError, ControlResult};
use crate::health;
use crate::name::ArrayName;
use crate::protocol::Response;
use crate::records::RegisteredArray;
use crate::service::state::claims::Subject;
use crate::service::state::live::now;
use crate::service::state::turn::Turn;
use crate::spec::DeviceSpec;

/// Everything about one array, with what it did in about the last `over`.
pub(crate) fn recent_status(
    turn: &mut Turn,
    record: &RegisteredArray,
    over: Duration,
) -> ArrayDetail {
    let mut status = status(turn, record);
    turn.history.take(&Subject::Array(record.name.clone()), &mut status, now(), over);
    status
}

/// Everything about one array.
pub(crate) fn status(turn: &mut Turn, record: &RegisteredArray) -> ArrayDetail {
    let mut status = status_of(turn, record);
    let subject = Subject::Array(record.name.clone());
    status.under_way = turn.claims.under_way(&subject, turn.own()).unwrap_or_default();
    let is_open = turn.size_of_array(&record.name).is_ok();
    if turn.claims.starts(&subject, turn.own()) && !is_open && !record.stopped {
        status.state = ArrayState::Starting;
    }
    add_smart(turn, &mut status);
    turn.add_trouble(&mut status.error);
    status.health = health::summary_of_array(&status);
    status
}

fn status_of(turn: &mut Turn, record: &RegisteredArray) -> ArrayDetail {
    let mut status = ArrayDetail::recorded(record);
    status.scrub_times = turn.scrubs.times(record);
    status.used_by = turn.user_of_array(&record.name, None);
    let pool = record.settings.spare_pool.as_ref();
    let pool = pool.and_then(|pool| turn.registry.find_pool(pool));
    let spares = pool.into_iter().flat_map(|pool| &pool.spares);
    status.pool_spares = spares.map(|spare| spare.device.to_string()).collect();
    if record.stopped {
        return status;
    }
    let Some(live) = turn.live_arrays.get(&record.name) else { return status };
    status.moved.clone_from(&live.search.moved);
    status.left_out.clone_from(&live.left_out);
    status.error.clone_from(&live.error);
    status.waits_for = live.absence.awaited();
    status.waits_seconds = live.absence.seconds_left();
    if live.absence.is_waiting() {
        status.state = ArrayState::Waiting;
    }
    if live.size_bytes.is_some() {
        status.state = ArrayState::Running;
        turn.engine.fill_array_status(&record.name, &mut status);
    }
    status
}

/// Adds what the drives say of themselves.
fn add_smart(turn: &Turn, status: &mut ArrayDetail) {
    for member in &mut status.members {
        member.smart = turn.smart.of(&member.path);
    }
    if let Some(journal) = &mut status.journal_device {
        journal.smart = turn.smart.of(&journal.path);
    }
    status.spares_smart = turn.smart.of_spares(&status.spares);
}

/// Why an array that is assembled takes no changes, if so.
pub(crate) fn failure(turn: &mut Turn, device: &DeviceSpec) -> Option<String> {
    let name = device.array()?;
    let record = turn.registry.find_array(name).cloned()?;
    let status = status(turn, &record);
    failure_of(turn, &status).map(str::to_owned)
}

/// Why an array of this status takes no changes, if it is assembled and takes none.
pub(crate) fn failure_of<'a>(turn: &Turn, status: &'a ArrayDetail) -> Option<&'a str> {
    turn.size_of_array(&status.name).ok()?;
    (status.state == ArrayState::Failed).then_some(&*status.error)
}

/// # Errors
/// Why an array that is assembled takes no changes.
pub(crate) fn must_take_changes(turn: &mut Turn, name: &ArrayName) -> ControlResult<()> {
    match failure(turn, &DeviceSpec::Array(name.clone())) {
        None => Ok(()),
        Some(why) => Err(ControlError::failed(format!("the array {name} has failed: {why}"))),
    }
}

/// The answer with the state of an array just handled.
pub(crate) fn response(turn: &mut Turn, name: &ArrayName, notes: Vec<String>) -> Response {
    let record = turn.registry.find_array(name).cloned();
    let record = record.expect("an array just handled is recorded");
    Response::Array { array: Box::new(status(turn, &record)), notes }
}
