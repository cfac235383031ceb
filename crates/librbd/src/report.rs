//! What the owner of an image says in its metadata, again and again, for whoever takes the image over: that it lives,
//! and how far the image is behind what was acknowledged.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::connection::Connection;
use crate::metadata;
use crate::name::ImageName;

/// The key of the report in the metadata of the image.
const REPORT: &CStr = c"voltier.state";
/// The key of the sign of life: the address of the client, and a number that changes.
const ALIVE: &CStr = c"voltier.alive";

/// Reports that are to be written, by the keys of images.
static PENDING: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());
static WRITTEN: Condvar = Condvar::new();

fn pending() -> MutexGuard<'static, BTreeMap<String, String>> {
    PENDING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has a report written into the metadata of an image, in place of the one before: before anything is served, when the
/// image is opened; else by the thread of the image, within half a second or when the cluster answers. At most 1023
/// bytes can be read again.
pub fn report(name: &ImageName, report: String) {
    pending().insert(name.key(), report);
}

/// [`report`], and waits until it is written, for at most so long; whether it is.
pub fn report_now(name: &ImageName, report: String, patience: Duration) -> bool {
    let key = name.key();
    pending().insert(key.clone(), report);
    let waits = |pending: &mut BTreeMap<String, String>| pending.contains_key(&key);
    let waited = WRITTEN.wait_timeout_while(pending(), patience, waits);
    !waited.unwrap_or_else(PoisonError::into_inner).0.contains_key(&key)
}

/// Writes the report that waits, if there is one. It waits on when it cannot be written.
pub(crate) fn write(connection: &Connection, key: &str, id: &str) -> Result<(), i32> {
    let Some(report) = pending().get(key).cloned() else { return Ok(()) };
    replace(connection, id, &report)?;
    let mut pending = pending();
    if pending.get(key) == Some(&report) {
        pending.remove(key);
    }
    WRITTEN.notify_all();
    Ok(())
}

/// Puts a report in the place of that of an owner who is pushed off.
pub(crate) fn replace(connection: &Connection, id: &str, report: &str) -> Result<(), i32> {
    metadata::put(connection, id, REPORT, report)
}

/// What waits is about a use of the image that has ended.
pub(crate) fn forget(key: &str) {
    pending().remove(key);
    WRITTEN.notify_all();
}

/// The last report.
pub(crate) fn read(connection: &Connection) -> Result<Option<String>, i32> {
    metadata::get(connection, REPORT)
}

/// Says that this client has the image, for the so many-th time.
pub(crate) fn live(connection: &Connection, id: &str, number: u64) -> Result<(), i32> {
    metadata::put(connection, id, ALIVE, &format!("{} {number}", connection.address()))
}

/// The address of the last Voltier that had the image, and its number.
pub(crate) fn last_alive(connection: &Connection) -> Result<Option<(String, String)>, i32> {
    let said = metadata::get(connection, ALIVE)?;
    Ok(said.and_then(|said| said.split_once(' ').map(|(at, number)| (at.into(), number.into()))))
}
