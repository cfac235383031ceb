//! Ceph RBD images through librbd, Ceph's own client library.
//!
//! The library is loaded when the first image is used, so Voltier is built, packaged and started without Ceph. All
//! calls that wait for the cluster run on threads of this crate and are given up after a time. What a core calls
//! only submits and collects.
//!
//! | file | content |
//! | --- | --- |
//! | `name` | how an image is named: `rbd:POOL[/NAMESPACE]/IMAGE[@CONF][?id=USER]` |
//! | `error` | why an image cannot be used, in one line each |
//! | `api` | the functions of the library, and loading it |
//! | `patience` | calls that may wait for ever, on threads of their own |
//! | `connection` | a connection to a cluster, and an image that is open over it |
//! | `owner` | who else has an image |
//! | `former` | connections of a daemon that was killed, whose locks are broken at once |
//! | `mark` | the mark on an image of who used it last |
//! | `metadata` | texts of ours in the metadata of an image |
//! | `report` | what the owner of an image reports about it, for whoever takes it over |
//! | `take_over` | taking an image away from another host |
//! | `look` | a look at an image before it is used |
//! | `image` | an image with its lock: requests, and the thread that watches it and closes it |

mod api;
mod connection;
mod error;
mod former;
mod image;
mod look;
mod mark;
mod metadata;
mod name;
mod owner;
mod patience;
mod report;
mod take_over;

pub use error::{ImageError, Loss};
pub use former::note_clients_in;
pub use image::{Done, Image, Op, UnderWayCount, settle};
pub use look::{Seen, look};
pub use mark::note_uses_in;
pub use name::{DEFAULT_CONF, DEFAULT_USER, ImageName, NameError};
pub use report::{report, report_now};
pub use take_over::{TakenOver, take_over};
