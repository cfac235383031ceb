//! An interrupt of a command that has something to end in the daemon first.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::error::{ControlError, ControlResult};

/// Ctrl-C or SIGTERM of this program, noted instead of ending it. The second one ends the program at once.
#[derive(Debug)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Notes interrupts from now on, until the program ends.
    ///
    /// # Errors
    /// When the system takes no handler.
    pub fn noted() -> ControlResult<Self> {
        let has_come = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            flag::register_conditional_default(signal, Arc::clone(&has_come))
                .and_then(|_| flag::register(signal, Arc::clone(&has_come)))
                .map_err(|error| ControlError::io("taking signals", &error))?;
        }
        Ok(Self(has_come))
    }

    /// Whether one has come.
    pub fn has_come(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
