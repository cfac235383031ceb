//! Filters for tests: each changes one thing about the device below.
//!
//! A filter delays, fails, hangs, logs, throttles or refuses writes, and passes everything else on. Only
//! tests name this crate; all filters pass the conformance tests of the drives.

mod delay;
mod fault;
mod hang;
mod log;
mod readonly;
mod throttle;

pub use delay::{Delay, DelayDevice};
pub use fault::{Fault, FaultDevice, Faults};
pub use hang::{Hang, HangDevice};
pub use log::{IoKind, IoLog, LogDevice, LogEntry, LogTotals};
pub use readonly::ReadOnlyDevice;
pub use throttle::{Throttle, ThrottleDevice};
