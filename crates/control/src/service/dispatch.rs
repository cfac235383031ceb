//! The way of each request to the code that answers it, behind the checks that all requests share.

use std::time::Duration;

use crate::error::{ControlError, ControlResult};
use crate::name::ArrayName;
use crate::protocol::{ArrayRequest, Request, Response};
use crate::recent::RECENT_S;
use crate::service::acknowledge;
use crate::service::arrays::spare_pools;
use crate::service::presence::late;
use crate::service::state::turn::Turn;
use crate::service::state::{State, records, subjects};
use crate::service::volumes::take_over::Taken;
use crate::service::volumes::{drains, exports, show, stops};
use crate::service::{arrays, import, volumes};

/// The answer to a ping, for which nobody needs the service.
pub(crate) fn pong() -> Response {
    Response::Pong { pid: std::process::id(), version: env!("CARGO_PKG_VERSION").to_owned() }
}

/// Answers one request in a turn.
pub(super) fn answer(turn: &mut Turn, request: Request) -> Response {
    dispatch(turn, request).unwrap_or_else(|error| Response::Error { error })
}

/// Refuses changes while the daemon stops.
fn takes(state: &State, request: &Request) -> ControlResult<()> {
    if state.next_program.is_some() && !request.is_a_look() {
        return Err(ControlError::failed(
            "the daemon is being upgraded; give the command again in a moment",
        ));
    }
    let may_be_last = request.is_a_look() || matches!(request, Request::StopDaemon { .. });
    if state.stopping && !may_be_last {
        return Err(ControlError::failed(
            "the daemon is stopping, and waits for clients if there are any; try again when it \
             has ended",
        ));
    }
    Ok(())
}

fn dispatch(turn: &mut Turn, request: Request) -> ControlResult<Response> {
    takes(turn, &request)?;
    let request = with_real_files(request);
    if let Some(wanted) = subjects::of_request(&request) {
        turn.claim(request.command(), |state| subjects::with_neighbours(&state.registry, &wanted))?;
        // The daemon may have begun to stop meanwhile.
        takes(turn, &request)?;
    } else if let Some(array) = subjects::array_of_request_at_once(&request) {
        turn.wait_for_start_of(array)?;
    }
    records::record_what_happened(turn);
    if subjects::needs_a_record(&request) {
        // So that a full state folder is found before anything has changed.
        turn.registry.check_room()?;
    }
    match request {
        Request::Ping => Ok(pong()),
        Request::Create { name, origin, cache, export } => {
            volumes::commands::create(turn, name, origin, cache, export)
        }
        Request::TakeOver { name, origin, cache, export, force } => {
            volumes::take_over::take_over(turn, Taken { name, origin, cache, export, force })
        }
        Request::Delete { name, flush } => volumes::commands::delete(turn, &name, flush),
        Request::Show { name: Some(name), over_s } => show::show(turn, &name, interval(over_s)),
        Request::Show { name: None, over_s } => Ok(show::show_all(turn, interval(over_s))),
        Request::Acknowledge { name } => acknowledge::acknowledge(turn, name.as_deref()),
        Request::Start { name } => late::start_volume(turn, &name),
        Request::Stop { name, now } => stops::stop_volume(turn, &name, now),
        Request::StopDaemon { now } => stops::stop_daemon(turn, now),
        Request::Upgrade { program, handover } => stops::upgrade(turn, program, handover),
        Request::Set { name, changes } => volumes::commands::set(turn, &name, &changes),
        Request::Flush { name } => volumes::commands::flush(turn, &name),
        Request::Attach { name, cache } => volumes::commands::attach(turn, &name, cache),
        Request::Detach { name, flush } => volumes::commands::detach(turn, &name, flush),
        Request::Export { name, export, insecure, access } => {
            exports::export(turn, &name, export, insecure, access)
        }
        Request::Unexport { name, export, now } => {
            exports::unexport(turn, &name, export.as_ref(), now)
        }
        Request::Import { order } => import::import(turn, &order),
        Request::Array { ask } => dispatch_array(turn, ask),
        // The server answers it: nobody needs the service for it.
        Request::Events { .. } => Err(ControlError::failed("nobody keeps events here")),
        Request::Metrics => Err(ControlError::failed("nobody looks at the health here")),
        Request::Job { id } => drains::job_response(turn, id),
        Request::EndJob { id } => drains::ask_to_end(turn, id),
    }
}

