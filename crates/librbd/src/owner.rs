//! Who else has an image.
//!
//! UNSAFETY: calls of foreign functions, with pointers to arrays of ours and their lengths; what the library puts
//! there is copied and given back before the call returns.
#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_char};
use std::ptr::null_mut;
use std::sync::{Mutex, PoisonError};

use crate::api::{LOCK_MODE_EXCLUSIVE, Watcher};
use crate::connection::{Connection, errno, is_own, plain_address, text};
use crate::error::ImageError;
use crate::former::is_former;
use crate::name::ImageName;

/// Clients that this process had the cluster refuse. It has them as watchers for a while longer.
static PUSHED_OFF: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Most owners and watchers that are listed.
const OWNERS_MAX: usize = 8;
const WATCHERS_MAX: usize = 64;
/// For how long the cluster refuses a client that is pushed off: a year.
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

/// Whether a client can do nothing to the image any more: it is dead, or the cluster refuses it.
fn is_past(address: &str) -> bool {
    is_former(address)
        || PUSHED_OFF.lock().unwrap_or_else(PoisonError::into_inner).contains(address)
}

/// Another client that has an image.
pub(crate) struct Other {
    pub(crate) address: String,
    /// Its number, of one that the cluster has heard of in the last half minute.
    pub(crate) id: Option<i64>,
    pub(crate) has_lock: bool,
}

impl Other {
    /// The client in words.
    pub(crate) fn words(&self) -> String {
        match self.id {
            Some(id) => format!("client.{id} at {}", self.address),
            None => format!("a client at {}", self.address),
        }
    }
}

/// Those who have the image and are not known to be dead, the owner of its lock first.
///
/// # Errors
/// [`ImageError::OwnLock`], or when the cluster cannot be asked.
pub(crate) fn others(connection: &Connection, name: &ImageName) -> Result<Vec<Other>, ImageError> {
    let failed = |number| connection.refused(name, "asking who has the image open", number);
    let watchers = watchers(connection).map_err(failed)?;
    let owners = owners(connection).map_err(failed)?;
    if owners.iter().any(|owner| is_own(owner)) {
        return Err(ImageError::OwnLock);
    }
    let id = |address: &String| watchers.iter().find(|it| it.1 == *address).map(|it| it.0);
    let mut others: Vec<Other> = Vec::new();
    for (address, has_lock) in
        owners.iter().map(|it| (it, true)).chain(watchers.iter().map(|it| (&it.1, false)))
    {
        let is_known = others.iter().any(|other| other.address == *address);
        if !is_known && !is_own(address) && !is_past(address) {
            others.push(Other { address: address.clone(), id: id(address), has_lock });
        }
    }
    Ok(others)
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
    // A lock whose owner is gone is broken by whoever takes it.
    match others(connection, name)?.iter().find(|other| other.id.is_some()) {
        Some(other) if other.has_lock => Err(ImageError::Locked(other.words())),
        Some(other) => Err(ImageError::Watched(other.words())),
        None => Ok(()),
    }
}

/// Has the cluster refuse another client from now on, and breaks its lock. When this returns the cluster carries
/// nothing out any more that the client sends, or has sent.
///
/// # Errors
/// When the cluster does not do that, or does not answer. The other one may be refused all the same.
pub(crate) fn push_off(
    connection: &Connection,
    name: &ImageName,
    other: &Other,
) -> Result<(), ImageError> {
    let failed = |number| connection.refused(name, "pushing the other host off the image", number);
    let address = text(other.address.as_bytes())?;
    // The library waits for the map of the cluster that says so: each OSD that hears from this client then has it, too.
    connection.refuse(&address, REFUSED_SECONDS).map_err(failed)?;
    if other.has_lock {
        // SAFETY: the image is a handle of the library, and the text ends with a zero byte.
        let broken = errno(unsafe {
            (connection.api().rbd_lock_break)(
                connection.image(),
                LOCK_MODE_EXCLUSIVE,
                address.as_ptr(),
            )
        });
        match broken {
            // It has let go of it meanwhile.
            Ok(_) | Err(libc::ENOENT) => {}
            Err(number) => return Err(failed(number)),
        }
    }
    PUSHED_OFF.lock().unwrap_or_else(PoisonError::into_inner).insert(other.address.clone());
    Ok(())
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
