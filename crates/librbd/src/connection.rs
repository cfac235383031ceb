//! A connection to a cluster, and an image that is open over it. Every call here may wait for the cluster.
//!
//! Each image has a connection of its own: who breaks the lock of an image has the cluster refuse the whole
//! connection (blocklisting), and that is to end one drive and no other.
//!
//! UNSAFETY: calls of foreign functions. The handles come from the library and are valid until `Connection` is
//! dropped, which alone ends them; pointers to memory of ours are valid for the call that gets them.
#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::ptr::null_mut;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use voltier_block::SECTOR_BYTES;

use crate::api::{Api, FEATURE_EXCLUSIVE_LOCK, Handle, Pointer, load};
use crate::error::{ImageError, words};
use crate::former;
use crate::name::ImageName;

/// Longest id of an image, in bytes.
const ID_BYTES_MAX: usize = 256;

/// Most operations and bytes that Ceph's client has under way before a call that submits one waits. A core must not
/// wait there: the drive keeps far below (a request of 4 MiB is at most 1024 operations, of objects of 4 KiB).
const OPERATIONS_MAX: &str = "1048576";
const OPERATION_BYTES_MAX: &str = "4294967296";

/// The addresses of the connections of this process, as the cluster names them.
static OWN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A look: calls that the cluster does not answer fail after this time.
    Look(Duration),
    /// A drive: what was sent is waited for, however long. One that was given up could be carried out later.
    Drive(Duration),
}

/// A connection to a cluster, with an image.
pub(crate) struct Connection {
    api: &'static Api,
    cluster: Pointer,
    pool: Option<Pointer>,
    image: Option<Pointer>,
    address: String,
}

/// The error number in the result of a call, which is negative.
pub(crate) fn errno(result: c_int) -> Result<c_int, i32> {
    if result < 0 { Err(-result) } else { Ok(result) }
}

pub(crate) fn text(bytes: &[u8]) -> Result<CString, ImageError> {
    let why = || "a name has a zero byte".to_owned();
    CString::new(bytes).map_err(|_| ImageError::Failed { doing: "naming it", why: why() })
}

/// An address as every function of the library writes it, whatever the protocol in front of it.
pub(crate) fn plain_address(address: &str) -> String {
    // Brackets stand around a list, and around an IPv6 address.
    let is_list = address.starts_with("[v") || address.starts_with("[any:");
    let list = address.strip_prefix('[').and_then(|list| list.strip_suffix(']'));
    let list = list.filter(|_| is_list).unwrap_or(address);
    let first = list.split(',').next().unwrap_or_default();
    let kinds = ["v1:", "v2:", "any:"];
    let bare = kinds.iter().find_map(|kind| first.strip_prefix(kind)).unwrap_or(first);
    bare.to_owned()
}

/// Whether an address is one of this process.
pub(crate) fn is_own(address: &str) -> bool {
    OWN.lock().unwrap_or_else(PoisonError::into_inner).contains(address)
}

impl Connection {
    /// Connects, and opens the image for writing, without its lock.
    ///
    /// # Errors
    /// Every [`ImageError`] but those of other users.
    pub(crate) fn open(name: &ImageName, purpose: Purpose) -> Result<Self, ImageError> {
        let api = load()?;
        let user = text(name.user().as_bytes())?;
        let mut cluster: Handle = null_mut();
        // SAFETY: the result goes into a place of the right type, and the text ends with a zero byte.
        let made = errno(unsafe { (api.rados_create)(&mut cluster, user.as_ptr()) });
        let failed = |doing, why: i32| ImageError::Failed { doing, why: words(why) };
        made.map_err(|why| failed("preparing a connection", why))?;
        let cluster = Pointer::new(cluster).ok_or_else(|| failed("preparing a connection", 12))?;
        let mut connection = Self { api, cluster, pool: None, image: None, address: String::new() };
        connection.configure(name, purpose)?;
        connection.connect(name)?;
        if let Purpose::Drive(_) = purpose {
            former::add(&connection.address);
        }
        connection.open_pool(name)?;
        connection.open_image(name)?;
        connection.check(name)?;
        Ok(connection)
    }

    fn set(&self, option: &str, value: &str) -> Result<(), ImageError> {
        let (option, value) = (text(option.as_bytes())?, text(value.as_bytes())?);
        // An option that this release of Ceph does not know has no effect there either.
        // SAFETY: the cluster is a handle of the library, and the texts end with a zero byte.
        unsafe { (self.api.rados_conf_set)(self.cluster.get(), option.as_ptr(), value.as_ptr()) };
        Ok(())
    }

