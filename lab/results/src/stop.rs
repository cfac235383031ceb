//! The wish of a user to stop, as runs and long computations ask for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::LabError;

/// Whether the user asked to stop. Cheap to clone and to ask.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Set by SIGINT, SIGTERM and SIGHUP from now on, so that the run can clean up and end by
    /// itself.
    ///
    /// # Errors
    /// When the system refuses the handlers.
    pub fn on_signals() -> Result<Stop, LabError> {
        let stop = Stop::default();
        for signal in
            [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP]
        {
            signal_hook::flag::register(signal, stop.0.clone()).map_err(|source| {
                LabError::Failed { what: "watching signals".into(), detail: source.to_string() }
            })?;
        }
        Ok(stop)
    }

    /// Asks the run to stop.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// `Interrupted` once the user asked to stop.
    ///
    /// # Errors
    /// [`LabError::Interrupted`].
    pub fn check(&self) -> Result<(), LabError> {
        if self.0.load(Ordering::Relaxed) { Err(LabError::Interrupted) } else { Ok(()) }
    }
}
