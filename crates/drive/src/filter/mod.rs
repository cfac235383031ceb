//! Layers that change one thing about the device below them.

mod align;
mod delay;
mod fault;
mod fitted;
mod log;
mod readonly;
mod throttle;

pub use align::AlignDevice;
pub use delay::{Delay, DelayDevice};
pub use fault::{Fault, FaultDevice, Faults};
pub use fitted::FittedDevice;
pub use log::{IoKind, IoLog, LogDevice, LogEntry, LogTotals};
pub use readonly::ReadOnlyDevice;
pub use throttle::{Throttle, ThrottleDevice};