    fn configure(&self, name: &ImageName, purpose: Purpose) -> Result<(), ImageError> {
        let path = text(name.conf().as_os_str().as_bytes())?;
        // SAFETY: the cluster is a handle of the library, and the text ends with a zero byte.
        let read = unsafe { (self.api.rados_conf_read_file)(self.cluster.get(), path.as_ptr()) };
        errno(read)
            .map_err(|why| ImageError::NoConf { path: name.conf().to_owned(), why: words(why) })?;
        let (Purpose::Look(patience) | Purpose::Drive(patience)) = purpose;
        let seconds = patience.as_secs().max(1).to_string();
        self.set("client_mount_timeout", &seconds)?;
        if let Purpose::Look(_) = purpose {
            self.set("rados_osd_op_timeout", &seconds)?;
            self.set("rados_mon_op_timeout", &seconds)?;
        }
        // Without librbd's cache a write completes when all copies of the cluster have it durably. (The image may turn
        // the cache on again in its own metadata, so the drive does not rely on this, and flushes.)
        self.set("rbd_cache", "false")?;
        // Whoever is pushed off the image is shut out of the cluster, so that what it sent late has no effect.
        self.set("rbd_blocklist_on_break_lock", "true")?;
        self.set("objecter_inflight_ops", OPERATIONS_MAX)?;
        self.set("objecter_inflight_op_bytes", OPERATION_BYTES_MAX)?;
        // The library's own log has its file, if the configuration names one. The daemon's standard error is not it.
        self.set("log_to_stderr", "false")?;
        self.set("err_to_stderr", "false")
    }

    fn connect(&mut self, name: &ImageName) -> Result<(), ImageError> {
        // SAFETY: the cluster is a handle of the library.
        let connected = errno(unsafe { (self.api.rados_connect)(self.cluster.get()) });
        connected.map_err(|number| {
            let (conf, why) = (name.conf().to_owned(), words(number));
            match number {
                libc::EPERM | libc::EACCES | libc::ENOENT => {
                    ImageError::NotLetIn { user: name.user().to_owned(), conf, why }
                }
                _ => ImageError::NoMonitor { conf, why },
            }
        })?;
        let mut addresses: *mut c_char = null_mut();
        // SAFETY: the result goes into a place of the right type.
        let asked = unsafe { (self.api.rados_getaddrs)(self.cluster.get(), &mut addresses) };
        if errno(asked).is_ok() && !addresses.is_null() {
            // SAFETY: the library gave a text that ends with a zero byte, and is valid until it is freed below.
            let address = unsafe { CStr::from_ptr(addresses) }.to_string_lossy().into_owned();
            self.address = plain_address(&address);
            // SAFETY: the library gave it to be freed so, and nobody uses it any more.
            unsafe { (self.api.rados_buffer_free)(addresses) };
            OWN.lock().unwrap_or_else(PoisonError::into_inner).insert(self.address.clone());
        }
        Ok(())
    }

    fn open_pool(&mut self, name: &ImageName) -> Result<(), ImageError> {
        let (pool, namespace) = (text(name.pool.as_bytes())?, text(name.namespace.as_bytes())?);
        let mut handle: Handle = null_mut();
        // SAFETY: the text ends with a zero byte, and the result goes into a place of the right type.
        let opened = errno(unsafe {
            (self.api.rados_ioctx_create)(self.cluster.get(), pool.as_ptr(), &mut handle)
        });
        opened.map_err(|number| match number {
            libc::ENOENT => ImageError::NoPool(name.pool.clone()),
            _ => self.refused(name, "opening the pool", number),
        })?;
        self.pool = Pointer::new(handle);
        if name.namespace.is_empty() {
            return Ok(());
        }
        let mut is_there = false;
        // SAFETY: the pool is a handle of the library, the text ends with a zero byte, and the result goes into a place
        // of the right type.
        let asked =
            unsafe { (self.api.rbd_namespace_exists)(handle, namespace.as_ptr(), &mut is_there) };
        // Who may not ask finds out with the image.
        if errno(asked).is_ok() && !is_there {
            return Err(ImageError::NoNamespace {
                pool: name.pool.clone(),
                namespace: name.namespace.clone(),
            });
        }
        // SAFETY: the pool is a handle of the library, and the text ends with a zero byte.
        unsafe { (self.api.rados_ioctx_set_namespace)(handle, namespace.as_ptr()) };
        Ok(())
    }

    fn open_image(&mut self, name: &ImageName) -> Result<(), ImageError> {
        let image = text(name.image.as_bytes())?;
        let pool = self.pool();
        let mut handle: Handle = null_mut();
        // SAFETY: the pool is a handle of the library, the text ends with a zero byte, and the result goes into a place
        // of the right type. No snapshot is named.
        let opened = errno(unsafe {
            (self.api.rbd_open)(pool, image.as_ptr(), &mut handle, std::ptr::null())
        });
        opened.map_err(|number| match number {
            libc::ENOENT => ImageError::NoImage(name.place()),
            _ => self.refused(name, "opening the image", number),
        })?;
        self.image = Pointer::new(handle);
        Ok(())
    }

