//! The engine over the data path: one thread per core, every volume at home on one of them.
//!
//! ```text
//! control thread                    core thread
//! CoreEngine  -- Remote::call -->   volumes: the volumes of this core, their caches and NBD servers
//!     ^------------- answer --------'
//! ```
//!
//! The daemon's data path is generic code that the compiler puts together in this crate and in no other.
//!
//! # Threads
//!
//! | thread | what runs on it |
//! | --- | --- |
//! | `core-0` ... | one executor each: volumes, arrays, caches, NBD servers and FUSE files of this core |
//! | main, `leave` | signals; at the end, clients that still use volumes |
//! | `accept`, `control` | the control socket, one thread a client |
//! | `watch`, `errand` | background jobs: drains, losses put on record, devices that come late |
//! | `keeper`, `let-go`, `kept` | the end of the keeper; files that are let go, or wait for their volumes |
//! | `look`, `open` | looks at devices, and openings of drives, which may hang |
//! | `smart`, `drive` | ask drives for their health, one thread for each that is asked |
//! | `log` | writes the lines of the log; nobody waits for it |
//!
//! A panic on a core fails a volume with its arrays, or one array ([domains](voltier_ring::Domain)). A panic
//! outside all domains ends the process.
//!
//! Read `core_engine` first, then `call`, `homes` and `table` (on which core everything is). What the control
//! plane asks for is in `engine`, a file for each subject. `volumes`, `assemble`, `exports` and `opening` open
//! and close things. `loss`, `fault` and `silence` tell the control plane of failures.

mod access;
mod array_failure;
mod array_news;
mod array_status;
mod assemble;
mod call;
mod core_engine;
mod drives;
mod engine;
mod exports;
mod fault;
mod homes;
mod journals;
mod loss;
mod nvme;
mod opening;
mod silence;
mod table;
mod volume_status;
mod volumes;

pub use core_engine::{BUSY_POLL_US, CoreEngine};
pub use nvme::write_nvme_health;
pub use voltier_keeper::{KEEP_S, serve as keep};

/// The form in which a daemon passes its registry and its exports on: see
/// [`voltier_control::engine::Exports::handover`].
pub const HANDOVER: u32 = u32::from_be_bytes([
    voltier_control::REGISTRY_FORMAT.version as u8,
    voltier_keeper::VERSION,
    voltier_export::fuse::NOTE_VERSION,
    voltier_export::nbd::NOTE_VERSION,
]);
