//! The patience of a start after a crash.

use std::time::Duration;

/// How long a start after a crash is patient in all: two seconds.
pub(crate) const CRASH_TRIES: u32 = 100;
pub(crate) const CRASH_STEP: Duration = Duration::from_millis(20);
