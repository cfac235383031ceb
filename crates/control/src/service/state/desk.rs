//! The place where the state of the service lies between turns. One command at a time has the state, and
//! gives it back while it waits for a device.
//!
//! ```text
//! command A   begin | claim array a | ask a device ............... | put on record | end
//! command B                          | begin | claim b | ... | end |
//! show                                                  | begin | end |
//! ```
//!
//! So a drive that hangs keeps the one command that needs it, and commands for the same subject
//! ([why](../../../../docs/adr/0046-commands-wait-alone.md)). After a wait the
//! subjects of a command are as they were, but for what the data path did by itself. So the command reads
//! their records again.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// The place of the state while no turn has it.
pub(crate) struct Desk<T> {
    state: Mutex<Option<Box<T>>>,
    back: Condvar,
}

impl<T> Desk<T> {
    pub(crate) fn new(state: T) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(Some(Box::new(state))), back: Condvar::new() })
    }

    pub(crate) fn take(&self) -> Box<T> {
        let mut place = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(state) = place.take() {
                return state;
            }
            place = self.back.wait(place).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(crate) fn give(&self, state: Box<T>) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = Some(state);
        self.back.notify_one();
    }
}
