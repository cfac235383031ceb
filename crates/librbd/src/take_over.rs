//! Taking an image away from another host, which the cluster refuses from then on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::connection::{Connection, Purpose};
use crate::error::ImageError;
use crate::name::ImageName;
use crate::owner::{self, Other};
use crate::patience::bounded;
use crate::report;

/// How long an owner may say nothing until it counts as cut off: it says that it lives every two seconds, on a thread
/// of its own.
const SILENCE: Duration = Duration::from_secs(6);
/// How often that is looked at meanwhile.
const LOOKS: u32 = 12;

/// An image that nobody has any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakenOver {
    /// The clients that were pushed off, in words.
    pub from: Vec<String>,
    /// The last [report](crate::report()) of the owner, if the last owner was a Voltier. It does not change any more.
    pub report: Option<String>,
}

/// Takes an image away from whoever has it: the cluster carries out nothing more of what they send, or have sent, when
/// this returns. A client that the cluster has heard of in the last half minute keeps the image, unless it is a Voltier
/// that does not say any more that it lives, or `force` says otherwise.
///
/// `given_up` gets the report, and says what it is replaced by, if by anything, or why the image is not taken although
/// nobody has it. Each step may take `patience`, and all of it six times that.
///
/// # Errors
/// [`ImageError::Alive`], [`ImageError::HalfTaken`], [`ImageError::LeftAlone`], or any other [`ImageError`] but those
/// of other users.
pub fn take_over(
    name: &ImageName,
    force: bool,
    patience: Duration,
    given_up: impl FnOnce(&str) -> Result<Option<String>, String> + Send + 'static,
) -> Result<TakenOver, ImageError> {
    let (own, is_given_up) = (name.clone(), Arc::new(AtomicBool::new(false)));
    let stop = is_given_up.clone();
    let work = move || take_over_now(&own, force, patience, &stop, given_up);
    let taken = bounded(format!("take {name} over"), 6 * patience, work);
    // A thread that goes on when nobody waits any more pushes nobody off.
    is_given_up.store(true, Ordering::Release);
    taken
}

fn take_over_now(
    name: &ImageName,
    force: bool,
    patience: Duration,
    is_given_up: &AtomicBool,
    given_up: impl FnOnce(&str) -> Result<Option<String>, String>,
) -> Result<TakenOver, ImageError> {
    let connection = Connection::open(name, Purpose::Look(patience))?;
    let failed = |number| connection.refused(name, "looking at the image", number);
    let id = connection.id().map_err(failed)?;
    let mut others = owner::others(&connection, name)?;
    if !force {
        are_cut_off(&connection, name, &others)?;
        let now = owner::others(&connection, name)?;
        let is_known = |it: &&Other| others.iter().any(|other| other.address == it.address);
        if let Some(other) = now.iter().find(|other| !is_known(other)) {
            return Err(ImageError::Alive(other.words()));
        }
        others = now;
    }
    let owner = report::last_alive(&connection).map_err(failed)?;
    let mut from = Vec::new();
    for other in &others {
        if is_given_up.load(Ordering::Acquire) {
            return Err(half_taken(&from, ImageError::Silent));
        }
        owner::push_off(&connection, name, other).map_err(|error| half_taken(&from, error))?;
        from.push(other.words());
    }
    // Read after that: the last word of the owner. A client of another kind leaves none, and that of before is not its.
    let is_of_owner = others
        .iter()
        .filter(|other| other.has_lock)
        .all(|other| owner.as_ref().is_some_and(|(address, _)| *address == other.address));
    let report = report::read(&connection).map_err(|number| half_taken(&from, failed(number)))?;
    let report = report.filter(|_| is_of_owner);
    let new = report.as_deref().map_or(Ok(None), given_up).map_err(ImageError::LeftAlone)?;
    if let Some(new) = new {
        report::replace(&connection, &id, &new)
            .map_err(|number| half_taken(&from, failed(number)))?;
    }
    Ok(TakenOver { from, report })
}

/// The error when some clients are pushed off already.
fn half_taken(from: &[String], error: ImageError) -> ImageError {
    match from {
        [] => error,
        _ => ImageError::HalfTaken { from: from.join(", "), why: error.to_string() },
    }
}

/// Waits until it is known that every client which has the image is cut off. The clocks of hosts differ, so what counts
/// is whether something changes.
fn are_cut_off(
    connection: &Connection,
    name: &ImageName,
    others: &[Other],
) -> Result<(), ImageError> {
    let failed = |number| connection.refused(name, "looking whether the owner lives", number);
    let heard_of: Vec<&Other> = others.iter().filter(|other| other.id.is_some()).collect();
    let Some(first) = heard_of.first() else { return Ok(()) };
    let said = report::last_alive(connection).map_err(failed)?;
    let is_owner = |other: &Other| said.as_ref().is_some_and(|said| said.0 == other.address);
    if let Some(other) = heard_of.iter().find(|other| !is_owner(other)) {
        return Err(ImageError::Alive(other.words()));
    }
    for _ in 0..LOOKS {
        thread::park_timeout(SILENCE / LOOKS);
        if report::last_alive(connection).map_err(failed)? != said {
            return Err(ImageError::Alive(first.words()));
        }
    }
    Ok(())
}
