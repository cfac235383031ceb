//! The functions of librbd and librados, declared by hand from their headers (Ceph 16 and later), and loading them.
//!
//! UNSAFETY: this file declares foreign functions, and looks them up by name in a library of that name. What keeps
//! it sound is that the declarations are those of `rbd/librbd.h` and `rados/librados.h`, whose functions keep their
//! meaning as long as the library keeps its name (`librbd.so.1`), and that the library is never unloaded.
#![allow(unsafe_code)]

use std::ffi::{OsString, c_char, c_int, c_void};
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use libloading::Library;

use crate::error::ImageError;

/// A cluster (`rados_t`), a pool (`rados_ioctx_t`), an image (`rbd_image_t`), a completion (`rbd_completion_t`).
pub(crate) type Handle = *mut c_void;

/// `rbd_image_watcher_t`.
#[repr(C)]
pub(crate) struct Watcher {
    pub(crate) address: *mut c_char,
    pub(crate) id: i64,
    pub(crate) cookie: u64,
}

/// `RBD_FEATURE_EXCLUSIVE_LOCK`.
pub(crate) const FEATURE_EXCLUSIVE_LOCK: u64 = 1 << 2;
/// `RBD_LOCK_MODE_EXCLUSIVE`.
pub(crate) const LOCK_MODE_EXCLUSIVE: c_int = 0;
/// `EVENT_TYPE_EVENTFD`.
pub(crate) const EVENT_TYPE_EVENTFD: c_int = 2;

/// The file that is loaded, unless [`STAND_IN`] names another one.
const FILE: &str = "librbd.so.1";
/// The variable of the environment that names a file in the place of librbd: one that tests bring.
const STAND_IN: &str = "VOLTIER_LIBRBD";

macro_rules! functions {
    ($($name:ident($($arg:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions, by their own names.
        pub(crate) struct Api {
            $(pub(crate) $name: unsafe extern "C" fn($($arg),*) $(-> $result)?,)*
        }

        impl Api {
            /// Looks all of them up. librados is loaded with librbd, which names it.
            fn of(library: &Library) -> Result<Self, libloading::Error> {
                $(
                    // SAFETY: the type is that of the header, and the pointer outlives every use: the library is
                    // leaked (`load`).
                    let $name = *unsafe {
                        library.get::<unsafe extern "C" fn($($arg),*) $(-> $result)?>(
                            stringify!($name),
                        )
                    }?;
                )*
                Ok(Self { $($name,)* })
            }
        }
    };
}

functions! {
    rados_create(*mut Handle, *const c_char) -> c_int;
    rados_conf_read_file(Handle, *const c_char) -> c_int;
    rados_conf_set(Handle, *const c_char, *const c_char) -> c_int;
    rados_connect(Handle) -> c_int;
    rados_getaddrs(Handle, *mut *mut c_char) -> c_int;
    rados_buffer_free(*mut c_char);
    rados_shutdown(Handle);
    rados_blocklist_add(Handle, *mut c_char, u32) -> c_int;
    rados_ioctx_create(Handle, *const c_char, *mut Handle) -> c_int;
    rados_ioctx_set_namespace(Handle, *const c_char);
    rados_ioctx_destroy(Handle);
    rados_exec(Handle, *const c_char, *const c_char, *const c_char, *const c_char, usize, *mut c_char, usize) -> c_int;
    rbd_namespace_exists(Handle, *const c_char, *mut bool) -> c_int;
    rbd_open(Handle, *const c_char, *mut Handle, *const c_char) -> c_int;
    rbd_close(Handle) -> c_int;
    rbd_get_size(Handle, *mut u64) -> c_int;
    rbd_get_features(Handle, *mut u64) -> c_int;
    rbd_get_id(Handle, *mut c_char, usize) -> c_int;
    rbd_metadata_get(Handle, *const c_char, *mut c_char, *mut usize) -> c_int;
    rbd_read(Handle, u64, usize, *mut c_char) -> isize;
    rbd_lock_acquire(Handle, c_int) -> c_int;
    rbd_lock_get_owners(Handle, *mut c_int, *mut *mut c_char, *mut usize) -> c_int;
    rbd_lock_get_owners_cleanup(*mut *mut c_char, usize);
    rbd_lock_break(Handle, c_int, *const c_char) -> c_int;
    rbd_is_exclusive_lock_owner(Handle, *mut c_int) -> c_int;
    rbd_watchers_list(Handle, *mut Watcher, *mut usize) -> c_int;
    rbd_watchers_list_cleanup(*mut Watcher, usize);
    rbd_update_watch(Handle, *mut u64, unsafe extern "C" fn(*mut c_void), *mut c_void) -> c_int;
    rbd_update_unwatch(Handle, u64) -> c_int;
    rbd_set_image_notification(Handle, c_int, c_int) -> c_int;
    rbd_poll_io_events(Handle, *mut Handle, c_int) -> c_int;
    rbd_aio_create_completion(*mut c_void, Option<unsafe extern "C" fn(Handle, *mut c_void)>, *mut Handle) -> c_int;
    rbd_aio_get_return_value(Handle) -> isize;
    rbd_aio_get_arg(Handle) -> *mut c_void;
    rbd_aio_release(Handle);
    rbd_aio_readv(Handle, *const libc::iovec, c_int, u64, Handle) -> c_int;
    rbd_aio_writev(Handle, *const libc::iovec, c_int, u64, Handle) -> c_int;
    rbd_aio_flush(Handle, Handle) -> c_int;
    rbd_aio_discard(Handle, u64, u64, Handle) -> c_int;
    rbd_aio_write_zeroes(Handle, u64, usize, Handle, c_int, c_int) -> c_int;
}

/// A pointer of the library, which threads hand to one another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pointer(NonNull<c_void>);

// SAFETY: librados and librbd lock within: any thread may use a handle, several at once. The one exception is the end
// of a handle, and its owner (`Connection`) sees to it that nobody uses it then.
unsafe impl Send for Pointer {}
// SAFETY: as above.
unsafe impl Sync for Pointer {}

impl Pointer {
    /// The handle that a call has given; none if it gave none.
    pub(crate) fn new(handle: Handle) -> Option<Self> {
        NonNull::new(handle).map(Self)
    }

    pub(crate) fn get(self) -> Handle {
        self.0.as_ptr()
    }
}

/// The library, once it is loaded. A library that is missing is looked for again the next time.
static LOADED: Mutex<Option<&'static Api>> = Mutex::new(None);

/// The functions of the library, which is loaded with the first call that finds it.
///
/// # Errors
/// When there is no such library, or it lacks a function.
pub(crate) fn load() -> Result<&'static Api, ImageError> {
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(api) = *loaded {
        return Ok(api);
    }
    let file = std::env::var_os(STAND_IN).unwrap_or_else(|| OsString::from(FILE));
    let failed = |error: libloading::Error| {
        let why = std::error::Error::source(&error).map(ToString::to_string);
        ImageError::NoLibrary {
            file: file.to_string_lossy().into_owned(),
            why: why.unwrap_or_else(|| error.to_string()).replace('\n', " "),
        }
    };
    // SAFETY: loading runs the library's initializers: those of Ceph's library make its own tables. That the file is
    // Ceph's library is what its name says, and who sets the environment of the daemon may run any code as it.
    let library = unsafe { Library::new(&file) }.map_err(failed)?;
    // Never unloaded: threads of the library may run until the process ends.
    let library: &'static Library = Box::leak(Box::new(library));
    let api: &'static Api = Box::leak(Box::new(Api::of(library).map_err(failed)?));
    *loaded = Some(api);
    Ok(api)
}