    fn check(&self, name: &ImageName) -> Result<(), ImageError> {
        let has_lock = self.has_lock_feature();
        if !has_lock.map_err(|it| self.refused(name, "asking for the image's features", it))? {
            return Err(ImageError::NoLockFeature(name.place()));
        }
        let size =
            self.size().map_err(|it| self.refused(name, "asking for the image's size", it))?;
        if size < SECTOR_BYTES { Err(ImageError::TooSmall(size)) } else { Ok(()) }
    }

    /// The refusal for an error number.
    pub(crate) fn refused(&self, name: &ImageName, doing: &'static str, number: i32) -> ImageError {
        match number {
            libc::EPERM | libc::EACCES => {
                ImageError::NotAllowed { user: name.user().to_owned(), pool: name.pool.clone() }
            }
            libc::EROFS => ImageError::ReadOnly,
            libc::ETIMEDOUT => ImageError::Silent,
            _ => ImageError::Failed { doing, why: words(number) },
        }
    }

    pub(crate) fn api(&self) -> &'static Api {
        self.api
    }

    /// The image's handle.
    pub(crate) fn image(&self) -> Handle {
        self.image.map_or(null_mut(), Pointer::get)
    }

    pub(crate) fn image_pointer(&self) -> Option<Pointer> {
        self.image
    }

    /// The pool's handle.
    pub(crate) fn pool(&self) -> Handle {
        self.pool.map_or(null_mut(), Pointer::get)
    }

    /// The address of this connection, as the cluster names it.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Whether the image has an exclusive lock at all: without it the cluster lets anybody write.
    pub(crate) fn has_lock_feature(&self) -> Result<bool, i32> {
        let mut features = 0;
        // SAFETY: the image is a handle of the library, and the result goes into a place of the right type.
        errno(unsafe { (self.api.rbd_get_features)(self.image(), &mut features) })?;
        Ok(features & FEATURE_EXCLUSIVE_LOCK != 0)
    }

    /// Has the cluster refuse a client for so many seconds from now, whatever it refused it for before.
    pub(crate) fn refuse(&self, address: &CStr, seconds: u32) -> Result<(), i32> {
        let address = address.as_ptr().cast_mut();
        // SAFETY: the cluster is a handle of the library, which only reads the text, and that ends with a zero byte.
        errno(unsafe { (self.api.rados_blocklist_add)(self.cluster.get(), address, seconds) })?;
        Ok(())
    }

    /// The size of the image in bytes.
    pub(crate) fn size(&self) -> Result<u64, i32> {
        let mut size = 0;
        // SAFETY: the image is a handle of the library, and the result goes into a place of the right type.
        errno(unsafe { (self.api.rbd_get_size)(self.image(), &mut size) })?;
        Ok(size)
    }

    /// The id that the cluster gave the image when it was made: another image of its name has another one.
    pub(crate) fn id(&self) -> Result<String, i32> {
        let mut id = [0_u8; ID_BYTES_MAX];
        // SAFETY: the library writes at most this many bytes there.
        errno(unsafe { (self.api.rbd_get_id)(self.image(), id.as_mut_ptr().cast(), id.len()) })?;
        let id = CStr::from_bytes_until_nul(&id).map_err(|_| libc::EINVAL)?;
        Ok(id.to_string_lossy().into_owned())
    }

    /// Reads, waiting for the cluster.
    pub(crate) fn read(&self, at: u64, into: &mut [u8]) -> Result<(), i32> {
        // SAFETY: the library writes at most this many bytes there, before the call returns.
        let read =
            unsafe { (self.api.rbd_read)(self.image(), at, into.len(), into.as_mut_ptr().cast()) };
        match usize::try_from(read) {
            Ok(bytes) if bytes == into.len() => Ok(()),
            Ok(_) => Err(libc::EIO),
            Err(_) => Err(i32::try_from(-read).unwrap_or(libc::EIO)),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(image) = self.image.take() {
            // SAFETY: nobody uses the image after this: `Image` ends before its connection.
            unsafe { (self.api.rbd_close)(image.get()) };
        }
        if let Some(pool) = self.pool.take() {
            // SAFETY: nobody uses the pool after this.
            unsafe { (self.api.rados_ioctx_destroy)(pool.get()) };
        }
        // SAFETY: nobody uses the cluster after this.
        unsafe { (self.api.rados_shutdown)(self.cluster.get()) };
        OWN.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.address);
        former::remove(&self.address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_the_same_in_every_form() {
        for form in ["10.0.0.1:0/7", "v1:10.0.0.1:0/7", "[v2:10.0.0.1:0/7,v1:10.0.0.1:0/8]"] {
            assert_eq!(plain_address(form), "10.0.0.1:0/7", "{form}");
        }
        for form in ["[fd00::1]:0/7", "v2:[fd00::1]:0/7", "[v2:[fd00::1]:0/7,v1:[fd00::1]:0/8]"] {
            assert_eq!(plain_address(form), "[fd00::1]:0/7", "{form}");
        }
    }
}
