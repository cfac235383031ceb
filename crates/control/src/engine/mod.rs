//! The control plane's view of the data path, and nothing more.
//!
//! The service decides what is to happen and keeps the registry; an engine makes it happen on the
//! cores. Calls block until the data path has answered, except a drain, which is started and asked
//! about. The calls come from several threads, and those that only look are answered soon, whatever a
//! device does. Every error message is one line and complete: the service passes it on as it is.
//!
//! Its methods are in traits by subject. How to add one is in CONTRIBUTING.md.

mod arrays;
mod caches;
mod drives;
mod exports;
mod labels;
mod log;
mod members;
mod volumes;

pub(crate) use arrays::is_stale_line;
pub use arrays::{ArrayDevices, ArrayNews, Arrays, OpenedArray, stale_line};
pub use caches::{CacheHealth, Caches, Drain, Passing};
pub use drives::Drives;
pub use exports::Exports;
pub use labels::{CacheLabel, JournalDeviceLabel, LabelledPlace, Labels, MemberLabel, SpareOwner};
pub use log::{Log, Waker};
pub use members::{Members, Replaced};
pub use volumes::{CacheStart, OpenedVolume, Volumes};

/// The data path, as the service uses it.
pub trait Engine:
    Log + Drives + Labels + Volumes + Caches + Exports + Arrays + Members + 'static
{
}

impl<T> Engine for T where
    T: Log + Drives + Labels + Volumes + Caches + Exports + Arrays + Members + 'static
{
}