/// The interval of the rates and latencies in an answer; nobody keeps more than a minute.
fn interval(over_s: Option<u32>) -> Duration {
    Duration::from_secs(over_s.unwrap_or(RECENT_S).clamp(1, 60).into())
}

/// The request with the files of block devices as the kernel shows them: by these their devices are known.
fn with_real_files(mut request: Request) -> Request {
    let export = match &mut request {
        Request::Create { export, .. }
        | Request::TakeOver { export, .. }
        | Request::Unexport { export, .. }
        | Request::Array { ask: ArrayRequest::Create { export, .. } } => export.as_mut(),
        Request::Export { export, .. } => Some(export),
        _ => None,
    };
    if let Some(export) = export {
        *export = export.clone().resolved();
    }
    request
}

/// The array whose members a request is going to write to.
fn changed_array(ask: &ArrayRequest) -> Option<&ArrayName> {
    match ask {
        ArrayRequest::Fail { name, .. }
        | ArrayRequest::Replace { name, .. }
        | ArrayRequest::AddSpare { name, .. }
        | ArrayRequest::RemoveSpare { name, .. }
        | ArrayRequest::Grow { name, .. }
        | ArrayRequest::Rebuild { name }
        | ArrayRequest::Scrub { name, .. }
        | ArrayRequest::SetJournal { name, .. }
        | ArrayRequest::Delete { name, erase: true } => Some(name),
        _ => None,
    }
}

/// The answer to a request about arrays and pools.
fn dispatch_array(turn: &mut Turn, ask: ArrayRequest) -> ControlResult<Response> {
    if let Some(name) = changed_array(&ask) {
        turn.array_record(name)?.must_take_changes()?;
    }
    match ask {
        ArrayRequest::Create { array, integrity, export } => {
            arrays::commands::create_with(turn, array, integrity, export)
        }
        ArrayRequest::Show { name: Some(name), over_s } => {
            let record = turn.array_record(&name)?;
            let array = Box::new(arrays::show::recent_status(turn, &record, interval(over_s)));
            Ok(Response::Array { array, notes: Vec::new() })
        }
        ArrayRequest::Show { name: None, over_s } => {
            let (records, over) = (turn.registry.arrays().to_vec(), interval(over_s));
            let status = |record| arrays::show::recent_status(turn, record, over);
            let arrays = records.iter().map(status).collect();
            Ok(Response::Arrays { arrays })
        }
        ArrayRequest::Assemble { devices, force, read_only } => {
            arrays::commands::assemble(turn, devices, force, read_only)
        }
        ArrayRequest::Start { name } => late::start_array(turn, &name),
        ArrayRequest::Stop { name } => stops::stop_array(turn, &name),
        ArrayRequest::Fail { name, member } => arrays::commands::fail_member(turn, &name, &member),
        ArrayRequest::Delete { name, erase } => arrays::commands::delete(turn, &name, erase),
        ArrayRequest::Replace { name, old, new, force } => {
            arrays::members::replace(turn, &name, &old, new, force)
        }
        ArrayRequest::AddSpare { name, spare, force } => {
            arrays::members::add_spare(turn, &name, spare, force)
        }
        ArrayRequest::RemoveSpare { name, spare } => {
            arrays::members::remove_spare(turn, &name, &spare)
        }
        ArrayRequest::Grow { name, by, devices, force } => {
            arrays::members::grow(turn, &name, by, devices, force)
        }
        ArrayRequest::Rebuild { name } => {
            arrays::members::start_task(turn, &name, |engine, name| engine.start_rebuild(name))
        }
        ArrayRequest::Scrub { name, repair } => {
            arrays::members::start_task(turn, &name, |engine, name| {
                engine.start_scrub(name, repair)
            })
        }
        ArrayRequest::Set { name, changes } => arrays::members::set(turn, &name, &changes),
        ArrayRequest::PoolAdd { pool, devices, force } => {
            spare_pools::add_to_pool(turn, &pool, devices, force)
        }
        ArrayRequest::PoolRemove { pool, devices } => {
            spare_pools::remove_from_pool(turn, &pool, &devices)
        }
        ArrayRequest::PoolShow { pool } => spare_pools::show_pools(turn, pool.as_ref()),
        ArrayRequest::SetJournal { name, journal, force } => {
            arrays::members::set_journal(turn, &name, journal, force)
        }
    }
}
