//! Who else has an image.
//!
//! UNSAFETY: calls of foreign functions, with pointers to arrays of ours and their lengths; what the library puts
//! there is copied and given back before the call returns.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char};
use std::ptr::null_mut;

use crate::api::{LOCK_MODE_EXCLUSIVE, Watcher};
use crate::connection::{Connection, errno, is_own, plain_address};
use crate::error::ImageError;
use crate::former::is_former;
use crate::name::ImageName;

/// Most owners and watchers that are listed.
const OWNERS_MAX: usize = 8;
const WATCHERS_MAX: usize = 64;
/// A year.
const REFUSED_SECONDS: u32 = 365 * 24 * 3600;

/// # Safety
/// A null pointer, or a text that ends with a zero byte.
unsafe fn copied(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: as the caller promises.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// The addresses of those who have the lock: one, or none.
pub(crate) fn owners(connection: &Connection) -> Result<Vec<String>, i32> {
    let api = connection.api();
    let (mut mode, mut count) = (LOCK_MODE_EXCLUSIVE, OWNERS_MAX);
    let mut owners: [*mut c_char; OWNERS_MAX] = [null_mut(); OWNERS_MAX];
    // SAFETY: the array has room for as many as the count says.
    let listed = errno(unsafe {
        (api.rbd_lock_get_owners)(connection.image(), &mut mode, owners.as_mut_ptr(), &mut count)
    });
    match listed {
        Err(libc::ENOENT) => return Ok(Vec::new()),
        Err(number) => return Err(number),
        Ok(_) => {}
    }
    let count = count.min(OWNERS_MAX);
    // SAFETY: the library has put texts there.
    let found = owners[..count].iter().map(|owner| plain_address(&unsafe { copied(*owner) }));
    let found = found.collect();
    // SAFETY: what the library has put there goes back to it, and is not used any more.
    unsafe { (api.rbd_lock_get_owners_cleanup)(owners.as_mut_ptr(), count) };
    Ok(found)
}

/// The numbers and addresses of those who have the image open, this process among them.
fn watchers(connection: &Connection) -> Result<Vec<(i64, String)>, i32> {
    let api = connection.api();
    let mut count = WATCHERS_MAX;
    let mut watchers: Vec<Watcher> = Vec::with_capacity(WATCHERS_MAX);
    watchers.resize_with(WATCHERS_MAX, || Watcher { address: null_mut(), id: 0, cookie: 0 });
    // SAFETY: the array has room for as many as the count says.
    errno(unsafe {
        (api.rbd_watchers_list)(connection.image(), watchers.as_mut_ptr(), &mut count)
    })?;
    let count = count.min(WATCHERS_MAX);
    // SAFETY: the library has put texts there.
    let address = |watcher: &Watcher| plain_address(&unsafe { copied(watcher.address) });
    let found = watchers[..count].iter().map(|watcher| (watcher.id, address(watcher))).collect();
    // SAFETY: what the library has put there goes back to it, and is not used any more.
    unsafe { (api.rbd_watchers_list_cleanup)(watchers.as_mut_ptr(), count) };
    Ok(found)
}

/// Refuses an image that somebody has who is alive: the lock, or the image without it.
///
/// A client that the cluster has not heard of for half a minute is no watcher any more. A lock that it left is broken
/// by whoever takes it next, and the cluster refuses that client from then on. The lock of a daemon that is known to be
/// dead does not count.
///
/// # Errors
/// [`ImageError::Locked`], [`ImageError::Watched`], [`ImageError::OwnLock`], or when the cluster cannot be asked.
pub(crate) fn check(connection: &Connection, name: &ImageName) -> Result<(), ImageError> {
    let failed = |number| connection.refused(name, "asking who has the image open", number);
    let watchers = watchers(connection).map_err(failed)?;
    for owner in owners(connection).map_err(failed)? {
        if is_own(&owner) {
            return Err(ImageError::OwnLock);
        }
        if is_former(&owner) {
            continue;
        }
        if let Some((id, _)) = watchers.iter().find(|(_, address)| *address == owner) {
            return Err(ImageError::Locked(format!("client.{id} at {owner}")));
        }
    }
    match watchers.iter().find(|(_, address)| !is_own(address) && !is_former(address)) {
        Some((id, address)) => Err(ImageError::Watched(format!("client.{id} at {address}"))),
        None => Ok(()),
    }
}

/// Breaks the lock of a daemon that is known to be dead: the cluster refuses what it may have sent.
pub(crate) fn break_former(connection: &Connection) {
    for owner in owners(connection).unwrap_or_default().iter().filter(|owner| is_former(owner)) {
        let Ok(owner) = CString::new(owner.as_bytes()) else { continue };
        // One that is not broken is refused when the lock is taken.
        // SAFETY: the image is a handle of the library, and the text ends with a zero byte.
        unsafe {
            (connection.api().rbd_lock_break)(
                connection.image(),
                LOCK_MODE_EXCLUSIVE,
                owner.as_ptr(),
            );
        }
    }
}

/// Has the cluster refuse those who had the lock for a year, instead of the hour for which breaking a lock does. What a
/// machine had in hand when it was suspended is sent when it goes on, and that may be days later.
///
/// Not with `rbd_blocklist_expire_seconds`: with that set, librbd of Ceph 16 breaks no lock at all (EINVAL).
pub(crate) fn keep_out(connection: &Connection, before: &[String]) {
    // The dead have nothing in hand.
    for owner in before.iter().filter(|owner| !is_own(owner) && !is_former(owner)) {
        let Ok(owner) = CString::new(owner.as_bytes()) else { continue };
        // A user who may not ask for it has the hour.
        let _ = connection.refuse(&owner, REFUSED_SECONDS);
    }
}
