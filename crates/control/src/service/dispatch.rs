//! The way of each request to the code that answers it, behind the checks that all requests share.

use super::turn::{State, Turn};
use super::{import, late, stops, subjects};
use crate::engine::Engine;
use crate::error::{ControlError, ControlResult};
use crate::protocol::{Request, Response};

/// The answer to a ping, for which nobody needs the service.
pub(crate) fn pong() -> Response {
    Response::Pong { pid: std::process::id(), version: env!("CARGO_PKG_VERSION").to_owned() }
}

/// Answers one request in a turn.
pub(super) fn answer<E: Engine>(turn: &mut Turn<E>, request: Request) -> Response {
    dispatch(turn, request).unwrap_or_else(|error| Response::Error { error })
}

/// Refuses changes while the daemon stops.
fn takes(state: &State, request: &Request) -> ControlResult<()> {
    let may_be_last = request.is_a_look() || matches!(request, Request::StopDaemon { .. });
    if state.stopping && !may_be_last {
        return Err(ControlError::failed(
            "the daemon is stopping, and waits for clients that use it if there are any; try again \
             when it has ended",
        ));
    }
    Ok(())
}

fn dispatch<E: Engine>(turn: &mut Turn<E>, request: Request) -> ControlResult<Response> {
    takes(turn, &request)?;
    if let Some(wanted) = subjects::of_request(&request) {
        turn.claim(request.command(), |state| subjects::with_neighbours(&state.registry, &wanted))?;
        // The daemon may have begun to stop meanwhile.
        takes(turn, &request)?;
    } else if let Some(array) = subjects::array_of_request_at_once(&request) {
        turn.wait_for_start_of(array)?;
    }
    turn.record_what_happened();
    if subjects::needs_a_record(&request) {
        // So that a full state folder is found before anything has changed.
        turn.registry.check_room()?;
    }
    match request {
        Request::Ping => Ok(pong()),
        Request::Create { name, origin, cache } => turn.create(name, origin, cache),
        Request::Delete { name, flush } => turn.delete(&name, flush),
        Request::Show { name: Some(name) } => turn.show(&name),
        Request::Show { name: None } => Ok(turn.show_all()),
        Request::Start { name } => late::start_volume(turn, &name),
        Request::Stop { name, now } => stops::stop_volume(turn, &name, now),
        Request::StopDaemon { now } => stops::stop_daemon(turn, now),
        Request::Set { name, changes } => turn.set(&name, &changes),
        Request::Flush { name } => turn.flush(&name),
        Request::Attach { name, cache } => turn.attach(&name, cache),
        Request::Detach { name, flush } => turn.detach(&name, flush),
        Request::Export { name, export, insecure, access } => {
            turn.export(&name, export, insecure, access)
        }
        Request::Unexport { name, export, now } => turn.unexport(&name, export.as_ref(), now),
        Request::Import { order } => import::import(turn, &order),
        Request::Array { ask } => turn.array(ask),
        Request::Job { id } => turn.job_response(id),
    }
}
